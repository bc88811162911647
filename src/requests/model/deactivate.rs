//! `session::deactivate`: hides a session from lists until it is opened or written to again.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{CallerRequest, address, answered, propose};
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct DeactivateRequest {
    /// The agent that the session belongs to.
    pub agent_id: String,
    /// The id of the session at this agent.
    pub session_id: String,
    pub caller: Option<CallerRequest>,
}

impl Mutation for DeactivateRequest {
    const ID: &'static str = "session::deactivate";
    const DESCRIPTION: &'static str =
        "Hide a session from lists until somebody opens it or writes to it; refused while a turn is unfinished.";
    type Response = Json;

    fn command(self, limits: &Limits) -> Result<Command, Refusal> {
        let DeactivateRequest { agent_id, session_id, caller } = self;
        Ok(propose(ModelCommand::Deactivate { at: address(agent_id, session_id, caller, limits)? }))
    }

    fn response(answer: Answer) -> Option<Json> {
        answered(answer)
    }
}
