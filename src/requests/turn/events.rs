//! `session::turn::events`: the kept events of a session's stream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{found, found_text, query};
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::refusal::Refusal;
use crate::machine::turn::TurnQuery;
use crate::machine::turn::read::PAGE_MAX;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Question, checks};

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

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventsResponse {
    /// Oldest first, each with its `seq`. Numbers between them are events that are not kept.
    pub events: Vec<Json>,
    pub seqs: Vec<u64>,
    /// Every kept event up to this number is on this page or before it.
    pub upto: u64,
    pub more: bool,
    /// The number of the last event of the stream.
    pub head_seq: u64,
    /// Kept events before this number are gone.
    pub oldest_seq: u64,
}

impl Question for EventsRequest {
    const ID: &'static str = "session::turn::events";
    const DESCRIPTION: &'static str = "The kept events of a session's stream after a number, oldest first.";
    type Response = EventsResponse;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        let limit = self.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
        Ok(query(TurnQuery::Journal { session_id: self.session_id, after: self.after_seq, limit }))
    }

    fn response(answer: Found) -> Option<EventsResponse> {
        found(answer)
    }

    fn print(answer: Found) -> Option<String> {
        found_text(answer)
    }
}
