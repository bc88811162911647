//! `session::turn::state`: the state of a session's stream.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{found, found_text, query};
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::refusal::Refusal;
use crate::machine::turn::TurnQuery;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Printed, Question, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct StateRequest {
    pub session_id: SessionId,
}

impl Question for StateRequest {
    const ID: &'static str = "session::turn::state";
    const DESCRIPTION: &'static str =
        "The state of a session's stream: its turn with the text so far, the last event's number, open requests.";
    type Response = Json;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        Ok(query(TurnQuery::Snapshot(self.session_id)))
    }

    fn response(answer: Found) -> Option<Json> {
        found(answer)
    }

    fn print(answer: Found) -> Option<Printed> {
        found_text(answer)
    }
}
