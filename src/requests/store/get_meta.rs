//! `session::store::get-meta`: a session's record as it is stored, or null.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::machine::ids::SessionId;
use crate::machine::refusal::Refusal;
use crate::machine::session::SessionMeta;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Question, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct GetMetaRequest {
    pub session_id: SessionId,
}

impl Question for GetMetaRequest {
    const ID: &'static str = "session::store::get-meta";
    const DESCRIPTION: &'static str = "Internal, for bridges: read a session's record; null when there is none.";
    const INTERNAL: bool = true;
    type Response = Option<SessionMeta>;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        Ok(Query::Meta(self.session_id))
    }

    fn response(found: Found) -> Option<Option<SessionMeta>> {
        let Found::Meta(meta) = found else { return None };
        Some(meta)
    }
}
