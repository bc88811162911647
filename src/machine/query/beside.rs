//! Queries about records beside sessions. Each group has an enum of its own and answers with a JSON value.

use crate::machine::gateway::{self, GatewayQuery};
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::model::{self, ModelQuery};
use crate::machine::refusal::Failure;
use crate::machine::turn::{self, TurnQuery};
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub enum BesideQuery {
    Turn(TurnQuery),
    Gateway(GatewayQuery),
    Model(ModelQuery),
}

impl BesideQuery {
    /// The session whose records it reads, if it names one.
    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            BesideQuery::Turn(query) => query.session_id(),
            BesideQuery::Gateway(query) => query.session_id(),
            BesideQuery::Model(query) => query.session_id(),
        }
    }
}

pub fn query(view: &dyn View, query: &BesideQuery) -> Result<Json, Failure> {
    match query {
        BesideQuery::Turn(query) => turn::query(view, query),
        BesideQuery::Gateway(query) => gateway::query(view, query),
        BesideQuery::Model(query) => model::query(view, query),
    }
}
