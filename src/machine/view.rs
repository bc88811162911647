//! Owns: `View`, the questions that commands and queries may ask about the state. Stores implement it.
//! Never: a write. Writes are data (`change.rs`).

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::beside::{RecordKey, RecordLeftover};
use super::command::Answer;
use super::entry::{Entry, Place};
use super::feed_record::{FeedEdge, Record};
use super::ids::{EntryId, FeedPlace, Position, RequestId, SessionId};
use super::json::Json;
use super::long::{Leftover, PendingFork};
use super::refusal::{Fault, Refusal};
use super::scope::Scope;
use super::section::Section;
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

/// A position in an ordered index: the time that the order sorts by, then the session id.
/// Which of two points comes first depends on the order: `ListOrder::compare` decides.
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

/// The state, as far as commands and queries need it. One view is consistent: no commit happens while it is in use.
pub trait View {
    /// The view under this one, which answers what this one does not answer itself. Records that live elsewhere have
    /// none: without one, there is no feed, no recorded answer and no long work.
    fn below(&self) -> Option<&dyn View> {
        None
    }

    /// The scope of the caller that sees this view; `None` if it sees everything.
    fn scope(&self) -> Option<&Scope> {
        self.below().and_then(|view| view.scope())
    }

    fn meta(&self, session_id: &SessionId) -> Result<Option<SessionMeta>, Fault>;

    /// The active leaf: the last entry of the transcript. The next append becomes its child.
    fn leaf(&self, session_id: &SessionId) -> Result<Option<EntryId>, Fault>;

    fn entry(&self, session_id: &SessionId, entry_id: &EntryId) -> Result<Option<Entry>, Fault>;

    /// Where an entry is in its tree, without its content: `Some(None)` for one without a place, `None` if there is no
    /// such entry.
    fn place(&self, session_id: &SessionId, entry_id: &EntryId) -> Result<Option<Option<Place>>, Fault> {
        Ok(self.entry(session_id, entry_id)?.map(|entry| entry.place))
    }

    /// Whether it keeps sections of paths.
    fn keeps_sections(&self) -> bool {
        false
    }

    /// The section of a path that ends with this entry, at this depth. `None` if there are none here, or if this one is
    /// too large: then its entries are read one by one.
    fn section(&self, _session_id: &SessionId, _end: &EntryId, _depth: u64) -> Result<Option<Arc<Section>>, Fault> {
        Ok(None)
    }

    /// Every entry of a session, in the order of their ids.
    fn entries(&self, session_id: &SessionId) -> Result<Vec<Entry>, Fault>;

    /// The entries whose ids come after one, in the order of their ids: at most `limit`, and fewer when their bodies exceed
    /// `bytes_max`, but at least one.
    fn entries_after(
        &self,
        session_id: &SessionId,
        after: Option<&EntryId>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Entry>, Fault>;

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

    /// The recorded answer to a recent proposal; `None` if it was not applied or its answer has expired.
    fn recorded_answer(&self, request_id: RequestId) -> Result<Option<Result<Answer, Refusal>>, Fault> {
        self.below().map_or(Ok(None), |view| view.recorded_answer(request_id))
    }

    /// Up to `limit` events of the feed after a place (from its beginning when `None`), oldest first.
    fn feed_records(&self, after: Option<FeedPlace>, limit: usize) -> Result<Vec<(FeedPlace, Record)>, Fault> {
        self.below().map_or(Ok(Vec::new()), |view| view.feed_records(after, limit))
    }

    fn feed_edge(&self) -> Result<FeedEdge, Fault> {
        self.below().map_or(Ok(FeedEdge::default()), |view| view.feed_edge())
    }

    /// The place of a session's last deletion, as long as the feed keeps that event.
    fn deleted_at(&self, session_id: &SessionId) -> Result<Option<FeedPlace>, Fault> {
        self.below().map_or(Ok(None), |view| view.deleted_at(session_id))
    }

    /// The position up to which an attach point has delivered events.
    fn cursor(&self, attach: &str) -> Result<Option<Position>, Fault> {
        self.below().map_or(Ok(None), |view| view.cursor(attach))
    }

    /// The cursors of all attach points whose names start with `starting`, ordered by name.
    fn cursors(&self, starting: &str) -> Result<Vec<(String, Position)>, Fault> {
        self.below().map_or(Ok(Vec::new()), |view| view.cursors(starting))
    }

    /// Up to `limit` sets of entries that wait to be freed.
    fn leftovers(&self, limit: usize) -> Result<Vec<Leftover>, Fault> {
        self.below().map_or(Ok(Vec::new()), |view| view.leftovers(limit))
    }

    /// Whether these entries wait to be freed.
    fn is_leftover(&self, leftover: &Leftover) -> Result<bool, Fault> {
        self.below().map_or(Ok(false), |view| view.is_leftover(leftover))
    }

    /// The forks under way; few.
    fn forks(&self) -> Result<Vec<PendingFork>, Fault> {
        self.below().map_or(Ok(Vec::new()), |view| view.forks())
    }

    /// The forks under way from one session.
    fn forks_of(&self, source: &SessionId) -> Result<Vec<PendingFork>, Fault> {
        self.below().map_or(Ok(Vec::new()), |view| view.forks_of(source))
    }

    /// A record beside sessions.
    fn record(&self, key: &RecordKey) -> Result<Option<Json>, Fault> {
        self.below().map_or(Ok(None), |view| view.record(key))
    }

    /// Up to `limit` records under a key, in the order of their keys, after one of them.
    fn records(
        &self,
        under: &RecordKey,
        after: Option<&RecordKey>,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Json)>, Fault> {
        self.below().map_or(Ok(Vec::new()), |view| view.records(under, after, limit))
    }

    /// Whether there is any record beside a session.
    fn has_records(&self, session_id: &SessionId) -> Result<bool, Fault> {
        self.below().map_or(Ok(false), |view| view.has_records(session_id))
    }

    /// Up to `limit` deleted sessions whose records wait to be freed.
    fn record_leftovers(&self, limit: usize) -> Result<Vec<RecordLeftover>, Fault> {
        self.below().map_or(Ok(Vec::new()), |view| view.record_leftovers(limit))
    }

    /// Whether these records wait to be freed.
    fn is_record_leftover(&self, leftover: &RecordLeftover) -> Result<bool, Fault> {
        self.below().map_or(Ok(false), |view| view.is_record_leftover(leftover))
    }

    /// The latest stamp applied so far, in milliseconds.
    fn clock_ms(&self) -> Result<i64, Fault>;
}
