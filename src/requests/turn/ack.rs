//! `session::turn::ack`: a driver acknowledges a command.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{answered, command};
use crate::machine::refusal::Refusal;
use crate::machine::turn::TurnCommand;
use crate::machine::turn::order::AckOrder;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct AckRequest {
    pub command_id: String,
    pub driver_id: Option<String>,
    /// False if the driver cannot do it; `error` then says why.
    pub accepted: Option<bool>,
    pub error: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct AckResponse {
    /// False if the command was acknowledged before, or its turn has ended.
    pub acknowledged: bool,
}

impl Mutation for AckRequest {
    const ID: &'static str = "session::turn::ack";
    const DESCRIPTION: &'static str =
        "Acknowledge a command of session::turn::command. It is told again every 5 seconds until then.";
    type Response = AckResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        checks::new_id("command_id", &self.command_id)?;
        self.driver_id.as_deref().map_or(Ok(()), super::driver_id)?;
        checks::text("error", self.error.as_deref())?;
        let accepted = self.accepted.unwrap_or(self.error.is_none());
        let AckRequest { command_id, driver_id, error, .. } = self;
        Ok(command(TurnCommand::Ack(AckOrder { command_id, driver_id, accepted, error })))
    }

    fn response(answer: Answer) -> Option<AckResponse> {
        answered(answer)
    }
}
