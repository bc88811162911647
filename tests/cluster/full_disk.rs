//! Laws of a full disk: below `min_free_bytes` the cluster refuses writes and names the node; reads go on; no process
//! ends, even if its disk is filled to the last byte; writes resume by themselves when there is space, and nothing that
//! was acknowledged is lost or damaged. The disks are small tmpfs mounts in a mount namespace of the cluster, which ends
//! with it; that needs root.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::load::{Caller, History, Load, LoadSettings, Nodes, Outcome};
use crate::processes::{
    DevCluster, LoneNode, assert_lawful, call, equal_states, eventually, leader, one_cluster_at_a_time, program,
    progress, shell_in, start_load, status,
};

/// Enough for a new node, and for little more.
const DISK_MIB: u64 = 96;
/// Freeing what was deleted takes some steps of a few seconds each, and longer on a busy machine.
const FREED_MAX: Duration = Duration::from_secs(240);

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
    DevCluster::start_by(wrapper, dir, nodes as usize, &[])
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

/// Starts a load, and returns once it has written something.
async fn loaded(cluster: &DevCluster, name: &str) -> (Load, Arc<History>) {
    let load = start_load(LoadSettings::new(name), &cluster.nodes()).await;
    let history = load.history().clone();
    progress(&history, 50).await;
    (load, history)
}

/// Waits until every node refuses a write, at once, because the disk of this one is nearly full.
async fn refuses_writes(cluster: &DevCluster, full: &[u64]) {
    for client in cluster.clients() {
        let mut caller = Caller::new(Nodes::new(vec![client]), 0, Duration::from_secs(20));
        eventually(async || match caller.call("session::create", &json!({"title": "too much"})).await {
            Outcome::Unavailable(why) if full.iter().any(|node| is_about(&why, *node)) => Ok(()),
            other => Err(format!("{client} does not refuse for node {full:?}: {other:?}")),
        })
        .await;
    }
}

fn is_about(why: &str, node: u64) -> bool {
    why.ends_with(&format!("disk nearly full on node {node}"))
}

/// Every node answers a read.
async fn reads_go_on(cluster: &DevCluster) {
    for client in cluster.clients() {
        let page = call(client, "session::list", json!({"limit": 1})).await;
        assert_eq!(page["sessions"].as_array().map(Vec::len), Some(1), "{page}");
    }
}

/// What operators see about the disk of a node.
async fn shows_full_disk(cluster: &DevCluster, node: u64) {
    let line = cluster.line(node);
    eventually(async || {
        let status = status(&line.peer).await;
        let own = status["nodes"].as_array().and_then(|nodes| nodes.iter().find(|one| one["node"] == node).cloned());
        let warnings = own.unwrap_or_default()["warnings"].to_string();
        let shown = warnings.contains("nearly full");
        if shown { Ok(()) } else { Err(format!("cluster status does not warn: {status}")) }
    })
    .await;
    let url = |path: &str| format!("http://{}{path}", line.client_address());
    let get = |path: &str| {
        let output = Command::new("curl").args(["-s", "-w", " %{http_code}", &url(path)]).output().expect("curl runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let ready = get("/readyz?verbose");
    assert!(ready.contains("disk: nearly full") && ready.ends_with(" 200"), "{ready}");
    assert!(get("/metrics").contains("session_manager_disk_low 1"));
}

fn pids(cluster: &DevCluster) -> Vec<u32> {
    cluster.lines().iter().map(|line| line.pid).collect()
}

fn all_alive(cluster: &DevCluster) {
    for pid in pids(cluster) {
        assert!(Path::new("/proc").join(pid.to_string()).exists(), "a node has ended");
    }
}

fn id(created: &Value) -> Value {
    created["session_id"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_with_full_disks_refuses_writes_serves_reads_and_goes_on_by_itself() {
    let _only = one_cluster_at_a_time().await;
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = on_small_disks(dir.path(), 3);
    let (load, history) = loaded(&cluster, "full disk").await;
    let before = call(cluster.clients()[0], "session::create", json!({"title": "before"})).await;
    let processes = pids(&cluster);

    // 1. The disk of the leader, to the last byte, under load.
    let first = leader(&cluster.peer_besides(0)).await;
    let fill = |node: u64| Ballast::fill(cluster.pid(), &cluster.line(node).data_dir);
    let mut ballast = vec![fill(first)];
    refuses_writes(&cluster, &[1, 2, 3]).await;
    reads_go_on(&cluster).await;
    shows_full_disk(&cluster, first).await;
    all_alive(&cluster);
    // Two others have space, so a delete is durable on a majority.
    let other = cluster.line(first % 3 + 1).client_address();
    let deleted = call(other, "session::delete", json!({"session_id": id(&before)})).await;
    assert_eq!(deleted["deleted"], true, "{deleted}");

    // 2. A second one, and then all of them.
    ballast.push(fill(first % 3 + 1));
    refuses_writes(&cluster, &[1, 2, 3]).await;
    reads_go_on(&cluster).await;
    ballast.push(fill((first + 1) % 3 + 1));
    refuses_writes(&cluster, &[1, 2, 3]).await;
    reads_go_on(&cluster).await;
    all_alive(&cluster);

    // 3. Space again. Nobody does anything else.
    ballast.into_iter().for_each(Ballast::remove);
    progress(&history, 100).await;
    let history = load.stop().await;
    equal_states(&cluster.peer_besides(0), 3).await;
    assert_eq!(pids(&cluster), processes, "no node was restarted");
    assert_lawful(&history, &cluster.clients()).await;
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
    let processes = pids(&cluster);

    let ballast = Ballast::fill(cluster.pid(), &cluster.line(1).data_dir);
    refuses_writes(&cluster, &[1]).await;
    // What was on its way is acknowledged or waits; then nothing is.
    let settled = eventually(async || {
        let acknowledged = history.tally().writes;
        tokio::time::sleep(Duration::from_millis(500)).await;
        if history.tally().writes == acknowledged { Ok(acknowledged) } else { Err("writes go on".to_owned()) }
    })
    .await;
    reads_go_on(&cluster).await;
    shows_full_disk(&cluster, 1).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let late = history.tally().writes - settled;
    all_alive(&cluster);
    ballast.remove();

    progress(&history, 50).await;
    let history = load.stop().await;
    assert_eq!(pids(&cluster), processes, "the node was not restarted");
    assert_lawful(&history, &cluster.clients()).await;
    assert_eq!(late, 0, "writes were acknowledged although the disk is full");
}

/// Runs the program where a directory is a disk of 256 KiB. The output ends with the names that it holds afterwards.
fn on_tiny_disk(dir: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let script = "mount -t tmpfs -o size=256k none \"$0\" && { \"$@\"; code=$?; ls -A \"$0\"; exit $code; }";
    let output = shell_in(&["unshare", "--mount"], script, dir).args(arguments).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_target_disk_refuses_a_backup_and_a_restore_and_keeps_nothing_of_them() {
    let _only = one_cluster_at_a_time().await;
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = LoneNode::start(dir.path(), 1, "lone", &[]);
    for nth in 0..40 {
        // Text that does not compress, so that the state is larger than the disk.
        let text: String = (0..600).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
        let created = call(node.client, "session::create", json!({"title": nth.to_string()})).await;
        let message = json!({"role": "user", "timestamp": 1, "content": [{"type": "text", "text": text}]});
        call(node.client, "session::append", json!({"session_id": id(&created), "message": message})).await;
    }
    let tiny = dir.path().join("tiny");
    fs::create_dir(&tiny).expect("a directory");
    let on_tiny = tiny.join("cluster.backup");
    let path = |path: &Path| path.to_str().expect("Unicode").to_owned();
    let (code, left, why) = on_tiny_disk(&tiny, &["backup", &path(&on_tiny), "--peer", &node.peer, "--quiet"]);
    assert_eq!((code, left.as_str()), (Some(1), ""), "{why}");
    assert!(why.contains("No space left on device") && why.contains("cluster.backup"), "{why}");

    let file = path(&dir.path().join("cluster.backup"));
    let done = program().args(["backup", &file, "--peer", &node.peer]).output().expect("the binary runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let (code, left, why) = on_tiny_disk(&tiny, &["restore", &file, "--data-dir", &path(&tiny)]);
    assert_eq!((code, left.as_str()), (Some(1), ""), "{why}");
    assert!(why.contains("No space left on device"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_space_of_deleted_sessions_comes_back_without_a_stop_and_without_writes() {
    let _only = one_cluster_at_a_time().await;
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = on_small_disks(dir.path(), 1);
    let (node, processes) = (cluster.clients()[0], pids(&cluster));
    let mut caller = Caller::new(Nodes::new(vec![node]), 0, Duration::from_secs(20));
    // Several times what the disk holds.
    for round in 0..4 {
        let mut sessions = Vec::new();
        let mut written = 0;
        let full = loop {
            let id = format!("round {round} session {}", sessions.len());
            match caller.call("session::ensure", &json!({"session_id": id})).await {
                Outcome::Answered(_) => sessions.push(id.clone()),
                other => break other,
            }
            // Text that does not compress.
            let text: String = (0..8000).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
            written += text.len();
            let message = json!({"role": "user", "timestamp": 1, "content": [{"type": "text", "text": text}]});
            match caller.call("session::append", &json!({"session_id": id, "message": message})).await {
                Outcome::Answered(_) => {}
                other => break other,
            }
        };
        assert!(matches!(&full, Outcome::Unavailable(why) if is_about(why, 1)), "{full:?}");
        println!("round {round}: {} sessions with {} MiB fill the disk", sessions.len(), written >> 20);
        for session in &sessions {
            let deleted = call(node, "session::delete", json!({"session_id": session})).await;
            assert_eq!(deleted["deleted"], true, "a delete is accepted on a disk that is nearly full");
        }
        // Dead bodies are freed in small steps, and the log goes with the next snapshot.
        let begun = Instant::now();
        loop {
            match caller.call("session::create", &json!({"title": "there is space again"})).await {
                Outcome::Answered(_) => break,
                other => assert!(begun.elapsed() < FREED_MAX, "no space after {FREED_MAX:?}: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        println!("round {round}: there is space again after {} s", begun.elapsed().as_secs());
    }
    assert_eq!(pids(&cluster), processes, "the node was not restarted");
}
