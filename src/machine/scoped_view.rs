//! Owns: the state as a caller with a scope sees it: sessions outside the scope are not there.
//! Never: what is done about a session that is hidden (`apply/within.rs`).

use std::cell::RefCell;
use std::sync::Arc;

use super::beside::RecordKey;
use super::entry::{Entry, Place};
use super::feed_record::Record;
use super::ids::{EntryId, FeedPlace, Position, SessionId};
use super::json::Json;
use super::refusal::Fault;
use super::scope::Scope;
use super::section::Section;
use super::session::SessionMeta;
use super::view::{Facet, ListOrder, ListPoint, View};

pub struct ScopedView<'a> {
    view: &'a dyn View,
    scope: &'a Scope,
    /// The last session that was looked at. One command or query reads many entries of one session.
    seen: RefCell<Option<(SessionId, bool)>>,
}

impl<'a> ScopedView<'a> {
    pub fn new(view: &'a dyn View, scope: &'a Scope) -> ScopedView<'a> {
        ScopedView { view, scope, seen: RefCell::new(None) }
    }

    fn shows(&self, session_id: &SessionId) -> Result<bool, Fault> {
        if let Some((seen, shown)) = &*self.seen.borrow()
            && seen == session_id
        {
            return Ok(*shown);
        }
        let shown = self.meta(session_id)?.is_some();
        *self.seen.borrow_mut() = Some((session_id.clone(), shown));
        Ok(shown)
    }

    fn shows_records(&self, key: &RecordKey) -> Result<bool, Fault> {
        match &key.session_id {
            Some(session_id) => self.shows(session_id),
            None => Ok(key.space.is_shown_to_scopes()),
        }
    }
}

impl View for ScopedView<'_> {
    /// Long work is shown too: commands need it to keep the copies of a fork equal to their source.
    fn below(&self) -> Option<&dyn View> {
        Some(self.view)
    }

    fn scope(&self) -> Option<&Scope> {
        Some(self.scope)
    }

    fn meta(&self, session_id: &SessionId) -> Result<Option<SessionMeta>, Fault> {
        let meta = self.view.meta(session_id)?;
        Ok(meta.filter(|meta| self.scope.includes(meta.metadata.as_ref())))
    }

    fn leaf(&self, session_id: &SessionId) -> Result<Option<EntryId>, Fault> {
        if self.shows(session_id)? { self.view.leaf(session_id) } else { Ok(None) }
    }

    fn entry(&self, session_id: &SessionId, entry_id: &EntryId) -> Result<Option<Entry>, Fault> {
        if self.shows(session_id)? { self.view.entry(session_id, entry_id) } else { Ok(None) }
    }

    fn place(&self, session_id: &SessionId, entry_id: &EntryId) -> Result<Option<Option<Place>>, Fault> {
        if self.shows(session_id)? { self.view.place(session_id, entry_id) } else { Ok(None) }
    }

    fn keeps_sections(&self) -> bool {
        self.view.keeps_sections()
    }

    fn section(&self, session_id: &SessionId, end: &EntryId, depth: u64) -> Result<Option<Arc<Section>>, Fault> {
        if self.shows(session_id)? { self.view.section(session_id, end, depth) } else { Ok(None) }
    }

    fn entries(&self, session_id: &SessionId) -> Result<Vec<Entry>, Fault> {
        if self.shows(session_id)? { self.view.entries(session_id) } else { Ok(Vec::new()) }
    }

    fn entries_after(
        &self,
        session_id: &SessionId,
        after: Option<&EntryId>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Entry>, Fault> {
        if !self.shows(session_id)? {
            return Ok(Vec::new());
        }
        self.view.entries_after(session_id, after, limit, bytes_max)
    }

    fn seq(&self, session_id: &SessionId) -> Result<u64, Fault> {
        if self.shows(session_id)? { self.view.seq(session_id) } else { Ok(0) }
    }

    /// Not filtered here: a list under a scope joins the facets of the scope (`query/mod.rs`), and reads every record
    /// through `meta`.
    fn listed(
        &self,
        facet: &Facet,
        order: ListOrder,
        from: Option<&ListPoint>,
        limit: usize,
    ) -> Result<Vec<ListPoint>, Fault> {
        self.view.listed(facet, order, from, limit)
    }

    fn feed_records(&self, _: Option<FeedPlace>, _: usize) -> Result<Vec<(FeedPlace, Record)>, Fault> {
        Ok(Vec::new())
    }

    fn cursor(&self, _: &str) -> Result<Option<Position>, Fault> {
        Ok(None)
    }

    fn cursors(&self, _: &str) -> Result<Vec<(String, Position)>, Fault> {
        Ok(Vec::new())
    }

    fn record(&self, key: &RecordKey) -> Result<Option<Json>, Fault> {
        if self.shows_records(key)? { self.view.record(key) } else { Ok(None) }
    }

    fn records(
        &self,
        under: &RecordKey,
        after: Option<&RecordKey>,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Json)>, Fault> {
        if self.shows_records(under)? { self.view.records(under, after, limit) } else { Ok(Vec::new()) }
    }

    fn clock_ms(&self) -> Result<i64, Fault> {
        self.view.clock_ms()
    }
}
