//! Laws of the commands around a cluster: one clear line for what cannot be done, and no process left behind.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use session_manager::cli::trial::{Door, Heard, Nodes};

use crate::machinery::{
    DevCluster, PAUSE, SETTLE_MAX, cluster, cluster_command, equal_states, leader, program, signal, turn,
};

/// Calls one node until it answers.
async fn call(node: SocketAddr, function: &str, body: Value) -> Value {
    let mut door = Door::new(Nodes::new(vec![node]), 0, Duration::from_secs(5));
    let begun = Instant::now();
    loop {
        match door.call(function, &body).await {
            Heard::Answer(answer) => return answer,
            other => assert!(begun.elapsed() < SETTLE_MAX, "{function} at {node}: {other:?}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn listens(address: &SocketAddr) -> bool {
    std::net::TcpStream::connect(address).is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_node_acknowledges_every_node_reads_at_once_and_a_second_start_brings_it_back() {
    let _turn = turn().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut dev = DevCluster::start(dir.path(), 3, &[]);
    let clients = dev.clients();
    assert!(dev.lines().iter().all(|line| line.data_dir.is_dir()));
    let mut written = Vec::new();
    for nth in 0..30 {
        let created = call(clients[nth % 3], "session::create", json!({ "title": nth.to_string() })).await;
        let id = created["session_id"].as_str().expect("an id").to_owned();
        for node in &clients {
            let got = call(*node, "session::get", json!({ "session_id": id })).await;
            assert_eq!(got["meta"]["title"], nth.to_string(), "{node} has not what another one acknowledged");
        }
        written.push(id);
    }
    // SIGTERM stops all nodes in order; the next start finds the same cluster at the same addresses.
    assert!(signal(dev.pid(), "TERM"));
    assert_eq!(dev.wait().code(), Some(0));
    assert!(!clients.iter().any(listens), "a node is left behind");
    drop(dev);
    let dev = DevCluster::start(dir.path(), 3, &[]);
    assert_eq!(dev.clients(), clients);
    for id in &written {
        assert!(call(clients[2], "session::get", json!({ "session_id": id })).await.is_object());
    }
    equal_states(&dev.peer_besides(0), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_any_node_is_survived_and_nodes_die_with_their_parent() {
    let _turn = turn().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut dev = DevCluster::start(dir.path(), 3, &["--respawn"]);
    let before = dev.line(2).pid;
    dev.signal_node(2, "KILL");
    call(dev.line(1).client_address(), "session::create", json!({})).await;
    let begun = Instant::now();
    while dev.line(2).pid == before {
        assert!(begun.elapsed() < SETTLE_MAX, "node 2 was not started again");
        tokio::time::sleep(PAUSE).await;
    }
    equal_states(&dev.line(1).peer, 3).await;

    let clients = dev.clients();
    assert!(signal(dev.pid(), "KILL"));
    dev.wait();
    let begun = Instant::now();
    while clients.iter().any(listens) {
        assert!(begun.elapsed() < SETTLE_MAX, "a node outlives its killed parent");
        tokio::time::sleep(PAUSE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cluster_command_says_in_one_line_what_cannot_be_done() {
    let _turn = turn().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let dev = DevCluster::start(dir.path(), 3, &[]);
    let peer = dev.line(1).peer;
    let client = dev.line(1).client_address().to_string();
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it").to_string();
    for (peer, arguments, code, words) in [
        (&*free, &["status"][..], 2, "cannot reach"),
        (&client, &["status"], 2, "is not the peer address"),
        (&peer, &["status", "--cluster-id", "another"], 1, "another"),
        (&peer, &["promote", "9"], 1, "9"),
        (&peer, &["remove", "9"], 1, "9"),
        (&peer, &["transfer-leader", "9"], 1, "9"),
        (&peer, &["add", "2", "127.0.0.1:1"], 1, "2"),
        (&peer, &["init"], 1, ""),
    ] {
        let output = cluster_command(peer, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: one line: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }

    let leading = leader(&peer).await;
    let table = String::from_utf8(cluster_command(&peer, &["status"]).stdout).expect("text");
    assert_eq!(table.lines().count(), 5, "{table}");
    assert_eq!(table.matches("leader").count(), 2, "the column and one role: {table}");
    for follower in dev.lines().iter().filter(|line| line.node != leading) {
        let built = cluster(&follower.peer, &["snapshot"]).await;
        assert!(built["index"].is_u64(), "{built}");
    }
    let help = program().args(["cluster", "--help"]).output().expect("help");
    assert!(String::from_utf8_lossy(&help.stdout).contains("Examples:"));
}
