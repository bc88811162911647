//! Owns: an edge instance on a host of its own: a node with the bridge adapter, started as the program starts it, and the
//! connection to its mains over simulated sockets. The public SDK, which stands there otherwise, brings sockets and threads of
//! its own.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, SinkExt, StreamExt};
use serde_json::{Value, json};
use session_manager::config::{AdapterConfig, BridgeConfig, Config};
use session_manager::node::{Ground, Node, NodeSettings};
use session_manager::proposal::bridge::line::{CallFailure, Dial, Hear, Line};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;
use turmoil::net::TcpStream;

use crate::host::CLIENT_PORT;
use crate::network::SimulatedSockets;
use crate::recorder::Recorder;

pub const NAME: &str = "bridge";
/// A bridge that finds no main does not start; whoever looks after it tries again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The life of a bridge's process.
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
        ..Config::default()
    };
    let ground = Ground {
        sockets: Arc::new(SimulatedSockets { host: here }),
        dial: Some(Arc::new(SimulatedDial::default())),
        ..Ground::default()
    };
    NodeSettings { config, reread: None, ground, engine: None }
}

/// Each connection hears by a function of its own: a bus that has not noticed the end of the last one still gives its events to
/// that.
#[derive(Default)]
struct SimulatedDial {
    dialled: AtomicU64,
}

impl Dial for SimulatedDial {
    fn dial<'a>(&'a self, url: &'a str, within: Duration) -> BoxFuture<'a, Result<Arc<dyn Line>, String>> {
        async move {
            let connected = timeout(within, connect(url)).await;
            let socket = connected.map_err(|_| "no connection in time".to_owned())??;
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
            let line: Arc<dyn Line> = line;
            Ok(line)
        }
        .boxed()
    }
}

async fn connect(url: &str) -> Result<WebSocketStream<TcpStream>, String> {
    let address = url.strip_prefix("ws://").ok_or("it is no URL of a bus")?;
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let shaken = tokio_tungstenite::client_async("ws://simulation/", stream).await;
    let (mut socket, _) = shaken.map_err(|error| error.to_string())?;
    // The first frame says that the bus took us in.
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
    /// Who waits for which answer.
    waiting: Mutex<BTreeMap<String, oneshot::Sender<Answer>>>,
    hear: Mutex<Option<Hear>>,
    lost: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Carries frames both ways until the connection ends or is given up.
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
                    // Whoever asked may have given up.
                    let _ = waiting.send(answer(&frame));
                }
            }
            Some("invokefunction") => {
                let hear = lock(&self.hear).clone();
                if let Some(hear) = hear.filter(|_| !self.lost.is_cancelled()) {
                    hear(frame["data"].clone(), frame.get("metadata").cloned());
                }
            }
            // A feed that cannot be followed from there is asked for again on another connection.
            Some("triggerregistrationresult") if !frame["error"].is_null() => self.lost.cancel(),
            Some(_) | None => {}
        }
    }
}

/// The answer as the SDK would tell it.
fn answer(frame: &Value) -> Answer {
    let error = &frame["error"];
    if error.is_null() {
        return Ok(frame["result"].clone());
    }
    let (code, message) = (error["code"].as_str().unwrap_or_default(), error["message"].as_str().unwrap_or_default());
    let words = message.strip_prefix("handler error: ").unwrap_or(message);
    Err(match code {
        "function_not_found" => CallFailure::NoSuchFunction,
        "invocation_stopped" => CallFailure::Unanswered(message.to_owned()),
        _other if words.starts_with("session/") => CallFailure::Answered(words.to_owned()),
        _other => CallFailure::Answered(format!("{code}: {words}")),
    })
}

impl Line for SimulatedLine {
    fn call<'a>(&'a self, function_id: &'a str, body: Value, within: Duration) -> BoxFuture<'a, Answer> {
        async move {
            let id = self.next.fetch_add(1, Ordering::Relaxed).to_string();
            let (tell, told) = oneshot::channel();
            lock(&self.waiting).insert(id.clone(), tell);
            let frame = json!({
                "type": "invokefunction", "invocation_id": id, "function_id": function_id, "data": body,
            });
            if self.lost.is_cancelled() || self.send.send(frame).is_err() {
                return Err(CallFailure::NotSent("the connection is lost".to_owned()));
            }
            let unanswered = |why: &str| Err(CallFailure::Unanswered(why.to_owned()));
            tokio::select! {
                answer = told => answer.unwrap_or_else(|_| unanswered("nobody answers")),
                () = self.lost.cancelled() => unanswered("the connection was lost before the answer came"),
                () = tokio::time::sleep(within) => unanswered("no answer in time"),
            }
        }
        .boxed()
    }

    fn follow(&self, after: Option<&str>, hear: Hear) -> Result<(), String> {
        *lock(&self.hear) = Some(hear);
        let hears = &self.hears;
        let metadata = after.map_or(json!({}), |after| json!({ "session-manager": { "after": after } }));
        let binding = json!({
            "type": "registertrigger", "id": "bridge", "trigger_type": "session::store::events", "function_id": hears,
            "config": {}, "metadata": metadata,
        });
        for frame in [json!({ "type": "registerfunction", "id": hears }), binding] {
            self.send.send(frame).map_err(|_| "the connection is lost".to_owned())?;
        }
        Ok(())
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        self.lost.cancelled().boxed()
    }

    fn hang_up(&self) {
        self.lost.cancel();
    }
}
