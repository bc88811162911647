//! Owns: three nodes as processes for scenarios tagged @gateway: where they are, and how they are killed and stopped.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;

use crate::gateway_client::PATIENCE;

const PROGRAM: &str = env!("CARGO_BIN_EXE_session-manager");

/// A cluster whose nodes are started again when they are killed.
pub struct Cluster {
    process: Child,
    /// What the program last said about each node: `client`, `peer` and `pid`.
    nodes: Arc<Mutex<BTreeMap<u64, Value>>>,
}

impl Cluster {
    pub fn start(dir: &Path) -> Cluster {
        let mut process = Command::new(PROGRAM)
            .args(["dev", "--json", "--nodes", "3", "--respawn", "--data-dir"])
            .arg(dir)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let nodes = Arc::new(Mutex::new(BTreeMap::new()));
        let (told, lines) = (nodes.clone(), BufReader::new(process.stdout.take().expect("a pipe")).lines());
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let node: Value = serde_json::from_str(&line).expect("a line of JSON");
                let id = node["node"].as_u64().expect("the number of a node");
                told.lock().unwrap_or_else(PoisonError::into_inner).insert(id, node);
            }
        });
        let cluster = Cluster { process, nodes };
        cluster.wait(|cluster| (cluster.known().len() == 3).then_some(()));
        cluster
    }

    fn known(&self) -> BTreeMap<u64, Value> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn wait<T>(&self, found: impl Fn(&Cluster) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            assert!(begun.elapsed() < PATIENCE, "the cluster did not get there in time: {:?}", self.known());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// Where clients reach a node, such as `127.0.0.1:7000`.
    pub fn address(&self, node: u64) -> String {
        let node = self.known()[&node]["client"].as_str().expect("an address").to_owned();
        node.rsplit('/').next().expect("an address").to_owned()
    }

    fn pid(&self, node: u64) -> u32 {
        self.known()[&node]["pid"].as_u64().expect("the id of a process") as u32
    }

    pub fn leader(&self) -> u64 {
        let ask = |node: &Value| {
            let peer = node["peer"].as_str()?;
            let told = Command::new(PROGRAM).args(["cluster", "--peer", peer, "status", "--json"]).output().ok()?;
            serde_json::from_slice::<Value>(&told.stdout).ok()?["leader"].as_u64()
        };
        self.wait(|cluster| cluster.known().values().find_map(ask))
    }

    /// The leader. If this node became it meanwhile, as on a busy machine, it hands its leadership over first.
    pub fn leader_other_than(&self, node: u64) -> u64 {
        self.wait(|cluster| {
            let leader = cluster.leader();
            if leader != node {
                return Some(leader);
            }
            let peer = cluster.known()[&node]["peer"].as_str()?.to_owned();
            let step_down = Command::new(PROGRAM).args(["cluster", "--peer", &peer, "step-down"]).output();
            step_down.expect("the program runs");
            None
        })
    }

    pub fn kill_all(&self) {
        for node in self.known().keys() {
            self.send(*node, "-KILL");
        }
    }

    /// Sends a signal to the process of a node.
    pub fn send(&self, node: u64, signal: &str) {
        let pid = self.pid(node).to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().expect("kill runs");
        assert!(sent.success(), "{signal} to node {node}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status();
        let _ = self.process.wait();
    }
}
