//! Owns: how much of messages that are still arriving may be in memory, over all clients.
//! Never: frames. A socket that wants more than its free share waits, unread, until others are done.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;

use super::locked;

/// What every client may have arriving without asking; ordinary messages are smaller.
pub const FREE_BYTES: usize = 256 << 10;
/// What is asked for at a time.
const STEP_KIB: u32 = 1024;

/// What one client's unfinished message holds.
#[derive(Default)]
pub struct Arriving {
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// Read since the last whole message.
    bytes: usize,
    permits: Option<OwnedSemaphorePermit>,
    progressed: bool,
}

impl Arriving {
    /// A whole message is here; its successor starts anew.
    pub fn finished(&self) {
        *locked(&self.held) = Held::default();
    }

    /// True when anything arrived since the last time this was asked.
    pub fn progressed(&self) -> bool {
        std::mem::take(&mut locked(&self.held).progressed)
    }
}

impl Held {
    fn allowed(&self) -> usize {
        let kib = self.permits.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        FREE_BYTES + kib * 1024
    }
}

/// A socket whose reading is measured.
pub struct Metered<S> {
    socket: S,
    share: PollSemaphore,
    arriving: Arc<Arriving>,
}

impl<S> Metered<S> {
    /// `share` counts KiB for all clients together.
    pub fn new(socket: S, share: Arc<Semaphore>) -> (Metered<S>, Arc<Arriving>) {
        let arriving = Arc::new(Arriving::default());
        (Metered { socket, share: PollSemaphore::new(share), arriving: arriving.clone() }, arriving)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let wants_more = {
            let held = locked(&this.arriving.held);
            held.bytes >= held.allowed()
        };
        if wants_more {
            // `None` would mean that the semaphore is closed, which nobody does.
            let more = ready!(this.share.poll_acquire_many(cx, STEP_KIB));
            let mut held = locked(&this.arriving.held);
            match (&mut held.permits, more) {
                (Some(permits), Some(more)) => permits.merge(more),
                (permits, more) => *permits = more,
            }
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.socket).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        let mut held = locked(&this.arriving.held);
        held.bytes += read;
        held.progressed |= read > 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_client_past_its_free_share_waits_until_another_is_done() {
        let share = Arc::new(Semaphore::new(STEP_KIB as usize));
        let endless = || tokio::io::repeat(1);
        let (mut one, _) = Metered::new(endless(), share.clone());
        let (mut two, arriving) = Metered::new(endless(), share);
        let (mut large, mut next) = (vec![0; FREE_BYTES], [0]);
        one.read_exact(&mut large).await.unwrap();
        one.read_exact(&mut next).await.unwrap();
        two.read_exact(&mut large).await.unwrap();
        assert!(arriving.progressed() && !arriving.progressed());
        tokio::select! {
            biased;
            _ = two.read_exact(&mut next) => panic!("read more than there is room for"),
            () = tokio::task::yield_now() => {}
        }
        drop(one);
        two.read_exact(&mut next).await.unwrap();
        arriving.finished();
        two.read_exact(&mut large).await.unwrap();
    }
}
