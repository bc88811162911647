//! `session::store::list-entries`: every entry of a session, parents before their children.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::entry::{Entry, SessionEntry};
use crate::machine::ids::SessionId;
use crate::machine::refusal::Refusal;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Printed, Question, checks, print};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ListEntriesRequest {
    pub session_id: SessionId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ListEntriesResponse {
    #[schemars(with = "Vec<SessionEntry>")]
    pub entries: Vec<Entry>,
}

impl Question for ListEntriesRequest {
    const ID: &'static str = "session::store::list-entries";
    const DESCRIPTION: &'static str =
        "Internal, for bridges: read every entry of a session, on all its branches; none for an unknown session.";
    const INTERNAL: bool = true;
    type Response = ListEntriesResponse;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        Ok(Query::Entries(self.session_id))
    }

    fn response(found: Found) -> Option<ListEntriesResponse> {
        let Found::Entries(entries) = found else { return None };
        Some(ListEntriesResponse { entries })
    }

    fn print(found: Found) -> Option<Printed> {
        let Found::Entries(entries) = found else { return None };
        Some(print::entries(&entries).into())
    }
}
