//! Laws of a killed node: after a restart every acknowledged entry is stored once, in one chain.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinSet;

use crate::client::{Client, user_message};
use crate::node::NodeProcess;

const ROUNDS: usize = 10;
const WRITERS: usize = 6;
const SESSIONS: usize = 3;
/// Enough for several fsyncs before each kill.
const ACKNOWLEDGED_PER_ROUND: usize = 60;

/// Entry ids by session, each recorded after its acknowledgement.
type Acknowledged = Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_kills_under_load_lose_nothing_acknowledged_with_raft() {
    kill_rounds("raft").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_kills_under_load_lose_nothing_acknowledged_with_fs() {
    kill_rounds("fs").await;
}

async fn kill_rounds(adapter: &str) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = dir.path().join("data");
    let acknowledged = Acknowledged::default();
    for round in 0..ROUNDS {
        let node = NodeProcess::start(&data, &["--adapter", adapter]);
        check(&node, &acknowledged).await;
        let writers = start_writers(&node, round, &acknowledged).await;
        let goal = count(&acknowledged) + ACKNOWLEDGED_PER_ROUND;
        wait_until(|| count(&acknowledged) >= goal).await;
        node.kill();
        drop(writers);
    }
    let node = NodeProcess::start(&data, &["--adapter", adapter]);
    check(&node, &acknowledged).await;
    assert!(count(&acknowledged) >= ROUNDS * ACKNOWLEDGED_PER_ROUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_while_writing_exits_0_and_keeps_what_was_acknowledged() {
    for adapter in ["raft", "fs"] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let data = dir.path().join("data");
        let acknowledged = Acknowledged::default();
        let node = NodeProcess::start(&data, &["--adapter", adapter]);
        let writers = start_writers(&node, 0, &acknowledged).await;
        wait_until(|| count(&acknowledged) >= ACKNOWLEDGED_PER_ROUND).await;
        node.signal("TERM");
        let status = node.wait();
        drop(writers);
        assert_eq!(status.code(), Some(0), "{adapter}: SIGTERM must exit 0");
        restart_and_check(&data, adapter, &acknowledged).await;
    }
}

async fn restart_and_check(data: &Path, adapter: &str, acknowledged: &Acknowledged) {
    let node = NodeProcess::start(data, &["--adapter", adapter]);
    check(&node, acknowledged).await;
}

/// Writers append until they are dropped. Each has its own connection; several share a session.
async fn start_writers(node: &NodeProcess, round: usize, acknowledged: &Acknowledged) -> JoinSet<()> {
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let client = Client::connect(&node.url()).await;
        let session_id = format!("session {}", writer % SESSIONS);
        client.call("session::ensure", json!({ "session_id": session_id })).await;
        let acknowledged = acknowledged.clone();
        writers.spawn(async move {
            for nth in 0.. {
                let entry_id = format!("round {round} writer {writer} entry {nth}");
                let append = json!({
                    "session_id": session_id, "entry_id": entry_id, "message": user_message(&entry_id),
                });
                if client.try_call("session::append", append).await.is_err() {
                    return;
                }
                let mut acknowledged = acknowledged.lock().expect("no writer panicked");
                acknowledged.entry(session_id.clone()).or_default().insert(entry_id);
            }
        });
    }
    writers
}

/// Every acknowledged entry is in the transcript exactly once, and the chain from the leaf reaches every entry.
async fn check(node: &NodeProcess, acknowledged: &Acknowledged) {
    let client = Client::connect(&node.url()).await;
    let expected = acknowledged.lock().expect("no writer panicked").clone();
    for (session_id, entry_ids) in expected {
        let transcript = client.transcript(&session_id).await;
        let mut times: BTreeMap<&str, usize> = BTreeMap::new();
        for item in &transcript {
            *times.entry(item["entry_id"].as_str().expect("an entry id")).or_default() += 1;
        }
        for entry_id in &entry_ids {
            assert_eq!(times.get(entry_id.as_str()), Some(&1), "{session_id}: {entry_id}\n{}", node.log());
        }
        assert!(times.values().all(|times| *times == 1), "{session_id}: an entry is stored twice");
        // There are no branches, so an entry that the path does not reach means a broken chain.
        let session = client.call("session::get", json!({ "session_id": session_id })).await;
        assert_eq!(session["meta"]["message_count"], transcript.len(), "{session_id}: the chain is broken");
    }
    client.close().await;
}

fn count(acknowledged: &Acknowledged) -> usize {
    acknowledged.lock().expect("no writer panicked").values().map(BTreeSet::len).sum()
}

async fn wait_until(reached: impl Fn() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the writers make no progress");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
