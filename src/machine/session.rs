//! Owns: the session's metadata record and its status.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

use super::ids::SessionId;
use super::json::{JsonObject, Object, integer_beyond_64_bits};

/// Metadata is part of the session's record and compared with filters on every event.
pub const METADATA_BYTES_MAX: usize = 64 * 1024;

/// The status of a session. Clients display it unchanged.
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
    /// A short reason; only with status `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_reason: Option<String>,
    /// The number of messages in the tree. Custom entries do not count.
    pub message_count: u64,
    /// App-defined, for example a tenant. `session::list` and bindings can filter on it.
    #[serde(default, deserialize_with = "optional_metadata", skip_serializing_if = "Option::is_none")]
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

/// Why an object cannot be metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetadataError {
    TooLong {
        bytes: usize,
    },
    /// Metadata is compared by value, and its numbers are 64-bit integers or floats.
    IntegerTooLarge(String),
    Unreadable(String),
}

impl fmt::Display for MetadataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetadataError::TooLong { bytes } => {
                write!(f, "has {bytes} bytes, at most {METADATA_BYTES_MAX} are allowed")
            }
            MetadataError::IntegerTooLarge(number) => {
                write!(f, "has the integer {number}, which does not fit 64 bits: write it as a string")
            }
            MetadataError::Unreadable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for MetadataError {}

/// Parses metadata. Its size is checked before, because the parsed form takes many times the memory of the text.
pub fn metadata(text: &JsonObject) -> Result<Object, MetadataError> {
    let bytes = text.text().len();
    if bytes > METADATA_BYTES_MAX {
        return Err(MetadataError::TooLong { bytes });
    }
    if let Some(number) = integer_beyond_64_bits(text.text()) {
        return Err(MetadataError::IntegerTooLarge(number.chars().take(80).collect()));
    }
    serde_json::from_str(text.text()).map_err(|error| MetadataError::Unreadable(error.to_string()))
}

fn optional_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Object>, D::Error> {
    let text = Option::<JsonObject>::deserialize(deserializer)?;
    text.as_ref().map(metadata).transpose().map_err(de::Error::custom)
}
