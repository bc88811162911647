//! Owns: `session-manager serve`: settings from arguments, the start-up lines, signals and the exit code.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, exit};
use std::sync::{Arc, OnceLock};

use clap::Args;
use futures::FutureExt;

use super::connect::trust;
use super::error::CliError;
use super::log_to_stderr;
use super::signals::wait_for_signal;
use super::source::Source;
use crate::config::{AdapterConfig, BridgeConfig, Config, ConfigError, DataDir};
use crate::node::{Environment, Node, NodeSettings, Reread, find_cluster};
use crate::observe::{DEFAULT_LEVEL, LogFormat, end_process_on_panic};
use crate::surface::engine::control::ControlConnection;
use crate::surface::engine::{EngineSettings, Sharing};

const ABOUT: &str = "\
Run a node (the default when no subcommand is given).

The node accepts iii SDKs (WebSocket), HTTP and gRPC on one port. Alone it is a cluster of one; with --peer-listen \
other nodes can join. Settings come from --config; arguments override them.";

const EXAMPLES: &str = "\
Examples:
  session-manager serve
  session-manager serve --listen 127.0.0.1:50000 --data-dir /var/lib/session-manager
  session-manager serve --config session-manager.yaml --log-format json
  session-manager serve --adapter fs                     one JSONL file per session, not replicated
  session-manager serve --listen 127.0.0.1:0 --port-file port
  session-manager serve --node-id 2 --peer-listen 127.0.0.1:49402 --join --data-dir node-2
  session-manager serve --peer-listen 127.0.0.1:49402 --bootstrap-expect 3 --discover file:nodes --name b --data-dir b
  session-manager serve --listen 0.0.0.0:49134 --token-file tokens --tls-cert node-1.pem --tls-key node-1.key
  session-manager serve --url ws://127.0.0.1:49134       attach to a running iii engine

SIGTERM and Ctrl-C finish the calls in progress, close the store and exit 0. A second signal exits at once. SIGHUP \
reloads the configuration. Exit code 2: bad configuration, a busy port, or a data directory that is locked or not ours.";

/// Run a node (the default)
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Address for clients, HOST:PORT; beyond loopback it needs TLS and credentials; port 0 picks a free port [default: 127.0.0.1:49134]
    #[arg(long, value_name = "ADDRESS", help_heading = "Address and data")]
    listen: Option<SocketAddr>,

    /// Directory for the data [default: ./data]
    #[arg(long, value_name = "DIR", help_heading = "Address and data")]
    data_dir: Option<PathBuf>,

    /// Which storage to use [default: raft]
    #[arg(long, value_enum, help_heading = "Address and data")]
    adapter: Option<AdapterName>,

    /// Settings in YAML; arguments override them
    #[arg(long, value_name = "FILE", env = "III_CONFIG", help_heading = "Address and data")]
    config: Option<PathBuf>,

    /// Id of this node in its cluster, from 1 on; fixed for the life of the data directory [default: 1]
    #[arg(long, value_name = "ID", help_heading = "Cluster")]
    node_id: Option<u64>,

    /// Address for the other nodes and for `session-manager cluster`, HOST:PORT; beyond loopback it needs --peer-ca; port 0 picks
    /// a free port
    /// [default: none, no other node can join]
    #[arg(long, value_name = "ADDRESS", help_heading = "Cluster")]
    peer_listen: Option<SocketAddr>,

    /// File with the tokens of callers (see `session-manager token create`); with it, every caller needs a token
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    token_file: Option<PathBuf>,

    /// Certificate chain of the client port, in PEM; with it, the port speaks TLS
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert, in PEM
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    tls_key: Option<PathBuf>,

    /// Authority of the cluster, in PEM; with it, peers and operators need certificates of this authority
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    peer_ca: Option<PathBuf>,

    /// Certificate of this node for its peers, in PEM [default: --tls-cert]
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    peer_cert: Option<PathBuf>,

    /// Private key of --peer-cert, in PEM [default: --tls-key]
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    peer_key: Option<PathBuf>,

    /// Listen beyond loopback without credentials: everybody who reaches the port may do everything
    #[arg(long, help_heading = "Access")]
    insecure_no_auth: bool,

    /// Listen beyond loopback without TLS: everybody on the way reads tokens and messages
    #[arg(long, help_heading = "Access")]
    insecure_no_tls: bool,

    /// Address of this node for its peers, HOST:PORT, if it differs from --peer-listen; a name is resolved at every
    /// connect
    #[arg(long, value_name = "ADDRESS", help_heading = "Cluster")]
    peer_advertise: Option<String>,

    /// URL of this node for clients, such as wss://node-1.example:49134; members tell it to clients and bridges
    /// [default: the address in --listen]
    #[arg(long, value_name = "URL", help_heading = "Cluster")]
    advertise: Option<String>,

    /// With an empty data directory, wait until a cluster adds this node, instead of founding a new cluster
    #[arg(long, help_heading = "Cluster")]
    join: bool,

    /// Where the other nodes are: dns:NAME:PORT, file:PATH or HOST:PORT,HOST:PORT,…; the nodes found a cluster together,
    /// or join the one that is there, and get their ids from it
    #[arg(long, value_name = "PLACE", help_heading = "Cluster")]
    discover: Option<String>,

    /// How many nodes found a cluster together, an odd number; without it, this node joins one and never founds one
    #[arg(long, value_name = "NODES", help_heading = "Cluster")]
    bootstrap_expect: Option<usize>,

    /// Name of this node for people, such as that of its pod; unique in its cluster [default: the name of the machine]
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    name: Option<String>,

    /// If this node was removed from its cluster, set its data aside and join as a new node
    #[arg(long, help_heading = "Cluster")]
    rejoin: bool,

    /// Remove a member that does not answer for this many seconds, as long as a quorum stays [default: never]
    #[arg(long, value_name = "SECONDS", help_heading = "Cluster")]
    reap_after: Option<u64>,

    /// Attach to the iii engine at this address as a worker: ws://HOST:PORT. The node's own port stays open
    #[arg(long, value_name = "URL", env = "III_URL", help_heading = "iii engine")]
    url: Option<String>,

    /// Namespace on the engine for the functions of this node [default: the engine's default]
    #[arg(long, value_name = "NAME", env = "III_NAMESPACE", help_heading = "iii engine")]
    namespace: Option<String>,

    /// Name of this worker on the engine; must be unique there [default: session-manager-NODE_ID-RANDOM]
    #[arg(long, value_name = "NAME", env = "III_WORKER_NAME", help_heading = "iii engine")]
    worker_name: Option<String>,

    /// Whether the nodes of the cluster share one engine
    #[arg(long, value_enum, default_value_t, help_heading = "iii engine")]
    engine: EngineUse,

    /// Write the port to this file once the node listens
    #[arg(long, value_name = "FILE", help_heading = "Process and logs")]
    port_file: Option<PathBuf>,

    /// Stop when standard input is closed, which happens when the parent process exits
    #[arg(long, help_heading = "Process and logs")]
    exit_with_parent: bool,

    /// Format of the log on stderr
    #[arg(long, value_enum, default_value_t, help_heading = "Process and logs")]
    log_format: LogFormat,

    /// What to log: error, warn, info, debug or trace, also per module, as in `info,session_manager::surface=debug`
    #[arg(long, env = "RUST_LOG", default_value = DEFAULT_LEVEL, help_heading = "Process and logs")]
    log_level: String,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum EngineUse {
    /// All nodes attach to one engine; only the leader serves there and the others stand by
    #[default]
    Shared,
    /// Each node attaches to its own engine and serves there, leader or not
    Own,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum AdapterName {
    /// A replicated log with snapshots; a single node is a cluster of one
    Raft,
    /// One JSONL file per session, not replicated
    Fs,
}

/// Settings given as arguments. They override the configuration file at the start and at every reload.
#[derive(Debug)]
struct Overrides {
    listen: Option<SocketAddr>,
    data_dir: Option<PathBuf>,
    adapter: Option<AdapterName>,
    node_id: Option<u64>,
    peer_listen: Option<SocketAddr>,
    join: bool,
    forming: FormingArgs,
    /// The id that the cluster gave to this node.
    given_id: Arc<OnceLock<u64>>,
    access: Access,
    /// An engine and a node have the same default port. On an engine's machine the node therefore takes a free one.
    on_an_engine: bool,
}

/// The arguments of a node that finds its cluster by itself.
#[derive(Debug)]
struct FormingArgs {
    discover: Option<String>,
    bootstrap_expect: Option<usize>,
    name: Option<String>,
    rejoin: bool,
    reap_after: Option<u64>,
}

impl FormingArgs {
    fn take(args: &mut ServeArgs) -> FormingArgs {
        FormingArgs {
            discover: args.discover.take(),
            bootstrap_expect: args.bootstrap_expect,
            name: args.name.take(),
            rejoin: args.rejoin,
            reap_after: args.reap_after,
        }
    }

    fn apply(&self, config: &mut Config) {
        config.discover = self.discover.clone().or(config.discover.take());
        config.name = self.name.clone().or(config.name.take());
        config.bootstrap_expect = self.bootstrap_expect.or(config.bootstrap_expect);
        config.reap_after_secs = self.reap_after.or(config.reap_after_secs);
        config.rejoin |= self.rejoin;
    }
}

/// The arguments about access.
#[derive(Debug)]
struct Access {
    token_file: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    peer_ca: Option<PathBuf>,
    peer_cert: Option<PathBuf>,
    peer_key: Option<PathBuf>,
    peer_advertise: Option<String>,
    advertise: Option<String>,
    insecure_no_auth: bool,
    insecure_no_tls: bool,
}

impl Access {
    fn take(args: &mut ServeArgs) -> Access {
        Access {
            token_file: args.token_file.take(),
            tls_cert: args.tls_cert.take(),
            tls_key: args.tls_key.take(),
            peer_ca: args.peer_ca.take(),
            peer_cert: args.peer_cert.take(),
            peer_key: args.peer_key.take(),
            peer_advertise: args.peer_advertise.take(),
            advertise: args.advertise.take(),
            insecure_no_auth: args.insecure_no_auth,
            insecure_no_tls: args.insecure_no_tls,
        }
    }

    fn apply(&self, config: &mut Config) {
        for (given, setting) in [
            (&self.token_file, &mut config.token_file),
            (&self.tls_cert, &mut config.tls_cert),
            (&self.tls_key, &mut config.tls_key),
            (&self.peer_ca, &mut config.peer_ca),
            (&self.peer_cert, &mut config.peer_cert),
            (&self.peer_key, &mut config.peer_key),
        ] {
            if given.is_some() {
                setting.clone_from(given);
            }
        }
        if self.peer_advertise.is_some() {
            config.peer_advertise.clone_from(&self.peer_advertise);
        }
        if self.advertise.is_some() {
            config.advertise.clone_from(&self.advertise);
        }
        config.insecure_no_auth |= self.insecure_no_auth;
        config.insecure_no_tls |= self.insecure_no_tls;
    }
}

impl Overrides {
    fn apply(&self, mut config: Config) -> Result<Config, ConfigError> {
        if let Some(listen) = self.listen {
            config.listen = listen;
        } else if self.on_an_engine && config.listen == Config::default().listen {
            config.listen.set_port(0);
        }
        if let Some(adapter) = self.adapter {
            let data_dir = config.adapter.data_dir().map(Path::to_owned);
            let data_dir = data_dir.map_or_else(DataDir::default, |data_dir| DataDir { data_dir });
            config.adapter = match adapter {
                AdapterName::Raft => AdapterConfig::Raft(data_dir),
                AdapterName::Fs => AdapterConfig::Fs(data_dir),
            };
        }
        if let Some(data_dir) = &self.data_dir {
            if config.adapter.data_dir().is_none() {
                return Err(ConfigError::key("--data-dir", "a bridge stores no data", "leave out this argument"));
            }
            config.adapter.set_data_dir(data_dir.clone());
        }
        config.node_id = self.node_id.unwrap_or(config.node_id);
        config.peer_listen = self.peer_listen.or(config.peer_listen);
        config.join |= self.join;
        self.forming.apply(&mut config);
        if config.discover.is_some() {
            config.node_id = self.given_id.get().copied().unwrap_or(config.node_id);
        }
        self.access.apply(&mut config);
        config.validate()?;
        Ok(config)
    }
}

pub fn run(args: ServeArgs) -> Result<ExitCode, CliError> {
    log_to_stderr(args.log_format, &args.log_level)?;
    end_process_on_panic();
    disable_huge_pages();
    trust_main(args.config.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(worker_threads()).enable_all().build();
    runtime.map_err(CliError::Runtime)?.block_on(serve(args))
}

/// The authority of a bridge's main must be set before the first thread starts. The settings are read again later.
fn trust_main(file: Option<&Path>) -> Result<(), CliError> {
    if let Some(file) = file
        && let AdapterConfig::Bridge(BridgeConfig { ca: Some(ca), .. }) = Config::read(file)?.adapter
    {
        trust(&ca);
    }
    Ok(())
}

/// Every flush allocates and frees buffers of a megabyte. With huge pages the kernel clears two megabytes for each,
/// which took a sixth of the CPU time under load. This affects only this process and its children.
fn disable_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "transparent huge pages cannot be disabled");
    }
}

/// The log and the state have writer threads of their own, so one core is left to them. On two cores, three nodes with
/// one worker each took a seventh less time for a single write than with two workers, and less CPU under load.
fn worker_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get().saturating_sub(1).max(1))
}

async fn serve(mut args: ServeArgs) -> Result<ExitCode, CliError> {
    let given_id = Arc::new(OnceLock::new());
    let overrides = Overrides {
        listen: args.listen,
        data_dir: args.data_dir.take(),
        adapter: args.adapter,
        node_id: args.node_id,
        peer_listen: args.peer_listen,
        join: args.join,
        forming: FormingArgs::take(&mut args),
        given_id: given_id.clone(),
        access: Access::take(&mut args),
        on_an_engine: args.url.is_some(),
    };
    let mut source = Source::new(args.config.take(), Box::new(move |config| overrides.apply(config)));
    let config = source.read().await?;
    if config.discover.is_some() {
        // The id is part of everything that follows. Until it is known, a signal ends the process at once.
        let environment = Environment::default();
        let found = tokio::select! {
            found = find_cluster(&config, &environment) => found?,
            () = wait_for_signal() => return Ok(ExitCode::SUCCESS),
            () = parent_gone(args.exit_with_parent) => return Ok(ExitCode::SUCCESS),
        };
        // It is set once, here.
        let _ = given_id.set(found);
    }
    let engine = attach(&args, &mut source).await?;
    let source = Arc::new(source);
    let config = source.read().await?;
    let on_reload = source.clone();
    let reread: Reread = Arc::new(move || {
        let source = on_reload.clone();
        async move { source.read().await }.boxed()
    });
    let settings = NodeSettings { config, reread: Some(reread), environment: Environment::default(), engine };
    let node = Node::start(settings).await?;
    if let Err(error) = announce(&node, &args) {
        node.shutdown().await;
        return Err(error);
    }
    let failure = tokio::select! {
        () = wait_for_signal() => None,
        () = parent_gone(args.exit_with_parent) => None,
        why = node.failed() => Some(why),
        () = source.reload_on_change(&node) => None,
    };
    if let Some(why) = failure {
        return Err(CliError::NodeFailed(why.to_string()));
    }
    tracing::info!("stopping: finishing the calls in progress; a second signal exits at once");
    tokio::spawn(async {
        wait_for_signal().await;
        tracing::warn!("second signal: exiting at once");
        exit(1);
    });
    node.shutdown().await;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Logs, prints and writes to `--port-file` where the node listens.
fn announce(node: &Node, args: &ServeArgs) -> Result<(), CliError> {
    let address = node.local_addr();
    let data_dir = node.data_dir().map_or_else(|| "at the main".to_owned(), |data_dir| absolute(&data_dir));
    tracing::info!(%address, data_dir, adapter = node.adapter(), version = env!("CARGO_PKG_VERSION"), "listening");
    if args.log_format == LogFormat::Text {
        print_welcome(node, address, &data_dir);
    }
    if let Some(peers) = node.peer_addr() {
        tracing::info!(address = %peers, "listening for peers");
    }
    let Some(file) = &args.port_file else { return Ok(()) };
    write_port(file, address.port()).map_err(|why| CliError::PortFile { file: file.clone(), why })
}

/// Connects to the engine that `--url` names, and switches to its configuration worker if it has one. The file is read
/// first, so that an error in it is reported whether or not the engine can be reached.
async fn attach(args: &ServeArgs, source: &mut Source) -> Result<Option<Arc<ControlConnection>>, CliError> {
    let config = source.read().await?;
    let Some(settings) = args.engine_settings(&config) else { return Ok(None) };
    let control = ControlConnection::open(settings).await.map_err(|error| CliError::Engine(error.to_string()))?;
    source.use_engine(&control).await?;
    Ok(Some(control))
}

impl ServeArgs {
    fn engine_settings(&self, config: &Config) -> Option<EngineSettings> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        let random = uuid::Uuid::new_v4().simple().to_string();
        let name =
            given(&self.worker_name).unwrap_or_else(|| format!("session-manager-{}-{}", config.node_id, &random[..8]));
        let sharing = match self.engine {
            EngineUse::Shared => Sharing::Shared,
            EngineUse::Own => Sharing::Own,
        };
        let (url, namespace, node_id) = (given(&self.url)?, given(&self.namespace), config.node_id);
        Some(EngineSettings { url, namespace, name, node_id, sharing })
    }
}

/// What a first-time user needs to know.
fn print_welcome(node: &Node, address: SocketAddr, data_dir: &str) {
    let url = node.client_url().unwrap_or_else(|| format!("ws://{address}"));
    let token = if node.needs_credentials() { "-H \"Authorization: Bearer $TOKEN\" " } else { "" };
    eprintln!("session-manager {} listens on {address}", env!("CARGO_PKG_VERSION"));
    eprintln!("  data   {data_dir} ({} adapter)", node.adapter());
    eprintln!("  curl   curl {token}-d '{{\"title\": \"Hello\"}}' {}/v1/call/session::create", for_http(&url));
    eprintln!("  SDK    registerWorker('{url}') in Node, register_worker in Python and Rust");
    let admins = if node.needs_credentials() { "" } else { " (without credentials, any token is an admin)" };
    eprintln!("  agents {}/api/agents/<agent>{admins}", for_http(&url));
}

/// `http` for `ws`, `https` for `wss`.
fn for_http(url: &str) -> String {
    url.strip_prefix("ws").map_or_else(|| url.to_owned(), |rest| format!("http{rest}"))
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// Writes a temporary file and renames it, so that a reader never sees half a number.
fn write_port(file: &Path, port: u16) -> std::io::Result<()> {
    let temporary = file.with_extension("tmp");
    let mut written = std::fs::File::create(&temporary)?;
    writeln!(written, "{port}")?;
    drop(written);
    std::fs::rename(temporary, file)
}

/// Resolves when standard input is closed. Never resolves without `watch`.
async fn parent_gone(watch: bool) {
    if !watch {
        return std::future::pending().await;
    }
    let (closed, closing) = tokio::sync::oneshot::channel();
    // A plain thread: a blocking read of standard input cannot be cancelled and would delay the end of the runtime.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = closed.send(());
    });
    let _ = closing.await;
}
