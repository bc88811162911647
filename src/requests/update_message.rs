//! `session::update-message`: replaces the content of a message, for example while a reply streams in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Mutation, checks};
use crate::machine::apply::update_message::{NewContent, UpdateMessage};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::{Json, JsonObject, List};
use crate::machine::message::ContentBlock;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct UpdateMessageRequest {
    pub session_id: SessionId,
    pub entry_id: EntryId,
    /// The new content. It replaces the whole old content.
    pub content: List<ContentBlock>,
    /// The new `details`; only function_result and custom messages have them.
    pub details: Option<Json>,
    /// Write only if the entry has this revision. Otherwise nothing changes and the response has the current revision.
    pub expected_revision: Option<u64>,
    /// Correlation data of the writer, included in the event.
    pub origin: Option<JsonObject>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct UpdateMessageResponse {
    pub updated: bool,
    /// The current revision of the entry.
    pub revision: u64,
}

impl Mutation for UpdateMessageRequest {
    const ID: &'static str = "session::update-message";
    const DESCRIPTION: &'static str = "Replace a message's content and increment its revision, if expected_revision \
                                       matches; fires session::message-updated with the full message.";
    type Response = UpdateMessageResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let UpdateMessageRequest { session_id, entry_id, content, details, expected_revision, origin } = self;
        checks::id("session_id", session_id.as_str())?;
        checks::id("entry_id", entry_id.as_str())?;
        let content = NewContent::Full(checks::body("content", content.into_json())?);
        let details = details.map(|details| checks::body("details", details)).transpose()?;
        let origin = checks::origin("origin", origin)?;
        let command = UpdateMessage { session_id, entry_id, content, details, expected_revision, origin };
        Ok(Command::UpdateMessage(command))
    }

    fn response(answer: Answer) -> Option<UpdateMessageResponse> {
        let Answer::Updated { updated, revision } = answer else { return None };
        Some(UpdateMessageResponse { updated, revision })
    }
}
