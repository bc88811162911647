//! Owns: what a member says about itself besides consensus: its URL for clients, and what its operator should know.
//! Never: where that comes from. The node that runs the member knows it.

use std::sync::Arc;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SelfReport {
    /// The URL of this node for clients; empty if it is not known.
    pub client_url: String,
    /// What the operator should know: ports that are open to everybody.
    pub warnings: Vec<String>,
    pub certificates: Vec<CertificateEnd>,
    /// Resident memory of the process, and the file system of the data directory; 0 if unknown.
    pub memory_bytes: u64,
    pub disk_free_bytes: u64,
    pub disk_size_bytes: u64,
}

/// When a certificate of this node expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateEnd {
    /// `clients` or `peers`.
    pub port: &'static str,
    /// Milliseconds since the epoch.
    pub not_after_ms: i64,
}

/// Asked at every status, because files and settings change.
pub type DescribeNode = Arc<dyn Fn() -> SelfReport + Send + Sync>;
