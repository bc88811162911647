//! Laws of the feed, over SSE, gRPC, the bus and `tail` of a real node: no subscriber loses an event when the node or
//! the connection fails, and invalid requests are refused before a stream begins.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use session_manager::proto::watch::WatchRequest;
use session_manager::proto::watch::events_client::EventsClient;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use crate::node::NodeProcess;

const SOON: Duration = Duration::from_secs(20);

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
struct StreamEvent {
    id: String,
    kind: String,
    seq: u64,
    data: Value,
}

/// A client of `/v1/events` over plain HTTP.
struct Follower {
    stream: TcpStream,
    /// What arrived and is not decoded yet: a part of the head, or of a chunk.
    raw: Vec<u8>,
    /// Whether the body is in chunks, once the head has passed.
    in_chunks: Option<bool>,
    /// The head and the body, without the sizes of chunks.
    text: String,
    /// How much of the text was parsed.
    parsed: usize,
    last_id: Option<String>,
}

impl Follower {
    async fn ask(address: SocketAddr, query: &str, last: Option<&str>) -> Follower {
        let mut stream = TcpStream::connect(address).await.expect("the node listens");
        let last = last.map_or_else(String::new, |last| format!("last-event-id: {last}\r\n"));
        let head = format!("GET /v1/events{query} HTTP/1.1\r\nhost: localhost\r\n{last}\r\n");
        stream.write_all(head.as_bytes()).await.expect("the request is sent");
        Follower { stream, raw: Vec::new(), in_chunks: None, text: String::new(), parsed: 0, last_id: None }
    }

    /// Returns once the stream has begun.
    async fn follow(address: SocketAddr, query: &str, last: Option<&str>) -> Follower {
        let mut follower = Follower::ask(address, query, last).await;
        follower.read_until("text/event-stream").await;
        follower
    }

    async fn read_until(&mut self, wanted: &str) {
        while !self.text.contains(wanted) {
            assert!(self.read_more().await, "the stream ended before {wanted:?} came: {}", self.text);
        }
    }

    /// Reads the available bytes; false at the end.
    async fn read_more(&mut self) -> bool {
        let mut piece = [0; 4096];
        let read = timeout(SOON, self.stream.read(&mut piece)).await.expect("something in time");
        let size = read.unwrap_or(0);
        self.raw.extend_from_slice(&piece[..size]);
        self.decode();
        size > 0
    }

    /// Moves the head, and then every complete chunk, to the text.
    fn decode(&mut self) {
        if self.in_chunks.is_none() {
            let Some(end) = self.raw.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return };
            let body = self.raw.split_off(end + 4);
            self.text.push_str(&String::from_utf8_lossy(&std::mem::replace(&mut self.raw, body)));
            self.in_chunks = Some(self.text.contains("transfer-encoding: chunked"));
        }
        if self.in_chunks == Some(false) {
            self.text.push_str(&String::from_utf8_lossy(&std::mem::take(&mut self.raw)));
            return;
        }
        while let Some(line) = self.raw.windows(2).position(|bytes| bytes == b"\r\n") {
            let size = std::str::from_utf8(&self.raw[..line]).expect("the size of a chunk");
            let size = usize::from_str_radix(size, 16).expect("the size of a chunk");
            let (begin, end) = (line + 2, line + 2 + size);
            if self.raw.len() < end + 2 {
                return;
            }
            self.text.push_str(std::str::from_utf8(&self.raw[begin..end]).expect("text"));
            self.raw.drain(..end + 2);
        }
    }

    /// The next event. Blocks with an id and no data only move the position.
    async fn next(&mut self) -> StreamEvent {
        loop {
            while let Some(length) = self.text[self.parsed..].find("\n\n") {
                let block = self.text[self.parsed..self.parsed + length].to_owned();
                self.parsed += length + 2;
                let field = |name: &str| {
                    block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
                };
                self.last_id = field("id").or(self.last_id.take());
                if let (Some(id), Some(kind), Some(data)) = (field("id"), field("event"), field("data")) {
                    let seq = field("seq").and_then(|seq| seq.parse().ok()).expect("a sequence number");
                    return StreamEvent { id, kind, seq, data: serde_json::from_str(&data).expect("a JSON payload") };
                }
            }
            assert!(self.read_more().await, "the stream ended: {}", self.text);
        }
    }

    /// The id that the stream begins with.
    async fn first_id(&mut self) -> String {
        self.read_until("id: ").await;
        self.read_until("\n\n").await;
        self.text.lines().find_map(|line| line.strip_prefix("id: ")).expect("an id").to_owned()
    }

    async fn entries(&mut self, count: usize) -> Vec<String> {
        let mut entries = Vec::new();
        for _ in 0..count {
            entries.push(self.next().await.data["entry_id"].as_str().expect("an entry").to_owned());
        }
        entries
    }
}

async fn call(address: SocketAddr, function: &str, body: Value) -> Value {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).await.expect("the node listens");
    let head = format!(
        "POST /v1/call/{function} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.expect("the request is sent");
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer)).await.expect("an answer in time").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(answer.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON")
}

async fn append(address: SocketAddr, session: &str, entry: &str) {
    let message = json!({ "role": "user", "timestamp": 1, "content": [] });
    let body = json!({ "session_id": session, "entry_id": entry, "message": message });
    call(address, "session::append", body).await;
}

/// A node with one event, and a position that it has not reached.
struct NodeWithEvent {
    node: NodeProcess,
    future: String,
    _dir: TempDir,
}

impl NodeWithEvent {
    async fn start() -> NodeWithEvent {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let node = NodeProcess::start(&dir.path().join("data"), &[]);
        session(node.address, "s").await;
        let position = Follower::follow(node.address, "?after=oldest", None).await.next().await.id;
        let cluster = position.split('.').next().expect("a cluster");
        let future = format!("{cluster}.0.999999999.0");
        NodeWithEvent { node, future, _dir: dir }
    }
}

async fn session(address: SocketAddr, id: &str) {
    call(address, "session::ensure", json!({ "session_id": id, "metadata": { "tenant": id } })).await;
}

#[tokio::test]
async fn a_client_that_resumes_gets_exactly_what_it_missed_even_from_a_restarted_node() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = dir.path().join("data");
    let node = NodeProcess::start(&data, &[]);
    let at = node.address;
    session(at, "s").await;
    let mut first = Follower::follow(at, "?session=s&type=message-added", None).await;
    append(at, "s", "a").await;
    append(at, "s", "b").await;
    let event = first.next().await;
    assert_eq!((event.kind.as_str(), event.seq, &event.data["entry_id"]), ("session::message-added", 2, &json!("a")));
    let last = first.next().await;
    drop(first);

    append(at, "s", "c").await;
    session(at, "other").await;
    append(at, "s", "d").await;
    let mut second = Follower::follow(at, "?session=s&type=message-added&after=oldest", Some(&last.id)).await;
    assert_eq!(second.entries(2).await, ["c", "d"]);
    append(at, "s", "e").await;
    let event = second.next().await;
    assert_eq!((event.seq, &event.data["entry_id"]), (6, &json!("e")));

    node.kill();
    let node = NodeProcess::start(&data, &[]);
    let at = node.address;
    append(at, "s", "f").await;
    let mut third = Follower::follow(at, "?session=s", Some(&last.id)).await;
    assert_eq!(third.entries(4).await, ["c", "d", "e", "f"]);
    let mut whole = Follower::follow(at, "?type=created&after=oldest", None).await;
    let created = [whole.next().await, whole.next().await];
    assert_eq!(created.map(|event| event.data["session_id"].clone()), [json!("s"), json!("other")]);
}

#[tokio::test]
async fn a_stream_without_an_event_can_be_resumed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    let mut quiet = Follower::follow(node.address, "", None).await;
    let began = quiet.first_id().await;
    drop(quiet);
    session(node.address, "s").await;
    let mut back = Follower::follow(node.address, "", Some(&began)).await;
    assert_eq!(back.next().await.kind, "session::created");
}

#[tokio::test]
async fn all_filters_of_a_stream_must_match() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    let at = node.address;
    session(at, "a").await;
    session(at, "b").await;
    append(at, "a", "1").await;
    append(at, "b", "2").await;
    let tenant = "?metadata=%7B%22tenant%22%3A%22b%22%7D&after=oldest";
    let mut of_tenant = Follower::follow(at, tenant, None).await;
    assert_eq!(of_tenant.next().await.kind, "session::created");
    assert_eq!(of_tenant.entries(1).await, ["2"]);
    let mut of_role = Follower::follow(at, "?roles=user&after=oldest", None).await;
    assert_eq!(of_role.entries(2).await, ["1", "2"]);
}

#[tokio::test]
async fn an_invalid_parameter_is_refused_by_name_before_the_stream_begins() {
    let NodeWithEvent { node, future, _dir } = NodeWithEvent::start().await;
    for (query, last, words) in [
        ("?sesion=s", None, "`sesion` is not a filter"),
        ("?type=vanished", None, "type: \\\"vanished\\\" is no type of event"),
        ("?roles=robot", None, "roles: \\\"robot\\\" is no role"),
        ("?roles=user&type=deleted", None, "roles: session::deleted has no role"),
        ("?metadata=1", None, "metadata: give a JSON object"),
        ("?after=x", None, "after: `x` is not a position"),
        ("", Some("garbage"), "Last-Event-ID: `garbage` is not a position"),
        ("", Some("elsewhere.0.1.0"), "Last-Event-ID: position `elsewhere.0.1.0` belongs to cluster `elsewhere`"),
        ("", Some(future.as_str()), "is from the future: the newest here is"),
    ] {
        let mut refused = Follower::ask(node.address, query, last).await;
        refused.read_until("}}").await;
        let status = refused.text.lines().next().unwrap_or_default();
        assert!(status.contains("400"), "{query} {last:?}: {}", refused.text);
        assert!(refused.text.contains("application/json") && refused.text.contains(words), "{}", refused.text);
    }
}

#[tokio::test]
async fn watch_and_tail_refuse_an_invalid_parameter_by_name() {
    let NodeWithEvent { node, future, _dir } = NodeWithEvent::start().await;
    let mut watch = EventsClient::connect(format!("http://{}", node.address)).await.expect("the node listens");
    let list = |name: &str| vec![name.to_owned()];
    for (request, words) in [
        (WatchRequest { types: list("vanished"), ..Default::default() }, "type: \"vanished\" is no type of event"),
        (WatchRequest { roles: list("robot"), ..Default::default() }, "roles: \"robot\" is no role"),
        (WatchRequest { metadata: "1".to_owned(), ..Default::default() }, "metadata: give a JSON object"),
        (WatchRequest { after: "garbage".to_owned(), ..Default::default() }, "after: `garbage` is not a position"),
        (
            WatchRequest { after: "elsewhere.0.1.0".to_owned(), ..Default::default() },
            "after: position `elsewhere.0.1.0` belongs to cluster `elsewhere`",
        ),
        (WatchRequest { after: future.clone(), ..Default::default() }, "is from the future: the newest here is"),
    ] {
        let refused = watch.watch(request).await.expect_err("it is refused");
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(words), "{refused}");
    }
    for (arguments, words) in [
        (["--from", "elsewhere.0.1.0"], "after: position `elsewhere.0.1.0` belongs to cluster `elsewhere`"),
        (["--from", future.as_str()], "is from the future: the newest here is"),
        (["--from", "garbage"], "after: `garbage` is not a position"),
        (["--type", "vanished"], "type: \"vanished\" is no type of event"),
    ] {
        let mut tail = Command::new(env!("CARGO_BIN_EXE_session-manager"));
        tail.args(["tail", "--url", &node.url()]).args(arguments).stdin(Stdio::null());
        let refused = tail.output().expect("tail runs");
        let message = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{message}");
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test]
async fn a_binding_refuses_positions_of_another_cluster_of_the_future_and_malformed_ones() {
    let NodeWithEvent { node, future, _dir } = NodeWithEvent::start().await;
    let (mut bus, _) = tokio_tungstenite::connect_async(node.url()).await.expect("the node listens");
    for (after, words) in [
        ("garbage", "`metadata.session-manager.after`: `garbage` is not a position"),
        ("elsewhere.0.1.0", "belongs to cluster `elsewhere`"),
        (future.as_str(), "is from the future: the newest here is"),
    ] {
        let binding = json!({
            "type": "registertrigger", "id": after, "trigger_type": "session::created", "function_id": "f",
            "config": {}, "metadata": { "session-manager": { "after": after } },
        });
        bus.send(Message::Text(binding.to_string().into())).await.expect("the binding is sent");
        let error = loop {
            let frame = timeout(SOON, bus.next()).await.expect("an answer in time").expect("a frame").expect("a frame");
            let frame: Value = serde_json::from_str(frame.to_text().expect("text")).unwrap_or_default();
            if frame["type"] == "triggerregistrationresult" {
                break frame["error"]["message"].as_str().expect("it is refused").to_owned();
            }
        };
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test]
async fn a_stream_without_an_event_can_be_resumed_after_the_node_was_killed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = dir.path().join("data");
    let node = NodeProcess::start(&data, &[]);
    let mut quiet = Follower::follow(node.address, "", None).await;
    let began = quiet.first_id().await;
    // Every start of a node adds an entry to its log, but no event.
    node.kill();
    let node = NodeProcess::start(&data, &[]);
    let mut still = Follower::follow(node.address, "", Some(&began)).await;
    node.kill();
    assert!(still.text.contains("200 OK"), "{}", still.text);
    while still.read_more().await {}
    let node = NodeProcess::start(&data, &[]);
    session(node.address, "s").await;
    let mut back = Follower::follow(node.address, "", Some(&began)).await;
    assert_eq!(back.next().await.kind, "session::created");
}

/// A node on a fixed port.
struct OnSamePort(std::process::Child);

impl OnSamePort {
    async fn start(address: SocketAddr, data: &Path) -> OnSamePort {
        let mut command = Command::new(env!("CARGO_BIN_EXE_session-manager"));
        command.args(["--listen", &address.to_string(), "--data-dir"]).arg(data);
        command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let node = OnSamePort(command.spawn().expect("the binary starts"));
        let begun = Instant::now();
        while TcpStream::connect(address).await.is_err() {
            assert!(begun.elapsed() < SOON, "the node does not listen on {address}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        node
    }
}

impl Drop for OnSamePort {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn parse_line(line: Option<std::io::Result<String>>) -> Value {
    serde_json::from_str(&line.expect("a line").expect("text")).expect("JSON")
}

#[tokio::test]
async fn tail_starts_at_a_position_and_survives_a_restart_of_the_node() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = dir.path().join("data");
    let node = NodeProcess::start(&data, &[]);
    let at = node.address;
    session(at, "s").await;
    append(at, "s", "a").await;
    let tail = |from: &str, url: String| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_session-manager"));
        command.args(["tail", "--url", &url, "--from", from]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("tail starts")
    };
    let mut first = tail("oldest", node.url());
    let mut lines = BufReader::new(first.stdout.take().expect("its output")).lines();
    let mut line = move || parse_line(lines.next());
    let created = line();
    assert_eq!((&created["type"], &created["seq"]), (&json!("session::created"), &json!(1)));
    assert_eq!(line()["payload"]["entry_id"], "a");

    // The node restarts on the same port: tail continues after the last line it printed.
    node.kill();
    let node = OnSamePort::start(at, &data).await;
    append(at, "s", "b").await;
    assert_eq!(line()["payload"]["entry_id"], "b");
    first.kill().expect("tail runs");
    first.wait().expect("tail ends");

    let mut second = tail(created["position"].as_str().expect("a position"), format!("ws://{at}"));
    let mut lines = BufReader::new(second.stdout.take().expect("its output")).lines();
    for entry in ["a", "b"] {
        assert_eq!(parse_line(lines.next())["payload"]["entry_id"], entry);
    }
    second.kill().expect("tail runs");
    second.wait().expect("tail ends");

    let mut refused = tail("nonsense", format!("ws://{at}"));
    let mut words = String::new();
    refused.stderr.take().expect("its words").read_to_string(&mut words).expect("words");
    assert!(words.contains("after: `nonsense` is not a position"), "{words}");
    assert_eq!(refused.wait().expect("tail ends").code(), Some(2));
    drop(node);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connected_stream_gets_every_update_of_four_answers_however_late_it_reads() {
    const SESSIONS: [&str; 4] = ["a", "b", "c", "d"];
    const UPDATES: usize = 100;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    for id in SESSIONS {
        session(node.address, id).await;
        append(node.address, id, &format!("{id}-answer")).await;
    }
    let mut follower = Follower::follow(node.address, "?type=message-updated", None).await;
    // Nobody reads meanwhile. This is more than sockets hold, and less than the node keeps in memory.
    let words = "x".repeat(25 << 10);
    let (address, words) = (node.address, words.as_str());
    let stream_answer = |id: &'static str| async move {
        for nth in 0..UPDATES {
            let content = json!([{ "type": "text", "text": format!("{nth} {words}") }]);
            let update = json!({ "session_id": id, "entry_id": format!("{id}-answer"), "content": content });
            call(address, "session::update-message", update).await;
        }
    };
    futures::future::join_all(SESSIONS.map(stream_answer)).await;
    let mut heard: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for _ in 0..SESSIONS.len() * UPDATES {
        let event = follower.next().await;
        heard.entry(event.data["session_id"].as_str().expect("a session").to_owned()).or_default().push(event.seq);
    }
    for (id, numbers) in heard {
        let whole: Vec<u64> = (numbers[0]..).take(UPDATES).collect();
        assert_eq!(numbers, whole, "session {id}: no update is missing");
    }
}

#[tokio::test]
async fn a_client_that_stops_reading_costs_little_memory_and_delays_no_other() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    let at = node.address;
    session(at, "s").await;
    let mut stuck = Vec::new();
    for _ in 0..20 {
        stuck.push(Follower::follow(at, "?session=s", None).await);
    }
    let mut quick = Follower::follow(at, "?session=s", None).await;
    let before = node.resident_bytes();
    // Far more than the socket buffers hold.
    let text = "x".repeat(64 << 10);
    for n in 0..200 {
        let message = json!({ "role": "user", "timestamp": 1, "content": [{ "type": "text", "text": text }] });
        let body = json!({ "session_id": "s", "entry_id": n.to_string(), "message": message });
        call(at, "session::append", body).await;
        assert_eq!(quick.entries(1).await, [n.to_string()]);
        (quick.text, quick.parsed) = (quick.text.split_off(quick.parsed), 0);
    }
    if let (Some(before), Some(after)) = (before, node.resident_bytes()) {
        // 20 clients × 12.5 MiB would be 250 MiB.
        let grown = after.saturating_sub(before);
        assert!(grown < 150 << 20, "the node grew by {grown} bytes for 20 stuck clients");
    }
    let begun = Instant::now();
    let mut late = stuck.pop().expect("a stuck client");
    let entries = late.entries(200).await;
    assert_eq!(entries, (0..200).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(late.text.contains("event: lagged"), "{:?}", begun.elapsed());
}
