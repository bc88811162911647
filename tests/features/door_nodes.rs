//! Owns: the nodes behind the door of the session model, as the program runs them: one with its state in memory, one
//! process over sled, or a cluster of three processes. Where clients and drivers are, and how nodes are killed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use session_manager::config::Config;
use session_manager::node::{Environment, Node, NodeSettings};

use crate::door::PATIENCE;
use crate::process::{NodeProcess, ThreeNodes, plain_http};

/// The store that a round of scenarios runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoorStore {
    Memory,
    Sled,
    ThreeNodes,
}

impl DoorStore {
    pub const ALL: [DoorStore; 3] = [DoorStore::Memory, DoorStore::Sled, DoorStore::ThreeNodes];

    pub fn name(self) -> &'static str {
        match self {
            DoorStore::Memory => "the door over memory",
            DoorStore::Sled => "the door over sled",
            DoorStore::ThreeNodes => "the doors of three nodes",
        }
    }

    /// Whether a scenario with these tags applies to this store.
    pub fn runs(self, tags: &[String]) -> bool {
        self == DoorStore::ThreeNodes || !tags.iter().any(|tag| tag == "three-nodes")
    }
}

/// Who connects. In a cluster clients and drivers are at different followers, so that every scenario crosses nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The node that led when the scenario began.
    Leader,
    Clients,
    Drivers,
}

pub struct Nodes {
    dir: PathBuf,
    running: Running,
}

enum Running {
    Memory(Option<Node>),
    Sled(Option<NodeProcess>),
    Cluster(Members),
}

/// The processes of a cluster, in the order of their numbers.
struct Members {
    nodes: Vec<Option<NodeProcess>>,
    leader: usize,
}

impl Nodes {
    /// `settings` is the YAML that every node reads.
    pub async fn start(store: DoorStore, dir: &Path, settings: &str) -> Nodes {
        std::fs::write(settings_file(dir), settings).expect("a file for the settings");
        let dir = dir.to_owned();
        let running = match store {
            DoorStore::Memory => Running::Memory(Some(in_memory(&dir).await)),
            DoorStore::Sled => Running::Sled(Some(over_sled(&dir).await)),
            DoorStore::ThreeNodes => Running::Cluster(cluster(&dir).await),
        };
        Nodes { dir, running }
    }

    pub fn address(&self, place: Place) -> SocketAddr {
        match &self.running {
            Running::Memory(node) => node.as_ref().expect("the node runs").local_addr(),
            Running::Sled(node) => node.as_ref().expect("the node runs").address,
            Running::Cluster(members) => members.nodes[members.at(place)].as_ref().expect("the node runs").address,
        }
    }

    pub fn is_up(&self, place: Place) -> bool {
        match &self.running {
            Running::Memory(_) | Running::Sled(_) => true,
            Running::Cluster(members) => members.nodes[members.at(place)].is_some(),
        }
    }

    /// Sends kill -9 to the process at a place. The leader is at its place first, wherever it is by then.
    pub async fn kill(&mut self, place: Place) {
        let Running::Cluster(members) = &mut self.running else { panic!("only a cluster goes on without a node") };
        members.lead().await;
        let at = members.at(place);
        members.nodes[at].take().expect("the node runs").kill();
    }

    /// Kills every process and starts it again over its files. A node in memory stops in order: it has no process.
    pub async fn restart(&mut self) {
        match &mut self.running {
            Running::Memory(node) => {
                node.take().expect("the node runs").shutdown().await;
                *node = Some(in_memory(&self.dir).await);
            }
            Running::Sled(node) => {
                node.take().expect("the node runs").kill();
                *node = Some(over_sled(&self.dir).await);
            }
            Running::Cluster(members) => {
                members.nodes.drain(..).flatten().for_each(NodeProcess::kill);
                *members = cluster(&self.dir).await;
            }
        }
    }

    pub async fn stop(self) {
        match self.running {
            Running::Memory(Some(node)) => node.shutdown().await,
            // Processes are killed when they are dropped.
            Running::Memory(None) | Running::Sled(_) | Running::Cluster(_) => {}
        }
    }
}

impl Members {
    fn at(&self, place: Place) -> usize {
        let after = match place {
            Place::Leader => 0,
            Place::Clients => 1,
            Place::Drivers => 2,
        };
        (self.leader + after) % self.nodes.len()
    }

    /// Returns when the node that led at first leads: on a busy machine another may have been elected meanwhile.
    async fn lead(&self) {
        let begun = Instant::now();
        while leader(&self.nodes).await != self.leader {
            let address = self.nodes[self.leader].as_ref().expect("the node runs").address;
            let to = json!({ "to": self.leader + 1 }).to_string();
            plain_http::request(address, "POST", "/v1/cluster/transfer-leader", &[], &to).await;
            assert!(begun.elapsed() < PATIENCE, "node {} does not lead", self.leader + 1);
        }
    }
}

fn settings_file(dir: &Path) -> PathBuf {
    dir.join("settings.yaml")
}

async fn in_memory(dir: &Path) -> Node {
    let mut config = Config::read(&settings_file(dir)).expect("settings");
    config.listen.set_port(0);
    config.adapter.set_data_dir(dir.join("data"));
    let environment = Environment { state_in_memory: true, ..Environment::default() };
    let settings = NodeSettings { config, reread: None, environment, engine: None };
    Node::start(settings).await.expect("the node starts")
}

async fn over_sled(dir: &Path) -> NodeProcess {
    let (data, settings) = (dir.join("data"), settings_file(dir));
    let start = move || NodeProcess::start(&data, &["--config", settings.to_str().expect("a path in UTF-8")]);
    tokio::task::spawn_blocking(start).await.expect("the node starts")
}

async fn cluster(dir: &Path) -> Members {
    let (dir, settings) = (dir.to_owned(), settings_file(dir));
    let runtime = tokio::runtime::Handle::current();
    // Starting a process waits on a thread.
    let starting = tokio::task::spawn_blocking(move || {
        let more = ["--config", settings.to_str().expect("a path in UTF-8")];
        runtime.block_on(ThreeNodes::start_with(&dir, &more))
    });
    let ThreeNodes(nodes) = starting.await.expect("the cluster starts");
    let nodes: Vec<Option<NodeProcess>> = nodes.into_iter().map(Some).collect();
    let leader = leader(&nodes).await;
    Members { nodes, leader }
}

/// The number of the node that leads, once one does.
async fn leader(nodes: &[Option<NodeProcess>]) -> usize {
    let begun = Instant::now();
    loop {
        for (number, node) in nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let (_, health) = plain_http::get(node.address, "/health").await;
            if health.contains("\"role\":\"leader\"") {
                return number;
            }
        }
        assert!(begun.elapsed() < PATIENCE, "no leader");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
