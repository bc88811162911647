//! Laws of backups: one that was taken under load from a follower becomes another cluster with the same state; a file
//! that is not as it was written changes nothing; one survivor of a lost quorum becomes a cluster with all it has.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::load::LoadSettings;
use crate::processes::{
    DevCluster, LoneNode, assert_lawful, call, cluster, cluster_command, equal_states, leader, one_cluster_at_a_time,
    program, progress, signal, start_load,
};

/// Runs the program to its end.
fn run(arguments: &[&str]) -> Output {
    program().args(arguments).stdin(Stdio::null()).output().expect("the binary runs")
}

/// The same, on a thread of its own: the load goes on meanwhile.
async fn run_beside(arguments: &[&str]) -> Output {
    let words: Vec<String> = arguments.iter().map(|word| word.to_string()).collect();
    let run = move || run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(run).await.expect("the command ran")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(output: Output) -> Output {
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

fn refused(output: &Output, words: &str) {
    let why = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{why}");
    assert_eq!(why.lines().count(), 1, "one line: {why}");
    assert!(why.contains(words), "{why:?} does not say {words:?}");
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path in Unicode")
}

/// What a backup holds.
fn verified(file: &Path) -> Value {
    let output = succeeds(run(&["verify", path(file), "--json"]));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Everything about all sessions.
async fn sessions(node: SocketAddr) -> Vec<Value> {
    let mut request = json!({"order": "created_asc", "limit": 100});
    let mut sessions = Vec::new();
    loop {
        let page = call(node, "session::list", request.clone()).await;
        for meta in page["sessions"].as_array().expect("sessions") {
            let id = &meta["session_id"];
            let tree = call(node, "session::tree", json!({"session_id": id})).await;
            let messages = call(node, "session::messages", json!({"session_id": id, "limit": 500})).await;
            sessions.push(json!([meta, tree, messages]));
        }
        match page.get("next_cursor") {
            Some(cursor) => request["cursor"] = cursor.clone(),
            None => return sessions,
        }
    }
}

/// The body of a plain HTTP request, with its head.
fn http(node: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(node).expect("a node");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    // An event stream stays open; what came until the timeout is enough.
    while let Ok(read @ 1..) = stream.read(&mut piece) {
        answer.extend(&piece[..read]);
        if answer.windows(4).any(|four| four == b"\r\n\r\n") && answer.len() > 600 {
            break;
        }
    }
    text(&answer)
}

/// A position that the node hands out with its events.
fn position(node: SocketAddr) -> String {
    let answer = http(node, "/v1/events?after=oldest");
    let id = answer.lines().find_map(|line| line.strip_prefix("id:")).unwrap_or_else(|| panic!("no event: {answer}"));
    id.trim().to_owned()
}

async fn join(peer: &str, dir: &Path, node: u64) -> LoneNode {
    let started = LoneNode::start(dir, node, "restored", &["--join"]);
    cluster(&started.peer, &["status"]).await;
    cluster(peer, &["add", &node.to_string(), &started.peer]).await;
    cluster(peer, &["promote", &node.to_string()]).await;
    started
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_from_a_follower_under_load_becomes_a_cluster_of_three_with_the_same_state() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let old = DevCluster::start(dir.path(), 3, &[]);
    let peer = old.line(1).peer;
    let load = start_load(LoadSettings::new("backup"), &old.nodes()).await;
    let history = load.history().clone();
    progress(&history, 100).await;

    // 1. Under load: everything that was acknowledged before is in it, and a follower wrote it.
    let before = call(old.clients()[0], "session::create", json!({"title": "acknowledged before"})).await;
    let under_load = dir.path().join("under-load.backup");
    let leading = leader(&peer).await;
    let done = run_beside(&["backup", path(&under_load), "--peer", &peer, "--rate", "50MiB"]).await;
    println!("{}", text(&succeeds(done).stderr).trim());
    progress(&history, 50).await;
    let under_load = verified(&under_load);
    if leader(&peer).await == leading {
        assert_ne!(under_load["node"], leading, "a follower is asked");
    }
    assert!(under_load["sessions"].as_u64() > Some(1), "{under_load}");
    let history = load.stop().await;
    assert_lawful(&history, &old.clients()).await;

    // 2. At rest: the state hash of the backup is that of the nodes at the same entry.
    let hash = equal_states(&peer, 3).await;
    let file = dir.path().join("cluster.backup");
    succeeds(run_beside(&["backup", path(&file), "--peer", &peer]).await);
    let at_rest = verified(&file);
    assert_eq!(at_rest["state_hash"], hash, "{at_rest}");
    let exists = run(&["backup", path(&file), "--peer", &peer]);
    assert_eq!(exists.status.code(), Some(2));
    assert!(text(&exists.stderr).contains("--force"), "{}", text(&exists.stderr));
    let piped = program().args(["backup", "-", "--quiet", "--peer", &peer]).output().expect("the binary runs");
    fs::write(dir.path().join("piped.backup"), &succeeds(piped).stdout).expect("a file");
    assert_eq!(verified(&dir.path().join("piped.backup"))["content_hash"], at_rest["content_hash"]);
    let all = sessions(old.clients()[1]).await;
    let position = position(old.clients()[0]);
    drop(old);

    // 3. Restored: the same sessions under another cluster id. Three nodes, and the same content on a follower.
    let target = dir.path().join("restored-1");
    let restored = succeeds(run(&["restore", path(&file), "--data-dir", path(&target), "--json"]));
    let restored: Value = serde_json::from_slice(&restored.stdout).expect("JSON");
    assert_eq!(restored["state_hash"], hash);
    assert_ne!(restored["restored"]["cluster_id"], restored["cluster_id"]);
    let first = LoneNode::start(dir.path(), 1, "restored", &[]);
    let status = cluster(&first.peer, &["status"]).await;
    assert_eq!(status["cluster_id"], restored["restored"]["cluster_id"]);
    let second = join(&first.peer, dir.path(), 2).await;
    let third = join(&first.peer, dir.path(), 3).await;
    equal_states(&first.peer, 3).await;
    assert_eq!(sessions(third.client).await, all);
    let found = call(second.client, "session::get", json!({"session_id": before["session_id"]})).await;
    assert_eq!(found["meta"]["title"], "acknowledged before");
    let again = dir.path().join("again.backup");
    succeeds(run_beside(&["backup", path(&again), "--peer", &first.peer]).await);
    let again = verified(&again);
    assert_eq!(again["content_hash"], at_rest["content_hash"], "the same keys and values");
    assert_eq!(again["entries"], at_rest["entries"]);

    // 4. It accepts writes, and positions of the old cluster are refused by name.
    let answer = http(first.client, &format!("/v1/events?after={position}"));
    assert!(answer.contains("belongs to cluster"), "{position}: {answer}");
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    call(third.client, "session::create", json!({"title": "after the restore"})).await;
    equal_states(&first.peer, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_is_not_as_it_was_written_and_a_directory_in_use_are_refused_by_name() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = LoneNode::start(dir.path(), 1, "lone", &[]);
    for nth in 0..20 {
        let created = call(node.client, "session::create", json!({"title": nth.to_string()})).await;
        let append = json!({"session_id": created["session_id"], "message": {"role": "user", "timestamp": 1,
            "content": [{"type": "text", "text": "x".repeat(nth * 50)}]}});
        call(node.client, "session::append", append).await;
    }
    let file = dir.path().join("good.backup");
    succeeds(run_beside(&["backup", path(&file), "--peer", &node.peer]).await);
    let good = fs::read(&file).expect("the backup");
    let bad = dir.path().join("bad.backup");
    let target = dir.path().join("target");
    let try_restore = |bytes: &[u8], words: &str| {
        fs::write(&bad, bytes).expect("a file");
        refused(&run(&["verify", path(&bad)]), words);
        refused(&run(&["restore", path(&bad), "--data-dir", path(&target)]), words);
        assert!(!target.exists(), "a refused restore leaves nothing behind");
    };
    for nth in 0..40 {
        let mut flipped = good.clone();
        flipped[nth * (good.len() - 1) / 39] ^= 1 << (nth % 8);
        try_restore(&flipped, "");
    }
    try_restore(&good[..good.len() - 1], "cut short");
    try_restore(&good[..good.len() / 2], "cut short");
    try_restore(&[&good[..], b"x"].concat(), "bytes follow its end");
    try_restore(b"", "is not a backup file");
    try_restore(&fs::read(node.data_dir.join("identity")).expect("a file"), "is not a backup file");
    let mut newer = good.clone();
    newer[8] = 2;
    try_restore(&newer, "backup format 2");
    refused(&run(&["verify", path(&dir.path().join("absent"))]), "absent");

    // Several backups in a directory.
    let backups = dir.path().join("backups");
    fs::create_dir(&backups).expect("a directory");
    for _ in 0..3 {
        succeeds(run_beside(&["backup", path(&backups), "--keep", "2", "--peer", &node.peer]).await);
    }
    assert_eq!(fs::read_dir(&backups).expect("a directory").count(), 2);

    // A directory with anything in it stays as it is.
    refused(&run(&["restore", path(&file), "--data-dir", path(&node.data_dir)]), "is not empty");
    let other = dir.path().join("other");
    fs::create_dir(&other).expect("a directory");
    fs::write(other.join("notes.txt"), "mine").expect("a file");
    refused(&run(&["restore", path(&file), "--data-dir", path(&other)]), "notes.txt");
    assert_eq!(fs::read_dir(&other).expect("a directory").count(), 1);
    // A node that runs is not recovered under its feet.
    refused(&run(&["recover", "--data-dir", path(&node.data_dir), "--i-know-what-i-lose"]), "in use");
    refused(&run(&["recover", "--data-dir", path(&other), "--i-know-what-i-lose"]), "no data of the raft adapter");
    // An empty directory is as good as none.
    fs::create_dir(&target).expect("a directory");
    succeeds(run(&["restore", path(&file), "--data-dir", path(&target), "--node-id", "7"]));
    let status = call(node.client, "session::list", json!({"limit": 1})).await;
    assert!(status["sessions"].is_array(), "the node served all the time: {status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_survivor_of_a_lost_quorum_becomes_a_new_cluster_with_everything_it_has() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut old = DevCluster::start(dir.path(), 3, &[]);
    let load = start_load(LoadSettings::new("lost quorum"), &old.nodes()).await;
    progress(load.history(), 100).await;
    load.stop().await;
    equal_states(&old.line(1).peer, 3).await;
    let all = sessions(old.clients()[0]).await;
    let position = position(old.clients()[0]);
    let status = cluster(&old.line(1).peer, &["status"]).await;
    let data_dir = old.line(1).data_dir;
    assert!(signal(old.pid(), "TERM"));
    old.wait();
    drop(old);

    // Nodes 2 and 3 are lost for good. Without the flag nothing changes.
    let asked = run(&["recover", "--data-dir", path(&data_dir)]);
    assert_eq!(asked.status.code(), Some(2));
    assert!(text(&asked.stderr).contains("--i-know-what-i-lose"), "{}", text(&asked.stderr));
    let identity = fs::read_to_string(data_dir.join("identity")).expect("the identity");
    assert!(identity.contains(status["cluster_id"].as_str().expect("an id")), "{identity}");
    // Twice: an interrupted recovery is repeated.
    succeeds(run(&["recover", "--data-dir", path(&data_dir), "--i-know-what-i-lose"]));
    let done = succeeds(run(&["recover", "--data-dir", path(&data_dir), "--i-know-what-i-lose", "--json"]));
    let done: Value = serde_json::from_slice(&done.stdout).expect("JSON");

    let survivor = LoneNode::start(dir.path(), 1, "node", &[]);
    let now = cluster(&survivor.peer, &["status"]).await;
    assert_eq!(now["cluster_id"], done["cluster_id"]);
    assert_ne!(now["cluster_id"], status["cluster_id"]);
    assert_eq!(now["nodes"].as_array().map(Vec::len), Some(1), "{now}");
    assert_eq!(sessions(survivor.client).await, all);
    call(survivor.client, "session::create", json!({"title": "after the disaster"})).await;
    let answer = http(survivor.client, &format!("/v1/events?after={position}"));
    assert!(answer.contains("belongs to cluster"), "{position}: {answer}");
    // A member of the old cluster is refused with its old data, and an empty node joins.
    let late = LoneNode::start(dir.path(), 2, "node", &[]);
    cluster(&late.peer, &["status"]).await;
    let add = cluster_command(&survivor.peer, &["add", "2", &late.peer]);
    assert!(text(&add.stderr).contains("belongs to cluster"), "{}", text(&add.stderr));
    drop(late);
    let fresh = join(&survivor.peer, dir.path(), 4).await;
    equal_states(&survivor.peer, 2).await;
    assert_eq!(sessions(fresh.client).await.len(), all.len() + 1);
}
