//! `session::identity::resolve`: who an identity of a channel is.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{ask, check_identity, found};
use crate::machine::json::Json;
use crate::machine::model::ModelQuery;
use crate::machine::refusal::Refusal;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Question};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ResolveRequest {
    pub channel: String,
    pub channel_user_id: String,
    /// The agent whose role is told.
    pub agent_id: Option<String>,
}

impl Question for ResolveRequest {
    const ID: &'static str = "session::identity::resolve";
    const DESCRIPTION: &'static str =
        "Read the user that an identity of a channel leads to, through merges, and the role at an agent.";
    type Response = Json;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        let ResolveRequest { channel, channel_user_id, agent_id } = self;
        check_identity(&channel, &channel_user_id)?;
        Ok(ask(ModelQuery::Resolve { agent_id, channel, channel_user_id }))
    }

    fn response(answer: Found) -> Option<Json> {
        found(answer)
    }
}
