//! `session::store::list-metas`: the record of every session.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::refusal::Refusal;
use crate::machine::session::SessionMeta;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Question};

/// Takes nothing.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ListMetasRequest {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ListMetasResponse {
    pub metas: Vec<SessionMeta>,
}

impl Question for ListMetasRequest {
    const ID: &'static str = "session::store::list-metas";
    const DESCRIPTION: &'static str = "Internal, for bridges: read the record of every session, oldest first.";
    const INTERNAL: bool = true;
    type Response = ListMetasResponse;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        Ok(Query::Metas)
    }

    fn response(found: Found) -> Option<ListMetasResponse> {
        let Found::Metas(metas) = found else { return None };
        Some(ListMetasResponse { metas })
    }
}
