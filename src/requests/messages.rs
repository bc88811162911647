//! `session::messages`: a page of a transcript. It is the most frequent read, so its page is printed by hand.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Printed, Question, checks, print};
use crate::machine::entry::{Body, CustomPayload, Entry};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::message::{AgentMessage, Role};
use crate::machine::query::messages::MessagesQuery;
use crate::machine::refusal::Refusal;
use crate::machine::{Found, Query};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct MessagesRequest {
    pub session_id: SessionId,
    /// Read the path that ends at this entry; by default the active leaf.
    pub from_entry_id: Option<EntryId>,
    /// Only messages with these roles. Custom entries are left out then.
    pub roles: Option<Vec<Role>>,
    /// Include the custom entries of the path.
    pub include_custom: Option<bool>,
    /// The `next_cursor` of the previous page.
    pub cursor: Option<String>,
    /// The largest number of entries; limited by the configuration.
    pub limit: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct MessagesResponse {
    pub messages: Vec<MessageItem>,
    /// The cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// An entry of the path: a message or, on request, a custom entry.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MessageItem {
    pub entry_id: EntryId,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AgentMessage>")]
    pub message: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<CustomPayload>")]
    pub custom: Option<CustomItem>,
}

/// `CustomPayload` with its data as JSON text.
#[derive(Debug, Serialize)]
pub struct CustomItem {
    pub custom_type: String,
    pub data: Json,
}

impl From<Entry> for MessageItem {
    fn from(entry: Entry) -> MessageItem {
        let (message, custom) = match entry.body {
            Body::Message(message) => (Some(message.body), None),
            Body::Custom { custom_type, data } => (None, Some(CustomItem { custom_type, data })),
        };
        MessageItem { entry_id: entry.id, message, custom }
    }
}

impl Question for MessagesRequest {
    const ID: &'static str = "session::messages";
    const DESCRIPTION: &'static str = "Page through the path from the root to the active leaf (or a given entry), \
                                       oldest first.";
    type Response = MessagesResponse;

    fn query(self, limits: &Limits) -> Result<Query, Refusal> {
        let MessagesRequest { session_id, from_entry_id, roles, include_custom, cursor, limit } = self;
        checks::id("session_id", session_id.as_str())?;
        checks::optional_id("from_entry_id", from_entry_id.as_ref())?;
        checks::cursor(cursor.as_deref())?;
        let include_custom = include_custom.unwrap_or(false);
        let limit = limits.page(limit);
        Ok(Query::Messages(MessagesQuery { session_id, from_entry_id, roles, include_custom, cursor, limit }))
    }

    fn response(found: Found) -> Option<MessagesResponse> {
        let Found::Messages(page) = found else { return None };
        let messages = page.entries().cloned().map(MessageItem::from).collect();
        Some(MessagesResponse { messages, next_cursor: page.next_cursor })
    }

    fn print(found: Found) -> Option<Printed> {
        let Found::Messages(page) = found else { return None };
        Some(print::messages(&page))
    }
}
