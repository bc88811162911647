//! Owns: the commands of the session model, as they are in the log.
//! Never: what a command does. Each has a file of its own.

use serde::{Deserialize, Serialize};

use super::access::{Caller, Role};
use super::checkpoint::Reason;
use super::profile::Terms;
use super::scene::Asked;
use super::source::{Posted, Source};
use super::{checkpoints, identity, manage, open, overdue, post};
use crate::machine::command::Outcome;
use crate::machine::json::Object;
use crate::machine::refusal::Failure;
use crate::machine::stamp::Stamp;
use crate::machine::turn::due::Due;
use crate::machine::view::View;

/// The session that a command is about, and who asks. `terms` are the numbers of the node that the call came through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Address {
    pub agent_id: String,
    pub session_id: String,
    pub caller: Caller,
    pub terms: Terms,
}

impl Address {
    pub fn asked(&self) -> Asked<'_> {
        Asked { agent_id: &self.agent_id, session_id: &self.session_id, caller: &self.caller, terms: &self.terms }
    }
}

/// Whether a posted message may ask for a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "PostMode")]
pub enum Mode {
    #[default]
    Post,
    /// Only store it.
    Append,
}

/// A change of the session model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelCommand {
    Open {
        at: Address,
        source: Source,
        metadata: Object,
        custom_instruction: Option<String>,
    },
    Post {
        at: Address,
        message: Box<Posted>,
        mode: Mode,
    },
    Approve {
        at: Address,
        tool_call_id: String,
        approved: bool,
    },
    Checkpoint {
        at: Address,
        reason: Reason,
    },
    ClaimCheckpoint {
        checkpoint_id: String,
        driver_id: String,
    },
    EndCheckpoint {
        checkpoint_id: String,
        success: bool,
        summary: Option<String>,
        working_memory: Option<String>,
        description: Option<String>,
    },
    Describe {
        at: Address,
        description: String,
    },
    Remember {
        at: Address,
        working_memory: String,
    },
    Deactivate {
        at: Address,
    },
    Delete {
        at: Address,
    },
    Link {
        channel: String,
        channel_user_id: String,
        user_id: Option<String>,
    },
    Unlink {
        channel: String,
        channel_user_id: String,
    },
    Merge {
        user_id: String,
        into: String,
    },
    SetRole {
        agent_id: String,
        user_id: String,
        /// `None` takes the role away.
        role: Option<Role>,
    },
    SetChannelToken {
        agent_id: String,
        namespace: String,
        /// The digest of the token; `None` takes the token away. A token itself is never in the log.
        digest: Option<String>,
    },
    /// A time is over. Void if the session has another one by now.
    Due(Due),
}

impl ModelCommand {
    /// The name of the command, for logs and traces.
    pub fn name(&self) -> &'static str {
        match self {
            ModelCommand::Open { .. } => "model open",
            ModelCommand::Post { .. } => "model post",
            ModelCommand::Approve { .. } => "model approve",
            ModelCommand::Checkpoint { .. } => "model checkpoint",
            ModelCommand::ClaimCheckpoint { .. } => "model claim-checkpoint",
            ModelCommand::EndCheckpoint { .. } => "model end-checkpoint",
            ModelCommand::Describe { .. } => "model describe",
            ModelCommand::Remember { .. } => "model remember",
            ModelCommand::Deactivate { .. } => "model deactivate",
            ModelCommand::Delete { .. } => "model delete",
            ModelCommand::Link { .. } => "model link",
            ModelCommand::Unlink { .. } => "model unlink",
            ModelCommand::Merge { .. } => "model merge",
            ModelCommand::SetRole { .. } => "model set-role",
            ModelCommand::SetChannelToken { .. } => "model set-channel-token",
            ModelCommand::Due(_) => "model due",
        }
    }
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &ModelCommand) -> Result<Outcome, Failure> {
    match command {
        ModelCommand::Open { at, source, metadata, custom_instruction } => {
            open::apply(view, stamp, &at.asked(), source, metadata, custom_instruction.as_deref())
        }
        ModelCommand::Post { at, message, mode } => post::apply(view, stamp, &at.asked(), message, *mode),
        ModelCommand::Approve { at, tool_call_id, approved } => {
            manage::approve(view, stamp, &at.asked(), tool_call_id, *approved)
        }
        ModelCommand::Checkpoint { at, reason } => checkpoints::ask(view, stamp, &at.asked(), *reason),
        ModelCommand::ClaimCheckpoint { checkpoint_id, driver_id } => {
            checkpoints::claim(view, stamp, checkpoint_id, driver_id)
        }
        ModelCommand::EndCheckpoint { checkpoint_id, success, summary, working_memory, description } => {
            let learned = checkpoints::Learned {
                success: *success,
                summary: summary.as_deref(),
                working_memory: working_memory.as_deref(),
                description: description.as_deref(),
            };
            checkpoints::end(view, stamp, checkpoint_id, &learned)
        }
        ModelCommand::Describe { at, description } => manage::describe(view, stamp, &at.asked(), description),
        ModelCommand::Remember { at, working_memory } => manage::remember(view, stamp, &at.asked(), working_memory),
        ModelCommand::Deactivate { at } => manage::deactivate(view, stamp, &at.asked()),
        ModelCommand::Delete { at } => manage::delete(view, stamp, &at.asked()),
        ModelCommand::Link { channel, channel_user_id, user_id } => {
            identity::link(view, stamp, channel, channel_user_id, user_id.as_deref())
        }
        ModelCommand::Unlink { channel, channel_user_id } => identity::unlink(view, stamp, channel, channel_user_id),
        ModelCommand::Merge { user_id, into } => identity::merge(view, stamp, user_id, into),
        ModelCommand::SetRole { agent_id, user_id, role } => identity::set_role(view, stamp, agent_id, user_id, *role),
        ModelCommand::SetChannelToken { agent_id, namespace, digest } => {
            identity::set_channel_token(view, stamp, agent_id, namespace, digest.as_deref())
        }
        ModelCommand::Due(due) => overdue::fire(view, stamp, due),
    }
}
