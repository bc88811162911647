//! Owns: where a session comes from and what its client says about it: source, type, the terms it opens a session with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::json::Object;

/// Whether a session belongs to one person or to a channel with several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionType {
    #[default]
    Direct,
    Group,
}

/// Where a session comes from. It never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// `cli`, `api`, `channel`, `schedule`, or a word of the client.
    pub kind: String,
    /// Whether a person waits for the reply.
    pub interactive: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_id: Option<String>,
    /// `direct` when absent.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub session_type: Option<SessionType>,
}

impl Source {
    pub fn session_type(&self) -> SessionType {
        self.session_type.unwrap_or_default()
    }

    pub fn is_group(&self) -> bool {
        self.session_type() == SessionType::Group
    }
}

/// Who wrote a message, in the words of the channel it came through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sender {
    pub channel: String,
    pub channel_user_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

/// A file that came with a message. Nothing is fetched: a URL stays a URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// Who an appended message is by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    #[default]
    User,
    Assistant,
}

/// A message as a client of the model posts it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Posted {
    pub text: String,
    /// Minted when absent. A known one is not stored again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachments: Option<Vec<Attachment>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<Sender>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// Whether the agent was addressed; true when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mentioned: Option<bool>,
    /// Who else is in the conversation, for the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub participants: Option<Vec<serde_json::Value>>,
    /// Only with append.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append_as: Option<Author>,
    /// Only with append: when it was written, RFC 3339. It does not change the place of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occurred_at: Option<String>,
}

impl Posted {
    pub fn is_mentioned(&self) -> bool {
        self.mentioned.unwrap_or(true)
    }
}
