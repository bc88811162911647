//! `session::turn::emit`: a driver's batch of events.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{answered, command, driver_id, turn_id};
use crate::machine::json::Json;
use crate::machine::refusal::Refusal;
use crate::machine::turn::TurnCommand;
use crate::machine::turn::emit::{EVENTS_MAX, Emit};
use crate::machine::turn::events::Fields;
use crate::machine::turn::record::TurnState;
use crate::machine::turn::spelling;
use crate::machine::{Answer, Command};
use crate::requests::body::Batch;
use crate::requests::{Limits, Mutation, checks};

/// All events of one batch together. A batch is one entry of the log.
const BATCH_BYTES_MAX: usize = 8 << 20;

#[derive(Debug, Deserialize, JsonSchema)]
pub struct EmitRequest {
    pub turn_id: String,
    pub driver_id: String,
    /// Counts the batches of the turn from 1. The same number again changes nothing and gets the first answer.
    pub n: u64,
    /// At most 256 events, each an object with its `type`: `text_delta`, `tool_call`, `turn_complete` and so on.
    #[schemars(with = "Vec<serde_json::Map<String, serde_json::Value>>")]
    pub events: Batch<Json>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct EmitResponse {
    pub next_n: u64,
    /// The number of each event in the session's stream; null for events without one.
    pub seqs: Vec<Option<u64>>,
    /// The state of the turn after the batch.
    #[schemars(with = "String")]
    pub state: TurnState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<i64>,
}

impl Mutation for EmitRequest {
    const ID: &'static str = "session::turn::emit";
    const DESCRIPTION: &'static str =
        "Emit a batch of events of a claimed turn: text, thinking, tools, requests, the end. All of it or nothing.";
    type Response = EmitResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        turn_id(&self.turn_id)?;
        driver_id(&self.driver_id)?;
        if self.n == 0 {
            return Err(checks::invalid("n: batches are counted from 1"));
        }
        let given = self.events.items("events")?;
        if given.is_empty() || given.len() > EVENTS_MAX {
            return Err(checks::invalid(format!("events: give 1 to {EVENTS_MAX}, not {}", given.len())));
        }
        let bytes: usize = given.iter().map(|event| event.text().len()).sum();
        if bytes > BATCH_BYTES_MAX {
            return Err(checks::invalid(format!("events: {bytes} bytes together, at most {BATCH_BYTES_MAX}")));
        }
        let mut events = Vec::with_capacity(given.len());
        for (rank, event) in given.iter().enumerate() {
            let at = |why: &dyn std::fmt::Display| {
                checks::invalid(format!("events[{rank}]: {}", checks::shortened(&why.to_string())))
            };
            let fields: Fields = event.parse().map_err(|error| at(&error))?;
            events.push(spelling::checked(fields).map_err(|why| at(&why))?);
        }
        let Self { turn_id, driver_id, n, .. } = self;
        Ok(command(TurnCommand::Emit(Emit { turn_id, driver_id, n, events })))
    }

    fn response(answer: Answer) -> Option<EmitResponse> {
        answered(answer)
    }
}
