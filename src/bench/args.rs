//! Owns: the arguments that the measurements under load share, and their bounds.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::peers::PeerName;
use super::target::Keys;

/// A node accepts more, but each client also needs a socket in this process.
const CLIENTS_MAX: usize = 700;
/// Ten times as many are connected in the overload, and a node accepts 4,096 connections.
const OVERLOAD_CLIENTS_MAX: usize = 1200;
/// They are spread over all nodes.
const SUBSCRIBERS_MAX: usize = 2000;

#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Address of a running node, ws://HOST:PORT; repeat the flag for each node of the cluster [default: start new
    /// nodes]
    #[arg(long = "node", value_name = "URL", conflicts_with_all = ["nodes", "data_dir"], help_heading = "System")]
    pub node: Vec<String>,

    /// File with the token for --node [default: the variable SESSION_MANAGER_TOKEN, or III_TOKEN]
    #[arg(long, value_name = "FILE", requires = "node", help_heading = "System")]
    pub token_file: Option<PathBuf>,

    /// Authority of the certificates of --node, in PEM, for wss:// [default: the system's, or SSL_CERT_FILE]
    #[arg(long, value_name = "FILE", requires = "node", help_heading = "System")]
    pub ca: Option<PathBuf>,

    /// Number of nodes to start
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9), help_heading = "System")]
    pub nodes: u16,

    /// Directory for the data of started servers; it decides which disk is measured [default: temporary files]
    #[arg(long, value_name = "DIR", help_heading = "System")]
    pub data_dir: Option<PathBuf>,

    /// Seconds that each round is measured
    #[arg(long, default_value_t = 5.0, value_parser = seconds, help_heading = "Load")]
    pub seconds: f64,

    /// Rounds of each workload on each system; the systems take turns
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=100), help_heading = "Load")]
    pub rounds: u16,

    /// Protocol of the clients
    #[arg(long, value_enum, default_value_t = DoorName::Bus, help_heading = "Load")]
    pub door: DoorName,

    /// Number of connections that the clients share [default: one per client]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=700), help_heading = "Load")]
    pub connections: Option<u16>,

    /// Also measure a running etcd: the client addresses of its members, separated by commas
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        conflicts_with = "with_etcd",
        help_heading = "Comparison"
    )]
    pub etcd: Vec<String>,

    /// Also measure etcd, started here with as many members as nodes; `etcd` must be in the PATH
    #[arg(long, help_heading = "Comparison")]
    pub with_etcd: bool,

    /// Also measure these systems, started here; one that is not installed is reported as missing. PostgreSQL and NATS
    /// take part in `append`
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',', value_enum, help_heading = "Comparison")]
    pub with: Vec<PeerName>,

    /// Also measure nodes of this program with TLS at all ports and a token, started here. Takes part in `append` and
    /// `messages`
    #[arg(long, conflicts_with = "node", help_heading = "Comparison")]
    pub with_tls: bool,

    /// Print JSON instead of a table, or write JSON to FILE in addition to the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Output")]
    pub json: Option<PathBuf>,

    /// Write a chart of the result to FILE
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub svg: Option<PathBuf>,
}

impl LoadArgs {
    /// What clients of running nodes present.
    pub fn keys(&self) -> Keys<'_> {
        Keys { token_file: self.token_file.as_deref(), ca: self.ca.as_deref() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DoorName {
    /// The iii bus over WebSocket, as SDKs use it
    Bus,
    /// One HTTP request per call
    Http,
}

/// A number argument that is not a number or out of its bounds.
#[derive(Debug, thiserror::Error)]
#[error("give a number of {unit} from {min} to {max}")]
pub struct BadNumber {
    unit: &'static str,
    min: f64,
    max: f64,
}

fn seconds(text: &str) -> Result<f64, BadNumber> {
    let (min, max) = (0.1, 3600.0);
    let seconds = text.parse().ok().filter(|seconds| (min..=max).contains(seconds));
    seconds.ok_or(BadNumber { unit: "seconds", min, max })
}

/// One number of clients out of a list.
pub fn clients(text: &str) -> Result<usize, BadNumber> {
    count(text, CLIENTS_MAX, "clients")
}

/// The number of clients that are multiplied.
pub fn overload_clients(text: &str) -> Result<usize, BadNumber> {
    count(text, OVERLOAD_CLIENTS_MAX, "clients")
}

/// One number of subscribers out of a list.
pub fn subscribers(text: &str) -> Result<usize, BadNumber> {
    count(text, SUBSCRIBERS_MAX, "subscribers")
}

fn count(text: &str, max: usize, unit: &'static str) -> Result<usize, BadNumber> {
    let count = text.parse().ok().filter(|count| (1..=max).contains(count));
    count.ok_or(BadNumber { unit, min: 1.0, max: max as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert_eq!(seconds("2.5").unwrap(), 2.5);
        for wrong in ["0", "-1", "NaN", "inf", "4000", "x"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(clients("128").unwrap(), 128);
        for wrong in ["0", "701", "-1", "many"] {
            assert!(clients(wrong).is_err(), "{wrong}");
        }
    }
}
