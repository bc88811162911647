//! `session::store::about`: who serves the store here, for a bridge that is about to attach to it.
//!
//! Beyond the published API: a main that does not know this function only speaks the plain store protocol.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::requests::{Decision, Done, Operation};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct AboutRequest {
    /// The position a feed is to be resumed after, to hear whether that is possible.
    pub after: Option<String>,
}

/// A main as it tells a bridge of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Introduction {
    /// This process; a bridge that meets itself knows it by this.
    pub instance: String,
    /// Whose positions these are. Nodes of one cluster say the same.
    pub cluster: String,
    /// How far the feed has come; absent before its first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<String>,
    /// The position after which every event is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<String>,
    /// Why the feed cannot be resumed after the position that was asked about, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<String>,
    /// Milliseconds since the epoch here. Requests are remembered by this clock.
    pub now_ms: i64,
}

impl Operation for AboutRequest {
    const ID: &'static str = "session::store::about";
    const DESCRIPTION: &'static str =
        "Internal, for bridges: who serves the store here, how far its feed has come, and its clock.";
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
