//! `session::path`: a window of a transcript, by depth, so that a long one opens at its end.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Printed, Question, checks, print};
use crate::machine::entry::{Entry, SessionEntry};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::query::window::WindowQuery;
use crate::machine::refusal::Refusal;
use crate::machine::{Found, Query};

/// Shorter strings are words of the schema, such as roles and types of blocks, which must stay whole.
const STRINGS_MAX_LEAST: usize = 64;

#[derive(Debug, Deserialize, JsonSchema)]
pub struct PathRequest {
    pub session_id: SessionId,
    /// Read the path that ends at this entry; by default the active leaf.
    pub from_entry_id: Option<EntryId>,
    /// The depth of the first entry to read, 0 for the root; by default the last `limit` entries of the path.
    pub first: Option<u64>,
    /// The largest number of entries; limited by the configuration.
    pub limit: Option<usize>,
    /// Cut every string in the bodies after this many characters, for lists and previews. At least 64.
    pub strings_max: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PathResponse {
    /// Messages and custom entries, oldest first. Fewer than asked for if they are large: go on after the last one.
    #[schemars(with = "Vec<SessionEntry>")]
    pub entries: Vec<Entry>,
    /// The depth of the first entry.
    pub first: u64,
    /// The number of entries of the whole path.
    pub length: u64,
    /// The last entry of the path; absent if the session is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf: Option<EntryId>,
}

impl Question for PathRequest {
    const ID: &'static str = "session::path";
    const DESCRIPTION: &'static str = "Read a window of the path from the root to the active leaf (or a given entry), by \
                                       depth; by default its end.";
    type Response = PathResponse;

    fn query(self, limits: &Limits) -> Result<Query, Refusal> {
        let PathRequest { session_id, from_entry_id, first, limit, strings_max } = self;
        checks::id("session_id", session_id.as_str())?;
        checks::optional_id("from_entry_id", from_entry_id.as_ref())?;
        if let Some(chars_max) = strings_max.filter(|chars_max| *chars_max < STRINGS_MAX_LEAST) {
            return Err(checks::invalid(format!("strings_max is {chars_max}: give at least {STRINGS_MAX_LEAST}")));
        }
        Ok(Query::Window(WindowQuery { session_id, from_entry_id, first, limit: limits.page(limit), strings_max }))
    }

    fn response(found: Found) -> Option<PathResponse> {
        let Found::Window(window) = found else { return None };
        let (entries, first, length, leaf) = (window.entries, window.first, window.length, window.leaf);
        Some(PathResponse { entries, first, length, leaf })
    }

    fn print(found: Found) -> Option<Printed> {
        let Found::Window(window) = found else { return None };
        Some(print::window(&window).into())
    }
}
