//! Credentials and records that no honest client sends: refused quickly, without a trace in the data or memory.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use session_manager::access::token::TokenHash;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::node::NodeProcess;

const MIB: u64 = 1 << 20;
/// A request that hangs fails the test after this time. It is no measurement.
const ANSWER_MAX: Duration = Duration::from_secs(20);
const TOKEN: &str = "right";

fn closed_node(dir: &Path) -> NodeProcess {
    let tokens = dir.join("tokens");
    let line = json!({ "name": "web", "role": "app", "hash": TokenHash::of(TOKEN).to_string() });
    std::fs::write(&tokens, line.to_string()).unwrap();
    NodeProcess::start(&dir.join("data"), &["--token-file", tokens.to_str().expect("a path in UTF-8")])
}

fn request(token: &str, connection: &str) -> String {
    format!(
        "POST /v1/call/session::list HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-length: 0\r\nconnection: {connection}\r\n\r\n"
    )
}

/// Sends bytes and reads until the node closes the connection.
async fn send(node: SocketAddr, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(node).await.unwrap();
    let (mut reading, mut writing) = socket.split();
    let mut answer = Vec::new();
    let exchange = async {
        // The node may close the connection before it has read everything.
        let _ = tokio::join!(writing.write_all(bytes), reading.read_to_end(&mut answer));
    };
    tokio::time::timeout(ANSWER_MAX, exchange).await.expect("the node answers or closes the connection");
    String::from_utf8_lossy(&answer).into_owned()
}

async fn is_served(node: &NodeProcess) {
    let answer = send(node.address, request(TOKEN, "close").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_wrong_tokens_are_refused_and_leave_nothing() {
    const CONNECTIONS: usize = 20;
    const REQUESTS: usize = 500;
    let dir = tempfile::tempdir().unwrap();
    let node = closed_node(dir.path());
    is_served(&node).await;
    let attack = |connection: usize| {
        let address = node.address;
        async move {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let mut refused = 0;
            for nth in 0..REQUESTS {
                socket.write_all(request(&format!("wrong-{connection}-{nth}"), "keep-alive").as_bytes()).await.unwrap();
                let mut answer = vec![0; 2048];
                let read =
                    tokio::time::timeout(ANSWER_MAX, socket.read(&mut answer)).await.expect("an answer").unwrap();
                let answer = String::from_utf8_lossy(&answer[..read]);
                assert!(answer.starts_with("HTTP/1.1 401") || answer.starts_with("HTTP/1.1 429"), "{answer}");
                refused += 1;
            }
            refused
        }
    };
    // The first ones allocate what the others use again.
    attack(CONNECTIONS).await;
    let before = node.peak_bytes();
    let refused: usize = futures::future::join_all((0..CONNECTIONS).map(attack)).await.into_iter().sum();
    assert_eq!(refused, CONNECTIONS * REQUESTS);
    if let (Some(before), Some(after)) = (before, node.peak_bytes()) {
        assert!(after - before < 16 * MIB, "{refused} wrong tokens took {} KiB", (after - before) / 1024);
    }
    // A right token behind the same address is let in.
    is_served(&node).await;
    let log = node.log();
    assert!(log.contains("login refused") && !log.contains("wrong-0-0"), "the log names a token: {log}");
    assert!(log.matches("login refused").count() < 1000, "the refusals fill the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_a_megabyte_is_refused_at_every_place() {
    let dir = tempfile::tempdir().unwrap();
    let node = closed_node(dir.path());
    let long = "x".repeat(MIB as usize);
    let before = node.peak_bytes();
    for _ in 0..20 {
        for head in [
            format!("POST /v1/call/session::list HTTP/1.1\r\nauthorization: Bearer {long}\r\n"),
            format!("POST /v1/call/session::list?token={long} HTTP/1.1\r\n"),
            format!("POST /v1/call/session::list HTTP/1.1\r\ncookie: session_manager_token={long}\r\n"),
        ] {
            let request = format!("{head}host: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            let answer = send(node.address, request.as_bytes()).await;
            // The connection may be reset while the rest of the token is on its way.
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        }
    }
    if let (Some(before), Some(after)) = (before, node.peak_bytes()) {
        assert!(after - before < 32 * MIB, "long tokens took {} KiB", (after - before) / 1024);
    }
    is_served(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_records_at_the_plain_port_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let node = closed_node(dir.path());
    // The start of a ClientHello, and records of every type with random content.
    let hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 600][..]].concat();
    let garbage = |kind: u8| [&[kind, 3, 3, 0x40, 0][..], &[kind; 0x4000][..]].concat();
    for bytes in [hello, garbage(20), garbage(21), garbage(22), garbage(23), garbage(255)] {
        let answer = send(node.address, &bytes).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    is_served(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_jwt_is_refused_at_the_door() {
    let dir = tempfile::tempdir().unwrap();
    let secret = "a secret of at least thirty-two bytes";
    std::fs::write(dir.path().join("secret"), secret).unwrap();
    let settings = dir.path().join("settings.yaml");
    let key_file = dir.path().join("secret");
    std::fs::write(&settings, format!("jwt: {{key_file: '{}', algorithm: HS256}}\n", key_file.display())).unwrap();
    let node = NodeProcess::start(&dir.path().join("data"), &["--config", settings.to_str().unwrap()]);
    let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = part(json!({ "sub": "u", "role": "admin", "exp": 99_999_999_999i64 }));
    let signed = |head: serde_json::Value, key: &str| {
        let text = format!("{}.{claims}", part(head));
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key.as_bytes());
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(ring::hmac::sign(&key, text.as_bytes())))
    };
    let right = signed(json!({ "alg": "HS256", "typ": "JWT" }), secret);
    let answer = send(node.address, request(&right, "close").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for forged in [
        format!("{}.{claims}.", part(json!({ "alg": "none" }))),
        format!("{}.{claims}.", part(json!({ "alg": "None", "typ": "JWT" }))),
        format!("{}.{claims}", part(json!({ "alg": "none" }))),
        signed(json!({ "alg": "RS256" }), secret),
        signed(json!({ "alg": "HS384" }), secret),
        signed(json!({ "alg": "HS256" }), ""),
        signed(json!({ "alg": "HS256", "kid": "../../etc/passwd" }), "other"),
    ] {
        let answer = send(node.address, request(&forged, "close").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{forged}: {answer}");
    }
}

#[test]
fn a_node_leaves_no_core_dump() {
    let dir = tempfile::tempdir().unwrap();
    let node = closed_node(dir.path());
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", node.pid())).ok();
    let (Some(limits), Some(filter)) = (read("limits"), read("coredump_filter")) else { return };
    let limit = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
    assert_eq!(limit.split_whitespace().nth(4), Some("0"), "{limit}");
    assert_eq!(u64::from_str_radix(filter.trim(), 16), Ok(0));
}
