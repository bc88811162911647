//! `session::get-message`: one entry, or null.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Printed, Question, checks, print};
use crate::machine::entry::{Entry, SessionEntry};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::refusal::Refusal;
use crate::machine::{Found, Query};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct GetMessageRequest {
    pub session_id: SessionId,
    pub entry_id: EntryId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct GetMessageResponse {
    #[schemars(with = "SessionEntry")]
    pub entry: Entry,
}

impl Question for GetMessageRequest {
    const ID: &'static str = "session::get-message";
    const DESCRIPTION: &'static str = "Read one entry by its id; null if the session or the entry does not exist.";
    type Response = Option<GetMessageResponse>;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        checks::id("entry_id", self.entry_id.as_str())?;
        Ok(Query::Entry(self.session_id, self.entry_id))
    }

    fn response(found: Found) -> Option<Option<GetMessageResponse>> {
        let Found::Entry(entry) = found else { return None };
        Some(entry.map(|entry| GetMessageResponse { entry }))
    }

    fn print(found: Found) -> Option<Printed> {
        let Found::Entry(entry) = found else { return None };
        Some(print::wrapped_entry(entry.as_ref()).into())
    }
}
