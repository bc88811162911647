//! Bindings of the node's events and of clients' trigger types.

use super::*;

async fn subscriber(node: &Node) -> RawClient {
    let mut client = node.connect().await;
    client.register_function("on-event").await;
    client
}

#[tokio::test]
async fn events_arrive_in_order_with_their_place_beside_the_payload() {
    let node = Node::start().await;
    let mut client = subscriber(&node).await;
    let bound = client.bind("b", "session::deleted", json!({"session_id": "s"}), json!({"mine": true})).await;
    assert!(bound.get("error").is_none(), "{bound}");
    node.publish_event(1, "other", EventKind::Deleted, "{}".to_owned());
    node.publish_event(2, "s", EventKind::Created, "{}".to_owned());
    for index in 3..103 {
        node.publish(index);
    }
    for index in 3..103 {
        let event = client.expect("invokefunction").await;
        assert_eq!(event["data"], json!({"n": index}));
        assert!(event.get("invocation_id").is_none());
        assert_eq!(event["function_id"], "on-event");
        let place = json!({"position": format!("c.0.{index}.0"), "seq": index});
        assert_eq!(event["metadata"], json!({"mine": true, "session-manager": place}));
    }
}

#[tokio::test]
async fn every_binding_gets_its_own_delivery_until_it_is_unregistered() {
    let node = Node::start().await;
    let mut client = subscriber(&node).await;
    client.bind("a", "session::deleted", json!(null), json!(null)).await;
    client.bind("b", "session::store::events", json!(null), json!(null)).await;
    node.publish(1);
    let (plain, envelope) = (client.expect("invokefunction").await, client.expect("invokefunction").await);
    assert_eq!(plain["data"], json!({"n": 1}));
    assert_eq!(
        envelope["data"],
        json!({"trigger_type": "session::deleted", "payload": {"n": 1}, "session_metadata": {"tenant": "a"}})
    );
    client.send(json!({"type": "unregistertrigger", "id": "a"})).await;
    client.call("session::echo", json!(null)).await;
    node.publish(2);
    assert_eq!(client.expect("invokefunction").await["data"]["payload"], json!({"n": 2}));
}

#[tokio::test]
async fn a_malformed_binding_is_refused_with_the_name_of_the_field() {
    let node = Node::start().await;
    let mut client = subscriber(&node).await;
    for (trigger_type, config, metadata, word) in [
        ("session::created", json!({"session_id": "s"}), json!(null), "`session_id`"),
        ("session::status-changed", json!({"roles": ["user"]}), json!(null), "`roles`"),
        ("session::deleted", json!({"sesion_id": "s"}), json!(null), "`sesion_id`"),
        ("session::deleted", json!({}), json!("text"), "`metadata`"),
        ("session::deleted", json!({}), json!({"session-manager": {"after": 5}}), "after"),
        ("session::deleted", json!({}), json!({"session-manager": {"after": "x"}}), "is not a position"),
        ("session::deleted", json!({}), json!({"session-manager": {"after": "d.0.1.0"}}), "cluster `d`"),
        ("session::deleted", json!({}), json!({"session-manager": {"after": "c.0.1.0"}}), "compacted"),
        ("session::imagined", json!({}), json!(null), "`session::imagined`"),
    ] {
        let answer = client.bind("b", trigger_type, config, metadata).await;
        assert_eq!(answer["error"]["code"], "trigger_registration_failed");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(node.feed.bindings(), 0);
    let listed = client.call("engine::registered-triggers::list", json!({})).await;
    assert_eq!(listed["result"]["registered_triggers"], json!([]));
}

#[tokio::test]
async fn a_binding_that_names_a_position_gets_what_it_missed_first() {
    let node = Node::start().await;
    let mut client = subscriber(&node).await;
    client.bind("a", "session::deleted", json!(null), json!(null)).await;
    for index in 1..=4 {
        node.publish(index);
    }
    for _ in 1..=4 {
        client.expect("invokefunction").await;
    }
    let mut late = node.connect().await;
    late.register_function("late").await;
    late.send(json!({
        "type": "registertrigger", "id": "l", "trigger_type": "session::deleted", "function_id": "late",
        "config": null, "metadata": {"session-manager": {"after": "c.0.2.0"}},
    }))
    .await;
    node.publish(5);
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let frame = late.next().await.unwrap();
        if frame["type"] == "invokefunction" {
            seen.push(frame["data"]["n"].as_u64().unwrap());
        }
    }
    assert_eq!(seen, [3, 4, 5]);
}

#[tokio::test]
async fn a_subscriber_that_leaves_takes_its_bindings_along() {
    let node = Node::start().await;
    let mut client = subscriber(&node).await;
    client.bind("a", "session::deleted", json!(null), json!(null)).await;
    assert_eq!(node.feed.bindings(), 1);
    drop(client);
    until("the binding is gone", || node.feed.bindings() == 0 && node.bus.clients() == 0).await;
}

#[tokio::test]
async fn a_binding_may_call_a_function_of_another_worker() {
    let node = Node::start().await;
    let (mut binder, mut handler) = (node.connect().await, subscriber(&node).await);
    handler.call("session::echo", json!(null)).await;
    binder.bind("a", "session::deleted", json!(null), json!(null)).await;
    node.publish(1);
    assert_eq!(handler.expect("invokefunction").await["data"], json!({"n": 1}));
}

#[tokio::test]
async fn bindings_of_a_workers_type_wait_for_it_and_go_to_it() {
    let node = Node::start().await;
    let (mut client, mut owner) = (subscriber(&node).await, node.connect().await);
    client
        .send(json!({
            "type": "registertrigger", "id": "b", "trigger_type": "cron", "function_id": "on-event",
            "config": {"every": "1m"}, "metadata": {"m": 1}, "namespace": "default",
        }))
        .await;
    client.call("session::echo", json!(null)).await;
    owner.send(json!({"type": "registertriggertype", "id": "cron", "description": "time"})).await;
    let asked = owner.expect("registertrigger").await;
    assert_eq!(
        asked,
        json!({"type": "registertrigger", "id": "b", "trigger_type": "cron", "function_id": "on-event",
            "config": {"every": "1m"}, "metadata": {"m": 1}, "namespace": "default"})
    );
    owner
        .send(json!({"type": "triggerregistrationresult", "id": "b", "trigger_type": "cron",
            "function_id": "on-event", "error": {"code": "bad", "message": "no such time"}}))
        .await;
    let told = client.expect("triggerregistrationresult").await;
    assert_eq!((&told["id"], &told["error"]["message"]), (&json!("b"), &json!("no such time")));
    owner
        .send(json!({"type": "invokefunction", "function_id": "on-event", "data": 9, "action": {"type": "void"},
            "metadata": {"m": 1}}))
        .await;
    assert_eq!(client.expect("invokefunction").await["data"], 9);
    drop(client);
    let removed = owner.expect("unregistertrigger").await;
    assert_eq!(removed, json!({"type": "unregistertrigger", "id": "b", "trigger_type": "cron"}));
}
