//! Owns: the public iii SDK as a `Line`. Nothing else of a bridge knows the SDK.
//!
//! The SDK reconnects by itself, with the registrations of the past. A bridge resumes its feed from where it is now,
//! and may turn to another node, so a lost connection is given up here and dialled anew.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use futures::FutureExt;
use futures::future::BoxFuture;
use iii_helpers::observability::OtelConfig;
use iii_sdk::protocol::{RegisterTriggerInput, TriggerRequest};
use iii_sdk::runtime::{IIIConnectionState, WorkerMetadata};
use iii_sdk::{Error, IIIClient, InitOptions, RegisterFunction, WorkerIdentityMode, register_worker};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::line::{CallFailure, Dial, Hear, Line};
use crate::events::filter::STORE_EVENTS;

/// How often the connection is looked at: the SDK tells nobody when it is lost.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Dials with the SDK.
pub struct Sdk {
    /// What the worker is called on the main's bus; each connection adds something of its own, since a bus takes a name
    /// only once and may not have noticed that the last connection is gone.
    pub name: String,
}

impl Dial for Sdk {
    fn dial<'a>(&'a self, url: &'a str, within: Duration) -> BoxFuture<'a, Result<Arc<dyn Line>, String>> {
        async move {
            let until = Instant::now() + within;
            reach(url, within).await?;
            let client = Client(register_worker(url, self.options()));
            let left = until.saturating_duration_since(Instant::now());
            let registered = client.0.wait_until_registered(left).await;
            registered.map_err(|error| format!("it does not answer as an iii bus: {error}"))?;
            let lost = CancellationToken::new();
            tokio::spawn(watch(client.0.clone(), lost.clone()));
            let line: Arc<dyn Line> = Arc::new(SdkLine { client, lost });
            Ok(line)
        }
        .boxed()
    }
}

impl Sdk {
    fn options(&self) -> InitOptions {
        // A bridge has a log of its own: no second socket, no flush at exit.
        let otel = OtelConfig { enabled: Some(false), ..OtelConfig::default() };
        let metadata = WorkerMetadata {
            name: format!("{}-{}", self.name, Uuid::new_v4().simple()),
            description: Some("A session-manager whose data lives here".to_owned()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..WorkerMetadata::default()
        };
        InitOptions {
            otel: Some(otel),
            metadata: Some(metadata),
            identity: WorkerIdentityMode::Explicit,
            ..InitOptions::default()
        }
    }
}

/// The SDK's client lives in a thread of its own, and tries for ever unless it is told to stop.
struct Client(IIIClient);

impl Drop for Client {
    fn drop(&mut self) {
        // Says so and does not wait.
        let _ = self.0.shutdown_async().now_or_never();
    }
}

struct SdkLine {
    client: Client,
    lost: CancellationToken,
}

impl Line for SdkLine {
    fn call<'a>(
        &'a self,
        function_id: &'a str,
        body: Value,
        within: Duration,
    ) -> BoxFuture<'a, Result<Value, CallFailure>> {
        async move {
            if self.lost.is_cancelled() {
                return Err(CallFailure::NotSent("the connection is lost".to_owned()));
            }
            let request = TriggerRequest {
                function_id: function_id.to_owned(),
                payload: body,
                action: None,
                timeout_ms: Some(u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1)),
            };
            tokio::select! {
                answer = self.client.0.trigger(request) => answer.map_err(failure),
                () = self.lost.cancelled() => {
                    Err(CallFailure::Unanswered("the connection was lost before the answer came".to_owned()))
                }
            }
        }
        .boxed()
    }

    fn follow(&self, after: Option<&str>, hear: Hear) -> Result<(), String> {
        let function_id = format!("session-manager-bridge::{}", Uuid::new_v4().simple());
        let lost = self.lost.clone();
        let take = move |envelope: Value, sidecar: Option<Value>| {
            // What a given-up connection still brings comes again on the next one.
            if !lost.is_cancelled() {
                hear(envelope, sidecar);
            }
            Ok::<Value, Error>(Value::Null)
        };
        self.client.0.register_function(&function_id, RegisterFunction::new(take));
        let mut binding = RegisterTriggerInput::new(STORE_EVENTS, function_id, json!({}));
        binding.metadata = after.map(|after| json!({ "session-manager": { "after": after } }));
        bind(&self.client.0, binding).map_err(|error| error.to_string())
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        self.lost.cancelled().boxed()
    }

    fn hang_up(&self) {
        self.lost.cancel();
    }
}

impl Drop for SdkLine {
    fn drop(&mut self) {
        self.lost.cancel();
    }
}

/// Notices the end of a connection, whoever ended it, and puts the SDK's client to rest.
async fn watch(client: IIIClient, lost: CancellationToken) {
    while !lost.is_cancelled() && client.get_connection_state() == IIIConnectionState::Connected {
        let _ = timeout(LOOK_EVERY, lost.cancelled()).await;
    }
    lost.cancel();
    client.shutdown_async().await;
}

/// The SDK prefers `observe` since 0.25, which a bus without `observe.v1` does not offer.
#[allow(deprecated)]
fn bind(client: &IIIClient, binding: RegisterTriggerInput) -> Result<(), Error> {
    client.register_trigger(binding).map(|_| ())
}

/// The SDK tries for ever without a word, so a bus that is not there is found out first.
async fn reach(url: &str, within: Duration) -> Result<(), String> {
    let uri: Uri = url.parse().map_err(|error| format!("it is no URL: {error}"))?;
    let port = match (uri.scheme_str(), uri.port_u16()) {
        (Some("ws" | "wss"), Some(port)) => port,
        (Some("ws"), None) => 80,
        (Some("wss"), None) => 443,
        _ => return Err("it must begin with ws:// or wss://".to_owned()),
    };
    let host = uri.host().ok_or("it names no host")?.trim_matches(['[', ']']);
    match timeout(within, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("it cannot be reached: {error}")),
        Err(_) => Err(format!("it cannot be reached: no answer within {} ms", within.as_millis())),
    }
}

fn failure(error: Error) -> CallFailure {
    match error {
        // An engine says so when the worker that served the call left while it was under way.
        Error::Remote { code, message, .. } if code == "invocation_stopped" => CallFailure::Unanswered(message),
        Error::Remote { code, .. } if code == "function_not_found" => CallFailure::NoSuchFunction,
        Error::Remote { code, message, .. } => {
            let words = message.strip_prefix("handler error: ").unwrap_or(&message);
            CallFailure::Answered(if words.starts_with("session/") {
                words.to_owned()
            } else {
                format!("{code}: {words}")
            })
        }
        Error::Timeout => CallFailure::Unanswered("no answer in time".to_owned()),
        error @ (Error::NotConnected
        | Error::Runtime(_)
        | Error::Handler(_)
        | Error::Serde(_)
        | Error::WebSocket(_)
        | Error::RegistrationRejected { .. }) => CallFailure::Unanswered(error.to_string()),
    }
}
