//! `session::append-many`: adds several messages atomically.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::body::Batch;
use super::client_message::ClientMessage;
use super::{Limits, Mutation, checks};
use crate::machine::apply::append_many::AppendMany;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::JsonObject;
use crate::machine::message::{AgentMessage, Message};
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct AppendManyRequest {
    pub session_id: SessionId,
    /// The messages, each the child of the one before. A retry appends them again; for calls that may be retried use
    /// `session::append` with an entry_id.
    #[schemars(with = "Vec<AgentMessage>")]
    pub messages: Batch<ClientMessage>,
    /// The parent of the first message; by default the active leaf.
    pub parent_id: Option<EntryId>,
    /// Correlation data of the writer, stored with each entry and included in its events.
    pub origin: Option<JsonObject>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct AppendManyResponse {
    pub entry_ids: Vec<EntryId>,
    pub last_entry_id: EntryId,
}

impl Mutation for AppendManyRequest {
    const ID: &'static str = "session::append-many";
    const DESCRIPTION: &'static str =
        "Add several messages as one chain, all or none; fires session::message-added for each, in order.";
    type Response = AppendManyResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let AppendManyRequest { session_id, messages, parent_id, origin } = self;
        checks::id("session_id", session_id.as_str())?;
        checks::optional_id("parent_id", parent_id.as_ref())?;
        let origin = checks::origin("origin", origin)?;
        let messages = messages.items("messages")?;
        if messages.is_empty() {
            return Err(Refusal::EmptyBatch);
        }
        let mut batch: Vec<Message> = Vec::with_capacity(messages.len());
        let mut bytes = 0;
        for (at, message) in messages.into_iter().enumerate() {
            let message = checks::message(&format!("messages[{at}]"), message)?;
            bytes += message.body.text().len();
            checks::batch_bytes("messages", bytes)?;
            batch.push(message);
        }
        Ok(Command::AppendMany(AppendMany { session_id, parent_id, origin, messages: batch }))
    }

    fn response(answer: Answer) -> Option<AppendManyResponse> {
        let Answer::AppendedMany { entry_ids } = answer else { return None };
        let last_entry_id = entry_ids.last()?.clone();
        Some(AppendManyResponse { entry_ids, last_entry_id })
    }
}
