//! Owns: one client's connections to the nodes, over HTTP on simulated sockets, and what is known after a call.
//! Never: what a call means, or whether it may be repeated.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::{CONTENT_TYPE, HOST};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::time::timeout;
use turmoil::net::TcpStream;

use crate::history::Outcome;
use crate::host::CLIENT_PORT;

const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// The simulated network takes some milliseconds; whoever takes this long is cut off or down.
const CONNECT_MAX: Duration = Duration::from_millis(500);

pub struct Door {
    /// By node, from 1 on.
    hosts: Vec<IpAddr>,
    open: BTreeMap<u64, SendRequest<Body>>,
}

impl Door {
    pub fn new(hosts: Vec<IpAddr>) -> Door {
        Door { hosts, open: BTreeMap::new() }
    }

    pub fn nodes(&self) -> usize {
        self.hosts.len()
    }

    /// One call, sent once.
    pub async fn call(&mut self, node: u64, function: &str, body: &Value, call_max: Duration) -> Outcome {
        // 1. A connection. Until there is one, nothing was sent.
        let mut connection = match self.connection(node).await {
            Ok(connection) => connection,
            Err(why) => return Outcome::Unavailable(why),
        };
        let request = Request::post(format!("/v1/call/{function}"))
            .header(HOST, "simulation")
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()));
        let request = match request {
            Ok(request) => request,
            Err(error) => return Outcome::Refused { code: "client".to_owned(), message: error.to_string() },
        };
        // 2. The call. From here on a failure says nothing about what the node did.
        let answered = timeout(call_max, async {
            let response = connection.send_request(request).await?;
            let status = response.status();
            let body = to_bytes(Body::new(response.into_body()), RESPONSE_BYTES_MAX).await;
            Ok::<_, hyper::Error>((status, body))
        });
        match answered.await {
            Ok(Ok((status, Ok(body)))) => {
                self.open.insert(node, connection);
                understand(status.is_success(), &body)
            }
            Ok(Ok((_, Err(error)))) => Outcome::Unknown(error.to_string()),
            Ok(Err(error)) if error.is_canceled() => Outcome::Unavailable(error.to_string()),
            Ok(Err(error)) => Outcome::Unknown(error.to_string()),
            Err(_) => Outcome::Unknown(format!("no answer within {} ms", call_max.as_millis())),
        }
    }

    async fn connection(&mut self, node: u64) -> Result<SendRequest<Body>, String> {
        if let Some(mut connection) = self.open.remove(&node)
            && connection.ready().await.is_ok()
        {
            return Ok(connection);
        }
        let host = self.hosts.get(node as usize - 1).copied().ok_or("there is no such node")?;
        let connect = async {
            let stream = TcpStream::connect(SocketAddr::new(host, CLIENT_PORT)).await;
            let stream = stream.map_err(|error| error.to_string())?;
            let (connection, driver) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
            // It ends with the connection; an error shows in the call it breaks.
            tokio::spawn(driver);
            Ok(connection)
        };
        timeout(CONNECT_MAX, connect).await.unwrap_or_else(|_| Err("no connection in time".to_owned()))
    }
}

fn understand(success: bool, body: &[u8]) -> Outcome {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        let message = format!("a response that is not JSON: {}", String::from_utf8_lossy(body));
        return Outcome::Refused { code: "nonsense".to_owned(), message };
    };
    if success {
        return Outcome::Answered(value);
    }
    let code = value["error"]["code"].as_str().unwrap_or("none").to_owned();
    let message = value["error"]["message"].as_str().unwrap_or_default().to_owned();
    match code.as_str() {
        "session/storage" if message.contains("outcome unknown") => Outcome::Unknown(message),
        // Refused at the door, before anything was done.
        "session/storage" | "shutting_down" | "too_many_connections" => Outcome::Unavailable(message),
        "timeout" => Outcome::Unknown(message),
        _final => Outcome::Refused { code, message },
    }
}
