//! A session, its events and its messages, with the Rust SDK: cargo run --example quickstart

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use iii_sdk::protocol::{RegisterTriggerInput, TriggerRequest};
use iii_sdk::{Error, InitOptions, RegisterFunction, register_worker_from_env};
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[tokio::main]
#[allow(deprecated)] // register_trigger: `observe`, its successor, is not on every bus yet
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let worker = register_worker_from_env(InitOptions::default()); // III_URL, else ws://127.0.0.1:49134
    let call = async |function: &str, payload: Value| worker.trigger(TriggerRequest::new(function, payload)).await;
    let text = |words: &str| json!([{"type": "text", "text": words}]);

    // 1. Create a session and subscribe to its events.
    let created = call("session::create", json!({"title": "Quickstart"})).await?;
    let session_id = created["session_id"].as_str().unwrap_or_default();
    let (received, mut events) = mpsc::unbounded_channel();
    for kind in ["message-added", "message-updated"] {
        let function_id = format!("quickstart::{session_id}::{kind}");
        let received = received.clone();
        let handler = move |event: Value, sidecar: Option<Value>| {
            let seq = sidecar.map(|sidecar| sidecar["session-manager"]["seq"].clone());
            let _ = received.send((kind, seq.unwrap_or_default(), event["message"].clone()));
            async { Ok::<Value, Error>(Value::Null) }
        };
        worker.register_function(&function_id, RegisterFunction::new_async(handler));
        let config = json!({"session_id": session_id});
        worker.register_trigger(RegisterTriggerInput::new(format!("session::{kind}"), function_id, config))?;
    }

    // 2. Append a question and an empty answer. Update the answer as a model streams it.
    let timestamp = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
    let question = json!({"role": "user", "timestamp": timestamp, "content": text("What is a log?")});
    call("session::append", json!({"session_id": session_id, "message": question})).await?;
    let answer = json!({"role": "assistant", "timestamp": timestamp, "content": [],
                        "model": "m", "provider": "p", "stop_reason": "end"});
    let appended = call("session::append", json!({"session_id": session_id, "message": answer})).await?;
    for words in ["An ordered", "An ordered list of facts."] {
        let update = json!({"session_id": session_id, "entry_id": appended["entry_id"], "content": text(words)});
        call("session::update-message", update).await?;
    }

    // 3. Print the events, then the stored messages.
    for _ in 0..4 {
        let event = tokio::time::timeout(Duration::from_secs(10), events.recv()).await?;
        let (kind, seq, message) = event.ok_or("the connection to the node is lost")?;
        println!("{kind} {seq} {message}");
    }
    let page = call("session::messages", json!({"session_id": session_id})).await?;
    for item in page["messages"].as_array().into_iter().flatten() {
        println!("{} {}", item["message"]["role"], item["message"]["content"]);
    }
    worker.shutdown_async().await;
    Ok(())
}
