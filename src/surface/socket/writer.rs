//! Owns: writing the outbox of one socket: flushing once per batch, pinging a silent client, giving up on a stalled
//! one, and the close frame.
//! Never: what is queued.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, WriteHalf};
use tokio::time::{Instant, sleep_until, timeout};

use super::frame::{self, Opcode};
use super::outbox::{Class, Next, Outbox, Sent};
use super::probe::Probe;
use super::read_only::Pongs;
use super::{CLOSE_MAX, CloseReason, SocketLimits, WRITE_BUFFER_BYTES};
use crate::machine::ids::Position;

/// A close frame has room for 123 bytes of reason.
const REASON_BYTES_MAX: usize = 123;

/// The socket is lost, or it is being closed because the client does not read.
struct Lost;

/// What is written next.
enum Due {
    Ping,
    /// The payload of a ping of the client.
    Pong(Bytes),
    Next(Next),
}

/// A shorter message is copied into the buffer, and several are written at once. A longer one is written from where it
/// is.
const COPIED_BYTES_MAX: usize = 4 << 10;

/// Parts that are given to the socket at once.
const SLICES_MAX: usize = 64;

/// The writing half of a socket.
pub struct Writer<S> {
    socket: WriteHalf<S>,
    pongs: Arc<Pongs>,
    /// Frames that are not written yet, and how much of them is.
    buffer: Vec<u8>,
    written: usize,
    /// What comes after the buffer.
    parts: VecDeque<Bytes>,
    limits: SocketLimits,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Writer<S> {
    pub fn new(socket: WriteHalf<S>, pongs: Arc<Pongs>, limits: SocketLimits) -> Writer<S> {
        Writer { socket, pongs, buffer: Vec::new(), written: 0, parts: VecDeque::new(), limits }
    }

    /// Writes what the outbox holds until the close frame. `complete` returns the position up to which the client has
    /// everything once it has the given event.
    pub async fn run(mut self, outbox: &Outbox, probe: &Probe, complete: impl Fn(Sent) -> Option<Position>) {
        let ping = || [probe.ping(probe.written().and_then(&complete))];
        let pongs = self.pongs.clone();
        // One timer for all messages: registering one for each costs as much as writing a short message.
        let mut ping_timer = pin!(sleep_until(Instant::now() + self.limits.ping_after));
        loop {
            // In no order: a client that pings all the time is still closed, and one that is sent events all the time still
            // gets its pongs.
            let other = async {
                tokio::select! {
                    payload = pongs.owed() => Due::Pong(payload),
                    next = outbox.next() => Due::Next(next),
                }
            };
            let due = tokio::select! {
                biased;
                // First, whatever is written: a client that only listens says nothing but pongs.
                () = &mut ping_timer => Due::Ping,
                due = other => due,
            };
            match due {
                Due::Ping => {
                    ping_timer.as_mut().reset(Instant::now() + self.limits.ping_after);
                    if self.write(outbox, Opcode::Ping, ping().iter(), true).await.is_err()
                        && !outbox.cut_token().is_cancelled()
                    {
                        return;
                    }
                }
                Due::Pong(payload) => {
                    let pong = self.write(outbox, Opcode::Pong, [payload].iter(), outbox.is_empty()).await;
                    if pong.is_err() && !outbox.cut_token().is_cancelled() {
                        return;
                    }
                }
                Due::Next(Next::Write(frame, class)) => {
                    let flush = outbox.is_empty();
                    if self.write(outbox, Opcode::Text, frame.parts(), flush).await.is_err() {
                        if class == Class::Result {
                            outbox.give_back(frame);
                        }
                        if !outbox.cut_token().is_cancelled() {
                            return;
                        }
                    } else if let Class::Event(sent) = class {
                        probe.wrote(sent);
                    }
                    if flush && probe.is_due() && self.write(outbox, Opcode::Ping, ping().iter(), true).await.is_err() {
                        return;
                    }
                }
                Due::Next(Next::Close(reason)) => {
                    let _ = timeout(CLOSE_MAX, self.close(reason)).await;
                    return;
                }
            }
        }
    }

    async fn write<'a>(
        &mut self,
        outbox: &Outbox,
        opcode: Opcode,
        payload: impl Iterator<Item = &'a Bytes> + Clone,
        flush: bool,
    ) -> Result<(), Lost> {
        let bytes = self.add(opcode, payload);
        if bytes <= COPIED_BYTES_MAX && !flush && self.buffer.len() < WRITE_BUFFER_BYTES {
            return Ok(());
        }
        // A large message over a slow network is not a stall: it gets one second more per 64 KiB.
        let stall_max = self.limits.write_stall_max + Duration::from_secs((bytes >> 16) as u64);
        tokio::select! {
            // Mostly the message is written at once.
            biased;
            written = timeout(stall_max, self.drain(flush)) => match written {
                Ok(written) => written.map_err(|_| Lost),
                Err(_) => {
                    outbox.cut(1013, format!("slow consumer: nothing was read for {stall_max:?}"));
                    Err(Lost)
                }
            },
            () = outbox.cut_token().cancelled() => Err(Lost),
        }
    }

    /// Adds a frame to what is to be written. Returns the length of its payload.
    fn add<'a>(&mut self, opcode: Opcode, payload: impl Iterator<Item = &'a Bytes> + Clone) -> usize {
        let bytes: usize = payload.clone().map(Bytes::len).sum();
        // There are parts only while a message could not be written to its end. The close frame comes behind it.
        let is_behind = !self.parts.is_empty();
        let mut behind = Vec::new();
        let out = if is_behind { &mut behind } else { &mut self.buffer };
        frame::head(out, opcode, bytes);
        if bytes <= COPIED_BYTES_MAX {
            payload.for_each(|part| out.extend_from_slice(part));
            self.parts.extend(is_behind.then(|| Bytes::from(behind)));
        } else {
            self.parts.extend(is_behind.then(|| Bytes::from(behind)));
            self.parts.extend(payload.filter(|part| !part.is_empty()).cloned());
        }
        bytes
    }

    /// Writes everything. What was written when this is given up is not written again.
    async fn drain(&mut self, flush: bool) -> io::Result<()> {
        while self.written < self.buffer.len() || !self.parts.is_empty() {
            let begun = Some(&self.buffer[self.written..]).filter(|rest| !rest.is_empty());
            let rest = begun.into_iter().chain(self.parts.iter().map(|part| &**part));
            let slices: Vec<IoSlice<'_>> = rest.take(SLICES_MAX).map(IoSlice::new).collect();
            let mut written = match self.socket.write_vectored(&slices).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => written,
            };
            let of_buffer = written.min(self.buffer.len() - self.written);
            (self.written, written) = (self.written + of_buffer, written - of_buffer);
            while let Some(part) = self.parts.front_mut().filter(|_| written > 0) {
                let of_part = written.min(part.len());
                part.advance(of_part);
                written -= of_part;
                if part.is_empty() {
                    self.parts.pop_front();
                }
            }
        }
        self.buffer.clear();
        self.written = 0;
        if flush { self.socket.flush().await } else { Ok(()) }
    }

    async fn close(&mut self, CloseReason { code, reason }: CloseReason) -> io::Result<()> {
        // 1006 stands for a missing close frame and must not be sent.
        let code = if code == 1006 { 1011 } else { code };
        let mut end = reason.len().min(REASON_BYTES_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let payload = [Bytes::copy_from_slice(&code.to_be_bytes()), Bytes::copy_from_slice(&reason.as_bytes()[..end])];
        self.add(Opcode::Close, payload.iter());
        self.drain(true).await
    }
}

#[cfg(test)]
mod tests {
    use futures::{SinkExt, StreamExt};
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;
    use crate::surface::socket::frame::Frame;
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
                outbox.push("news", Class::Other);
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

    fn long(letter: u8) -> Bytes {
        vec![letter; 3 * COPIED_BYTES_MAX].into()
    }

    #[tokio::test]
    async fn messages_of_any_length_arrive_in_their_order_and_pings_are_answered() {
        let (ours, theirs) = tokio::io::duplex(1000);
        let limits = SocketLimits::default();
        let intake = Intake::new(limits.message_bytes_max, limits.message_bytes_max);
        let (writer, mut reader) = open(ours, limits, &intake).await;
        let (outbox, probe) = (Outbox::new(OutboxLimits::default(), Arc::default()), Probe::default());
        let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
        let frames = [
            Frame::from("short"),
            Frame::of_parts("(", vec![long(b'a'), Bytes::new(), ",".into(), long(b'b'), ")".into()]),
            Frame::from("last"),
        ];
        let whole = |frame: &Frame| frame.parts().flat_map(|part| part.to_vec()).collect::<Vec<u8>>();
        let expected = frames.each_ref().map(whole);
        for frame in frames {
            outbox.push(frame, Class::Other);
        }
        let talk = async {
            for text in expected {
                assert_eq!(client.next().await.unwrap().unwrap().into_data(), text);
            }
            client.send(Message::Ping("payload".into())).await.unwrap();
            assert_eq!(client.next().await.unwrap().unwrap(), Message::Pong("payload".into()));
            outbox.finish(1001, "over");
            let Message::Close(Some(close)) = client.next().await.unwrap().unwrap() else { panic!("no close frame") };
            assert_eq!((u16::from(close.code), close.reason.as_str()), (1001, "over"));
        };
        let read = async {
            while reader.next().await.is_ok() {}
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ((), ()) = futures::future::join(talk, writer.run(&outbox, &probe, |_| None)) => {}
            () = read => {}
        }
    }

    /// The reason arrives behind the whole message, or the client could not read it.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_again_reads_why_it_was_given_up() {
        let (ours, theirs) = tokio::io::duplex(1000);
        let limits = SocketLimits::default();
        let intake = Intake::new(limits.message_bytes_max, limits.message_bytes_max);
        let (writer, _reader) = open(ours, limits.clone(), &intake).await;
        let (outbox, probe) = (Outbox::new(OutboxLimits::default(), Arc::default()), Probe::default());
        let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
        outbox.push(Frame::of_parts("", vec![long(b'a')]), Class::Other);
        let late = async {
            tokio::time::sleep(limits.write_stall_max + CLOSE_MAX / 2).await;
            assert_eq!(client.next().await.unwrap().unwrap().into_data(), long(b'a'));
            // A ping may have been due.
            let close = loop {
                if let Message::Close(close) = client.next().await.unwrap().unwrap() {
                    break close.unwrap();
                }
            };
            assert_eq!(u16::from(close.code), 1013);
        };
        futures::future::join(late, writer.run(&outbox, &probe, |_| None)).await;
    }
}
