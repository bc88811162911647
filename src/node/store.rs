//! Owns: opening the store that the configuration names. The rest of the node uses `OpenStore` and does not know which
//! adapter is behind it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::data_dir::{self, DataDirError};
use super::figures::DiskUsage;
use super::{Environment, Process, ready};
use crate::access::own_token;
use crate::access::tls::{PeerTls, TlsError};
use crate::config::{AdapterConfig, BridgeConfig, Config, ConfigError, Consistency, shown};
use crate::events::feed::{Feed, FeedSettings};
use crate::events::position::ClusterTag;
use crate::events::stored::StoredFeed;
use crate::machine::ids::Position;
use crate::machine::long::Steps;
use crate::mint::{Mint, SystemMint};
use crate::proposal::Adapter;
use crate::proposal::bridge::connection::Connector;
use crate::proposal::bridge::error::BridgeError;
use crate::proposal::bridge::sdk::{ReadToken, SdkConnector};
use crate::proposal::bridge::{Address, BridgeAdapter, BridgeSettings};
use crate::proposal::local::LocalAdapter;
use crate::proposal::long::Chores;
use crate::proposal::raft::{self, RaftAdapter, RaftSettings};
use crate::proposal::retention::{Keeper, Retention};
use crate::replication::disk_space::FreeBytes;
use crate::replication::replica::Replica;
use crate::storage::files::disk_space;
use crate::storage::state::memory::MemoryStore;
use crate::surface::http::{Health, HealthCheck};
use crate::surface::probes::CheckData;
use crate::surface::scrapes::MeasureNode;

/// The fs adapter keeps its feed in memory, so its size is bounded whatever the setting says.
const FEED_IN_MEMORY_BYTES_MAX: u64 = 16 << 20;

/// Why a store cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    DataDir(DataDirError),
    Raft(raft::StartError),
    Fs(io::Error),
    Config(ConfigError),
    Tls(TlsError),
    /// No main of a bridge can be used.
    Bridge(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::DataDir(error) => write!(f, "{error}"),
            // The line that this text stands in names the directory already.
            OpenError::Raft(raft::StartError::DataDir { path: _, why }) => write!(f, "{why}"),
            OpenError::Raft(error) => write!(f, "{error}"),
            OpenError::Fs(error) => write!(f, "{error}"),
            OpenError::Config(error) => write!(f, "{error}"),
            OpenError::Tls(error) => write!(f, "{error}"),
            OpenError::Bridge(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// Milliseconds since the epoch.
pub type StoreClock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// An open store, as the node uses it.
#[derive(Clone)]
pub struct OpenStore {
    pub adapter: Arc<dyn Adapter>,
    /// The events of its commits.
    pub feed: Arc<Feed>,
    pub health: HealthCheck,
    pub ready: CheckData,
    /// Its figures for a page of metrics.
    pub measure: MeasureNode,
    /// The time by which it expires request ids.
    pub clock: StoreClock,
    /// The member of a cluster; `None` for the other adapters.
    pub member: Option<Arc<RaftAdapter>>,
    /// Where the feed is stored and its bound in bytes; `None` for a bridge, whose main stores it.
    stored_feed: Option<(Arc<dyn StoredFeed>, u64)>,
    close: Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

impl OpenStore {
    pub async fn open(config: &Config, environment: &Environment, process: &Process) -> Result<OpenStore, OpenError> {
        data_dir::check(&*environment.disk, &config.adapter).map_err(OpenError::DataDir)?;
        match &config.adapter {
            AdapterConfig::Raft(files) => open_raft(config, environment, process, &files.data_dir).await,
            AdapterConfig::Fs(files) => open_fs(files.data_dir.clone()).await,
            AdapterConfig::Bridge(bridge) => {
                bridge.refuse_own_address(config.listen).map_err(OpenError::Config)?;
                open_bridge(bridge, environment, &process.instance).await
            }
        }
    }

    pub fn replica(&self) -> Option<&Arc<Replica>> {
        Some(self.member.as_ref()?.replica())
    }

    /// Whether this node of its cluster serves the engine that they share. A node without a cluster always does.
    pub fn is_leader(&self) -> bool {
        self.replica().is_none_or(|replica| replica.is_leader())
    }

    /// Waits until `is_leader` differs from `before`.
    pub async fn leadership_changed(&self, before: bool) {
        match self.replica() {
            Some(replica) => replica.leadership_changed(before).await,
            None => std::future::pending().await,
        }
    }

    /// Resolves with the reason when the data can no longer be served.
    pub async fn failed(&self) -> String {
        match self.replica() {
            Some(replica) => replica.failed().await,
            None => std::future::pending().await,
        }
    }

    /// Applies the settings that may change while the store is open.
    pub fn change(&self, config: &Config) {
        if let Some(member) = &self.member {
            member.set_local_reads(config.consistency == Consistency::Local);
        }
    }

    /// The task that trims the feed; none for a bridge.
    pub fn keeper(&self, config: &Config, environment: &Environment) -> Option<Keeper> {
        let (history, bytes_max) = self.stored_feed.clone()?;
        let retention = Retention {
            bytes_max: config.feed_retention_bytes.min(bytes_max),
            age_max: Duration::from_secs(config.feed_retention_secs),
        };
        let (adapter, mint) = (self.adapter.clone(), environment.mint.clone());
        Some(Keeper { adapter, history, is_leader: self.leads(), mint, retention })
    }

    /// The task that frees what deletes left; none for a bridge.
    pub fn chores(&self, environment: &Environment) -> Option<Chores> {
        let (state, _) = self.stored_feed.clone()?;
        let steps = self.member.as_ref().map_or_else(Steps::default, |member| member.steps());
        let (adapter, mint) = (self.adapter.clone(), environment.mint.clone());
        Some(Chores { adapter, state, is_leader: self.leads(), mint, steps })
    }

    /// Whether this node proposes what the cluster owes itself.
    fn leads(&self) -> Box<dyn Fn() -> bool + Send + Sync> {
        let replica = self.replica().cloned();
        Box::new(move || replica.as_ref().is_none_or(|replica| replica.raft().is_leader()))
    }

    pub async fn close(&self) {
        (self.close)().await;
    }
}

async fn open_raft(
    config: &Config,
    environment: &Environment,
    process: &Process,
    data_dir: &Path,
) -> Result<OpenStore, OpenError> {
    let feed = new_feed("raft");
    // Positions name their cluster, so the feed learns it before the first commit. A node that joins learns it when it is
    // invited.
    let named = feed.clone();
    let settings = RaftSettings {
        peer_listen: config.peer_listen,
        peer_advertise: config.peer_advertise.clone(),
        peer_tls: config
            .peer_tls()
            .map(|files| PeerTls::load(files, Some(config.node_id)))
            .transpose()
            .map_err(OpenError::Tls)?,
        open_peer_port: config.insecure_no_auth && config.insecure_no_tls,
        describe: process.report.describe(),
        join: config.join,
        name: if config.discover.is_some() { config.node_name() } else { String::new() },
        discover: config.discover.as_deref().and_then(|place| place.parse().ok()),
        reap_after: config.reap_after_secs.map(Duration::from_secs),
        max_level: config.max_level,
        stale_reads: config.consistency == Consistency::Local,
        on_cluster: Some(Arc::new(move |cluster_id| named.joins(cluster_id))),
        sockets: environment.sockets.clone(),
        disk: environment.disk.clone(),
        heartbeat: Duration::from_millis(config.heartbeat_ms),
        lease: Duration::from_millis(config.leader_lease_ms),
        election: Duration::from_millis(config.election_timeout_ms),
        peer_timeout: Duration::from_millis(config.peer_timeout_ms),
        free_bytes: free_bytes(data_dir),
        min_free_bytes: min_free_bytes(config, data_dir),
        tracer: process.tracer.clone(),
        ..RaftSettings::new(data_dir, config.node_id)
    };
    let settings = environment.tune.as_ref().map_or(settings.clone(), |tune| tune(settings));
    let adapter = if environment.state_in_memory {
        RaftAdapter::start(settings, environment.mint.clone(), Arc::new(MemoryStore::new()), feed.clone()).await
    } else {
        RaftAdapter::open(settings, environment.mint.clone(), feed.clone()).await
    };
    let adapter = Arc::new(adapter.map_err(OpenError::Raft)?);
    let history: Arc<dyn StoredFeed> = adapter.clone();
    feed.reads_from(&history);
    let watched = Arc::downgrade(&adapter);
    let health = move || {
        let condition = watched.upgrade().map(|adapter| adapter.replica().condition());
        let (role, trouble) = condition.unwrap_or(("stopped", Some(STOPPING.to_owned())));
        Health { role, trouble }
    };
    let (timed, mint) = (Arc::downgrade(&adapter), environment.mint.clone());
    let clock = move || {
        let wall_ms = mint.stamp().at_ms;
        timed.upgrade().map_or(wall_ms, |adapter| adapter.replica().clock().now_ms(wall_ms))
    };
    let (measured, events, disk) = (Arc::downgrade(&adapter), feed.clone(), DiskUsage::of(data_dir));
    let measure: MeasureNode = Arc::new(move |page| {
        if let Some(adapter) = measured.upgrade() {
            adapter.measure(page);
        }
        events.measure(page);
        disk.measure(page);
    });
    let closed = adapter.clone();
    let close = move || {
        let adapter = closed.clone();
        async move { adapter.shutdown().await }.boxed()
    };
    Ok(OpenStore {
        feed,
        health: Arc::new(health),
        ready: ready::of_member(&adapter),
        measure,
        clock: Arc::new(clock),
        stored_feed: Some((history, u64::MAX)),
        close: Arc::new(close),
        member: Some(adapter.clone()),
        adapter,
    })
}

async fn open_fs(data_dir: PathBuf) -> Result<OpenStore, OpenError> {
    let feed = new_feed("fs");
    let (events, disk) = (feed.clone(), DiskUsage::of(&data_dir));
    let measure: MeasureNode = Arc::new(move |page| {
        events.measure(page);
        disk.measure(page);
    });
    let sink = feed.clone();
    let open = move || LocalAdapter::open_jsonl(&data_dir, Arc::new(SystemMint::default()), sink);
    let opened = tokio::task::spawn_blocking(open).await.map_err(|error| OpenError::Fs(io::Error::other(error)))?;
    let adapter = Arc::new(opened.map_err(OpenError::Fs)?);
    let history: Arc<dyn StoredFeed> = adapter.clone();
    feed.reads_from(&history);
    let timed = history.clone();
    let clock = move || {
        let mut state_ms = 0;
        timed.read_view(&mut |view| state_ms = view.clock_ms().unwrap_or(0));
        SystemMint::default().stamp().at_ms.max(state_ms)
    };
    let closed = adapter.clone();
    let close = move || {
        let adapter = closed.clone();
        // Closing waits for the writer thread, so it runs on a blocking thread.
        let closing = tokio::task::spawn_blocking(move || adapter.close());
        let report = |error| tracing::error!(%error, "closing the store has failed");
        async move { closing.await.unwrap_or_else(report) }.boxed()
    };
    Ok(OpenStore {
        feed,
        health: Arc::new(|| Health { role: "single", trouble: None }),
        ready: ready::of_files(&adapter),
        measure,
        clock: Arc::new(clock),
        stored_feed: Some((history, FEED_IN_MEMORY_BYTES_MAX)),
        close: Arc::new(close),
        member: None,
        adapter,
    })
}

async fn open_bridge(config: &BridgeConfig, environment: &Environment, instance: &str) -> Result<OpenStore, OpenError> {
    let feed = new_feed("bridge");
    let mains = config.mains().into_iter().map(|(key, url)| Address { key, shown: shown(&url), url }).collect();
    let timeout = Duration::from_millis(config.timeout_ms);
    let settings = BridgeSettings { mains, timeout, instance: instance.to_owned() };
    let token_file = config.token_file.clone();
    let token: ReadToken =
        Arc::new(move || own_token::read(token_file.as_deref()).map_err(|error| BridgeError::Token(error.to_string())));
    let sdk = || -> Arc<dyn Connector> {
        Arc::new(SdkConnector { name: format!("session-manager-bridge-{instance}"), token, ca: config.ca.clone() })
    };
    let dial = environment.dial.clone().unwrap_or_else(sdk);
    // Events keep the positions of the main, so that a subscriber may resume at any bridge of that main.
    let named = feed.clone();
    let on_main = Arc::new(move |cluster: &str, position: Option<Position>| {
        named.joins(cluster);
        if let Some(position) = position {
            named.starts_after(position);
        }
    });
    let mint = Arc::new(SystemMint::default());
    let opened = BridgeAdapter::open(settings, dial, mint, feed.clone(), Some(on_main)).await;
    let adapter = Arc::new(opened.map_err(|error| OpenError::Bridge(error.into()))?);
    let watched = Arc::downgrade(&adapter);
    let health = move || {
        let trouble = watched.upgrade().map_or_else(|| Some(STOPPING.to_owned()), |adapter| adapter.trouble());
        Health { role: "bridge", trouble }
    };
    let events = feed.clone();
    let measure: MeasureNode = Arc::new(move |page| events.measure(page));
    let closed = adapter.clone();
    let close = move || {
        closed.close();
        std::future::ready(()).boxed()
    };
    Ok(OpenStore {
        feed,
        health: Arc::new(health),
        ready: ready::of_bridge(&adapter),
        measure,
        clock: Arc::new(|| SystemMint::default().stamp().at_ms),
        stored_feed: None,
        close: Arc::new(close),
        member: None,
        adapter,
    })
}

/// A disk is nearly full at a twentieth of its size. 512 MiB are enough for any, and 32 MiB are needed to free what was
/// deleted.
const MIN_FREE_PART: u64 = 20;
const MIN_FREE_BYTES_MAX: u64 = 512 << 20;
const MIN_FREE_BYTES_MIN: u64 = 32 << 20;

fn min_free_bytes(config: &Config, data_dir: &Path) -> u64 {
    let of = |size: u64| (size / MIN_FREE_PART).clamp(MIN_FREE_BYTES_MIN.min(size / 3), MIN_FREE_BYTES_MAX);
    let by_size = || existing(data_dir).and_then(disk_space).map_or(0, |(_, size)| of(size));
    config.min_free_bytes.unwrap_or_else(by_size)
}

/// What the disk of a directory has left.
fn free_bytes(data_dir: &Path) -> FreeBytes {
    let dir = data_dir.to_owned();
    Arc::new(move || disk_space(&dir).map(|(free, _)| free))
}

/// The directory, or the nearest one above it: a new node creates its own.
fn existing(dir: &Path) -> Option<&Path> {
    dir.ancestors().map(|dir| if dir.as_os_str().is_empty() { Path::new(".") } else { dir }).find(|dir| dir.exists())
}

const STOPPING: &str = "the node is stopping";

fn new_feed(cluster: &str) -> Arc<Feed> {
    Feed::new(FeedSettings { cluster: ClusterTag::new(cluster), ..FeedSettings::default() })
}
