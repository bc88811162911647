//! Owns: running the machine here over records that a main stores. Fetches what a command or query reads, decides,
//! writes the changes back record by record, and publishes the events at the main.
//! Never: publish an event to local subscribers; they get it from the main's feed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use futures::StreamExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::handshake::NameStyle;
use super::main_client::{Effect, MainClient};
use super::per_session_lock::SessionLocks;
use crate::machine::apply::beside::not_here;
use crate::machine::change::{Change, SessionChange};
use crate::machine::entry::{Entry, SessionEntry};
use crate::machine::event::Event;
use crate::machine::feed_record::FeedEdge;
use crate::machine::ids::{EntryId, RequestId, SessionId};
use crate::machine::refusal::Fault;
use crate::machine::session::SessionMeta;
use crate::machine::view::{Facet, ListOrder, ListPoint, View};
use crate::machine::{Answer, Command, Found, Query, Stamped, apply, query};
use crate::mint::Mint;
use crate::proposal::AdapterError;
use crate::storage::state::kv::{Changed, Layer, Nothing};
use crate::storage::state::{Encoded, Records, write};

/// How many entries of a session are fetched one by one. A decision that needs more fetches all of them in one call.
const SINGLE_ENTRIES_MAX: usize = 2;

/// How many record writes of one mutation may be in flight.
const WRITES_AT_ONCE: usize = 16;

/// The most events in one call of publish-events.
const EVENTS_AT_ONCE: usize = 1000;

pub struct RemoteRecords {
    main: Arc<MainClient>,
    names: NameStyle,
    mint: Arc<dyn Mint>,
    locks: SessionLocks,
    /// The latest time in any record that was read or written. This kind of main does not tell its time.
    clock_ms: AtomicI64,
}

impl RemoteRecords {
    pub fn new(main: Arc<MainClient>, names: NameStyle, mint: Arc<dyn Mint>) -> RemoteRecords {
        RemoteRecords { main, names, mint, locks: SessionLocks::default(), clock_ms: AtomicI64::new(0) }
    }

    pub async fn ask(&self, asked: Query, deadline: Instant) -> Result<Found, AdapterError> {
        if asked.is_beside() {
            return Err(AdapterError::Refused(not_here("bridge")));
        }
        let found = self.decide(|view| query(view, &asked), deadline).await?;
        found.map_err(AdapterError::Refused)
    }

    /// The order of effects: lock the session, fetch and decide, write, publish, answer.
    pub async fn propose(&self, command: Command, deadline: Instant) -> Result<Answer, AdapterError> {
        if matches!(command, Command::Beside(_)) {
            return Err(AdapterError::Refused(not_here("bridge")));
        }
        let _lock = match command.session_id() {
            Some(session_id) => Some(self.locks.acquire(session_id, deadline).await.ok_or_else(session_busy)?),
            None => None,
        };
        let stamp = self.mint.stamp();
        let stamped = Stamped { stamp, request_id: RequestId::NONE, is_retry: false, scope: None, command };
        let outcome = self.decide(|view| apply(view, &stamped), deadline).await?;
        let answer = outcome.answer.map_err(AdapterError::Refused)?;
        for change in &outcome.changes {
            if let Change::Clock(at_ms) = change {
                self.clock_ms.fetch_max(*at_ms, Ordering::Relaxed);
            }
        }
        self.write(outcome.changes, deadline).await?;
        self.publish(&outcome.events, deadline).await;
        Ok(answer)
    }

    /// Runs a decision over the fetched records. If it reads a record that is missing, fetches that one and starts
    /// over.
    async fn decide<T>(
        &self,
        decision: impl Fn(&Fetched) -> Result<T, Fault>,
        deadline: Instant,
    ) -> Result<T, AdapterError> {
        let mut fetched = Fetched::default();
        loop {
            fetched.clock_ms = self.clock_ms.load(Ordering::Relaxed);
            let decided = decision(&fetched);
            let Some(need) = fetched.missing.take() else {
                return decided.map_err(|fault| AdapterError::Unavailable(fault.0));
            };
            self.fetch(&mut fetched, need, deadline).await?;
        }
    }

    async fn fetch(&self, fetched: &mut Fetched, need: Need, deadline: Instant) -> Result<(), AdapterError> {
        match &need {
            Need::Meta(session_id) => {
                let body = json!({ "session_id": session_id });
                let meta: Option<SessionMeta> = self.read("get-meta", body, deadline).await?;
                self.advance_clock(meta.as_slice());
                fetched.put(meta.into_iter().map(Change::put_meta).collect())?;
            }
            Need::Leaf(session_id) => {
                let leaf: Leaf = self.read("get-active-leaf", json!({ "session_id": session_id }), deadline).await?;
                let leaf = leaf.entry_id.map(|entry_id| Change::set_leaf(session_id, entry_id));
                fetched.put(leaf.into_iter().collect())?;
            }
            Need::Entry(session_id, entry_id) => {
                let body = json!({ "session_id": session_id, "entry_id": entry_id });
                let entry: Option<SessionEntry> = self.read("get-entry", body, deadline).await?;
                let entry = entry.map(|entry| Change::put_entry(session_id, Entry::from(entry)));
                fetched.put(entry.into_iter().collect())?;
            }
            Need::Entries(session_id) => {
                let all: Entries = self.read("list-entries", json!({ "session_id": session_id }), deadline).await?;
                let put = |entry| Change::put_entry(session_id, Entry::from(entry));
                fetched.put(all.entries.into_iter().map(put).collect())?;
            }
            Need::Metas => {
                let all: Metas = self.read("list-metas", json!({}), deadline).await?;
                self.advance_clock(&all.metas);
                fetched.put(all.metas.into_iter().map(Change::put_meta).collect())?;
            }
        }
        fetched.known.insert(need);
        Ok(())
    }

    fn advance_clock(&self, metas: &[SessionMeta]) {
        let latest = metas.iter().map(|meta| meta.updated_at).max();
        self.clock_ms.fetch_max(latest.unwrap_or(0), Ordering::Relaxed);
    }

    async fn read<T: DeserializeOwned>(&self, name: &str, body: Value, deadline: Instant) -> Result<T, AdapterError> {
        let function_id = self.names.function_id(name);
        let answer = self.main.call(&function_id, &body, Effect::Read, deadline).await?;
        // From text, because entries keep their bodies as text.
        serde_json::from_str(&answer.to_string()).map_err(|error| {
            AdapterError::Unavailable(format!("the main's answer to {function_id} cannot be read: {error}"))
        })
    }

    /// Writes a mutation's records. The session's meta record is written last and deleted first, because readers find
    /// the other records through it. A mutation that replaces a session deletes before it writes.
    async fn write(&self, mut changes: Vec<Change>, deadline: Instant) -> Result<(), AdapterError> {
        changes.sort_by_key(rank);
        let writes = changes.iter().filter_map(|change| self.raw(change));
        // Parents are sent before their children, and the leaf moves after all entries are written.
        let (deletions, writes): (Vec<_>, Vec<_>) = writes.partition(|(name, _)| name.starts_with("delete-"));
        let (entries, others): (Vec<_>, Vec<_>) = writes.into_iter().partition(|(name, _)| *name == "put-entry");
        let mut some_written = false;
        for (name, body) in deletions {
            partly_written(self.put(name, body, deadline).await, some_written)?;
            some_written = true;
        }
        let entries: Vec<_> = entries.into_iter().map(|(name, body)| self.put(name, body, deadline)).collect();
        let mut entries = futures::stream::iter(entries).buffered(WRITES_AT_ONCE);
        while let Some(written) = entries.next().await {
            partly_written(written, some_written)?;
            some_written = true;
        }
        for (name, body) in others {
            partly_written(self.put(name, body, deadline).await, some_written)?;
            some_written = true;
        }
        Ok(())
    }

    async fn put(&self, name: &'static str, body: Value, deadline: Instant) -> Result<(), AdapterError> {
        self.main.call(&self.names.function_id(name), &body, Effect::Write, deadline).await.map(|_| ())
    }

    /// The store call that writes a change; `None` for changes that only this project's own stores keep.
    fn raw(&self, change: &Change) -> Option<(&'static str, Value)> {
        let Change::Session(session_id, change) = change else { return None };
        Some(match change {
            SessionChange::PutMeta(meta) => ("put-meta", json!({ "meta": meta })),
            SessionChange::DeleteMeta => ("delete-meta", json!({ "session_id": session_id })),
            SessionChange::PutEntry(entry) => ("put-entry", json!({ "session_id": session_id, "entry": entry })),
            SessionChange::DeleteEntries => ("delete-entries", json!({ "session_id": session_id })),
            SessionChange::SetLeaf(entry_id) => {
                ("set-active-leaf", json!({ "session_id": session_id, "entry_id": entry_id }))
            }
            SessionChange::DeleteLeaf => ("delete-active-leaf", json!({ "session_id": session_id })),
        })
    }

    /// Publishes the events at the main. A failure does not undo the mutation, which is written already.
    async fn publish(&self, events: &[Event], deadline: Instant) {
        for batch in events.chunks(EVENTS_AT_ONCE) {
            let envelopes: Vec<Value> = batch.iter().map(envelope).collect();
            let body = json!({ "events": envelopes });
            if let Err(undone) = self.put("publish-events", body, deadline).await {
                tracing::error!(%undone, events = batch.len(), "a mutation was written, but its events may be lost");
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

fn session_busy() -> AdapterError {
    AdapterError::Unavailable("the deadline passed while earlier mutations of the session ran".to_owned())
}

/// If some records of the mutation are written already, a failed write leaves the outcome unknown.
fn partly_written(written: Result<(), AdapterError>, some_written: bool) -> Result<(), AdapterError> {
    match written {
        Err(AdapterError::Unavailable(why)) if some_written => Err(AdapterError::OutcomeUnknown(why)),
        Err(undone @ AdapterError::RefusedByMain { .. }) if some_written => {
            Err(AdapterError::OutcomeUnknown(undone.to_string()))
        }
        written => written,
    }
}

fn rank(change: &Change) -> u8 {
    match change {
        Change::Session(_, SessionChange::PutEntry(_)) => 1,
        Change::Session(_, SessionChange::SetLeaf(_)) => 2,
        Change::Session(_, SessionChange::PutMeta(_)) => 3,
        Change::Session(_, SessionChange::DeleteMeta) => 4,
        Change::Session(_, SessionChange::DeleteEntries) => 5,
        Change::Session(_, SessionChange::DeleteLeaf) => 6,
        Change::Answer(_) | Change::Feed(_) | Change::Work(_) | Change::Record(_) | Change::Clock(_) => 7,
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

/// Records that a decision reads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    Meta(SessionId),
    Leaf(SessionId),
    Entry(SessionId, EntryId),
    Entries(SessionId),
    Metas,
}

/// The records that were fetched so far, and the first one that a decision missed.
#[derive(Default)]
struct Fetched {
    records: Changed,
    clock_ms: i64,
    known: BTreeSet<Need>,
    missing: RefCell<Option<Need>>,
    singles: RefCell<BTreeMap<SessionId, usize>>,
}

impl Fetched {
    fn put(&mut self, changes: Vec<Change>) -> Result<(), AdapterError> {
        let written = write(&Layer { over: &self.records, base: &Nothing }, &Encoded::new(&changes));
        self.records.extend(written.map_err(|fault| AdapterError::Unavailable(fault.0))?);
        Ok(())
    }

    /// Fails if none of the needs is fetched yet, and notes the first of them as missing.
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

    fn entries_after(
        &self,
        session_id: &SessionId,
        after: Option<&EntryId>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Entry>, Fault> {
        self.need(&[Need::Entries(session_id.clone())])?;
        self.over(|records| records.entries_after(session_id, after, limit, bytes_max))
    }

    /// This kind of main has no sequence numbers, no dedup records and no readable feed.
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

    fn feed_edge(&self) -> Result<FeedEdge, Fault> {
        self.over(|records| records.feed_edge())
    }

    fn clock_ms(&self) -> Result<i64, Fault> {
        Ok(self.clock_ms)
    }
}
