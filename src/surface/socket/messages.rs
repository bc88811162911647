//! Owns: the messages of one WebSocket, as the library reads them, so that its buffer shrinks again after a large one.
//! Never: what a message means.

use std::task::{Context, Poll};

use futures::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::intake::Metered;

/// A message that is longer takes the buffer of the library with it.
pub const LARGE_BYTES: usize = 64 << 10;

pub struct Messages<S> {
    stream: WebSocketStream<Metered<S>>,
    /// The last large message. While somebody holds it, the library cannot use its buffer again and takes a small one.
    large: Option<Message>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Messages<S> {
    pub fn new(stream: WebSocketStream<Metered<S>>) -> Messages<S> {
        Messages { stream, large: None }
    }

    /// The next message. `None` when the stream ended.
    pub async fn next(&mut self) -> Option<Result<Message, Error>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message, Error>>> {
        let next = self.stream.poll_next_unpin(cx);
        match &next {
            Poll::Ready(Some(Ok(message))) if message.len() > LARGE_BYTES => self.large = Some(message.clone()),
            Poll::Ready(_) => {}
            // It has its next buffer before it reads from the socket.
            Poll::Pending => self.large = None,
        }
        next
    }

    pub async fn close(&mut self) -> Result<(), Error> {
        self.stream.close(None).await
    }
}
