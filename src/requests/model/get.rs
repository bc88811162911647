//! `session::profile::get`: a session as the model knows it.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{CallerRequest, ask, found, place};
use crate::machine::json::Json;
use crate::machine::model::ModelQuery;
use crate::machine::refusal::Refusal;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Question};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct GetProfileRequest {
    /// The agent that the session belongs to.
    pub agent_id: String,
    /// The id of the session at this agent.
    pub session_id: String,
    pub caller: Option<CallerRequest>,
}

impl Question for GetProfileRequest {
    const ID: &'static str = "session::profile::get";
    const DESCRIPTION: &'static str =
        "Read a session of the model: source, status, counts, description, working memory.";
    type Response = Json;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        let GetProfileRequest { agent_id, session_id, caller } = self;
        Ok(ask(ModelQuery::Get(place(agent_id, session_id, caller)?)))
    }

    fn response(answer: Found) -> Option<Json> {
        found(answer)
    }
}
