//! Owns: `Profile`, what the model knows about a session beside its `SessionMeta`, and the forms in which clients read it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::access::AgentAccess;
use super::checkpoint::{Counted, Ended, Underway};
use super::source::Source;
use crate::machine::json::Object;
use crate::machine::toolpath::time;

/// The numbers of the model. A command carries those of the node it came through, so that all replicas use the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Turns after which a checkpoint is made; 0 for never.
    pub checkpoint_turns: u64,
    /// Messages without a turn after which a checkpoint is made; 0 for never.
    pub checkpoint_passive: u64,
    /// How long after a turn a checkpoint is made, if nothing comes; 0 for never.
    pub idle_ms: i64,
    /// Without activity for so long, a session becomes inactive; 0 for never.
    pub inactive_ms: i64,
    /// Whether every message of an owner in a group asks for a turn.
    pub group_owner_always: bool,
    pub access: AgentAccess,
}

impl Terms {
    pub const DEFAULT: Terms = Terms {
        checkpoint_turns: 5,
        checkpoint_passive: 20,
        idle_ms: 10 * 60 * 1000,
        inactive_ms: 3 * 24 * 60 * 60 * 1000,
        group_owner_always: true,
        access: AgentAccess::Public,
    };
}

impl Default for Terms {
    fn default() -> Terms {
        Terms::DEFAULT
    }
}

/// Where a description comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DescriptionSource {
    /// The first message.
    Fallback,
    /// A checkpoint, or a worker.
    Ai,
}

/// What a session is doing, in the words of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ModelStatus")]
pub enum Status {
    Idle,
    Running,
    AwaitingApproval,
    Inactive,
}

/// The record of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    pub agent_id: String,
    /// The id that clients use; the store has `<agent>/<session_id>`.
    pub session_id: String,
    pub source: Source,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_instruction: Option<String>,
    pub created_at: i64,
    pub last_activity_at: i64,
    pub status: Status,
    pub message_count: u64,
    pub completed_turn_count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description_source: Option<DescriptionSource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub metadata: Object,
    /// The last person who opened the session or wrote to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_user: Option<String>,
    /// What was counted; `counted.event_id` is the last event of the stream.
    pub counted: Counted,
    /// What the last successful checkpoint covered.
    #[serde(default)]
    pub cursor: Counted,
    /// The first event of the stream that is kept.
    pub oldest_event_id: u64,
    /// The size of the events that are kept.
    #[serde(default)]
    pub event_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underway: Option<Underway>,
    /// How the last checkpoint ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// The tools that the running turn has called, by call, until their results come.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub calls: BTreeMap<String, String>,
    /// Until when a person can decide about a tool call, by call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub asked_until: BTreeMap<String, i64>,
    /// When the idle checkpoint is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_due: Option<i64>,
    /// When somebody looks whether the session is still active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inactive_due: Option<i64>,
    pub terms: Terms,
}

impl Profile {
    /// The record of a session in which nothing has happened.
    pub fn new(agent_id: &str, session_id: &str, source: Source, created_at: i64, terms: Terms) -> Profile {
        Profile {
            agent_id: agent_id.to_owned(),
            session_id: session_id.to_owned(),
            source,
            custom_instruction: None,
            created_at,
            last_activity_at: created_at,
            status: Status::Idle,
            message_count: 0,
            completed_turn_count: 0,
            description: None,
            description_source: None,
            preview: None,
            metadata: Object::new(),
            current_user: None,
            counted: Counted::default(),
            cursor: Counted::default(),
            oldest_event_id: 1,
            event_bytes: 0,
            underway: None,
            ended: None,
            calls: BTreeMap::new(),
            asked_until: BTreeMap::new(),
            idle_due: None,
            inactive_due: None,
            terms,
        }
    }
}

/// A row of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub session_id: String,
    pub source: Source,
    pub created_at: String,
    pub last_activity_at: String,
    /// 0 if there is none.
    pub last_event_id: u64,
    pub message_count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_message_preview: Option<String>,
    pub status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// The people who take part. Only admins see them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_ids: Option<Vec<String>>,
}

impl Profile {
    pub fn summary(&self, user_ids: Option<Vec<String>>) -> Summary {
        Summary {
            session_id: self.session_id.clone(),
            source: self.source.clone(),
            created_at: time::print(self.created_at),
            last_activity_at: time::print(self.last_activity_at),
            last_event_id: self.counted.event_id,
            message_count: self.message_count,
            description: self.description.clone(),
            last_message_preview: self.preview.clone(),
            status: self.status,
            metadata: Some(self.metadata.clone()).filter(|metadata| !metadata.is_empty()),
            user_ids,
        }
    }

    /// Whether a turn is unfinished.
    pub fn is_busy(&self) -> bool {
        matches!(self.status, Status::Running | Status::AwaitingApproval)
    }
}
