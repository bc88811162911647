//! Owns: a socket that the WebSocket library only reads. What the library would write by itself is dropped, so that
//! nothing but the writer of the connection writes: large messages go from where they are to the socket, without a copy
//! in the library's buffer. The writer sends the pongs (`Pongs`) and the close frame.
//! Never: what was read.

use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::surface::locked;

/// A reading half that takes writes and drops them.
pub struct ReadOnly<R>(pub R);

impl<R: AsyncRead + Unpin> AsyncRead for ReadOnly<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<R: Unpin> AsyncWrite for ReadOnly<R> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The ping that was read last and is not answered yet. An earlier one needs no answer of its own (RFC 6455), so a client
/// that pings and does not read takes no memory.
#[derive(Default)]
pub struct Pongs {
    owed: Mutex<Option<Bytes>>,
    arrived: Notify,
}

impl Pongs {
    /// A ping with this payload was read.
    pub fn owe(&self, payload: Bytes) {
        *locked(&self.owed) = Some(payload);
        self.arrived.notify_one();
    }

    /// Waits for a ping to answer.
    pub async fn owed(&self) -> Bytes {
        loop {
            if let Some(payload) = locked(&self.owed).take() {
                return payload;
            }
            self.arrived.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn only_the_last_ping_is_answered() {
        let pongs = Pongs::default();
        pongs.owe("1".into());
        pongs.owe("2".into());
        assert_eq!(pongs.owed().await, "2");
        assert_eq!(pongs.owed().now_or_never(), None);
    }
}
