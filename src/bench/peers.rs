//! Owns: the systems to compare with besides etcd, and what they share: which programs are installed, and closed loops
//! that write the same messages as our clients.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tempfile::TempDir;
use tokio::time::timeout;

use super::error::BenchError;
use super::text::Messages;
use super::usage::Processes;
use super::window::{ANSWER_MAX, Clients, Sample, Tally, Window, measure};

/// Starting a server and forming its cluster takes seconds.
pub const START_MAX: Duration = Duration::from_secs(60);
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// NATS never answers a request that comes before its servers have found each other.
const ATTEMPT_MAX: Duration = Duration::from_secs(5);

/// A system that `--with` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PeerName {
    /// etcd: a write is on the disks of a quorum
    Etcd,
    /// PostgreSQL with a synchronous standby: a write is on both disks
    Postgres,
    /// NATS JetStream with three copies: a write is in the page cache of a quorum
    Nats,
}

impl PeerName {
    pub fn package(self) -> &'static str {
        match self {
            PeerName::Etcd => "etcd-server",
            PeerName::Postgres => "postgresql",
            PeerName::Nats => "nats-server",
        }
    }

    /// The program that must be installed.
    pub fn program(self) -> Option<PathBuf> {
        match self {
            PeerName::Etcd => in_path("etcd"),
            // Where it really is, its other programs are too. A link may stand alone.
            PeerName::Postgres => {
                in_path("postgres").and_then(|link| link.canonicalize().ok()).or_else(debian_postgres)
            }
            // Debian installs it where only root looks.
            PeerName::Nats => in_path("nats-server").or_else(|| existing("/usr/sbin/nats-server".into())),
        }
    }
}

fn existing(path: PathBuf) -> Option<PathBuf> {
    path.is_file().then_some(path)
}

fn in_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).find_map(|dir| existing(dir.join(program)))
}

/// Debian keeps the servers of all versions beside each other.
fn debian_postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|dir| {
            let version = dir.file_name().to_str()?.parse().ok()?;
            Some((version, existing(dir.path().join("bin/postgres"))?))
        })
        .collect();
    versions.sort();
    versions.pop().map(|(_, program)| program)
}

/// A peer that was started for this measurement.
pub struct Peer {
    pub description: String,
    /// `host:port` of each server that takes writes.
    pub addresses: Vec<String>,
    pub _servers: Servers,
    pub processes: Processes,
    pub _data: TempDir,
}

/// Server processes. Their data is temporary, so they are killed.
#[derive(Default)]
pub struct Servers(pub Vec<Child>);

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &mut self.0 {
            // Both fail only if the process has ended already.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

pub fn data_dir(name: &str, parent: &Path) -> Result<TempDir, BenchError> {
    let data = tempfile::Builder::new().prefix(&format!("session-manager-bench-{name}-")).tempdir_in(parent);
    data.map_err(|why| BenchError::Directory { dir: parent.to_owned(), why })
}

pub fn failed(what: &str, why: impl std::fmt::Display) -> BenchError {
    BenchError::Refused { call: what.to_owned(), why: why.to_string() }
}

/// Starts a server that runs until the measurement ends. Its output goes to a file beside its data.
pub fn spawn(command: &mut Command, log: &Path) -> Result<Child, BenchError> {
    let what = command.get_program().to_string_lossy().into_owned();
    let out = std::fs::File::create(log).map_err(|why| failed(&what, why))?;
    let err = out.try_clone().map_err(|why| failed(&what, why))?;
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    command.spawn().map_err(|why| failed(&what, why))
}

/// Repeats an attempt until it succeeds or the servers are late.
pub async fn until_serving<T, F>(server: &str, attempt: impl Fn() -> F) -> Result<T, BenchError>
where
    F: Future<Output = Result<T, BenchError>>,
{
    let begun = Instant::now();
    loop {
        let answered = timeout(ATTEMPT_MAX, attempt()).await;
        match answered.unwrap_or_else(|_| Err(failed(server, "it does not answer"))) {
            Ok(ready) => return Ok(ready),
            Err(last) if begun.elapsed() > START_MAX => {
                let (server, last) = (server.to_owned(), Box::new(last));
                return Err(BenchError::NotServing { server, limit: START_MAX, last });
            }
            Err(_) => tokio::time::sleep(RETRY_EVERY).await,
        }
    }
}

/// A connection of one client to a peer.
pub trait PeerClient: Send + Sized + 'static {
    fn connect(address: &str) -> impl Future<Output = Result<Self, BenchError>> + Send;
    /// Writes one message and returns when it is acknowledged.
    fn write(
        &mut self,
        session: &str,
        number: usize,
        message: &str,
    ) -> impl Future<Output = Result<(), BenchError>> + Send;
}

/// One round of closed loops. Each client has its own connection, spread over the servers.
pub async fn run<C: PeerClient>(
    peer: &Peer,
    workload: &str,
    seconds: f64,
    sessions: &[String],
    messages: &Arc<Messages>,
) -> Result<Sample, BenchError> {
    let window = Arc::new(Window::default());
    let mut tasks = Clients::new();
    for (client, session) in sessions.iter().enumerate() {
        let connection = C::connect(&peer.addresses[client % peer.addresses.len()]).await?;
        tasks.spawn(closed_loop(connection, session.clone(), messages.clone(), window.clone()));
    }
    measure(workload, window, tasks, &peer.processes, seconds).await
}

async fn closed_loop<C: PeerClient>(
    mut connection: C,
    session: String,
    messages: Arc<Messages>,
    window: Arc<Window>,
) -> Result<Tally, BenchError> {
    let mut tally = Tally::default();
    let mut number = 0;
    while !window.is_closed() {
        number += 1;
        let sent = Instant::now();
        match timeout(ANSWER_MAX, connection.write(&session, number, messages.nth(number))).await {
            Ok(Ok(())) => tally.done(&window, sent.elapsed()),
            // A broken connection does not answer the next write either.
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(BenchError::NoAnswer { address: "a peer".to_owned(), limit: ANSWER_MAX }),
        }
    }
    Ok(tally)
}
