//! Owns: the processes of a test: `session-manager dev`, nodes started by hand, and the `cluster` command; all of them
//! gone when the test ends, however it ends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use session_manager::cli::trial::{History, Load, LoadSettings, Nodes, judge};
use tokio::sync::MutexGuard;

const START_MAX: Duration = Duration::from_secs(60);
pub const SETTLE_MAX: Duration = Duration::from_secs(60);
pub const PAUSE: Duration = Duration::from_millis(20);

/// Three nodes and a load keep every core busy: one cluster at a time.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

pub async fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().await
}

/// How long the load of one test lasts.
pub fn load_time() -> Duration {
    let seconds = std::env::var("CLUSTER_TEST_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(15))
}

/// A node as `dev --json` tells of it.
#[derive(Debug, Clone, Deserialize)]
pub struct NodeLine {
    pub node: u64,
    pub client: String,
    pub peer: String,
    pub pid: u32,
    pub data_dir: PathBuf,
}

impl NodeLine {
    pub fn client_address(&self) -> SocketAddr {
        self.client.strip_prefix("ws://").expect("a bus URL").parse().expect("an address")
    }
}

pub struct DevCluster {
    process: Child,
    lines: Arc<Mutex<BTreeMap<u64, NodeLine>>>,
}

pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_session-manager"));
    command.env_remove("RUST_LOG").env_remove("III_URL").env_remove("SESSION_MANAGER_PEER");
    command
}

/// A shell script that ends by becoming the program: it finds a directory as `$0` and what to become as `$@`.
pub fn shell_in(wrapper: &[&str], script: &str, dir: &Path) -> Command {
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).args(["sh", "-c", script]).arg(dir).arg(program().get_program());
    command.env_remove("RUST_LOG").env_remove("III_URL").env_remove("SESSION_MANAGER_PEER");
    command
}

impl DevCluster {
    /// Starts a cluster and returns once every node was introduced.
    pub fn start(dir: &Path, nodes: usize, arguments: &[&str]) -> DevCluster {
        DevCluster::start_by(program(), dir, nodes, arguments)
    }

    /// The same, started by another program, which becomes it in the end.
    pub fn start_by(mut starter: Command, dir: &Path, nodes: usize, arguments: &[&str]) -> DevCluster {
        let mut process = starter
            .args(["dev", "--json", "--nodes", &nodes.to_string(), "--data-dir"])
            .arg(dir)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let output = process.stdout.take().expect("its output");
        let lines: Arc<Mutex<BTreeMap<u64, NodeLine>>> = Arc::default();
        let told = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let line: NodeLine = serde_json::from_str(&line).expect("a line per node");
                told.lock().expect("lines").insert(line.node, line);
            }
        });
        let mut cluster = DevCluster { process, lines };
        let begun = Instant::now();
        while cluster.lines().len() < nodes {
            assert!(begun.elapsed() < START_MAX, "the cluster does not start");
            assert!(cluster.process.try_wait().expect("its state").is_none(), "dev ended");
            std::thread::sleep(PAUSE);
        }
        cluster
    }

    pub fn lines(&self) -> Vec<NodeLine> {
        self.lines.lock().expect("lines").values().cloned().collect()
    }

    pub fn line(&self, node: u64) -> NodeLine {
        self.lines.lock().expect("lines").get(&node).expect("a node of the cluster").clone()
    }

    pub fn clients(&self) -> Vec<SocketAddr> {
        self.lines().iter().map(NodeLine::client_address).collect()
    }

    pub fn nodes(&self) -> Nodes {
        Nodes::new(self.clients())
    }

    /// The peer address of some node, by preference not the given one.
    pub fn peer_besides(&self, node: u64) -> String {
        let lines = self.lines();
        lines.iter().find(|line| line.node != node).unwrap_or(&lines[0]).peer.clone()
    }

    pub fn signal_node(&self, node: u64, name: &str) {
        signal(self.line(node).pid, name);
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn wait(&mut self) -> std::process::ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().expect("its state") {
                return status;
            }
            assert!(begun.elapsed() < START_MAX, "dev does not end");
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for DevCluster {
    fn drop(&mut self) {
        // The nodes watch the pipe to their parent, and end with it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn signal(pid: u32, name: &str) -> bool {
    let sent = Command::new("kill").args([format!("-{name}"), pid.to_string()]).stderr(Stdio::null()).status();
    sent.expect("kill runs").success()
}

/// A node started by hand, on free ports. It ends when this is dropped.
pub struct LoneNode {
    process: Child,
    _stdin: ChildStdin,
    pub client: SocketAddr,
    pub peer: String,
    pub data_dir: PathBuf,
}

impl LoneNode {
    /// Starts an empty node: with `--join` it waits to be added to a cluster, without it founds one of its own.
    pub fn start(dir: &Path, node: u64, name: &str, arguments: &[&str]) -> LoneNode {
        LoneNode::start_at(Ipv4Addr::LOCALHOST.into(), dir, node, name, arguments)
    }

    /// The same, on a loopback address of its own.
    pub fn start_at(at: IpAddr, dir: &Path, node: u64, name: &str, arguments: &[&str]) -> LoneNode {
        let data_dir = dir.join(format!("{name}-{node}"));
        let log = std::fs::File::create(dir.join(format!("{name}-{node}.log"))).expect("a log file");
        let (client, peer) = (free_port(at), free_port(at));
        let mut process = program()
            .args(["serve", "--listen", &client.to_string(), "--peer-listen", &peer.to_string(), "--data-dir"])
            .arg(&data_dir)
            .args(["--node-id", &node.to_string(), "--exit-with-parent"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        let stdin = process.stdin.take().expect("its input");
        LoneNode { process, _stdin: stdin, client, peer: peer.to_string(), data_dir }
    }

    pub fn kill(&mut self) {
        self.process.kill().expect("kill -9");
        self.process.wait().expect("the killed node");
    }
}

impl Drop for LoneNode {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not among the ports of outgoing connections, so that nobody takes it before the node does.
fn free_port(at: IpAddr) -> SocketAddr {
    let from = 10_000 + (uuid::Uuid::new_v4().as_u128() % 9_000) as u16;
    let mut candidates = (from..from + 900).map(|port| SocketAddr::new(at, port));
    candidates.find(|address| std::net::TcpListener::bind(address).is_ok()).expect("a free port")
}

/// Runs `session-manager cluster` to its end.
pub fn cluster_command(peer: &str, arguments: &[&str]) -> Output {
    let mut command = program();
    command.args(["cluster", "--peer", peer]).args(arguments).stdin(Stdio::null());
    command.output().expect("the binary runs")
}

/// What it printed with `--json`; `None` when it failed.
pub fn try_cluster(peer: &str, arguments: &[&str]) -> Result<Value, String> {
    let output = cluster_command(peer, &[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Again and again until the cluster agrees: it may be between two leaders.
pub async fn cluster(peer: &str, arguments: &[&str]) -> Value {
    let begun = Instant::now();
    loop {
        let (peer_, words) = (peer.to_owned(), arguments.iter().map(|word| word.to_string()).collect::<Vec<_>>());
        let run = move || try_cluster(&peer_, &words.iter().map(String::as_str).collect::<Vec<_>>());
        match tokio::task::spawn_blocking(run).await.expect("the command ran") {
            Ok(value) => return value,
            Err(why) => assert!(begun.elapsed() < SETTLE_MAX, "cluster {arguments:?}: {why}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The leader now, as soon as there is one that the asked node believes in.
pub async fn leader(peer: &str) -> u64 {
    let begun = Instant::now();
    loop {
        let status = cluster(peer, &["status", "--timeout-ms", "1000"]).await;
        if let Some(leader) = status["leader"].as_u64() {
            return leader;
        }
        assert!(begun.elapsed() < SETTLE_MAX, "no leader: {status}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until all members are well, have applied the same entry and have the same state.
pub async fn equal_states(peer: &str, nodes: usize) -> String {
    let begun = Instant::now();
    loop {
        let status = cluster(peer, &["status", "--timeout-ms", "2000"]).await;
        let members = status["nodes"].as_array().expect("nodes");
        let first = &members[0];
        let equal = members
            .iter()
            .all(|member| member["applied"] == first["applied"] && member["state_hash"] == first["state_hash"]);
        if status["healthy"] == true && members.len() == nodes && equal {
            return first["state_hash"].as_str().expect("a state hash").to_owned();
        }
        // The same entry with another state is final: no time heals it.
        let differs = members.iter().any(|member| {
            member["applied"].is_u64()
                && member["applied"] == first["applied"]
                && member["state_hash"] != first["state_hash"]
        });
        assert!(!differs, "the same log gave different states: {status:#}");
        assert!(begun.elapsed() < SETTLE_MAX, "the nodes do not agree: {status:#}");
        tokio::time::sleep(PAUSE).await;
    }
}

pub async fn start_load(settings: LoadSettings, nodes: &Nodes) -> Load {
    Load::start(settings, nodes.clone()).await.expect("the load starts")
}

/// Waits until this many more writes are acknowledged: the load gets on.
pub async fn progress(history: &History, writes: u64) {
    let goal = history.tally().writes + writes;
    let begun = Instant::now();
    while history.tally().writes < goal {
        assert!(
            begun.elapsed() < SETTLE_MAX,
            "writes do not get on: {:?} {:?}",
            history.tally(),
            history.laws_broken()
        );
        tokio::time::sleep(PAUSE).await;
    }
}

pub async fn assert_lawful(history: &History, nodes: &[SocketAddr]) {
    let broken = judge(history, nodes).await;
    assert!(broken.is_empty(), "{} laws are broken:\n{}", broken.len(), broken.join("\n"));
    let tally = history.tally();
    println!("{}: {tally:?}{}", history.name, history.failures());
    assert!(tally.writes > 0 && tally.reads > 0, "the load did nothing: {tally:?}");
}
