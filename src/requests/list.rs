//! `session::list`: a page of sessions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Question, checks};
use crate::machine::json::JsonObject;
use crate::machine::query::list::ListQuery;
use crate::machine::refusal::Refusal;
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::machine::view::ListOrder;
use crate::machine::{Found, Query};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ListRequest {
    /// Only sessions with this status.
    pub status: Option<SessionStatus>,
    /// Only sessions whose metadata has all these keys with equal values.
    pub metadata: Option<JsonObject>,
    /// The order; by default `updated_desc`.
    pub order: Option<ListOrder>,
    /// The `next_cursor` of the previous page.
    pub cursor: Option<String>,
    /// The largest number of sessions; limited by the configuration.
    pub limit: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ListResponse {
    pub sessions: Vec<SessionMeta>,
    /// The cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Question for ListRequest {
    const ID: &'static str = "session::list";
    const DESCRIPTION: &'static str = "Page through sessions, filtered by status and metadata, in a chosen order.";
    type Response = ListResponse;

    fn query(self, limits: &Limits) -> Result<Query, Refusal> {
        let ListRequest { status, metadata, order, cursor, limit } = self;
        let metadata = checks::metadata("metadata", metadata)?;
        checks::cursor(cursor.as_deref())?;
        let order = order.unwrap_or(ListOrder::UpdatedDesc);
        Ok(Query::List(ListQuery { order, status, metadata, cursor, limit: limits.page(limit) }))
    }

    fn response(found: Found) -> Option<ListResponse> {
        let Found::List(page) = found else { return None };
        Some(ListResponse { sessions: page.sessions, next_cursor: page.next_cursor })
    }
}
