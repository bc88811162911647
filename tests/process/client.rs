//! Owns: a client over the Rust SDK: calls that fail the test on an error, and events in a queue.

use std::time::Duration;

use iii_helpers::observability::OtelConfig;
use iii_sdk::protocol::{RegisterTriggerInput, TriggerRequest};
use iii_sdk::{Error, IIIClient, InitOptions, RegisterFunction, WorkerIdentityMode, register_worker};
use serde_json::{Value, json};
use tokio::sync::mpsc;

const ANSWER_MAX_MS: u64 = 30_000;
const EVENT_MAX: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Client {
    sdk: IIIClient,
}

/// An event as a handler received it.
#[derive(Debug)]
pub struct Received {
    pub payload: Value,
    pub seq: u64,
}

impl Client {
    pub async fn connect(url: &str) -> Client {
        let otel = OtelConfig { enabled: Some(false), ..OtelConfig::default() };
        let sdk = register_worker(
            url,
            InitOptions { otel: Some(otel), identity: WorkerIdentityMode::Explicit, ..InitOptions::default() },
        );
        sdk.wait_until_registered(Duration::from_secs(10)).await.expect("the bus registers a worker");
        Client { sdk }
    }

    /// The answer, or the error message of the contract.
    pub async fn try_call(&self, function: &str, payload: Value) -> Result<Value, String> {
        let request = TriggerRequest { timeout_ms: Some(ANSWER_MAX_MS), ..TriggerRequest::new(function, payload) };
        self.sdk.trigger(request).await.map_err(|error| match error {
            Error::Remote { message, .. } => message,
            other => other.to_string(),
        })
    }

    pub async fn call(&self, function: &str, payload: Value) -> Value {
        self.try_call(function, payload).await.unwrap_or_else(|error| panic!("{function}: {error}"))
    }

    pub async fn create(&self) -> String {
        let created = self.call("session::create", json!({})).await;
        created["session_id"].as_str().expect("a session id").to_owned()
    }

    /// Every message of the transcript, oldest first, page by page.
    pub async fn transcript(&self, session_id: &str) -> Vec<Value> {
        let mut items = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let ask = json!({ "session_id": session_id, "limit": 500, "cursor": cursor });
            let page = self.call("session::messages", ask).await;
            items.extend(page["messages"].as_array().expect("messages").iter().cloned());
            cursor = page["next_cursor"].clone();
            if cursor.is_null() {
                return items;
            }
        }
    }

    /// Binds to one event type. The binding is in place when this returns. Events are queued in order of arrival.
    #[allow(deprecated)] // `observe`, the successor of register_trigger, is not on this bus
    pub async fn subscribe(&self, trigger_type: &str, config: Value) -> Events {
        let (received, events) = mpsc::unbounded_channel();
        let function_id = format!("test::{}", uuid::Uuid::new_v4().simple());
        let handler = move |payload: Value, sidecar: Option<Value>| {
            let seq = sidecar.and_then(|sidecar| sidecar["session-manager"]["seq"].as_u64());
            let _ = received.send(Received { payload, seq: seq.expect("every delivery carries a seq") });
            async { Ok::<Value, Error>(Value::Null) }
        };
        self.sdk.register_function(&function_id, RegisterFunction::new_async(handler));
        self.sdk
            .register_trigger(RegisterTriggerInput::new(trigger_type, function_id, config))
            .expect("the binding is sent");
        // The node handles the frames of one socket in order, so an answer to a later frame means that the binding
        // exists.
        self.call("session::get", json!({ "session_id": "unknown" })).await;
        Events { events }
    }

    pub async fn close(self) {
        self.sdk.shutdown_async().await;
    }
}

pub struct Events {
    events: mpsc::UnboundedReceiver<Received>,
}

impl Events {
    pub async fn next(&mut self) -> Received {
        tokio::time::timeout(EVENT_MAX, self.events.recv())
            .await
            .expect("an event within 30 s")
            .expect("the client is connected")
    }

    /// All events up to and including the first one for which `last` is true.
    pub async fn until(&mut self, last: impl Fn(&Value) -> bool) -> Vec<Received> {
        let mut received = Vec::new();
        loop {
            let event = self.next().await;
            let done = last(&event.payload);
            received.push(event);
            if done {
                return received;
            }
        }
    }
}

pub fn user_message(text: &str) -> Value {
    json!({ "role": "user", "timestamp": 1, "content": [{ "type": "text", "text": text }] })
}
