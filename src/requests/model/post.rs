//! `session::post`: stores a message and asks for a turn where the routing says so.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CallerRequest, address, answered, propose};
use crate::machine::model::ModelCommand;
use crate::machine::model::command::Mode;
use crate::machine::model::source::Posted;
use crate::machine::refusal::Refusal;
use crate::machine::toolpath::time;
use crate::machine::{Answer, Command};
use crate::requests::limits::{BODY_BYTES_MAX, ORIGIN_BYTES_MAX};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct PostRequest {
    /// The agent that the session belongs to.
    pub agent_id: String,
    pub session_id: String,
    pub message: Posted,
    /// `append` only stores the message.
    #[serde(default)]
    pub mode: Mode,
    pub caller: Option<CallerRequest>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct PostResponse {
    pub message_id: String,
    pub entry_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<String>,
    pub triggered: bool,
    /// The message was stored before. Nothing was written.
    pub deduped: bool,
}

impl Mutation for PostRequest {
    const ID: &'static str = "session::post";
    const DESCRIPTION: &'static str =
        "Post a message: it is stored, streamed, and asks for a turn where the routing of its session says so.";
    type Response = PostResponse;

    fn command(self, limits: &Limits) -> Result<Command, Refusal> {
        let PostRequest { agent_id, session_id, message, mode, caller } = self;
        let at = address(agent_id, session_id, caller, limits)?;
        check(&message)?;
        Ok(propose(ModelCommand::Post { at, message: Box::new(message), mode }))
    }

    fn response(answer: Answer) -> Option<PostResponse> {
        answered(answer)?.parse().ok()
    }
}

fn check(message: &Posted) -> Result<(), Refusal> {
    if let Some(message_id) = &message.message_id {
        checks::new_id("message.messageId", message_id)?;
        checks::id("message.messageId with its prefix", &format!("m:{message_id}"))?;
    }
    if let Some(sender) = &message.sender {
        checks::new_id("message.sender.channel", &sender.channel)?;
        checks::new_id("message.sender.channelUserId", &sender.channel_user_id)?;
        checks::text("message.sender.displayName", sender.display_name.as_deref())?;
    }
    if message.occurred_at.as_deref().is_some_and(|text| time::parse(text).is_none()) {
        return Err(checks::invalid("message.occurredAt: give a time such as 2026-01-29T10:00:00.000Z"));
    }
    let attached: usize = message.attachments.iter().flatten().map(bytes).sum();
    let bytes = message.text.len().saturating_add(attached);
    if bytes > BODY_BYTES_MAX {
        let why = format!("message: text and attachments have {bytes} bytes, at most {BODY_BYTES_MAX} are allowed");
        return Err(checks::invalid(why));
    }
    let about = [
        ("message.metadata", message.metadata.as_ref().map(printed)),
        ("message.participants", message.participants.as_ref().map(printed)),
    ];
    for (field, bytes) in about {
        if let Some(bytes) = bytes.filter(|bytes| *bytes > ORIGIN_BYTES_MAX) {
            return Err(checks::invalid(format!("{field} has {bytes} bytes, at most {ORIGIN_BYTES_MAX} are allowed")));
        }
    }
    Ok(())
}

fn bytes(attachment: &crate::machine::model::source::Attachment) -> usize {
    printed(attachment)
}

fn printed<T: Serialize>(value: &T) -> usize {
    serde_json::to_string(value).map_or(usize::MAX, |text| text.len())
}
