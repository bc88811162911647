//! Owns: the client's side of a WebSocket for load generators, which share the machine with the servers they measure. A
//! message is read into a buffer that is used again, without filling it with zeros first as the WebSocket library does,
//! and is checked once.
//! Never: what a message means.

use std::io;

use axum::http::HeaderValue;
use bytes::{Buf, Bytes, BytesMut};
use futures::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Utf8Bytes;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::text::SplitMix;

/// The least room for a read.
const READ_BYTES: usize = 16 << 10;
/// The head of the answer to an upgrade.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Nodes send no longer ones.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

const TEXT: u8 = 0x1;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xA;

pub struct WebSocket<S> {
    stream: S,
    incoming: BytesMut,
    outgoing: Vec<u8>,
    masks: SplitMix,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// Upgrades a connection to `host`.
    pub async fn open(mut stream: S, host: &str, authorization: Option<&HeaderValue>) -> io::Result<WebSocket<S>> {
        let key = generate_key();
        let mut request = format!(
            "GET / HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: \
             13\r\nsec-websocket-key: {key}\r\n"
        )
        .into_bytes();
        if let Some(authorization) = authorization {
            request.extend([b"authorization: ", authorization.as_bytes(), b"\r\n"].concat());
        }
        request.extend(b"\r\n");
        stream.write_all(&request).await?;
        let mut incoming = BytesMut::with_capacity(READ_BYTES);
        let head = loop {
            if let Some(end) = incoming.windows(4).position(|end| end == b"\r\n\r\n") {
                break incoming.split_to(end + 4);
            }
            if incoming.len() > HEAD_BYTES_MAX || stream.read_buf(&mut incoming).await? == 0 {
                return Err(broken("no answer to the upgrade"));
            }
        };
        let head = String::from_utf8_lossy(&head);
        if !head.starts_with("HTTP/1.1 101") || !head.contains(&derive_accept_key(key.as_bytes())) {
            return Err(broken(&format!("not upgraded: {}", head.lines().next().unwrap_or_default())));
        }
        let masks = SplitMix(key.bytes().fold(0, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into())));
        Ok(WebSocket { stream, incoming, outgoing: Vec::new(), masks })
    }

    /// Adds a text message to what the next flush sends.
    pub fn feed(&mut self, text: &str) {
        self.add(TEXT, text.as_bytes());
    }

    fn add(&mut self, opcode: u8, payload: &[u8]) {
        let out = &mut self.outgoing;
        out.push(0x80 | opcode);
        match (u16::try_from(payload.len()), payload.len() as u64) {
            (Ok(short), _) if short < 126 => out.push(0x80 | short as u8),
            (Ok(short), _) => {
                out.push(0x80 | 126);
                out.extend(short.to_be_bytes());
            }
            (Err(_), long) => {
                out.push(0x80 | 127);
                out.extend(long.to_be_bytes());
            }
        }
        let [mask @ .., _, _, _, _] = self.masks.next().to_be_bytes();
        out.extend(mask);
        out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    }

    pub async fn flush(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            let written = self.stream.write(&self.outgoing).await?;
            self.outgoing.drain(..written);
        }
        self.stream.flush().await
    }

    /// The next text message. Nothing is lost if the caller stops waiting.
    pub async fn next(&mut self) -> io::Result<Utf8Bytes> {
        loop {
            if let Some(text) = self.parse()? {
                return Ok(text);
            }
            if !self.outgoing.is_empty() {
                // A pong.
                self.flush().await?;
            }
            if self.stream.read_buf(&mut self.incoming).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// A text message that has already arrived.
    pub fn ready(&mut self) -> io::Result<Option<Utf8Bytes>> {
        self.next().now_or_never().transpose()
    }

    /// Takes a whole message from what was read. Without one, there is room for the next read.
    fn parse(&mut self) -> io::Result<Option<Utf8Bytes>> {
        loop {
            let Some((opcode, head, length)) = self.head()? else {
                self.incoming.reserve(READ_BYTES);
                return Ok(None);
            };
            if self.incoming.len() < head + length {
                self.incoming.reserve(head + length - self.incoming.len());
                return Ok(None);
            }
            self.incoming.advance(head);
            let payload = self.incoming.split_to(length).freeze();
            match opcode {
                TEXT => return Utf8Bytes::try_from(payload).map(Some).map_err(|_| broken("a text that is not UTF-8")),
                PING => self.add(PONG, &payload),
                PONG => {}
                CLOSE => return Err(broken(&closed(&payload))),
                other => return Err(broken(&format!("a frame of the kind {other}"))),
            }
        }
    }

    /// The kind of the next frame, the length of its head, and that of its payload.
    fn head(&self) -> io::Result<Option<(u8, usize, usize)>> {
        let [first, second, rest @ ..] = &*self.incoming else { return Ok(None) };
        if first & 0x80 == 0 || second & 0x80 != 0 {
            return Err(broken("a frame that is masked, or a part of a message"));
        }
        let (head, length) = match (second, rest) {
            (126, [a, b, ..]) => (4, u16::from_be_bytes([*a, *b]).into()),
            (127, [a, b, c, d, e, f, g, h, ..]) => (10, u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h])),
            (126 | 127, _) => return Ok(None),
            (short, _) => (2, u64::from(*short)),
        };
        let length = usize::try_from(length).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
        let length = length.ok_or_else(|| broken("a message that is too long"))?;
        Ok(Some((first & 0x0F, head, length)))
    }
}

fn broken(why: &str) -> io::Error {
    io::Error::other(why.to_owned())
}

/// What a close frame says.
fn closed(payload: &Bytes) -> String {
    let reason = payload.get(2..).map(String::from_utf8_lossy).unwrap_or_default();
    format!("closed by the node: {}", if reason.is_empty() { "no reason given" } else { &*reason })
}

#[cfg(test)]
mod tests {
    use futures::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::Message;

    use super::*;

    #[tokio::test]
    async fn messages_of_any_length_pass_both_ways_and_pings_are_answered() {
        let (ours, theirs) = tokio::io::duplex(1000);
        let echo = tokio::spawn(async move {
            let mut node = tokio_tungstenite::accept_async(theirs).await.unwrap();
            while let Some(Ok(message)) = node.next().await {
                if message.is_text() {
                    node.send(Message::Ping("p".into())).await.unwrap();
                    assert_eq!(node.next().await.unwrap().unwrap(), Message::Pong("p".into()));
                    node.send(message).await.unwrap();
                }
            }
        });
        let mut socket = WebSocket::open(ours, "node:1", None).await.unwrap();
        assert!(socket.ready().unwrap().is_none());
        for length in [0, 1, 125, 126, 65_535, 65_536, 300_000] {
            let text = "é".repeat(length / 2) + &"x".repeat(length % 2);
            socket.feed(&text);
            socket.flush().await.unwrap();
            assert_eq!(socket.next().await.unwrap().as_str(), text);
        }
        drop(socket);
        echo.await.unwrap();
    }

    #[tokio::test]
    async fn why_the_node_closed_is_told() {
        let (ours, theirs) = tokio::io::duplex(1000);
        let node = tokio::spawn(async move {
            let mut node = tokio_tungstenite::accept_async(theirs).await.unwrap();
            let (code, reason) = (1008.into(), "enough".into());
            node.close(Some(tokio_tungstenite::tungstenite::protocol::CloseFrame { code, reason })).await.unwrap();
        });
        let mut socket = WebSocket::open(ours, "node:1", None).await.unwrap();
        assert!(socket.next().await.unwrap_err().to_string().contains("closed by the node: enough"));
        node.await.unwrap();
        let (ours, mut theirs) = tokio::io::duplex(1000);
        let refused = tokio::spawn(async move { theirs.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await });
        let error = WebSocket::open(ours, "node:1", None).await.err().unwrap();
        assert!(error.to_string().contains("403"), "{error}");
        refused.await.unwrap().unwrap();
    }
}
