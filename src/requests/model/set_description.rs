//! `session::profile::set-description`: replaces the description of a session.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{CallerRequest, address, answered, propose};
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct SetDescriptionRequest {
    /// The agent that the session belongs to.
    pub agent_id: String,
    /// The id of the session at this agent.
    pub session_id: String,
    pub description: String,
    pub caller: Option<CallerRequest>,
}

impl Mutation for SetDescriptionRequest {
    const ID: &'static str = "session::profile::set-description";
    const DESCRIPTION: &'static str = "Replace the description of a session; it counts as written by a worker.";
    type Response = Json;

    fn command(self, limits: &Limits) -> Result<Command, Refusal> {
        let SetDescriptionRequest { agent_id, session_id, description, caller } = self;
        checks::text("description", Some(&description))?;
        Ok(propose(ModelCommand::Describe { at: address(agent_id, session_id, caller, limits)?, description }))
    }

    fn response(answer: Answer) -> Option<Json> {
        answered(answer)
    }
}
