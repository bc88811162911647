//! Owns: the transcript message union, as the API spells it, and `Message`, the form the store carries.
//! Never: anything about sessions. A message does not know where it stands.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json::Json;

/// Who speaks in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    User,
    Assistant,
    FunctionResult,
    Custom,
}

/// Why an assistant message stopped growing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    End,
    Length,
    FunctionCall,
    Aborted,
    Error,
}

/// What kind of failure a failed assistant message reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    AuthExpired,
    RateLimited,
    ContextOverflow,
    Transient,
    Permanent,
}

/// Tokens and cost, as the provider reported them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

/// One block of a message's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    Text {
        text: String,
    },
    Image {
        /// Base64.
        data: String,
        mime: String,
    },
    Thinking {
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
    },
    FunctionCall {
        /// Unique per call; the result echoes it.
        id: String,
        function_id: String,
        #[serde(default)]
        arguments: Value,
    },
    FunctionResult {
        function_call_id: String,
        content: Vec<ContentBlock>,
        #[serde(skip_serializing_if = "Option::is_none")]
        is_error: Option<bool>,
    },
}

/// A transcript message, told apart by `role`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum AgentMessage {
    User {
        content: Vec<ContentBlock>,
        /// Milliseconds since the epoch.
        timestamp: i64,
    },
    Assistant {
        content: Vec<ContentBlock>,
        stop_reason: StopReason,
        /// The provider's own word for why it stopped.
        #[serde(skip_serializing_if = "Option::is_none")]
        native_stop_reason: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error_message: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error_kind: Option<ErrorKind>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        #[serde(skip_serializing_if = "Option::is_none")]
        warnings: Option<Vec<String>>,
        model: String,
        provider: String,
        timestamp: i64,
    },
    FunctionResult {
        function_call_id: String,
        function_id: String,
        content: Vec<ContentBlock>,
        #[serde(default)]
        details: Value,
        #[serde(default)]
        is_error: bool,
        timestamp: i64,
    },
    /// The way out for app-specific transcript items.
    Custom {
        custom_type: String,
        content: Vec<ContentBlock>,
        #[serde(skip_serializing_if = "Option::is_none")]
        display: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        details: Option<Value>,
        timestamp: i64,
    },
}

impl AgentMessage {
    pub fn role(&self) -> Role {
        match self {
            AgentMessage::User { .. } => Role::User,
            AgentMessage::Assistant { .. } => Role::Assistant,
            AgentMessage::FunctionResult { .. } => Role::FunctionResult,
            AgentMessage::Custom { .. } => Role::Custom,
        }
    }
}

/// A message as the store carries it: its text, and the one field the machine looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub body: Json,
}

impl Message {
    pub fn new(message: &AgentMessage) -> Message {
        Message { role: message.role(), body: Json::print(message) }
    }

    /// The message's content blocks as JSON text, the base that patches of it start from.
    pub fn content_text(&self) -> Option<String> {
        let message: AgentMessage = self.body.parse().ok()?;
        let (AgentMessage::User { content, .. }
        | AgentMessage::Assistant { content, .. }
        | AgentMessage::FunctionResult { content, .. }
        | AgentMessage::Custom { content, .. }) = message;
        Some(Json::print(&content).text().to_owned())
    }

    /// The same message with other content and, where given, other details.
    /// `None`: this role has no details, or the body is not a message (raw writes are checked, so it is).
    pub fn with_content(&self, content: Vec<ContentBlock>, details: Option<Value>) -> Option<Message> {
        let mut message: AgentMessage = self.body.parse().ok()?;
        match &mut message {
            AgentMessage::User { content: old, .. } | AgentMessage::Assistant { content: old, .. } => {
                *old = content;
                if details.is_some() {
                    return None;
                }
            }
            AgentMessage::FunctionResult { content: old, details: old_details, .. } => {
                *old = content;
                if let Some(details) = details {
                    *old_details = details;
                }
            }
            AgentMessage::Custom { content: old, details: old_details, .. } => {
                *old = content;
                if let Some(details) = details {
                    *old_details = Some(details);
                }
            }
        }
        Some(Message::new(&message))
    }
}
