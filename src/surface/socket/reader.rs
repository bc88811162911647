//! Owns: reading messages of one socket within the bounds of time, and turning broken reads into close reasons.
//! Never: what a message means.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};
use tokio_tungstenite::tungstenite::error::CapacityError;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use super::intake::{Arriving, Stuck};
use super::messages::Messages;
use super::outbox::Outbox;
use super::read_only::{Pongs, ReadOnly};
use super::{CLOSE_MAX, CloseReason, SocketLimits, Text};

/// How often an incomplete message is checked.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// What a client sent.
#[derive(Debug)]
pub enum Incoming {
    Text(Text),
    Binary(Bytes),
    /// The payload of a pong.
    Pong(Bytes),
}

/// The reading half of a socket.
pub struct Reader<S> {
    stream: Messages<ReadOnly<ReadHalf<S>>>,
    arriving: Arc<Arriving>,
    pongs: Arc<Pongs>,
    limits: SocketLimits,
    /// When to look at an incomplete message. One timer for all messages: registering one for each costs more than
    /// parsing the message.
    check: Interval,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Reader<S> {
    pub fn new(
        stream: Messages<ReadOnly<ReadHalf<S>>>,
        arriving: Arc<Arriving>,
        pongs: Arc<Pongs>,
        limits: SocketLimits,
    ) -> Reader<S> {
        let period = (limits.ping_after * 3).min(CHECK_EVERY);
        let mut check = interval_at(Instant::now() + period, period);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Reader { stream, arriving, pongs, limits, check }
    }

    /// Passes each message to `act` until the client leaves or `act` refuses one. Returns the reason for the close frame.
    pub async fn each<F>(&mut self, outbox: &Outbox, act: impl Fn(Incoming) -> F) -> CloseReason
    where
        F: Future<Output = Result<(), CloseReason>>,
    {
        loop {
            outbox.room().await;
            let acted = match self.next().await {
                Ok(incoming) => act(incoming).await,
                Err(close) => Err(close),
            };
            if let Err(close) = acted {
                return close;
            }
        }
    }

    /// Waits for the next message. `Err` is the reason to close the connection with.
    pub async fn next(&mut self) -> Result<Incoming, CloseReason> {
        loop {
            // Only now, because the last message was held until it was handled.
            self.arriving.finished();
            match self.next_message().await? {
                Some(Message::Text(text)) => return Ok(Incoming::Text(text)),
                Some(Message::Binary(bytes)) => return Ok(Incoming::Binary(bytes)),
                Some(Message::Pong(payload)) => return Ok(Incoming::Pong(payload)),
                Some(Message::Ping(payload)) => self.pongs.owe(payload),
                Some(Message::Frame(_)) => {}
                Some(Message::Close(_)) | None => {
                    return Err(CloseReason::new(1000, "the client closed the connection"));
                }
            }
        }
    }

    /// Waits for a whole message as long as bytes arrive. `None` when the stream ended.
    async fn next_message(&mut self) -> Result<Option<Message>, CloseReason> {
        let quiet_max = self.limits.ping_after * 3;
        let started = Instant::now();
        let mut quiet_since = started;
        loop {
            tokio::select! {
                biased;
                message = self.stream.next() => return message.transpose().map_err(close_reason),
                _ = self.check.tick() => {}
            }
            if self.arriving.progressed() {
                quiet_since = Instant::now();
            } else if quiet_since.elapsed() >= quiet_max {
                return Err(CloseReason::new(1001, format!("no sign of life for {quiet_max:?}")));
            } else if started.elapsed() > self.limits.message_read_max {
                return Err(CloseReason::new(1008, "one message took too long to arrive"));
            }
            match self.arriving.stuck(self.limits.room_wait_max) {
                Some(Stuck::TooSlow) => return Err(CloseReason::new(1008, "a large message arrives too slowly")),
                Some(Stuck::NoRoom) => return Err(CloseReason::new(1013, "no room for the message: try again later")),
                None => {}
            }
        }
    }

    /// Reads on for a moment after the close frame was sent: a client that is sending reads the frame only if we read
    /// too.
    pub async fn finish(&mut self) {
        let _ = timeout(CLOSE_MAX, async { while let Some(Ok(_)) = self.stream.next().await {} }).await;
    }
}

fn close_reason(error: WsError) -> CloseReason {
    match error {
        WsError::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
            CloseReason::new(1009, format!("message too large: {size} bytes, the limit is {max_size}"))
        }
        WsError::Utf8(_) => CloseReason::new(1007, "a text frame was not UTF-8"),
        WsError::Protocol(error) => CloseReason::new(1002, error.to_string()),
        other => CloseReason::new(1006, other.to_string()),
    }
}
