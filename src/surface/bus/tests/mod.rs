//! The port as clients see it: real sockets, raw frames and the real SDK, over a fake service.

mod bindings;
mod calls;
mod hostile;
mod reattach;
mod sdk;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::{FutureExt, SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use tokio_util::sync::CancellationToken;

use super::{Bus, BusSettings};
use crate::events::current::CurrentFeed;
use crate::events::feed::{Feed, FeedSettings};
use crate::events::position::ClusterTag;
use crate::events::{Committed, EventSink};
use crate::machine::event::{Event, EventKind, Happened};
use crate::machine::ids::{Position, SessionId};
use crate::machine::json::Json;
use crate::machine::refusal::Refusal;
use crate::requests::Printed;
use crate::surface::endpoint::{self, EndpointSettings};
use crate::surface::{Call, CallError, DescribedFunction, Gate, Service};

/// How long a test waits for what must happen.
const SOON: Duration = Duration::from_secs(20);

/// A node with five functions.
#[derive(Default)]
struct FakeService {
    /// `session::slow` answers when this is notified.
    release: Notify,
    /// `session::slow` notifies this when it starts.
    begun: Notify,
    /// `session::ordered` returns how many calls came before it.
    count: AtomicU64,
}

impl Service for FakeService {
    fn call<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Printed, CallError>> {
        async move {
            match call.function.as_str() {
                "session::echo" => Ok(call.body.to_string().into()),
                "session::refuse" => Err(Refusal::SessionUnknown(SessionId::from("s")).into()),
                "session::slow" => {
                    self.begun.notify_one();
                    self.release.notified().await;
                    Ok(call.body.to_string().into())
                }
                "session::ordered" => {
                    let rank = self.count.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    Ok(rank.to_string().into())
                }
                "session::large" => Ok(format!("\"{}\"", "x".repeat(call.body.parse().unwrap_or(0))).into()),
                unknown => Err(CallError::FunctionUnknown(unknown.to_owned())),
            }
        }
        .boxed()
    }

    fn functions(&self) -> Vec<DescribedFunction> {
        ["session::echo", "session::store::hidden"]
            .map(|id| DescribedFunction {
                id: id.to_owned(),
                description: format!("about {id}"),
                internal: id.contains("store"),
                request_schema: json!({"type": "object"}),
                response_schema: json!({}),
            })
            .into()
    }
}

/// A running endpoint.
struct Node {
    address: String,
    service: Arc<FakeService>,
    feed: Arc<Feed>,
    bus: Arc<Bus>,
    shutdown: CancellationToken,
    ended: JoinHandle<()>,
}

impl Node {
    async fn start() -> Node {
        Node::start_with(BusSettings::default(), |_| {}).await
    }

    async fn start_with(settings: BusSettings, adjust: impl FnOnce(&mut EndpointSettings)) -> Node {
        let service = Arc::new(FakeService::default());
        let feed = Feed::new(FeedSettings { cluster: ClusterTag::new("c"), ..FeedSettings::default() });
        let shutdown = CancellationToken::new();
        tokio::spawn(feed.clone().dispatch(shutdown.clone()));
        let bus = Bus::new(settings, Gate::new(service.clone()), CurrentFeed::new(feed.clone()));
        let mut settings = EndpointSettings::new("127.0.0.1:0");
        adjust(&mut settings);
        let (address, ended) = endpoint::serve(settings, bus.clone(), shutdown.clone()).await.unwrap();
        Node { address: address.to_string(), service, feed, bus, shutdown, ended }
    }

    async fn connect(&self) -> RawClient {
        let mut client = self.connect_raw().await;
        let greeting = client.expect("workerregistered").await;
        client.worker_id = greeting["worker_id"].as_str().unwrap().to_owned();
        client.token = greeting["reattach_token"].as_str().unwrap().to_owned();
        client
    }

    async fn connect_raw(&self) -> RawClient {
        let config = WebSocketConfig::default().max_frame_size(None).max_message_size(None);
        let url = format!("ws://{}/?x=1", self.address);
        let (socket, _) =
            tokio_tungstenite::connect_async_with_config(url, Some(config), false).await.expect("connects");
        RawClient { socket, worker_id: String::new(), token: String::new() }
    }

    /// Publishes a `session::deleted` of session `s` with payload `{"n": index}`.
    fn publish(&self, index: u64) {
        self.publish_event(index, "s", EventKind::Deleted, format!("{{\"n\":{index}}}"));
    }

    fn publish_event(&self, index: u64, session: &str, kind: EventKind, payload: String) {
        let event = Event {
            session_id: session.into(),
            seq: index,
            happened: Happened::Published { kind, role: None, payload: Json::adopt(&payload) },
            metadata: json!({"tenant": "a"}).as_object().cloned(),
        };
        self.feed.publish(vec![Arc::new(Committed::new(Position { group: 0, index, ordinal: 0 }, event))]);
    }

    /// One plain HTTP exchange: the status line's code and the body.
    async fn http(&self, head: &str, body: &str) -> (u16, String) {
        let (address, body) = (&self.address, body.as_bytes());
        exchange(address, &format!("{head}\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len()), body).await
    }
}

async fn exchange(address: &str, head: &str, body: &[u8]) -> (u16, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(body).await;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = tokio::time::timeout(SOON, stream.read(&mut piece)).await.expect("an answer in time");
        match read {
            Ok(0) | Err(_) => break,
            Ok(size) => answer.extend_from_slice(&piece[..size]),
        }
        if let Some(whole) = whole_answer(&answer) {
            return whole;
        }
    }
    whole_answer(&answer).unwrap_or_else(|| panic!("half an answer: {}", String::from_utf8_lossy(&answer)))
}

fn whole_answer(answer: &[u8]) -> Option<(u16, String)> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    (body.len() >= length.unwrap_or(0)).then(|| (head[9..12].parse().unwrap(), body.to_owned()))
}

/// A client that speaks raw frames.
struct RawClient {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    worker_id: String,
    token: String,
}

impl RawClient {
    async fn send(&mut self, frame: Value) {
        self.send_text(frame.to_string()).await;
    }

    async fn send_text(&mut self, text: String) {
        self.socket.send(Message::Text(text.into())).await.expect("sent");
    }

    async fn invoke(&mut self, invocation_id: &str, function_id: &str, data: Value) {
        self.send(json!({
            "type": "invokefunction", "invocation_id": invocation_id, "function_id": function_id, "data": data,
        }))
        .await;
    }

    async fn call(&mut self, function_id: &str, data: Value) -> Value {
        self.invoke("i", function_id, data).await;
        self.expect("invocationresult").await
    }

    async fn register_function(&mut self, id: &str) {
        self.send(json!({"type": "registerfunction", "id": id})).await;
    }

    /// Registers a binding and returns the answer to it.
    async fn bind(&mut self, id: &str, trigger_type: &str, config: Value, metadata: Value) -> Value {
        self.send(json!({
            "type": "registertrigger", "id": id, "trigger_type": trigger_type, "function_id": "on-event",
            "config": config, "metadata": metadata,
        }))
        .await;
        self.expect("triggerregistrationresult").await
    }

    /// The next frame, which must be of this type.
    async fn expect(&mut self, kind: &str) -> Value {
        let frame = self.next().await.unwrap_or_else(|closed| panic!("closed while waiting for {kind}: {closed:?}"));
        assert_eq!(frame["type"], kind, "{frame}");
        frame
    }

    /// The next frame, or how the connection ended.
    async fn next(&mut self) -> Result<Value, Option<CloseFrame>> {
        loop {
            match tokio::time::timeout(SOON, self.socket.next()).await.expect("something in time") {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(close))) => return Err(close),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(None),
            }
        }
    }

    /// Reads to the end and returns the close frame.
    async fn closed(&mut self) -> CloseFrame {
        loop {
            if let Err(close) = self.next().await {
                return close.expect("a close frame");
            }
        }
    }
}

/// Polls until a condition holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < SOON, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
