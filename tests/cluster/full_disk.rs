//! Laws of a full disk: a node that cannot write logs the reason and stops, no acknowledged write is lost or damaged,
//! and the node serves again when there is space. The disks are small tmpfs mounts in a mount namespace of the cluster,
//! which ends with it; that needs root.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::load::{History, Load, LoadSettings};

use crate::processes::{
    DevCluster, assert_lawful, equal_states, eventually, leader, one_cluster_at_a_time, progress, shell_in, start_load,
};

/// Enough for a new node, and for little more.
const DISK_MIB: u64 = 96;

/// Whether this machine allows mounts. Prints why the test is skipped if not.
fn may_mount() -> bool {
    let probe = "mkdir -p \"$0\" && mount -t tmpfs -o size=1m none \"$0\"";
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tried =
        Command::new("unshare").args(["--mount", "sh", "-c", probe]).arg(dir.path()).stderr(Stdio::null()).status();
    let may = tried.is_ok_and(|status| status.success());
    if !may {
        println!(
            "SKIPPED: the test needs `unshare --mount` and `mount -t tmpfs`, which this machine or user does not allow"
        );
    }
    may
}

/// A cluster in which each node has a small disk.
fn on_small_disks(dir: &Path, nodes: u64) -> DevCluster {
    let mounts: Vec<String> = (1..=nodes)
        .map(|node| format!("mkdir -p node-{node} && mount -t tmpfs -o size={DISK_MIB}m none node-{node} && "))
        .collect();
    let script = format!("cd \"$0\" && {}exec \"$@\"", mounts.concat());
    let wrapper = shell_in(&["unshare", "--mount"], &script, dir);
    DevCluster::start_by(wrapper, dir, nodes as usize, &["--respawn"])
}

/// A file that fills the disk.
struct Ballast {
    path: PathBuf,
}

impl Ballast {
    /// The mount is visible only through the root directory of a process inside the namespace.
    fn fill(pid: u32, data_dir: &Path) -> Ballast {
        let inside = format!("/proc/{pid}/root{}", data_dir.display());
        let ballast = Ballast { path: Path::new(&inside).join("ballast") };
        ballast.grow();
        ballast
    }

    /// Takes what is free on the disk, to the last byte.
    fn grow(&self) {
        let path = &self.path;
        let mut file = File::options().append(true).create(true).open(path).expect("a file on the small disk");
        // Pieces of decreasing size, until no byte is free.
        let mut piece = vec![0; 1 << 20];
        while !piece.is_empty() {
            match file.write(&piece) {
                Ok(0) => piece.truncate(piece.len() / 2),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => piece.truncate(piece.len() / 2),
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    fn remove(self) {
        fs::remove_file(&self.path).expect("the ballast goes");
    }
}

/// Waits until a node logs that its disk is full. Returns the line.
async fn logs_full_disk(dir: &Path, node: u64) -> String {
    eventually(async || {
        let log = fs::read_to_string(dir.join(format!("node-{node}.log"))).unwrap_or_default();
        let line = log.lines().find(|line| line.contains("No space left on device")).map(str::to_owned);
        line.ok_or_else(|| format!("node {node} does not log that its disk is full:\n{log}"))
    })
    .await
}

/// Waits until a process has ended. What it acknowledged just before its disk was full may still be on its way.
async fn ends(pid: u32) {
    let alive = Path::new("/proc").join(pid.to_string());
    eventually(async || if alive.exists() { Err(format!("process {pid} still runs")) } else { Ok(()) }).await;
}

/// Starts a load, and returns once it has written something.
async fn loaded(cluster: &DevCluster, name: &str) -> (Load, Arc<History>) {
    let load = start_load(LoadSettings::new(name), &cluster.nodes()).await;
    let history = load.history().clone();
    progress(&history, 50).await;
    (load, history)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_a_full_disk_stops_and_returns_with_space_while_the_others_write() {
    let _only = one_cluster_at_a_time().await;
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = on_small_disks(dir.path(), 3);
    let (load, history) = loaded(&cluster, "full disk").await;

    let full = leader(&cluster.peer_besides(0)).await;
    let ballast = Ballast::fill(cluster.pid(), &cluster.line(full).data_dir);
    let line = logs_full_disk(dir.path(), full).await;
    progress(&history, 100).await;
    ballast.remove();

    // `dev --respawn` restarts the node. Nothing else is done to repair it.
    equal_states(&cluster.peer_besides(full), 3).await;
    progress(&history, 50).await;
    let history = load.stop().await;
    equal_states(&cluster.peer_besides(0), 3).await;
    assert_lawful(&history, &cluster.clients()).await;
    println!("the log of the leader, node {full}: {line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_node_with_a_full_disk_acknowledges_nothing_and_continues_with_space() {
    let _only = one_cluster_at_a_time().await;
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = on_small_disks(dir.path(), 1);
    let (load, history) = loaded(&cluster, "full disk alone").await;

    let first = cluster.line(1);
    let ballast = Ballast::fill(cluster.pid(), &first.data_dir);
    let line = logs_full_disk(dir.path(), 1).await;
    ends(first.pid).await;
    // A node that starts removes what its predecessor left half written. The disk stays full all the same.
    ballast.grow();
    // The node is restarted repeatedly on the full disk meanwhile, and must neither acknowledge nor damage anything.
    let acknowledged = history.tally().writes;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let late = history.tally().writes - acknowledged;
    ballast.remove();

    progress(&history, 50).await;
    let history = load.stop().await;
    assert_lawful(&history, &cluster.clients()).await;
    assert_eq!(late, 0, "writes were acknowledged although the disk is full");
    println!("its log: {line}");
}
