//! A cluster of real node processes on this machine, for `session-manager dev` and for benchmarks.
//!
//! Owns: where the nodes live (`plan`), their certificates and token (`security`), their processes (`child`), making
//! them one cluster (`form`) and stopping them.
//! Reads: the admin protocol, as an operator's command does. Never: a node's state or files, except the tail of a log.

mod child;
mod form;
mod plan;
mod security;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

pub use child::Child;
pub use form::form;
pub use plan::{Plan, Seat};
pub use security::Security;

use crate::access::certificate_dir::CertificateDirError;
use crate::access::tls::TlsError;
use crate::admin::AdminError;

/// A node closes its store within this time. After it, the node is killed, which loses nothing that was acknowledged.
const STOP_MAX: Duration = Duration::from_secs(15);
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Why a cluster on this machine cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    #[error("--data-dir {}: {why}; choose a directory that this user may write to", .dir.display())]
    Directory { dir: PathBuf, why: std::io::Error },
    #[error("{} is damaged: {why}; restore it, or choose another --data-dir", .file.display())]
    PlanFile { file: PathBuf, why: serde_json::Error },
    #[error(
        "--data-dir {} holds a cluster of {existing} nodes: start all of them with --nodes {existing} and remove nodes \
         with `session-manager cluster remove`, or choose another --data-dir", .dir.display()
    )]
    FewerNodes { dir: PathBuf, existing: u16 },
    #[error(
        "--data-dir {} holds a cluster whose ports start at {existing}: leave out --base-port, or choose another \
         --data-dir", .dir.display()
    )]
    OtherPorts { dir: PathBuf, existing: u16 },
    #[error("--base-port {base}: no ports left for node {node}; choose a lower port")]
    BasePort { base: u16, node: u16 },
    #[error("no port between {start} and {end} is free; choose ports with --base-port")]
    NoFreePort { start: u16, end: u16 },
    #[error("node {node}: cannot {action}: {why}")]
    Spawn { node: u64, action: &'static str, why: std::io::Error },
    #[error("node {node} exited ({how}) before the cluster was complete; the end of its log {}:{tail}", .log.display())]
    Exited { node: u64, how: ExitStatus, log: PathBuf, tail: String },
    #[error(transparent)]
    Certificates(#[from] CertificateDirError),
    #[error(transparent)]
    Tls(TlsError),
    #[error("the system has no randomness for a token")]
    NoRandomness,
    #[error("the nodes cannot form a cluster: {0}")]
    Form(AdminError),
    #[error("the nodes are not a cluster after {} s; see their logs in the data directory", .0.as_secs())]
    Late(Duration),
}

/// Stops every node in order. A node that does not stop in time is killed.
pub async fn stop(mut children: Vec<Child>) {
    for child in &mut children {
        child.request_stop();
    }
    let begun = Instant::now();
    while begun.elapsed() < STOP_MAX {
        if children.iter_mut().all(Child::is_down) {
            return;
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    for child in children.iter_mut().filter_map(|child| (!child.is_down()).then_some(child)) {
        eprintln!("node {} does not stop; killing it", child.seat().node);
        child.kill();
    }
}
