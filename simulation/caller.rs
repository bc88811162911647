//! Owns: one client's HTTP connections to the nodes, over simulated sockets.
//! Never: what a call means, or whether it may be retried.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::Value;
use turmoil::net::TcpStream;

use crate::host::CLIENT_PORT;
use crate::http_call::{self, Connection, Outcome};

/// The simulated network takes some milliseconds. A node that takes longer than this is cut off or down.
const CONNECT_MAX: Duration = Duration::from_millis(500);

pub struct Caller {
    /// By node, from 1 on.
    hosts: Vec<IpAddr>,
    token: &'static str,
    open: BTreeMap<u64, Connection>,
}

impl Caller {
    pub fn new(hosts: Vec<IpAddr>, token: &'static str) -> Caller {
        Caller { hosts, token, open: BTreeMap::new() }
    }

    pub fn nodes(&self) -> usize {
        self.hosts.len()
    }

    /// One call, sent once.
    pub async fn call(&mut self, node: u64, function: &str, body: &Value, call_max: Duration) -> Outcome {
        // Until there is a connection, nothing was sent.
        let connection = match self.connection(node).await {
            Ok(connection) => connection,
            Err(why) => return Outcome::Unavailable(why),
        };
        let (outcome, reusable) = http_call::call(connection, Some(self.token), function, body, call_max).await;
        if let Some(connection) = reusable {
            self.open.insert(node, connection);
        }
        match outcome {
            Outcome::Refused { code, message } => at_a_busy_node(code, message),
            known @ (Outcome::Answered(_) | Outcome::Unavailable(_) | Outcome::Unknown(_)) => known,
        }
    }

    async fn connection(&mut self, node: u64) -> Result<Connection, String> {
        if let Some(mut connection) = self.open.remove(&node)
            && connection.ready().await.is_ok()
        {
            return Ok(connection);
        }
        let host = self.hosts.get(node as usize - 1).copied().ok_or("there is no such node")?;
        http_call::open(TcpStream::connect(SocketAddr::new(host, CLIENT_PORT)), CONNECT_MAX).await
    }
}

/// The faults of a run make nodes stop and fall behind. Some refusals come from that and not from the call itself.
fn at_a_busy_node(code: String, message: String) -> Outcome {
    match code.as_str() {
        // The node refused the call before it executed anything.
        "shutting_down" | "too_many_connections" => Outcome::Unavailable(message),
        "timeout" => Outcome::Unknown(message),
        _final => Outcome::Refused { code, message },
    }
}
