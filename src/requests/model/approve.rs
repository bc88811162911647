//! `session::approve`: decides about a tool call that waits for a person.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{CallerRequest, address, answered, propose};
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ApproveRequest {
    /// The agent that the session belongs to.
    pub agent_id: String,
    /// The id of the session at this agent.
    pub session_id: String,
    pub tool_call_id: String,
    pub approved: bool,
    pub caller: Option<CallerRequest>,
}

impl Mutation for ApproveRequest {
    const ID: &'static str = "session::approve";
    const DESCRIPTION: &'static str = "Approve or reject a tool call that waits for a person; the first decision wins.";
    type Response = Json;

    fn command(self, limits: &Limits) -> Result<Command, Refusal> {
        let ApproveRequest { agent_id, session_id, tool_call_id, approved, caller } = self;
        checks::new_id("tool_call_id", &tool_call_id)?;
        let at = address(agent_id, session_id, caller, limits)?;
        Ok(propose(ModelCommand::Approve { at, tool_call_id, approved }))
    }

    fn response(answer: Answer) -> Option<Json> {
        answered(answer)
    }
}
