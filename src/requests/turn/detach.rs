//! `session::turn::detach`: a driver says good-bye.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{answered, command, driver_id};
use crate::machine::refusal::Refusal;
use crate::machine::turn::TurnCommand;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct DetachRequest {
    pub driver_id: String,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct DetachResponse {
    /// False if it was not attached.
    pub detached: bool,
}

impl Mutation for DetachRequest {
    const ID: &'static str = "session::turn::detach";
    const DESCRIPTION: &'static str =
        "Say that a driver leaves. It gets no new turns; if it is not back within 10 seconds, its turns fail.";
    type Response = DetachResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        driver_id(&self.driver_id)?;
        Ok(command(TurnCommand::Detach { driver_id: self.driver_id, node: None }))
    }

    fn response(answer: Answer) -> Option<DetachResponse> {
        answered(answer)
    }
}
