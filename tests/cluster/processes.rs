//! Owns: the processes of a test: `session-manager dev`, single nodes, and the `cluster` command; and waiting for their
//! states. All processes end with the test, even if it fails.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use crate::load::Nodes;
use crate::load::{Caller, History, Load, LoadSettings, Outcome, violations};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::MutexGuard;

const START_MAX: Duration = Duration::from_secs(60);
pub const SETTLE_MAX: Duration = Duration::from_secs(60);
pub const PAUSE: Duration = Duration::from_millis(20);

static ONLY: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Three nodes and a load use every core, so only one test may run a cluster.
pub async fn one_cluster_at_a_time() -> MutexGuard<'static, ()> {
    ONLY.lock().await
}

/// Repeats an attempt until it succeeds. Fails the test with the last reason after `SETTLE_MAX`.
pub async fn eventually<T>(mut attempt: impl AsyncFnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(why) => assert!(begun.elapsed() < SETTLE_MAX, "{why}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Calls one node until it answers.
pub async fn call(node: SocketAddr, function: &str, body: Value) -> Value {
    let mut caller = Caller::new(Nodes::new(vec![node]), 0, Duration::from_secs(5));
    eventually(async || match caller.call(function, &body).await {
        Outcome::Answered(answer) => Ok(answer),
        other => Err(format!("{function} at {node}: {other:?}")),
    })
    .await
}

/// How long the longest load lasts.
pub fn load_time() -> Duration {
    let seconds = std::env::var("CLUSTER_TEST_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(15))
}

/// A line of `dev --json`: one node.
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

/// A shell script that replaces itself with the program. `$0` is a directory, `$@` the program and its arguments.
pub fn shell_in(wrapper: &[&str], script: &str, dir: &Path) -> Command {
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).args(["sh", "-c", script]).arg(dir).arg(program().get_program());
    command.env_remove("RUST_LOG").env_remove("III_URL").env_remove("SESSION_MANAGER_PEER");
    command
}

impl DevCluster {
    /// Starts a cluster. Returns once `dev` has printed a line for every node.
    pub fn start(dir: &Path, nodes: usize, arguments: &[&str]) -> DevCluster {
        DevCluster::start_by(program(), dir, nodes, arguments)
    }

    /// The same, started by another command that replaces itself with the program.
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
        let printed = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let line: NodeLine = serde_json::from_str(&line).expect("a line per node");
                printed.lock().expect("lines").insert(line.node, line);
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

    /// The peer address of a node; not of the given one, if there is another.
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
        // The nodes end when the pipe to their parent closes.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn signal(pid: u32, name: &str) -> bool {
    let sent = Command::new("kill").args([format!("-{name}"), pid.to_string()]).stderr(Stdio::null()).status();
    sent.expect("kill runs").success()
}

/// A `session-manager serve` process. It is killed when this is dropped, and ends when the process of the test ends.
pub struct ServerProcess {
    process: Child,
    /// The process ends when this pipe closes.
    _stdin: ChildStdin,
}

impl ServerProcess {
    pub fn start(arguments: impl FnOnce(&mut Command), log: &Path) -> ServerProcess {
        let mut command = program();
        command.args(["serve", "--exit-with-parent"]);
        arguments(&mut command);
        let log = std::fs::File::create(log).expect("a log file");
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn().expect("the binary starts");
        let stdin = process.stdin.take().expect("its input");
        ServerProcess { process, _stdin: stdin }
    }

    pub fn kill(&mut self) {
        self.process.kill().expect("kill -9");
        self.process.wait().expect("the killed process");
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A single node, on free ports.
pub struct LoneNode {
    process: ServerProcess,
    pub client: SocketAddr,
    pub peer: String,
    pub data_dir: PathBuf,
}

impl LoneNode {
    /// Starts an empty node. With `--join` it waits to be added to a cluster; without, it founds one.
    pub fn start(dir: &Path, node: u64, name: &str, arguments: &[&str]) -> LoneNode {
        LoneNode::start_at(Ipv4Addr::LOCALHOST.into(), dir, node, name, arguments)
    }

    /// The same, on this loopback address.
    pub fn start_at(at: IpAddr, dir: &Path, node: u64, name: &str, arguments: &[&str]) -> LoneNode {
        let data_dir = dir.join(format!("{name}-{node}"));
        let (client, peer) = (free_port(at), free_port(at));
        let set_arguments = |command: &mut Command| {
            command.args(["--listen", &client.to_string(), "--peer-listen", &peer.to_string()]);
            command.args(["--node-id", &node.to_string(), "--data-dir"]).arg(&data_dir).args(arguments);
        };
        let process = ServerProcess::start(set_arguments, &dir.join(format!("{name}-{node}.log")));
        LoneNode { process, client, peer: peer.to_string(), data_dir }
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }
}

/// Outside the range of ephemeral ports, so that no outgoing connection takes it before the node does.
pub fn free_port(at: IpAddr) -> SocketAddr {
    let from = 10_000 + (uuid::Uuid::new_v4().as_u128() % 9_000) as u16;
    let mut candidates = (from..from + 900).map(|port| SocketAddr::new(at, port));
    candidates.find(|address| std::net::TcpListener::bind(address).is_ok()).expect("a free port")
}

/// Runs `session-manager cluster` to completion.
pub fn cluster_command(peer: &str, arguments: &[&str]) -> Output {
    let mut command = program();
    command.args(["cluster", "--peer", peer]).args(arguments).stdin(Stdio::null());
    command.output().expect("the binary runs")
}

/// The output with `--json`, or the error message.
pub fn try_cluster(peer: &str, arguments: &[&str]) -> Result<Value, String> {
    let output = cluster_command(peer, &[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Retries until the command succeeds: the cluster may be without a leader.
pub async fn cluster(peer: &str, arguments: &[&str]) -> Value {
    eventually(async || {
        let (peer, words) = (peer.to_owned(), arguments.iter().map(|word| word.to_string()).collect::<Vec<_>>());
        let run = move || try_cluster(&peer, &words.iter().map(String::as_str).collect::<Vec<_>>());
        let done = tokio::task::spawn_blocking(run).await.expect("the command ran");
        done.map_err(|why| format!("cluster {arguments:?}: {why}"))
    })
    .await
}

pub async fn status(peer: &str) -> Value {
    cluster(peer, &["status", "--timeout-ms", "1000"]).await
}

/// Waits until the node at `peer` knows a leader.
pub async fn leader(peer: &str) -> u64 {
    eventually(async || {
        let status = status(peer).await;
        status["leader"].as_u64().ok_or_else(|| format!("no leader: {status}"))
    })
    .await
}

/// Waits until all members are healthy.
pub async fn all_healthy(peer: &str, nodes: usize) {
    eventually(async || {
        let status = status(peer).await;
        let members = status["nodes"].as_array().map(Vec::len);
        let holds = status["healthy"] == true && members == Some(nodes);
        if holds { Ok(()) } else { Err(format!("the cluster is not healthy: {status:#}")) }
    })
    .await;
}

/// Waits until all members are healthy, have applied the same entry and have the same state hash.
pub async fn equal_states(peer: &str, nodes: usize) -> String {
    eventually(async || {
        let status = cluster(peer, &["status", "--timeout-ms", "2000"]).await;
        let members = status["nodes"].as_array().expect("nodes");
        let first = &members[0];
        let at_first = |member: &&Value| member["applied"] == first["applied"];
        let like_first = |member: &Value| member["state_hash"] == first["state_hash"];
        let equal = members.iter().all(|member| at_first(&member) && like_first(member));
        if status["healthy"] == true && members.len() == nodes && equal {
            return Ok(first["state_hash"].as_str().expect("a state hash").to_owned());
        }
        // Two states at the same entry are final. Waiting does not help.
        let known = members.iter().filter(|member| member["applied"].is_u64());
        let differs = known.filter(at_first).any(|member| !like_first(member));
        assert!(!differs, "the same log gave different states: {status:#}");
        Err(format!("the nodes do not agree: {status:#}"))
    })
    .await
}

pub async fn start_load(settings: LoadSettings, nodes: &Nodes) -> Load {
    Load::start(settings, nodes.clone()).await.expect("the load starts")
}

/// Waits until this many more writes are acknowledged.
pub async fn progress(history: &History, writes: u64) {
    let goal = history.tally().writes + writes;
    eventually(async || {
        let tally = history.tally();
        let stuck = || format!("the load makes no progress: {tally:?} {:?}", history.laws_broken());
        if tally.writes >= goal { Ok(()) } else { Err(stuck()) }
    })
    .await;
}

pub async fn assert_lawful(history: &History, nodes: &[SocketAddr]) {
    let broken = violations(history, nodes).await;
    assert!(broken.is_empty(), "{} laws are broken:\n{}", broken.len(), broken.join("\n"));
    let tally = history.tally();
    println!("{}: {tally:?}{}", history.name, history.failures());
    assert!(tally.writes > 0 && tally.reads > 0, "the load did nothing: {tally:?}");
}
