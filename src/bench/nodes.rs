//! Owns: the nodes that are measured: running ones, or processes of this program that are started for the measurement.
//! Never: access that other clients do not have.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::HOST;
use bytes::Bytes;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::error::BenchError;
use super::progress::progress;
use super::target::{Keys, Target};
use super::usage::{Processes, bytes_below, disk_bytes};
use crate::dev::{Child, Plan, Security, form, stop};

const GET_MAX: Duration = Duration::from_secs(5);
const STOP_MAX: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: usize = 1 << 20;

pub struct Nodes {
    /// The leader comes first.
    pub targets: Vec<Target>,
    pub processes: Processes,
    /// The peer ports of nodes that were started here.
    pub peers: Vec<SocketAddr>,
    data_dirs: Vec<PathBuf>,
    children: Vec<Child>,
    _data: Option<TempDir>,
}

/// How clients and nodes talk to the nodes that are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Plain,
    /// TLS at both ports, and a token.
    Tls,
}

impl Nodes {
    /// Running nodes, by their URLs.
    pub async fn running(urls: &[String], keys: Keys<'_>) -> Result<Nodes, BenchError> {
        let targets = urls.iter().map(|url| Target::of(url, &keys)).collect::<Result<Vec<_>, _>>()?;
        let targets = leader_first(targets).await?;
        let (peers, data_dirs, children) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Nodes { targets, processes: Processes::default(), peers, data_dirs, children, _data: None })
    }

    /// A new cluster of this program, with its data in a temporary directory below `parent`, and with these settings beside
    /// the defaults.
    pub async fn start(count: u16, parent: &Path, wire: Wire, settings: &str) -> Result<Nodes, BenchError> {
        progress(&format!("starting {count} nodes"));
        let data = tempfile::Builder::new().prefix("session-manager-bench-").tempdir_in(parent);
        let data = data.map_err(|why| BenchError::Directory { dir: parent.to_owned(), why })?;
        let mut plan = Plan::prepare(data.path(), Some(count), None)?;
        let security = match wire {
            Wire::Plain => None,
            Wire::Tls => Some(Security::prepare(data.path(), &mut plan)?),
        };
        if !settings.is_empty() {
            let file = data.path().join("settings.yaml");
            std::fs::write(&file, settings).map_err(|why| BenchError::Output { file: file.clone(), why })?;
            for seat in &mut plan.seats {
                seat.arguments.extend(["--config".to_owned(), file.display().to_string()]);
            }
        }
        let mut children = plan.seats.iter().map(Child::start).collect::<Result<Vec<_>, _>>()?;
        form(&plan, security.as_ref().map(|security| &security.operator), &mut children).await?;
        let processes = Processes::new(children.iter().map(Child::pid).collect());
        let target = |client| match &security {
            None => Ok(Target::plain(client)),
            Some(security) => {
                let (token_file, ca) = (security.token_file(), security.authority());
                Target::of(&format!("wss://{client}"), &Keys { token_file: Some(&token_file), ca: Some(&ca) })
            }
        };
        let targets = plan.seats.iter().map(|seat| target(seat.client)).collect::<Result<Vec<_>, _>>()?;
        let targets = leader_first(targets).await?;
        let data_dirs = plan.seats.iter().map(|seat| seat.data_dir.clone()).collect();
        let peers = plan.seats.iter().map(|seat| seat.peer).collect();
        Ok(Nodes { targets, processes, peers, data_dirs, children, _data: Some(data) })
    }

    /// The average bytes in the log of a node. `None` for running nodes, whose files are not accessible.
    pub fn log_bytes(&self) -> Option<u64> {
        let bytes: Vec<u64> = self.data_dirs.iter().filter_map(|dir| bytes_below(dir, ".log").ok()).collect();
        (!bytes.is_empty()).then(|| bytes.iter().sum::<u64>() / bytes.len() as u64)
    }

    /// Adds to the error of a measurement which of our nodes exited, and the end of its log.
    pub fn explain(&mut self, error: BenchError) -> BenchError {
        let exited = self.children.iter_mut().find_map(|child| child.take_exit_status().map(|how| (how, &*child)));
        match exited {
            Some((how, child)) => {
                BenchError::NodeExited { error: Box::new(error), node: child.seat().node, how, log: child.log_tail() }
            }
            None => error,
        }
    }

    /// Whether they were started for this measurement and may be stopped.
    pub fn are_ours(&self) -> bool {
        !self.children.is_empty()
    }

    /// The disk space of the largest node.
    pub fn disk_bytes(&self) -> u64 {
        self.data_dirs.iter().map(|dir| disk_bytes(dir)).max().unwrap_or(0)
    }

    /// Stops or kills the last of our own nodes, and returns its address.
    pub async fn end_last(&mut self, kill: bool) -> Result<Target, BenchError> {
        let child = self.children.last_mut().ok_or(BenchError::ServersNotOurs)?;
        if kill {
            child.kill();
        }
        child.request_stop();
        let begun = Instant::now();
        while !child.is_down() {
            if begun.elapsed() > STOP_MAX {
                return Err(BenchError::NotStopping { node: child.seat().node, limit: STOP_MAX });
            }
            sleep(Duration::from_millis(10)).await;
        }
        let address = child.seat().client.to_string();
        self.targets.iter().find(|target| target.address == address).cloned().ok_or(BenchError::ServersNotOurs)
    }

    pub fn start_last(&mut self) -> Result<(), BenchError> {
        let Some(child) = self.children.last_mut() else { return Ok(()) };
        Ok(child.restart()?)
    }

    pub async fn stop(self) {
        stop(self.children).await;
    }
}

/// Puts the leader first, because a single client talks to the first address. etcd's members are ordered the same way.
async fn leader_first(mut targets: Vec<Target>) -> Result<Vec<Target>, BenchError> {
    for at in 0..targets.len() {
        if is_leader(&targets[at]).await? {
            targets.rotate_left(at);
            break;
        }
    }
    Ok(targets)
}

/// Whether a node says that it leads.
pub async fn is_leader(node: &Target) -> Result<bool, BenchError> {
    Ok(health(node).await?["role"] == "leader")
}

async fn health(node: &Target) -> Result<Value, BenchError> {
    let (_, body) = get(node, "/health").await?;
    serde_json::from_slice(&body).map_err(|_| BenchError::Connect {
        address: node.address.clone(),
        why: "GET /health does not answer JSON".to_owned(),
    })
}

/// The status and the body of a small answer, over a connection of its own.
pub async fn get(node: &Target, path: &'static str) -> Result<(u16, Bytes), BenchError> {
    let failed = |why: String| BenchError::Connect { address: node.address.clone(), why };
    let ask = async {
        let stream = node.connect().await?;
        let (mut connection, driver) =
            handshake(TokioIo::new(stream)).await.map_err(|error| failed(error.to_string()))?;
        tokio::spawn(driver);
        let request = Request::get(path).header(HOST, &node.address).body(Body::empty());
        let request = request.map_err(|error| failed(error.to_string()))?;
        let response = connection.send_request(request).await.map_err(|error| failed(error.to_string()))?;
        let status = response.status().as_u16();
        let body = to_bytes(Body::new(response.into_body()), ANSWER_BYTES_MAX).await;
        Ok((status, body.map_err(|error| failed(error.to_string()))?))
    };
    timeout(GET_MAX, ask)
        .await
        .unwrap_or_else(|_| Err(BenchError::NoAnswer { address: node.address.clone(), limit: GET_MAX }))
}
