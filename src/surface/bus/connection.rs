//! Owns: the life of one socket: greeting, reading and acting on frames, writing, goodbye.
//! Never: what a call or a binding means (calls, triggers).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::CapacityError;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_util::sync::CancellationToken;

use super::calls::Share;
use super::inbound::{Inbound, RegisterFunction};
use super::intake::{Arriving, Metered};
use super::outbound::{self, ErrorBody, Frame};
use super::outbox::{Class, Goodbye, Next, Outbox, Sent};
use super::registry::{Function, Refused, TooMuch};
use super::worker::Worker;
use super::{Bus, locked};
use crate::machine::ids::Position;

/// Small, since every idle connection has them.
const SOCKET_BUFFER_BYTES: usize = 16 << 10;
/// How long a goodbye may take to be written, and then to be acknowledged.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// How often a client that gets events is asked whether it has them, at most.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// A close frame carries at most 123 bytes of reason.
const REASON_BYTES_MAX: usize = 123;

/// The WebSocket settings of every socket this node accepts.
pub fn socket_config(message_bytes_max: usize) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(SOCKET_BUFFER_BYTES)
        .write_buffer_size(SOCKET_BUFFER_BYTES)
        .max_message_size(Some(message_bytes_max))
        .max_frame_size(Some(message_bytes_max))
}

/// Serves a socket after its upgrade, to its end.
pub async fn serve<S>(bus: Arc<Bus>, socket: S, peer: Option<SocketAddr>, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let config = socket_config(bus.settings().message_bytes_max);
    let (socket, arriving) = Metered::new(socket, bus.arriving_kib.clone());
    let (sink, stream) = WebSocketStream::from_raw_socket(socket, Role::Server, Some(config)).await.split();
    let (worker, outbox) = bus.join(peer);
    tracing::debug!(worker = worker.id, ?peer, "worker connected");
    let connection =
        Connection { share: Share::new(&bus.settings()), bus, worker, outbox, arriving, probe: Mutex::default() };
    let goodbye = connection.run(sink, stream, shutdown).await;
    connection.bus.leave(&connection.worker);
    tracing::debug!(worker = connection.worker.id, code = goodbye.code, reason = goodbye.reason, "worker disconnected");
}

struct Connection {
    bus: Arc<Bus>,
    worker: Arc<Worker>,
    outbox: Arc<Outbox>,
    share: Share,
    arriving: Arc<Arriving>,
    probe: Mutex<Probe>,
}

/// A ping after an event: once it is answered, the client has the event, and everything before.
#[derive(Default)]
struct Probe {
    number: u64,
    /// What the client has if it answers the last probe: the number of an event, and a position.
    upto: Option<(u64, Position)>,
    /// The last event that was written, and the last that was asked for.
    written: Option<Sent>,
    asked: Option<Sent>,
    asked_at: Option<Instant>,
}

impl Probe {
    /// Whether it is time for a ping.
    fn is_due(&self) -> bool {
        self.written != self.asked && self.asked_at.is_none_or(|at| at.elapsed() >= PROBE_EVERY)
    }

    /// The ping to write now. `complete`: what the client has for certain once it has what was written.
    fn ask(&mut self, complete: Option<Position>) -> Message {
        self.number += 1;
        self.asked = self.written;
        self.asked_at = Some(Instant::now());
        self.upto = self.written.map(|sent| sent.number).zip(complete);
        Message::Ping(bytes::Bytes::copy_from_slice(&self.number.to_be_bytes()))
    }

    fn answered(&self, payload: &[u8]) -> Option<(u64, Position)> {
        self.upto.filter(|_| payload == self.number.to_be_bytes())
    }
}

impl Connection {
    async fn run<S>(
        &self,
        sink: SplitSink<WebSocketStream<S>, Message>,
        mut stream: SplitStream<WebSocketStream<S>>,
        shutdown: CancellationToken,
    ) -> Goodbye
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let write = self.write(sink);
        tokio::pin!(write);
        tokio::select! {
            () = &mut write => {}
            goodbye = self.read(&mut stream) => {
                self.outbox.finish(goodbye.code, goodbye.reason);
                (&mut write).await;
            }
            () = self.drained(&shutdown) => {
                self.outbox.finish(1001, "the node is shutting down");
                (&mut write).await;
            }
        }
        // The client reads our goodbye only if we still take what it is sending.
        let _ = timeout(GOODBYE_MAX, async { while let Some(Ok(_)) = stream.next().await {} }).await;
        self.outbox.goodbye().unwrap_or(Goodbye { code: 1006, reason: "the connection was lost".to_owned() })
    }

    /// Completes when the node shuts down and this client's calls are answered, or took too long.
    async fn drained(&self, shutdown: &CancellationToken) {
        shutdown.cancelled().await;
        let answered = async {
            self.worker.calls_done().await;
            self.share.all_back().await;
        };
        let _ = timeout(self.bus.settings().drain_max, answered).await;
    }

    /// Acts on frames until the client leaves or must go. Returns what to tell it.
    async fn read<S>(&self, stream: &mut SplitStream<WebSocketStream<S>>) -> Goodbye
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            self.outbox.room().await;
            let message = match self.next_message(stream).await {
                Ok(Some(message)) => message,
                Ok(None) => return goodbye(1000, "the client closed the connection"),
                Err(goodbye) => return goodbye,
            };
            self.arriving.finished();
            match message {
                Message::Text(text) => {
                    if let Err(goodbye) = self.take(text).await {
                        return goodbye;
                    }
                }
                Message::Binary(_) => return goodbye(1003, "binary frames are not spoken here: send JSON text"),
                Message::Close(_) => return goodbye(1000, "the client closed the connection"),
                // The WebSocket library answers pings by itself.
                Message::Pong(payload) => {
                    if let Some((number, position)) = locked(&self.probe).answered(&payload) {
                        self.worker.confirm(number, position);
                    }
                }
                Message::Ping(_) | Message::Frame(_) => {}
            }
        }
    }

    /// Waits for a whole message, as long as something arrives. `None`: the stream ended.
    async fn next_message<S>(&self, stream: &mut SplitStream<WebSocketStream<S>>) -> Result<Option<Message>, Goodbye>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let settings = self.bus.settings();
        let quiet_max = settings.ping_after * 3;
        let begun = Instant::now();
        loop {
            match timeout(quiet_max, stream.next()).await {
                Ok(Some(Ok(message))) => return Ok(Some(message)),
                Ok(Some(Err(error))) => return Err(explain(error)),
                Ok(None) => return Ok(None),
                Err(_) if !self.arriving.progressed() => {
                    return Err(goodbye(1001, format!("no sign of life for {quiet_max:?}")));
                }
                Err(_) if begun.elapsed() > settings.message_read_max => {
                    return Err(goodbye(1008, "one message took too long to arrive"));
                }
                Err(_) => {}
            }
        }
    }

    /// Acts on one frame. `Err`: the client must go.
    async fn take(&self, text: Frame) -> Result<(), Goodbye> {
        let inbound = Inbound::parse(&text).map_err(|why| goodbye(1007, why))?;
        let (bus, worker) = (&self.bus, &self.worker);
        match inbound {
            Inbound::Invoke(invoke) => bus.start_call(worker, &self.share, &text, invoke).await,
            Inbound::Result { invocation_id, result, error } => {
                let reply = match error {
                    Some(error) => Err(error.get().to_owned()),
                    None => Ok(result.map_or("null", |result| result.get()).to_owned()),
                };
                worker.reply(&invocation_id, reply);
            }
            Inbound::RegisterFunction(asked) => self.register_function(&asked)?,
            Inbound::UnregisterFunction { id } => {
                bus.change_registry(|registry| registry.unregister_function(&id, worker.number));
            }
            Inbound::RegisterType(asked) => bus.register_type(worker, &asked).map_err(too_much)?,
            Inbound::UnregisterType { id } => {
                bus.change_registry(|registry| registry.unregister_type(&id, worker.number));
            }
            Inbound::RegisterTrigger(asked) => bus.register_trigger(worker, &asked).map_err(too_much)?,
            Inbound::UnregisterTrigger { id } => bus.unregister_trigger(worker, &id),
            Inbound::TriggerResult { id, error } => bus.pass_on_trigger_result(worker, &id, error),
            Inbound::Reattach { previous_worker_id, token } => bus.reattach(worker, &previous_worker_id, &token),
            Inbound::Ping => worker.send(outbound::pong()),
            Inbound::Ignored => {}
            Inbound::Unusable { invocation_id, why } => {
                tracing::debug!(worker = worker.id, why, "unusable frame");
                if let Some(id) = invocation_id {
                    let error = ErrorBody::new("invalid_frame", why).print();
                    worker.send_result(outbound::invocation_result(id.get(), "", Err(&error)));
                }
            }
        }
        Ok(())
    }

    fn register_function(&self, asked: &RegisterFunction<'_>) -> Result<(), Goodbye> {
        if self.bus.reserves(&asked.id) || asked.id.starts_with("engine::") {
            self.worker.send(outbound::registration_rejected(&asked.id, super::engine::NODE_NAME));
            return Ok(());
        }
        let text = |raw: Option<&serde_json::value::RawValue>| raw.map(|raw| raw.get().to_owned());
        let function = Function {
            owner: self.worker.clone(),
            description: text(asked.description),
            request_format: text(asked.request_format),
            response_format: text(asked.response_format),
            metadata: text(asked.metadata),
        };
        match self.bus.change_registry(|registry| registry.register_function(&asked.id, function)) {
            Ok(()) => Ok(()),
            Err(Refused::OwnedBy(owner)) => {
                self.worker.send(outbound::registration_rejected(&asked.id, &owner));
                Ok(())
            }
            Err(Refused::TooMuch) => Err(too_much(TooMuch)),
        }
    }

    /// Writes what the outbox gives, flushing once per drained batch, until the goodbye.
    async fn write<S>(&self, mut sink: SplitSink<WebSocketStream<S>, Message>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let ping_after = self.bus.settings().ping_after;
        loop {
            let next = match timeout(ping_after, self.outbox.next()).await {
                Ok(next) => next,
                Err(_) => {
                    let ping = self.ping();
                    if self.write_one(&mut sink, ping, true).await.is_err() {
                        return;
                    }
                    continue;
                }
            };
            match next {
                Next::Write(frame, class) => {
                    let flush = self.outbox.is_empty();
                    if self.write_one(&mut sink, Message::Text(frame.clone()), flush).await.is_err() {
                        if class == Class::Result {
                            self.outbox.give_back(frame);
                        }
                        if !self.outbox.cut_token().is_cancelled() {
                            return;
                        }
                    } else if let Class::Event(sent) = class {
                        locked(&self.probe).written = Some(sent);
                    }
                    let due = flush && locked(&self.probe).is_due();
                    if due && self.write_one(&mut sink, self.ping(), true).await.is_err() {
                        return;
                    }
                }
                Next::Close(goodbye) => {
                    let _ = timeout(GOODBYE_MAX, say_goodbye(&mut sink, goodbye)).await;
                    return;
                }
            }
        }
    }

    /// A sign of life is asked for, and with it what the client has got.
    fn ping(&self) -> Message {
        let written = locked(&self.probe).written;
        let complete = written.and_then(|sent| {
            // In this order: once it stands there, nothing of that position is sent any more.
            let stands = self.bus.feed().read(|feed| feed.stands(self.worker.number));
            self.worker.completes(sent, stands)
        });
        locked(&self.probe).ask(complete)
    }

    /// `Err`: the socket is lost, or the client is being cut off because it does not read.
    async fn write_one<S>(
        &self,
        sink: &mut SplitSink<WebSocketStream<S>, Message>,
        message: Message,
        flush: bool,
    ) -> Result<(), ()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // A large message over a slow network is no stall: it gets time by its size.
        let stall_max = self.bus.settings().write_stall_max + Duration::from_secs((message.len() >> 16) as u64);
        let write = async { if flush { sink.send(message).await } else { sink.feed(message).await } };
        tokio::select! {
            written = timeout(stall_max, write) => match written {
                Ok(written) => written.map_err(|_| ()),
                Err(_) => {
                    self.outbox.cut(1013, format!("slow consumer: nothing was read for {stall_max:?}"));
                    Err(())
                }
            },
            () = self.outbox.cut_token().cancelled() => Err(()),
        }
    }
}

async fn say_goodbye<S>(sink: &mut SplitSink<WebSocketStream<S>, Message>, goodbye: Goodbye) -> Result<(), WsError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // 1006 means that there was no goodbye, so it is never sent.
    let code = if goodbye.code == 1006 { 1011 } else { goodbye.code };
    let mut end = goodbye.reason.len().min(REASON_BYTES_MAX);
    while !goodbye.reason.is_char_boundary(end) {
        end -= 1;
    }
    let frame = CloseFrame { code: code.into(), reason: goodbye.reason[..end].into() };
    sink.send(Message::Close(Some(frame))).await
}

fn goodbye(code: u16, reason: impl Into<String>) -> Goodbye {
    Goodbye { code, reason: reason.into() }
}

/// Turns a broken read into a goodbye.
fn explain(error: WsError) -> Goodbye {
    match error {
        WsError::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
            goodbye(1009, format!("message too large: {size} bytes, the limit is {max_size}"))
        }
        WsError::Utf8(_) => goodbye(1007, "a text frame was not UTF-8"),
        WsError::Protocol(error) => goodbye(1002, error.to_string()),
        other => goodbye(1006, other.to_string()),
    }
}

fn too_much(TooMuch: TooMuch) -> Goodbye {
    goodbye(1008, "too many registrations on one connection")
}

/// Takes in telemetry of the SDKs, which this node has no use for, and drops it.
pub async fn discard<S>(bus: Arc<Bus>, socket: S, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let config = socket_config(bus.settings().message_bytes_max);
    let (socket, arriving) = Metered::new(socket, bus.arriving_kib.clone());
    let mut stream = WebSocketStream::from_raw_socket(socket, Role::Server, Some(config)).await;
    let read = async {
        while let Some(Ok(_)) = stream.next().await {
            arriving.finished();
        }
    };
    tokio::select! {
        () = read => {}
        () = shutdown.cancelled() => {}
    }
    let _ = timeout(GOODBYE_MAX, stream.close(None)).await;
}
