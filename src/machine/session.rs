//! Owns: the session's metadata record and its status.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ids::SessionId;
use super::json::Object;

/// A coarse status that consumers render as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    Idle,
    Working,
    Done,
    Error,
}

/// A session's metadata record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionMeta {
    pub session_id: SessionId,
    pub title: String,
    pub description: String,
    pub status: SessionStatus,
    /// Short cause, kept with `error` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_reason: Option<String>,
    /// Messages in the tree; custom entries are bookkeeping and do not count.
    pub message_count: u64,
    /// App-defined: the tenancy hook that `session::list` and every binding can filter on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// The session this one was forked from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SessionId>,
    /// Milliseconds since the epoch.
    pub created_at: i64,
    /// Milliseconds since the epoch; never goes backwards.
    pub updated_at: i64,
}

/// True when every key of `filter` deep-equals the same key of `metadata`. An empty filter matches everything.
pub fn metadata_matches(filter: &Object, metadata: Option<&Object>) -> bool {
    filter.iter().all(|(key, wanted)| metadata.and_then(|stored| stored.get(key)) == Some(wanted))
}
