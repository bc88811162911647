//! Laws of a disk that is full: whoever cannot write says so and stops, nothing that was acknowledged is lost or harmed, and
//! with space the service comes back. The disks are small tmpfs in a mount namespace of the cluster's own, which is gone with
//! it; that takes root.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use session_manager::cli::trial::LoadSettings;

use crate::machinery::{
    DevCluster, PAUSE, SETTLE_MAX, assert_lawful, equal_states, leader, progress, shell_in, start_load, turn,
};

/// Room for a node that has just begun, and for little more.
const DISK_MIB: u64 = 96;

/// Whether this machine lets a test mount something; says so where it does not.
fn may_mount() -> bool {
    let probe = "mkdir -p \"$0\" && mount -t tmpfs -o size=1m none \"$0\"";
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tried =
        Command::new("unshare").args(["--mount", "sh", "-c", probe]).arg(dir.path()).stderr(Stdio::null()).status();
    let may = tried.is_ok_and(|status| status.success());
    if !may {
        println!(
            "SKIPPED: full disks need `unshare --mount` and `mount -t tmpfs`, which this machine or user does not allow"
        );
    }
    may
}

/// A cluster whose nodes have a small disk each.
fn on_small_disks(dir: &Path, nodes: u64) -> DevCluster {
    let mounts: Vec<String> = (1..=nodes)
        .map(|node| format!("mkdir -p node-{node} && mount -t tmpfs -o size={DISK_MIB}m none node-{node} && "))
        .collect();
    let script = format!("cd \"$0\" && {}exec \"$@\"", mounts.concat());
    let wrapper = shell_in(&["unshare", "--mount"], &script, dir);
    DevCluster::start_by(wrapper, dir, nodes as usize, &["--respawn"])
}

/// A file that takes all the space there is.
struct Ballast {
    path: PathBuf,
}

impl Ballast {
    /// The disk is seen through the root of a process that lives there.
    fn fill(pid: u32, data_dir: &Path) -> Ballast {
        let inside = format!("/proc/{pid}/root{}", data_dir.display());
        let path = Path::new(&inside).join("ballast");
        let mut file = File::create(&path).expect("a file on the small disk");
        // Smaller and smaller pieces, until not a byte is left.
        let mut piece = vec![0; 1 << 20];
        while !piece.is_empty() {
            match file.write(&piece) {
                Ok(0) => piece.truncate(piece.len() / 2),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => piece.truncate(piece.len() / 2),
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
        Ballast { path }
    }

    fn remove(self) {
        fs::remove_file(&self.path).expect("the ballast goes");
    }
}

/// Waits until a node's log says that its disk is full.
async fn says_so(dir: &Path, node: u64) -> String {
    let begun = Instant::now();
    loop {
        let log = fs::read_to_string(dir.join(format!("node-{node}.log"))).unwrap_or_default();
        if let Some(line) = log.lines().find(|line| line.contains("No space left on device")) {
            return line.to_owned();
        }
        assert!(begun.elapsed() < SETTLE_MAX, "node {node} does not say that its disk is full:\n{log}");
        tokio::time::sleep(PAUSE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_a_full_disk_stops_the_others_write_on_and_it_comes_back_with_space() {
    let _turn = turn().await;
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = on_small_disks(dir.path(), 3);
    let load = start_load(LoadSettings::new("full disk"), &cluster.nodes()).await;
    let history = load.history().clone();
    progress(&history, 50).await;

    let full = leader(&cluster.peer_besides(0)).await;
    let ballast = Ballast::fill(cluster.pid(), &cluster.line(full).data_dir);
    let words = says_so(dir.path(), full).await;
    progress(&history, 100).await;
    ballast.remove();

    // Nobody helps but the one who starts what has ended.
    equal_states(&cluster.peer_besides(full), 3).await;
    progress(&history, 50).await;
    let history = load.stop().await;
    equal_states(&cluster.peer_besides(0), 3).await;
    assert_lawful(&history, &cluster.clients()).await;
    println!("node {full}, which led, said: {words}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_alone_with_a_full_disk_acknowledges_nothing_it_cannot_keep_and_goes_on_with_space() {
    let _turn = turn().await;
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = on_small_disks(dir.path(), 1);
    let load = start_load(LoadSettings::new("full disk alone"), &cluster.nodes()).await;
    let history = load.history().clone();
    progress(&history, 50).await;

    let ballast = Ballast::fill(cluster.pid(), &cluster.line(1).data_dir);
    let words = says_so(dir.path(), 1).await;
    // It is started again and again over the full disk meanwhile, and must neither serve nor harm anything.
    let acknowledged = history.tally().writes;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let late = history.tally().writes - acknowledged;
    ballast.remove();

    progress(&history, 50).await;
    let history = load.stop().await;
    assert_lawful(&history, &cluster.clients()).await;
    assert_eq!(late, 0, "writes were acknowledged that a full disk cannot keep");
    println!("it said: {words}");
}
