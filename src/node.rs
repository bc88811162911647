//! Owns: starting a node from its parts, and stopping it in the reverse order. The program, the tests and the simulation
//! all start nodes here.
//! Never: arguments, exit codes, signals (`cli/serve.rs`).

mod data_dir;
pub mod descriptors;
mod figures;
mod forming;
mod operator;
mod ready;
mod reload;
mod replay;
mod report;
mod running;
mod store;
mod trace_export;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

pub use self::forming::find_cluster;
use self::reload::{Core, Origin, Running};
use self::report::Report;
use self::running::{Data, Entry, OpenDoor, Signals};
pub use self::store::OpenError;
use self::trace_export::TraceExport;
use crate::access::credentials::{SourceError, Sources};
use crate::access::identity::Proof;
use crate::access::tls::{ServerTls, TlsError};
use crate::access::{Credentials, Identity, Role};
use crate::config::{AdapterConfig, Config, ConfigError};
use crate::events::current::CurrentFeed;
use crate::metrics::trace::Tracer;
use crate::mint::{Mint, SystemMint};
use crate::proposal::Adapter;
use crate::proposal::bridge::connection::Connector;
use crate::proposal::raft::RaftSettings;
use crate::replication::formation::forming::FormError;
use crate::replication::replica::Replica;
use crate::requests::store::about::Introduction;
use crate::sockets::{RealSockets, Sockets};
use crate::storage::disk::{Disk, RealDisk};
use crate::surface::bus::{Bus, BusSettings};
use crate::surface::calls::{Calls, Introduce, Runtime};
use crate::surface::engine::control::ControlConnection;
use crate::surface::engine::serving::EngineWorker;
use crate::surface::gate::Gate;
use crate::surface::socket::SocketLimits;
use crate::surface::socket::outbox::OutboxLimits;

/// The settings a node is started with.
pub struct NodeSettings {
    pub config: Config,
    /// Reads the configuration again, for `session::on-config-change`. `None`: it cannot change.
    pub reread: Option<Reread>,
    pub environment: Environment,
    /// The engine this node is a worker of, beside its own endpoint.
    pub engine: Option<Arc<ControlConnection>>,
}

/// Sockets, disk, memory, time and randomness. The program uses those of the machine; the simulation brings its own.
#[derive(Clone)]
pub struct Environment {
    pub sockets: Arc<dyn Sockets>,
    pub disk: Arc<dyn Disk>,
    pub mint: Arc<dyn Mint>,
    /// The state is in memory and rebuilt from snapshot and log at every start.
    pub state_in_memory: bool,
    /// The resident memory of this node, if it is known. It is sent to other nodes, so the simulation has its own: a
    /// number of a real process would make two runs differ.
    pub resident_bytes: fn() -> Option<u64>,
    /// Changes sizes and times that the configuration does not have.
    pub tune: Option<Tune>,
    /// Connects a bridge to its mains; `None` for the public SDK.
    pub dial: Option<Arc<dyn Connector>>,
}

pub type Tune = Arc<dyn Fn(RaftSettings) -> RaftSettings + Send + Sync>;

impl Default for Environment {
    fn default() -> Environment {
        Environment {
            sockets: Arc::new(RealSockets),
            disk: Arc::new(RealDisk),
            mint: Arc::new(SystemMint::default()),
            state_in_memory: false,
            resident_bytes: figures::resident_bytes,
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
        NodeSettings { config, reread: None, environment: Environment::default(), engine: None }
    }
}

/// What identifies this process, and what it says about itself.
pub struct Process {
    /// Random, so that a bridge recognises itself.
    pub instance: String,
    report: Arc<Report>,
    /// Records spans, if the configuration names a collector.
    tracer: Option<Arc<Tracer>>,
}

/// Why a node does not start. Each text is one line and says what to do.
#[derive(Debug)]
pub enum StartError {
    Config(ConfigError),
    Listen {
        address: SocketAddr,
        why: std::io::Error,
    },
    Data {
        data_dir: PathBuf,
        why: OpenError,
    },
    /// No main of a bridge can be used.
    Main(OpenError),
    Credentials(SourceError),
    Tls(TlsError),
    /// A node with `discover` cannot look for its cluster.
    Form(FormError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Config(error) => write!(f, "{error}"),
            StartError::Listen { address, why } => {
                write!(f, "cannot listen on {address}: {why}; choose another with --listen, port 0 for a free one")
            }
            StartError::Data { data_dir, why } => write!(f, "data directory {}: {why}", data_dir.display()),
            StartError::Main(why) => write!(f, "{why}"),
            StartError::Credentials(error) => write!(f, "{error}"),
            StartError::Tls(error) => write!(f, "{error}"),
            StartError::Form(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A running node.
pub struct Node {
    /// Aborted with the node.
    _follows_files: [Option<AbortOnDropHandle<()>>; 2],
    /// The first address of the door; a reload may change it.
    address: SocketAddr,
    core: Arc<Core>,
    engine_worker: Option<EngineWorker>,
    traces: Option<TraceExport>,
}

impl Node {
    /// Opens the data, then the door, so that every connection is served.
    pub async fn start(settings: NodeSettings) -> Result<Node, StartError> {
        let NodeSettings { config, reread, environment, engine } = settings;
        config.validate().map_err(StartError::Config)?;
        let credentials = Credentials::load(config.credentials()).map_err(StartError::Credentials)?;
        let tls = config.client_tls().map(|files| ServerTls::for_clients(files, config.peer_ca.clone()));
        let tls = tls.transpose().map_err(StartError::Tls)?;
        for warning in report::warnings(&config) {
            tracing::warn!("{warning}");
        }

        // 1. The data, recovered and locked, and its feed.
        let instance = uuid::Uuid::new_v4().to_string();
        let report = Arc::new(Report::new(environment.resident_bytes));
        report.change(&config, config.listen);
        let traces = TraceExport::start(&config, environment.sockets.clone()).map_err(StartError::Tls)?;
        let tracer = traces.as_ref().map(|traces| traces.tracer.clone());
        let process = Process { instance: instance.clone(), report, tracer: tracer.clone() };
        let opened = Data::open(&config, &environment, &process).await;
        let data = opened.map_err(|why| match config.adapter.data_dir() {
            Some(data_dir) => StartError::Data { data_dir: data_dir.to_owned(), why },
            None => StartError::Main(why),
        })?;
        let signals = Signals::new(process.report.clone(), tracer.clone());
        signals.watch(&data.store);
        // 2. The functions.
        let calls = Arc::new(Calls::new(runtime(&config, data.store.adapter.clone())));
        // 3. The bus and its port.
        let feed = CurrentFeed::new(data.store.feed.clone());
        calls.introduce_with(introduce(instance.clone(), feed.clone(), &signals));
        let gate = Gate::with_memory(calls.clone(), config.call_memory_bytes);
        gate.set_engine_identity(engine_identity(&config));
        if let Some(tracer) = tracer {
            gate.trace_with(tracer);
        }
        let bus = Bus::new(bus_settings(&config), gate.clone(), feed.clone());
        let entry = Entry { credentials: credentials.clone(), tls: tls.clone() };
        let door = match OpenDoor::open(&config, &environment, &bus, &entry, &signals).await {
            Ok(door) => door,
            Err(why) => {
                data.close().await;
                return Err(StartError::Listen { address: config.listen, why });
            }
        };
        let address = door.address;
        process.report.change(&config, address);
        let core = Core::new(
            calls,
            gate,
            bus,
            feed,
            signals,
            Origin { environment, process, entry },
            Running { config, data, door },
        );
        let follows_certificates =
            tls.map(|tls| AbortOnDropHandle::new(tokio::spawn(async move { tls.follow_files().await })));
        let follows_files = (reread.is_some() || credentials.are_needed())
            .then(|| AbortOnDropHandle::new(tokio::spawn(async move { credentials.follow_files().await })));
        if let Some(reread) = reread {
            core.reload_with(reread);
        }
        // 4. The engine, if there is one.
        let engine_worker = engine.map(|control| EngineWorker::start(control, core.served()));
        Ok(Node { _follows_files: [follows_files, follows_certificates], address, core, engine_worker, traces })
    }

    /// Reads the configuration again and applies it. Returns false if it was rejected and the previous one stays in
    /// force; `session::config-status` shows the reason.
    pub async fn reload(&self) -> bool {
        self.core.calls.reload_now().await
    }

    /// The address for peers.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.core.running().as_ref()?.data.store.member.as_ref()?.peer_address()
    }

    /// The replica of a cluster member; `None` for the other adapters.
    pub fn replica(&self) -> Option<Arc<Replica>> {
        self.core.running().as_ref()?.data.store.replica().cloned()
    }

    /// The address for clients.
    pub fn local_addr(&self) -> SocketAddr {
        self.core.running().as_ref().map_or(self.address, |running| running.door.address)
    }

    /// The URL for clients: the advertised one, or the address of the port.
    pub fn client_url(&self) -> Option<String> {
        let running = self.core.running();
        let running = running.as_ref()?;
        Some(report::client_url(&running.config, running.door.address)).filter(|url| !url.is_empty())
    }

    /// Whether clients need credentials.
    pub fn needs_credentials(&self) -> bool {
        self.core.needs_credentials()
    }

    /// The adapter's name in the configuration.
    pub fn adapter(&self) -> &'static str {
        self.core.running().as_ref().map_or("none", |running| running.config.adapter.name())
    }

    /// The data directory; `None` for a bridge.
    pub fn data_dir(&self) -> Option<PathBuf> {
        Some(self.core.running().as_ref()?.config.adapter.data_dir()?.to_owned())
    }

    /// Resolves with the reason when the node has failed and its process must end.
    pub async fn failed(&self) -> String {
        let mut failed = self.core.signals.failed.subscribe();
        match failed.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Refuses new connections, finishes and answers the calls in progress, and closes the store.
    pub async fn shutdown(self) {
        if let Some(engine_worker) = self.engine_worker {
            engine_worker.shutdown().await;
        }
        let running = self.core.running().take();
        if let Some(Running { config: _, data, door }) = running {
            door.close().await;
            self.core.signals.stop();
            data.close().await;
        }
        self.core.all_retired().await;
        if let Some(traces) = self.traces {
            traces.stop().await;
        }
    }
}

/// Who calls through an engine act as. The engine admitted them; it trusts everybody on its port.
fn engine_identity(config: &Config) -> Arc<Identity> {
    let needed = config.credentials() != Sources::default();
    match config.engine_role.or(needed.then_some(Role::App)) {
        Some(role) => Arc::new(Identity::new("engine", role, Proof::Configured)),
        None => Identity::open(),
    }
}

async fn join_task(part: &str, task: JoinHandle<()>) {
    if let Err(error) = task.await {
        tracing::error!(part, %error, "a task of the node has failed");
    }
}

fn runtime(config: &Config, adapter: Arc<dyn Adapter>) -> Runtime {
    Runtime {
        adapter,
        limits: config.limits(),
        legacy_names: config.legacy_names,
        authoritative: !matches!(config.adapter, AdapterConfig::Bridge(_)),
        keeps_turns: matches!(config.adapter, AdapterConfig::Raft(_)),
        call_timeout: Duration::from_millis(config.call_timeout_ms),
    }
}

/// What this node reports to a bridge that connects.
fn introduce(instance: String, feed: Arc<CurrentFeed>, signals: &Arc<Signals>) -> Introduce {
    let (clock, nodes) = (signals.clock(), signals.nodes());
    Arc::new(move |after| {
        feed.read(|feed| Introduction {
            instance: instance.clone(),
            cluster: feed.cluster().name().to_owned(),
            position: feed.position().map(|position| feed.cluster().print(position)),
            oldest: feed.oldest().ok().map(|oldest| feed.cluster().print(oldest)),
            urls: nodes().into_iter().map(|node| node.url).collect(),
            gap: after.and_then(|after| feed.check_resume(after).err().map(|error| error.to_string())),
            now_ms: clock(),
        })
    })
}

fn bus_settings(config: &Config) -> BusSettings {
    let defaults = BusSettings::default();
    BusSettings {
        socket: SocketLimits { message_bytes_max: config.max_message_bytes, ..defaults.socket },
        outbox: OutboxLimits {
            bytes_max: config.outbound_queue_bytes,
            total_bytes_max: config.outbound_total_bytes,
            ..defaults.outbox
        },
        ..defaults
    }
}

/// The configured number of connections, if the system allows it.
fn connections_max(config: &Config) -> usize {
    descriptors::make_room(config.max_connections)
}
