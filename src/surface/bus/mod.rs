//! The iii bus, as unmodified SDKs speak it.
//!
//! Owns: the spelling of frames (`inbound`, `outbound`), connected clients and what they registered (`client`,
//! `registry`), calls (`calls`, `engine`), bindings (`triggers`), and the life of one connection (`connection`).
//! Reads: the node's functions (through the gate), the feed. Never: state, a listener, WebSocket plumbing (`socket`).

pub mod inbound;
pub mod outbound;
pub mod client;
pub mod registry;
pub mod calls;
pub mod engine;
pub mod triggers;
pub mod connection;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::client::{Client, Missed, realm_of};
use self::registry::Registry;
use super::gate::Gate;
use super::locked;
use super::socket::SocketLimits;
use super::socket::intake::{Intake, kib};
use super::socket::outbox::{Outbox, OutboxLimits};
use super::subscription::is_reserved;
use crate::access::Identity;
use crate::events::current::CurrentFeed;
use crate::metrics::{Page, catalogue};
use crate::requests::limits::RESPONSE_BYTES_MAX;

/// Clients that lost their socket and whose results are kept.
const DETACHED_CLIENTS_MAX: usize = 1024;
/// Bytes of the ids of their bindings. Past it, the client that was detached first is forgotten.
const DETACHED_BYTES_MAX: usize = 32 << 20;

/// Bindings of a client that leaves which are removed at once, with the locks of the bus and of the feed. One that leaves
/// with less does not wait.
const LEAVING_AT_ONCE: usize = 64;
/// What the removal of one binding counts as at the turnstile: it takes as long as reading so many bytes.
const LEAVING_BYTES: usize = 4 << 10;

/// Bounds of the bus.
#[derive(Debug, Clone)]
pub struct BusSettings {
    /// Messages of up to 64 MiB by default: what the SDKs use.
    pub socket: SocketLimits,
    pub outbox: OutboxLimits,
    /// Calls one client may have in flight. A further one fails at once.
    pub calls_in_flight_max: usize,
    /// Request bodies one client may have in flight. Its socket is not read until there is room.
    pub body_bytes_in_flight_max: usize,
    /// Messages of all clients that are still arriving, beyond a free share for each.
    pub total_arriving_bytes_max: usize,
    /// How long another client may take to answer. The caller's SDK has its own, shorter timeout; this one frees
    /// memory.
    pub forward_timeout: Duration,
    /// How long results are kept for a client that lost its socket.
    pub park_for: Duration,
    /// How long calls in flight may take when the node shuts down.
    pub drain_max: Duration,
}

impl Default for BusSettings {
    fn default() -> BusSettings {
        BusSettings {
            socket: SocketLimits::default(),
            outbox: OutboxLimits::default(),
            calls_in_flight_max: 1024,
            body_bytes_in_flight_max: 128 << 20,
            total_arriving_bytes_max: 256 << 20,
            forward_timeout: Duration::from_secs(600),
            park_for: Duration::from_secs(60),
            drain_max: Duration::from_secs(5),
        }
    }
}

/// A client that lost its socket.
struct Parked {
    client: Arc<Client>,
    /// What its bindings take.
    bytes: usize,
}

/// The bus of one node.
pub struct Bus {
    settings: RwLock<Arc<BusSettings>>,
    gate: Arc<Gate>,
    feed: Arc<CurrentFeed>,
    /// Whether this node serves sessions. A bus that does not leaves their names to its clients, as an engine does.
    serves_sessions: bool,
    /// By realm. A scope is a bus of its own: its clients see neither names nor bindings of others.
    registries: RwLock<BTreeMap<Arc<str>, Registry>>,
    /// By number, so that the client that was detached first comes first.
    detached: Mutex<BTreeMap<u64, Parked>>,
    next_number: AtomicU64,
    /// Bytes queued for all clients.
    outgoing_bytes: Arc<AtomicUsize>,
    intake: Intake,
    /// KiB of responses over HTTP that clients have yet to read.
    responses: Arc<Semaphore>,
    responses_kib_max: u32,
}

impl Bus {
    pub fn new(settings: BusSettings, gate: Arc<Gate>, feed: Arc<CurrentFeed>) -> Arc<Bus> {
        let intake = Intake::new(settings.total_arriving_bytes_max, settings.socket.message_bytes_max);
        let responses_kib_max = kib(settings.outbox.total_bytes_max);
        let serves_sessions = !gate.service().functions().is_empty();
        Arc::new(Bus {
            settings: RwLock::new(Arc::new(settings)),
            gate,
            feed,
            serves_sessions,
            registries: RwLock::default(),
            detached: Mutex::default(),
            next_number: AtomicU64::new(1),
            outgoing_bytes: Arc::default(),
            intake,
            responses: Arc::new(Semaphore::new(responses_kib_max as usize)),
            responses_kib_max,
        })
    }

    /// Room for a response that the client has yet to read. `None` when clients leave too much unread.
    pub fn room_for_response(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.responses.clone().try_acquire_many_owned(kib(bytes).min(self.responses_kib_max)).ok()
    }

    /// Whether a further large response would probably find no room. It costs much to make one only to refuse it.
    pub fn has_crowded_responses(&self) -> bool {
        let largest = kib(RESPONSE_BYTES_MAX).min(self.responses_kib_max / 4);
        self.responses.available_permits() < largest as usize
    }

    /// Whether another client serves this function.
    pub fn forwards(&self, realm: &str, function_id: &str) -> bool {
        self.read_registry(realm, |registry| registry.function(function_id).is_some())
    }

    /// Whether another client serves this function for a caller.
    pub fn serves_for(&self, identity: &Identity, function_id: &str) -> bool {
        self.forwards(&realm_of(identity), function_id)
    }

    pub fn feed(&self) -> &Arc<CurrentFeed> {
        &self.feed
    }

    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The memory for messages that are still arriving, shared with the other doors of the port.
    pub fn intake(&self) -> &Intake {
        &self.intake
    }

    /// The bytes queued for all clients, shared with the other doors that have sockets.
    pub fn outgoing_bytes(&self) -> Arc<AtomicUsize> {
        self.outgoing_bytes.clone()
    }

    pub fn settings(&self) -> Arc<BusSettings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Other bounds from now on. Open sockets keep the limits they started with.
    pub fn change_settings(&self, settings: BusSettings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// True for names that this node serves and that no client may register.
    fn reserves(&self, id: &str) -> bool {
        self.serves_sessions && is_reserved(id)
    }

    /// Adds the figures of the bus to a page.
    pub fn measure(&self, page: &mut Page) {
        page.whole(catalogue::BUS_CLIENTS, self.clients() as u64);
        page.whole(catalogue::OUTBOUND, self.outgoing_bytes.load(Ordering::Relaxed) as u64);
    }

    /// Number of connected clients.
    pub fn clients(&self) -> usize {
        self.read_all_registries(|registry| registry.clients().count()).into_iter().sum()
    }

    fn read_registry<R>(&self, realm: &str, read: impl FnOnce(&Registry) -> R) -> R {
        match self.registries.read().unwrap_or_else(PoisonError::into_inner).get(realm) {
            Some(registry) => read(registry),
            None => read(&Registry::default()),
        }
    }

    fn read_all_registries<R>(&self, read: impl FnMut(&Registry) -> R) -> Vec<R> {
        self.registries.read().unwrap_or_else(PoisonError::into_inner).values().map(read).collect()
    }

    fn change_registry<R>(&self, realm: &Arc<str>, change: impl FnOnce(&mut Registry) -> R) -> R {
        let mut registries = self.registries.write().unwrap_or_else(PoisonError::into_inner);
        let registry = registries.entry(realm.clone()).or_default();
        let changed = change(registry);
        if registry.is_empty() {
            registries.remove(realm);
        }
        changed
    }

    /// The client that serves a function in a realm now.
    fn server_of(&self, realm: &str, function_id: &str) -> Option<Arc<Client>> {
        self.read_registry(realm, |registry| registry.function(function_id).map(|function| function.owner.clone()))
    }

    /// Adds a new client and sends it its id and token.
    fn join(&self, peer: Option<SocketAddr>, identity: Arc<Identity>) -> (Arc<Client>, Arc<Outbox>) {
        let settings = self.settings();
        let outbox = Arc::new(Outbox::new(settings.outbox.clone(), self.outgoing_bytes.clone()));
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let client =
            Arc::new(Client::new(number, peer, identity, settings.calls_in_flight_max, outbox.clone(), now_ms()));
        self.change_registry(&client.realm, |registry| registry.add_client(client.clone()));
        client.send(outbound::worker_registered(&client.id, &client.token));
        self.announce_client("worker_connected", &client);
        (client, outbox)
    }

    /// Removes a client whose socket is lost. Its results and the progress of its bindings are kept for a reattach.
    async fn leave(self: &Arc<Self>, client: &Arc<Client>) {
        // Park before removing it from the registry, so that a client that reattaches meanwhile is found in one of
        // them.
        self.park(client);
        self.change_registry(&client.realm, |registry| registry.remove_client(client.number));
        client.stop_replies();
        self.announce_client("worker_disconnected", client);
        let missed = self.unbind_all(client).await;
        self.feed.read(|feed| feed.unbind_owner(client.number));
        let bytes = missed.bytes();
        if !client.detach(missed) {
            locked(&self.detached).remove(&client.number);
            return;
        }
        self.charge_parked(client.number, bytes);
        let (bus, client) = (self.clone(), client.clone());
        tokio::spawn(async move {
            tokio::time::sleep(bus.settings().park_for).await;
            locked(&bus.detached).remove(&client.number);
            client.forget();
        });
    }

    /// Removes the bindings of a client in parts, with room for other tasks between them. A client that reattaches meanwhile
    /// takes over the rest.
    async fn unbind_all(&self, client: &Client) -> Missed {
        let mut missed = Missed::default();
        loop {
            let take = |registry: &mut Registry| registry.take_some_triggers(client.number, LEAVING_AT_ONCE);
            let part = self.change_registry(&client.realm, take);
            let started = self.feed.read(|feed| feed.unbind_some(client.number, part.iter().map(|(id, _)| id)));
            let is_last = part.len() < LEAVING_AT_ONCE;
            for ((id, trigger), started) in part.into_iter().zip(started) {
                self.forward_removal(&trigger);
                // Events that were sent may be lost with the socket, so it resumes after what the client confirmed.
                missed.bindings.insert(id, started.and_then(|started| Some(started).max(client.confirmed())));
            }
            if is_last {
                return missed;
            }
            self.intake.turnstile().pass(LEAVING_AT_ONCE * LEAVING_BYTES).await;
        }
    }

    fn park(&self, client: &Arc<Client>) {
        let mut detached = locked(&self.detached);
        if detached.len() >= DETACHED_CLIENTS_MAX
            && let Some((_, longest)) = detached.pop_first()
        {
            longest.client.forget();
        }
        detached.insert(client.number, Parked { client: client.clone(), bytes: 0 });
    }

    fn charge_parked(&self, number: u64, bytes: usize) {
        let mut detached = locked(&self.detached);
        if let Some(parked) = detached.get_mut(&number) {
            parked.bytes = bytes;
        }
        let mut total: usize = detached.values().map(|parked| parked.bytes).sum();
        while total > DETACHED_BYTES_MAX
            && let Some((_, longest)) = detached.pop_first()
        {
            total -= longest.bytes;
            longest.client.forget();
        }
    }

    /// A client presents its previous id. With the right token it takes over that identity: registrations, bindings and
    /// undelivered results of the old socket move to the new one.
    fn reattach(&self, client: &Arc<Client>, previous_id: &str, token: &str) {
        let is_previous = |parked: &&Parked| parked.client.id == previous_id;
        let parked = locked(&self.detached).values().find(is_previous).map(|parked| parked.client.clone());
        let Some(previous) =
            parked.or_else(|| self.read_registry(&client.realm, |registry| registry.client_by_id(previous_id)))
        else {
            return;
        };
        // The token alone is not enough: a worker, its results and its bindings belong to the caller that opened it.
        let is_same_caller = previous.identity.is_same_caller(&client.identity);
        if previous.token != token || previous.number == client.number || !is_same_caller {
            tracing::warn!(client = previous_id, "reattach refused: wrong token or another caller");
            return;
        }
        locked(&self.detached).remove(&previous.number);
        if previous.move_to(client) {
            self.change_registry(&client.realm, |registry| registry.change_owner(previous.number, client));
            self.feed.read(|feed| feed.change_owner(previous.number, client.number, previous.confirmed()));
        }
        tracing::debug!(client = client.id, previous = previous_id, "client reattached");
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
