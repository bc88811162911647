//! Owns: what the machine may ask of the state (`View`) and what it may do to it (`Change`).
//! A store implements the one and carries out the other; the machine sees nothing else of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::command::Answer;
use super::entry::Entry;
use super::feed::{FeedEdge, Record};
use super::ids::{EntryId, FeedPlace, Position, RequestId, SessionId};
use super::refusal::{Fault, Refusal};
use super::session::{SessionMeta, SessionStatus};

/// The orders of `session::list`. Ties break by session id, ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ListOrder {
    CreatedAsc,
    CreatedDesc,
    UpdatedDesc,
}

/// One ordered index of sessions. A list with several filters joins several facets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Facet {
    All,
    Status(SessionStatus),
    /// Sessions whose metadata has this value under this key; `value` is the canonical text.
    Metadata {
        key: String,
        value: String,
    },
}

/// A place in an ordered index: the time the order sorts by, then the session id.
/// Which of two points comes first depends on the order (see `ListOrder::precedes`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPoint {
    pub time: i64,
    pub session_id: SessionId,
}

impl ListOrder {
    pub fn point(self, meta: &SessionMeta) -> ListPoint {
        let time = match self {
            ListOrder::CreatedAsc | ListOrder::CreatedDesc => meta.created_at,
            ListOrder::UpdatedDesc => meta.updated_at,
        };
        ListPoint { time, session_id: meta.session_id.clone() }
    }

    pub fn compare(self, a: &ListPoint, b: &ListPoint) -> std::cmp::Ordering {
        let by_time = match self {
            ListOrder::CreatedAsc => a.time.cmp(&b.time),
            ListOrder::CreatedDesc | ListOrder::UpdatedDesc => b.time.cmp(&a.time),
        };
        by_time.then_with(|| a.session_id.cmp(&b.session_id))
    }
}

/// The state, as far as commands and queries need it. Every method is a consistent look at one moment.
pub trait View {
    fn meta(&self, session_id: &SessionId) -> Result<Option<SessionMeta>, Fault>;

    /// The active leaf: where the transcript ends and the next append hangs.
    fn leaf(&self, session_id: &SessionId) -> Result<Option<EntryId>, Fault>;

    fn entry(&self, session_id: &SessionId, entry_id: &EntryId) -> Result<Option<Entry>, Fault>;

    /// Every entry of a session, in the order of their ids.
    fn entries(&self, session_id: &SessionId) -> Result<Vec<Entry>, Fault>;

    /// The sequence number of the session's last event; 0 before the first.
    fn seq(&self, session_id: &SessionId) -> Result<u64, Fault>;

    /// Up to `limit` points of a facet at or after `from` (from the start when `None`), in `order`.
    fn listed(
        &self,
        facet: &Facet,
        order: ListOrder,
        from: Option<&ListPoint>,
        limit: usize,
    ) -> Result<Vec<ListPoint>, Fault>;

    /// What a recent proposal was answered; `None` when it was not applied or is too old to be remembered.
    fn remembered(&self, request_id: RequestId) -> Result<Option<Result<Answer, Refusal>>, Fault>;

    /// Up to `limit` lines of the feed after a place (from its beginning when `None`), oldest first.
    fn recorded(&self, after: Option<FeedPlace>, limit: usize) -> Result<Vec<(FeedPlace, Record)>, Fault>;

    fn feed_edge(&self) -> Result<FeedEdge, Fault>;

    /// Where the last deletion of a session stands, as long as the feed keeps it.
    fn deleted_at(&self, session_id: &SessionId) -> Result<Option<FeedPlace>, Fault>;

    /// How far the events are delivered through an attach point.
    fn cursor(&self, attach: &str) -> Result<Option<Position>, Fault>;

    /// The same for every attach point whose name starts so, in the order of their names.
    fn cursors(&self, starting: &str) -> Result<Vec<(String, Position)>, Fault>;

    /// The latest stamp applied so far, in milliseconds.
    fn clock_ms(&self) -> Result<i64, Fault>;
}

/// One write to the state. Changes of one command are carried out together or not at all.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    PutMeta(SessionMeta),
    DeleteMeta(SessionId),
    PutEntry(SessionId, Entry),
    DeleteEntries(SessionId),
    SetLeaf(SessionId, EntryId),
    DeleteLeaf(SessionId),
    SetSeq(SessionId, u64),
    DeleteSeq(SessionId),
    /// Every command moves the clock, so that time never runs backwards across leaders.
    SetClock(i64),
    /// Keeps an answer for the retries of its proposal.
    Remember(RequestId, Result<Answer, Refusal>),
    /// Drops the answers to proposals born before this time, in milliseconds.
    Forget(i64),
    /// Keeps the events of one log entry in the feed.
    Record {
        index: u64,
        records: Vec<Record>,
    },
    /// Drops the feed up to this place.
    TrimFeed {
        upto: FeedPlace,
    },
    /// `None`: the attach point is gone.
    SetCursor(String, Option<Position>),
}
