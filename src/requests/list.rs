//! `session::list`: a page of sessions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Question, checks};
use crate::machine::json::Object;
use crate::machine::query::list::ListQuery;
use crate::machine::refusal::Refusal;
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::machine::view::ListOrder;
use crate::machine::{Found, Query};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ListRequest {
    /// Only sessions in this status.
    pub status: Option<SessionStatus>,
    /// Only sessions whose metadata has every one of these keys with an equal value.
    pub metadata: Option<Object>,
    /// `updated_desc` when left out.
    pub order: Option<ListOrder>,
    /// Where the page before this one ended, as it said in `next_cursor`.
    pub cursor: Option<String>,
    /// How many sessions at most; clamped to what the configuration allows.
    pub limit: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ListResponse {
    pub sessions: Vec<SessionMeta>,
    /// There is more: the cursor of the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Question for ListRequest {
    const ID: &'static str = "session::list";
    const DESCRIPTION: &'static str = "Page through sessions, narrowed by status and metadata, in a chosen order.";
    type Response = ListResponse;

    fn query(self, limits: &Limits) -> Result<Query, Refusal> {
        let ListRequest { status, metadata, order, cursor, limit } = self;
        checks::metadata("metadata", metadata.as_ref())?;
        checks::cursor(cursor.as_deref())?;
        let order = order.unwrap_or(ListOrder::UpdatedDesc);
        Ok(Query::List(ListQuery { order, status, metadata, cursor, limit: limits.page(limit) }))
    }

    fn response(found: Found) -> Option<ListResponse> {
        let Found::List(page) = found else { return None };
        Some(ListResponse { sessions: page.sessions, next_cursor: page.next_cursor })
    }
}
