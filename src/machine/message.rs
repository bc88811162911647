//! Owns: `AgentMessage`, the JSON form of transcript messages in the API, and `Message`, the form in the store.
//! Never: anything about sessions or trees.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::json::{Json, List};
use super::tagged::tagged;

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    User,
    Assistant,
    FunctionResult,
    Custom,
}

/// Why the model stopped generating an assistant message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    End,
    Length,
    FunctionCall,
    Aborted,
    Error,
}

impl StopReason {
    /// As JSON spells it.
    pub fn name(self) -> &'static str {
        match self {
            StopReason::End => "end",
            StopReason::Length => "length",
            StopReason::FunctionCall => "function_call",
            StopReason::Aborted => "aborted",
            StopReason::Error => "error",
        }
    }
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

tagged! {
    /// One block of a message's content.
    #[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
    #[serde(tag = "type", rename_all = "snake_case")]
    pub enum ContentBlock by type {
        Text {
            text: String,
        }
        Image {
            /// Base64.
            data: String,
            mime: String,
        }
        Thinking {
            text: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            signature: Option<String>,
        }
        FunctionCall {
            /// Unique per call; the result echoes it.
            id: String,
            function_id: String,
            #[serde(default)]
            arguments: Json,
        }
        FunctionResult {
            function_call_id: String,
            content: List<ContentBlock>,
            #[serde(skip_serializing_if = "Option::is_none")]
            is_error: Option<bool>,
        }
    }
}

tagged! {
    /// A transcript message. `role` selects the variant.
    #[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
    #[serde(tag = "role", rename_all = "snake_case")]
    pub enum AgentMessage by role {
        User {
            content: List<ContentBlock>,
            /// Milliseconds since the epoch.
            timestamp: i64,
        }
        Assistant {
            content: List<ContentBlock>,
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
            warnings: Option<List<String>>,
            model: String,
            provider: String,
            timestamp: i64,
        }
        FunctionResult {
            function_call_id: String,
            function_id: String,
            content: List<ContentBlock>,
            #[serde(default)]
            details: Json,
            #[serde(default)]
            is_error: bool,
            timestamp: i64,
        }
        /// App-specific transcript items.
        Custom {
            custom_type: String,
            content: List<ContentBlock>,
            #[serde(skip_serializing_if = "Option::is_none")]
            display: Option<String>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            details: Option<Json>,
            timestamp: i64,
        }
    }
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

    /// About how long its JSON text is, to allocate it once.
    fn about_bytes(&self) -> usize {
        const FIELDS_BYTES: usize = 512;
        FIELDS_BYTES
            + match self {
                AgentMessage::User { content, .. } | AgentMessage::Assistant { content, .. } => content.text().len(),
                AgentMessage::FunctionResult { content, details, .. } => content.text().len() + details.text().len(),
                AgentMessage::Custom { content, details, .. } => {
                    content.text().len() + details.as_ref().map_or(0, |details| details.text().len())
                }
            }
    }
}

/// A message as the store keeps it: its JSON text, and the only field that the machine reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub body: Json,
}

impl Message {
    pub fn new(message: AgentMessage) -> Message {
        let role = message.role();
        let bytes = message.about_bytes();
        Message { role, body: Json::print_owned(message, bytes) }
    }

    /// The message's content blocks as JSON text: the base of patches.
    pub fn content(&self) -> Option<List<ContentBlock>> {
        let message: AgentMessage = self.body.parse().ok()?;
        let (AgentMessage::User { content, .. }
        | AgentMessage::Assistant { content, .. }
        | AgentMessage::FunctionResult { content, .. }
        | AgentMessage::Custom { content, .. }) = message;
        Some(content)
    }

    /// The same message with other content and, if given, other details.
    /// `None` if this role has no details, or if the stored text is not a message.
    pub fn with_content(&self, content: List<ContentBlock>, details: Option<Json>) -> Option<Message> {
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
        Some(Message::new(message))
    }
}
