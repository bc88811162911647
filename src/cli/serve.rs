//! Owns: `session-manager serve`: settings from arguments, the start-up lines, signals and the exit code.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, exit};
use std::sync::Arc;

use clap::Args;
use futures::FutureExt;

use super::source::Source;
use super::{EXIT_FAILED, EXIT_UNUSABLE, fail};
use crate::config::{AdapterConfig, Config, ConfigError, DataDir};
use crate::node::{Ground, Node, NodeSettings, Reread};
use crate::observe::{DEFAULT_LEVEL, LogFormat, end_process_on_panic, start_logging};
use crate::surface::worker::control::Control;
use crate::surface::worker::{EngineSettings, Sharing};

const EXAMPLES: &str = "\
Examples:
  session-manager serve
  session-manager serve --listen 127.0.0.1:50000 --data-dir /var/lib/session-manager
  session-manager serve --config session-manager.yaml --log-format json
  session-manager serve --adapter fs
  session-manager serve --listen 127.0.0.1:0 --port-file port

SIGTERM and Ctrl-C finish the calls under way, close the store and exit 0; a second signal exits at once.
Exit code 2: bad configuration, a busy port, or a data directory that is in use or not one of ours.";

/// Run a node (the default)
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Where to listen, for SDKs and HTTP alike; port 0 picks a free one [default: 127.0.0.1:49134]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,

    /// Where the data is [default: ./data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Settings, in YAML; the other arguments override them
    #[arg(long, value_name = "FILE", env = "III_CONFIG")]
    config: Option<PathBuf>,

    /// What keeps the data [default: raft]
    #[arg(long, value_enum)]
    adapter: Option<AdapterName>,

    /// Which member of its cluster this node is [default: 1]
    #[arg(long, value_name = "ID")]
    node_id: Option<u64>,

    /// Where the other nodes reach this one; port 0 picks a free one [default: nowhere, the node stays alone]
    #[arg(long, value_name = "ADDRESS")]
    peer_listen: Option<SocketAddr>,

    /// Wait to be invited by a cluster, if the data directory is empty, instead of founding one
    #[arg(long)]
    join: bool,

    /// Attach to the iii engine at this address as a worker, beside the node's own endpoint
    #[arg(long, value_name = "URL", env = "III_URL")]
    url: Option<String>,

    /// Where on the engine the functions are registered [default: the engine's default]
    #[arg(long, value_name = "NAME", env = "III_NAMESPACE")]
    namespace: Option<String>,

    /// The name of this worker on the engine, no other may have it [default: session-manager with the node's id and a
    /// random end]
    #[arg(long, value_name = "NAME", env = "III_WORKER_NAME")]
    worker_name: Option<String>,

    /// Whether other replicas of the cluster are on the same engine: then only the leader serves there
    #[arg(long, value_enum, default_value_t)]
    engine: EngineUse,

    /// Write the port to this file once the node listens
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,

    /// Stop when standard input ends, as it does when the process that holds its other end is gone
    #[arg(long)]
    exit_with_parent: bool,

    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,

    /// What to log, as in `debug` or `info,session_manager::surface=debug`
    #[arg(long, env = "RUST_LOG", default_value = DEFAULT_LEVEL)]
    log_level: String,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum EngineUse {
    /// The leader serves on the engine, the other replicas stand by
    #[default]
    Shared,
    /// Each replica has an engine of its own and serves on it, whether it leads or not
    Own,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum AdapterName {
    /// A replicated log and its state; a single node is a cluster of one
    Raft,
    /// One JSONL file per session, one process
    Fs,
}

/// What the arguments say over the configuration file, now and at every reload.
#[derive(Debug)]
struct Overrides {
    listen: Option<SocketAddr>,
    data_dir: Option<PathBuf>,
    adapter: Option<AdapterName>,
    node_id: Option<u64>,
    peer_listen: Option<SocketAddr>,
    join: bool,
    /// The port an engine has by default is the one a node listens on by default.
    on_an_engine: bool,
}

impl Overrides {
    fn over(&self, mut config: Config) -> Result<Config, ConfigError> {
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
                return Err(ConfigError("--data-dir: a bridge keeps no data, leave it out".to_owned()));
            }
            config.adapter.set_data_dir(data_dir.clone());
        }
        config.node_id = self.node_id.unwrap_or(config.node_id);
        config.peer_listen = self.peer_listen.or(config.peer_listen);
        config.join |= self.join;
        config.validate()?;
        Ok(config)
    }
}

pub fn run(args: ServeArgs) -> ExitCode {
    if let Err(error) = start_logging(args.log_format, &args.log_level) {
        return fail(EXIT_UNUSABLE, error);
    }
    end_process_on_panic();
    use_small_pages();
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(worker_threads()).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return fail(EXIT_UNUSABLE, error),
        };
    runtime.block_on(serve(args))
}

/// Buffers of a megabyte come and go with every flush; the kernel clearing two megabytes for each of them took a sixth of
/// all processor time under load. It concerns this process and its children only.
fn use_small_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages stay as the system has them");
    }
}

/// The log and the state are written by threads of their own: one processor is left to them. On two processors, three
/// nodes with one worker each took a seventh less time for a single write than with two, and cost less under load.
fn worker_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get().saturating_sub(1).max(1))
}

async fn serve(mut args: ServeArgs) -> ExitCode {
    let overrides = Overrides {
        listen: args.listen,
        data_dir: args.data_dir.take(),
        adapter: args.adapter,
        node_id: args.node_id,
        peer_listen: args.peer_listen,
        join: args.join,
        on_an_engine: args.url.is_some(),
    };
    let mut source = Source::new(args.config.take(), Box::new(move |config| overrides.over(config)));
    let engine = match attach(&args, &mut source).await {
        Ok(engine) => engine,
        Err(error) => return fail(EXIT_UNUSABLE, error),
    };
    let source = Arc::new(source);
    let config = match source.read().await {
        Ok(config) => config,
        Err(error) => return fail(EXIT_UNUSABLE, error),
    };
    let again = source.clone();
    let reread: Reread = Arc::new(move || {
        let again = again.clone();
        async move { again.read().await }.boxed()
    });
    let started = Node::start(NodeSettings { config, reread: Some(reread), ground: Ground::default(), engine }).await;
    let node = match started {
        Ok(node) => node,
        Err(error) => return fail(EXIT_UNUSABLE, error),
    };
    let address = node.local_addr();
    let data_dir = node.data_dir().map_or_else(|| "at the main".to_owned(), |data_dir| absolute(&data_dir));
    tracing::info!(%address, data_dir, adapter = node.adapter(), version = env!("CARGO_PKG_VERSION"), "listening");
    if args.log_format == LogFormat::Text {
        introduce(address, &data_dir, node.adapter());
    }
    if let Some(peers) = node.peer_addr() {
        tracing::info!(address = %peers, "peers reach this node");
    }
    if let Some(file) = &args.port_file
        && let Err(error) = write_port(file, address.port())
    {
        node.shutdown().await;
        return fail(EXIT_UNUSABLE, format!("writing the port to {}: {error}", file.display()));
    }
    let failure = tokio::select! {
        () = wait_for_signal() => None,
        () = parent_gone(args.exit_with_parent) => None,
        why = node.failed() => Some(why),
        () = source.keep_up(&node) => None,
    };
    if let Some(why) = failure {
        return fail(EXIT_FAILED, format!("the node cannot go on, restart it: {why}"));
    }
    tracing::info!("stopping: finishing the calls under way; a second signal exits at once");
    tokio::spawn(async {
        wait_for_signal().await;
        tracing::warn!("a second signal: exiting at once");
        exit(1);
    });
    node.shutdown().await;
    tracing::info!("stopped");
    ExitCode::SUCCESS
}

/// Connects to the engine, if there is to be one, and finds out whether it keeps the settings. Those of the file are
/// read first: what is wrong with them is wrong without an engine too.
async fn attach(args: &ServeArgs, source: &mut Source) -> Result<Option<Arc<Control>>, String> {
    let config = source.read().await.map_err(|error| error.to_string())?;
    let Some(settings) = args.engine_settings(&config) else { return Ok(None) };
    let control = Control::connect(settings).await?;
    source.store_at(&control).await.map_err(|error| error.to_string())?;
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

/// What a newcomer needs to know, in the order they need it.
fn introduce(address: SocketAddr, data_dir: &str, adapter: &str) {
    eprintln!("session-manager {} listens on {address}", env!("CARGO_PKG_VERSION"));
    eprintln!("  data   {data_dir} ({adapter} adapter)");
    eprintln!("  curl   curl -d '{{\"title\": \"Hello\"}}' http://{address}/v1/call/session::create");
    eprintln!("  SDK    registerWorker('ws://{address}') in Node, register_worker in Python and Rust");
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// Whole or not at all: whoever waits for the file never reads half a number.
fn write_port(file: &Path, port: u16) -> std::io::Result<()> {
    let beside = file.with_extension("tmp");
    let mut written = std::fs::File::create(&beside)?;
    writeln!(written, "{port}")?;
    drop(written);
    std::fs::rename(beside, file)
}

/// Resolves when nothing can come from standard input any more; never, when nobody asked.
async fn parent_gone(watch: bool) {
    if !watch {
        return std::future::pending().await;
    }
    let (gone, told) = tokio::sync::oneshot::channel();
    // A thread of its own: a read of standard input cannot be cancelled, and must not hold up the end of the process.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = gone.send(());
    });
    let _ = told.await;
}

#[cfg(unix)]
pub async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(error) => {
            tracing::warn!(%error, "SIGTERM cannot be caught; Ctrl-C still stops the node");
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}

#[cfg(not(unix))]
pub async fn wait_for_signal() {
    let _ = tokio::signal::ctrl_c().await;
}
