//! `session::turn::claim`: a driver takes a turn. One wins; the same driver again renews its lease.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{answered, command, driver_id, turn_id};
use crate::machine::refusal::Refusal;
use crate::machine::turn::TurnCommand;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ClaimRequest {
    pub turn_id: String,
    /// The driver's own name. It emits under the same name.
    pub driver_id: String,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClaimResponse {
    pub claimed: bool,
    /// The turn fails after this time, in milliseconds since the epoch, unless the driver emits or claims again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<i64>,
    /// The number of the driver's next batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_n: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The entry of the message that the turn answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<String>,
    /// Why it was not claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Mutation for ClaimRequest {
    const ID: &'static str = "session::turn::claim";
    const DESCRIPTION: &'static str =
        "Take a turn as its driver, for 60 seconds; emitting renews that. One driver wins, the same one again renews.";
    type Response = ClaimResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        turn_id(&self.turn_id)?;
        driver_id(&self.driver_id)?;
        Ok(command(TurnCommand::Claim { turn_id: self.turn_id, driver_id: self.driver_id }))
    }

    fn response(answer: Answer) -> Option<ClaimResponse> {
        answered(answer)
    }
}
