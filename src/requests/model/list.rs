//! `session::profile::list`: a page of the sessions of an agent.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{CallerRequest, ask, found};
use crate::machine::json::Json;
use crate::machine::model::ModelQuery;
use crate::machine::model::filter::Filters;
use crate::machine::model::query::ListAfter;
use crate::machine::refusal::Refusal;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Question, checks};

/// Where a page of a list begins.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct AfterRequest {
    /// A number as text: it has 64 bits.
    pub rank: String,
    pub session_id: String,
}

impl AfterRequest {
    fn read(self) -> Result<ListAfter, Refusal> {
        let rank = self.rank.parse().map_err(|_| checks::invalid("after.rank: give `next` of the page before"))?;
        Ok(ListAfter { rank, session_id: self.session_id })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ListProfilesRequest {
    pub agent_id: String,
    pub kind: Option<String>,
    pub platform: Option<String>,
    pub interactive: Option<bool>,
    /// The prefix of session ids.
    pub channel: Option<String>,
    /// Compared as text.
    pub metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub include_inactive: bool,
    pub limit: Option<usize>,
    /// `next` of the page before.
    pub after: Option<AfterRequest>,
    pub caller: Option<CallerRequest>,
}

impl Question for ListProfilesRequest {
    const ID: &'static str = "session::profile::list";
    const DESCRIPTION: &'static str = "Read a page of the sessions of an agent, the most recently active first; next leads to the next page, and a page may be short.";
    type Response = Json;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        checks::new_id("agent_id", &self.agent_id)?;
        let filters = Filters {
            kind: self.kind,
            platform: self.platform,
            interactive: self.interactive,
            channel: self.channel,
            metadata: self.metadata.unwrap_or_default().into_iter().collect(),
            include_inactive: self.include_inactive,
        };
        let after = self.after.map(AfterRequest::read).transpose()?;
        let caller = CallerRequest::caller(self.caller)?;
        let limit = self.limit.unwrap_or(usize::MAX).max(1);
        Ok(ask(ModelQuery::List { agent_id: self.agent_id, caller, filters, after, limit }))
    }

    fn response(answer: Found) -> Option<Json> {
        found(answer)
    }
}
