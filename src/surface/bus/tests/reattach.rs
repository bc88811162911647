//! A client that lost its socket reattaches and gets what it missed.

use super::*;
use crate::surface::bus::client::Client;
use crate::surface::socket::outbox::{Class, Next, Outbox, OutboxLimits};

async fn reattach(node: &Node, worker_id: &str, token: &str) -> RawClient {
    let mut client = node.connect_raw().await;
    client.send(json!({"type": "reattach", "previous_worker_id": worker_id, "reattach_token": token})).await;
    client.expect("workerregistered").await;
    client
}

/// A client whose call of `session::slow` is running.
async fn calling(node: &Node, body: Value) -> RawClient {
    let mut client = node.connect().await;
    client.invoke("i", "session::slow", body).await;
    node.service.begun.notified().await;
    client
}

/// Drops a client's socket. Returns its id and token.
fn lose(client: RawClient) -> (String, String) {
    (client.worker_id.clone(), client.token.clone())
}

/// A client with the binding `b` of `session::deleted`.
async fn bound(node: &Node) -> RawClient {
    let mut client = node.connect().await;
    client.register_function("on-event").await;
    client.bind("b", "session::deleted", json!(null), json!(null)).await;
    client
}

#[tokio::test]
async fn the_result_of_a_call_whose_socket_was_lost_arrives_on_the_next_one() {
    let node = Node::start().await;
    let (id, token) = lose(calling(&node, json!("kept")).await);
    until("the loss is noticed", || node.bus.clients() == 0).await;
    node.service.release.notify_one();
    let mut second = reattach(&node, &id, &token).await;
    let answer = second.expect("invocationresult").await;
    assert_eq!((&answer["invocation_id"], &answer["result"]), (&json!("i"), &json!("kept")));
}

#[tokio::test]
async fn a_call_may_end_after_its_client_came_back() {
    let node = Node::start().await;
    let (id, token) = lose(calling(&node, json!("late")).await);
    let mut second = reattach(&node, &id, &token).await;
    second.call("session::echo", json!(null)).await;
    node.service.release.notify_one();
    assert_eq!(second.expect("invocationresult").await["result"], "late");
}

#[tokio::test]
async fn a_live_socket_is_taken_over_with_its_registrations_and_calls() {
    let node = Node::start().await;
    let (mut first, mut other) = (bound(&node).await, node.connect().await);
    other.invoke("o", "on-event", json!(1)).await;
    let invoked = first.expect("invokefunction").await;

    let mut second = reattach(&node, &first.worker_id.clone(), &first.token.clone()).await;
    assert!(first.closed().await.reason.contains("superseded"));
    // The SDK registers everything again after a reattach, and still owns it.
    second.register_function("on-event").await;
    second.bind("b", "session::deleted", json!(null), json!(null)).await;
    node.publish(1);
    assert_eq!(second.expect("invokefunction").await["data"], json!({"n": 1}));
    second.send(json!({"type": "invocationresult", "invocation_id": invoked["invocation_id"], "result": 2})).await;
    assert_eq!(other.expect("invocationresult").await["result"], 2);
    assert_eq!(node.feed.bindings(), 1);
    until("the old socket is gone", || node.bus.clients() == 2).await;
}

#[tokio::test]
async fn events_of_the_time_without_a_socket_arrive_after_the_reattach() {
    let node = Node::start().await;
    let mut first = bound(&node).await;
    node.publish(1);
    first.expect("invokefunction").await;
    let (id, token) = lose(first);
    until("the loss is noticed", || node.bus.clients() == 0).await;
    node.publish(2);
    node.publish(3);
    let mut second = reattach(&node, &id, &token).await;
    second.register_function("on-event").await;
    second
        .send(json!({"type": "registertrigger", "id": "b", "trigger_type": "session::deleted",
            "function_id": "on-event", "config": null}))
        .await;
    second.expect("triggerregistrationresult").await;
    node.publish(4);
    // It is unknown whether the first event arrived before the socket was lost, so it is sent again with its position.
    for n in 1..=4 {
        let event = second.expect("invokefunction").await;
        assert_eq!(event["data"]["n"], n);
        assert_eq!(event["metadata"]["session-manager"]["position"], format!("c.0.{n}.0"));
    }
}

#[tokio::test]
async fn what_a_client_confirmed_does_not_come_again() {
    let node = Node::start().await;
    let mut first = bound(&node).await;
    node.publish(1);
    first.expect("invokefunction").await;
    // Reading answers the ping that followed the event.
    first.call("session::echo", json!(null)).await;
    let confirmed = |node: &Node| {
        node.bus.read_registry("", |registry| registry.clients().all(|client| client.confirmed().is_some()))
    };
    until("the event is confirmed", || confirmed(&node)).await;
    let (id, token) = lose(first);
    until("the loss is noticed", || node.bus.clients() == 0).await;
    node.publish(2);
    let mut second = reattach(&node, &id, &token).await;
    // Results are sent again in any case.
    second.expect("invocationresult").await;
    second.register_function("on-event").await;
    second.bind("b", "session::deleted", json!(null), json!(null)).await;
    assert_eq!(second.expect("invokefunction").await["data"]["n"], 2);
}

#[tokio::test]
async fn a_result_that_went_into_a_dead_socket_is_sent_again() {
    let node = Node::start().await;
    let mut first = node.connect().await;
    first.invoke("i", "session::echo", json!("lost")).await;
    // The answer is not read, as if the network failed between the node and the client.
    until("the call is answered", || first_call_done(&node)).await;
    let mut second = reattach(&node, &first.worker_id.clone(), &first.token.clone()).await;
    assert_eq!(second.expect("invocationresult").await["result"], "lost");
}

fn first_call_done(node: &Node) -> bool {
    node.bus.read_registry("", |registry| {
        registry.clients().all(|client| client.calls_in_flight() == 0 && client.has_answered())
    })
}

#[tokio::test]
async fn without_the_token_nothing_is_handed_over() {
    let node = Node::start().await;
    let mut first = node.connect().await;
    first.register_function("f").await;
    first.invoke("i", "session::slow", json!("secret")).await;
    node.service.begun.notified().await;
    let mut thief = reattach(&node, &first.worker_id.clone(), "guess").await;
    thief.register_function("f").await;
    thief.expect("registrationrejected").await;
    node.service.release.notify_one();
    assert_eq!(first.expect("invocationresult").await["result"], "secret");
}

#[tokio::test]
async fn what_no_client_reattaches_for_is_dropped() {
    let settings = BusSettings { park_for: Duration::from_millis(50), ..BusSettings::default() };
    let node = Node::start_with(settings, |_| {}).await;
    let mut first = node.connect().await;
    first.call("session::echo", json!("x")).await;
    let (id, token) = lose(first);
    until("the worker is parked", || node.bus.clients() == 0).await;
    until("the worker is forgotten", || crate::surface::locked(&node.bus.detached).is_empty()).await;
    let mut second = reattach(&node, &id, &token).await;
    assert_eq!(second.call("session::echo", json!("y")).await["result"], "y");
}

#[tokio::test]
async fn old_events_that_were_lost_with_the_socket_come_again_though_newer_ones_were_confirmed() {
    let node = Node::start().await;
    let mut first = node.connect().await;
    first.register_function("on-event").await;
    first.bind("live", "session::deleted", json!(null), json!(null)).await;
    (1..=3).for_each(|index| node.publish(index));
    for _ in 1..=3 {
        first.expect("invokefunction").await;
    }
    let confirmed = |node: &Node| {
        let third = Some(Position { group: 0, index: 3, ordinal: 0 });
        node.bus.read_registry("", |registry| registry.clients().all(|client| client.confirmed() == third))
    };
    // A probe is sent at most once a second, after a write. Reading answers it.
    let begun = Instant::now();
    while !confirmed(&node) {
        assert!(begun.elapsed() < SOON, "the events are never confirmed");
        first.call("session::echo", json!(null)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A second binding asks for older events. They are written to the socket and lost with it.
    let old = json!({"type": "registertrigger", "id": "old", "trigger_type": "session::deleted",
        "function_id": "on-old", "config": null, "metadata": {"session-manager": {"after": "c.0.0.0"}}});
    first.register_function("on-old").await;
    first.send(old.clone()).await;
    until("it is bound", || node.feed.bindings() == 2).await;
    let (id, token) = lose(first);
    until("the loss is noticed", || node.bus.clients() == 0).await;

    let mut second = reattach(&node, &id, &token).await;
    second.register_function("on-event").await;
    second.register_function("on-old").await;
    second.send(old).await;
    let mut heard = Vec::new();
    while heard.len() < 3 {
        let event = second.next().await.expect("the connection stands");
        if (&event["type"], &event["function_id"]) == (&json!("invokefunction"), &json!("on-old")) {
            heard.push(event["data"]["n"].as_u64().unwrap());
        }
    }
    assert_eq!(heard, [1, 2, 3]);
}

#[test]
fn an_event_of_two_bindings_is_confirmed_when_both_have_it() {
    let outbox = Arc::new(Outbox::new(OutboxLimits::default(), Arc::default()));
    let client = Client::new(1, None, crate::access::Identity::open(), 1, outbox.clone(), 0);
    let at = |index| Position { group: 0, index, ordinal: 0 };
    let mut sent = Vec::new();
    for index in [1, 1, 2, 2] {
        assert!(client.offer_event(|| "{}".into(), Some(at(index))).is_ok());
    }
    for _ in 0..4 {
        if let Some(Next::Write(_, Class::Event(event))) = outbox.next().now_or_never() {
            sent.push(event);
        }
    }
    let complete: Vec<_> = sent.iter().map(|event| client.completes(*event, Some(at(2)))).collect();
    assert_eq!(complete, [None, None, Some(at(1)), Some(at(2))]);
    // While the feed has not delivered the last position to all bindings, another delivery of it may follow.
    assert_eq!(client.completes(sent[3], Some(at(1))), Some(at(1)));
    client.confirm(sent[3].number, at(2));
    assert_eq!(client.confirmed(), Some(at(2)));
    // The client asks for older events: what was sent before does not confirm those.
    client.restart_after(at(0));
    client.confirm(sent[3].number, at(2));
    assert_eq!(client.confirmed(), Some(at(0)));
}
