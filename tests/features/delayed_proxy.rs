//! Owns: a TCP proxy that delays every byte by the same time, in order. It stands for an engine that is far away or
//! busy.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Delayed pieces at a time, in each direction.
const PIECES_MAX: usize = 4096;

pub struct DelayedProxy {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl DelayedProxy {
    /// Forwards to the address of a `ws://` URL.
    pub async fn start(url: &str, delay: Duration) -> DelayedProxy {
        let to = url.trim_start_matches("ws://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let serving = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(&to).await else { continue };
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                tokio::spawn(forward(near_read, far_write, delay));
                tokio::spawn(forward(far_read, near_write, delay));
            }
        });
        DelayedProxy { address, serving }
    }

    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }
}

impl Drop for DelayedProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// One direction. An empty piece forwards the end of the stream, with the same delay as the bytes before it.
async fn forward(
    mut from: impl AsyncReadExt + Unpin,
    to: impl AsyncWriteExt + Unpin + Send + 'static,
    delay: Duration,
) {
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    tokio::spawn(deliver(pieces, to));
    let mut piece = vec![0; 16 << 10];
    while let Ok(size @ 1..) = from.read(&mut piece).await {
        if sender.send((Instant::now() + delay, piece[..size].to_vec())).await.is_err() {
            return;
        }
    }
    let _ = sender.send((Instant::now() + delay, Vec::new())).await;
}

async fn deliver(mut pieces: mpsc::Receiver<(Instant, Vec<u8>)>, mut to: impl AsyncWriteExt + Unpin) {
    while let Some((due, piece)) = pieces.recv().await {
        tokio::time::sleep_until(due).await;
        if piece.is_empty() || to.write_all(&piece).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
