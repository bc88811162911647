//! `session::profile::delete`: deletes a session by the rules of the model.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{CallerRequest, address, answered, propose};
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct DeleteProfileRequest {
    /// The agent that the session belongs to.
    pub agent_id: String,
    /// The id of the session at this agent.
    pub session_id: String,
    pub caller: Option<CallerRequest>,
}

impl Mutation for DeleteProfileRequest {
    const ID: &'static str = "session::profile::delete";
    const DESCRIPTION: &'static str = "Delete a direct session without an unfinished turn; a group session is kept.";
    type Response = Json;

    fn command(self, limits: &Limits) -> Result<Command, Refusal> {
        let DeleteProfileRequest { agent_id, session_id, caller } = self;
        Ok(propose(ModelCommand::Delete { at: address(agent_id, session_id, caller, limits)? }))
    }

    fn response(answer: Answer) -> Option<Json> {
        answered(answer)
    }
}
