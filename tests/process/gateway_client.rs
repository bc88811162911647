//! Owns: a connection to the gateway, and waiting for what the node sends on it. Shared with `tests/features`.

use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// Long enough for a busy machine. What takes longer counts as a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// A front-end or a driver.
pub struct Client(pub WebSocketStream<MaybeTlsStream<TcpStream>>);

/// What the node sent.
#[derive(Debug)]
pub enum Heard {
    Frame(Value),
    Closed(u16),
}

impl Client {
    pub async fn next(&mut self) -> Heard {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.0.next()).await.expect("a frame in time");
            match message {
                Some(Ok(Message::Text(text))) => return Heard::Frame(serde_json::from_str(&text).expect("JSON")),
                Some(Ok(Message::Close(frame))) => return Heard::Closed(frame.map_or(1005, |frame| frame.code.into())),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Heard::Closed(1006),
            }
        }
    }

    pub async fn frame(&mut self) -> Value {
        match self.next().await {
            Heard::Frame(frame) => frame,
            Heard::Closed(code) => panic!("the connection was closed with {code}"),
        }
    }

    /// The next frame of a type; skips others. An error ends the wait.
    pub async fn expect(&mut self, kind: &str) -> Value {
        loop {
            let frame = self.frame().await;
            if frame["type"] == kind {
                return frame;
            }
            assert_ne!(frame["type"], "error", "{kind} was expected: {frame}");
        }
    }
}
