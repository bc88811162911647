//! The door of the session model, over HTTP, server-sent events and WebSocket, with a driver that calls the functions of
//! turns. One node in this process; clusters are in `session_model_cluster`, people in
//! `session_model_people`.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use session_manager::node::{Node, NodeSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::plain_http::request;

const SOON: Duration = Duration::from_secs(30);
pub const AGENT: &str = "/api/agents/main";

pub async fn open_node(dir: &Path) -> Node {
    Node::start(NodeSettings::on_free_port(&dir.join("data"))).await.expect("the node starts")
}

/// A client of the door with a token.
#[derive(Clone)]
pub struct Client {
    pub address: SocketAddr,
    pub token: String,
    pub root: String,
}

impl Client {
    pub fn new(address: SocketAddr, token: &str) -> Client {
        Client { address, token: token.to_owned(), root: AGENT.to_owned() }
    }

    pub async fn send(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let login = format!("authorization: Bearer {}", self.token);
        let path = format!("{}{path}", self.root);
        let answer = request(self.address, method, &path, &[&login, "content-type: application/json"], body).await;
        (answer.status, serde_json::from_str(&answer.body).unwrap_or(Value::from(answer.body)))
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.send("GET", path, "").await
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send("POST", path, &body.to_string()).await
    }

    pub async fn open(&self, session: &str) -> (u16, Value) {
        self.post("/sessions", json!({ "sessionId": session, "source": { "kind": "cli", "interactive": true } })).await
    }

    pub async fn open_group(&self, session: &str) {
        let source = json!({ "kind": "channel", "interactive": true, "platform": "telegram", "type": "group" });
        let (status, body) = self.post("/sessions", json!({ "sessionId": session, "source": source })).await;
        assert_eq!(status, 200, "{body}");
    }

    pub async fn say(&self, session: &str, text: &str) -> (u16, Value) {
        self.post(&format!("/sessions/{session}/messages"), json!({ "text": text })).await
    }

    pub async fn summary(&self, session: &str) -> Value {
        let (status, list) = self.get("/sessions?includeInactive=true").await;
        assert_eq!(status, 200, "{list}");
        let rows = list.as_array().cloned().unwrap_or_default();
        rows.into_iter().find(|row| row["sessionId"] == session).unwrap_or(Value::Null)
    }

    /// Waits until the summary of a session is right.
    pub async fn until(&self, session: &str, right: impl Fn(&Value) -> bool) -> Value {
        let begun = tokio::time::Instant::now();
        loop {
            let summary = self.summary(session).await;
            if right(&summary) {
                return summary;
            }
            assert!(begun.elapsed() < SOON, "still {summary}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A function of the node.
pub async fn call(address: SocketAddr, function: &str, body: Value) -> Value {
    let (status, answer) = try_call(address, function, body).await;
    assert_eq!(status, 200, "{function}: {answer}");
    answer
}

pub async fn try_call(address: SocketAddr, function: &str, body: Value) -> (u16, Value) {
    let answer = request(address, "POST", &format!("/v1/call/{function}"), &[], &body.to_string()).await;
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_default())
}

/// A driver that is played by the test.
pub struct Driver {
    pub address: SocketAddr,
    pub id: &'static str,
}

impl Driver {
    /// Waits for a turn and takes it.
    pub async fn take(&self) -> Turn<'_> {
        let begun = tokio::time::Instant::now();
        loop {
            let pending = call(self.address, "session::turn::pending", json!({ "agent_id": "main" })).await;
            if let Some(turn) = pending["turns"].as_array().and_then(|turns| turns.first()) {
                let turn_id = turn["turn_id"].as_str().expect("a turn").to_owned();
                let asked = json!({ "turn_id": turn_id, "driver_id": self.id });
                let claimed = call(self.address, "session::turn::claim", asked).await;
                if claimed["claimed"] == true {
                    return Turn { driver: self, turn_id, n: 1, requested: turn.clone() };
                }
            }
            assert!(begun.elapsed() < SOON, "no turn came: {pending}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Answers one turn with an echo.
    pub async fn echo(&self) {
        let mut turn = self.take().await;
        let text = format!("echo: {}", turn.requested["prompt_text"].as_str().unwrap_or_default());
        let (first, rest) = text.split_at(text.len() / 2);
        turn.emit(json!([{ "type": "text_delta", "text": first }])).await;
        turn.emit(json!([
            { "type": "text_delta", "text": rest },
            { "type": "turn_complete", "finalText": text },
        ]))
        .await;
    }
}

pub struct Turn<'a> {
    driver: &'a Driver,
    pub turn_id: String,
    n: u64,
    /// What drivers were told.
    pub requested: Value,
}

impl Turn<'_> {
    pub async fn emit(&mut self, events: Value) -> Value {
        let batch = json!({ "turn_id": self.turn_id, "driver_id": self.driver.id, "n": self.n, "events": events });
        let answer = call(self.driver.address, "session::turn::emit", batch).await;
        self.n += 1;
        answer
    }

    pub async fn complete(&mut self, text: &str) {
        self.emit(json!([{ "type": "turn_complete", "finalText": text }])).await;
    }
}

/// A stream of server-sent events.
pub struct Sse {
    socket: TcpStream,
    text: String,
}

/// One frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    pub id: Option<u64>,
    pub event: String,
    pub data: Value,
}

impl Sse {
    pub async fn open(client: &Client, method: &str, path: &str, headers: &str, body: &str) -> Sse {
        let mut socket = TcpStream::connect(client.address).await.expect("a connection");
        let (root, token, length) = (&client.root, &client.token, body.len());
        let head = format!(
            "{method} {root}{path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\n{headers}content-length: \
             {length}\r\nconnection: close\r\n\r\n{body}",
            client.address
        );
        socket.write_all(head.as_bytes()).await.expect("the request is sent");
        let mut sse = Sse { socket, text: String::new() };
        while !sse.text.contains("\r\n\r\n") {
            assert!(sse.read().await, "no head: {}", sse.text);
        }
        let (head, rest) = sse.text.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains("text/event-stream"), "{head}");
        sse.text = rest.to_owned();
        sse
    }

    async fn read(&mut self) -> bool {
        let mut part = [0; 8192];
        let read = tokio::time::timeout(SOON, self.socket.read(&mut part)).await.expect("bytes in time");
        let read = read.unwrap_or(0);
        self.text.push_str(&String::from_utf8_lossy(&part[..read]));
        read > 0
    }

    /// The next frame; `None` at the end. Lengths of chunks stand on lines of their own and are skipped.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            let text = self.text.replace("\r\n", "\n");
            if let Some((frame, rest)) = text.split_once("\n\n") {
                let field = |name: &str| {
                    let lines: Vec<&str> = frame.lines().collect();
                    lines.iter().rev().find_map(|line| line.strip_prefix(name).map(|value| value.trim().to_owned()))
                };
                let found = field("event:").map(|event| Frame {
                    id: field("id:").and_then(|id| id.parse().ok()),
                    event,
                    data: field("data:").and_then(|data| serde_json::from_str(&data).ok()).unwrap_or_default(),
                });
                self.text = rest.to_owned();
                match found {
                    Some(found) => return Some(found),
                    None => continue,
                }
            }
            if !self.read().await {
                return None;
            }
        }
    }

    pub async fn until(&mut self, event: &str) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            let is_last = frame.event == event;
            frames.push(frame);
            if is_last {
                return frames;
            }
        }
        panic!("{event} did not come: {frames:?}");
    }
}

pub fn kinds(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.event.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_and_history_agrees_with_the_transcript() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let (client, driver) = (Client::new(node.local_addr(), "any"), Driver { address: node.local_addr(), id: "d" });
    assert_eq!(client.open("cli:a").await, (200, json!({ "sessionId": "cli:a" })));
    let asking = client.post("/sessions/cli%3Aa/messages?wait=true", json!({ "text": "hi", "messageId": "m1" }));
    let ((status, reply), ()) = tokio::join!(asking, driver.echo());
    assert_eq!(status, 200, "{reply}");
    assert_eq!((&reply["text"], &reply["messageId"]), (&json!("echo: hi"), &json!("m1")));
    assert_eq!(reply["toolCalls"], json!([]));
    let (_, history) = client.get("/sessions/cli%3Aa/messages").await;
    let rows: Vec<(&str, &str)> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["role"].as_str().unwrap(), row["content"].as_str().unwrap()))
        .collect();
    assert_eq!(rows, [("user", "hi"), ("assistant", "echo: hi")]);
    let messages = call(node.local_addr(), "session::messages", json!({ "session_id": "main/cli:a" })).await;
    let texts: Vec<&str> = messages["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["message"]["content"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["hi", "echo: hi"]);
    let summary = client.summary("cli:a").await;
    assert_eq!((summary["messageCount"].as_u64(), summary["status"].as_str()), (Some(2), Some("idle")));
    assert_eq!((&summary["description"], &summary["lastMessagePreview"]), (&json!("hi"), &json!("echo: hi")));
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_shows_one_turn_and_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let (client, driver) = (Client::new(node.local_addr(), "any"), Driver { address: node.local_addr(), id: "d" });
    client.open("cli:a").await;
    let body = json!({ "text": "hello", "messageId": "m1" }).to_string();
    let mut stream = Sse::open(&client, "POST", "/sessions/cli%3Aa/messages?stream=true", "", &body).await;
    driver.echo().await;
    let frames = stream.until("agent_end").await;
    assert_eq!(
        kinds(&frames),
        ["message_ack", "user_message", "agent_start", "text_delta", "text_delta", "text_final", "agent_end"]
    );
    assert_eq!(stream.next().await, None, "the stream ends with its turn");
    let ids: Vec<u64> = frames.iter().filter_map(|frame| frame.id).collect();
    assert_eq!(ids, (1..=6).collect::<Vec<u64>>(), "all but the first frame have numbers");
    let said: String = frames
        .iter()
        .filter(|frame| frame.event == "text_delta")
        .map(|frame| frame.data["text"].as_str().unwrap())
        .collect();
    assert_eq!(frames[5].data["text"], said.as_str());
    assert!(frames[1..].iter().all(|frame| frame.data["correlationId"] == "m1"), "{frames:?}");
    // The same message again joins its turn and asks for no other.
    let mut again = Sse::open(&client, "POST", "/sessions/cli%3Aa/messages?stream=true", "", &body).await;
    assert_eq!(kinds(&again.until("agent_end").await).len(), 7);
    assert_eq!(client.summary("cli:a").await["messageCount"], 2);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_driver_the_message_waits_and_a_later_driver_answers_it() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let (client, driver) = (Client::new(node.local_addr(), "any"), Driver { address: node.local_addr(), id: "d" });
    client.open("cli:a").await;
    let path = "/sessions/cli%3Aa/messages?wait=true&timeout=200";
    let (status, reply) = client.post(path, json!({ "text": "hi", "messageId": "m1" })).await;
    assert_eq!(status, 504, "{reply}");
    assert_eq!(reply["error"], "Timeout waiting for agent response: no driver has taken the turn.");
    assert_eq!(client.summary("cli:a").await["status"], "running");
    driver.echo().await;
    let (status, reply) =
        client.post("/sessions/cli%3Aa/messages?wait=true", json!({ "text": "hi", "messageId": "m1" })).await;
    assert_eq!((status, &reply["text"]), (200, &json!("echo: hi")));
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_resumes_with_the_number_it_has_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let client = Client::new(node.local_addr(), "any");
    client.open("cli:a").await;
    for n in 0..30 {
        let body = json!({ "text": format!("{n}") });
        let (status, answer) = client.post("/sessions/cli%3Aa/messages?append=true", body).await;
        assert_eq!((status, &answer["appended"]), (200, &json!(true)), "{answer}");
    }
    node.shutdown().await;
    let node = open_node(dir.path()).await;
    let client = Client::new(node.local_addr(), "any");
    let mut stream = Sse::open(&client, "GET", "/sessions/cli%3Aa/events", "last-event-id: 25\r\n", "").await;
    let ready = stream.next().await.unwrap();
    assert_eq!((ready.event.as_str(), &ready.data["nextEventId"], ready.id), ("ready", &json!(31), None));
    for id in 26..=30 {
        assert_eq!(stream.next().await.unwrap().id, Some(id));
    }
    client.post("/sessions/cli%3Aa/messages?append=true", json!({ "text": "live" })).await;
    let live = stream.next().await.unwrap();
    assert_eq!((live.id, &live.data["text"]), (Some(31), &json!("live")));
    node.shutdown().await;
}

/// A request of the WebSocket.
async fn ask<S>(socket: &mut S, id: &str, method: &str, params: Value) -> (Value, Vec<Value>)
where
    S: SinkExt<Message> + StreamExt<Item = Result<Message, tokio_tungstenite::tungstenite::Error>> + Unpin,
{
    let asked = json!({ "kind": "request", "id": id, "method": method, "params": params });
    assert!(socket.send(Message::text(asked.to_string())).await.is_ok());
    let mut events = Vec::new();
    loop {
        let message = tokio::time::timeout(SOON, socket.next()).await.expect("a message").unwrap().unwrap();
        let Message::Text(text) = message else { continue };
        let value: Value = serde_json::from_str(&text).unwrap();
        match value["kind"].as_str() {
            Some("response") => {
                assert_eq!(value["id"], id);
                return (value, events);
            }
            _event => events.push(value),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_web_socket_sends_what_was_missed_before_it_confirms() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let client = Client::new(node.local_addr(), "any");
    client.open("cli:a").await;
    for n in 0..60 {
        client.post("/sessions/cli%3Aa/messages?append=true", json!({ "text": format!("{n}") })).await;
    }
    let url = format!("ws://{}{AGENT}/ws?token=one&token=two", node.local_addr());
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.expect("the upgrade");
    let subscribe = json!({ "sessionId": "cli:a", "lastEventId": 50 });
    let (response, events) = ask(&mut socket, "1", "session.subscribe", subscribe).await;
    assert_eq!(response["result"], json!({ "subscribed": true }));
    let ids: Vec<u64> = events.iter().map(|event| event["eventId"].as_u64().unwrap()).collect();
    assert_eq!(ids, (51..=60).collect::<Vec<u64>>());
    let (response, mut live) =
        ask(&mut socket, "2", "session.message", json!({ "sessionId": "cli:a", "text": "live" })).await;
    assert_eq!(response["result"]["triggered"], true, "{response}");
    while live.is_empty() {
        let message = tokio::time::timeout(SOON, socket.next()).await.expect("an event").unwrap().unwrap();
        if let Message::Text(text) = message {
            live.push(serde_json::from_str(&text).unwrap());
        }
    }
    assert_eq!((live[0]["eventId"].as_u64(), &live[0]["event"]["text"]), (Some(61), &json!("live")));
    for (method, params, code) in [
        ("session.nothing", json!({ "sessionId": "cli:a" }), "INVALID_PARAMS"),
        ("session.history", json!({}), "INVALID_PARAMS"),
        ("session.history", json!({ "sessionId": "cli:none" }), "SESSION_NOT_FOUND"),
        ("session.unsubscribe", json!({ "sessionId": "cli:none" }), "NOT_SUBSCRIBED"),
        ("session.delete", json!({ "sessionId": "cli:a" }), "INTERNAL_ERROR"),
        ("session.list", json!({ "limit": 0 }), "INVALID_PARAMS"),
    ] {
        let (response, _) = ask(&mut socket, "3", method, params).await;
        assert_eq!(response["error"]["code"], code, "{method}: {response}");
    }
    for (method, params) in [
        ("session.open", json!({ "sessionId": "cli:b" })),
        ("session.open", json!({ "source": { "kind": "cli", "interactive": true } })),
        ("session.message", json!({ "sessionId": "cli:a" })),
        ("session.message", json!({ "sessionId": "cli:a", "text": 7 })),
        ("session.approve", json!({ "sessionId": "cli:a", "toolCallId": "c" })),
        ("session.checkpoint", json!({ "sessionId": "cli:a", "reason": "boredom" })),
        ("session.subscribe", json!({ "sessionId": "cli:a", "lastEventId": "x" })),
        ("session.list", json!({ "interactive": "yes" })),
        ("session.list", json!([])),
        ("session.history", json!("cli:a")),
    ] {
        let (response, _) = ask(&mut socket, "bad", method, params.clone()).await;
        assert_eq!(response["error"]["code"], "INVALID_PARAMS", "{method} {params}: {response}");
    }
    let (list, _) = ask(&mut socket, "4", "session.list", json!({})).await;
    assert_eq!(list["result"][0]["sessionId"], "cli:a");
    let (history, _) = ask(&mut socket, "5", "session.history", json!({ "sessionId": "cli:a" })).await;
    assert_eq!(history["result"].as_array().unwrap().len(), 61);
    assert!(socket.send(Message::text("{")).await.is_ok());
    let message = tokio::time::timeout(SOON, socket.next()).await.unwrap().unwrap().unwrap();
    let refused: Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(""), &json!("INVALID_PARAMS")));
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_gets_the_models_error_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let client = Client::new(node.local_addr(), "any");
    client.open("cli:a").await;
    let before = client.summary("cli:a").await;
    let source = json!({ "kind": "cli", "interactive": true });
    let spec = |id: Value, source: Value| json!({ "sessionId": id, "source": source }).to_string();
    let (messages, approve) = ("/sessions/cli%3Aa/messages", "/sessions/cli%3Aa/approve");
    let long = "x".repeat(2000);
    for (method, path, body, status) in [
        ("POST", "/sessions", "{".to_owned(), 400),
        ("POST", "/sessions", "[]".to_owned(), 400),
        ("POST", "/sessions", "{}".to_owned(), 400),
        ("POST", "/sessions", spec(json!(""), source.clone()), 400),
        ("POST", "/sessions", spec(json!(7), source.clone()), 400),
        ("POST", "/sessions", spec(json!(long), source.clone()), 400),
        ("POST", "/sessions", spec(json!("cli:b"), json!({ "kind": "cli" })), 400),
        ("POST", "/sessions", spec(json!("cli:b"), json!({ "kind": "cli", "interactive": "yes" })), 400),
        (
            "POST",
            "/sessions",
            spec(json!("cli:b"), json!({ "kind": "cli", "interactive": true, "type": "crowd" })),
            400,
        ),
        (
            "POST",
            "/sessions",
            json!({ "sessionId": "cli:b", "source": source, "metadata": { "a": [] } }).to_string(),
            400,
        ),
        ("POST", messages, "{}".to_owned(), 400),
        ("POST", messages, json!({ "text": 7 }).to_string(), 400),
        ("POST", messages, json!({ "text": "a", "messageId": "" }).to_string(), 400),
        ("POST", messages, json!({ "text": "a", "sender": { "channel": "web" } }).to_string(), 400),
        ("POST", messages, json!({ "text": "a", "attachments": [{ "url": "u" }] }).to_string(), 400),
        ("POST", messages, json!({ "text": "a", "mentioned": "no" }).to_string(), 400),
        ("POST", "/sessions/cli%3Aa/messages?wait=true&timeout=soon", json!({ "text": "a" }).to_string(), 400),
        (
            "POST",
            "/sessions/cli%3Aa/messages?append=true",
            json!({ "text": "a", "occurredAt": "yesterday" }).to_string(),
            400,
        ),
        ("POST", approve, json!({ "toolCallId": "c" }).to_string(), 400),
        ("POST", approve, json!({ "approved": true }).to_string(), 400),
        ("POST", "/sessions/cli%3Aa/checkpoint", json!({ "reason": "boredom" }).to_string(), 400),
        ("GET", "/sessions?limit=0", String::new(), 400),
        ("GET", "/sessions?limit=many", String::new(), 400),
        ("GET", "/sessions?interactive=maybe", String::new(), 400),
        ("GET", "/sessions/%ff/messages", String::new(), 400),
        ("GET", "/sessions/cli%3Anone/messages", String::new(), 404),
        ("GET", "/sessions/cli%3Anone/events", String::new(), 404),
        ("POST", "/sessions/cli%3Anone/messages", json!({ "text": "a" }).to_string(), 404),
        ("POST", "/sessions/cli%3Anone/messages?stream=true", json!({ "text": "a" }).to_string(), 404),
        ("POST", "/sessions/cli%3Anone/checkpoint", String::new(), 404),
        ("POST", "/sessions/cli%3Anone/approve", json!({ "toolCallId": "c", "approved": true }).to_string(), 404),
        ("POST", "/sessions/cli%3Anone/messages?append=true", json!({ "text": "a" }).to_string(), 404),
        ("POST", "/sessions/cli%3Anone/messages?wait=true", json!({ "text": "a" }).to_string(), 404),
        ("POST", messages, json!({ "text": "a", "metadata": [] }).to_string(), 400),
        ("POST", messages, json!({ "text": "a", "participants": {} }).to_string(), 400),
        ("POST", "/sessions/cli%3Aa/messages?append=true", json!({ "text": "a", "appendAs": "x" }).to_string(), 400),
        ("POST", approve, "[]".to_owned(), 400),
        ("POST", approve, json!({ "toolCallId": 7, "approved": true }).to_string(), 400),
        ("POST", "/sessions/cli%3Aa/checkpoint", "\"x\"".to_owned(), 400),
        ("POST", "/sessions/%zz/checkpoint", String::new(), 400),
        ("DELETE", "/sessions/%zz", String::new(), 400),
        ("GET", "/sessions/%zz/events", String::new(), 400),
        ("GET", "/sessions?limit=-1", String::new(), 400),
        ("GET", "/sessions?includeInactive=2", String::new(), 400),
        ("GET", "/sessions?kind=%zz", String::new(), 400),
        ("GET", "/ws", String::new(), 400),
        ("POST", "/health", String::new(), 404),
        ("PATCH", "/sessions/cli%3Aa", String::new(), 404),
        ("DELETE", "/sessions/cli%3Anone", String::new(), 404),
        ("PUT", "/sessions", String::new(), 404),
        ("GET", "/nothing", String::new(), 404),
    ] {
        let (got, answer) = client.send(method, path, &body).await;
        let code = if status == 404 { "not_found" } else { "validation_error" };
        assert_eq!((got, answer["error"]["code"].as_str()), (status, Some(code)), "{method} {path} {body}: {answer}");
        assert!(!answer["error"]["message"].as_str().unwrap_or_default().is_empty());
    }
    for number in ["x", "-1", "1.5"] {
        let (token, path) = ("authorization: Bearer any", format!("{AGENT}/sessions/cli%3Aa/events"));
        let number = format!("last-event-id: {number}");
        let answer = request(node.local_addr(), "GET", &path, &[token, &number], "").await;
        assert_eq!((answer.status, answer.body.contains("validation_error")), (400, true), "{}", answer.body);
    }
    for token in ["", "Basic x"] {
        let header = format!("authorization: {token}");
        let answer = request(node.local_addr(), "GET", &format!("{AGENT}/sessions"), &[&header], "").await;
        assert_eq!(answer.status, 401, "{}", answer.body);
    }
    let answer = request(node.local_addr(), "GET", &format!("{AGENT}/sessions"), &[], "").await;
    assert_eq!((answer.status, answer.body.contains("unauthorized")), (401, true));
    let healthy = request(node.local_addr(), "GET", &format!("{AGENT}/health"), &[], "").await;
    assert_eq!((healthy.status, healthy.body.contains("\"agentId\":\"main\"")), (200, true));
    assert_eq!(client.summary("cli:a").await, before);
    assert_eq!(client.get("/sessions").await.1.as_array().unwrap().len(), 1);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_decided_once() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let (client, driver) = (Client::new(node.local_addr(), "any"), Driver { address: node.local_addr(), id: "d" });
    client.open("cli:a").await;
    let mut stream = Sse::open(&client, "GET", "/sessions/cli%3Aa/events", "", "").await;
    client.say("cli%3Aa", "remove it").await;
    let mut turn = driver.take().await;
    turn.emit(json!([
        { "type": "tool_approval_required", "toolName": "rm", "toolCallId": "c1", "args": { "path": "/tmp/x" } },
    ]))
    .await;
    client.until("cli:a", |summary| summary["status"] == "awaiting_approval").await;
    let (status, answer) = client.send("DELETE", "/sessions/cli%3Aa", "").await;
    assert_eq!((status, &answer["error"]["message"]), (409, &json!("Cannot delete a running session.")));
    let decide = |approved: bool| {
        let client = client.clone();
        async move { client.post("/sessions/cli%3Aa/approve", json!({ "toolCallId": "c1", "approved": approved })).await }
    };
    let (yes, no) = tokio::join!(decide(true), decide(false));
    let resolved = [&yes.1["resolved"], &no.1["resolved"]];
    assert_eq!(resolved.iter().filter(|resolved| ***resolved == true).count(), 1, "{resolved:?}");
    client.until("cli:a", |summary| summary["status"] == "running").await;
    turn.complete("done").await;
    let frames = stream.until("agent_end").await;
    let kinds = kinds(&frames);
    for kind in ["tool_approval_required", "approval_requested", "approval_resolved", "text_final"] {
        assert_eq!(kinds.iter().filter(|found| **found == kind).count(), 1, "{kind}: {kinds:?}");
    }
    assert_eq!(client.send("DELETE", "/sessions/cli%3Aa", "").await, (200, json!({ "deleted": true })));
    assert_eq!(client.get("/sessions/cli%3Aa/messages").await.0, 404);
    client.open_group("telegram:g").await;
    let (status, answer) = client.send("DELETE", "/sessions/telegram%3Ag", "").await;
    assert_eq!((status, &answer["error"]["message"]), (409, &json!("Cannot delete group sessions.")));
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_of_one_session_run_one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let client = Client::new(node.local_addr(), "any");
    let (one, two) =
        (Driver { address: node.local_addr(), id: "one" }, Driver { address: node.local_addr(), id: "two" });
    client.open("cli:a").await;
    for n in 0..3 {
        let body = json!({ "text": format!("{n}"), "messageId": format!("m{n}") });
        let (_, posted) = client.post("/sessions/cli%3Aa/messages", body).await;
        assert_eq!(posted, json!({ "sessionId": "cli:a", "messageId": format!("m{n}"), "triggered": true }));
    }
    for n in 0..3 {
        let (first, second) = tokio::join!(
            tokio::time::timeout(Duration::from_millis(300), one.take()),
            tokio::time::timeout(Duration::from_millis(300), two.take())
        );
        let mut taken: Vec<Turn<'_>> = [first.ok(), second.ok()].into_iter().flatten().collect();
        assert_eq!(taken.len(), 1, "one driver has the turn");
        assert_eq!(taken[0].requested["text"], format!("{n}"), "in the order of the messages");
        taken[0].complete(&format!("reply {n}")).await;
    }
    let summary = client.until("cli:a", |summary| summary["status"] == "idle").await;
    assert_eq!((summary["messageCount"].as_u64(), &summary["lastMessagePreview"]), (Some(6), &json!("reply 2")));
    node.shutdown().await;
}
