//! Laws of the files of the fs adapter, compared with files that were written by hand from the contract: files of
//! session-manager 1.0 open and serve, and ours have the same format.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::client::{Client, user_message};
use crate::node::NodeProcess;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The records of a file, with every time zeroed.
fn records(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect();
    records.iter_mut().for_each(without_times);
    records
}

fn without_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match name.as_str() {
                    "timestamp" | "created_at" | "updated_at" => *value = json!(0),
                    _ => without_times(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(without_times),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_of_the_upstream_program_opens_and_serves() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("a directory");
    for file in std::fs::read_dir(golden("upstream")).expect("golden files") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), data.join(file.file_name())).expect("a copied file");
    }
    let node = NodeProcess::start(&data, &["--adapter", "fs"]);
    let client = Client::connect(&node.url()).await;
    let id = "../escape/chat 42:?";
    let got = client.call("session::get", json!({ "session_id": id })).await;
    let meta = json!({
        "session_id": id, "title": "Weather", "description": "", "status": "error", "status_reason": "rate limited",
        "message_count": 3, "metadata": { "owner": "u_1" }, "forked_from": "s_0",
        "created_at": 1_717_800_000_000_i64, "updated_at": 1_717_800_000_005_i64,
    });
    assert_eq!(got["meta"], meta);
    let listed = client.call("session::list", json!({ "metadata": { "owner": "u_1" } })).await;
    assert_eq!(listed["sessions"], json!([meta]));
    let page = client.call("session::messages", json!({ "session_id": id, "include_custom": true })).await;
    let ids: Vec<&Value> = page["messages"].as_array().unwrap().iter().map(|item| &item["entry_id"]).collect();
    assert_eq!(ids, ["e_1", "e_2", "e_3"]);
    assert_eq!(page["messages"][1]["message"]["content"][0]["text"], "It is raining.");
    assert_eq!(page["messages"][2]["custom"]["data"]["tail_start_entry_id"], "e_2");
    let branch = client.call("session::get-message", json!({ "session_id": id, "entry_id": "e_4" })).await;
    assert_eq!(branch["entry"]["message"]["details"], json!({ "mm": 3 }));
    // The node continues the session, and does not change files that it does not write to.
    let update = json!({ "session_id": id, "entry_id": "e_2", "content": [], "expected_revision": 3 });
    assert_eq!(client.call("session::update-message", update).await, json!({ "updated": true, "revision": 4 }));
    let append = json!({ "session_id": id, "entry_id": "e_5", "message": user_message("next") });
    assert_eq!(client.call("session::append", append).await["parent_id"], "e_3");
    let plain = std::fs::read(golden("upstream").join("plain.jsonl")).expect("a golden file");
    assert_eq!(std::fs::read(data.join("plain.jsonl")).expect("the copy"), plain);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_of_ours_has_the_format_of_the_upstream_program() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = dir.path().join("data");
    let node = NodeProcess::start(&data, &["--adapter", "fs"]);
    let client = Client::connect(&node.url()).await;
    let calls = [
        ("session::ensure", json!({ "title": "T", "description": "D", "metadata": { "owner": "u_1" } })),
        ("session::append", json!({ "entry_id": "a", "message": user_message("hi") })),
        (
            "session::append",
            json!({ "entry_id": "b", "custom": { "custom_type": "mark", "data": { "n": 0 } }, "origin": { "turn": "t_1" } }),
        ),
        ("session::update-message", json!({ "entry_id": "a", "content": [{ "type": "text", "text": "hi again" }] })),
        ("session::set-active-leaf", json!({ "entry_id": "a" })),
        ("session::set-status", json!({ "status": "error", "reason": "why" })),
    ];
    for (function, mut body) in calls {
        body["session_id"] = json!("chat 42");
        client.call(function, body).await;
    }
    let name = "chat%2042.jsonl";
    assert_eq!(records(&data.join(name)), records(&golden("ours").join(name)));
}
