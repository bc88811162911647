//! Owns: `Connection` over the iii SDK. No other file of the bridge names the SDK.
//!
//! The SDK would reconnect by itself and repeat its old registrations. A bridge must resume its feed at its current
//! position, perhaps at another main. So a lost connection is closed here, and the bridge opens a new one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use axum::http::uri::InvalidUri;
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

use super::connection::{CallFailure, CallFuture, ConnectFuture, Connection, Connector, OnEvent};
use super::error::BridgeError;
use crate::events::filter::STORE_EVENTS;

/// How often the connection state is polled. The SDK has no notification for a lost connection.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Opens connections with the SDK.
pub struct SdkConnector {
    /// The worker name on the main's bus. Each connection appends a random part: names are unique on a bus, and the bus
    /// may not have noticed yet that the previous connection is gone.
    pub name: String,
    /// Reads the token for the main. Called at every connect, because a token may be replaced at any time.
    pub token: ReadToken,
    /// The authority that the process must trust. The SDK has no setting for it and reads SSL_CERT_FILE.
    pub ca: Option<PathBuf>,
}

/// `Err`: there is one and it cannot be read.
pub type ReadToken = Arc<dyn Fn() -> Result<Option<String>, BridgeError> + Send + Sync>;

impl Connector for SdkConnector {
    fn connect<'a>(&'a self, url: &'a str, within: Duration) -> ConnectFuture<'a> {
        async move {
            let deadline = Instant::now() + within;
            self.check_authority()?;
            let token = (self.token)()?;
            check_reachable(url, within).await?;
            let client = Client(register_worker(url, self.options(token)));
            let remaining = deadline.saturating_duration_since(Instant::now());
            let registered = client.0.wait_until_registered(remaining).await;
            registered.map_err(|error| BridgeError::NotABus(error.to_string()))?;
            let lost = CancellationToken::new();
            tokio::spawn(watch(client.0.clone(), lost.clone()));
            let connection: Arc<dyn Connection> = Arc::new(SdkConnection { client, lost });
            Ok(connection)
        }
        .boxed()
    }
}

impl SdkConnector {
    /// Another thread may read the environment, so it cannot be changed here. `session-manager serve` sets the variable
    /// before it starts a thread.
    fn check_authority(&self) -> Result<(), BridgeError> {
        match &self.ca {
            Some(ca) if std::env::var_os("SSL_CERT_FILE").as_deref() != Some(ca.as_os_str()) => {
                Err(BridgeError::OtherAuthority(ca.display().to_string()))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn options(&self, token: Option<String>) -> InitOptions {
        let bearer = |token| HashMap::from([("Authorization".to_owned(), format!("Bearer {token}"))]);
        // Telemetry would open a second socket and delay the exit by a flush.
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
            headers: token.map(bearer),
            identity: WorkerIdentityMode::Explicit,
            ..InitOptions::default()
        }
    }
}

/// The SDK's client runs in its own thread and reconnects until it is shut down.
struct Client(IIIClient);

impl Drop for Client {
    fn drop(&mut self) {
        // The first poll sends the request; the answer does not matter.
        let _ = self.0.shutdown_async().now_or_never();
    }
}

struct SdkConnection {
    client: Client,
    lost: CancellationToken,
}

impl Connection for SdkConnection {
    fn call<'a>(&'a self, function_id: &'a str, body: Value, within: Duration) -> CallFuture<'a> {
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
                    Err(CallFailure::OutcomeUnknown("the connection was lost before the answer came".to_owned()))
                }
            }
        }
        .boxed()
    }

    fn subscribe(&self, after: Option<&str>, on_event: OnEvent) -> Result<(), BridgeError> {
        let function_id = format!("session-manager-bridge::{}", Uuid::new_v4().simple());
        let lost = self.lost.clone();
        let receive = move |envelope: Value, metadata: Option<Value>| {
            // Events that still arrive over a closed connection are sent again over the next one.
            if !lost.is_cancelled() {
                on_event(envelope, metadata);
            }
            Ok::<Value, Error>(Value::Null)
        };
        self.client.0.register_function(&function_id, RegisterFunction::new(receive));
        let mut binding = RegisterTriggerInput::new(STORE_EVENTS, function_id, json!({}));
        binding.metadata = after.map(|after| json!({ "session-manager": { "after": after } }));
        bind(&self.client.0, binding).map_err(|error| BridgeError::SubscriptionRefused(error.to_string()))
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        self.lost.cancelled().boxed()
    }

    fn close(&self) {
        self.lost.cancel();
    }
}

impl Drop for SdkConnection {
    fn drop(&mut self) {
        self.lost.cancel();
    }
}

/// Waits until the connection is lost or closed, then shuts the SDK's client down.
async fn watch(client: IIIClient, lost: CancellationToken) {
    while !lost.is_cancelled() && client.get_connection_state() == IIIConnectionState::Connected {
        let _ = timeout(POLL_EVERY, lost.cancelled()).await;
    }
    lost.cancel();
    client.shutdown_async().await;
}

/// Since 0.25 the SDK prefers `observe`, which needs a bus with `observe.v1`.
#[allow(deprecated)]
fn bind(client: &IIIClient, binding: RegisterTriggerInput) -> Result<(), Error> {
    client.register_trigger(binding).map(|_| ())
}

/// Opens and closes a TCP connection. The SDK retries silently for ever, so an address that does not answer is found
/// out here.
async fn check_reachable(url: &str, within: Duration) -> Result<(), BridgeError> {
    let invalid = |why: &str| BridgeError::InvalidUrl(why.to_owned());
    let uri: Uri = url.parse().map_err(|error: InvalidUri| BridgeError::InvalidUrl(error.to_string()))?;
    let port = match (uri.scheme_str(), uri.port_u16()) {
        (Some("ws" | "wss"), Some(port)) => port,
        (Some("ws"), None) => 80,
        (Some("wss"), None) => 443,
        _other => return Err(invalid("it must begin with ws:// or wss://")),
    };
    let host = uri.host().ok_or_else(|| invalid("it names no host"))?.trim_matches(['[', ']']);
    match timeout(within, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(BridgeError::Unreachable(error.to_string())),
        Err(_) => Err(BridgeError::TimedOut(within)),
    }
}

fn failure(error: Error) -> CallFailure {
    match error {
        Error::Remote { code, message, .. } => CallFailure::from_bus(&code, &message),
        Error::Timeout => CallFailure::OutcomeUnknown("no answer in time".to_owned()),
        error @ (Error::NotConnected
        | Error::Runtime(_)
        | Error::Handler(_)
        | Error::Serde(_)
        | Error::WebSocket(_)
        | Error::RegistrationRejected { .. }) => CallFailure::OutcomeUnknown(error.to_string()),
    }
}
