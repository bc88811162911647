//! `session::store::about`: what a bridge needs to know about its main before it attaches to it.
//!
//! Not part of the published API. A main without this function supports only the raw store functions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::requests::{Decision, Done, Operation};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct AboutRequest {
    /// A position of the feed. The response says in `gap` if the feed cannot be resumed after it.
    pub after: Option<String>,
}

/// A main's description of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Introduction {
    /// Id of this process. A bridge detects by it that its main is itself.
    pub instance: String,
    /// Id of the cluster that issues the positions; the same on all its nodes.
    pub cluster: String,
    /// Position of the newest event; absent before the first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<String>,
    /// Every event after this position is still available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<String>,
    /// URLs of the nodes of this main for clients, as far as this node knows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    /// Why the feed cannot be resumed after the given position; absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<String>,
    /// The main's clock in milliseconds since 1970. It expires request ids by this clock.
    pub now_ms: i64,
}

impl Operation for AboutRequest {
    const ID: &'static str = "session::store::about";
    const DESCRIPTION: &'static str =
        "Internal, for bridges: the id of this main, the newest position of its feed, and its clock.";
    const INTERNAL: bool = true;
    type Response = Introduction;

    fn decision(self) -> Decision {
        Decision::Introduce { after: self.after }
    }

    fn response(done: Done) -> Option<Introduction> {
        let Done::Introduced(introduction) = done else { return None };
        Some(introduction)
    }
}
