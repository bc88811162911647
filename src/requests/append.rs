//! `session::append`: one more entry, a message or bookkeeping.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Mutation, checks};
use crate::machine::apply::append::AppendEntry;
use crate::machine::entry::{Body, CustomPayload};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Object;
use crate::machine::message::AgentMessage;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct AppendRequest {
    pub session_id: SessionId,
    /// A message of the transcript. Give this or `custom`, not both.
    pub message: Option<AgentMessage>,
    /// Bookkeeping beside the transcript: not counted, listed only with `include_custom`.
    pub custom: Option<CustomPayload>,
    /// An id of the caller's makes the append safe to repeat: the second one changes nothing.
    pub entry_id: Option<EntryId>,
    /// The entry to hang below; the active leaf when left out.
    pub parent_id: Option<EntryId>,
    /// Correlation of the writer's, kept with the entry and told on its events.
    pub origin: Option<Object>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct AppendResponse {
    pub entry_id: EntryId,
    pub parent_id: Option<EntryId>,
    pub timestamp: i64,
}

impl Mutation for AppendRequest {
    const ID: &'static str = "session::append";
    const DESCRIPTION: &'static str = "Add one entry below the active leaf (or a given parent) and make it the leaf; \
                                       repeating an entry_id changes nothing. Fires session::message-added.";
    type Response = AppendResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let AppendRequest { session_id, message, custom, entry_id, parent_id, origin } = self;
        checks::id("session_id", session_id.as_str())?;
        if let Some(entry_id) = &entry_id {
            checks::new_id("entry_id", entry_id.as_str())?;
        }
        checks::optional_id("parent_id", parent_id.as_ref())?;
        let origin = checks::origin("origin", origin.as_ref())?;
        let body = match (message, custom) {
            (Some(message), None) => Body::Message(checks::message("message", &message)?),
            (None, Some(custom)) => checks::custom("custom", custom)?,
            (Some(_), Some(_)) => {
                return Err(checks::invalid(
                    "message and custom are both given: an entry is one of them, leave one out",
                ));
            }
            (None, None) => {
                return Err(checks::invalid("neither message nor custom is given: give exactly one of them"));
            }
        };
        Ok(Command::Append(AppendEntry { session_id, entry_id, parent_id, origin, body }))
    }

    fn response(answer: Answer) -> Option<AppendResponse> {
        let Answer::Appended { entry_id, parent_id, timestamp } = answer else { return None };
        Some(AppendResponse { entry_id, parent_id, timestamp })
    }
}
