//! Laws of invalid input: the node answers with a clear error or closes the connection, writes nothing, serves other
//! clients, and uses bounded memory.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::client::{Client, user_message};
use crate::node::NodeProcess;

const MIB: usize = 1 << 20;
/// Several times what a debug build needs for the largest frame it accepts.
const RESIDENT_MAX: u64 = 1024 * MIB as u64;

fn start(dir: &Path, arguments: &[&str]) -> NodeProcess {
    NodeProcess::start(&dir.join("data"), arguments)
}

/// One HTTP call on a new connection: status and body.
pub async fn post(node: SocketAddr, function: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(node).await.expect("a connection");
    let head = format!(
        "POST /v1/call/{function} HTTP/1.1\r\nhost: {node}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.expect("the head is sent");
    // A node may refuse a body by its length, before it reads it.
    let _ = stream.write_all(body.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    (status, body)
}

pub async fn websocket(node: SocketAddr) -> WebSocketStream<MaybeTlsStream<TcpStream>> {
    connect_async(format!("ws://{node}")).await.expect("a WebSocket").0
}

/// The node still serves a new client.
async fn still_serves(node: &NodeProcess) {
    let client = Client::connect(&node.url()).await;
    let session_id = client.create().await;
    client.call("session::append", json!({ "session_id": session_id, "message": user_message("still here") })).await;
    assert_eq!(client.transcript(&session_id).await.len(), 1);
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_do_not_parse_are_refused_and_change_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path(), &[]);
    let client = Client::connect(&node.url()).await;
    client.call("session::ensure", json!({ "session_id": "s" })).await;
    let before = client.call("session::get", json!({ "session_id": "s" })).await;
    let robot = json!({ "role": "robot", "timestamp": 1, "content": [] });
    let block = json!({ "role": "user", "timestamp": 1, "content": [{ "type": "hologram" }] });
    let bad = [
        ("session::append", json!({ "session_id": 5 })),
        ("session::append", json!({ "session_id": "s" })),
        ("session::append", json!({ "session_id": "s", "message": robot })),
        ("session::append", json!({ "session_id": "s", "message": block })),
        ("session::append", json!("a string")),
        ("session::append-many", json!({ "session_id": "s", "messages": {} })),
        ("session::set-status", json!({ "session_id": "s", "status": "sleeping" })),
        ("session::set-meta", json!({ "session_id": "s", "metadata": [1] })),
        ("session::list", json!({ "order": "sideways" })),
        ("session::messages", json!({ "session_id": "s", "limit": "many" })),
        ("session::update-message", json!({ "session_id": "s", "entry_id": "e", "content": "text" })),
    ];
    for (function, request) in bad {
        let over_the_bus = client.try_call(function, request.clone()).await.expect_err("must be refused");
        assert!(over_the_bus.contains("session/invalid_request: "), "{function} {request}: {over_the_bus}");
        let (status, body) = post(node.address, function, &request.to_string()).await;
        assert_eq!(status, 400, "{function} {request}: {body}");
        assert!(body.contains("session/invalid_request"), "{function} {request}: {body}");
    }
    assert_eq!(post(node.address, "session::list", "{").await.0, 400);
    assert_eq!(post(node.address, "session::nothing", "{}").await.0, 404);
    assert_eq!(client.call("session::get", json!({ "session_id": "s" })).await, before);
    still_serves(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_nested_2000_deep_is_refused_over_http_and_the_bus() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path(), &[]);
    let deep = format!("{}{}", "[".repeat(2_000), "]".repeat(2_000));
    let request = format!(r#"{{"session_id": "s", "custom": {{"custom_type": "deep", "data": {deep}}}}}"#);
    post(node.address, "session::ensure", r#"{"session_id": "s"}"#).await;
    let (status, body) = post(node.address, "session::append", &request).await;
    assert_eq!(status, 400, "{body}");
    assert!(body.contains("session/invalid_request"), "{body}");

    let mut socket = websocket(node.address).await;
    let id = "5d1f5f0e-58ce-4f0c-8d0f-1f7c59a6a3b1";
    let frame = format!(
        r#"{{"type": "invokefunction", "invocation_id": "{id}", "function_id": "session::append", "data": {request}}}"#
    );
    socket.send(Message::text(frame)).await.expect("the frame is sent");
    let answer = answer_to(&mut socket, id).await;
    assert!(answer.contains("session/invalid_request"), "{answer}");
    let (_, session) = post(node.address, "session::get", r#"{"session_id": "s"}"#).await;
    assert!(session.contains(r#""message_count":0"#), "{session}");
    still_serves(&node).await;
}

/// The text frame that answers an invocation.
async fn answer_to(socket: &mut WebSocketStream<MaybeTlsStream<TcpStream>>, id: &str) -> String {
    let search = async {
        while let Some(Ok(frame)) = socket.next().await {
            if let Message::Text(text) = frame
                && text.contains(id)
            {
                return text.to_string();
            }
        }
        "the connection was closed".to_owned()
    };
    tokio::time::timeout(Duration::from_secs(20), search).await.expect("an answer or a close within 20 s")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_32_mib_is_stored_or_refused_and_memory_stays_bounded() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path(), &[]);
    let client = Client::connect(&node.url()).await;
    let session_id = client.create().await;
    let text = "x".repeat(32 * MIB);
    for _ in 0..4 {
        let append = json!({ "session_id": session_id, "message": user_message(&text) });
        match client.try_call("session::append", append).await {
            Ok(answer) => assert!(answer["entry_id"].is_string()),
            Err(error) => assert!(error.contains("session/invalid_request"), "{error}"),
        }
    }
    client.close().await;
    still_serves(&node).await;
    if let Some(resident) = node.resident_bytes() {
        assert!(resident < RESIDENT_MAX, "{} MiB resident", resident / MIB as u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_are_any_unicode_and_never_become_a_path() {
    for adapter in ["raft", "fs"] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let ids = ["../escape/chat 42:?", "🦀 emoji/ünïcödé", "CON", "..", ".", "a\u{0}b", "%2e%2e", " "];
        let node = start(dir.path(), &["--adapter", adapter]);
        let client = Client::connect(&node.url()).await;
        for id in ids {
            client.call("session::ensure", json!({ "session_id": id })).await;
            let append = json!({ "session_id": id, "entry_id": id, "message": user_message(id) });
            assert_eq!(client.call("session::append", append).await["entry_id"], id);
        }
        client.close().await;
        node.kill();
        let node = start(dir.path(), &["--adapter", adapter]);
        let client = Client::connect(&node.url()).await;
        for id in ids {
            let transcript = client.transcript(id).await;
            assert_eq!(transcript.len(), 1, "{adapter}: {id:?}");
            assert_eq!(transcript[0]["entry_id"], id);
        }
        let mut beside: Vec<String> = std::fs::read_dir(dir.path())
            .expect("the directory")
            .flatten()
            .map(|file| file.file_name().to_string_lossy().into_owned())
            .collect();
        beside.sort();
        assert_eq!(beside, ["data", "data.log", "data.port"], "{adapter}: nothing escapes the data directory");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_frames_do_not_disturb_other_clients() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path(), &[]);
    let frames = [
        Message::binary(vec![0, 159, 146, 150]),
        Message::text("not JSON"),
        Message::text("[]"),
        Message::text("{}"),
        Message::text(r#"{"type": "dance"}"#),
        Message::text(r#"{"type": "invokefunction"}"#),
        Message::text(r#"{"type": "invokefunction", "invocation_id": 7, "function_id": 8, "data": 9}"#),
        Message::text(r#"{"type": "invocationresult", "invocation_id": "nobody asked"}"#),
        Message::text(r#"{"type": "registertrigger", "id": "t", "trigger_type": "session::created"}"#),
        Message::text(r#"{"type": "reattach", "previous_worker_id": "nobody", "reattach_token": "none"}"#),
        Message::text("\u{0}".repeat(1_000)),
    ];
    for frame in frames {
        let mut socket = websocket(node.address).await;
        // The node may close the connection after any of these frames, but it must keep running.
        let _ = socket.send(frame).await;
        let _ = socket.send(Message::Ping(vec![1].into())).await;
        let pong = async {
            while let Some(Ok(frame)) = socket.next().await {
                if frame.is_pong() {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), pong).await.expect("a pong or a close");
    }
    half_a_frame(node.address).await;
    broken_http(node.address).await;
    still_serves(&node).await;
}

/// A frame whose header says 1,000 bytes; the client sends 10 and closes the connection.
async fn half_a_frame(node: SocketAddr) {
    let mut stream = TcpStream::connect(node).await.expect("a connection");
    let upgrade = format!(
        "GET / HTTP/1.1\r\nhost: {node}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(upgrade.as_bytes()).await.expect("the upgrade is sent");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 101");
    let mut frame = vec![0x81, 0x80 | 126, 0x03, 0xe8, 1, 2, 3, 4];
    frame.extend([0; 10]);
    stream.write_all(&frame).await.expect("half a frame is sent");
    drop(stream);
}

async fn broken_http(node: SocketAddr) {
    for bytes in
        [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"GET", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/call/x HTTP/1.1\r\n"]
    {
        let mut stream = TcpStream::connect(node).await.expect("a connection");
        stream.write_all(bytes).await.expect("bytes are sent");
        drop(stream);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_past_the_limit_are_refused_and_the_others_are_served() {
    const LIMIT: usize = 64;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = dir.path().join("config.yaml");
    std::fs::write(&config, format!("max_connections: {LIMIT}\n")).expect("a written file");
    let node = start(dir.path(), &["--config", &config.to_string_lossy()]);
    let client = Client::connect(&node.url()).await;

    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..LIMIT * 4 {
        match connect_async(node.url()).await {
            Ok((socket, _)) => open.push(socket),
            Err(_) => refused += 1,
        }
    }
    assert!(open.len() < LIMIT, "{} connections are open", open.len());
    assert!(refused >= LIMIT * 3, "{refused} connections were refused");
    let session_id = client.create().await;
    assert!(session_id.starts_with("s_"), "a client that was connected before is served");

    drop(open);
    let begun = std::time::Instant::now();
    while connect_async(node.url()).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10), "closed connections free their places");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    if let Some(resident) = node.resident_bytes() {
        assert!(resident < RESIDENT_MAX / 4, "{} MiB resident", resident / MIB as u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_binding_is_refused_and_fires_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = start(dir.path(), &[]);
    let mut socket = websocket(node.address).await;
    for (nth, (trigger_type, config)) in [
        ("session::created", json!({ "session_id": "s" })),
        ("session::status-changed", json!({ "roles": ["user"] })),
        ("session::message-added", json!({ "roles": ["robot"] })),
        ("session::message-added", json!({ "colour": "red" })),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("binding-{nth}");
        let register = json!({
            "type": "registertrigger", "id": id, "trigger_type": trigger_type, "function_id": "f", "config": config,
        });
        socket.send(Message::text(register.to_string())).await.expect("the frame is sent");
        let answer: Value = serde_json::from_str(&answer_to(&mut socket, &id).await).expect("JSON");
        let field = config.as_object().and_then(|config| config.keys().next()).expect("a field");
        assert_eq!(answer["type"], "triggerregistrationresult");
        assert!(answer["error"].to_string().contains(field.as_str()), "{answer}");
    }
    still_serves(&node).await;
}
