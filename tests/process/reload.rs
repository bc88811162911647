//! Laws of settings that change while a node runs and whose effect shows only after a while. The features cover the
//! rest.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{Client, user_message};
use crate::node::NodeProcess;

const SOON: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// The first block of the event stream, or the refusal.
async fn stream_begins(node: SocketAddr, after: &str) -> String {
    let mut stream = TcpStream::connect(node).await.expect("the node listens");
    let head = format!("GET /v1/events?after={after} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("the request is sent");
    let mut text = String::new();
    let mut piece = [0; 1024];
    // The first block of a stream ends with an empty line, a refusal with the end of its JSON object.
    while !text.contains("\n\n") && !text.ends_with("}}") {
        let size = timeout(SOON, stream.read(&mut piece)).await.expect("something in time").expect("the node answers");
        text.push_str(&String::from_utf8_lossy(&piece[..size]));
        assert!(size > 0, "the stream ended: {text}");
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_retention_of_the_feed_changes_without_a_restart() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("session-manager.yaml");
    std::fs::write(&file, "feed_retention_bytes: 100000000\n").expect("a written file");
    let node = NodeProcess::start(&dir.path().join("data"), &["--config", &file.to_string_lossy()]);
    let client = Client::connect(&node.url()).await;
    // Every record of the feed names its session, so a long id fills the feed soon.
    let session = "s".repeat(1000);
    client.call("session::ensure", json!({ "session_id": session })).await;
    for _ in 0..5 {
        let messages: Vec<_> = (0..500).map(|_| user_message("x")).collect();
        client.call("session::append-many", json!({ "session_id": session, "messages": messages })).await;
    }
    let begun = stream_begins(node.address, "oldest").await;
    let oldest = begun.lines().find_map(|line| line.strip_prefix("id: ")).expect("a position").to_owned();

    std::fs::write(&file, "feed_retention_bytes: 1048576\n").expect("a written file");
    node.signal("HUP");
    let changed = Instant::now();
    loop {
        let answer = stream_begins(node.address, &oldest).await;
        if answer.contains("\"code\":\"compacted\"") {
            break;
        }
        assert!(changed.elapsed() < SOON, "the feed still reaches back to {oldest}: {answer}\n{}", node.log());
        tokio::time::sleep(PAUSE).await;
    }
    let status = client.call("session::config-status", json!({})).await;
    assert_eq!(status["last_outcome"], "applied");
    client.close().await;
}
