//! Owns: single HTTP requests over a new connection each, as curl makes them.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ANSWER_MAX: Duration = Duration::from_secs(30);

pub struct Answer {
    pub status: u16,
    /// The head, in lower case.
    pub head: String,
    pub body: String,
}

/// One request. `headers` are whole lines.
pub async fn request(address: SocketAddr, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
    let mut lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    if !lines.contains("host: ") {
        lines.push_str(&format!("host: {address}\r\n"));
    }
    let length = body.len();
    let text =
        format!("{method} {path} HTTP/1.1\r\n{lines}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
    let exchange = async {
        let mut socket = TcpStream::connect(address).await.expect("the node accepts a connection");
        socket.write_all(text.as_bytes()).await.expect("the request is sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("an answer");
        answer
    };
    let answer = tokio::time::timeout(ANSWER_MAX, exchange).await.expect("an answer in time");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// The status and the body of a GET without credentials.
pub async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let Answer { status, body, .. } = request(address, "GET", path, &[], "").await;
    (status, body)
}

/// Calls a function, and fails the test if that fails.
pub async fn call(address: SocketAddr, function: &str, body: &serde_json::Value) -> serde_json::Value {
    let answer = request(address, "POST", &format!("/v1/call/{function}"), &[], &body.to_string()).await;
    assert_eq!(answer.status, 200, "{function}: {}", answer.body);
    serde_json::from_str(&answer.body).expect("JSON")
}

/// Asks until the answer is right. The last wrong answer fails the test.
pub async fn until(address: SocketAddr, path: &str, right: impl Fn(u16, &str) -> bool) -> String {
    let begun = tokio::time::Instant::now();
    loop {
        let (status, body) = get(address, path).await;
        if right(status, &body) {
            return body;
        }
        assert!(begun.elapsed() < ANSWER_MAX, "GET {path} still answers {status}: {body}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
