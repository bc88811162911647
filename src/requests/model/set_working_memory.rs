//! `session::profile::set-working-memory`: replaces what workers remember about a session.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{CallerRequest, address, answered, propose};
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct SetWorkingMemoryRequest {
    /// The agent that the session belongs to.
    pub agent_id: String,
    /// The id of the session at this agent.
    pub session_id: String,
    pub working_memory: String,
    pub caller: Option<CallerRequest>,
}

impl Mutation for SetWorkingMemoryRequest {
    const ID: &'static str = "session::profile::set-working-memory";
    const DESCRIPTION: &'static str = "Replace what workers remember about a session.";
    type Response = Json;

    fn command(self, limits: &Limits) -> Result<Command, Refusal> {
        let SetWorkingMemoryRequest { agent_id, session_id, working_memory, caller } = self;
        checks::text("working_memory", Some(&working_memory))?;
        Ok(propose(ModelCommand::Remember { at: address(agent_id, session_id, caller, limits)?, working_memory }))
    }

    fn response(answer: Answer) -> Option<Json> {
        answered(answer)
    }
}
