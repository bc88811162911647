//! Owns: the form of messages on the wire, as a server writes them (RFC 6455): a head, then the payload as it is.
//! Never: reading. The WebSocket library does that, because what clients send must be unmasked and checked.

use bytes::Bytes;

use super::Text;

const LAST_FRAME: u8 = 0x80;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    Text = 0x1,
    Close = 0x8,
    Ping = 0x9,
    Pong = 0xA,
}

/// The text of one message to a client, in parts that are written one after the other. Cheap to clone: the bytes are
/// shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    first: Bytes,
    more: Vec<Bytes>,
}

impl Frame {
    /// The parts must be UTF-8.
    pub fn of_parts(first: impl Into<Bytes>, more: Vec<Bytes>) -> Frame {
        Frame { first: first.into(), more }
    }

    pub fn parts(&self) -> impl Iterator<Item = &Bytes> + Clone {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.parts().map(Bytes::len).sum()
    }
}

impl From<Text> for Frame {
    fn from(text: Text) -> Frame {
        Frame { first: text.into(), more: Vec::new() }
    }
}

impl From<&str> for Frame {
    fn from(text: &str) -> Frame {
        Text::from(text).into()
    }
}

/// Adds the head of a frame.
pub fn head(out: &mut Vec<u8>, opcode: Opcode, payload_bytes: usize) {
    out.push(LAST_FRAME | opcode as u8);
    match (u16::try_from(payload_bytes), payload_bytes as u64) {
        (Ok(short), _) if short < 126 => out.push(short as u8),
        (Ok(short), _) => {
            out.push(126);
            out.extend(short.to_be_bytes());
        }
        (Err(_), long) => {
            out.push(127);
            out.extend(long.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    #[tokio::test]
    async fn the_websocket_library_reads_what_is_written() {
        for length in [0, 1, 125, 126, 127, 65_535, 65_536, 100_000] {
            let payload = "x".repeat(length);
            let mut written = Vec::new();
            head(&mut written, Opcode::Text, length);
            written.extend(payload.as_bytes());
            head(&mut written, Opcode::Ping, 2);
            written.extend(b"hi");
            let (client, mut node) = tokio::io::duplex(1 << 20);
            tokio::io::AsyncWriteExt::write_all(&mut node, &written).await.unwrap();
            let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
            assert_eq!(client.next().await.unwrap().unwrap(), Message::text(payload));
            assert_eq!(client.next().await.unwrap().unwrap(), Message::Ping("hi".into()));
        }
    }
}
