//! `session::turn::events`: the kept events of a session's stream.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{found, found_text, query};
use crate::machine::ids::SessionId;
use crate::machine::refusal::Refusal;
use crate::machine::turn::TurnQuery;
use crate::machine::turn::read::{JournalPage, PAGE_MAX};
use crate::machine::{Found, Query};
use crate::requests::{Limits, Printed, Question, checks};

/// The size of a page if the request names none.
const PAGE: usize = 200;

#[derive(Debug, Deserialize, JsonSchema)]
pub struct EventsRequest {
    pub session_id: SessionId,
    /// Only events with a greater number.
    #[serde(default)]
    pub after_seq: u64,
    /// At most 500.
    pub limit: Option<usize>,
}

impl Question for EventsRequest {
    const ID: &'static str = "session::turn::events";
    const DESCRIPTION: &'static str = "The kept events of a session's stream after a number, oldest first.";
    type Response = JournalPage;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        let limit = self.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
        Ok(query(TurnQuery::Journal { session_id: self.session_id, after: self.after_seq, limit }))
    }

    fn response(answer: Found) -> Option<JournalPage> {
        found(answer)
    }

    fn print(answer: Found) -> Option<Printed> {
        found_text(answer)
    }
}
