//! `session::store::get-entry`: one entry as it is stored, or null.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::entry::{Entry, SessionEntry};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::refusal::Refusal;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Printed, Question, checks, print};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct GetEntryRequest {
    pub session_id: SessionId,
    pub entry_id: EntryId,
}

/// A stored entry in the JSON of the API.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct RawEntry(#[schemars(with = "SessionEntry")] pub Entry);

impl Question for GetEntryRequest {
    const ID: &'static str = "session::store::get-entry";
    const DESCRIPTION: &'static str = "Internal, for bridges: read one entry; null when there is none.";
    const INTERNAL: bool = true;
    type Response = Option<RawEntry>;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        checks::id("entry_id", self.entry_id.as_str())?;
        Ok(Query::Entry(self.session_id, self.entry_id))
    }

    fn response(found: Found) -> Option<Option<RawEntry>> {
        let Found::Entry(entry) = found else { return None };
        Some(entry.map(RawEntry))
    }

    fn print(found: Found) -> Option<Printed> {
        let Found::Entry(entry) = found else { return None };
        Some(print::bare_entry(entry.as_ref()).into())
    }
}
