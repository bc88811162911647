//! Laws of overload: a caller with hundreds of calls in flight does not starve callers with one each, and the log says
//! where the time of a slow call went.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::client::{Client, user_message};
use crate::node::NodeProcess;
use crate::plain_http::{request, until};
use crate::three_nodes::ThreeNodes;

const IN_FLIGHT: usize = 800;
const MODEST: usize = 10;
const CALLS: u64 = 30;

fn append(session_id: &str) -> Value {
    json!({ "session_id": session_id, "message": user_message("hello") })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_greedy_client_does_not_starve_ten_modest_ones() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    let url = node.url();
    let greedy = Client::connect(&url).await;
    let session = greedy.create().await;
    let (answered, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let calls: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (greedy, session, answered, stop) = (greedy.clone(), session.clone(), answered.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    greedy.call("session::append", append(&session)).await;
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let modest = join_all((0..MODEST).map(|_| Client::connect(&url))).await;
    let sessions = join_all(modest.iter().map(Client::create)).await;
    // All of them are known as callers now.
    let before = answered.load(Ordering::Relaxed);
    join_all(modest.iter().zip(&sessions).map(|(client, session)| async move {
        for _ in 0..CALLS {
            client.call("session::append", append(session)).await;
        }
    }))
    .await;
    let meanwhile = answered.load(Ordering::Relaxed) - before;
    stop.store(true, Ordering::Relaxed);
    for call in calls {
        call.await.expect("calls in flight are answered, none is refused");
    }
    println!("{meanwhile} calls of the greedy client beside {CALLS} of each modest one");
    // With all of its calls running, it would have 800 answers for each answer of another.
    assert!(meanwhile < CALLS * 200, "{meanwhile} calls of the greedy client beside {CALLS} of each other one");
    assert!(meanwhile > CALLS, "it is not starved either: {meanwhile}");
    for (client, session) in modest.iter().zip(&sessions) {
        assert_eq!(client.transcript(session).await.len() as u64, CALLS);
    }
}

#[tokio::test]
async fn a_slow_call_is_logged_with_its_trace_and_where_its_time_went() {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = ThreeNodes::start(dir.path()).await;
    let [one, two, alone] = &cluster.0[..] else { panic!("three nodes") };
    one.signal("STOP");
    two.signal("STOP");
    let (address, begun) = (alone.address, tokio::time::Instant::now());
    let header = format!("traceparent: {TRACE}");
    let asked =
        tokio::spawn(
            async move { request(address, "POST", "/v1/call/session::create", &[&header], "{}").await.status },
        );
    until(alone.address, "/readyz", |status, _| status == 503).await;
    // It waits for a quorum for more than a second.
    tokio::time::sleep_until(begun + Duration::from_millis(1500)).await;
    one.signal("CONT");
    two.signal("CONT");
    assert_eq!(asked.await.expect("an answer"), 200);
    let slow = || alone.log().lines().find(|line| line.contains("a slow call")).map(str::to_owned);
    let line = slow().unwrap_or_else(|| panic!("it is not logged:\n{}", alone.log()));
    for word in ["session::create", TRACE, "took_ms", "went", " ms", "ok"] {
        assert!(line.contains(word), "{word} is missing: {line}");
    }
    let steps = ["commit", "forward", "no leader"];
    assert!(steps.iter().any(|step| line.contains(step)), "it does not say where the time went: {line}");
}
