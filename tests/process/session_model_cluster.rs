//! The session model on three processes, with the leader killed: streams go on, other nodes have the rest, times fire once.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::node::NodeProcess;
use crate::plain_http;
use crate::session_model::{Client, Driver, Sse, call};
use crate::three_nodes::ThreeNodes;

const SOON: Duration = Duration::from_secs(60);

async fn cluster(dir: &Path, settings: &str) -> ThreeNodes {
    let file = dir.join("settings.yaml");
    std::fs::write(&file, settings).unwrap();
    ThreeNodes::start_with(dir, &["--config", file.to_str().unwrap()]).await
}

/// Takes the leader out of the nodes; the others follow.
async fn take_leader(nodes: &mut Vec<NodeProcess>) -> NodeProcess {
    let begun = tokio::time::Instant::now();
    loop {
        for at in 0..nodes.len() {
            let (_, health) = plain_http::get(nodes[at].address, "/health").await;
            if health.contains("\"role\":\"leader\"") {
                return nodes.remove(at);
            }
        }
        assert!(begun.elapsed() < SOON, "no leader");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_through_a_follower_goes_on_when_the_leader_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let ThreeNodes(mut nodes) = cluster(dir.path(), "{}\n").await;
    let leader = take_leader(&mut nodes).await;
    let (serving, other) = (Client::new(nodes[0].address, "any"), Client::new(nodes[1].address, "any"));
    let driver = Driver { address: nodes[1].address, id: "d" };
    assert_eq!(serving.open("cli:a").await.0, 200);
    let body = json!({ "text": "go on", "messageId": "m1" }).to_string();
    let mut stream = Sse::open(&serving, "POST", "/sessions/cli%3Aa/messages?stream=true", "", &body).await;
    let mut turn = driver.take().await;
    for n in 0..10 {
        turn.emit(json!([{ "type": "text_delta", "text": format!("{n} ") }])).await;
    }
    leader.kill();
    for n in 10..20 {
        turn.emit(json!([{ "type": "text_delta", "text": format!("{n} ") }])).await;
    }
    let whole: String = (0..20).map(|n| format!("{n} ")).collect();
    turn.complete(&whole).await;
    let frames = stream.until("agent_end").await;
    let said: String = frames
        .iter()
        .filter(|frame| frame.event == "text_delta")
        .filter_map(|frame| frame.data["text"].as_str())
        .collect();
    assert_eq!(said, whole);
    let final_text = frames.iter().find(|frame| frame.event == "text_final").expect("a final text");
    assert_eq!(final_text.data["text"], whole);
    let ids: Vec<u64> = frames.iter().filter_map(|frame| frame.id).collect();
    assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<u64>>(), "no number twice, none missing");
    // The serving node is lost too: the other has exactly the rest. One node of three answers no writes, but streams what it
    // has applied.
    let seen = ids[ids.len() / 2];
    let header = format!("last-event-id: {seen}\r\n");
    let mut rest = Sse::open(&other, "GET", "/sessions/cli%3Aa/events", &header, "").await;
    assert_eq!(rest.next().await.unwrap().event, "ready");
    for id in seen + 1..=ids.len() as u64 {
        assert_eq!(rest.next().await.unwrap().id, Some(id));
    }
    let summary = other.summary("cli:a").await;
    assert_eq!((summary["messageCount"].as_u64(), summary["status"].as_str()), (Some(2), Some("idle")));
}

async fn profile(client: &Client) -> Value {
    call(client.address, "session::profile::get", json!({ "agent_id": "main", "session_id": "cli:a" })).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_checkpoint_is_asked_for_once_although_the_leader_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let ThreeNodes(mut nodes) = cluster(dir.path(), "session_model:\n  idle_secs: 2\n").await;
    let leader = take_leader(&mut nodes).await;
    let client = Client::new(nodes[0].address, "any");
    let driver = Driver { address: nodes[1].address, id: "d" };
    client.open("cli:a").await;
    client.say("cli%3Aa", "hi").await;
    driver.echo().await;
    leader.kill();
    // Another node leads and asks for the checkpoint.
    let begun = tokio::time::Instant::now();
    let checkpoint_id = loop {
        let profile = profile(&client).await;
        if let Some(id) = profile["checkpoint"]["underway"].as_str() {
            break id.to_owned();
        }
        assert!(begun.elapsed() < SOON, "no checkpoint: {profile}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let claim = json!({ "checkpoint_id": checkpoint_id, "driver_id": "worker" });
    assert_eq!(call(client.address, "session::checkpoint::claim", claim).await["claimed"], true);
    let result = json!({ "checkpoint_id": checkpoint_id, "success": true, "description": "a greeting" });
    assert_eq!(call(client.address, "session::checkpoint::result", result).await["checkpointed"], true);
    // A message that is only stored, and a second turn: its idle time is another one.
    client.say("cli%3Aa", "again").await;
    driver.echo().await;
    let begun = tokio::time::Instant::now();
    loop {
        let profile = profile(&client).await;
        let ended = profile["checkpoint"]["ended"].as_str().map(str::to_owned);
        if profile["checkpoint"]["underway"].is_string() || ended.is_some_and(|ended| ended != checkpoint_id) {
            break;
        }
        assert!(begun.elapsed() < SOON, "no second checkpoint: {profile}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (_, history) = client.get("/sessions/cli%3Aa/messages").await;
    let starts = history.as_array().unwrap().iter().filter(|row| row["introspectionPhase"] == "start").count();
    assert_eq!(starts, 1, "one was taken: {history}");
    assert_eq!(profile(&client).await["description"], "a greeting");
}
