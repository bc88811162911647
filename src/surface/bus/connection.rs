//! Owns: one client's connection to the bus: greeting, acting on its frames, draining at shutdown, closing.
//! Never: what a call or a binding means (`calls`, `triggers`), reading and writing of a socket (`socket`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Bus;
use super::calls::Share;
use super::client::Client;
use super::engine::NODE_NAME;
use super::inbound::{Inbound, RegisterFunction, owned};
use super::outbound;
use super::registry::{Function, RegisterError, TooManyRegistrations};
use crate::access::{Credentials, Identity};
use crate::blocking::block;
use crate::machine::ids::Position;
use crate::surface::errors::CallError;
use crate::surface::socket::outbox::{Outbox, Sent};
use crate::surface::socket::probe::Probe;
use crate::surface::socket::reader::Incoming;
use crate::surface::socket::{self, CloseReason, Text};
use crate::surface::turnstile::PIECE_BYTES;

/// A client that registers more passes the turnstile with each further registration. Workers register some dozens.
const REGISTRATIONS_AT_ONCE: usize = 128;
/// What one registration counts as there, beside its bytes: with its answer it takes as long as reading so many.
const REGISTRATION_BYTES: usize = 16 << 10;
/// A frame that is longer takes milliseconds to read.
const LARGE_FRAME_BYTES: usize = 256 << 10;

/// Who opened a connection.
pub struct Entrant {
    pub identity: Arc<Identity>,
    /// They may lapse while the connection is open.
    pub credentials: Arc<Credentials>,
    pub peer: Option<SocketAddr>,
}

/// Serves a connection after its upgrade, until it ends.
pub async fn serve<S>(bus: Arc<Bus>, connection: S, entrant: Entrant, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let settings = bus.settings();
    let (writer, mut reader) = socket::open(connection, settings.socket.clone(), &bus.intake).await;
    let Entrant { identity, credentials, peer } = entrant;
    let (client, outbox) = bus.join(peer, identity.clone());
    tracing::debug!(client = client.id, ?peer, "client connected");
    let share = Share::new(&settings, shutdown.clone());
    let (registrations, to_pass) = (AtomicUsize::new(0), AtomicUsize::new(PIECE_BYTES));
    let connection = Connection { bus, client, outbox, share, probe: Probe::default(), registrations, to_pass };
    let write = writer.run(&connection.outbox, &connection.probe, |sent| connection.complete(sent));
    tokio::pin!(write);
    tokio::select! {
        () = &mut write => {}
        close = reader.each(&connection.outbox, |incoming| connection.receive(incoming)) => {
            connection.outbox.finish(close.code, close.reason);
            (&mut write).await;
        }
        () = credentials.lapsed(&identity) => {
            connection.outbox.finish(1008, "the credentials no longer hold: connect again with new ones");
            (&mut write).await;
        }
        () = connection.drained(&shutdown) => {
            connection.outbox.finish(1001, "the node is shutting down");
            (&mut write).await;
        }
    }
    reader.finish().await;
    connection.bus.leave(&connection.client).await;
    let lost = || CloseReason::new(1006, "the connection was lost");
    let CloseReason { code, reason } = connection.outbox.close_reason().unwrap_or_else(lost);
    tracing::debug!(client = connection.client.id, code, reason, "client disconnected");
}

struct Connection {
    bus: Arc<Bus>,
    client: Arc<Client>,
    outbox: Arc<Outbox>,
    share: Share,
    probe: Probe,
    /// How often it registered something.
    registrations: AtomicUsize,
    /// What it registered since it passed the turnstile. The first piece passes before it begins.
    to_pass: AtomicUsize,
}

impl Connection {
    /// Completes when the node shuts down and this client's calls are answered, or took too long.
    async fn drained(&self, shutdown: &CancellationToken) {
        shutdown.cancelled().await;
        let answered = async {
            self.client.calls_done().await;
            self.share.all_returned().await;
        };
        let _ = timeout(self.bus.settings().drain_max, answered).await;
    }

    /// Acts on one message. `Err` when the client must be disconnected.
    async fn receive(&self, incoming: Incoming) -> Result<(), CloseReason> {
        match incoming {
            Incoming::Text(text) => self.handle(text).await,
            Incoming::Binary(_) => Err(CloseReason::new(1003, "binary frames are not supported: send JSON text")),
            Incoming::Pong(payload) => {
                if let Some((number, position)) = self.probe.confirmed(&payload) {
                    self.client.confirm(number, position);
                }
                Ok(())
            }
        }
    }

    /// Acts on one frame. `Err` when the client must be disconnected.
    async fn handle(&self, text: Text) -> Result<(), CloseReason> {
        let parsed = match text.len() > LARGE_FRAME_BYTES {
            true => block(|| Inbound::parse(&text)),
            false => Inbound::parse(&text),
        };
        let inbound = parsed.map_err(|error| CloseReason::new(1007, error.to_string()))?;
        let (bus, client) = (&self.bus, &self.client);
        if inbound.registers() {
            self.pass_registration(text.len()).await;
        }
        match inbound {
            Inbound::Invoke(invoke) => bus.start_call(client, &self.share, &text, invoke).await,
            Inbound::Result { invocation_id, result, error } => {
                let reply = match error {
                    Some(error) => Err(error.get().to_owned()),
                    None => Ok(result.map_or("null", |result| result.get()).to_owned()),
                };
                client.reply(&invocation_id, reply);
            }
            Inbound::RegisterFunction(asked) => self.register_function(&asked)?,
            Inbound::UnregisterFunction { id } => {
                bus.change_registry(&client.realm, |registry| registry.unregister_function(&id, client.number));
            }
            Inbound::RegisterType(asked) => bus.register_type(client, &asked).map_err(too_many_registrations)?,
            Inbound::UnregisterType { id } => {
                bus.change_registry(&client.realm, |registry| registry.unregister_type(&id, client.number));
            }
            Inbound::RegisterTrigger(asked) => bus.register_trigger(client, &asked).map_err(too_many_registrations)?,
            Inbound::UnregisterTrigger { id } => bus.unregister_trigger(client, &id),
            Inbound::TriggerResult { id, error } => bus.forward_trigger_result(client, &id, error),
            Inbound::Reattach { previous_worker_id, token } => bus.reattach(client, &previous_worker_id, &token),
            Inbound::Ping => client.send(outbound::pong()),
            Inbound::Ignored => {}
            Inbound::Unusable { invocation_id, why } => {
                tracing::debug!(client = client.id, why, "unusable frame");
                if let Some(id) = invocation_id {
                    let error = CallError::InvalidFrame(why).print_for_bus();
                    client.send_result(outbound::invocation_result(id.get(), "", Err(&error)));
                }
            }
        }
        Ok(())
    }

    /// A client that registers very many things passes the turnstile with each piece of them.
    async fn pass_registration(&self, bytes: usize) {
        if self.registrations.fetch_add(1, Ordering::Relaxed) < REGISTRATIONS_AT_ONCE {
            return;
        }
        let bytes = self.to_pass.fetch_add(REGISTRATION_BYTES + bytes, Ordering::Relaxed) + REGISTRATION_BYTES + bytes;
        if bytes >= PIECE_BYTES {
            self.to_pass.store(0, Ordering::Relaxed);
            self.bus.intake().turnstile().pass(bytes).await;
        }
    }

    fn register_function(&self, asked: &RegisterFunction<'_>) -> Result<(), CloseReason> {
        if self.bus.reserves(&asked.id) || asked.id.starts_with("engine::") {
            self.client.send(outbound::registration_rejected(&asked.id, NODE_NAME));
            return Ok(());
        }
        let function = Function {
            owner: self.client.clone(),
            description: owned(asked.description),
            request_format: owned(asked.request_format),
            response_format: owned(asked.response_format),
            metadata: owned(asked.metadata),
        };
        match self.bus.change_registry(&self.client.realm, |registry| registry.register_function(&asked.id, function)) {
            Ok(()) => Ok(()),
            Err(RegisterError::OwnedBy(owner_id)) => {
                self.client.send(outbound::registration_rejected(&asked.id, &owner_id));
                Ok(())
            }
            Err(RegisterError::TooMany) => Err(too_many_registrations(TooManyRegistrations)),
        }
    }

    /// The position up to which the client has all its events once it has this one.
    fn complete(&self, sent: Sent) -> Option<Position> {
        // Read the feed's position first: once it is there, nothing of that position is sent any more.
        let delivered = self.bus.feed().read(|feed| feed.stands(self.client.number));
        self.client.completes(sent, delivered)
    }
}

fn too_many_registrations(TooManyRegistrations: TooManyRegistrations) -> CloseReason {
    CloseReason::new(1008, "too many registrations on one connection")
}
