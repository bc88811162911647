//! `session::checkpoint::claim`: a worker takes a checkpoint.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{answered, propose};
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ClaimCheckpointRequest {
    pub checkpoint_id: String,
    pub driver_id: String,
}

impl Mutation for ClaimCheckpointRequest {
    const ID: &'static str = "session::checkpoint::claim";
    const DESCRIPTION: &'static str = "Take a checkpoint; one worker wins, and asking again is answered as before.";
    type Response = Json;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let ClaimCheckpointRequest { checkpoint_id, driver_id } = self;
        checks::new_id("checkpoint_id", &checkpoint_id)?;
        checks::new_id("driver_id", &driver_id)?;
        Ok(propose(ModelCommand::ClaimCheckpoint { checkpoint_id, driver_id }))
    }

    fn response(answer: Answer) -> Option<Json> {
        answered(answer)
    }
}
