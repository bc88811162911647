//! Owns: the entry, one node of a session's tree, and its JSON form in the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ids::EntryId;
use super::json::{Json, JsonObject};
use super::message::{AgentMessage, Message};
use super::tagged::tagged;

/// The data of a custom entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CustomPayload {
    /// App-defined discriminator, such as `compaction`.
    pub custom_type: String,
    #[serde(default)]
    pub data: Json,
}

/// The content of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Part of the transcript.
    Message(Message),
    /// App data beside the transcript: not counted, listed only on request. `data` is JSON text.
    Custom { custom_type: String, data: Json },
}

/// The position of an entry in its tree: its depth, and a pointer to an ancestor.
///
/// The pointers are skew-binary jump pointers: with one pointer per entry any ancestor is found in O(log depth) steps
/// (see `path.rs`). Raw writes may store an entry before its ancestors. Such an entry has no place, and reading a path
/// through it visits every ancestor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// 0 for a root.
    pub depth: u64,
    /// The ancestor that this entry points to; the entry itself for a root.
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
    /// Opaque data of the caller, echoed on events.
    pub origin: Option<Json>,
    pub body: Body,
    pub place: Option<Place>,
}

impl Body {
    /// The length of the text in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Body::Message(message) => message.body.text().len(),
            Body::Custom { custom_type, data } => custom_type.len() + data.text().len(),
        }
    }
}

impl Body {
    /// Cuts every string after this many characters, for lists and previews.
    pub fn shorten(&mut self, chars_max: usize) {
        match self {
            Body::Message(message) => message.body = message.body.shortened(chars_max),
            Body::Custom { data, .. } => *data = data.shortened(chars_max),
        }
    }
}

impl Entry {
    pub fn is_message(&self) -> bool {
        matches!(self.body, Body::Message(_))
    }

    /// Reads the JSON form of an entry. The message keeps its spelling if its text says what the store would print:
    /// the same fields with the same values, in any order.
    pub fn parse(text: &str) -> Result<Entry, serde_json::Error> {
        let mut entry = Entry::from(serde_json::from_str::<SessionEntry>(text)?);
        let whole = Json::adopt(text);
        if let (Body::Message(message), Some(own)) = (&mut entry.body, whole.field("message")) {
            // A line break between two fields would break formats with one record per line.
            let is_one_line = own.bytes().all(|byte| byte >= b' ');
            let own = Json::adopt(own);
            if own != message.body && is_one_line && own.value() == message.body.value() {
                message.body = own;
            }
        }
        Ok(entry)
    }

    /// Its JSON form as text. The parts that are stored as text keep their spelling.
    pub fn json_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| "null".to_owned())
    }
}

tagged! {
    /// The JSON form of an entry (`session::get-message`, the raw store protocol, JSONL files).
    // The common fields are in both variants: a flattened struct would change the published JSON schema.
    #[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    pub enum SessionEntry by kind {
        Message {
            id: EntryId,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            parent_id: Option<EntryId>,
            timestamp: i64,
            #[serde(default)]
            revision: u64,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            origin: Option<JsonObject>,
            message: AgentMessage,
        }
        Custom {
            id: EntryId,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            parent_id: Option<EntryId>,
            timestamp: i64,
            #[serde(default)]
            revision: u64,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            origin: Option<JsonObject>,
            custom_type: String,
            #[serde(default)]
            data: Json,
        }
    }
}

impl From<SessionEntry> for Entry {
    /// The entry without a place. The machine computes the place when it stores the entry.
    fn from(json: SessionEntry) -> Entry {
        match json {
            SessionEntry::Message { id, parent_id, timestamp, revision, origin, message } => Entry {
                id,
                parent_id,
                timestamp,
                revision,
                origin: origin.map(JsonObject::into_json),
                body: Body::Message(Message::new(message)),
                place: None,
            },
            SessionEntry::Custom { id, parent_id, timestamp, revision, origin, custom_type, data } => Entry {
                id,
                parent_id,
                timestamp,
                revision,
                origin: origin.map(JsonObject::into_json),
                body: Body::Custom { custom_type, data },
                place: None,
            },
        }
    }
}

/// Writes the JSON form of an entry without parsing its body.
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
