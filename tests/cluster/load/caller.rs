//! Owns: one client's HTTP connection to the node it talks to, and the list of nodes it can choose from.
//! Never: what a call means, or whether it may be retried.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpStream;

use crate::http_call::{self, Connection, Outcome};

/// A listener on the same machine answers at once or is not there.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// The client addresses of the nodes. Shared, so that a test can add and remove nodes under the load.
#[derive(Debug, Clone, Default)]
pub struct Nodes(Arc<Mutex<Vec<SocketAddr>>>);

impl Nodes {
    pub fn new(addresses: Vec<SocketAddr>) -> Nodes {
        Nodes(Arc::new(Mutex::new(addresses)))
    }

    pub fn all(&self) -> Vec<SocketAddr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, addresses: Vec<SocketAddr>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// The address at `number` modulo the number of nodes; `None` while there is no node.
    fn at(&self, number: usize) -> Option<SocketAddr> {
        let addresses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.get(number % addresses.len().max(1)).copied()
    }
}

/// Calls one node at a time, over one connection that it keeps open.
pub struct Caller {
    nodes: Nodes,
    node: usize,
    open: Option<(SocketAddr, Connection)>,
    call_max: Duration,
}

impl Caller {
    pub fn new(nodes: Nodes, node: usize, call_max: Duration) -> Caller {
        Caller { nodes, node, open: None, call_max }
    }

    /// The next call goes to the next node of the list.
    pub fn use_next_node(&mut self) {
        self.node = self.node.wrapping_add(1);
    }

    pub fn use_node(&mut self, node: usize) {
        self.node = node;
    }

    /// One call, sent once.
    pub async fn call(&mut self, function: &str, body: &Value) -> Outcome {
        let Some(node) = self.nodes.at(self.node) else { return Outcome::Unavailable("there is no node".to_owned()) };
        // Until there is a connection, nothing was sent.
        let connection = match self.connection(node).await {
            Ok(connection) => connection,
            Err(why) => return Outcome::Unavailable(format!("{node}: {why}")),
        };
        let (outcome, reusable) = http_call::call(connection, None, function, body, self.call_max).await;
        self.open = reusable.map(|connection| (node, connection));
        outcome
    }

    async fn connection(&mut self, node: SocketAddr) -> Result<Connection, String> {
        if let Some((to, mut connection)) = self.open.take()
            && to == node
            && connection.ready().await.is_ok()
        {
            return Ok(connection);
        }
        let connect = async {
            let stream = TcpStream::connect(node).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        http_call::open(connect, CONNECT_MAX).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_call::outcome;
    use serde_json::json;

    #[test]
    fn an_error_says_whether_the_call_was_executed() {
        let error = |code: &str, message: &str| {
            outcome(false, json!({"error": {"code": code, "message": message}}).to_string().as_bytes())
        };
        let refused =
            |code: &str, message: &str| Outcome::Refused { code: code.to_owned(), message: message.to_owned() };
        assert_eq!(outcome(true, b"{\"a\":1}"), Outcome::Answered(json!({"a": 1})));
        assert_eq!(error("session/storage", "no leader"), Outcome::Unavailable("no leader".to_owned()));
        let unknown = "outcome unknown: the leader went away";
        assert_eq!(error("session/storage", unknown), Outcome::Unknown(unknown.to_owned()));
        assert_eq!(error("shutting_down", "try again"), refused("shutting_down", "try again"));
        assert_eq!(error("session/not_found", "x"), refused("session/not_found", "x"));
        assert!(matches!(outcome(false, b"<html>"), Outcome::Refused { .. }));
    }

    #[tokio::test]
    async fn a_call_that_reaches_no_node_is_unavailable() {
        let mut caller = Caller::new(Nodes::default(), 0, Duration::from_secs(1));
        assert!(matches!(caller.call("session::list", &json!({})).await, Outcome::Unavailable(_)));
        // A port that was free just now refuses the connection.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut caller = Caller::new(Nodes::new(vec![free]), 7, Duration::from_secs(1));
        assert!(matches!(caller.call("session::list", &json!({})).await, Outcome::Unavailable(_)));
    }
}
