//! `session::tree`: the shape of a session: its entries without their bodies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Question, checks};
use crate::machine::entry::{Body, Entry};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::message::{Role, Usage};
use crate::machine::query::tree::TreeQuery;
use crate::machine::refusal::Refusal;
use crate::machine::{Found, Query};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct TreeRequest {
    pub session_id: SessionId,
    /// The `next_cursor` of the previous page.
    pub cursor: Option<String>,
    /// The largest number of entries; limited by the configuration.
    pub limit: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct TreeResponse {
    /// In the order of their ids.
    pub entries: Vec<TreeItem>,
    /// The end of the path that `session::messages` reads by default; absent if the session is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_leaf: Option<EntryId>,
    /// The cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One node of the tree.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TreeItem {
    pub id: EntryId,
    /// Absent for a root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<EntryId>,
    /// Milliseconds since the epoch.
    pub timestamp: i64,
    pub revision: u64,
    /// The role of a message; absent for a custom entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The type of a custom entry; absent for a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_type: Option<String>,
    /// Tokens and cost of a message, if it has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

impl From<Entry> for TreeItem {
    fn from(entry: Entry) -> TreeItem {
        let Entry { id, parent_id, timestamp, revision, body, .. } = entry;
        let (role, custom_type, usage) = match body {
            Body::Message(message) => {
                let usage = message.body.field("usage").and_then(|text| serde_json::from_str(text).ok());
                (Some(message.role), None, usage)
            }
            Body::Custom { custom_type, .. } => (None, Some(custom_type), None),
        };
        TreeItem { id, parent_id, timestamp, revision, role, custom_type, usage }
    }
}

impl Question for TreeRequest {
    const ID: &'static str = "session::tree";
    const DESCRIPTION: &'static str =
        "Page through all entries of a session without their bodies: ids, parents, roles, usage.";
    type Response = TreeResponse;

    fn query(self, limits: &Limits) -> Result<Query, Refusal> {
        let TreeRequest { session_id, cursor, limit } = self;
        checks::id("session_id", session_id.as_str())?;
        checks::cursor(cursor.as_deref())?;
        Ok(Query::Tree(TreeQuery { session_id, cursor, limit: limits.page(limit) }))
    }

    fn response(found: Found) -> Option<TreeResponse> {
        let Found::Tree(page) = found else { return None };
        let entries = page.entries.into_iter().map(TreeItem::from).collect();
        Some(TreeResponse { entries, active_leaf: page.active_leaf, next_cursor: page.next_cursor })
    }
}
