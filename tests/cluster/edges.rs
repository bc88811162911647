//! Laws of edges before a real cluster: two bridges, and the leader killed while both write.

use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Instant;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::client::{Client, user_message};
use crate::machinery::{DevCluster, PAUSE, SETTLE_MAX, leader, program, turn};

const TIMES: u64 = 100;

/// A bridge of its own process.
struct Bridge {
    process: Child,
    _stdin: ChildStdin,
    client: Client,
}

impl Bridge {
    async fn start(dir: &Path, name: &str, urls: &[String]) -> Bridge {
        let (config, port) = (dir.join(format!("{name}.yaml")), dir.join(format!("{name}.port")));
        // An election on a busy machine must fit.
        let settings = json!({ "adapter": { "name": "bridge", "config": { "urls": urls, "timeout_ms": 20_000 } } });
        std::fs::write(&config, settings.to_string()).expect("a written file");
        let log = std::fs::File::create(dir.join(format!("{name}.log"))).expect("a log file");
        let mut process = program()
            .args(["serve", "--listen", "127.0.0.1:0", "--exit-with-parent", "--config"])
            .arg(&config)
            .arg("--port-file")
            .arg(&port)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        let stdin = process.stdin.take().expect("its input");
        let begun = Instant::now();
        let port = loop {
            if let Ok(port) = std::fs::read_to_string(&port) {
                break port;
            }
            assert!(begun.elapsed() < SETTLE_MAX, "the bridge does not start");
            tokio::time::sleep(PAUSE).await;
        };
        let client = Client::connect(&format!("ws://127.0.0.1:{}", port.trim())).await;
        Bridge { process, _stdin: stdin, client }
    }

    /// Raises the number in a message, each time by one over what was read, and adds an entry without an id each time.
    async fn count_up(&self, name: &str) {
        for nth in 0..TIMES {
            loop {
                let asked = json!({ "session_id": "s", "entry_id": "counter" });
                let read = self.client.call("session::get-message", asked).await;
                let number: u64 = read["entry"]["message"]["content"][0]["text"].as_str().unwrap().parse().unwrap();
                let update = json!({
                    "session_id": "s", "entry_id": "counter", "expected_revision": read["entry"]["revision"],
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

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn text(message: &Value) -> String {
    message["content"][0]["text"].as_str().expect("a text").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_bridges_lose_no_update_and_no_event_when_the_leader_is_killed_under_them() {
    let _turn = turn().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = DevCluster::start(dir.path(), 3, &["--respawn"]);
    let first = leader(&cluster.peer_besides(0)).await;
    // Both are attached to the node that is going to be killed.
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
        added.push(bridge.client.listen("session::message-added", mine).await);
        let others = json!({ "metadata": { "tenant": "b" } });
        foreign.push(bridge.client.listen("session::message-added", others).await);
    }
    let killed = async {
        let begun = Instant::now();
        loop {
            let asked = json!({ "session_id": "s", "entry_id": "counter" });
            let read = bridges[0].client.call("session::get-message", asked).await;
            if read["entry"]["revision"].as_u64().unwrap() >= TIMES / 2 {
                break cluster.signal_node(first, "KILL");
            }
            assert!(begun.elapsed() < SETTLE_MAX, "the bridges do not get on");
            tokio::time::sleep(PAUSE).await;
        }
    };
    let counted = join_all(bridges.iter().zip(["one", "two"]).map(|(bridge, name)| bridge.count_up(name)));
    let ((), _) = tokio::join!(killed, counted);

    // Not one update is lost or made twice, nor one entry.
    for bridge in &bridges {
        let read =
            bridge.client.call("session::get-message", json!({ "session_id": "s", "entry_id": "counter" })).await;
        let entry = &read["entry"];
        assert_eq!((entry["revision"].as_u64(), text(&entry["message"])), (Some(2 * TIMES), (2 * TIMES).to_string()));
    }
    let transcript = bridges[1].client.transcript("s").await;
    let mut said: Vec<String> = transcript[1..].iter().map(|item| text(&item["message"])).collect();
    let wanted = |name: &str| (0..TIMES).map(|nth| format!("{name} {nth}")).collect::<Vec<_>>();
    let mut all = [wanted("one"), wanted("two")].concat();
    // What was heard at each edge is what happened, in its order.
    let last = json!({ "session_id": "s", "message": user_message("last") });
    bridges[0].client.call("session::append", last).await;
    for events in &mut added {
        let heard = events.until(|event| text(&event["message"]) == "last").await;
        let mut heard: Vec<String> = heard.iter().map(|event| text(&event.payload["message"])).collect();
        // The counter's own message may still have been on its way to this edge when it began to listen.
        heard.retain(|text| text != "0");
        assert_eq!(heard[..heard.len() - 1], said);
    }
    said.sort();
    all.sort();
    assert_eq!(said, all);
    for bridge in &bridges {
        let ensure = json!({ "session_id": "t", "metadata": { "tenant": "b" } });
        bridge.client.call("session::ensure", ensure).await;
    }
    bridges[0].client.call("session::append", json!({ "session_id": "t", "message": user_message("t") })).await;
    for events in &mut foreign {
        assert_eq!(events.next().await.payload["session_id"], "t", "the first event of tenant b");
    }
}
