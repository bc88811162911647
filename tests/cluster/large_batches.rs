//! Laws of large batches: several at once, one through each node, are each applied once and whole on every node, and the
//! small writes beside them lose nothing.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::load::clients::user_message;
use crate::load::{Caller, LoadSettings, Nodes, Outcome};
use crate::processes::{DevCluster, assert_lawful, call, equal_states, one_cluster_at_a_time, progress, start_load};

const MESSAGES: usize = 400;
const MESSAGE_BYTES: usize = 24 << 10;

/// The text of a message. No two messages of a cluster have the same.
fn text(session: &str, nth: usize) -> String {
    format!("{session} {nth} {}", "x".repeat(MESSAGE_BYTES))
}

async fn append_batch(node: SocketAddr, session: &str) {
    let messages: Vec<Value> = (0..MESSAGES).map(|nth| user_message(&text(session, nth))).collect();
    let mut caller = Caller::new(Nodes::new(vec![node]), 0, Duration::from_secs(60));
    let outcome = caller.call("session::append-many", &json!({ "session_id": session, "messages": messages })).await;
    let Outcome::Answered(answer) = outcome else { panic!("the batch for {session}: {outcome:?}") };
    assert_eq!(answer["entry_ids"].as_array().map(Vec::len), Some(MESSAGES), "an id for each message of {session}");
}

async fn texts(node: SocketAddr, session: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let mut body = json!({ "session_id": session, "limit": 100 });
    loop {
        let page = call(node, "session::messages", body.clone()).await;
        let found = page["messages"].as_array().expect("messages");
        texts.extend(
            found.iter().map(|found| found["message"]["content"][0]["text"].as_str().expect("text").to_owned()),
        );
        match page["next_cursor"].as_str() {
            Some(cursor) => body["cursor"] = json!(cursor),
            None => return texts,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_batches_through_every_node_are_applied_once_and_whole() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = DevCluster::start(dir.path(), 3, &[]);
    let load = start_load(LoadSettings::new("beside"), &cluster.nodes()).await;
    progress(load.history(), 20).await;
    let nodes = cluster.clients();
    let sessions: Vec<String> = (0..nodes.len()).map(|nth| format!("batch {nth}")).collect();
    for session in &sessions {
        call(nodes[0], "session::ensure", json!({ "session_id": session })).await;
    }

    join_all(nodes.iter().zip(&sessions).map(|(node, session)| append_batch(*node, session))).await;
    progress(load.history(), 20).await;
    let history = load.stop().await;

    equal_states(&cluster.peer_besides(0), 3).await;
    for session in &sessions {
        let expected: Vec<String> = (0..MESSAGES).map(|nth| text(session, nth)).collect();
        assert!(texts(nodes[0], session).await == expected, "{session} is not what was appended");
    }
    assert_lawful(&history, &nodes).await;
}
