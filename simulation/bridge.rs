//! Owns: an edge instance on a simulated host: a node with the bridge adapter, started as the program starts it, and
//! its connection to the mains over simulated sockets. The product uses the public SDK for that connection, but the SDK
//! opens real sockets and threads.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, SinkExt, StreamExt};
use serde_json::{Value, json};
use session_manager::config::{AdapterConfig, BridgeConfig, Config};
use session_manager::node::{Environment, Node, NodeSettings};
use session_manager::proposal::bridge::connection::{
    CallFailure, CallFuture, ConnectFuture, Connection, Connector, OnEvent,
};
use session_manager::proposal::bridge::error::BridgeError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;
use turmoil::net::TcpStream;

use crate::frames;
use crate::host::{CLIENT_PORT, session_model};
use crate::network::SimulatedSockets;
use crate::recorder::Recorder;
use crate::tenant::{self, Tenant};

pub const NAME: &str = "bridge";
/// A bridge that finds no main does not start, and is restarted after this time.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The process of the bridge.
pub async fn run(here: IpAddr, mains: Vec<IpAddr>, recorder: Recorder) -> turmoil::Result {
    loop {
        match Node::start(settings(here, &mains)).await {
            Ok(_node) => {
                recorder.say(NAME, "is attached");
                std::future::pending::<()>().await;
            }
            Err(error) => recorder.say(NAME, &format!("does not start: {error}")),
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

fn settings(here: IpAddr, mains: &[IpAddr]) -> NodeSettings {
    let urls = mains.iter().map(|main| format!("ws://{main}:{CLIENT_PORT}")).collect();
    let config = Config {
        adapter: AdapterConfig::Bridge(BridgeConfig { urls, timeout_ms: 2_000, ..BridgeConfig::default() }),
        listen: SocketAddr::from(([127, 0, 0, 1], CLIENT_PORT)),
        token_file: Some(tenant::token_file()),
        session_model: session_model(),
        ..Config::default()
    };
    let environment = Environment {
        sockets: Arc::new(SimulatedSockets { host: here }),
        resident_bytes: || None,
        dial: Some(Arc::new(SimulatedDial::default())),
        ..Environment::default()
    };
    NodeSettings { config, reread: None, environment, engine: None }
}

/// Each connection receives events by another function id, because a bus that has not noticed the end of the last
/// connection still delivers to its function.
#[derive(Default)]
struct SimulatedDial {
    dialled: AtomicU64,
}

impl Connector for SimulatedDial {
    fn connect<'a>(&'a self, url: &'a str, within: Duration) -> ConnectFuture<'a> {
        async move {
            let connected = timeout(within, connect(url)).await;
            let socket = connected.map_err(|_| BridgeError::TimedOut(within))?.map_err(BridgeError::Unreachable)?;
            let (send, to_send) = mpsc::unbounded_channel();
            let line = Arc::new(SimulatedLine {
                send,
                hears: format!("session-manager-bridge::{}", self.dialled.fetch_add(1, Ordering::Relaxed)),
                next: AtomicU64::new(1),
                waiting: Mutex::default(),
                hear: Mutex::default(),
                lost: CancellationToken::new(),
            });
            tokio::spawn(pump(socket, to_send, line.clone()));
            let line: Arc<dyn Connection> = line;
            Ok(line)
        }
        .boxed()
    }
}

async fn connect(url: &str) -> Result<WebSocketStream<TcpStream>, String> {
    let address = url.strip_prefix("ws://").ok_or("it is not the URL of a bus")?;
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let shaken = tokio_tungstenite::client_async(frames::request("/", Tenant::Everyone.token()), stream).await;
    let (mut socket, _) = shaken.map_err(|error| error.to_string())?;
    // The first frame confirms the registration.
    match socket.next().await {
        Some(Ok(_)) => Ok(socket),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("it does not answer as an iii bus".to_owned()),
    }
}

type Answer = Result<Value, CallFailure>;

struct SimulatedLine {
    send: mpsc::UnboundedSender<Value>,
    hears: String,
    next: AtomicU64,
    /// The callers that wait for an answer, by invocation id.
    waiting: Mutex<BTreeMap<String, oneshot::Sender<Answer>>>,
    hear: Mutex<Option<OnEvent>>,
    lost: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forwards frames in both directions until the connection ends or is closed.
async fn pump(
    mut socket: WebSocketStream<TcpStream>,
    mut to_send: mpsc::UnboundedReceiver<Value>,
    line: Arc<SimulatedLine>,
) {
    loop {
        tokio::select! {
            () = line.lost.cancelled() => break,
            frame = to_send.recv() => {
                let Some(frame) = frame else { break };
                if socket.send(Message::Text(frame.to_string().into())).await.is_err() {
                    break;
                }
            }
            message = socket.next() => match message {
                Some(Ok(Message::Text(text))) => line.take(serde_json::from_str(&text).unwrap_or_default()),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break,
            },
        }
    }
    line.lost.cancel();
}

impl SimulatedLine {
    fn take(&self, frame: Value) {
        match frame["type"].as_str() {
            Some("invocationresult") => {
                let id = frame["invocation_id"].as_str().unwrap_or_default();
                if let Some(waiting) = lock(&self.waiting).remove(id) {
                    // The caller may have given up.
                    let _ = waiting.send(answer(&frame));
                }
            }
            Some("invokefunction") => {
                let hear = lock(&self.hear).clone();
                if let Some(hear) = hear.filter(|_| !self.lost.is_cancelled()) {
                    hear(frame["data"].clone(), frame.get("metadata").cloned());
                }
            }
            // The feed cannot be resumed from there. The bridge retries on a new connection.
            Some("triggerregistrationresult") if !frame["error"].is_null() => self.lost.cancel(),
            Some(_) | None => {}
        }
    }
}

/// The answer in the form that the SDK gives it.
fn answer(frame: &Value) -> Answer {
    let error = &frame["error"];
    if error.is_null() {
        return Ok(frame["result"].clone());
    }
    let (code, message) = (error["code"].as_str().unwrap_or_default(), error["message"].as_str().unwrap_or_default());
    Err(CallFailure::from_bus(code, message))
}

impl Connection for SimulatedLine {
    fn call<'a>(&'a self, function_id: &'a str, body: Value, within: Duration) -> CallFuture<'a> {
        async move {
            let id = self.next.fetch_add(1, Ordering::Relaxed).to_string();
            let (sender, answer) = oneshot::channel();
            lock(&self.waiting).insert(id.clone(), sender);
            let frame = json!({
                "type": "invokefunction", "invocation_id": id, "function_id": function_id, "data": body,
            });
            if self.lost.is_cancelled() || self.send.send(frame).is_err() {
                return Err(CallFailure::NotSent("the connection is lost".to_owned()));
            }
            let unanswered = |why: &str| Err(CallFailure::OutcomeUnknown(why.to_owned()));
            tokio::select! {
                answer = answer => answer.unwrap_or_else(|_| unanswered("the connection was closed")),
                () = self.lost.cancelled() => unanswered("the connection was lost before the answer came"),
                () = tokio::time::sleep(within) => unanswered("no answer in time"),
            }
        }
        .boxed()
    }

    fn subscribe(&self, after: Option<&str>, on_event: OnEvent) -> Result<(), BridgeError> {
        *lock(&self.hear) = Some(on_event);
        let hears = &self.hears;
        let metadata = after.map_or(json!({}), |after| json!({ "session-manager": { "after": after } }));
        let binding = json!({
            "type": "registertrigger", "id": "bridge", "trigger_type": "session::store::events", "function_id": hears,
            "config": {}, "metadata": metadata,
        });
        for frame in [json!({ "type": "registerfunction", "id": hears }), binding] {
            self.send.send(frame).map_err(|_| BridgeError::ConnectionLost)?;
        }
        Ok(())
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        self.lost.cancelled().boxed()
    }

    fn close(&self) {
        self.lost.cancel();
    }
}
