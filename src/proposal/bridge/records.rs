//! Owns: the machine over records that live at a plain main: whatever a command or a query looks at is fetched before it
//! is decided, its changes are written back record by record, its events are published there.
//! Never: an event told to anybody here; it comes back over the main's feed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use futures::StreamExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::introduce::Spelling;
use super::mains::{Effect, Mains};
use super::turns::Turns;
use crate::machine::entry::{Entry, SessionEntry};
use crate::machine::event::Event;
use crate::machine::feed::{FeedEdge, Record};
use crate::machine::ids::{EntryId, FeedPlace, Position, RequestId, SessionId};
use crate::machine::refusal::{Fault, Refusal};
use crate::machine::session::SessionMeta;
use crate::machine::view::{Change, Facet, ListOrder, ListPoint, View};
use crate::machine::{Answer, Command, Found, Query, Stamped, apply, query};
use crate::proposal::Undone;
use crate::proposal::mint::Mint;
use crate::storage::kv::{Changed, Layer, Nothing};
use crate::storage::view::{Records, write};

/// Entries of one session that are fetched one by one; who wants more gets them all at once.
const SINGLE_ENTRIES_MAX: usize = 2;

/// Raw writes of one mutation that are on their way together.
const WRITES_AT_ONCE: usize = 16;

/// Events one call of publish-events takes.
const EVENTS_AT_ONCE: usize = 1000;

pub struct Remote {
    mains: Arc<Mains>,
    spelling: Spelling,
    mint: Arc<dyn Mint>,
    turns: Turns,
    /// The latest time seen in any record or given to one. A plain main has no clock that could be asked.
    clock_ms: AtomicI64,
}

impl Remote {
    pub fn new(mains: Arc<Mains>, spelling: Spelling, mint: Arc<dyn Mint>) -> Remote {
        Remote { mains, spelling, mint, turns: Turns::default(), clock_ms: AtomicI64::new(0) }
    }

    pub async fn ask(&self, asked: Query, deadline: Instant) -> Result<Found, Undone> {
        let found = self.over_fetched(|view| query(view, &asked), deadline).await?;
        found.map_err(Undone::Refused)
    }

    /// The order of effects: take the session's turn, fetch and decide, write, publish, answer.
    pub async fn propose(&self, command: Command, deadline: Instant) -> Result<Answer, Undone> {
        let _turn = match command.session_id() {
            Some(session_id) => Some(self.turns.take(session_id, deadline).await?),
            None => None,
        };
        let stamp = self.mint.stamp();
        let stamped = Stamped { stamp, request_id: RequestId::UNREPEATED, repeated: false, command };
        let outcome = self.over_fetched(|view| apply(view, &stamped), deadline).await?;
        let answer = outcome.answer.map_err(Undone::Refused)?;
        for change in &outcome.changes {
            if let Change::SetClock(at_ms) = change {
                self.clock_ms.fetch_max(*at_ms, Ordering::Relaxed);
            }
        }
        self.write(outcome.changes, deadline).await?;
        self.publish(&outcome.events, deadline).await;
        Ok(answer)
    }

    /// Runs a decision again and again, until everything it looks at was fetched.
    async fn over_fetched<T>(
        &self,
        decide: impl Fn(&Fetched) -> Result<T, Fault>,
        deadline: Instant,
    ) -> Result<T, Undone> {
        let mut fetched = Fetched::default();
        loop {
            fetched.clock_ms = self.clock_ms.load(Ordering::Relaxed);
            let decided = decide(&fetched);
            let Some(need) = fetched.missing.take() else {
                return decided.map_err(|fault| Undone::Unavailable(fault.0));
            };
            self.fetch(&mut fetched, need, deadline).await?;
        }
    }

    async fn fetch(&self, fetched: &mut Fetched, need: Need, deadline: Instant) -> Result<(), Undone> {
        match &need {
            Need::Meta(session_id) => {
                let body = json!({ "session_id": session_id });
                let meta: Option<SessionMeta> = self.read("get-meta", body, deadline).await?;
                self.notice(meta.as_slice());
                fetched.put(meta.into_iter().map(Change::PutMeta).collect())?;
            }
            Need::Leaf(session_id) => {
                let leaf: Leaf = self.read("get-active-leaf", json!({ "session_id": session_id }), deadline).await?;
                let leaf = leaf.entry_id.map(|entry_id| Change::SetLeaf(session_id.clone(), entry_id));
                fetched.put(leaf.into_iter().collect())?;
            }
            Need::Entry(session_id, entry_id) => {
                let body = json!({ "session_id": session_id, "entry_id": entry_id });
                let entry: Option<SessionEntry> = self.read("get-entry", body, deadline).await?;
                let entry = entry.map(|entry| Change::PutEntry(session_id.clone(), Entry::from(entry)));
                fetched.put(entry.into_iter().collect())?;
            }
            Need::Entries(session_id) => {
                let all: Entries = self.read("list-entries", json!({ "session_id": session_id }), deadline).await?;
                let put = |entry| Change::PutEntry(session_id.clone(), Entry::from(entry));
                fetched.put(all.entries.into_iter().map(put).collect())?;
            }
            Need::Metas => {
                let all: Metas = self.read("list-metas", json!({}), deadline).await?;
                self.notice(&all.metas);
                fetched.put(all.metas.into_iter().map(Change::PutMeta).collect())?;
            }
        }
        fetched.known.insert(need);
        Ok(())
    }

    fn notice(&self, metas: &[SessionMeta]) {
        let latest = metas.iter().map(|meta| meta.updated_at).max();
        self.clock_ms.fetch_max(latest.unwrap_or(0), Ordering::Relaxed);
    }

    async fn read<T: DeserializeOwned>(&self, name: &str, body: Value, deadline: Instant) -> Result<T, Undone> {
        let function_id = self.spelling.id(name);
        let answer = self.mains.call(&function_id, &body, Effect::None, deadline).await?;
        serde_json::from_value(answer)
            .map_err(|error| Undone::Unavailable(format!("the main's answer to {function_id} cannot be read: {error}")))
    }

    /// Writes a mutation's records. The session's own record comes last, and goes first: what it does not count yet, or
    /// no longer, is not seen.
    async fn write(&self, mut changes: Vec<Change>, deadline: Instant) -> Result<(), Undone> {
        changes.sort_by_key(rank);
        let writes = changes.iter().filter_map(|change| self.raw(change));
        // Parents are sent before their children, and all entries are there before the leaf moves.
        let (entries, others): (Vec<_>, Vec<_>) = writes.partition(|(name, _)| *name == "put-entry");
        let mut begun = false;
        let entries: Vec<_> = entries.into_iter().map(|(name, body)| self.put(name, body, deadline)).collect();
        let mut entries = futures::stream::iter(entries).buffered(WRITES_AT_ONCE);
        while let Some(written) = entries.next().await {
            in_part(written, begun)?;
            begun = true;
        }
        for (name, body) in others {
            in_part(self.put(name, body, deadline).await, begun)?;
            begun = true;
        }
        Ok(())
    }

    async fn put(&self, name: &'static str, body: Value, deadline: Instant) -> Result<(), Undone> {
        self.mains.call(&self.spelling.id(name), &body, Effect::Some, deadline).await.map(|_| ())
    }

    /// The raw write that carries out a change; none for what only this project's stores keep.
    fn raw(&self, change: &Change) -> Option<(&'static str, Value)> {
        Some(match change {
            Change::PutMeta(meta) => ("put-meta", json!({ "meta": meta })),
            Change::DeleteMeta(session_id) => ("delete-meta", json!({ "session_id": session_id })),
            Change::PutEntry(session_id, entry) => ("put-entry", json!({ "session_id": session_id, "entry": entry })),
            Change::DeleteEntries(session_id) => ("delete-entries", json!({ "session_id": session_id })),
            Change::SetLeaf(session_id, entry_id) => {
                ("set-active-leaf", json!({ "session_id": session_id, "entry_id": entry_id }))
            }
            Change::DeleteLeaf(session_id) => ("delete-active-leaf", json!({ "session_id": session_id })),
            Change::SetSeq(..)
            | Change::DeleteSeq(_)
            | Change::SetClock(_)
            | Change::Remember(..)
            | Change::Forget(_)
            | Change::Record { .. }
            | Change::TrimFeed { .. }
            | Change::SetCursor(..) => return None,
        })
    }

    /// Hands the events to the main, which tells everybody. The mutation stands, whatever becomes of them.
    async fn publish(&self, events: &[Event], deadline: Instant) {
        for batch in events.chunks(EVENTS_AT_ONCE) {
            let envelopes: Vec<Value> = batch.iter().map(envelope).collect();
            let body = json!({ "events": envelopes });
            if let Err(undone) = self.put("publish-events", body, deadline).await {
                tracing::error!(%undone, events = batch.len(), "a mutation is done, but its events may not be heard");
                return;
            }
        }
    }
}

fn envelope(event: &Event) -> Value {
    let mut envelope = json!({ "trigger_type": event.kind().trigger_type(), "payload": event.payload().value() });
    if let Some((metadata, fields)) = event.metadata.as_ref().zip(envelope.as_object_mut()) {
        fields.insert("session_metadata".to_owned(), Value::Object(metadata.clone()));
    }
    envelope
}

/// A mutation some of whose records were written is neither done nor undone.
fn in_part(written: Result<(), Undone>, begun: bool) -> Result<(), Undone> {
    match written {
        Err(Undone::Unavailable(why)) if begun => Err(Undone::OutcomeUnknown(why)),
        Err(undone @ Undone::RefusedThere { .. }) if begun => Err(Undone::OutcomeUnknown(undone.to_string())),
        written => written,
    }
}

fn rank(change: &Change) -> u8 {
    match change {
        Change::PutEntry(..) => 1,
        Change::SetLeaf(..) => 2,
        Change::PutMeta(_) => 3,
        Change::DeleteMeta(_) => 4,
        Change::DeleteEntries(_) => 5,
        Change::DeleteLeaf(_) => 6,
        Change::SetSeq(..)
        | Change::DeleteSeq(_)
        | Change::SetClock(_)
        | Change::Remember(..)
        | Change::Forget(_)
        | Change::Record { .. }
        | Change::TrimFeed { .. }
        | Change::SetCursor(..) => 7,
    }
}

#[derive(Deserialize)]
struct Leaf {
    entry_id: Option<EntryId>,
}

#[derive(Deserialize)]
struct Entries {
    entries: Vec<SessionEntry>,
}

#[derive(Deserialize)]
struct Metas {
    metas: Vec<SessionMeta>,
}

/// A record, or records, that a decision looks at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    Meta(SessionId),
    Leaf(SessionId),
    Entry(SessionId, EntryId),
    Entries(SessionId),
    Metas,
}

/// What was fetched so far, and what a decision looked for in vain.
#[derive(Default)]
struct Fetched {
    records: Changed,
    clock_ms: i64,
    known: BTreeSet<Need>,
    missing: RefCell<Option<Need>>,
    singles: RefCell<BTreeMap<SessionId, usize>>,
}

impl Fetched {
    fn put(&mut self, changes: Vec<Change>) -> Result<(), Undone> {
        let written = write(&Layer { over: &self.records, base: &Nothing }, &changes);
        self.records.extend(written.map_err(|fault| Undone::Unavailable(fault.0))?);
        Ok(())
    }

    /// Lets a decision go on when one of the needs is fetched already, and notes the first of them otherwise.
    fn need(&self, needs: &[Need]) -> Result<(), Fault> {
        if needs.iter().any(|need| self.known.contains(need)) {
            return Ok(());
        }
        *self.missing.borrow_mut() = needs.first().cloned();
        Err(Fault("not fetched yet".to_owned()))
    }

    fn over<T>(&self, look: impl FnOnce(&dyn View) -> Result<T, Fault>) -> Result<T, Fault> {
        look(&Records::new(&Layer { over: &self.records, base: &Nothing }))
    }
}

impl View for Fetched {
    fn meta(&self, session_id: &SessionId) -> Result<Option<SessionMeta>, Fault> {
        self.need(&[Need::Meta(session_id.clone()), Need::Metas])?;
        self.over(|records| records.meta(session_id))
    }

    fn leaf(&self, session_id: &SessionId) -> Result<Option<EntryId>, Fault> {
        self.need(&[Need::Leaf(session_id.clone())])?;
        self.over(|records| records.leaf(session_id))
    }

    fn entry(&self, session_id: &SessionId, entry_id: &EntryId) -> Result<Option<Entry>, Fault> {
        let (one, all) = (Need::Entry(session_id.clone(), entry_id.clone()), Need::Entries(session_id.clone()));
        if !self.known.contains(&one) && !self.known.contains(&all) {
            let mut singles = self.singles.borrow_mut();
            let fetched = singles.entry(session_id.clone()).or_default();
            *fetched += 1;
            if *fetched > SINGLE_ENTRIES_MAX {
                self.need(std::slice::from_ref(&all))?;
            }
        }
        self.need(&[one, all])?;
        self.over(|records| records.entry(session_id, entry_id))
    }

    fn entries(&self, session_id: &SessionId) -> Result<Vec<Entry>, Fault> {
        self.need(&[Need::Entries(session_id.clone())])?;
        self.over(|records| records.entries(session_id))
    }

    /// A main of records numbers no events, and keeps no feed that could be read.
    fn seq(&self, _session_id: &SessionId) -> Result<u64, Fault> {
        Ok(0)
    }

    fn listed(
        &self,
        facet: &Facet,
        order: ListOrder,
        from: Option<&ListPoint>,
        limit: usize,
    ) -> Result<Vec<ListPoint>, Fault> {
        self.need(&[Need::Metas])?;
        self.over(|records| records.listed(facet, order, from, limit))
    }

    fn remembered(&self, _request_id: RequestId) -> Result<Option<Result<Answer, Refusal>>, Fault> {
        Ok(None)
    }

    fn recorded(&self, _after: Option<FeedPlace>, _limit: usize) -> Result<Vec<(FeedPlace, Record)>, Fault> {
        Ok(Vec::new())
    }

    fn feed_edge(&self) -> Result<FeedEdge, Fault> {
        self.over(|records| records.feed_edge())
    }

    fn deleted_at(&self, _session_id: &SessionId) -> Result<Option<FeedPlace>, Fault> {
        Ok(None)
    }

    fn cursor(&self, _attach: &str) -> Result<Option<Position>, Fault> {
        Ok(None)
    }

    fn cursors(&self, _starting: &str) -> Result<Vec<(String, Position)>, Fault> {
        Ok(Vec::new())
    }

    fn clock_ms(&self) -> Result<i64, Fault> {
        Ok(self.clock_ms)
    }
}
