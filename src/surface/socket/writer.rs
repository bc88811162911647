//! Owns: writing the outbox of one socket: flushing once per batch, pinging a silent client, giving up on a stalled
//! one, and the close frame.
//! Never: what is queued.

use std::pin::pin;
use std::time::Duration;

use futures::SinkExt;
use futures::stream::SplitSink;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use super::intake::Metered;
use super::outbox::{Class, Next, Outbox, Sent};
use super::probe::Probe;
use super::{CLOSE_MAX, CloseReason, SocketLimits};
use crate::machine::ids::Position;

/// A close frame has room for 123 bytes of reason.
const REASON_BYTES_MAX: usize = 123;

/// The socket is lost, or it is being closed because the client does not read.
struct Lost;

/// The writing half of a socket.
pub struct Writer<S> {
    sink: SplitSink<WebSocketStream<Metered<S>>, Message>,
    limits: SocketLimits,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Writer<S> {
    pub fn new(sink: SplitSink<WebSocketStream<Metered<S>>, Message>, limits: SocketLimits) -> Writer<S> {
        Writer { sink, limits }
    }

    /// Writes what the outbox holds until the close frame. `complete` returns the position up to which the client has
    /// everything once it has the given event.
    pub async fn run(mut self, outbox: &Outbox, probe: &Probe, complete: impl Fn(Sent) -> Option<Position>) {
        let ping = || probe.ping(probe.written().and_then(&complete));
        // One timer for all messages: registering one for each costs as much as writing a short message.
        let mut ping_timer = pin!(sleep_until(Instant::now() + self.limits.ping_after));
        loop {
            let next = tokio::select! {
                biased;
                // First, whatever is written: a client that only listens says nothing but pongs.
                () = &mut ping_timer => None,
                next = outbox.next() => Some(next),
            };
            match next {
                None => {
                    ping_timer.as_mut().reset(Instant::now() + self.limits.ping_after);
                    if self.write(outbox, ping(), true).await.is_err() && !outbox.cut_token().is_cancelled() {
                        return;
                    }
                }
                Some(Next::Write(text, class)) => {
                    let flush = outbox.is_empty();
                    if self.write(outbox, Message::Text(text.clone()), flush).await.is_err() {
                        if class == Class::Result {
                            outbox.give_back(text);
                        }
                        if !outbox.cut_token().is_cancelled() {
                            return;
                        }
                    } else if let Class::Event(sent) = class {
                        probe.wrote(sent);
                    }
                    if flush && probe.is_due() && self.write(outbox, ping(), true).await.is_err() {
                        return;
                    }
                }
                Some(Next::Close(reason)) => {
                    let _ = timeout(CLOSE_MAX, self.close(reason)).await;
                    return;
                }
            }
        }
    }

    async fn write(&mut self, outbox: &Outbox, message: Message, flush: bool) -> Result<(), Lost> {
        // A large message over a slow network is not a stall: it gets one second more per 64 KiB.
        let stall_max = self.limits.write_stall_max + Duration::from_secs((message.len() >> 16) as u64);
        let sink = &mut self.sink;
        let write = async { if flush { sink.send(message).await } else { sink.feed(message).await } };
        tokio::select! {
            // Mostly the message is written at once.
            biased;
            written = timeout(stall_max, write) => match written {
                Ok(written) => written.map_err(|_| Lost),
                Err(_) => {
                    outbox.cut(1013, format!("slow consumer: nothing was read for {stall_max:?}"));
                    Err(Lost)
                }
            },
            () = outbox.cut_token().cancelled() => Err(Lost),
        }
    }

    async fn close(&mut self, CloseReason { code, reason }: CloseReason) -> Result<(), WsError> {
        // 1006 stands for a missing close frame and must not be sent.
        let code = if code == 1006 { 1011 } else { code };
        let mut end = reason.len().min(REASON_BYTES_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let frame = CloseFrame { code: code.into(), reason: reason[..end].into() };
        self.sink.send(Message::Close(Some(frame))).await
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;
    use crate::surface::socket::intake::Intake;
    use crate::surface::socket::open;
    use crate::surface::socket::outbox::OutboxLimits;

    /// A front-end that only listens answers pings, and says nothing else.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_written_to_all_the_time_is_pinged_all_the_same() {
        let limits = SocketLimits::default();
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let intake = Intake::new(limits.message_bytes_max, limits.message_bytes_max);
        let (writer, _reader) = open(ours, limits.clone(), &intake).await;
        let (outbox, probe) = (Outbox::new(OutboxLimits::default(), std::sync::Arc::default()), Probe::default());
        let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
        let begun = Instant::now();
        let talk = async {
            loop {
                outbox.push("news".into(), Class::Other);
                tokio::time::sleep(limits.ping_after / 10).await;
            }
        };
        let pinged = async { while !matches!(client.next().await, Some(Ok(Message::Ping(_)))) {} };
        tokio::select! {
            () = pinged => {}
            () = talk => {}
            () = writer.run(&outbox, &probe, |_| None) => {}
        }
        assert!(begun.elapsed() < limits.ping_after * 2, "{:?}", begun.elapsed());
    }
}
