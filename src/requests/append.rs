//! `session::append`: adds one entry, a message or a custom entry.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::client_message::ClientMessage;
use super::{Limits, Mutation, checks};
use crate::machine::apply::append::AppendEntry;
use crate::machine::entry::{Body, CustomPayload};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::JsonObject;
use crate::machine::message::AgentMessage;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct AppendRequest {
    pub session_id: SessionId,
    /// The message to append. Give this or `custom`, not both.
    #[schemars(with = "Option<AgentMessage>")]
    pub message: Option<ClientMessage>,
    /// A custom entry. It is not counted as a message and listed only with `include_custom`.
    pub custom: Option<CustomPayload>,
    /// An id chosen by the caller. It makes retries safe: a second append with the same id changes nothing.
    pub entry_id: Option<EntryId>,
    /// The parent of the new entry; by default the active leaf.
    pub parent_id: Option<EntryId>,
    /// Correlation data of the writer, stored with the entry and included in its events.
    pub origin: Option<JsonObject>,
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
                                       a retry with the same entry_id changes nothing. Fires session::message-added.";
    type Response = AppendResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let AppendRequest { session_id, message, custom, entry_id, parent_id, origin } = self;
        checks::id("session_id", session_id.as_str())?;
        if let Some(entry_id) = &entry_id {
            checks::new_id("entry_id", entry_id.as_str())?;
        }
        checks::optional_id("parent_id", parent_id.as_ref())?;
        let origin = checks::origin("origin", origin)?;
        let body = match (message, custom) {
            (Some(message), None) => Body::Message(checks::message("message", message)?),
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
