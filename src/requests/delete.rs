//! `session::delete`: removes a session with all its entries.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Mutation, checks};
use crate::machine::apply::delete::DeleteSession;
use crate::machine::ids::SessionId;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct DeleteRequest {
    pub session_id: SessionId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct DeleteResponse {
    /// False if there was no such session. No event fires then.
    pub deleted: bool,
}

impl Mutation for DeleteRequest {
    const ID: &'static str = "session::delete";
    const DESCRIPTION: &'static str = "Remove a session and its entries; its forks stay. Fires session::deleted.";
    type Response = DeleteResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        Ok(Command::Delete(DeleteSession { session_id: self.session_id }))
    }

    fn response(answer: Answer) -> Option<DeleteResponse> {
        let Answer::Deleted { deleted } = answer else { return None };
        Some(DeleteResponse { deleted })
    }
}
