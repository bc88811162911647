//! The iii bus, as unmodified SDKs speak it.
//!
//! Owns: the spelling of frames (`inbound`, `outbound`), one client's identity and queue (`worker`, `outbox`), what may arrive
//! (`intake`), what clients registered (`registry`), calls (`calls`, `engine`), bindings (`triggers`), one socket's life (`connection`).
//! May touch: the node's functions (`Service`), the feed. Never: state, a listener.

pub mod inbound;
pub mod outbound;
pub mod outbox;
pub mod intake;
pub mod worker;
pub mod registry;
pub mod calls;
pub mod engine;
pub mod triggers;
pub mod connection;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{Semaphore, SemaphorePermit};

use self::outbox::{Outbox, OutboxLimits};
use self::registry::Registry;
use self::worker::{Missed, Worker};
use super::Service;
use super::subscription::is_reserved;
use crate::events::current::CurrentFeed;

/// Workers that lost their socket and whose results are kept.
const DETACHED_WORKERS_MAX: usize = 1024;

/// Bounds of the bus, each with the reason beside its default.
#[derive(Debug, Clone)]
pub struct BusSettings {
    /// The largest message either way: what the SDKs agree on.
    pub message_bytes_max: usize,
    pub outbox: OutboxLimits,
    /// Calls one client may have in flight; one more is answered with an error at once.
    pub calls_in_flight_max: usize,
    /// Request bodies one client may have in flight; the socket is not read until there is room.
    pub body_bytes_in_flight_max: usize,
    /// The same for all clients together.
    pub total_body_bytes_in_flight_max: usize,
    /// Messages that are still arriving, of all clients together, beyond a free share of each.
    pub total_arriving_bytes_max: usize,
    /// How long one message may take to arrive, however steadily.
    pub message_read_max: Duration,
    /// How long another worker may take. The caller's SDK has the say; this only ends what nobody waits for.
    pub forward_timeout: Duration,
    /// How long results wait for a client that lost its socket.
    pub park_for: Duration,
    /// A client that takes nothing off its socket for so long is a slow consumer.
    pub write_stall_max: Duration,
    /// A quiet client is pinged after this time, and dropped after three times as long without a word.
    pub ping_after: Duration,
    /// How long calls in flight may take when the node shuts down.
    pub drain_max: Duration,
}

impl Default for BusSettings {
    fn default() -> BusSettings {
        BusSettings {
            message_bytes_max: 64 << 20,
            outbox: OutboxLimits::default(),
            calls_in_flight_max: 1024,
            body_bytes_in_flight_max: 128 << 20,
            total_body_bytes_in_flight_max: 512 << 20,
            total_arriving_bytes_max: 256 << 20,
            message_read_max: Duration::from_secs(600),
            forward_timeout: Duration::from_secs(600),
            park_for: Duration::from_secs(60),
            write_stall_max: Duration::from_secs(30),
            ping_after: Duration::from_secs(30),
            drain_max: Duration::from_secs(5),
        }
    }
}

/// The bus of one node.
pub struct Bus {
    settings: RwLock<Arc<BusSettings>>,
    service: Arc<dyn Service>,
    feed: Arc<CurrentFeed>,
    /// Whether sessions are served here. A bus that serves none leaves their names to its workers, as an engine does.
    serves_sessions: bool,
    registry: RwLock<Registry>,
    /// By number, so the one that has waited longest comes first.
    detached: Mutex<BTreeMap<u64, Arc<Worker>>>,
    next_number: AtomicU64,
    outgoing_bytes: Arc<AtomicUsize>,
    /// Permits are KiB of request bodies.
    incoming_kib: Arc<Semaphore>,
    /// Permits are KiB of messages that are still arriving.
    arriving_kib: Arc<Semaphore>,
    draining: AtomicBool,
}

impl Bus {
    pub fn new(settings: BusSettings, service: Arc<dyn Service>, feed: Arc<CurrentFeed>) -> Arc<Bus> {
        let incoming_kib = kib(settings.total_body_bytes_in_flight_max);
        // No less than one message, or the largest could never arrive.
        let arriving_kib = kib(settings.total_arriving_bytes_max.max(2 * settings.message_bytes_max));
        let serves_sessions = !service.functions().is_empty();
        Arc::new(Bus {
            settings: RwLock::new(Arc::new(settings)),
            service,
            serves_sessions,
            feed,
            registry: RwLock::default(),
            detached: Mutex::default(),
            next_number: AtomicU64::new(1),
            outgoing_bytes: Arc::default(),
            incoming_kib: Arc::new(Semaphore::new(incoming_kib as usize)),
            arriving_kib: Arc::new(Semaphore::new(arriving_kib as usize)),
            draining: AtomicBool::new(false),
        })
    }

    pub fn feed(&self) -> &Arc<CurrentFeed> {
        &self.feed
    }

    pub fn settings(&self) -> Arc<BusSettings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Other bounds from now on. Connections keep those they began with.
    pub fn change_settings(&self, settings: BusSettings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Names this node answers to: no worker may take them.
    fn reserves(&self, id: &str) -> bool {
        self.serves_sessions && is_reserved(id)
    }

    /// Room for a message of this size that is about to arrive from outside the bus; given back when dropped. Small
    /// ones need none.
    pub async fn room_for(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        if bytes <= intake::FREE_BYTES {
            return None;
        }
        let most = kib(self.settings().message_bytes_max);
        self.arriving_kib.acquire_many(kib(bytes).min(most)).await.ok()
    }

    /// Clients connected now.
    pub fn workers(&self) -> usize {
        self.read_registry(|registry| registry.workers().count())
    }

    /// From now on new calls are refused; those in flight go on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    fn read_registry<R>(&self, read: impl FnOnce(&Registry) -> R) -> R {
        read(&self.registry.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change_registry<R>(&self, change: impl FnOnce(&mut Registry) -> R) -> R {
        change(&mut self.registry.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes in a new client and greets it.
    fn join(&self, peer: Option<SocketAddr>) -> (Arc<Worker>, Arc<Outbox>) {
        let outbox = Arc::new(Outbox::new(self.settings().outbox.clone(), self.outgoing_bytes.clone()));
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let worker = Worker::new(number, peer, self.settings().calls_in_flight_max, outbox.clone(), now_ms());
        let worker = Arc::new(worker);
        self.change_registry(|registry| registry.add_worker(worker.clone()));
        worker.send(outbound::worker_registered(&worker.id, &worker.token));
        self.tell_of_worker("worker_connected", &worker.id);
        (worker, outbox)
    }

    /// Forgets a client whose socket is lost, except for the results and events it may come back for.
    fn leave(self: &Arc<Self>, worker: &Arc<Worker>) {
        // First, so that a client that is back already finds itself in one place or the other.
        self.park(worker);
        let bindings = self.change_registry(|registry| registry.remove_worker(worker.number));
        // What was sent may be lost with the socket, so it goes on after what the client has for certain.
        let begun = self.feed.read(|feed| feed.unbind_owner(worker.number));
        let mut missed = Missed::default();
        for (id, trigger) in bindings {
            self.tell_type_owner_of_removal(&id, &trigger);
            let since = begun.get(&id).and_then(|begun| Some(*begun).max(worker.confirmed()));
            missed.bindings.insert(id, since);
        }
        worker.stop_replies();
        self.tell_of_worker("worker_disconnected", &worker.id);
        if !worker.detach(missed) {
            locked(&self.detached).remove(&worker.number);
            return;
        }
        let (bus, worker) = (self.clone(), worker.clone());
        tokio::spawn(async move {
            tokio::time::sleep(bus.settings().park_for).await;
            locked(&bus.detached).remove(&worker.number);
            worker.forget();
        });
    }

    fn park(&self, worker: &Arc<Worker>) {
        let mut detached = locked(&self.detached);
        if detached.len() >= DETACHED_WORKERS_MAX
            && let Some((_, longest)) = detached.pop_first()
        {
            longest.forget();
        }
        detached.insert(worker.number, worker.clone());
    }

    /// A client says who it was before. With the right token it becomes that worker again: registrations and bindings
    /// of the old socket move here, and so do results that were on their way.
    fn reattach(&self, worker: &Arc<Worker>, previous_id: &str, token: &str) {
        let parked = locked(&self.detached).values().find(|parked| parked.id == previous_id).cloned();
        let Some(previous) = parked.or_else(|| self.read_registry(|registry| registry.worker_by_id(previous_id)))
        else {
            return;
        };
        if previous.token != token || previous.number == worker.number {
            tracing::warn!(worker = previous_id, "reattach refused: the token does not fit");
            return;
        }
        locked(&self.detached).remove(&previous.number);
        if previous.move_to(worker) {
            self.change_registry(|registry| registry.change_owner(previous.number, worker));
            self.feed.read(|feed| feed.change_owner(previous.number, worker.number, previous.confirmed()));
        }
        tracing::debug!(worker = worker.id, previous = previous_id, "worker reattached");
    }
}

/// The data behind these locks is never left half changed by a panic, so a poisoned lock is still good.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes as permits of a semaphore: KiB, rounded up, at least one.
fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024).max(1)).unwrap_or(u32::MAX)
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
