//! Owns: changing the settings of a node while it runs: what is new is built first, then swapped in as a whole, then
//! subscribers hear of the data that is there now. Whatever cannot be built leaves everything as it was.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::replay::{replay, sessions};
use super::running::{Data, OpenDoor, Signals};
use super::{Ground, Reread, runtime};
use crate::config::{AdapterConfig, Config};
use crate::events::current::CurrentFeed;
use crate::surface::bus::Bus;
use crate::surface::calls::{Calls, Reload, Runtime};
use crate::surface::worker::serving::Served;

/// How often it is looked whether the last call has left the data that was swapped out.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Everything a reload may touch.
pub struct Core {
    pub calls: Arc<Calls>,
    pub bus: Arc<Bus>,
    pub feed: Arc<CurrentFeed>,
    pub signals: Arc<Signals>,
    origin: Origin,
    /// Told when the set of functions may have changed.
    pub refresh: Arc<Notify>,
    /// `None` once the node stops.
    running: Mutex<Option<Running>>,
    /// Data that was swapped out and is being closed.
    retiring: TaskTracker,
}

/// What does not change while the node runs.
pub struct Origin {
    pub ground: Ground,
    /// Tells this process from every other, so that a bridge knows itself.
    pub instance: String,
}

/// What runs now.
pub struct Running {
    pub config: Config,
    pub data: Data,
    pub door: OpenDoor,
}

impl Core {
    pub fn new(
        calls: Arc<Calls>,
        bus: Arc<Bus>,
        feed: Arc<CurrentFeed>,
        signals: Arc<Signals>,
        origin: Origin,
        running: Running,
    ) -> Arc<Core> {
        let (running, retiring) = (Mutex::new(Some(running)), TaskTracker::new());
        Arc::new(Core { calls, bus, feed, signals, origin, refresh: Arc::default(), running, retiring })
    }

    pub fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is served on an engine.
    pub fn served(self: &Arc<Core>) -> Served {
        let core = Arc::downgrade(self);
        Served {
            service: self.calls.clone(),
            feed: self.feed.clone(),
            leads: self.signals.leads.subscribe(),
            refresh: self.refresh.clone(),
            cursors: Arc::new(move || core.upgrade()?.running().as_ref()?.data.cursors()),
        }
    }

    /// What `session::on-config-change` does from now on. The calls keep the hook, so it must not keep them alive.
    pub fn reload_with(self: &Arc<Core>, reread: Reread) {
        let core = Arc::downgrade(self);
        let hook: Reload = Arc::new(move || reload(core.clone(), reread.clone()).boxed());
        self.calls.on_reload(hook);
    }

    /// Waits until everything that was swapped out is closed.
    pub async fn retired(&self) {
        self.retiring.close();
        self.retiring.wait().await;
    }

    async fn change_to(self: &Arc<Core>, next: Config) -> Result<(), String> {
        let now = self.running().as_ref().map(|running| running.config.clone()).ok_or(STOPPING)?;
        if next == now {
            return Ok(());
        }
        // 1. What is new is built, while everything runs as before.
        let data = match needs_other_data(&now, &next)? {
            true => Some(
                Data::open(&next, &self.origin.ground, &self.origin.instance)
                    .await
                    .map_err(|why| format!("adapter: {why}"))?,
            ),
            false => None,
        };
        let door = match self.other_door(&now, &next).await {
            Ok(door) => door,
            Err(why) => {
                if let Some(data) = data {
                    data.close().await;
                }
                return Err(why);
            }
        };
        // 2. It is swapped in: calls that come from now on see all of it.
        let swapped_data = data.is_some();
        let Some(before) = self.swap(next, data, door).await else { return Err(STOPPING.to_owned()) };
        self.refresh.notify_one();
        // 3. Subscribers hear what is there now; what was swapped out ends, when the calls under way have left it.
        if let Some(door) = before.door {
            self.retiring.spawn(door.close());
        }
        if let Some(data) = before.data {
            self.tell_of_swap(&before.runtime).await;
            self.retiring.spawn(retire(data, before.runtime));
        }
        tracing::info!(swapped_data, "the configuration was put to work");
        Ok(())
    }

    /// The swap stands, whatever comes of this: a store that cannot be read now is told of nowhere.
    async fn tell_of_swap(&self, before: &Runtime) {
        let old = sessions(&*before.adapter).await.unwrap_or_else(|why| {
            tracing::warn!(%why, "the data that was swapped out cannot be read: subscribers do not hear what is gone");
            Vec::new()
        });
        let (new, feed) = (self.calls.runtime().adapter.clone(), self.feed.read(Arc::clone));
        let now_ms = self.origin.ground.mint.stamp().at_ms;
        match replay(old, &*new, &feed, now_ms).await {
            Ok(events) => tracing::info!(events, "subscribers were told what the data holds now"),
            Err(why) => {
                tracing::warn!(%why, "the data that was swapped in cannot be read yet: subscribers must read it")
            }
        }
    }

    async fn other_door(&self, now: &Config, next: &Config) -> Result<Option<OpenDoor>, String> {
        if now.listen == next.listen {
            return Ok(None);
        }
        let opened = OpenDoor::open(next, &self.origin.ground, &self.bus, self.signals.health()).await;
        opened.map(Some).map_err(|why| format!("listen: {}: {why}", next.listen))
    }

    /// `None`: the node stops, and what was built is closed again.
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
            // Subscribers first: what is committed to the new data from now on reaches them.
            self.feed.swap(data.feed.clone());
            self.signals.watch(&data.store);
            std::mem::replace(&mut running.data, data)
        });
        let door = door.map(|door| std::mem::replace(&mut running.door, door));
        running.door.change(&next, &self.bus);
        running.data.store.change(&next);
        running.data.keep_feed(&next, &self.origin.ground);
        let runtime = self.calls.swap(runtime(&next, running.data.store.adapter()));
        running.config = next;
        Before { data, door, runtime }
    }
}

const STOPPING: &str = "the node is stopping";

/// What was swapped out.
struct Before {
    data: Option<Data>,
    door: Option<OpenDoor>,
    runtime: Arc<Runtime>,
}

async fn reload(core: Weak<Core>, reread: Reread) -> Result<(), String> {
    let next = reread().await.map_err(|error| error.to_string())?;
    let core = core.upgrade().ok_or(STOPPING)?;
    core.change_to(next).await
}

/// Closes data once the calls that began on it have ended, or their time is over.
async fn retire(data: Data, runtime: Arc<Runtime>) {
    let patience = Instant::now() + runtime.call_timeout;
    while Arc::strong_count(&runtime) > 1 && Instant::now() < patience {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    drop(runtime);
    data.close().await;
}

/// Whether the data must be opened anew. A member of a cluster cannot be two of them in one directory.
fn needs_other_data(now: &Config, next: &Config) -> Result<bool, String> {
    let member = |config: &Config| (config.node_id, config.peer_listen, config.join);
    if now.adapter != next.adapter {
        return Ok(true);
    }
    if matches!(now.adapter, AdapterConfig::Raft(_)) && member(now) != member(next) {
        return Err(
            "node_id, peer_listen, join: they belong to the data directory, restart the node to change them".to_owned()
        );
    }
    Ok(false)
}
