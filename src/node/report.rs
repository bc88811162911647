//! Owns: what this node says about itself to operators, members, clients and bridges: its URL, its open ports, and when
//! its certificates expire.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use crate::access::tls;
use crate::config::Config;
use crate::replication::self_report::{CertificateEnd, DescribeNode, SelfReport};
use crate::storage::files;

/// The current facts. A reload may change them.
pub struct Report {
    facts: RwLock<Facts>,
    resident_bytes: fn() -> Option<u64>,
}

#[derive(Default)]
struct Facts {
    client_url: String,
    warnings: Vec<String>,
    certificates: Vec<(&'static str, PathBuf)>,
    data_dir: Option<PathBuf>,
}

impl Report {
    pub fn new(resident_bytes: fn() -> Option<u64>) -> Report {
        Report { facts: RwLock::default(), resident_bytes }
    }

    /// Reports on these settings from now on. `door` is the address that the port for clients got.
    pub fn change(&self, config: &Config, door: SocketAddr) {
        let certificates = [
            ("clients", config.client_tls().map(|files| files.certificate)),
            ("peers", config.peer_tls().map(|files| files.own.certificate)),
        ];
        let facts = Facts {
            client_url: client_url(config, door),
            warnings: warnings(config),
            certificates: certificates.into_iter().filter_map(|(port, path)| Some((port, path?))).collect(),
            data_dir: config.adapter.data_dir().map(ToOwned::to_owned),
        };
        *self.facts.write().unwrap_or_else(PoisonError::into_inner) = facts;
    }

    pub fn client_url(&self) -> String {
        self.facts.read().unwrap_or_else(PoisonError::into_inner).client_url.clone()
    }

    /// When the certificates expire. They are read anew: a file may have been replaced.
    pub fn certificates(&self) -> Vec<CertificateEnd> {
        self.facts.read().unwrap_or_else(PoisonError::into_inner).certificate_ends()
    }

    /// The resident memory of this node.
    pub fn resident_bytes(&self) -> Option<u64> {
        (self.resident_bytes)()
    }

    /// The report as the member of a cluster gives it.
    pub fn describe(self: &Arc<Report>) -> DescribeNode {
        let report = self.clone();
        Arc::new(move || {
            let facts = report.facts.read().unwrap_or_else(PoisonError::into_inner);
            let disk = facts.data_dir.as_deref().and_then(files::disk_space).unwrap_or_default();
            SelfReport {
                client_url: facts.client_url.clone(),
                warnings: facts.warnings.clone(),
                certificates: facts.certificate_ends(),
                memory_bytes: report.resident_bytes().unwrap_or(0),
                disk_free_bytes: disk.0,
                disk_size_bytes: disk.1,
            }
        })
    }
}

impl Facts {
    fn certificate_ends(&self) -> Vec<CertificateEnd> {
        let end = |(port, path): &(&'static str, PathBuf)| {
            Some(CertificateEnd { port, not_after_ms: tls::show(path).ok()?.not_after_ms })
        };
        self.certificates.iter().filter_map(end).collect()
    }
}

/// What is configured, or else the address that the port listens on. Empty if that is every address of the machine.
pub fn client_url(config: &Config, door: SocketAddr) -> String {
    match &config.advertise {
        Some(url) => url.clone(),
        None if door.ip().is_unspecified() => String::new(),
        None => format!("{}://{door}", if config.client_tls().is_some() { "wss" } else { "ws" }),
    }
}

/// An open port is the operator's wish, and still worth a line.
pub fn warnings(config: &Config) -> Vec<String> {
    let beyond = !config.listen.ip().is_loopback() || config.peer_listen.is_some_and(|peer| !peer.ip().is_loopback());
    let given = [
        (config.insecure_no_auth, "insecure_no_auth: everybody who reaches the ports of this node may do everything"),
        (config.insecure_no_tls, "insecure_no_tls: everybody on the way reads tokens and messages"),
    ];
    given.into_iter().filter(|(set, _)| *set && beyond).map(|(_, text)| text.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(listen: &str, advertise: Option<&str>) -> String {
        let config = Config { advertise: advertise.map(str::to_owned), ..Config::default() };
        client_url(&config, listen.parse().unwrap())
    }

    #[test]
    fn clients_are_told_an_address_that_they_can_reach() {
        assert_eq!(url("127.0.0.1:5", None), "ws://127.0.0.1:5");
        assert_eq!(url("0.0.0.0:5", None), "");
        assert_eq!(url("0.0.0.0:5", Some("wss://a:5")), "wss://a:5");
    }

    #[test]
    fn an_open_port_is_reported_only_if_others_can_reach_it() {
        let config = |listen: &str| Config {
            listen: listen.parse().unwrap(),
            insecure_no_auth: true,
            insecure_no_tls: true,
            ..Config::default()
        };
        assert_eq!(warnings(&config("127.0.0.1:1")), [""; 0]);
        assert_eq!(warnings(&config("10.0.0.1:1")).len(), 2);
    }
}
