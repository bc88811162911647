//! `session::profile::events`: events of the stream of a session after one.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{CallerRequest, ask, found, place};
use crate::machine::json::Json;
use crate::machine::model::ModelQuery;
use crate::machine::refusal::Refusal;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Question};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct EventsRequest {
    /// The agent that the session belongs to.
    pub agent_id: String,
    /// The id of the session at this agent.
    pub session_id: String,
    /// The last event that the caller has.
    pub after: Option<u64>,
    /// At most 500.
    pub limit: Option<usize>,
    pub caller: Option<CallerRequest>,
}

impl Question for EventsRequest {
    const ID: &'static str = "session::profile::events";
    const DESCRIPTION: &'static str =
        "Read events of the stream of a session after an event id; without one, only where the stream stands.";
    type Response = Json;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        const EVENTS_MAX: usize = 500; // a page stays below some MiB with results of tools in it
        let EventsRequest { agent_id, session_id, after, limit, caller } = self;
        let place = place(agent_id, session_id, caller)?;
        let limit = limit.unwrap_or(EVENTS_MAX).clamp(1, EVENTS_MAX);
        Ok(ask(ModelQuery::Events { place, after, limit }))
    }

    fn response(answer: Found) -> Option<Json> {
        found(answer)
    }
}
