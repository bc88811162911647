//! Owns: changing the settings of a running node. New parts are built first, then swapped in together, then subscribers
//! get the events of the new data. If a part cannot be built, the node stays as it was.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::replay::{replay, sessions};
use super::running::{Data, Entry, OpenDoor, Signals};
use super::store::OpenError;
use super::{Environment, Process, Reread, engine_identity, runtime};
use crate::access::credentials::SourceError;
use crate::config::{AdapterConfig, Config, ConfigError};
use crate::events::current::CurrentFeed;
use crate::surface::bus::Bus;
use crate::surface::calls::{Calls, Reload, Runtime};
use crate::surface::engine::serving::Served;
use crate::surface::gate::Gate;

/// The time between two checks whether the last call on replaced data has ended.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// Why a reload was rejected.
#[derive(Debug)]
enum ReloadError {
    Stopping,
    Config(ConfigError),
    Adapter(OpenError),
    Listen {
        address: SocketAddr,
        why: io::Error,
    },
    Credentials(SourceError),
    /// A member of a cluster cannot change its identity in its data directory, nor its times in the middle of a term.
    NeedsRestart,
}

impl fmt::Display for ReloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReloadError::Stopping => f.write_str("the node is stopping"),
            ReloadError::Config(error) => write!(f, "{error}"),
            ReloadError::Adapter(error) => write!(f, "adapter: {error}"),
            ReloadError::Listen { address, why } => write!(f, "listen: {address}: {why}"),
            ReloadError::Credentials(error) => write!(f, "{error}"),
            ReloadError::NeedsRestart => f.write_str(
                "node_id, peer_listen, join, name, discover, reap_after_secs, max_level, min_free_bytes, \
                 peer_advertise, certificates, heartbeat_ms, leader_lease_ms, election_timeout_ms, peer_timeout_ms, \
                 otlp_endpoint, otlp_sample_percent: restart the node to change them",
            ),
        }
    }
}

impl std::error::Error for ReloadError {}

/// Everything a reload may change.
pub struct Core {
    pub calls: Arc<Calls>,
    pub gate: Arc<Gate>,
    pub bus: Arc<Bus>,
    pub feed: Arc<CurrentFeed>,
    pub signals: Arc<Signals>,
    origin: Origin,
    /// Notified when the set of functions may have changed.
    pub refresh: Arc<Notify>,
    /// `None` after the node has begun to stop.
    running: Mutex<Option<Running>>,
    /// The tasks that close replaced data.
    retiring: TaskTracker,
}

/// The settings that never change while the node runs.
pub struct Origin {
    pub environment: Environment,
    pub process: Process,
    pub entry: Entry,
}

/// The current parts.
pub struct Running {
    pub config: Config,
    pub data: Data,
    pub door: OpenDoor,
}

impl Core {
    pub fn needs_credentials(&self) -> bool {
        self.origin.entry.credentials.are_needed()
    }

    pub fn new(
        calls: Arc<Calls>,
        gate: Arc<Gate>,
        bus: Arc<Bus>,
        feed: Arc<CurrentFeed>,
        signals: Arc<Signals>,
        origin: Origin,
        running: Running,
    ) -> Arc<Core> {
        let (running, retiring) = (Mutex::new(Some(running)), TaskTracker::new());
        Arc::new(Core { calls, gate, bus, feed, signals, origin, refresh: Arc::default(), running, retiring })
    }

    pub fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parts that an engine connection uses.
    pub fn served(self: &Arc<Core>) -> Served {
        let core = Arc::downgrade(self);
        Served {
            gate: self.gate.clone(),
            feed: self.feed.clone(),
            leads: self.signals.is_leader.subscribe(),
            refresh: self.refresh.clone(),
            cursors: Arc::new(move || core.upgrade()?.running().as_ref()?.data.cursors()),
        }
    }

    /// Sets the effect of `session::on-config-change`. The calls own the hook, so the hook must not own them.
    pub fn reload_with(self: &Arc<Core>, reread: Reread) {
        let core = Arc::downgrade(self);
        let hook: Reload = Arc::new(move || {
            let reloading = reload(core.clone(), reread.clone());
            async move { reloading.await.map_err(Into::into) }.boxed()
        });
        self.calls.on_reload(hook);
    }

    /// Waits until all replaced parts are closed.
    pub async fn all_retired(&self) {
        self.retiring.close();
        self.retiring.wait().await;
    }

    async fn change_to(self: &Arc<Core>, next: Config) -> Result<(), ReloadError> {
        let now = self.running().as_ref().map(|running| running.config.clone()).ok_or(ReloadError::Stopping)?;
        if next == now {
            return Ok(());
        }
        // 1. Build the new parts, while the old ones serve.
        let data = match needs_other_data(&now, &next)? {
            true => Some(
                Data::open(&next, &self.origin.environment, &self.origin.process)
                    .await
                    .map_err(ReloadError::Adapter)?,
            ),
            false => None,
        };
        let door = match self.other_door(&now, &next).await {
            Ok(door) => door,
            Err(error) => {
                if let Some(data) = data {
                    data.close().await;
                }
                return Err(error);
            }
        };
        if let Err(error) = self.origin.entry.credentials.change(next.credentials()) {
            if let Some(data) = data {
                data.close().await;
            }
            if let Some(door) = door {
                door.close().await;
            }
            return Err(ReloadError::Credentials(error));
        }
        self.gate.set_engine_identity(engine_identity(&next));
        // 2. Swap them in: every later call sees all of them.
        let swapped_data = data.is_some();
        let Some(before) = self.swap(next, data, door).await else { return Err(ReloadError::Stopping) };
        self.refresh.notify_one();
        // 3. Send subscribers the events of the new data; close the old parts after the calls in progress.
        if let Some(door) = before.door {
            self.retiring.spawn(door.close());
        }
        if let Some(data) = before.data {
            self.publish_swap(&before.runtime).await;
            self.retiring.spawn(retire(data, before.runtime));
        }
        tracing::info!(swapped_data, "the configuration was applied");
        Ok(())
    }

    /// Publishes the difference between old and new data. If a store cannot be read, the swap stays and the events are
    /// missing.
    async fn publish_swap(&self, before: &Runtime) {
        let old = sessions(&*before.adapter).await.unwrap_or_else(|why| {
            tracing::warn!(%why, "the replaced data cannot be read: subscribers get no event for deleted sessions");
            Vec::new()
        });
        let (new, feed) = (self.calls.runtime().adapter.clone(), self.feed.read(Arc::clone));
        let now_ms = self.origin.environment.mint.stamp().at_ms;
        match replay(old, &*new, &feed, now_ms).await {
            Ok(events) => tracing::info!(events, "subscribers got the events of the new data"),
            Err(why) => {
                tracing::warn!(%why, "the new data cannot be read yet: subscribers must read it")
            }
        }
    }

    async fn other_door(&self, now: &Config, next: &Config) -> Result<Option<OpenDoor>, ReloadError> {
        if now.listen == next.listen {
            return Ok(None);
        }
        let opened = OpenDoor::open(next, &self.origin.environment, &self.bus, &self.origin.entry, &self.signals).await;
        opened.map(Some).map_err(|why| ReloadError::Listen { address: next.listen, why })
    }

    /// `None` if the node is stopping; the new parts are closed again.
    async fn swap(self: &Arc<Core>, next: Config, data: Option<Data>, door: Option<OpenDoor>) -> Option<Before> {
        let unwanted = {
            let mut running = self.running();
            match running.as_mut() {
                Some(running) => return Some(self.swap_in(running, next, data, door)),
                None => (data, door),
            }
        };
        if let Some(door) = unwanted.1 {
            door.close().await;
        }
        if let Some(data) = unwanted.0 {
            data.close().await;
        }
        None
    }

    fn swap_in(&self, running: &mut Running, next: Config, data: Option<Data>, door: Option<OpenDoor>) -> Before {
        let data = data.map(|data| {
            // The feed first, so that subscribers get every commit of the new data.
            self.feed.swap(data.store.feed.clone());
            self.signals.watch(&data.store);
            std::mem::replace(&mut running.data, data)
        });
        let door = door.map(|door| std::mem::replace(&mut running.door, door));
        running.door.change(&next, &self.bus);
        self.origin.process.report.change(&next, running.door.address);
        running.data.store.change(&next);
        running.data.keep_feed(&next, &self.origin.environment);
        let runtime = self.calls.swap(runtime(&next, running.data.store.adapter.clone()));
        running.config = next;
        Before { data, door, runtime }
    }
}

/// The replaced parts.
struct Before {
    data: Option<Data>,
    door: Option<OpenDoor>,
    runtime: Arc<Runtime>,
}

async fn reload(core: Weak<Core>, reread: Reread) -> Result<(), ReloadError> {
    let next = reread().await.map_err(ReloadError::Config)?;
    let core = core.upgrade().ok_or(ReloadError::Stopping)?;
    core.change_to(next).await
}

/// Closes data after the calls on it have ended or timed out.
async fn retire(data: Data, runtime: Arc<Runtime>) {
    let deadline = Instant::now() + runtime.call_timeout;
    while Arc::strong_count(&runtime) > 1 && Instant::now() < deadline {
        tokio::time::sleep(CHECK_EVERY).await;
    }
    drop(runtime);
    data.close().await;
}

/// Whether the data must be opened anew. One data directory cannot serve two members of a cluster at a time.
fn needs_other_data(now: &Config, next: &Config) -> Result<bool, ReloadError> {
    let member = |config: &Config| {
        let times = (config.heartbeat_ms, config.leader_lease_ms, config.election_timeout_ms, config.peer_timeout_ms);
        let forming = (config.discover.clone(), config.name.clone(), config.reap_after_secs);
        let limits = (config.max_level, config.min_free_bytes);
        (config.node_id, config.peer_listen, config.join, config.peer_advertise.clone(), times, forming, limits)
    };
    // The files are read again by themselves. Other files need another start.
    let tls = |config: &Config| (config.client_tls(), config.peer_tls());
    let traces = |config: &Config| (config.otlp_endpoint.clone(), config.otlp_sample_percent);
    if tls(now) != tls(next) || traces(now) != traces(next) {
        return Err(ReloadError::NeedsRestart);
    }
    if now.adapter != next.adapter {
        return Ok(true);
    }
    if matches!(now.adapter, AdapterConfig::Raft(_)) && member(now) != member(next) {
        return Err(ReloadError::NeedsRestart);
    }
    Ok(false)
}
