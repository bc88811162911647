//! Owns: why a measurement cannot be taken.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::access::own_token::OwnTokenError;
use crate::access::tls::TlsError;
use crate::dev::DevError;
use crate::node::StartError;

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("--node {url}: {problem}; give ws://HOST:PORT, wss://HOST:PORT, or the same with http")]
    NodeUrl { url: String, problem: &'static str },
    #[error("--ca: {0}")]
    Tls(TlsError),
    #[error("--token-file: {0}")]
    Token(OwnTokenError),
    #[error("--etcd {address}: {why}; give HOST:PORT")]
    EtcdAddress { address: String, why: String },
    #[error(
        "bench cost stops and kills servers, so it measures only servers that it started: leave out --node and --etcd"
    )]
    ServersNotOurs,
    #[error("cannot create a temporary directory in {}: {why}; choose another with --data-dir", .dir.display())]
    Directory { dir: PathBuf, why: std::io::Error },
    #[error("cannot write {}: {why}; choose another file with --json or --svg", .file.display())]
    Output { file: PathBuf, why: std::io::Error },
    #[error("etcd cannot be started: {0}; install it (Debian: etcd-server), or name a running one with --etcd")]
    EtcdSpawn(std::io::Error),
    #[error("etcd has no leader yet")]
    EtcdNoLeader,
    #[error("{address}: cannot connect: {why}; is a server running there?")]
    Connect { address: String, why: String },
    #[error("{address}: the connection broke: {why}")]
    Broken { address: String, why: String },
    #[error("{address}: no answer within {} s", .limit.as_secs())]
    NoAnswer { address: String, limit: Duration },
    #[error("{call}: refused: {why}")]
    Refused { call: String, why: String },
    #[error("{call}: unexpected answer: {answer}")]
    UnexpectedAnswer { call: &'static str, answer: String },
    #[error("{server} did not serve within {} s: {last}", .limit.as_secs())]
    NotServing { server: String, limit: Duration, last: Box<BenchError> },
    #[error("node {node} did not stop within {} s", .limit.as_secs())]
    NotStopping { node: u64, limit: Duration },
    #[error("a subscriber received {received} of {expected} events")]
    MissedEvents { received: usize, expected: usize },
    #[error("{workload}: no operation succeeded: {first_error}")]
    NothingMeasured { workload: String, first_error: String },
    #[error("{sockets} sockets need more open files than this process may have; raise the limit with ulimit -n")]
    TooFewDescriptors { sockets: usize },
    #[error("cannot start a thread for a client: {0}")]
    Runtime(std::io::Error),
    #[error("a client stopped before the end of the measurement")]
    ClientStopped,
    #[error("a task of the benchmark failed: {0}")]
    Task(#[from] tokio::task::JoinError),
    #[error(transparent)]
    Cluster(#[from] DevError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("{error}\nnode {node} exited: {how}; the end of its log:{log}")]
    NodeExited { error: Box<BenchError>, node: u64, how: ExitStatus, log: String },
}
