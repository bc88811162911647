//! Owns: clients of the session model, as other programs are: requests, server-sent events and the WebSocket of the door,
//! and calls of functions, as drivers and workers make them.

use std::collections::VecDeque;
use std::net::SocketAddr;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::door::PATIENCE;
use crate::process::plain_http::request;

/// A client with its token, at one node.
#[derive(Debug, Clone)]
pub struct Client {
    pub address: SocketAddr,
    /// None: it sends no `Authorization`.
    pub token: Option<String>,
    pub agent: String,
}

/// The status and the body of an answer.
pub type Answer = (u16, Value);

impl Client {
    fn login(&self) -> Option<String> {
        self.token.as_ref().map(|token| format!("authorization: Bearer {token}"))
    }

    /// A request to the door. The path goes on after the agent.
    pub async fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        self.send_with(method, path, &[], body).await
    }

    pub async fn send_with(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
        let path = format!("/api/agents/{}{path}", self.agent);
        self.request(method, &path, headers, body).await
    }

    async fn request(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
        let login = self.login();
        let headers: Vec<&str> = login.iter().map(String::as_str).chain(headers.iter().copied()).collect();
        let answer = request(self.address, method, path, &headers, body).await;
        (answer.status, serde_json::from_str(&answer.body).unwrap_or(Value::from(answer.body)))
    }

    pub async fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.send("POST", path, &body.to_string()).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    pub async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.send("GET", path, "").await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// A function of the node.
    pub async fn call(&self, function: &str, body: &Value) -> Value {
        let (status, answer) = self.try_call(function, body).await;
        assert_eq!(status, 200, "{function}: {answer}");
        answer
    }

    pub async fn try_call(&self, function: &str, body: &Value) -> Answer {
        self.request("POST", &format!("/v1/call/{function}"), &[], &body.to_string()).await
    }

    /// Server-sent events of the door.
    pub async fn stream(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Sse {
        Sse::open(self, &format!("{method} /api/agents/{}{path}", self.agent), headers, body).await
    }

    /// The change feed of the node, one type of events.
    pub async fn feed(&self, kind: &str) -> Sse {
        Sse::open(self, &format!("GET /v1/events?type={kind}"), &[], "").await
    }

    /// The WebSocket of the door. The status tells why it is refused.
    pub async fn connect(&self, agent: &str) -> Result<Socket, u16> {
        let token = self.token.as_deref().unwrap_or_default();
        // A client may send two tokens: the first one counts.
        let url = format!("ws://{}/api/agents/{agent}/ws?token={token}&token=other", self.address);
        match tokio_tungstenite::connect_async(url).await {
            Ok((socket, _)) => Ok(Socket { socket, pushed: VecDeque::new() }),
            Err(tokio_tungstenite::tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
            Err(other) => panic!("{other}"),
        }
    }
}

/// A turn that a driver runs.
pub struct Turn {
    driver: Client,
    driver_id: String,
    pub turn_id: String,
    n: u64,
    /// What drivers were told.
    pub requested: Value,
    /// The deltas that it emitted.
    pub said: String,
}

impl Turn {
    /// The first turn that waits for a driver, once there is one.
    pub async fn wait(driver: &Client) -> Value {
        let begun = tokio::time::Instant::now();
        loop {
            let pending = driver.call("session::turn::pending", &json!({ "agent_id": driver.agent })).await;
            if let Some(turn) = pending["turns"].as_array().and_then(|turns| turns.first()) {
                return turn.clone();
            }
            assert!(begun.elapsed() < PATIENCE, "no turn came: {pending}");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// `None`: another driver has it, or it is not at the head of its queue.
    pub async fn claim(driver: &Client, driver_id: &str, requested: &Value) -> Option<Turn> {
        let turn_id = requested["turn_id"].as_str().expect("a turn").to_owned();
        let asked = json!({ "turn_id": turn_id, "driver_id": driver_id });
        let claimed = driver.call("session::turn::claim", &asked).await;
        let (driver, driver_id) = (driver.clone(), driver_id.to_owned());
        let requested = requested.clone();
        (claimed["claimed"] == true).then(|| Turn { driver, driver_id, turn_id, n: 1, requested, said: String::new() })
    }

    pub async fn take(driver: &Client, driver_id: &str) -> Turn {
        let requested = Turn::wait(driver).await;
        Turn::claim(driver, driver_id, &requested).await.expect("nobody else takes turns here")
    }

    pub async fn emit(&mut self, events: Value) {
        for event in events.as_array().expect("a list of events").iter().filter(|event| event["type"] == "text_delta") {
            self.said.push_str(event["text"].as_str().expect("a text"));
        }
        let batch = json!({ "turn_id": self.turn_id, "driver_id": self.driver_id, "n": self.n, "events": events });
        let emitted = self.driver.call("session::turn::emit", &batch).await;
        self.n += 1;
        assert_eq!(emitted["next_n"], self.n, "{emitted}");
    }

    /// Ends it with all that was said.
    pub async fn complete(&mut self) {
        let text = self.said.clone();
        self.emit(json!([{ "type": "turn_complete", "finalText": text }])).await;
    }

    /// Answers with an echo, in two parts.
    pub async fn echo(&mut self) {
        let text = format!("echo: {}", self.requested["prompt_text"].as_str().expect("a prompt"));
        let (first, rest) = text.split_at(text.len() / 2);
        self.emit(json!([{ "type": "text_delta", "text": first }])).await;
        self.emit(json!([{ "type": "text_delta", "text": rest }])).await;
        self.complete().await;
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
    /// `None`: the frame has no `id` line.
    pub id: Option<String>,
    pub event: String,
    pub data: Value,
}

impl Sse {
    async fn open(client: &Client, what: &str, headers: &[&str], body: &str) -> Sse {
        let mut socket = TcpStream::connect(client.address).await.expect("a connection");
        let login = client.login();
        let lines: String =
            login.iter().map(String::as_str).chain(headers.iter().copied()).map(|line| format!("{line}\r\n")).collect();
        let (address, length) = (client.address, body.len());
        // Version 1.0 has no chunks: what comes is what the node printed.
        let head = format!("{what} HTTP/1.0\r\nhost: {address}\r\n{lines}content-length: {length}\r\n\r\n{body}");
        socket.write_all(head.as_bytes()).await.expect("the request is sent");
        let mut sse = Sse { socket, text: String::new() };
        while !sse.text.contains("\r\n\r\n") {
            assert!(sse.read().await, "{what}: no head: {}", sse.text);
        }
        let (head, rest) = sse.text.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains("text/event-stream"), "{what}: {head}");
        sse.text = rest.to_owned();
        sse
    }

    async fn read(&mut self) -> bool {
        let mut part = [0; 8192];
        let read = timeout(PATIENCE, self.socket.read(&mut part)).await.expect("bytes in time");
        let read = read.unwrap_or(0);
        self.text.push_str(&String::from_utf8_lossy(&part[..read]));
        read > 0
    }

    /// The next frame; `None` at the end. Comments are skipped.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            while let Some((text, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let mut values = text.split('\n').filter_map(|line| line.strip_prefix(name));
                    let value = values.next().map(str::to_owned);
                    assert_eq!(values.next(), None, "a frame has one line with {name:?}: {text}");
                    value
                };
                let frame = field("event: ").map(|event| Frame {
                    id: field("id: "),
                    event,
                    data: field("data: ").map(|data| serde_json::from_str(&data).expect("JSON")).expect("data"),
                });
                self.text = rest.to_owned();
                if frame.is_some() {
                    return frame;
                }
            }
            if !self.read().await {
                return None;
            }
        }
    }
}

/// A WebSocket of the door.
pub struct Socket {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// Events that came before a response.
    pub pushed: VecDeque<Value>,
}

impl Socket {
    /// Sends a request and waits for its response. Events that come before it are kept.
    pub async fn ask(&mut self, method: &str, params: &Value) -> Value {
        let asked = json!({ "kind": "request", "id": method, "method": method, "params": params });
        self.say(asked.to_string()).await;
        loop {
            let message = self.hear().await;
            if message["kind"] == "response" {
                assert_eq!(message["id"], method, "{message}");
                return message;
            }
            assert_eq!(message["kind"], "event", "{message}");
            self.pushed.push_back(message);
        }
    }

    pub async fn say(&mut self, text: String) {
        self.socket.send(Message::text(text)).await.expect("the connection is open");
    }

    /// The next message, of those that were sent and not kept.
    pub async fn hear(&mut self) -> Value {
        loop {
            let message = timeout(PATIENCE, self.socket.next()).await.expect("a message in time");
            if let Message::Text(text) = message.expect("the connection is open").expect("a message") {
                return serde_json::from_str(&text).expect("JSON");
            }
        }
    }

    /// The next event.
    pub async fn event(&mut self) -> Value {
        match self.pushed.pop_front() {
            Some(event) => event,
            None => self.hear().await,
        }
    }
}
