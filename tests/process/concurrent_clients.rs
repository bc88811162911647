//! Laws of concurrent clients: one entry per id, no lost update, one chain of entries.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::client::{Client, user_message};
use crate::node::NodeProcess;

struct Race {
    clients: Vec<Client>,
    session_id: String,
    _node: NodeProcess,
    _dir: tempfile::TempDir,
}

async fn race_of(clients: usize) -> Race {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    let url = node.url();
    let clients = join_all((0..clients).map(|_| Client::connect(&url))).await;
    let session_id = clients[0].create().await;
    Race { clients, session_id, _node: node, _dir: dir }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twelve_clients_appending_one_entry_id_make_one_entry_and_one_event() {
    let race = race_of(12).await;
    let session_id = &race.session_id;
    let mut added = race.clients[0].subscribe("session::message-added", json!({ "session_id": session_id })).await;
    let answers = join_all(race.clients.iter().enumerate().map(|(nth, client)| {
        let message = user_message(&format!("from client {nth}"));
        client.call("session::append", json!({ "session_id": session_id, "entry_id": "same", "message": message }))
    }))
    .await;
    assert!(answers.iter().all(|answer| *answer == answers[0]), "all clients get the first one's answer: {answers:?}");

    // All events of the twelve calls come before this one.
    let last = json!({ "session_id": session_id, "entry_id": "last", "message": user_message("last") });
    race.clients[1].call("session::append", last).await;
    let received = added.until(|payload| payload["entry_id"] == "last").await;
    let of_same = received.iter().filter(|event| event.payload["entry_id"] == "same").count();
    assert_eq!((of_same, received.len()), (1, 2));

    let transcript = race.clients[2].transcript(session_id).await;
    let entry_ids: Vec<&Value> = transcript.iter().map(|item| &item["entry_id"]).collect();
    assert_eq!(entry_ids, [&json!("same"), &json!("last")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_clients_with_expected_revision_lose_no_update() {
    const INCREMENTS: usize = 10;
    let race = race_of(6).await;
    let session_id = &race.session_id;
    let mut updated = race.clients[0].subscribe("session::message-updated", json!({ "session_id": session_id })).await;
    let counter = json!({ "session_id": session_id, "entry_id": "counter", "message": user_message("0") });
    race.clients[0].call("session::append", counter).await;
    join_all(race.clients.iter().map(|client| async move {
        for _ in 0..INCREMENTS {
            increment(client, session_id).await;
        }
    }))
    .await;

    let total = (race.clients.len() * INCREMENTS) as u64;
    let entry = counter_of(&race.clients[1], session_id).await;
    assert_eq!(entry["revision"], total);
    assert_eq!(text_of(&entry["message"]), total.to_string());
    let received = updated.until(|payload| payload["revision"] == total).await;
    let revisions: Vec<u64> = received.iter().filter_map(|event| event.payload["revision"].as_u64()).collect();
    assert_eq!(revisions, (1..=total).collect::<Vec<_>>(), "one event per update, in order");
}

/// Reads, adds one, and writes with the revision it read. Retries until no other client was faster.
async fn increment(client: &Client, session_id: &str) {
    loop {
        let entry = counter_of(client, session_id).await;
        let next = text_of(&entry["message"]).parse::<u64>().expect("a number") + 1;
        let update = json!({
            "session_id": session_id,
            "entry_id": "counter",
            "content": [{ "type": "text", "text": next.to_string() }],
            "expected_revision": entry["revision"],
        });
        if client.call("session::update-message", update).await["updated"] == true {
            return;
        }
    }
}

async fn counter_of(client: &Client, session_id: &str) -> Value {
    let got = client.call("session::get-message", json!({ "session_id": session_id, "entry_id": "counter" })).await;
    got["entry"].clone()
}

fn text_of(message: &Value) -> String {
    message["content"][0]["text"].as_str().expect("a text").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_appenders_make_one_unbroken_chain() {
    const APPENDS: usize = 20;
    let race = race_of(6).await;
    let session_id = &race.session_id;
    let mut added = race.clients[0].subscribe("session::message-added", json!({ "session_id": session_id })).await;
    let answers: Vec<Value> = join_all(race.clients.iter().map(|client| async move {
        let mut answers = Vec::new();
        for nth in 0..APPENDS {
            let append = json!({ "session_id": session_id, "message": user_message(&nth.to_string()) });
            answers.push(client.call("session::append", append).await);
        }
        answers
    }))
    .await
    .concat();

    // No two entries have the same parent, and the transcript contains all of them.
    let parents: BTreeMap<&str, Option<&str>> = answers
        .iter()
        .map(|answer| (answer["entry_id"].as_str().expect("an id"), answer["parent_id"].as_str()))
        .collect();
    let distinct: BTreeSet<Option<&str>> = parents.values().copied().collect();
    assert_eq!((parents.len(), distinct.len()), (answers.len(), answers.len()), "no two entries share a parent");
    let transcript = race.clients[1].transcript(session_id).await;
    assert_eq!(transcript.len(), answers.len());
    let mut before = None;
    for item in &transcript {
        let entry_id = item["entry_id"].as_str().expect("an id");
        assert_eq!(parents[entry_id], before);
        before = Some(entry_id);
    }

    let last = before.expect("entries").to_owned();
    let received = added.until(|payload| payload["entry_id"] == last.as_str()).await;
    let delivered: Vec<&Value> = received.iter().map(|event| &event.payload["entry_id"]).collect();
    let stored: Vec<&Value> = transcript.iter().map(|item| &item["entry_id"]).collect();
    assert_eq!(delivered, stored, "events arrive in the order of the chain");
    assert!(received.windows(2).all(|pair| pair[1].seq == pair[0].seq + 1), "seq is dense");
}
