//! `session::get`: a session's record, or null.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Question, checks};
use crate::machine::ids::SessionId;
use crate::machine::refusal::Refusal;
use crate::machine::session::SessionMeta;
use crate::machine::{Found, Query};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct GetRequest {
    pub session_id: SessionId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct GetResponse {
    pub meta: SessionMeta,
}

impl Question for GetRequest {
    const ID: &'static str = "session::get";
    const DESCRIPTION: &'static str = "Read a session's record; null if there is no such session.";
    type Response = Option<GetResponse>;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        Ok(Query::Meta(self.session_id))
    }

    fn response(found: Found) -> Option<Option<GetResponse>> {
        let Found::Meta(meta) = found else { return None };
        Some(meta.map(|meta| GetResponse { meta }))
    }
}
