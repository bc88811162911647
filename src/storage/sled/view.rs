//! Owns: the machine's `View` of the whole state: the newest commits, decoded (`recent.rs`), over the layers of keys.
//! Never: a write.

use std::sync::Arc;

use super::recent::{Recent, read_record};
use crate::machine::Answer;
use crate::machine::entry::{Entry, Place};
use crate::machine::feed_record::{FeedEdge, Record};
use crate::machine::ids::{EntryId, FeedPlace, RequestId, SessionId};
use crate::machine::refusal::{Fault, Refusal};
use crate::machine::section::Section;
use crate::machine::session::SessionMeta;
use crate::machine::view::{Facet, ListOrder, ListPoint, View};
use crate::storage::state::kv::{Kv, Layer};
use crate::storage::state::section_cache::SectionCache;
use crate::storage::state::{Records, answer};

pub struct StateView<'a> {
    pub recent: &'a Recent,
    /// The layers of keys.
    pub records: Records<'a, dyn Kv + 'a>,
    pub sections: &'a SectionCache,
}

impl StateView<'_> {
    /// The records of the layers, which are told where the entries of the session are if that is known.
    fn entries_of(&self, session_id: &SessionId) -> &Records<'_, dyn Kv + '_> {
        if let Some(head) = self.recent.head(session_id) {
            self.records.know_home(session_id, head.home());
        }
        &self.records
    }
}

impl View for StateView<'_> {
    fn below(&self) -> Option<&dyn View> {
        Some(&self.records)
    }

    fn meta(&self, session_id: &SessionId) -> Result<Option<SessionMeta>, Fault> {
        match self.recent.head(session_id) {
            Some(head) => Ok(head.meta().cloned()),
            None => self.records.meta(session_id),
        }
    }

    fn leaf(&self, session_id: &SessionId) -> Result<Option<EntryId>, Fault> {
        match self.recent.head(session_id) {
            Some(head) => Ok(head.leaf().cloned()),
            None => self.records.leaf(session_id),
        }
    }

    fn seq(&self, session_id: &SessionId) -> Result<u64, Fault> {
        match self.recent.head(session_id) {
            Some(head) => Ok(head.seq()),
            None => self.records.seq(session_id),
        }
    }

    fn entry(&self, session_id: &SessionId, entry_id: &EntryId) -> Result<Option<Entry>, Fault> {
        self.entries_of(session_id).entry(session_id, entry_id)
    }

    fn place(&self, session_id: &SessionId, entry_id: &EntryId) -> Result<Option<Option<Place>>, Fault> {
        match self.recent.head(session_id).and_then(|head| head.place(entry_id)) {
            Some(place) => Ok(Some(Some(place.clone()))),
            None => self.entries_of(session_id).place(session_id, entry_id),
        }
    }

    fn keeps_sections(&self) -> bool {
        true
    }

    fn section(&self, session_id: &SessionId, end: &EntryId, depth: u64) -> Result<Option<Arc<Section>>, Fault> {
        if let Some(known) = self.sections.get(session_id, end, depth) {
            return Ok(known);
        }
        let section = Section::read(self, session_id, end, depth)?.map(Arc::new);
        self.sections.put(session_id, end, depth, section.clone());
        Ok(section)
    }

    fn entries(&self, session_id: &SessionId) -> Result<Vec<Entry>, Fault> {
        self.entries_of(session_id).entries(session_id)
    }

    fn entries_after(
        &self,
        session_id: &SessionId,
        after: Option<&EntryId>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Entry>, Fault> {
        self.entries_of(session_id).entries_after(session_id, after, limit, bytes_max)
    }

    fn listed(
        &self,
        facet: &Facet,
        order: ListOrder,
        from: Option<&ListPoint>,
        limit: usize,
    ) -> Result<Vec<ListPoint>, Fault> {
        self.recent.with_list_keys(|keys| {
            let listed = Layer { over: keys, base: self.records.kv };
            Records::new(&listed).listed(facet, order, from, limit)
        })
    }

    fn recorded_answer(&self, request_id: RequestId) -> Result<Option<Result<Answer, Refusal>>, Fault> {
        match self.recent.answer(request_id) {
            Some(value) => answer::decode(value).map(Some),
            None => self.records.recorded_answer(request_id),
        }
    }

    fn feed_records(&self, after: Option<FeedPlace>, limit: usize) -> Result<Vec<(FeedPlace, Record)>, Fault> {
        let mut found = self.records.feed_records(after, limit)?;
        let newest = self.recent.feed_after(after).iter().take(limit - found.len());
        for record in newest {
            found.push(read_record(record)?);
        }
        Ok(found)
    }

    fn feed_edge(&self) -> Result<FeedEdge, Fault> {
        self.recent.feed_edge().map_or_else(|| self.records.feed_edge(), Ok)
    }

    fn clock_ms(&self) -> Result<i64, Fault> {
        self.recent.clock_ms().map_or_else(|| self.records.clock_ms(), Ok)
    }
}
