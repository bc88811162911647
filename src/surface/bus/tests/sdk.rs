//! The public Rust SDK as a client, unmodified.
#![allow(deprecated)] // register_trigger is what the SDKs of today speak.

use iii_sdk::protocol::{RegisterTriggerInput, TriggerRequest};
use iii_sdk::{IIIClient, InitOptions, RegisterFunction, TriggerAction, register_worker};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;

async fn worker(node: &Node) -> IIIClient {
    let client = register_worker(&format!("ws://{}", node.address), InitOptions::default());
    client.wait_until_registered(SOON).await.expect("registered");
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_calls_and_hears_errors() {
    let node = Node::start().await;
    let client = worker(&node).await;
    let result = client.trigger(TriggerRequest::new("session::echo", json!({"a": 1}))).await.unwrap();
    assert_eq!(result, json!({"a": 1}));
    let error = client.trigger(TriggerRequest::new("session::refuse", json!({}))).await.unwrap_err();
    assert!(error.to_string().contains("session/not_found: no session"), "{error}");
    let void = TriggerRequest { action: Some(TriggerAction::Void), ..TriggerRequest::new("session::echo", json!(1)) };
    client.trigger(void).await.unwrap();
    until("the worker says who it is", || {
        node.bus.read_registry("", |registry| registry.clients().any(|client| client.about().runtime.is_some()))
    })
    .await;
    client.shutdown_async().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_serves_functions_and_receives_events() {
    let node = Node::start().await;
    let (server, caller) = (worker(&node).await, worker(&node).await);
    let (events, mut received) = mpsc::unbounded_channel();
    server.register_function(
        "test::double",
        RegisterFunction::new_async(|n: u64| async move { Ok::<u64, iii_sdk::Error>(n * 2) }),
    );
    server.register_function(
        "test::on-event",
        RegisterFunction::new_async(move |event: Value| {
            let events = events.clone();
            async move {
                events.send(event).ok();
                Ok::<Value, iii_sdk::Error>(Value::Null)
            }
        }),
    );
    let bound = server
        .register_trigger(RegisterTriggerInput::new("session::deleted", "test::on-event", json!({"session_id": "s"})))
        .unwrap();
    until("the binding is live", || node.feed.bindings() == 1).await;
    assert_eq!(caller.trigger(TriggerRequest::new("test::double", json!(21))).await.unwrap(), 42);
    node.publish(1);
    let event = tokio::time::timeout(SOON, received.recv()).await.unwrap().unwrap();
    assert_eq!(event, json!({"n": 1}));
    bound.unregister();
    until("the binding is gone", || node.feed.bindings() == 0).await;
    server.shutdown_async().await;
    caller.shutdown_async().await;
}

/// A proxy whose connections can be cut, as a network does it.
async fn proxy(node: &Node) -> (String, Arc<Notify>) {
    let (listener, cut) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::new(Notify::new()));
    let (address, target, cutting) = (listener.local_addr().unwrap(), node.address.clone(), cut.clone());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (target, cutting) = (target.clone(), cutting.clone());
            tokio::spawn(async move {
                let mut server = TcpStream::connect(&target).await.unwrap();
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    () = cutting.notified() => {}
                }
            });
        }
    });
    (address.to_string(), cut)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_the_sdk_outlives_its_socket() {
    let node = Node::start().await;
    let (address, cut) = proxy(&node).await;
    let client = register_worker(&format!("ws://{address}/"), InitOptions::default());
    client.wait_until_registered(SOON).await.expect("registered");
    let calling = tokio::spawn({
        let client = client.clone();
        async move { client.trigger(TriggerRequest::new("session::slow", json!("kept"))).await }
    });
    node.service.begun.notified().await;
    cut.notify_waiters();
    until("the loss is noticed", || node.bus.clients() == 0).await;
    node.service.release.notify_one();
    assert_eq!(calling.await.unwrap().unwrap(), "kept");
    client.shutdown_async().await;
}
