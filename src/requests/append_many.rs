//! `session::append-many`: several messages in one step, all or none.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Mutation, checks};
use crate::machine::apply::append_many::AppendMany;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Object;
use crate::machine::message::{AgentMessage, Message};
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct AppendManyRequest {
    pub session_id: SessionId,
    /// In order, each hung below the one before. A repeat appends again: use `session::append` with an entry_id
    /// where a call may arrive twice.
    pub messages: Vec<AgentMessage>,
    /// The entry the first message hangs below; the active leaf when left out.
    pub parent_id: Option<EntryId>,
    /// Correlation of the writer's, kept with each entry and told on its events.
    pub origin: Option<Object>,
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
        let origin = checks::origin("origin", origin.as_ref())?;
        if messages.is_empty() {
            return Err(Refusal::EmptyBatch);
        }
        checks::batch("messages", messages.len())?;
        let mut batch: Vec<Message> = Vec::with_capacity(messages.len());
        let mut bytes = 0;
        for (at, message) in messages.iter().enumerate() {
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
