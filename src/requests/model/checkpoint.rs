//! `session::checkpoint`: asks a worker to look back over a session.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{CallerRequest, address, answered, propose};
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::model::checkpoint::Reason;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct CheckpointRequest {
    /// The agent that the session belongs to.
    pub agent_id: String,
    /// The id of the session at this agent.
    pub session_id: String,
    /// `manual` when absent.
    pub reason: Option<Reason>,
    pub caller: Option<CallerRequest>,
}

impl Mutation for CheckpointRequest {
    const ID: &'static str = "session::checkpoint";
    const DESCRIPTION: &'static str = "Ask for a checkpoint: a worker looks back over what is new. Answers at once with the id, or that nothing is new or one is under way.";
    type Response = Json;

    fn command(self, limits: &Limits) -> Result<Command, Refusal> {
        let CheckpointRequest { agent_id, session_id, reason, caller } = self;
        let at = address(agent_id, session_id, caller, limits)?;
        Ok(propose(ModelCommand::Checkpoint { at, reason: reason.unwrap_or_default() }))
    }

    fn response(answer: Answer) -> Option<Json> {
        answered(answer)
    }
}
