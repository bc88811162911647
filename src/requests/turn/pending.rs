//! `session::turn::pending`: the turns that wait for a driver.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{found, found_text, query};
use crate::machine::json::Json;
use crate::machine::refusal::Refusal;
use crate::machine::turn::TurnQuery;
use crate::machine::turn::driver::Agent;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Printed, Question, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct PendingRequest {
    pub agent_id: Option<String>,
    pub agent_type: Option<String>,
    pub tenant: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct PendingResponse {
    /// The payloads of `session::turn::requested`, oldest first.
    pub turns: Vec<Json>,
}

impl Question for PendingRequest {
    const ID: &'static str = "session::turn::pending";
    const DESCRIPTION: &'static str = "The turns that no driver has claimed, for a driver that has just started.";
    type Response = PendingResponse;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        for (field, id) in [("agent_id", &self.agent_id), ("agent_type", &self.agent_type), ("tenant", &self.tenant)] {
            id.as_ref().map_or(Ok(()), |id| checks::id(field, id))?;
        }
        let PendingRequest { agent_id, agent_type, tenant } = self;
        Ok(query(TurnQuery::Pending(Agent { agent_id, agent_type, tenant })))
    }

    fn response(answer: Found) -> Option<PendingResponse> {
        found(answer)
    }

    fn print(answer: Found) -> Option<Printed> {
        found_text(answer)
    }
}
