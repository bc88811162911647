//! Owns: a client of the gateway, or of the bus, over a real socket. The scenarios use it too.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use session_manager::node::Node;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// Long enough for a busy machine. What takes longer counts as a failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A front-end or a driver.
pub struct Client(pub WebSocketStream<MaybeTlsStream<TcpStream>>);

/// What the server sent.
#[derive(Debug)]
pub enum Heard {
    Frame(Value),
    Closed(u16),
}

impl Client {
    /// Opens a connection with more headers.
    pub async fn open(url: &str, headers: &[(&'static str, &str)]) -> Result<Client, WsError> {
        let mut request = url.into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        let config = tokio_tungstenite::tungstenite::protocol::WebSocketConfig::default();
        tokio_tungstenite::connect_async_with_config(request, Some(config), true)
            .await
            .map(|(socket, _)| Client(socket))
    }

    /// A connection to a node without credentials, ready to work.
    pub async fn ready_at(url: &str) -> Client {
        let mut client = Client::open(url, &[]).await.expect("the upgrade succeeds");
        client.expect("authenticated").await;
        client
    }

    pub async fn to(node: &Node) -> Client {
        Client::open(&format!("ws://{}/ws", node.local_addr()), &[]).await.expect("the upgrade succeeds")
    }

    /// A connection that is ready to work.
    pub async fn ready(node: &Node, token: Option<&str>) -> Client {
        let mut client = Client::to(node).await;
        client.expect("connected").await;
        if let Some(token) = token {
            client.send(json!({"type": "authenticate", "token": token})).await;
        }
        client.expect("authenticated").await;
        client
    }

    pub async fn send(&mut self, message: Value) {
        self.send_raw(Message::text(message.to_string())).await;
    }

    pub async fn send_raw(&mut self, message: Message) {
        self.0.send(message).await.expect("the connection is open");
    }

    pub async fn next(&mut self) -> Heard {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.0.next()).await.expect("a frame in time");
            match message {
                Some(Ok(Message::Text(text))) => return Heard::Frame(serde_json::from_str(&text).expect("JSON")),
                Some(Ok(Message::Close(frame))) => return Heard::Closed(frame.map_or(1005, |frame| frame.code.into())),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Heard::Closed(1006),
            }
        }
    }

    pub async fn frame(&mut self) -> Value {
        match self.next().await {
            Heard::Frame(frame) => frame,
            Heard::Closed(code) => panic!("the connection was closed with {code}"),
        }
    }

    /// The next frame of a type; skips others. An error ends the wait.
    pub async fn expect(&mut self, kind: &str) -> Value {
        loop {
            let frame = self.frame().await;
            if frame["type"] == kind {
                return frame;
            }
            assert_ne!(frame["type"], "error", "{kind} was expected: {frame}");
        }
    }

    /// The code of the next error; skips other frames.
    pub async fn error(&mut self) -> String {
        loop {
            let frame = self.frame().await;
            if frame["type"] == "error" {
                let fields = frame.as_object().unwrap();
                assert!(!fields.contains_key("sessionId") && !fields.contains_key("seq") && !fields.contains_key("ts"));
                assert!(frame["message"].as_str().is_some_and(|words| !words.is_empty()), "{frame}");
                return frame["code"].as_str().expect("a code").to_owned();
            }
        }
    }

    pub async fn closed(&mut self) -> u16 {
        loop {
            if let Heard::Closed(code) = self.next().await {
                return code;
            }
        }
    }

    /// Reads until the turn is complete. Every number comes once: as an event, or inside a gap. Returns the ids of the tool
    /// calls and how many numbers were in gaps.
    pub async fn follow_turn(&mut self) -> (Vec<String>, u64) {
        let (mut kept, mut at, mut missed) = (Vec::new(), None, 0);
        loop {
            let frame = self.frame().await;
            let (from, to) = match (frame["type"].as_str(), frame["seq"].as_u64()) {
                (Some("gap"), _) => (frame["fromSeq"].as_u64().unwrap(), frame["toSeq"].as_u64().unwrap()),
                (_, Some(seq)) => (seq - 1, seq),
                (_, None) => continue,
            };
            assert_eq!(at.unwrap_or(from), from, "{frame}");
            at = Some(to);
            match frame["type"].as_str() {
                Some("gap") => missed += to - from,
                Some("tool_call") => kept.push(frame["toolCallId"].as_str().unwrap().to_owned()),
                Some("turn_complete") => return (kept, missed),
                _delta => {}
            }
        }
    }

    /// A ping is answered, so the connection works and everything before it was handled.
    pub async fn works(&mut self) {
        self.send(json!({"type": "ping", "ts": 7})).await;
        assert_eq!(self.expect("pong").await["clientTs"], 7);
    }
}
