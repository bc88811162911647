//! Laws of a cluster whose members change under load: no write is lost, and no node joins or leaves by accident.

use std::path::Path;

use crate::load::{LoadSettings, Nodes};
use serde_json::{Value, json};

use crate::processes::{
    DevCluster, LoneNode, all_healthy, assert_lawful, call, cluster, cluster_command, equal_states, eventually, leader,
    one_cluster_at_a_time, progress, start_load, status,
};

/// More than the two seconds after which the leader counts a silent voter as unreachable.
const LOST_AFTER_MS: u64 = 2_500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_grows_to_five_shrinks_to_three_and_a_dead_one_is_replaced_under_load() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let first = DevCluster::start(dir.path(), 1, &[]);
    let peer = first.line(1).peer;
    let nodes = first.nodes();
    let load = start_load(LoadSettings::new("growth"), &nodes).await;
    let history = load.history().clone();
    progress(&history, 50).await;

    // 1. Grow: the new nodes get what the first one wrote alone.
    let second = join(&peer, dir.path(), 2, &nodes).await;
    progress(&history, 50).await;
    let mut third = join(&peer, dir.path(), 3, &nodes).await;
    progress(&history, 50).await;

    // 2. Five voters, then three again. A leader cannot be removed, so it transfers leadership first.
    let fourth = join(&peer, dir.path(), 4, &nodes).await;
    let fifth = join(&peer, dir.path(), 5, &nodes).await;
    progress(&history, 50).await;
    assert_eq!(cluster(&peer, &["status"]).await["nodes"].as_array().map(Vec::len), Some(5));
    for leaving in [4, 5] {
        if leader(&peer).await == leaving {
            cluster(&peer, &["transfer-leader", "1"]).await;
        }
        cluster(&peer, &["remove", &leaving.to_string()]).await;
    }
    nodes.set(vec![first.line(1).client_address(), second.client, third.client]);
    drop((fourth, fifth));
    progress(&history, 50).await;

    // 3. One node loses its disk. Two of three continue; removing a second one would leave no quorum.
    nodes.set(vec![first.line(1).client_address(), second.client]);
    third.kill();
    std::fs::remove_dir_all(&third.data_dir).expect("its disk");
    progress(&history, 50).await;
    unreachable(&peer, 3).await;
    let follower = if leader(&peer).await == 1 { "2" } else { "1" };
    let refused = cluster_command(&peer, &["remove", follower]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{why}");
    assert!(why.contains("--force"), "the refusal names --force: {why}");

    // An empty node with the lost id is refused, and so is a node of another cluster.
    let wiped = LoneNode::start(dir.path(), 3, "wiped", &["--join"]);
    refuses(&peer, 3, &wiped, "disk").await;
    drop(wiped);
    let stranger = LoneNode::start(dir.path(), 7, "stranger", &[]);
    refuses(&peer, 7, &stranger, "belongs to cluster").await;
    drop(stranger);

    // 4. An empty node with a new id replaces it.
    let removed = cluster(&peer, &["remove", "3"]).await;
    assert_eq!(ids(&removed["members"]), [1, 2]);
    let sixth = join(&peer, dir.path(), 6, &nodes).await;
    progress(&history, 100).await;

    // 5. Leadership moves on request, and writes continue.
    let before = leader(&peer).await;
    let to = if before == 6 { 2 } else { 6 };
    let moved = cluster(&peer, &["transfer-leader", &to.to_string()]).await;
    assert_eq!(moved["leader"], to);
    progress(&history, 50).await;

    let history = load.stop().await;
    equal_states(&peer, 3).await;
    assert_lawful(&history, &[first.line(1).client_address(), second.client, sixth.client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_restart_one_by_one_under_load() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let dev = DevCluster::start(dir.path(), 3, &["--respawn"]);
    let peer = dev.line(1).peer;
    let nodes = dev.nodes();
    let load = start_load(LoadSettings::new("rolling"), &nodes).await;
    let history = load.history().clone();
    progress(&history, 50).await;

    // Every node is shut down and restarted, one after the other.
    let mut silences = Vec::new();
    for node in 1..=3 {
        let (before, asked_at) = (dev.line(node).pid, history.now());
        dev.signal_node(node, "TERM");
        let restarted = || dev.line(node).pid != before;
        eventually(async || if restarted() { Ok(()) } else { Err(format!("node {node} was not restarted")) }).await;
        all_healthy(&peer, 3).await;
        progress(&history, 20).await;
        silences.push(history.longest_silence(asked_at, history.now()));
    }
    let history = load.stop().await;
    equal_states(&peer, 3).await;
    assert_lawful(&history, &dev.clients()).await;
    println!("three nodes stopped and started one by one: longest times without a write {silences:.0?}");
}

/// A node that must not be added is refused with the reason.
async fn refuses(peer: &str, node: u64, newcomer: &LoneNode, reason: &str) {
    cluster(&newcomer.peer, &["status"]).await;
    let refused = cluster_command(peer, &["add", &node.to_string(), &newcomer.peer]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{why}");
    assert!(why.contains(reason), "{why}");
}

/// Starts an empty node and makes it a voter.
async fn join(peer: &str, dir: &Path, node: u64, nodes: &Nodes) -> LoneNode {
    let started = LoneNode::start(dir, node, "lone", &["--join"]);
    let id = node.to_string();
    cluster(&started.peer, &["status"]).await;
    let added = cluster(peer, &["add", &id, &started.peer]).await;
    assert!(ids(&added["members"]).contains(&node), "{added}");
    cluster(peer, &["promote", &id]).await;
    let mut clients = nodes.all();
    clients.push(started.client);
    nodes.set(clients);
    call(started.client, "session::list", json!({ "limit": 1 })).await;
    started
}

/// Waits until the leader counts a node as unreachable.
async fn unreachable(peer: &str, node: u64) {
    eventually(async || {
        let status = status(peer).await;
        let members = status["nodes"].as_array().expect("nodes");
        let heard_ms = members.iter().find(|member| member["node"] == node).map(|member| &member["heard_ms"]);
        let silent = heard_ms.is_some_and(|ms| ms.as_u64().is_none_or(|ms| ms > LOST_AFTER_MS));
        if status["leader"].is_u64() && silent { Ok(()) } else { Err(format!("node {node} is reachable: {status:#}")) }
    })
    .await;
}

fn ids(members: &Value) -> Vec<u64> {
    members.as_array().expect("members").iter().filter_map(|member| member["node"].as_u64()).collect()
}
