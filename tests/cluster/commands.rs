//! Laws of the commands `dev` and `cluster`: one clear line for a request that cannot be done, and no process that
//! outlives its parent.

use std::net::SocketAddr;

use serde_json::json;

use crate::processes::{
    DevCluster, call, cluster, cluster_command, equal_states, eventually, leader, one_cluster_at_a_time, program,
    signal,
};

fn listens(address: &SocketAddr) -> bool {
    std::net::TcpStream::connect(address).is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_acknowledged_by_one_node_is_read_on_every_node_and_survives_a_restart() {
    let _only = one_cluster_at_a_time().await;
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
            assert_eq!(got["meta"]["title"], nth.to_string(), "{node} lacks what another node acknowledged");
        }
        written.push(id);
    }
    // SIGTERM shuts all nodes down. The next start finds the same cluster at the same addresses.
    assert!(signal(dev.pid(), "TERM"));
    assert_eq!(dev.wait().code(), Some(0));
    assert!(!clients.iter().any(listens), "a node outlives `dev`");
    drop(dev);
    let dev = DevCluster::start(dir.path(), 3, &[]);
    assert_eq!(dev.clients(), clients);
    for id in &written {
        assert!(call(clients[2], "session::get", json!({ "session_id": id })).await.is_object());
    }
    equal_states(&dev.peer_besides(0), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_restarts_a_killed_node_and_nodes_end_with_their_parent() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut dev = DevCluster::start(dir.path(), 3, &["--respawn"]);
    let before = dev.line(2).pid;
    dev.signal_node(2, "KILL");
    call(dev.line(1).client_address(), "session::create", json!({})).await;
    let restarted = |dev: &DevCluster| dev.line(2).pid != before;
    eventually(async || if restarted(&dev) { Ok(()) } else { Err("node 2 was not restarted".to_owned()) }).await;
    equal_states(&dev.line(1).peer, 3).await;

    let clients = dev.clients();
    assert!(signal(dev.pid(), "KILL"));
    dev.wait();
    let ended = || !clients.iter().any(listens);
    eventually(async || if ended() { Ok(()) } else { Err("a node outlives its killed parent".to_owned()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cluster_command_refuses_in_one_line() {
    let _only = one_cluster_at_a_time().await;
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
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{arguments:?}: one line: {message}");
        assert!(message.contains(words), "{arguments:?}: {message}");
    }

    let leading = leader(&peer).await;
    let table = String::from_utf8(cluster_command(&peer, &["status"]).stdout).expect("text");
    let (rows, urls): (Vec<&str>, Vec<&str>) = table.lines().partition(|line| !line.contains("clients connect to"));
    assert_eq!(rows.len(), 5, "the cluster, the header and three nodes: {table}");
    assert_eq!(urls.len(), 3, "where clients reach each node: {table}");
    assert_eq!(table.matches("leader").count(), 2, "the column and one role: {table}");
    for follower in dev.lines().iter().filter(|line| line.node != leading) {
        let built = cluster(&follower.peer, &["snapshot"]).await;
        assert!(built["index"].is_u64(), "{built}");
    }
    let help = program().args(["cluster", "--help"]).output().expect("help");
    assert!(String::from_utf8_lossy(&help.stdout).contains("Examples:"));
}
