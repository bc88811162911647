//! Laws of hostile clients: what one client sends, holds or does not read never takes more memory than its bound, and
//! never keeps other clients from being served. Memory is read from /proc; without it only the answers are checked.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, connect_async_with_config};

use crate::bad_input::{post, websocket};
use crate::node::NodeProcess;

const MIB: u64 = 1 << 20;
/// A call that hangs fails the test after this time. It is no measurement.
const ANSWER_MAX: Duration = Duration::from_secs(20);

fn start(dir: &Path, arguments: &[&str]) -> NodeProcess {
    NodeProcess::start(&dir.join("data"), arguments)
}

/// An array of small objects of at least this length. As a tree it takes about a hundred times as much memory.
fn small_objects(bytes: usize) -> String {
    const OBJECT: &str = r#"{"":{}},"#;
    format!("[{}0]", OBJECT.repeat(bytes / OBJECT.len()))
}

/// By how much the peak of the resident memory grew while `work` ran; `None` without /proc.
async fn growth<R>(node: &NodeProcess, work: impl Future<Output = R>) -> (R, Option<u64>) {
    let before = node.peak_bytes();
    let result = work.await;
    (result, before.zip(node.peak_bytes()).map(|(before, after)| after - before))
}

async fn call(node: SocketAddr, function: &str, body: &str) -> Value {
    let (status, answer) = post(node, function, body).await;
    assert_eq!(status, 200, "{function}: {answer}");
    serde_json::from_str(&answer).expect("JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_call_costs_no_more_than_four_times_its_bytes() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path(), &[]);
    call(node.address, "session::create", "{}").await;
    let objects = small_objects(16 << 20);
    let call_many = format!(r#"{{"session_id":"s","messages":{objects}}}"#);
    let metadata = format!(r#"{{"metadata":{{"k":{objects}}}}}"#);
    let unknown = format!(r#"{{"session_id":"none","message":{{"role":"robot","details":{objects}}}}}"#);
    for (function, body) in [
        ("session::create", &metadata),
        ("session::append-many", &call_many),
        ("session::append", &unknown),
        ("session::list", &metadata),
    ] {
        let ((status, answer), grown) = growth(&node, post(node.address, function, body)).await;
        assert_eq!(status, 400, "{function}: {answer}");
        if let Some(grown) = grown {
            let most = 4 * body.len() as u64 + 8 * MIB;
            assert!(grown < most, "{function}: {} MiB for {} MiB", grown / MIB, body.len() as u64 / MIB);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_message_of_small_objects_costs_little_to_store_to_update_and_to_replay() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path(), &[]);
    call(node.address, "session::ensure", r#"{"session_id":"s"}"#).await;
    let details = small_objects(15 << 20);
    let append = format!(
        r#"{{"session_id":"s","entry_id":"e","message":{{"role":"function_result","function_call_id":"c",
            "function_id":"f","content":[],"details":{details},"timestamp":1}}}}"#
    );
    let (_, grown) = growth(&node, call(node.address, "session::append", &append)).await;
    // The body, its checked copy, the log, the state and the caches each have it once.
    let most = 12 * 15 * MIB;
    assert!(grown.is_none_or(|grown| grown < most), "append: {:?} MiB", grown.map(|grown| grown / MIB));
    let update = r#"{"session_id":"s","entry_id":"e","content":[{"type":"text","text":"new"}]}"#;
    let ((), grown) = growth(&node, async {
        for revision in 1..4 {
            let updated = call(node.address, "session::update-message", update).await;
            assert_eq!(updated, json!({ "updated": true, "revision": revision }));
        }
    })
    .await;
    assert!(grown.is_none_or(|grown| grown < most), "update: {:?} MiB", grown.map(|grown| grown / MIB));
    node.kill();
    let node = start(dir.path(), &[]);
    let (_, body) = post(node.address, "session::get-message", r#"{"session_id":"s","entry_id":"e"}"#).await;
    assert!(body.contains(r#""revision":3"#) && body.len() > 15 << 20, "{} bytes", body.len());
    if let Some(peak) = node.peak_bytes() {
        assert!(peak < 512 * MIB, "replay: {} MiB", peak / MIB);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_come_back_as_they_were_written_or_are_refused_by_name() {
    for adapter in ["raft", "fs"] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let node = start(dir.path(), &["--adapter", adapter]);
        call(node.address, "session::ensure", r#"{"session_id":"s"}"#).await;
        let numbers = r#"{"z":12345678901234567890123,"a":[-98765432109876543210,0.10000000000000000555,1.0,1e2]}"#;
        let block = format!(r#"{{"type":"function_call","id":"c","function_id":"f","arguments":{numbers}}}"#);
        let message = format!(
            r#"{{"role":"function_result","function_call_id":"c","function_id":"f","content":[{block}],
                "details":{numbers},"timestamp":1}}"#
        );
        for (function, body) in [
            (
                "session::append",
                format!(r#"{{"session_id":"s","entry_id":"m","message":{message},"origin":{numbers}}}"#),
            ),
            (
                "session::append",
                format!(r#"{{"session_id":"s","entry_id":"c","custom":{{"custom_type":"x","data":{numbers}}}}}"#),
            ),
            (
                "session::update-message",
                format!(r#"{{"session_id":"s","entry_id":"m","content":[{block}],"details":{numbers}}}"#),
            ),
        ] {
            call(node.address, function, &body).await;
        }
        let read = async |node: &NodeProcess| {
            for (entry_id, times) in [("m", 3), ("c", 1)] {
                let ask = format!(r#"{{"session_id":"s","entry_id":"{entry_id}"}}"#);
                let (_, body) = post(node.address, "session::get-message", &ask).await;
                assert_eq!(body.matches(numbers).count(), times, "{adapter}: {body}");
            }
        };
        read(&node).await;
        node.kill();
        let node = start(dir.path(), &["--adapter", adapter]);
        read(&node).await;
        let metadata = r#"{"metadata":{"big":12345678901234567890123}}"#;
        let (status, body) = post(node.address, "session::create", metadata).await;
        assert_eq!(status, 400, "{body}");
        assert!(body.contains("metadata has the integer 12345678901234567890123"), "{body}");
    }
}

/// Sends the head of a call and as much of its body as is given. The rest never comes.
async fn begin_call(node: SocketAddr, announced: usize, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(node).await.expect("a connection");
    let head = format!(
        "POST /v1/call/session::append HTTP/1.1\r\nhost: {node}\r\ncontent-type: application/json\r\n\
         content-length: {announced}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("the head is sent");
    stream.write_all(sent).await.expect("the part is sent");
    stream
}

async fn is_unanswered(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    tokio::time::timeout(Duration::from_millis(50), stream.read(&mut byte)).await.is_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_bytes_that_never_come_delay_nobody() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path(), &[]);
    call(node.address, "session::ensure", r#"{"session_id":"s"}"#).await;
    let mut stuck = Vec::new();
    for _ in 0..8 {
        stuck.push(begin_call(node.address, 64 << 20, b"{").await);
    }
    let text = "x".repeat(300_000);
    let message = json!({ "role": "user", "content": [{ "type": "text", "text": text }], "timestamp": 1 });
    let append = json!({ "session_id": "s", "message": message }).to_string();
    let answered = tokio::time::timeout(ANSWER_MAX, call(node.address, "session::append", &append)).await;
    assert!(answered.expect("an answer")["entry_id"].is_string());
    for stream in &mut stuck {
        assert!(is_unanswered(stream).await, "the stuck calls are still there");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_never_answers_does_not_stop_the_store() {
    const BODY_BYTES: usize = 64 << 20;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path(), &[]);
    let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
    let (mut worker, _) = connect_async_with_config(node.url(), Some(config), false).await.expect("a WebSocket");
    let register = json!({ "type": "registerfunction", "id": "stuck::work" });
    worker.send(Message::text(register.to_string())).await.expect("the frame is sent");
    let body: std::sync::Arc<str> = format!("\"{}\"", "x".repeat(BODY_BYTES - 2)).into();
    let mut calls = Vec::new();
    for _ in 0..8 {
        let (address, body) = (node.address, body.clone());
        calls.push(tokio::spawn(async move { post(address, "stuck::work", &body).await }));
        // The worker receives the call, and never answers it.
        let received = async {
            while let Some(Ok(frame)) = worker.next().await {
                if frame.len() > BODY_BYTES {
                    return;
                }
            }
            panic!("the worker was disconnected");
        };
        tokio::time::timeout(Duration::from_secs(120), received).await.expect("the call arrives");
    }
    let answered = tokio::time::timeout(ANSWER_MAX, call(node.address, "session::create", "{}")).await;
    assert!(answered.expect("an answer")["session_id"].is_string());
    assert!(calls.iter().all(|call| !call.is_finished()), "the calls to the worker are still unanswered");
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A session whose only message has this many bytes.
async fn large_session(node: &NodeProcess, bytes: usize) {
    call(node.address, "session::ensure", r#"{"session_id":"s"}"#).await;
    append_large(node, bytes).await;
}

async fn append_large(node: &NodeProcess, bytes: usize) {
    let message = json!({ "role": "user", "content": [{ "type": "text", "text": "x".repeat(bytes) }], "timestamp": 1 });
    call(node.address, "session::append", &json!({ "session_id": "s", "message": message }).to_string()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_keeps_no_memory_of_a_large_message_that_it_sent() {
    const CONNECTIONS: u64 = 32;
    const MESSAGE_BYTES: usize = 8 << 20;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path(), &[]);
    let data = "x".repeat(MESSAGE_BYTES);
    let call =
        format!(r#"{{"type":"invokefunction","invocation_id":"i","function_id":"nobody::knows","data":"{data}"}}"#);
    let (idle, grown) = growth(&node, async {
        let mut idle = Vec::new();
        for nth in 0..CONNECTIONS {
            // The bus, and the telemetry of the SDKs, which is dropped.
            if nth % 2 == 0 {
                let mut socket = websocket(node.address).await;
                socket.send(Message::text(call.clone())).await.expect("the frame is sent");
                expect(&mut socket, "invocationresult").await;
                idle.push(socket);
            } else {
                let (mut socket, _) = connect_async(format!("{}/otel", node.url())).await.expect("a WebSocket");
                socket.send(Message::text(call.clone())).await.expect("the frame is sent");
                // It is read once the node answers the ping that follows.
                socket.send(Message::Ping(vec![1].into())).await.expect("the ping is sent");
                let pong = tokio::time::timeout(ANSWER_MAX, socket.next()).await.expect("a pong");
                assert!(matches!(pong, Some(Ok(Message::Pong(_)))), "{pong:?}");
                idle.push(socket);
            }
        }
        idle
    })
    .await;
    if let Some(grown) = grown {
        let sent = CONNECTIONS * MESSAGE_BYTES as u64;
        assert!(grown < sent / 2, "{} MiB of {} MiB", grown / MIB, sent / MIB);
    }
    drop(idle);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_nobody_reads_take_bounded_memory() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = dir.path().join("config.yaml");
    std::fs::write(&config, "outbound_queue_bytes: 33554432\noutbound_total_bytes: 67108864\n").expect("a file");
    let node = start(dir.path(), &["--config", &config.to_string_lossy()]);
    large_session(&node, 15 << 20).await;
    let before = node.resident_bytes();
    let body = r#"{"session_id":"s"}"#;
    let mut unread = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(node.address).await.expect("a connection");
        let head = format!(
            "POST /v1/call/session::messages HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n{body}",
            node.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).await.expect("the call is sent");
        // The page is there, and stays unread.
        let mut first = [0; 12];
        tokio::time::timeout(ANSWER_MAX, stream.read_exact(&mut first)).await.expect("an answer").expect("bytes");
        unread.push((stream, first));
    }
    let served = unread.iter().filter(|(_, first)| first == b"HTTP/1.1 200").count();
    let refused = unread.iter().filter(|(_, first)| first == b"HTTP/1.1 503").count();
    assert!((1..=5).contains(&served) && served + refused == 40, "{served} served, {refused} refused");
    call(node.address, "session::create", "{}").await;
    if let Some((before, after)) = before.zip(node.resident_bytes()) {
        let grown = after.saturating_sub(before);
        assert!(grown < 300 * MIB, "{} MiB", grown / MIB);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_nobody_reads_share_one_copy_of_a_large_event() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path(), &[]);
    call(node.address, "session::ensure", r#"{"session_id":"s"}"#).await;
    let mut streams = Vec::new();
    for _ in 0..30 {
        let mut stream = TcpStream::connect(node.address).await.expect("a connection");
        let head = format!("GET /v1/events HTTP/1.1\r\nhost: {}\r\n\r\n", node.address);
        stream.write_all(head.as_bytes()).await.expect("the request is sent");
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.expect("an answer");
        assert_eq!(&first, b"HTTP/1.1 200");
        streams.push(stream);
    }
    let before = node.resident_bytes();
    append_large(&node, 15 << 20).await;
    // Every stream has begun to send the event: its first bytes are there.
    for stream in &mut streams {
        let mut seen = Vec::new();
        let begun = async {
            while !seen.windows(6).any(|window| window == b"xxxxxx") {
                let mut part = [0; 1024];
                let read = stream.read(&mut part).await.expect("bytes");
                seen.extend_from_slice(&part[..read]);
            }
        };
        tokio::time::timeout(ANSWER_MAX, begun).await.expect("the event");
    }
    if let Some((before, after)) = before.zip(node.resident_bytes()) {
        let grown = after.saturating_sub(before);
        assert!(grown < 250 * MIB, "{} MiB", grown / MIB);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_to_the_peer_port_are_bounded_and_members_are_still_served() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let peer: SocketAddr = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        free.local_addr().expect("its address")
    };
    let config = dir.path().join("config.yaml");
    std::fs::write(&config, format!("peer_listen: {peer}\n")).expect("a file");
    let node = start(dir.path(), &["--config", &config.to_string_lossy()]);
    let mut open = Vec::new();
    for _ in 0..400 {
        open.push(TcpStream::connect(peer).await.expect("a connection"));
    }
    let closed = async |open: &mut Vec<TcpStream>| {
        let mut closed = 0;
        for stream in open {
            let mut byte = [0];
            let read = tokio::time::timeout(Duration::from_millis(20), stream.read(&mut byte)).await;
            closed += usize::from(matches!(read, Ok(Ok(0) | Err(_))));
        }
        closed
    };
    assert!(closed(&mut open).await >= 100, "connections past the limit are closed");
    call(node.address, "session::create", "{}").await;
    // Silent connections lose their places, so operators get through.
    let status = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_session-manager"));
        command.args(["cluster", "status", "--peer", &peer.to_string()]);
        command.output().expect("the binary starts").status.success()
    };
    let begun = std::time::Instant::now();
    while !status() {
        assert!(begun.elapsed() < Duration::from_secs(30), "the peer port serves again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_for_another_host_is_refused_on_every_path() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = dir.path().join("config.yaml");
    std::fs::write(&config, "allowed_hosts: [sessions.internal]\n").expect("a file");
    let node = start(dir.path(), &["--config", &config.to_string_lossy()]);
    let ask = async |first: &str, host: &str, more: &str| {
        let mut stream = TcpStream::connect(node.address).await.expect("a connection");
        let head = format!("{first} HTTP/1.1\r\nhost: {host}\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).await.expect("the request is sent");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("an answer");
        String::from_utf8_lossy(&answer[9..]).into_owned()
    };
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (first, more, served) in [
        ("GET /v1/events", "", "200"),
        ("GET /health", "", "200"),
        ("POST /v1/call/session::create", "content-length: 2\r\n\r\n{}", "200"),
        ("GET /", upgrade, "101"),
    ] {
        for host in ["rebound.example", "rebound.example:49134", "localhost.rebound.example"] {
            assert_eq!(ask(first, host, more).await, "421", "{first} {host}");
        }
        for host in ["localhost:1", "127.0.0.1", "[::1]:49134", "sessions.internal"] {
            assert_eq!(ask(first, host, more).await, served, "{first} {host}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_client_cannot_end_the_subscription_of_another() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path(), &[]);
    let mut sockets = Vec::new();
    for function in ["first::hears", "second::hears"] {
        let mut socket = websocket(node.address).await;
        for frame in [
            json!({ "type": "registerfunction", "id": function }),
            json!({ "type": "registertrigger", "id": "binding", "trigger_type": "session::created",
                    "function_id": function, "config": {} }),
        ] {
            socket.send(Message::text(frame.to_string())).await.expect("the frame is sent");
        }
        expect(&mut socket, "triggerregistrationresult").await;
        sockets.push(socket);
    }
    call(node.address, "session::create", "{}").await;
    for socket in &mut sockets {
        expect(socket, "invokefunction").await;
    }
}

/// Connects and registers a function with this metadata.
async fn register(node: SocketAddr, function: &str, metadata: &str) -> WebSocketStream<MaybeTlsStream<TcpStream>> {
    let mut socket = websocket(node).await;
    let register = format!(r#"{{"type":"registerfunction","id":"{function}","metadata":{metadata}}}"#);
    socket.send(Message::text(register)).await.expect("the frame is sent");
    // Frames of one client take effect in order, so the answer comes after the registration.
    let info = json!({ "type": "invokefunction", "invocation_id": "5d1f5f0e-58ce-4f0c-8d0f-1f7c59a6a3b1",
                       "function_id": "engine::workers::register", "data": { "name": function } });
    socket.send(Message::text(info.to_string())).await.expect("the frame is sent");
    expect(&mut socket, "invocationresult").await;
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_of_what_clients_registered_costs_no_more_than_its_text() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path(), &[]);
    let metadata = small_objects(7 << 20);
    let mut clients = Vec::new();
    for function in ["large::a", "large::b"] {
        clients.push(register(node.address, function, &metadata).await);
    }
    let list = || post(node.address, "engine::functions::list", "{}");
    let ((status, listed), grown) = growth(&node, list()).await;
    assert_eq!(status, 200, "{listed:.200}");
    assert!(listed.contains("large::a") && listed.contains("large::b") && listed.len() > 14 << 20);
    let most = 4 * listed.len() as u64 + 8 * MIB;
    assert!(grown.is_none_or(|grown| grown < most), "{:?} MiB", grown.map(|grown| grown / MIB));

    // More than a listing holds is refused, and each function can still be looked at.
    clients.push(register(node.address, "large::c", &metadata).await);
    let (status, refused) = list().await;
    assert_eq!(status, 503, "{refused:.200}");
    assert!(refused.contains("engine::functions::info"), "{refused:.200}");
    let (status, info) = post(node.address, "engine::functions::info", r#"{"function_id":"large::c"}"#).await;
    assert!(status == 200 && info.contains(&metadata), "{info:.200}");
    let name = json!({ "name": "x".repeat(1 << 20) }).to_string();
    let (status, refused) = post(node.address, "engine::workers::register", &name).await;
    assert!(status == 400 && refused.contains("takes at most 16384 bytes"), "{status} {refused:.200}");
    call(node.address, "session::create", "{}").await;
}

/// Reads until a frame of this type.
async fn expect<S>(socket: &mut S, kind: &str)
where
    S: futures::Stream<Item = Result<Message, tokio_tungstenite::tungstenite::Error>> + Unpin,
{
    let search = async {
        while let Some(Ok(frame)) = socket.next().await {
            if let Message::Text(text) = frame
                && text.contains(&format!("\"type\":\"{kind}\""))
            {
                return;
            }
        }
        panic!("the connection was closed");
    };
    tokio::time::timeout(ANSWER_MAX, search).await.unwrap_or_else(|_| panic!("no {kind}"));
}
