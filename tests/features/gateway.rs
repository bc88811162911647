//! Owns: the world of scenarios tagged @gateway: a node or a cluster, and front-ends and drivers on its WebSocket.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};
use session_manager::access::Role;
use session_manager::access::token::TokenHash;
use session_manager::node::{Node, NodeSettings};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_tungstenite::tungstenite::Error as WsError;

use crate::gateway_client::{Client, PATIENCE};
use crate::gateway_cluster::Cluster;
use crate::json_shorthand::{self, Variables};

/// Clusters that run at the same time: each has three processes.
static CLUSTERS: Semaphore = Semaphore::const_new(2);

#[derive(cucumber::World)]
#[world(init = Self::start)]
pub struct GatewayWorld {
    dir: TempDir,
    node: Option<Node>,
    /// Three processes instead of a node of this process.
    pub cluster: Option<Cluster>,
    place: Option<SemaphorePermit<'static>>,
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

impl GatewayWorld {
    async fn start() -> GatewayWorld {
        GatewayWorld {
            dir: TempDir::new().expect("a directory"),
            node: None,
            cluster: None,
            place: None,
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

    pub async fn start_cluster(&mut self) {
        let dir = self.dir.path().join("cluster");
        let place = CLUSTERS.acquire().await.expect("nobody closes it");
        let started = tokio::task::spawn_blocking(move || Cluster::start(&dir)).await;
        self.cluster = Some(started.expect("a cluster"));
        self.place = Some(place);
    }

    pub fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("a cluster")
    }

    /// Where clients reach a node. The number counts in a cluster only.
    fn address(&self, node: u64) -> String {
        match &self.cluster {
            Some(cluster) => cluster.address(node),
            None => self.node().local_addr().to_string(),
        }
    }

    /// A connection to a node of the cluster that is ready to work.
    pub async fn connect_to_node(&mut self, name: &str, node: u64) {
        let mut client = self.open(node, "/ws").await;
        client.expect("authenticated").await;
        self.clients.insert(name.to_owned(), client);
    }

    /// A connection to a node of the cluster. The node may just be starting.
    pub async fn open(&self, node: u64, path: &str) -> Client {
        let begun = std::time::Instant::now();
        loop {
            let url = format!("ws://{}{path}", self.address(node));
            if let Ok(client) = Client::open(&url, &[]).await {
                return client;
            }
            assert!(begun.elapsed() < PATIENCE, "node {node} does not answer");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub async fn connect(&mut self, name: &str, path: &str, headers: &[(&'static str, &str)]) {
        match Client::open(&format!("ws://{}{path}", self.address(1)), headers).await {
            Ok(client) => drop(self.clients.insert(name.to_owned(), client)),
            Err(WsError::Http(response)) => self.refused = Some(response.status().as_u16()),
            Err(other) => panic!("{other}"),
        }
    }

    pub fn client(&mut self, name: &str) -> &mut Client {
        self.clients.get_mut(name).unwrap_or_else(|| panic!("{name} is not connected"))
    }

    pub fn json(&self, text: &str) -> Value {
        json_shorthand::read(text, &self.variables)
    }

    pub fn compare(&mut self, expected: &str, actual: &Value) {
        json_shorthand::check(expected, actual, false, &mut self.variables);
    }

    /// Calls a function over HTTP.
    pub async fn call(&self, function: &str, body: &Value, token: Option<&str>) -> Value {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut socket = TcpStream::connect(self.address(1)).await.expect("the node listens");
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
        if let Some(cluster) = self.cluster.take() {
            tokio::task::spawn_blocking(move || drop(cluster)).await.expect("the cluster stops");
            self.place = None;
        }
    }
}
