//! `session::store::get-active-leaf`: where a session's transcript ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::ids::{EntryId, SessionId};
use crate::machine::refusal::Refusal;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Question, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct GetActiveLeafRequest {
    pub session_id: SessionId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ActiveLeafResponse {
    /// Null when the session has no active leaf.
    pub entry_id: Option<EntryId>,
}

impl Question for GetActiveLeafRequest {
    const ID: &'static str = "session::store::get-active-leaf";
    const DESCRIPTION: &'static str = "Internal, for bridges: read where a session's transcript ends.";
    const INTERNAL: bool = true;
    type Response = ActiveLeafResponse;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        Ok(Query::Leaf(self.session_id))
    }

    fn response(found: Found) -> Option<ActiveLeafResponse> {
        let Found::Leaf(entry_id) = found else { return None };
        Some(ActiveLeafResponse { entry_id })
    }
}
