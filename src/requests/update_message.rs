//! `session::update-message`: other content for a message, as a reply streams in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Limits, Mutation, checks};
use crate::machine::apply::update_message::{NewContent, UpdateMessage};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Object;
use crate::machine::message::ContentBlock;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct UpdateMessageRequest {
    pub session_id: SessionId,
    pub entry_id: EntryId,
    /// Takes the place of the whole content.
    pub content: Vec<ContentBlock>,
    /// Takes the place of `details`; only function_result and custom messages have them.
    pub details: Option<Value>,
    /// Write only when the entry's revision is this one; otherwise say what it is.
    pub expected_revision: Option<u64>,
    /// Correlation of the writer's, told on the event.
    pub origin: Option<Object>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct UpdateMessageResponse {
    pub updated: bool,
    /// The revision the entry has now.
    pub revision: u64,
}

impl Mutation for UpdateMessageRequest {
    const ID: &'static str = "session::update-message";
    const DESCRIPTION: &'static str = "Replace a message's content and count its revision up, guarded by expected_revision where given; fires \
         session::message-updated with the full message.";
    type Response = UpdateMessageResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let UpdateMessageRequest { session_id, entry_id, content, details, expected_revision, origin } = self;
        checks::id("session_id", session_id.as_str())?;
        checks::id("entry_id", entry_id.as_str())?;
        let content = NewContent::Full(checks::body("content", &content)?);
        let details = details.as_ref().map(|details| checks::body("details", details)).transpose()?;
        let origin = checks::origin("origin", origin.as_ref())?;
        let command = UpdateMessage { session_id, entry_id, content, details, expected_revision, origin };
        Ok(Command::UpdateMessage(command))
    }

    fn response(answer: Answer) -> Option<UpdateMessageResponse> {
        let Answer::Updated { updated, revision } = answer else { return None };
        Some(UpdateMessageResponse { updated, revision })
    }
}
