//! Calls of the node's functions, of the bus's own and of other clients, over WebSocket and over HTTP.

use super::*;

#[tokio::test]
async fn a_call_is_answered_with_the_result_or_the_error() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    let answer = client.call("session::echo", json!({"a": [1.5, "ü"]})).await;
    assert_eq!(answer["invocation_id"], "i");
    assert_eq!(answer["function_id"], "session::echo");
    assert_eq!(answer["result"], json!({"a": [1.5, "ü"]}));
    let answer = client.call("session::refuse", json!({})).await;
    assert_eq!(
        answer["error"],
        json!({"code": "invocation_failed", "message": "handler error: session/not_found: no session \"s\""})
    );
    let answer = client.call("session::nowhere", json!({})).await;
    assert_eq!(answer["error"]["code"], "function_not_found");
    assert!(answer["error"]["message"].as_str().unwrap().contains("`session::nowhere`"));
}

#[tokio::test]
async fn absent_data_reads_as_null_and_void_calls_get_no_answer() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    client.send(json!({"type": "invokefunction", "function_id": "session::echo", "data": 1})).await;
    client
        .send(json!({
            "type": "invokefunction", "invocation_id": "v", "function_id": "session::refuse",
            "action": {"type": "void"},
        }))
        .await;
    client.send(json!({"type": "invokefunction", "invocation_id": "n", "function_id": "session::echo"})).await;
    let answer = client.expect("invocationresult").await;
    assert_eq!((&answer["invocation_id"], &answer["result"]), (&json!("n"), &Value::Null));
}

#[tokio::test]
async fn an_enqueue_is_refused_rather_than_pretended() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    client
        .send(json!({
            "type": "invokefunction", "invocation_id": "q", "function_id": "session::echo", "data": {},
            "action": {"type": "enqueue", "queue": "jobs"},
        }))
        .await;
    assert_eq!(client.expect("invocationresult").await["error"]["code"], "enqueue_not_supported");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_one_client_enter_in_order_and_run_side_by_side() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    client.invoke("slow", "session::slow", json!("s")).await;
    for rank in 0..200 {
        client.invoke(&rank.to_string(), "session::ordered", json!({})).await;
    }
    for _ in 0..200 {
        let answer = client.expect("invocationresult").await;
        assert_eq!(answer["invocation_id"], answer["result"].to_string());
    }
    node.service.release.notify_one();
    assert_eq!(client.expect("invocationresult").await["result"], "s");
}

#[tokio::test]
async fn calls_past_the_limit_get_an_error_at_once() {
    let node = Node::start_with(BusSettings { calls_in_flight_max: 2, ..BusSettings::default() }, |_| {}).await;
    let mut client = node.connect().await;
    client.invoke("1", "session::slow", json!(1)).await;
    client.invoke("2", "session::slow", json!(2)).await;
    let refused = client.call("session::echo", json!(3)).await;
    assert_eq!(refused["error"]["code"], "too_many_calls");
    node.service.release.notify_waiters();
    client.expect("invocationresult").await;
    client.expect("invocationresult").await;
    assert_eq!(client.call("session::echo", json!(4)).await["result"], 4);
}

#[tokio::test]
async fn a_call_reaches_another_worker_and_its_answer_comes_back() {
    let node = Node::start().await;
    let (mut caller, mut callee) = (node.connect().await, node.connect().await);
    callee.register_function("shop::buy").await;
    callee.call("session::echo", json!(null)).await;
    caller
        .send(json!({
            "type": "invokefunction", "invocation_id": "mine", "function_id": "shop::buy", "data": {"sku": 1},
            "metadata": {"m": 1}, "traceparent": "t", "namespace": "n",
        }))
        .await;
    let invoked = callee.expect("invokefunction").await;
    assert_ne!(invoked["invocation_id"], "mine");
    assert_eq!(invoked["data"], json!({"sku": 1}));
    assert_eq!(invoked["metadata"], json!({"m": 1}));
    assert_eq!((&invoked["traceparent"], &invoked["namespace"]), (&json!("t"), &json!("n")));
    // Somebody else cannot answer for the callee.
    caller
        .send(json!({"type": "invocationresult", "invocation_id": invoked["invocation_id"], "result": "forged"}))
        .await;
    callee
        .send(json!({"type": "invocationresult", "invocation_id": invoked["invocation_id"],
            "function_id": "shop::buy", "error": {"code": "sold_out", "message": "none left"}}))
        .await;
    let answer = caller.expect("invocationresult").await;
    assert_eq!(answer["invocation_id"], "mine");
    assert_eq!(answer["error"], json!({"code": "sold_out", "message": "none left"}));
}

#[tokio::test]
async fn a_callee_that_leaves_stops_its_calls_and_its_functions() {
    let node = Node::start().await;
    let (mut caller, mut callee) = (node.connect().await, node.connect().await);
    callee.register_function("shop::buy").await;
    callee.call("session::echo", json!(null)).await;
    caller.invoke("i", "shop::buy", json!({})).await;
    callee.expect("invokefunction").await;
    drop(callee);
    assert_eq!(caller.expect("invocationresult").await["error"]["code"], "invocation_stopped");
    assert_eq!(caller.call("shop::buy", json!({})).await["error"]["code"], "function_not_found");
}

#[tokio::test]
async fn a_function_belongs_to_the_first_client_that_registers_it_and_the_nodes_own_to_no_client() {
    let node = Node::start().await;
    let (mut one, mut two) = (node.connect().await, node.connect().await);
    one.register_function("f").await;
    one.call("session::echo", json!(null)).await;
    for id in ["f", "session::append", "engine::workers::list"] {
        two.register_function(id).await;
        let rejected = two.expect("registrationrejected").await;
        assert_eq!(rejected["code"], "FUNCTION_NAMESPACE_CONFLICT");
        assert_eq!((&rejected["function_id"], &rejected["namespace"]), (&json!(id), &json!("default")));
        assert!(rejected["owner_worker_id"].is_string());
    }
    one.send(json!({"type": "unregisterfunction", "id": "f"})).await;
    one.call("session::echo", json!(null)).await;
    two.register_function("f").await;
    two.invoke("self", "f", json!(7)).await;
    let invoked = two.expect("invokefunction").await;
    two.send(json!({"type": "invocationresult", "invocation_id": invoked["invocation_id"], "result": 8})).await;
    assert_eq!(two.expect("invocationresult").await["result"], 8);
}

#[tokio::test]
async fn the_engine_functions_tell_who_and_what_is_here() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    client
        .send(json!({
            "type": "invokefunction", "function_id": "engine::workers::register", "action": {"type": "void"},
            "data": {"name": "w", "runtime": "test", "version": "1", "os": "x", "pid": 7, "features": ["a"]},
        }))
        .await;
    client
        .send(json!({"type": "registerfunction", "id": "f", "description": "d", "request_format": {"type": "null"}}))
        .await;
    client.bind("b", "session::deleted", json!({}), json!({"m": 1})).await;

    let workers = client.call("engine::workers::list", json!({})).await["result"]["workers"].clone();
    let listed: Vec<iii_sdk::runtime::WorkerInfo> = serde_json::from_value(workers).unwrap();
    assert_eq!(listed[0].name.as_deref(), Some("w"));
    assert_eq!(listed[0].functions, ["f"]);

    let functions = client.call("engine::functions::list", json!({})).await["result"]["functions"].clone();
    let ids: Vec<&Value> = functions.as_array().unwrap().iter().map(|function| &function["function_id"]).collect();
    assert_eq!(ids, ["session::echo", "f"]);
    let all = client.call("engine::functions::list", json!({"include_internal": true})).await;
    assert_eq!(all["result"]["functions"][1]["metadata"], json!({"internal": true}));

    let info = client.call("engine::functions::info", json!({"function_id": "f"})).await["result"].clone();
    assert_eq!((&info["description"], &info["request_format"]), (&json!("d"), &json!({"type": "null"})));
    let unknown = client.call("engine::functions::info", json!({"function_id": "g"})).await;
    assert!(unknown["error"]["message"].as_str().unwrap().contains("`g`"));

    let types = client.call("engine::triggers::list", json!({})).await["result"]["triggers"].clone();
    assert!(types.as_array().unwrap().iter().any(|found| found["id"] == "session::message-added"));
    let bound = client.call("engine::registered-triggers::list", json!({})).await["result"].clone();
    assert_eq!(bound["registered_triggers"][0]["metadata"], json!({"m": 1}));
    assert_eq!(client.call("engine::nothing", json!({})).await["error"]["code"], "function_not_found");
}

#[tokio::test]
async fn curl_is_a_client_too() {
    let node = Node::start().await;
    let (status, body) = node.http("POST /v1/call/session::echo HTTP/1.1", r#"{"a":1}"#).await;
    assert_eq!((status, body.as_str()), (200, r#"{"a":1}"#));
    let (status, body) = node.http("POST /v1/call/session::echo HTTP/1.1", "").await;
    assert_eq!((status, body.as_str()), (200, "{}"));
    let (status, body) = node.http("POST /v1/call/session::refuse HTTP/1.1", "{}").await;
    assert_eq!(
        (status, body.as_str()),
        (404, r#"{"error":{"code":"session/not_found","message":"no session \"s\""}}"#)
    );
    let (status, body) = node.http("POST /v1/call/session::nope HTTP/1.1", "{}").await;
    assert!(status == 404 && body.contains("`session::nope`"), "{status} {body}");
    let (status, body) = node.http("GET /health HTTP/1.1", "").await;
    let health: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &health["status"], &health["role"]), (200, &json!("ok"), &json!("single")));
    let (status, body) = node.http("GET / HTTP/1.1", "").await;
    assert!(status == 200 && body.contains("/v1/call/"), "{body}");
    let (status, _) = node.http("GET /elsewhere HTTP/1.1", "").await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn an_http_call_reaches_a_worker() {
    let node = Node::start().await;
    let mut callee = node.connect().await;
    callee.register_function("shop::buy").await;
    callee.call("session::echo", json!(null)).await;
    let serve = async {
        let invoked = callee.expect("invokefunction").await;
        callee.send(json!({"type": "invocationresult", "invocation_id": invoked["invocation_id"], "result": 5})).await;
    };
    let ((status, body), ()) = futures::join!(node.http("POST /v1/call/shop::buy HTTP/1.1", "{}"), serve);
    assert_eq!((status, body.as_str()), (200, "5"));
}

#[tokio::test]
async fn shutdown_lets_calls_finish_and_says_goodbye() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    client.invoke("i", "session::slow", json!("done")).await;
    node.service.begun.notified().await;
    node.shutdown.cancel();
    let refused = client.call("session::echo", json!(1)).await;
    let words = refused["error"]["message"].as_str().unwrap();
    assert!(words.starts_with("handler error: session/storage: this node is shutting down"), "{words}");
    assert_eq!(client.call("shop::buy", json!(1)).await["error"]["code"], "shutting_down");
    node.service.release.notify_one();
    assert_eq!(client.expect("invocationresult").await["result"], "done");
    assert_eq!(u16::from(client.closed().await.code), 1001);
    node.ended.await.unwrap();
    assert!(TcpStream::connect(&node.address).await.is_err());
}
