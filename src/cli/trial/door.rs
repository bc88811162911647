//! Owns: one client's way to whichever node answers, over HTTP, and what is known after a call: an answer, a refusal,
//! that nothing happened, or that nobody knows. Never: what a call means, or whether it may be repeated.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::{CONTENT_TYPE, HOST};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Larger than any page a trial asks for.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// A listener on the same machine answers at once or is not there.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// The client addresses of the nodes, as they are now. Shared, so that nodes may come and go under the load.
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

    /// The address at a place, counted round and round; `None` while there is no node at all.
    fn at(&self, place: usize) -> Option<SocketAddr> {
        let addresses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.get(place % addresses.len().max(1)).copied()
    }
}

/// What a caller knows after a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    Answer(Value),
    /// Final: an error that is not `session/storage`.
    Refused(String),
    /// `session/storage`, or the node is stopping, or nobody listens there: nothing happened.
    NotDone(String),
    /// `session/storage: outcome unknown`, or the connection broke, or no answer came in time.
    Unknown(String),
}

/// One client. It keeps a connection per node it talks to, and one call under way.
pub struct Door {
    nodes: Nodes,
    place: usize,
    open: Option<(SocketAddr, SendRequest<Body>)>,
    call_max: Duration,
}

impl Door {
    pub fn new(nodes: Nodes, place: usize, call_max: Duration) -> Door {
        Door { nodes, place, open: None, call_max }
    }

    /// The next call goes to another node.
    pub fn move_on(&mut self) {
        self.place = self.place.wrapping_add(1);
    }

    pub fn move_to(&mut self, place: usize) {
        self.place = place;
    }

    pub async fn call(&mut self, function: &str, body: &Value) -> Heard {
        let Some(node) = self.nodes.at(self.place) else { return Heard::NotDone("there is no node".to_owned()) };
        // 1. A connection. Until there is one, nothing was sent.
        let mut connection = match self.connection(node).await {
            Ok(connection) => connection,
            Err(why) => return Heard::NotDone(format!("{node}: {why}")),
        };
        let request = Request::post(format!("/v1/call/{function}"))
            .header(HOST, node.to_string())
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()));
        let request = match request {
            Ok(request) => request,
            Err(error) => return Heard::Refused(format!("{function}: {error}")),
        };
        // 2. The call. From here on a failure says nothing about what the node did.
        let answered = timeout(self.call_max, async {
            let response = connection.send_request(request).await?;
            let status = response.status();
            let body = to_bytes(Body::new(response.into_body()), RESPONSE_BYTES_MAX).await;
            Ok::<_, hyper::Error>((status, body))
        });
        match answered.await {
            Ok(Ok((status, Ok(body)))) => {
                self.open = Some((node, connection));
                understand(status.is_success(), &body)
            }
            Ok(Ok((_, Err(error)))) => Heard::Unknown(format!("{node}: {error}")),
            Ok(Err(error)) if error.is_canceled() => Heard::NotDone(format!("{node}: {error}")),
            Ok(Err(error)) => Heard::Unknown(format!("{node}: {error}")),
            Err(_) => Heard::Unknown(format!("{node}: no answer within {} ms", self.call_max.as_millis())),
        }
    }

    async fn connection(&mut self, node: SocketAddr) -> Result<SendRequest<Body>, String> {
        if let Some((to, mut connection)) = self.open.take()
            && to == node
            && connection.ready().await.is_ok()
        {
            return Ok(connection);
        }
        let connect = async {
            let stream = TcpStream::connect(node).await.map_err(|error| error.to_string())?;
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            let (connection, driver) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
            // It ends with the connection; an error shows in the call it breaks.
            tokio::spawn(driver);
            Ok(connection)
        };
        timeout(CONNECT_MAX, connect).await.unwrap_or_else(|_| Err("no connection in time".to_owned()))
    }
}

fn understand(success: bool, body: &[u8]) -> Heard {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return Heard::Refused(format!("a response that is not JSON: {}", String::from_utf8_lossy(body)));
    };
    if success {
        return Heard::Answer(value);
    }
    let (code, message) = (value["error"]["code"].as_str(), value["error"]["message"].as_str().unwrap_or_default());
    match code {
        Some("session/storage") if message.contains("outcome unknown") => Heard::Unknown(message.to_owned()),
        Some("session/storage") => Heard::NotDone(message.to_owned()),
        Some(code) => Heard::Refused(format!("{code}: {message}")),
        None => Heard::Refused(format!("an error without a code: {value}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_error_says_whether_anything_happened() {
        let error = |code: &str, message: &str| {
            understand(false, json!({"error": {"code": code, "message": message}}).to_string().as_bytes())
        };
        assert_eq!(understand(true, b"{\"a\":1}"), Heard::Answer(json!({"a": 1})));
        assert_eq!(error("session/storage", "no leader"), Heard::NotDone("no leader".to_owned()));
        let unknown = "outcome unknown: the leader went away";
        assert_eq!(error("session/storage", unknown), Heard::Unknown(unknown.to_owned()));
        assert!(matches!(error("shutting_down", "try again"), Heard::Refused(_)));
        assert_eq!(error("session/not_found", "x"), Heard::Refused("session/not_found: x".to_owned()));
        assert!(matches!(understand(false, b"<html>"), Heard::Refused(_)));
    }

    #[tokio::test]
    async fn a_call_to_nobody_did_nothing() {
        let mut door = Door::new(Nodes::default(), 0, Duration::from_secs(1));
        assert!(matches!(door.call("session::list", &json!({})).await, Heard::NotDone(_)));
        // A port that was free a moment ago refuses.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut door = Door::new(Nodes::new(vec![free]), 7, Duration::from_secs(1));
        assert!(matches!(door.call("session::list", &json!({})).await, Heard::NotDone(_)));
    }
}
