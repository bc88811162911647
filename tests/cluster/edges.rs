//! Laws of edges of a real cluster: two bridges write while the leader is killed.

use std::path::Path;
use std::process::Command;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::client::{Client, user_message};
use crate::processes::{DevCluster, ServerProcess, eventually, leader, one_cluster_at_a_time};

const TIMES: u64 = 100;

/// A bridge process and a client of it.
struct Bridge {
    _process: ServerProcess,
    client: Client,
}

impl Bridge {
    async fn start(dir: &Path, name: &str, urls: &[String]) -> Bridge {
        let (config, port) = (dir.join(format!("{name}.yaml")), dir.join(format!("{name}.port")));
        // Long enough for an election on a busy machine.
        let settings = json!({ "adapter": { "name": "bridge", "config": { "urls": urls, "timeout_ms": 20_000 } } });
        std::fs::write(&config, settings.to_string()).expect("a written file");
        let set_arguments = |command: &mut Command| {
            command.args(["--listen", "127.0.0.1:0", "--config"]).arg(&config).arg("--port-file").arg(&port);
        };
        let process = ServerProcess::start(set_arguments, &dir.join(format!("{name}.log")));
        let port = eventually(async || {
            std::fs::read_to_string(&port).map_err(|error| format!("the bridge does not start: {error}"))
        })
        .await;
        let client = Client::connect(&format!("ws://127.0.0.1:{}", port.trim())).await;
        Bridge { _process: process, client }
    }

    /// Increments the number in a message by compare-and-set, and appends an entry without an id after each increment.
    async fn count_up(&self, name: &str) {
        for nth in 0..TIMES {
            loop {
                let entry = read_counter(&self.client).await;
                let number: u64 = text(&entry["message"]).parse().unwrap();
                let update = json!({
                    "session_id": "s", "entry_id": "counter", "expected_revision": entry["revision"],
                    "content": [{ "type": "text", "text": (number + 1).to_string() }],
                });
                if self.client.call("session::update-message", update).await["updated"] == true {
                    break;
                }
            }
            let message = user_message(&format!("{name} {nth}"));
            self.client.call("session::append", json!({ "session_id": "s", "message": message })).await;
        }
    }
}

async fn read_counter(client: &Client) -> Value {
    client.call("session::get-message", json!({ "session_id": "s", "entry_id": "counter" })).await["entry"].clone()
}

fn text(message: &Value) -> String {
    message["content"][0]["text"].as_str().expect("a text").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_bridges_lose_no_update_and_no_event_when_the_leader_is_killed_under_them() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = DevCluster::start(dir.path(), 3, &["--respawn"]);
    let first = leader(&cluster.peer_besides(0)).await;
    // Both bridges connect to the node that will be killed.
    let mut lines = cluster.lines();
    lines.sort_by_key(|line| line.node != first);
    let urls: Vec<String> = lines.iter().map(|line| line.client.clone()).collect();
    let bridges = [Bridge::start(dir.path(), "one", &urls).await, Bridge::start(dir.path(), "two", &urls).await];
    bridges[0].client.call("session::ensure", json!({ "session_id": "s", "metadata": { "tenant": "a" } })).await;
    let counter = json!({ "session_id": "s", "entry_id": "counter", "message": user_message("0") });
    bridges[0].client.call("session::append", counter).await;

    let mut added = Vec::new();
    let mut foreign = Vec::new();
    for bridge in &bridges {
        let mine = json!({ "metadata": { "tenant": "a" } });
        added.push(bridge.client.subscribe("session::message-added", mine).await);
        let others = json!({ "metadata": { "tenant": "b" } });
        foreign.push(bridge.client.subscribe("session::message-added", others).await);
    }
    let killed = async {
        eventually(async || {
            let revision = read_counter(&bridges[0].client).await["revision"].as_u64().unwrap();
            if revision >= TIMES / 2 { Ok(()) } else { Err(format!("the bridges make no progress: {revision}")) }
        })
        .await;
        cluster.signal_node(first, "KILL");
    };
    let counted = join_all(bridges.iter().zip(["one", "two"]).map(|(bridge, name)| bridge.count_up(name)));
    let ((), _) = tokio::join!(killed, counted);

    // No update and no entry is lost or applied twice.
    for bridge in &bridges {
        let entry = read_counter(&bridge.client).await;
        assert_eq!((entry["revision"].as_u64(), text(&entry["message"])), (Some(2 * TIMES), (2 * TIMES).to_string()));
    }
    let transcript = bridges[1].client.transcript("s").await;
    let mut stored: Vec<String> = transcript[1..].iter().map(|item| text(&item["message"])).collect();
    let wanted = |name: &str| (0..TIMES).map(|nth| format!("{name} {nth}")).collect::<Vec<_>>();
    let mut all = [wanted("one"), wanted("two")].concat();
    // Each edge receives every event, in order.
    let last = json!({ "session_id": "s", "message": user_message("last") });
    bridges[0].client.call("session::append", last).await;
    for events in &mut added {
        let received = events.until(|event| text(&event["message"]) == "last").await;
        let mut received: Vec<String> = received.iter().map(|event| text(&event.payload["message"])).collect();
        // The event of the counter message may have reached this edge after it subscribed.
        received.retain(|text| text != "0");
        assert_eq!(received[..received.len() - 1], stored);
    }
    stored.sort();
    all.sort();
    assert_eq!(stored, all);
    for bridge in &bridges {
        let ensure = json!({ "session_id": "t", "metadata": { "tenant": "b" } });
        bridge.client.call("session::ensure", ensure).await;
    }
    bridges[0].client.call("session::append", json!({ "session_id": "t", "message": user_message("t") })).await;
    for events in &mut foreign {
        assert_eq!(events.next().await.payload["session_id"], "t", "the first event of tenant b");
    }
}
