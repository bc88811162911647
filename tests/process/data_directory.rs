//! The data directory of a node of version 0.1 (`tests/golden/node-0.1`): a log, a snapshot in the middle of it, and the
//! state. This build opens it, and serves what that node served.

use std::path::Path;

use serde_json::{Value, json};

use crate::client::{Client, user_message};
use crate::node::NodeProcess;

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("a copied file")),
        }
    }
}

async fn check(data: &Path) {
    let node = NodeProcess::start(data, &[]);
    let client = Client::connect(&node.url()).await;
    let one = json!({
        "session_id": "golden/one", "title": "One, renamed", "description": "first", "status": "working",
        "message_count": 3, "metadata": { "n": 1, "tenant": "a" },
        "created_at": 1_795_009_561_669_i64, "updated_at": 1_795_009_562_660_i64,
    });
    let fork = "s_01a1eee8-4665-7000-8eb4-46958d06b784";
    let listed = client.call("session::list", json!({ "metadata": { "tenant": "a" } })).await;
    assert_eq!(listed["sessions"][0], one);
    assert_eq!(listed["sessions"][1]["session_id"], fork);
    assert_eq!(listed["sessions"][1]["forked_from"], "golden/one");
    assert_eq!(listed["sessions"].as_array().map(Vec::len), Some(2));
    let answer = json!({
        "role": "assistant", "content": [{ "type": "text", "text": "A first answer, longer" }],
        "model": "m", "provider": "p", "stop_reason": "end", "timestamp": 2,
    });
    let page = client.call("session::messages", json!({ "session_id": "golden/one" })).await;
    assert_eq!(page["messages"][0]["message"]["content"][0]["text"], "Hello, wörld");
    assert_eq!(page["messages"][1]["message"], answer);
    let page = client.call("session::messages", json!({ "session_id": fork })).await;
    assert_eq!(page["messages"][1]["message"], answer, "the fork has its copy");
    let branch = json!({ "session_id": "golden/one", "from_entry_id": "e4", "include_custom": true });
    let page = client.call("session::messages", branch).await;
    let ids: Vec<&Value> = page["messages"].as_array().expect("a page").iter().map(|item| &item["entry_id"]).collect();
    assert_eq!(ids, ["e1", "e3", "e4"]);
    assert_eq!(page["messages"][2]["custom"]["data"], json!({ "k": [1, 2.5, "x"] }));
    let entry = client.call("session::get-message", json!({ "session_id": "golden/one", "entry_id": "e2" })).await;
    assert_eq!(entry["entry"]["revision"], 2);
    let page = client.call("session::messages", json!({ "session_id": "golden/two" })).await;
    assert_eq!(page["messages"].as_array().map(Vec::len), Some(3), "what came after the snapshot is there");
    let gone = client.call("session::get", json!({ "session_id": "golden/gone" })).await;
    assert_eq!(gone["meta"], Value::Null);
    // It goes on.
    let append = json!({ "session_id": "golden/one", "entry_id": "e5", "message": user_message("next") });
    assert_eq!(client.call("session::append", append).await["parent_id"], "e2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_of_version_0_1_opens_with_its_state_and_without() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/node-0.1");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (whole, rebuilt) = (dir.path().join("whole"), dir.path().join("rebuilt"));
    copy(&golden, &whole);
    check(&whole).await;
    // The state is rebuilt from the snapshot and the log.
    copy(&golden, &rebuilt);
    std::fs::remove_dir_all(rebuilt.join("state")).expect("a state");
    check(&rebuilt).await;
}
