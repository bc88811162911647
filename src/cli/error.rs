//! Owns: why a command fails, the line that says so, and the exit code.

use std::path::PathBuf;

use super::transfer::TransferError;
use super::{EXIT_FAILED, EXIT_REFUSED, EXIT_UNUSABLE};
use crate::access::certificate_dir::CertificateDirError;
use crate::access::own_token::OwnTokenError;
use crate::access::tls::TlsError;
use crate::admin::AdminError;
use crate::bench::BenchError;
use crate::config::ConfigError;
use crate::dev::DevError;
use crate::node::StartError;
use crate::replication::new_cluster::NewClusterError;

#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error("--log-level: {0}")]
    Logging(String),
    #[error("cannot start the threads of this process: {0}")]
    Runtime(std::io::Error),
    #[error("--url {url}: {why}; write ws://HOST:PORT")]
    Url { url: String, why: String },
    #[error("cannot reach {url}: {why}; is a node running there? Name another with --url")]
    Unreachable { url: String, why: String },
    #[error("{url} does not answer as an iii bus: {why}; give the address of a session-manager node with --url")]
    NotABus { url: String, why: String },
    #[error("{url} has no event feed; give the address of a session-manager node with --url")]
    NoFeed { url: String },
    /// The message of the node, which names the argument.
    #[error("{0}")]
    WatchRefused(String),
    #[error("cannot read the request from standard input: {0}")]
    Stdin(std::io::Error),
    #[error("cannot read the request from {path}: {why}; after @ comes the path of a JSON file")]
    RequestFile { path: String, why: std::io::Error },
    #[error("the request is not JSON: {0}; give a JSON object, @FILE, or - for standard input")]
    RequestNotJson(serde_json::Error),
    #[error("the system has no randomness for a token")]
    NoRandomness,
    #[error("--{0}")]
    Scope(String),
    #[error("the certificate cannot be made: {0}")]
    Certificate(String),
    #[error(transparent)]
    Certs(#[from] CertificateDirError),
    #[error(transparent)]
    Tls(TlsError),
    #[error("the token: {0}")]
    Token(#[from] OwnTokenError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("{0}; check --url")]
    Engine(String),
    #[error("--port-file {}: cannot write the port: {why}", .file.display())]
    PortFile { file: PathBuf, why: std::io::Error },
    #[error("the node stopped because of a fault and must be restarted: {0}")]
    NodeFailed(String),
    /// The cluster could not be started.
    #[error(transparent)]
    Dev(#[from] DevError),
    /// The cluster was started and could not be kept running.
    #[error(transparent)]
    Supervise(DevError),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error("{error}; `session-manager cluster remove {node} --force` overrides a refusal for lack of a quorum")]
    RemoveRefused { error: AdminError, node: u64 },
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error(transparent)]
    NewCluster(#[from] NewClusterError),
    #[error("{0}")]
    BackupRefused(String),
    /// The arguments of a backup, a restore or a recovery.
    #[error("{0}")]
    Operation(String),
    #[error("interrupted")]
    Interrupted,
}

impl CliError {
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Transfer(error) if !error.is_usage() => EXIT_REFUSED,
            CliError::NodeFailed(_) | CliError::Supervise(_) => EXIT_FAILED,
            CliError::NewCluster(_) | CliError::BackupRefused(_) => EXIT_REFUSED,
            CliError::Admin(error) | CliError::RemoveRefused { error, .. } => match error {
                AdminError::Unreachable { .. } | AdminError::NotAPeer { .. } => EXIT_UNUSABLE,
                AdminError::UnknownMember(_)
                | AdminError::Refused(_)
                | AdminError::Unavailable(_)
                | AdminError::Late { .. } => EXIT_REFUSED,
            },
            CliError::Logging(_)
            | CliError::Runtime(_)
            | CliError::Url { .. }
            | CliError::Unreachable { .. }
            | CliError::NotABus { .. }
            | CliError::NoFeed { .. }
            | CliError::WatchRefused(_)
            | CliError::Stdin(_)
            | CliError::RequestFile { .. }
            | CliError::RequestNotJson(_)
            | CliError::NoRandomness
            | CliError::Scope(_)
            | CliError::Certificate(_)
            | CliError::Certs(_)
            | CliError::Tls(_)
            | CliError::Token(_)
            | CliError::Config(_)
            | CliError::Start(_)
            | CliError::Engine(_)
            | CliError::PortFile { .. }
            | CliError::Dev(_)
            | CliError::Bench(_)
            | CliError::Transfer(_)
            | CliError::Operation(_)
            | CliError::Interrupted => EXIT_UNUSABLE,
        }
    }
}
