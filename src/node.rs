//! Owns: how one node is put together, and taken apart in the reverse order. The program, the tests and the simulation
//! all start nodes here.
//! Never: arguments, exit codes, signals (`cli/serve.rs`).

mod data_dir;
mod descriptors;
mod reload;
mod replay;
mod running;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::task::JoinHandle;

use self::reload::{Core, Origin, Running};
use self::running::{Data, OpenDoor, Signals};
use crate::config::{AdapterConfig, BridgeConfig, Config, ConfigError, Consistency, shown};
use crate::events::current::CurrentFeed;
use crate::events::deliver::{Feed, FeedSettings};
use crate::events::history::History;
use crate::events::position::ClusterTag;
use crate::machine::ids::Position;
use crate::proposal::Adapter;
use crate::proposal::bridge::line::Dial;
use crate::proposal::bridge::sdk::Sdk;
use crate::proposal::bridge::{Address, BridgeAdapter, BridgeSettings};
use crate::proposal::local::LocalAdapter;
use crate::proposal::mint::{Mint, SystemMint};
use crate::proposal::raft::{RaftAdapter, RaftSettings};
use crate::proposal::retention::{Keeper, Retention};
use crate::replication::replica::Replica;
use crate::requests::store::about::Introduction;
use crate::sockets::{RealSockets, Sockets};
use crate::storage::disk::{Disk, RealDisk};
use crate::storage::memory::MemoryStore;
use crate::surface::bus::outbox::OutboxLimits;
use crate::surface::bus::{Bus, BusSettings};
use crate::surface::calls::{Calls, Introduce, Runtime};
use crate::surface::http::{Health, HealthCheck};
use crate::surface::worker::control::Control;
use crate::surface::worker::serving::Attachment;

/// The fs adapter keeps its feed in memory, whatever the setting says.
const FEED_IN_MEMORY_BYTES_MAX: u64 = 16 << 20;

/// What a node is started with.
pub struct NodeSettings {
    pub config: Config,
    /// Reads the configuration again, for `session::on-config-change`. Without it there is nothing to read.
    pub reread: Option<Reread>,
    pub ground: Ground,
    /// The engine this node is a worker of, beside its own endpoint.
    pub engine: Option<Arc<Control>>,
}

/// What a node of the raft adapter stands on. The program's is the machine's own; the simulation brings another.
#[derive(Clone)]
pub struct Ground {
    pub sockets: Arc<dyn Sockets>,
    pub disk: Arc<dyn Disk>,
    pub mint: Arc<dyn Mint>,
    /// The state is kept in memory and rebuilt from snapshot and log at every start.
    pub state_in_memory: bool,
    /// Changes sizes and times that are no settings.
    pub tune: Option<Tune>,
    /// How a bridge reaches its mains; the public SDK does where nothing else is said.
    pub dial: Option<Arc<dyn Dial>>,
}

pub type Tune = Arc<dyn Fn(RaftSettings) -> RaftSettings + Send + Sync>;

impl Default for Ground {
    fn default() -> Ground {
        Ground {
            sockets: Arc::new(RealSockets),
            disk: Arc::new(RealDisk),
            mint: Arc::new(SystemMint::default()),
            state_in_memory: false,
            tune: None,
            dial: None,
        }
    }
}

pub type Reread = Arc<dyn Fn() -> BoxFuture<'static, Result<Config, ConfigError>> + Send + Sync>;

impl NodeSettings {
    /// The defaults on a free port, with data in `data_dir`.
    pub fn on_free_port(data_dir: &Path) -> NodeSettings {
        let mut config = Config::default();
        config.listen.set_port(0);
        config.adapter.set_data_dir(data_dir.to_owned());
        NodeSettings { config, reread: None, ground: Ground::default(), engine: None }
    }
}

/// Why a node does not start. One line each, with what to do about it.
#[derive(Debug)]
pub enum StartError {
    Config(ConfigError),
    Listen {
        address: SocketAddr,
        why: std::io::Error,
    },
    Data {
        data_dir: PathBuf,
        why: String,
    },
    /// No main of a bridge can be used.
    Main {
        why: String,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Config(error) => write!(f, "{error}"),
            StartError::Listen { address, why } => {
                write!(f, "cannot listen on {address}: {why}; choose another with --listen, port 0 for a free one")
            }
            StartError::Data { data_dir, why } => write!(f, "data directory {}: {why}", data_dir.display()),
            StartError::Main { why } => f.write_str(why),
        }
    }
}

impl std::error::Error for StartError {}

/// A running node.
pub struct Node {
    /// Where the door was opened first.
    address: SocketAddr,
    core: Arc<Core>,
    attachment: Option<Attachment>,
}

/// The place the data lives, with what is needed to close it.
#[derive(Clone)]
enum OpenStore {
    Raft(Arc<RaftAdapter>),
    Fs(Arc<LocalAdapter>),
    Bridge(Arc<BridgeAdapter>),
}

impl OpenStore {
    fn adapter(&self) -> Arc<dyn Adapter> {
        match self {
            OpenStore::Raft(adapter) => adapter.clone(),
            OpenStore::Fs(adapter) => adapter.clone(),
            OpenStore::Bridge(adapter) => adapter.clone(),
        }
    }

    /// Whether this node is the one of its cluster that serves on an engine they share.
    fn leads(&self) -> bool {
        match self {
            OpenStore::Raft(adapter) => adapter.replica().leads(),
            OpenStore::Fs(_) | OpenStore::Bridge(_) => true,
        }
    }

    /// Waits until that is no longer what it was.
    async fn leadership_changes(&self, before: bool) {
        match self {
            OpenStore::Raft(adapter) => adapter.replica().leadership_changes(before).await,
            OpenStore::Fs(_) | OpenStore::Bridge(_) => std::future::pending().await,
        }
    }

    /// Resolves when the data cannot be served any more, with the reason.
    async fn failed(&self) -> String {
        match self {
            OpenStore::Raft(adapter) => adapter.failed().await,
            OpenStore::Fs(_) | OpenStore::Bridge(_) => std::future::pending().await,
        }
    }

    fn health(&self) -> HealthCheck {
        match self {
            OpenStore::Raft(adapter) => {
                let adapter = Arc::downgrade(adapter);
                Arc::new(move || {
                    let condition = adapter.upgrade().map(|adapter| adapter.replica().condition());
                    let (role, trouble) = condition.unwrap_or(("stopped", Some("the node is stopping".to_owned())));
                    Health { role, trouble }
                })
            }
            OpenStore::Fs(_) => Arc::new(|| Health { role: "single", trouble: None }),
            OpenStore::Bridge(adapter) => {
                let adapter = Arc::downgrade(adapter);
                let stopping = || Some("the node is stopping".to_owned());
                Arc::new(move || {
                    let trouble = adapter.upgrade().map_or_else(stopping, |adapter| adapter.trouble());
                    Health { role: "bridge", trouble }
                })
            }
        }
    }

    /// Settings of the store that change while it is open.
    fn change(&self, config: &Config) {
        match self {
            OpenStore::Raft(adapter) => adapter.read_stale(config.consistency == Consistency::Local),
            OpenStore::Fs(_) | OpenStore::Bridge(_) => {}
        }
    }
}

impl Node {
    /// Opens the data, then the door: whoever connects is served.
    pub async fn start(settings: NodeSettings) -> Result<Node, StartError> {
        let NodeSettings { config, reread, ground, engine } = settings;
        config.validate().map_err(StartError::Config)?;

        // 1. The data: recovered, locked, ready to commit; and the feed it publishes to.
        let instance = uuid::Uuid::new_v4().to_string();
        let opened = Data::open(&config, &ground, &instance).await;
        let data = opened.map_err(|why| match config.adapter.data_dir() {
            Some(data_dir) => StartError::Data { data_dir: data_dir.to_owned(), why },
            None => StartError::Main { why },
        })?;
        let signals = Signals::new();
        signals.watch(&data.store);
        // 2. The functions over it.
        let calls = Arc::new(Calls::new(runtime(&config, data.store.adapter())));
        // 3. The bus and its port.
        let feed = CurrentFeed::new(data.feed.clone());
        calls.introduce_with(introduce(instance.clone(), feed.clone()));
        let bus = Bus::new(bus_settings(&config), calls.clone(), feed.clone());
        let door = match OpenDoor::open(&config, &ground, &bus, signals.health()).await {
            Ok(door) => door,
            Err(why) => {
                data.close().await;
                return Err(StartError::Listen { address: config.listen, why });
            }
        };
        let address = door.address;
        let core = Core::new(calls, bus, feed, signals, Origin { ground, instance }, Running { config, data, door });
        if let Some(reread) = reread {
            core.reload_with(reread);
        }
        // 4. The engine, where there is one.
        let attachment = engine.map(|control| Attachment::start(control, core.served()));
        Ok(Node { address, core, attachment })
    }

    /// Reads the configuration again and puts it to work. False: it was rejected, and everything is as before;
    /// `session::config-status` tells why.
    pub async fn reload(&self) -> bool {
        self.core.calls.reload_now().await
    }

    /// Where peers reach this node.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match &self.core.running().as_ref()?.data.store {
            OpenStore::Raft(adapter) => adapter.peer_address(),
            OpenStore::Fs(_) | OpenStore::Bridge(_) => None,
        }
    }

    /// The member of a cluster this node is; `None` for one that is none.
    pub fn replica(&self) -> Option<Arc<Replica>> {
        match &self.core.running().as_ref()?.data.store {
            OpenStore::Raft(adapter) => Some(adapter.share_replica()),
            OpenStore::Fs(_) | OpenStore::Bridge(_) => None,
        }
    }

    /// Where clients reach this node.
    pub fn local_addr(&self) -> SocketAddr {
        self.core.running().as_ref().map_or(self.address, |running| running.door.address)
    }

    /// The adapter's name in the configuration.
    pub fn adapter(&self) -> &'static str {
        self.core.running().as_ref().map_or("none", |running| running.config.adapter.name())
    }

    /// Where the data is; a bridge has none of its own.
    pub fn data_dir(&self) -> Option<PathBuf> {
        Some(self.core.running().as_ref()?.config.adapter.data_dir()?.to_owned())
    }

    /// Resolves when the node cannot go on and its process should end, with the reason.
    pub async fn failed(&self) -> String {
        let mut failed = self.core.signals.failed.subscribe();
        match failed.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Drains: no new connections, calls under way are finished and answered, the store is closed.
    pub async fn shutdown(self) {
        if let Some(attachment) = self.attachment {
            attachment.shutdown().await;
        }
        let running = self.core.running().take();
        if let Some(Running { config: _, data, door }) = running {
            door.close().await;
            self.core.signals.stop();
            data.close().await;
        }
        self.core.retired().await;
    }
}

async fn ended(part: &str, task: JoinHandle<()>) {
    if let Err(error) = task.await {
        tracing::error!(part, %error, "a part of the node broke off");
    }
}

fn runtime(config: &Config, adapter: Arc<dyn Adapter>) -> Runtime {
    Runtime {
        adapter,
        limits: config.limits(),
        legacy_names: config.legacy_names,
        authoritative: !matches!(config.adapter, AdapterConfig::Bridge(_)),
        call_timeout: Duration::from_millis(config.call_timeout_ms),
    }
}

/// What a bridge is told of this node.
fn introduce(instance: String, feed: Arc<CurrentFeed>) -> Introduce {
    let clock = SystemMint::default();
    Arc::new(move |after| {
        feed.read(|feed| Introduction {
            instance: instance.clone(),
            cluster: feed.cluster().name().to_owned(),
            position: feed.position().map(|position| feed.cluster().print(position)),
            oldest: feed.oldest().ok().map(|oldest| feed.cluster().print(oldest)),
            gap: after.and_then(|after| feed.check_resume(after).err()),
            now_ms: clock.stamp().at_ms,
        })
    })
}

fn bus_settings(config: &Config) -> BusSettings {
    let defaults = BusSettings::default();
    BusSettings {
        message_bytes_max: config.max_message_bytes,
        outbox: OutboxLimits {
            bytes_max: config.outbound_queue_bytes,
            total_bytes_max: config.outbound_total_bytes,
            ..defaults.outbox
        },
        ..defaults
    }
}

/// As many as the configuration says, if the system lets us.
fn connections_max(config: &Config) -> usize {
    descriptors::make_room(config.max_connections)
}

async fn open_store(config: &Config, ground: &Ground, instance: &str) -> Result<(OpenStore, Arc<Feed>), String> {
    data_dir::check(&*ground.disk, &config.adapter)?;
    match &config.adapter {
        AdapterConfig::Raft(files) => open_raft(config, ground, &files.data_dir).await,
        AdapterConfig::Fs(files) => open_fs(files.data_dir.clone()).await,
        AdapterConfig::Bridge(bridge) => {
            bridge.refuse_own_address(config.listen).map_err(|error| error.0)?;
            open_bridge(bridge, ground, instance).await
        }
    }
}

async fn open_raft(config: &Config, ground: &Ground, data_dir: &Path) -> Result<(OpenStore, Arc<Feed>), String> {
    let feed = feed_of("raft");
    // Positions name their cluster, so the feed learns it before the first commit; a node that joins, when it is invited.
    let named = feed.clone();
    let settings = RaftSettings {
        peer_listen: config.peer_listen,
        join: config.join,
        stale_reads: config.consistency == Consistency::Local,
        on_cluster: Some(Arc::new(move |cluster_id| named.joins(cluster_id))),
        sockets: ground.sockets.clone(),
        disk: ground.disk.clone(),
        ..RaftSettings::new(data_dir, config.node_id)
    };
    let settings = ground.tune.as_ref().map_or(settings.clone(), |tune| tune(settings));
    let adapter = if ground.state_in_memory {
        RaftAdapter::start(settings, ground.mint.clone(), Arc::new(MemoryStore::new()), feed.clone()).await
    } else {
        RaftAdapter::open(settings, ground.mint.clone(), feed.clone()).await
    };
    let adapter = Arc::new(adapter.map_err(|error| why(&error, data_dir))?);
    let history: Arc<dyn History> = adapter.clone();
    feed.reads_from(&history);
    Ok((OpenStore::Raft(adapter), feed))
}

async fn open_bridge(config: &BridgeConfig, ground: &Ground, instance: &str) -> Result<(OpenStore, Arc<Feed>), String> {
    let feed = feed_of("bridge");
    let mains = config.mains().into_iter().map(|(key, url)| Address { key, shown: shown(&url), url }).collect();
    let timeout = Duration::from_millis(config.timeout_ms);
    let settings = BridgeSettings { mains, timeout, instance: instance.to_owned() };
    let sdk = || -> Arc<dyn Dial> { Arc::new(Sdk { name: format!("session-manager-bridge-{instance}") }) };
    let dial = ground.dial.clone().unwrap_or_else(sdk);
    // Events keep the positions of the main, so that a subscriber may resume at any edge of it.
    let named = feed.clone();
    let on_main = Arc::new(move |cluster: &str, position: Option<Position>| {
        named.joins(cluster);
        if let Some(position) = position {
            named.starts_after(position);
        }
    });
    let adapter =
        BridgeAdapter::open(settings, dial, Arc::new(SystemMint::default()), feed.clone(), Some(on_main)).await?;
    Ok((OpenStore::Bridge(Arc::new(adapter)), feed))
}

async fn open_fs(data_dir: PathBuf) -> Result<(OpenStore, Arc<Feed>), String> {
    let feed = feed_of("fs");
    let sink = feed.clone();
    let open = move || LocalAdapter::open_jsonl(&data_dir, Arc::new(SystemMint::default()), sink);
    let opened = tokio::task::spawn_blocking(open).await.map_err(|error| error.to_string())?;
    let adapter = Arc::new(opened.map_err(|error| error.to_string())?);
    let history: Arc<dyn History> = adapter.clone();
    feed.reads_from(&history);
    Ok((OpenStore::Fs(adapter), feed))
}

/// Who keeps the feed within its bounds; nobody where it is kept elsewhere.
fn keeper(config: &Config, store: &OpenStore, ground: &Ground) -> Option<Keeper> {
    let mut retention =
        Retention { bytes_max: config.feed_retention_bytes, age_max: Duration::from_secs(config.feed_retention_secs) };
    let mint = ground.mint.clone();
    match store {
        OpenStore::Raft(adapter) => {
            let raft = adapter.replica().raft().clone();
            let leads = Box::new(move || raft.is_leader());
            Some(Keeper { adapter: adapter.clone(), history: adapter.clone(), leads, mint, retention })
        }
        OpenStore::Bridge(_) => None,
        OpenStore::Fs(adapter) => {
            retention.bytes_max = retention.bytes_max.min(FEED_IN_MEMORY_BYTES_MAX);
            let leads = Box::new(|| true);
            Some(Keeper { adapter: adapter.clone(), history: adapter.clone(), leads, mint, retention })
        }
    }
}

fn feed_of(cluster: &str) -> Arc<Feed> {
    Feed::new(FeedSettings { cluster: ClusterTag::new(cluster), ..FeedSettings::default() })
}

/// The reason alone: the line it stands in names the directory already.
fn why(error: &dyn fmt::Display, data_dir: &Path) -> String {
    let text = error.to_string();
    let named = format!("data directory {}: ", data_dir.display());
    text.strip_prefix(&named).unwrap_or(&text).to_owned()
}

/// Closing waits for a writer thread, so it happens off the runtime.
async fn close_store(store: &OpenStore) {
    match store {
        OpenStore::Raft(adapter) => adapter.shutdown().await,
        OpenStore::Bridge(adapter) => adapter.close(),
        OpenStore::Fs(adapter) => {
            let adapter = adapter.clone();
            if let Err(error) = tokio::task::spawn_blocking(move || adapter.close()).await {
                tracing::error!(%error, "closing the store broke off");
            }
        }
    }
}
