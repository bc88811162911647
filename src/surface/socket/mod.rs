//! WebSocket plumbing: what any protocol over a WebSocket needs, independent of what its messages mean.
//!
//! Owns: the upgrade (`handshake`), reading within time and memory bounds (`reader`, `messages`, `intake`, `frame_ends`), a bounded queue of
//! outgoing messages (`outbox`), writing it (`writer`, `frame`), and pings that tell which events arrived (`probe`).
//! Never: the iii bus or any other protocol.

pub mod frame;
pub mod frame_ends;
pub mod handshake;
pub mod intake;
pub mod messages;
pub mod outbox;
pub mod probe;
pub mod read_only;
pub mod reader;
pub mod writer;

use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_util::sync::CancellationToken;

use self::intake::{Arriving, Intake};
use self::messages::Messages;
use self::read_only::{Pongs, ReadOnly};
use self::reader::Reader;
use self::writer::Writer;

/// Small, because every idle connection has it.
const WRITE_BUFFER_BYTES: usize = 16 << 10;
/// The WebSocket library fills this with zeros before each read, so a larger one costs every small message more than it
/// saves large ones.
const READ_BUFFER_BYTES: usize = 4 << 10;
/// How long a close frame may take to be written, and then to be acknowledged.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// The text of one message. Cheap to clone: the bytes are shared.
pub type Text = Utf8Bytes;

/// Bounds of one socket.
#[derive(Debug, Clone)]
pub struct SocketLimits {
    /// The largest message in either direction.
    pub message_bytes_max: usize,
    /// How long one message may take to arrive, even if it makes progress.
    pub message_read_max: Duration,
    /// How long a large message may wait for memory while it arrives.
    pub room_wait_max: Duration,
    /// A client that reads nothing for this long is a slow consumer and is closed.
    pub write_stall_max: Duration,
    /// A silent client is pinged after this time, and dropped after three times as long without any message.
    pub ping_after: Duration,
}

impl Default for SocketLimits {
    fn default() -> SocketLimits {
        SocketLimits {
            message_bytes_max: 64 << 20,
            message_read_max: Duration::from_secs(600),
            room_wait_max: Duration::from_secs(30),
            write_stall_max: Duration::from_secs(30),
            ping_after: Duration::from_secs(30),
        }
    }
}

/// Why a connection ends, as the client reads it in the close frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloseReason {
    pub code: u16,
    pub reason: String,
}

impl CloseReason {
    pub fn new(code: u16, reason: impl Into<String>) -> CloseReason {
        CloseReason { code, reason: reason.into() }
    }
}

/// Takes over an upgraded connection.
pub async fn open<S>(connection: S, limits: SocketLimits, intake: &Intake) -> (Writer<S>, Reader<S>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (read, write) = tokio::io::split(connection);
    let (stream, arriving) = web_socket(ReadOnly(read), limits.message_bytes_max, intake).await;
    let pongs = Arc::new(Pongs::default());
    (Writer::new(write, pongs.clone(), limits.clone()), Reader::new(stream, arriving, pongs, limits))
}

/// Reads and drops every message until the client closes or the node shuts down.
pub async fn discard<S>(connection: S, message_bytes_max: usize, intake: &Intake, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut socket, arriving) = web_socket(connection, message_bytes_max, intake).await;
    let read = async {
        while let Some(Ok(_)) = socket.next().await {
            arriving.finished();
        }
    };
    tokio::select! {
        () = read => {}
        () = shutdown.cancelled() => {}
    }
    // The client is gone or leaves: whether it reads the close frame does not matter.
    let _ = timeout(CLOSE_MAX, socket.close()).await;
}

/// Sends one message and closes. Nothing that the client sends is read before its close frame.
pub async fn refuse<S>(connection: S, message: Text, CloseReason { code, reason }: CloseReason)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let config =
        WebSocketConfig::default().max_message_size(Some(WRITE_BUFFER_BYTES)).max_frame_size(Some(WRITE_BUFFER_BYTES));
    let mut socket = WebSocketStream::from_raw_socket(connection, Role::Server, Some(config)).await;
    let refused = async {
        socket.send(Message::Text(message)).await?;
        let frame = CloseFrame { code: code.into(), reason: reason.into() };
        socket.send(Message::Close(Some(frame))).await?;
        // A client that is sending reads the frames only if we read too.
        while let Some(Ok(_)) = socket.next().await {}
        Ok::<_, tokio_tungstenite::tungstenite::Error>(())
    };
    // Whether the client reads it does not matter.
    let _ = timeout(CLOSE_MAX, refused).await;
}

async fn web_socket<S>(connection: S, message_bytes_max: usize, intake: &Intake) -> (Messages<S>, Arc<Arriving>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_message_size(Some(message_bytes_max))
        .max_frame_size(Some(message_bytes_max));
    let (metered, arriving) = intake.meter(connection);
    (Messages::new(WebSocketStream::from_raw_socket(metered, Role::Server, Some(config)).await), arriving)
}
