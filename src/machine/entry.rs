//! Owns: the entry, one node of a session's tree, and its spelling in the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ids::EntryId;
use super::json::{Json, Object};
use super::message::{AgentMessage, Message};

/// Bookkeeping data of a custom entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CustomPayload {
    /// App-defined discriminator, such as `compaction`.
    pub custom_type: String,
    #[serde(default)]
    pub data: Value,
}

/// What an entry holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Part of the transcript.
    Message(Message),
    /// Bookkeeping: not counted, listed only on request. `data` is JSON text.
    Custom { custom_type: String, data: Json },
}

/// Where an entry stands: how deep below its root, and a shortcut to an ancestor.
///
/// The shortcuts are skew-binary jump pointers: with one extra pointer per entry any ancestor is found in
/// O(log depth) steps (see `path.rs`). An entry whose ancestors are not all known (raw writes may do that) has no
/// place, and paths through it are walked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// 0 for a root.
    pub depth: u64,
    /// The ancestor this entry points to; itself for a root.
    pub jump: EntryId,
    /// The depth of `jump`.
    pub jump_depth: u64,
}

/// One node of the tree. Id, parent, timestamp and kind never change; content and revision may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub id: EntryId,
    pub parent_id: Option<EntryId>,
    pub timestamp: i64,
    pub revision: u64,
    /// Opaque correlation, echoed on events.
    pub origin: Option<Json>,
    pub body: Body,
    pub place: Option<Place>,
}

impl Body {
    /// The length of its text.
    pub fn bytes(&self) -> usize {
        match self {
            Body::Message(message) => message.body.text().len(),
            Body::Custom { custom_type, data } => custom_type.len() + data.text().len(),
        }
    }
}

impl Entry {
    pub fn is_message(&self) -> bool {
        matches!(self.body, Body::Message(_))
    }
}

/// An entry as the API spells it (`session::get-message`, the raw store protocol, JSONL files).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SessionEntry {
    Message {
        id: EntryId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent_id: Option<EntryId>,
        timestamp: i64,
        #[serde(default)]
        revision: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        origin: Option<Object>,
        message: AgentMessage,
    },
    Custom {
        id: EntryId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent_id: Option<EntryId>,
        timestamp: i64,
        #[serde(default)]
        revision: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        origin: Option<Object>,
        custom_type: String,
        #[serde(default)]
        data: Value,
    },
}

impl From<SessionEntry> for Entry {
    /// The spelled entry without a place: the machine finds that when it stores the entry.
    fn from(spelled: SessionEntry) -> Entry {
        match spelled {
            SessionEntry::Message { id, parent_id, timestamp, revision, origin, message } => Entry {
                id,
                parent_id,
                timestamp,
                revision,
                origin: origin.as_ref().map(Json::print),
                body: Body::Message(Message::new(&message)),
                place: None,
            },
            SessionEntry::Custom { id, parent_id, timestamp, revision, origin, custom_type, data } => Entry {
                id,
                parent_id,
                timestamp,
                revision,
                origin: origin.as_ref().map(Json::print),
                body: Body::Custom { custom_type, data: Json::print(&data) },
                place: None,
            },
        }
    }
}

/// Prints an entry in the API's spelling without parsing its bodies.
impl Serialize for Entry {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(None)?;
        match &self.body {
            Body::Message(message) => {
                map.serialize_entry("kind", "message")?;
                map.serialize_entry("message", &message.body)?;
            }
            Body::Custom { custom_type, data } => {
                map.serialize_entry("kind", "custom")?;
                map.serialize_entry("custom_type", custom_type)?;
                map.serialize_entry("data", data)?;
            }
        }
        map.serialize_entry("id", &self.id)?;
        if let Some(parent_id) = &self.parent_id {
            map.serialize_entry("parent_id", parent_id)?;
        }
        map.serialize_entry("timestamp", &self.timestamp)?;
        map.serialize_entry("revision", &self.revision)?;
        if let Some(origin) = &self.origin {
            map.serialize_entry("origin", origin)?;
        }
        map.end()
    }
}
