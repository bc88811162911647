//! `session::profile::history`: a page of the rows of a session, oldest first.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{CallerRequest, ask, found, place};
use crate::machine::ids::EntryId;
use crate::machine::json::Json;
use crate::machine::model::ModelQuery;
use crate::machine::refusal::Refusal;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Question, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct HistoryRequest {
    /// The agent that the session belongs to.
    pub agent_id: String,
    /// The id of the session at this agent.
    pub session_id: String,
    /// Where the page begins: `next` of the page before.
    pub first: Option<u64>,
    /// `leaf` of the first page, so that all pages are of one path.
    pub leaf: Option<EntryId>,
    pub caller: Option<CallerRequest>,
}

impl Question for HistoryRequest {
    const ID: &'static str = "session::profile::history";
    const DESCRIPTION: &'static str =
        "Read a page of the history of a session, oldest first; next and leaf of a page lead to the next one.";
    type Response = Json;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        let HistoryRequest { agent_id, session_id, first, leaf, caller } = self;
        checks::optional_id("leaf", leaf.as_ref())?;
        let place = place(agent_id, session_id, caller)?;
        Ok(ask(ModelQuery::History { place, first: first.unwrap_or(0), leaf }))
    }

    fn response(answer: Found) -> Option<Json> {
        found(answer)
    }
}
