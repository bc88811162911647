//! Owns: how one node is put together, and taken apart in the reverse order. The program, the tests and the simulation
//! all start nodes here.
//! Never: arguments, exit codes, signals (`cli/serve.rs`).

mod data_dir;
mod descriptors;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::{AdapterConfig, BridgeConfig, Config, ConfigError, Consistency, shown};
use crate::events::deliver::{Feed, FeedSettings};
use crate::events::position::ClusterTag;
use crate::machine::ids::Position;
use crate::proposal::Adapter;
use crate::proposal::bridge::sdk::Sdk;
use crate::proposal::bridge::{Address, BridgeAdapter, BridgeSettings};
use crate::proposal::local::LocalAdapter;
use crate::proposal::mint::{Mint, SystemMint};
use crate::proposal::raft::{RaftAdapter, RaftSettings};
use crate::replication::replica::Replica;
use crate::requests::store::about::Introduction;
use crate::sockets::{RealSockets, Sockets};
use crate::storage::disk::{Disk, RealDisk};
use crate::storage::memory::MemoryStore;
use crate::surface::bus::outbox::OutboxLimits;
use crate::surface::bus::{Bus, BusSettings};
use crate::surface::calls::{Calls, Introduce, Reload, Runtime};
use crate::surface::endpoint::{self, EndpointSettings};
use crate::surface::http::{Health, HealthCheck};

/// What a node is started with.
pub struct NodeSettings {
    pub config: Config,
    /// Reads the configuration again, for `session::on-config-change`. Without it there is nothing to read.
    pub reread: Option<Reread>,
    pub ground: Ground,
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
        }
    }
}

pub type Reread = Arc<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

impl NodeSettings {
    /// The defaults on a free port, with data in `data_dir`.
    pub fn on_free_port(data_dir: &Path) -> NodeSettings {
        let mut config = Config::default();
        config.listen.set_port(0);
        config.adapter.set_data_dir(data_dir.to_owned());
        NodeSettings { config, reread: None, ground: Ground::default() }
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
    address: SocketAddr,
    config: Config,
    store: OpenStore,
    door: JoinHandle<()>,
    dispatch: JoinHandle<()>,
    /// Ends the door: no new connections, calls under way are finished.
    close_door: CancellationToken,
    /// Ends the feed, once nothing commits any more.
    close_feed: CancellationToken,
}

/// The place the data lives, with what is needed to close it.
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
}

impl Node {
    /// Opens the data, then the door: whoever connects is served.
    pub async fn start(settings: NodeSettings) -> Result<Node, StartError> {
        let NodeSettings { config, reread, ground } = settings;
        config.validate().map_err(StartError::Config)?;

        // 1. The store: recovered, locked, ready to commit; and the feed it publishes to.
        let instance = uuid::Uuid::new_v4().to_string();
        let opened = open_store(&config, &ground, &instance).await;
        let (store, feed) = opened.map_err(|why| match config.adapter.data_dir() {
            Some(data_dir) => StartError::Data { data_dir: data_dir.to_owned(), why },
            None => StartError::Main { why },
        })?;
        // 2. The functions over it.
        let calls = Arc::new(Calls::new(runtime(&config, store.adapter())));
        calls.introduce_with(introduce(instance, feed.clone()));
        if let Some(reread) = reread {
            calls.on_reload(reload(&calls, config.clone(), reread));
        }
        // 3. The bus and its port.
        let bus = Bus::new(bus_settings(&config), calls, feed.clone());
        let close_door = CancellationToken::new();
        let opened = endpoint::serve(endpoint_settings(&config, &store, &ground), bus, close_door.clone()).await;
        let (address, door) = match opened {
            Ok(opened) => opened,
            Err(why) => {
                close_store(&store).await;
                return Err(StartError::Listen { address: config.listen, why });
            }
        };
        let close_feed = CancellationToken::new();
        let dispatch = tokio::spawn(feed.dispatch(close_feed.clone()));
        Ok(Node { address, config, store, door, dispatch, close_door, close_feed })
    }

    /// Where peers reach this node.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match &self.store {
            OpenStore::Raft(adapter) => adapter.peer_address(),
            OpenStore::Fs(_) | OpenStore::Bridge(_) => None,
        }
    }

    /// The member of a cluster this node is; `None` for one that is none.
    pub fn replica(&self) -> Option<&Replica> {
        match &self.store {
            OpenStore::Raft(adapter) => Some(adapter.replica()),
            OpenStore::Fs(_) | OpenStore::Bridge(_) => None,
        }
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The adapter's name in the configuration.
    pub fn adapter(&self) -> &'static str {
        self.config.adapter.name()
    }

    /// Where the data is; a bridge has none of its own.
    pub fn data_dir(&self) -> Option<&Path> {
        self.config.adapter.data_dir()
    }

    /// Resolves when the node cannot go on and its process should end, with the reason.
    pub async fn failed(&self) -> String {
        match &self.store {
            OpenStore::Raft(adapter) => adapter.failed().await,
            OpenStore::Fs(_) | OpenStore::Bridge(_) => std::future::pending().await,
        }
    }

    /// Drains: no new connections, calls under way are finished and answered, the store is closed.
    pub async fn shutdown(self) {
        self.close_door.cancel();
        ended("door", self.door).await;
        close_store(&self.store).await;
        self.close_feed.cancel();
        ended("feed", self.dispatch).await;
    }
}

async fn ended(part: &str, task: JoinHandle<()>) {
    if let Err(error) = task.await {
        tracing::error!(part, %error, "a part of the node broke off");
    }
}

fn runtime(config: &Config, adapter: Arc<dyn Adapter>) -> Runtime {
    let authoritative = !matches!(config.adapter, AdapterConfig::Bridge(_));
    Runtime { adapter, limits: config.limits(), legacy_names: config.legacy_names, authoritative }
}

/// What a bridge is told of this node.
fn introduce(instance: String, feed: Arc<Feed>) -> Introduce {
    let clock = SystemMint::default();
    Arc::new(move |after| Introduction {
        instance: instance.clone(),
        cluster: feed.cluster().name().to_owned(),
        position: feed.position().map(|position| feed.cluster().print(position)),
        gap: after.and_then(|after| feed.check_resume(after).err()),
        now_ms: clock.stamp().at_ms,
    })
}

/// What `session::on-config-change` does: limits and names change at once, everything else needs a restart.
fn reload(calls: &Arc<Calls>, running: Config, reread: Reread) -> Reload {
    // The hook belongs to the calls it changes, so it must not keep them alive.
    let calls = Arc::downgrade(calls);
    Arc::new(move || {
        let outcome = reread().map_err(|error| error.to_string()).and_then(|next| {
            only_live_settings_differ(&running, &next)?;
            let calls = calls.upgrade().ok_or("the node is stopping")?;
            let adapter = calls.runtime().adapter.clone();
            calls.swap(runtime(&next, adapter));
            Ok(())
        });
        std::future::ready(outcome).boxed()
    })
}

fn only_live_settings_differ(running: &Config, next: &Config) -> Result<(), String> {
    let live = Config {
        default_list_limit: next.default_list_limit,
        max_list_limit: next.max_list_limit,
        legacy_names: next.legacy_names,
        ..running.clone()
    };
    if live == *next {
        return Ok(());
    }
    Err("default_list_limit, max_list_limit and legacy_names change while the node runs; restart it for the rest"
        .to_owned())
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
        call_timeout: Duration::from_millis(config.call_timeout_ms),
        ..defaults
    }
}

fn endpoint_settings(config: &Config, store: &OpenStore, ground: &Ground) -> EndpointSettings {
    let health: HealthCheck = match store {
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
    };
    EndpointSettings {
        health,
        sockets: ground.sockets.clone(),
        connections_max: descriptors::make_room(config.max_connections),
        body_bytes_max: config.max_message_bytes,
        ..EndpointSettings::new(config.listen.to_string())
    }
}

async fn open_store(config: &Config, ground: &Ground, instance: &str) -> Result<(OpenStore, Arc<Feed>), String> {
    data_dir::check(&*ground.disk, &config.adapter)?;
    match &config.adapter {
        AdapterConfig::Raft(files) => open_raft(config, ground, &files.data_dir).await,
        AdapterConfig::Fs(files) => open_fs(files.data_dir.clone()).await,
        AdapterConfig::Bridge(bridge) => open_bridge(bridge, instance).await,
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
    Ok((OpenStore::Raft(Arc::new(adapter.map_err(|error| why(&error, data_dir))?)), feed))
}

async fn open_bridge(config: &BridgeConfig, instance: &str) -> Result<(OpenStore, Arc<Feed>), String> {
    let feed = feed_of("bridge");
    let mains = config.mains().into_iter().map(|(key, url)| Address { key, shown: shown(&url), url }).collect();
    let timeout = Duration::from_millis(config.timeout_ms);
    let settings = BridgeSettings { mains, timeout, instance: instance.to_owned() };
    let dial = Arc::new(Sdk { name: format!("session-manager-bridge-{instance}") });
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
    Ok((OpenStore::Fs(Arc::new(opened.map_err(|error| error.to_string())?)), feed))
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
