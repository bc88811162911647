//! Owns: the world of scenarios tagged @gateway: a node, and front-ends and drivers on its WebSocket.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use futures::SinkExt;
use serde_json::{Value, json};
use session_manager::access::Role;
use session_manager::access::token::TokenHash;
use session_manager::node::{Node, NodeSettings};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

pub use crate::gateway_client::{Client, Heard};
use crate::json_shorthand::{self, Variables};

/// Long enough for a busy machine. What takes longer counts as a failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[derive(cucumber::World)]
#[world(init = Self::start)]
pub struct GatewayWorld {
    dir: TempDir,
    node: Option<Node>,
    pub clients: BTreeMap<String, Client>,
    pub variables: Variables,
    /// The number of each driver's next batch.
    pub batches: BTreeMap<String, u64>,
    /// Why the last connection was refused.
    pub refused: Option<u16>,
}

impl fmt::Debug for GatewayWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayWorld").field("variables", &self.variables).finish_non_exhaustive()
    }
}

impl Client {
    pub async fn send(&mut self, message: Message) {
        self.0.send(message).await.expect("the connection is open");
    }
}

impl GatewayWorld {
    async fn start() -> GatewayWorld {
        GatewayWorld {
            dir: TempDir::new().expect("a directory"),
            node: None,
            clients: BTreeMap::new(),
            variables: Variables::new(),
            batches: BTreeMap::new(),
            refused: None,
        }
    }

    /// Starts a node. With tokens, it lets nobody in without one; each token is its own name.
    pub async fn start_node(&mut self, tokens: &[(String, Role, String)]) {
        let mut settings = NodeSettings::on_free_port(&self.dir.path().join("data"));
        if !tokens.is_empty() {
            let file = self.dir.path().join("tokens");
            let line = |(token, role, tenant): &(String, Role, String)| {
                let hash = TokenHash::of(token);
                let scope = json!({ "tenantId": tenant });
                format!("{{\"name\":\"{token}\",\"role\":\"{role}\",\"hash\":\"{hash}\",\"scope\":{scope}}}\n")
            };
            std::fs::write(&file, tokens.iter().map(line).collect::<String>()).expect("a token file");
            settings.config.token_file = Some(file);
        }
        self.node = Some(Node::start(settings).await.expect("the node starts"));
    }

    pub fn node(&self) -> &Node {
        self.node.as_ref().expect("a node")
    }

    /// Stops the node as a signal would.
    pub fn stop(&mut self) {
        let node = self.node.take().expect("a node");
        tokio::spawn(async move { node.shutdown().await });
    }

    pub async fn connect(&mut self, name: &str, path: &str, headers: &[(&'static str, &str)]) {
        let mut request = format!("ws://{}{path}", self.node().local_addr()).into_client_request().expect("a URL");
        for (header, value) in headers {
            request.headers_mut().insert(*header, value.parse().expect("a header"));
        }
        match tokio_tungstenite::connect_async(request).await {
            Ok((socket, _)) => drop(self.clients.insert(name.to_owned(), Client(socket))),
            Err(tokio_tungstenite::tungstenite::Error::Http(response)) => {
                self.refused = Some(response.status().as_u16())
            }
            Err(other) => panic!("{other}"),
        }
    }

    pub fn client(&mut self, name: &str) -> &mut Client {
        self.clients.get_mut(name).unwrap_or_else(|| panic!("{name} is not connected"))
    }

    pub fn json(&self, text: &str) -> Value {
        let text = json_shorthand::expand(text, &self.variables);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("the JSON of the step is invalid ({error}): {text}"))
    }

    pub fn compare(&mut self, expected: &str, actual: &Value) {
        let expected = self.json(expected);
        if let Err(difference) = json_shorthand::compare(&expected, actual, false, &mut self.variables) {
            panic!("{difference}\nin {actual}");
        }
    }

    /// Calls a function over HTTP.
    pub async fn call(&self, function: &str, body: &Value, token: Option<&str>) -> Value {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut socket = TcpStream::connect(self.node().local_addr()).await.expect("the node listens");
        let login = token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
        let body = body.to_string();
        let length = body.len();
        let head = format!("POST /v1/call/{function} HTTP/1.1\r\nhost: localhost\r\n{login}content-length: {length}");
        let request = format!("{head}\r\nconnection: close\r\n\r\n{body}");
        socket.write_all(request.as_bytes()).await.expect("the request is sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{function}: {error} in {answer}"))
    }

    pub async fn finish(&mut self) {
        self.clients.clear();
        if let Some(node) = self.node.take() {
            node.shutdown().await;
        }
    }
}
