//! Owns: the nodes that are measured: running ones, or three processes of this program that live as long as the
//! measurement. Never: a way to them that other clients do not have.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::HOST;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::footprint::{Processes, bytes_below, disk_bytes};
use super::progress::progress;
use crate::cli::dev::child::Child;
use crate::cli::dev::form::form;
use crate::cli::dev::plan::Plan;
use crate::cli::dev::stop;

const HEALTH_MAX: Duration = Duration::from_secs(5);
const END_MAX: Duration = Duration::from_secs(30);
const HEALTH_BYTES_MAX: usize = 64 << 10;

pub struct Nodes {
    /// `host:port`, the leader's first.
    pub addresses: Vec<String>,
    pub processes: Processes,
    data_dirs: Vec<PathBuf>,
    children: Vec<Child>,
    _data: Option<TempDir>,
}

impl Nodes {
    /// Running nodes, by their URLs.
    pub async fn running(urls: &[String]) -> Result<Nodes, String> {
        let addresses = urls.iter().map(|url| address_of(url)).collect::<Result<Vec<_>, _>>()?;
        let addresses = leader_first(addresses).await?;
        Ok(Nodes {
            addresses,
            processes: Processes::default(),
            data_dirs: Vec::new(),
            children: Vec::new(),
            _data: None,
        })
    }

    /// A cluster of this program's own processes, with its data in a temporary directory below `parent`.
    pub async fn start(count: u16, parent: &Path) -> Result<Nodes, String> {
        progress(&format!("starting {count} nodes"));
        let data = tempfile::Builder::new().prefix("session-manager-bench-").tempdir_in(parent);
        let data = data.map_err(|error| format!("a temporary directory in {}: {error}", parent.display()))?;
        let plan = Plan::prepare(data.path(), Some(count), None)?;
        let mut children = plan.seats.iter().map(Child::start).collect::<Result<Vec<_>, _>>()?;
        form(&plan, &mut children).await?;
        let processes = Processes::new(children.iter().map(Child::pid).collect());
        let addresses = leader_first(plan.seats.iter().map(|seat| seat.client.to_string()).collect()).await?;
        let data_dirs = plan.seats.iter().map(|seat| seat.data_dir.clone()).collect();
        Ok(Nodes { addresses, processes, data_dirs, children, _data: Some(data) })
    }

    /// The bytes in the log of one node, averaged; `None` where the data is not ours to look at.
    pub fn log_bytes(&self) -> Option<u64> {
        let bytes: Vec<u64> = self.data_dirs.iter().filter_map(|dir| bytes_below(dir, ".log").ok()).collect();
        (!bytes.is_empty()).then(|| bytes.iter().sum::<u64>() / bytes.len() as u64)
    }

    /// Says which of our own nodes ended under a failed measurement, and its last words.
    pub fn explain(&mut self, why: String) -> String {
        let ended = self.children.iter_mut().find_map(|child| child.has_ended().map(|how| (how, &*child)));
        match ended {
            Some((how, child)) => {
                format!("{why}\nnode {} ended: {how}; its log:{}", child.seat().node, child.last_words())
            }
            None => why,
        }
    }

    /// Whether they were started here, and may be ended.
    pub fn are_ours(&self) -> bool {
        !self.children.is_empty()
    }

    /// What the largest node takes on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.data_dirs.iter().map(|dir| disk_bytes(dir)).max().unwrap_or(0)
    }

    /// Ends the last of our own nodes, in order or by force, and answers where it was reached.
    pub async fn end_last(&mut self, by_force: bool) -> Result<String, String> {
        let child = self.children.last_mut().ok_or_else(|| "no node was started here".to_owned())?;
        if by_force {
            child.kill();
        }
        child.ask_to_end();
        let begun = Instant::now();
        while !child.is_down() {
            if begun.elapsed() > END_MAX {
                return Err(format!("node {} does not end", child.seat().node));
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(child.seat().client.to_string())
    }

    pub fn start_last(&mut self) -> Result<(), String> {
        let Some(child) = self.children.last_mut() else { return Ok(()) };
        child.start_again()
    }

    pub async fn stop(self) {
        stop(self.children).await;
    }
}

/// `host:port` of `ws://host:port` or `http://host:port`.
pub fn address_of(url: &str) -> Result<String, String> {
    let refused = |why: &str| format!("--node {url}: {why}; give ws://HOST:PORT or http://HOST:PORT");
    let rest = url.strip_prefix("ws://").or_else(|| url.strip_prefix("http://"));
    let rest = rest.ok_or_else(|| refused("not a URL of a node"))?.trim_end_matches('/');
    let (host, port) = rest.rsplit_once(':').ok_or_else(|| refused("no port"))?;
    if host.is_empty() || rest.contains('/') {
        return Err(refused("not a host and a port"));
    }
    port.parse::<u16>().map_err(|_| refused("its port is not a number below 65536"))?;
    Ok(rest.to_owned())
}

/// A single client talks to the leader, as it does with the peer: the order is the same for both.
async fn leader_first(mut addresses: Vec<String>) -> Result<Vec<String>, String> {
    for at in 0..addresses.len() {
        let health = health(&addresses[at]).await?;
        if health["role"] == "leader" {
            addresses.rotate_left(at);
            break;
        }
    }
    Ok(addresses)
}

async fn health(node: &str) -> Result<Value, String> {
    let failed = |why: String| format!("{node}: {why}; is a node running there?");
    let ask = async {
        let stream = TcpStream::connect(node).await.map_err(|error| failed(error.to_string()))?;
        let (mut connection, driver) =
            handshake(TokioIo::new(stream)).await.map_err(|error| failed(error.to_string()))?;
        tokio::spawn(driver);
        let request = Request::get("/health").header(HOST, node).body(Body::empty());
        let request = request.map_err(|error| failed(error.to_string()))?;
        let response = connection.send_request(request).await.map_err(|error| failed(error.to_string()))?;
        let body = to_bytes(Body::new(response.into_body()), HEALTH_BYTES_MAX).await;
        let body = body.map_err(|error| failed(error.to_string()))?;
        serde_json::from_slice(&body).map_err(|_| failed("GET /health does not answer JSON".to_owned()))
    };
    timeout(HEALTH_MAX, ask).await.unwrap_or_else(|_| Err(failed("no answer in time".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_by_a_url_with_a_port() {
        assert_eq!(address_of("ws://127.0.0.1:5").unwrap(), "127.0.0.1:5");
        assert_eq!(address_of("http://[::1]:65535/").unwrap(), "[::1]:65535");
        for wrong in ["", "127.0.0.1:5", "https://a:1", "ws://a", "ws://:5", "ws://a:70000", "ws://a:5/path"] {
            let why = address_of(wrong).unwrap_err();
            assert!(why.starts_with("--node"), "{why}");
        }
    }
}
