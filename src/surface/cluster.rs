//! Owns: the cluster for operators over HTTP: `GET /v1/cluster`, and `POST /v1/cluster/<operation>` for what
//! `session-manager cluster` does over the peer port.
//! Never: consensus. The node behind the port knows its cluster.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::errors::Kind;
use super::http::{self, Port};
use crate::access::{Action, Identity};

/// What an operator can do to a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// To a voter, or to the most up-to-date one.
    TransferLeader {
        to: Option<u64>,
    },
    /// On the node that is asked.
    Snapshot,
    Add {
        node: u64,
        address: String,
    },
    Promote {
        node: u64,
    },
    Remove {
        node: u64,
        force: bool,
    },
}

impl Operation {
    pub const NAMES: [&str; 5] = ["transfer-leader", "snapshot", "add", "promote", "remove"];
}

/// Why an operation did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperateError {
    /// There is no such operation.
    Unknown(String),
    /// The body does not fit the operation.
    Body(String),
    /// The cluster refuses it; a retry gives the same answer.
    Refused(String),
    /// It may succeed later. If the text says so, it may have happened.
    Unavailable(String),
}

impl fmt::Display for OperateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OperateError::Unknown(name) => {
                write!(f, "{name:?} is not an operation; there are {}", Operation::NAMES.join(", "))
            }
            OperateError::Body(why) => write!(f, "the body does not fit the operation: {why}"),
            OperateError::Refused(why) | OperateError::Unavailable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for OperateError {}

impl OperateError {
    pub fn kind(&self) -> Kind {
        match self {
            OperateError::Unknown(_) => Kind::RouteNotFound,
            OperateError::Body(_) => Kind::InvalidQuery,
            OperateError::Refused(_) => Kind::OperationRefused,
            OperateError::Unavailable(_) => Kind::Storage,
        }
    }
}

/// The cluster behind a port.
pub trait Operator: Send + Sync + 'static {
    /// Every member with its own status, within a bounded time.
    fn status(&self) -> BoxFuture<'static, Result<Value, OperateError>>;

    /// Returns the cluster after the operation. `caller` is for the log.
    fn operate(&self, operation: Operation, caller: Arc<Identity>) -> BoxFuture<'static, Result<Value, OperateError>>;
}

/// A node without a cluster.
pub struct NoCluster;

impl Operator for NoCluster {
    fn status(&self) -> BoxFuture<'static, Result<Value, OperateError>> {
        async { Ok(json!({ "cluster_id": "", "leader": null, "healthy": true, "nodes": [] })) }.boxed()
    }

    fn operate(&self, _: Operation, _: Arc<Identity>) -> BoxFuture<'static, Result<Value, OperateError>> {
        let why = "this node is not the member of a cluster: only the raft adapter is";
        async move { Err(OperateError::Refused(why.to_owned())) }.boxed()
    }
}

pub async fn status(State(port): State<Port>, request: Request) -> Response {
    if let Some(refused) = http::forbidden(&request, Action::Metrics) {
        return refused;
    }
    answer(port.operator.status().await)
}

pub async fn operate(State(port): State<Port>, Path(name): Path<String>, request: Request) -> Response {
    if let Some(refused) = http::forbidden(&request, Action::Administer) {
        return refused;
    }
    let caller = http::identity_of(&request);
    let (body, _room) = match http::read_body(&port, request).await {
        Ok(read) => read,
        Err(refused) => return refused.into_response(),
    };
    let done = async { port.operator.operate(parse(&name, body.as_str())?, caller).await };
    answer(done.await)
}

fn answer(result: Result<Value, OperateError>) -> Response {
    match result {
        Ok(value) => axum::Json(value).into_response(),
        Err(error) => http::error(error.kind(), &error.to_string()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Transfer {
    to: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Added {
    node: u64,
    address: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Promoted {
    node: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Removed {
    node: u64,
    #[serde(default)]
    force: bool,
}

fn parse(name: &str, body: &str) -> Result<Operation, OperateError> {
    fn read<T: DeserializeOwned>(body: &str) -> Result<T, OperateError> {
        serde_json::from_str(body).map_err(|error| OperateError::Body(error.to_string()))
    }
    match name {
        "transfer-leader" => read(body).map(|Transfer { to }| Operation::TransferLeader { to }),
        "snapshot" => read(body).map(|Nothing {}| Operation::Snapshot),
        "add" => match read(body)? {
            Added { node, address } if is_address(&address) => Ok(Operation::Add { node, address }),
            Added { .. } => Err(OperateError::Body("address: write host:port of the node's peer listener".to_owned())),
        },
        "promote" => read(body).map(|Promoted { node }| Operation::Promote { node }),
        "remove" => read(body).map(|Removed { node, force }| Operation::Remove { node, force }),
        other => Err(OperateError::Unknown(other.to_owned())),
    }
}

/// Whether a text is a host and a port. What is not cannot be dialled, at no time, so it must not look like a failure
/// that goes away.
fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte);
    !host.is_empty() && host.bytes().all(is_plain) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_read_and_anything_else_is_refused() {
        assert_eq!(parse("transfer-leader", "{}"), Ok(Operation::TransferLeader { to: None }));
        assert_eq!(parse("remove", r#"{"node": 2}"#), Ok(Operation::Remove { node: 2, force: false }));
        for name in Operation::NAMES {
            assert!(matches!(parse(name, r#"{"x": 1}"#), Err(OperateError::Body(_))), "{name}");
        }
        let add = |address: &str| parse("add", &json!({ "node": 4, "address": address }).to_string());
        for address in ["127.0.0.1:49200", "[::1]:49200", "node-4.example:1"] {
            assert_eq!(add(address), Ok(Operation::Add { node: 4, address: address.to_owned() }));
        }
        for address in ["", "\u{d7}%2", "node-4", ":1", "node-4:", "node-4:0", "node-4:65536", "a b:1", "u@h/p:1"] {
            assert_eq!(add(address).map_err(|error| error.kind()), Err(Kind::InvalidQuery), "{address:?}");
        }
        let unknown = parse("explode", "{}").unwrap_err();
        assert_eq!(unknown.kind(), Kind::RouteNotFound);
        assert!(unknown.to_string().contains("transfer-leader"));
    }
}
