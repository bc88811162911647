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

/// What an operator can do to a cluster, with the body of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    TransferLeader(Transfer),
    /// On the node that is asked.
    Snapshot,
    Add(Addition),
    Promote(Promotion),
    Remove(Removal),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// A voter; `None` for the most up-to-date one.
    pub to: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Addition {
    pub node: u64,
    pub address: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Promotion {
    pub node: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Removal {
    pub node: u64,
    #[serde(default)]
    pub force: bool,
}

/// The body of an operation without arguments.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

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

fn parse(name: &str, body: &str) -> Result<Operation, OperateError> {
    fn read<T: DeserializeOwned>(body: &str) -> Result<T, OperateError> {
        serde_json::from_str(body).map_err(|error| OperateError::Body(error.to_string()))
    }
    match name {
        "transfer-leader" => read(body).map(Operation::TransferLeader),
        "snapshot" => read(body).map(|Nothing {}| Operation::Snapshot),
        "add" => match read::<Addition>(body)? {
            added if is_address(&added.address) => Ok(Operation::Add(added)),
            _invalid => Err(OperateError::Body("address: write host:port of the node's peer listener".to_owned())),
        },
        "promote" => read(body).map(Operation::Promote),
        "remove" => read(body).map(Operation::Remove),
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
        assert_eq!(parse("transfer-leader", "{}"), Ok(Operation::TransferLeader(Transfer { to: None })));
        assert_eq!(parse("remove", r#"{"node": 2}"#), Ok(Operation::Remove(Removal { node: 2, force: false })));
        for name in Operation::NAMES {
            assert!(matches!(parse(name, r#"{"x": 1}"#), Err(OperateError::Body(_))), "{name}");
        }
        let add = |address: &str| parse("add", &json!({ "node": 4, "address": address }).to_string());
        for address in ["127.0.0.1:49200", "[::1]:49200", "node-4.example:1"] {
            assert_eq!(add(address), Ok(Operation::Add(Addition { node: 4, address: address.to_owned() })));
        }
        for address in ["", "\u{d7}%2", "node-4", ":1", "node-4:", "node-4:0", "node-4:65536", "a b:1", "u@h/p:1"] {
            assert_eq!(add(address).map_err(|error| error.kind()), Err(Kind::InvalidQuery), "{address:?}");
        }
        let unknown = parse("explode", "{}").unwrap_err();
        assert_eq!(unknown.kind(), Kind::RouteNotFound);
        assert!(unknown.to_string().contains("transfer-leader"));
    }
}
