//! Owns: `LocalAdapter`, one process that holds all data itself: in memory for tests, over JSONL files for `fs`.
//! One writer thread carries out proposals in the order of a bounded queue; what waits together is synced together.
//! Never: replication. Never makes visible, answers or publishes what is not on disk yet.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::mint::Mint;
use super::{Adapter, Undone};
use crate::events::history::History;
use crate::events::{Committed, EventSink};
use crate::machine::event::Event;
use crate::machine::feed;
use crate::machine::ids::{FeedPlace, Position, RequestId, SessionId};
use crate::machine::refusal::{Fault, Refusal};
use crate::machine::view::{Change, View};
use crate::machine::{Answer, Command, Found, Outcome, Query, Stamped, apply, query};
use crate::storage::jsonl::JsonlDir;
use crate::storage::kv::{Changed, Layer};
use crate::storage::memory::{MemoryStore, Tree};
use crate::storage::view::{Records, write};

/// A second of proposals at the pace of a slow disk; past that, waiting longer helps nobody.
const PROPOSALS_MAX: usize = 4096;

/// Proposals that share one sync. Bounds what a failed sync takes back.
const BATCH_MAX: usize = 512;

/// Where commits go before anyone hears of them.
pub trait Journal: Send + 'static {
    /// All changes are durable, or none of them is and nothing of them will reappear.
    fn keep(&mut self, changes: &[Change]) -> io::Result<()>;

    /// Why this journal can never hold the session, if so.
    fn refuses(&self, session_id: &SessionId) -> Option<String>;
}

impl Journal for JsonlDir {
    fn keep(&mut self, changes: &[Change]) -> io::Result<()> {
        self.write(changes)?;
        self.sync()
    }

    fn refuses(&self, session_id: &SessionId) -> Option<String> {
        JsonlDir::refuses(self, session_id)
    }
}

pub struct LocalAdapter {
    store: Arc<MemoryStore>,
    /// The place of the last change.
    applied: Arc<AtomicU64>,
    /// Gone after `close`.
    queue: Mutex<Option<mpsc::Sender<Proposal>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl LocalAdapter {
    /// Data that lives as long as the process. For tests.
    pub fn memory(mint: Arc<dyn Mint>, sink: Arc<dyn EventSink>) -> LocalAdapter {
        LocalAdapter::start(Changed::new(), None, 0, mint, sink).expect("a test can start a thread")
    }

    /// Data in JSONL files under `dir`, one per session; opens what is there.
    pub fn open_jsonl(dir: &Path, mint: Arc<dyn Mint>, sink: Arc<dyn EventSink>) -> io::Result<LocalAdapter> {
        let (files, state) = JsonlDir::open(dir)?;
        // The files keep no index. Starting from the clock, no position is ever given twice, as long as fewer than
        // 65,536 commits were made per millisecond of the last run.
        let last_index = u64::try_from(mint.stamp().at_ms).unwrap_or(0) << 16;
        LocalAdapter::start(state, Some(Box::new(files)), last_index, mint, sink)
    }

    /// Starts over `state`. The first commit gets the index after `last_index`.
    pub fn start(
        state: Changed,
        journal: Option<Box<dyn Journal>>,
        last_index: u64,
        mint: Arc<dyn Mint>,
        sink: Arc<dyn EventSink>,
    ) -> io::Result<LocalAdapter> {
        let store = Arc::new(MemoryStore::new());
        store.merge(state);
        // The feed of an earlier process is not kept.
        let beginning = Change::TrimFeed { upto: FeedPlace { index: last_index, ordinal: u32::MAX } };
        let begun = write(&*store.tree(), &[beginning]).map_err(|fault| io::Error::other(fault.0))?;
        store.merge(begun);
        let applied = Arc::new(AtomicU64::new(last_index));
        let (queue, proposals) = mpsc::channel(PROPOSALS_MAX);
        let started_ms = mint.stamp().at_ms;
        let readable = Arc::clone(&applied);
        let writer =
            Writer { store: Arc::clone(&store), journal, last_index, applied: readable, started_ms, mint, sink };
        let writer =
            std::thread::Builder::new().name("local-writer".to_owned()).spawn(move || writer.run(proposals))?;
        Ok(LocalAdapter { store, applied, queue: Mutex::new(Some(queue)), writer: Mutex::new(Some(writer)) })
    }

    /// Carries out what is queued, then ends the writer. Later proposals are answered `Unavailable`.
    pub fn close(&self) {
        drop(lock(&self.queue).take());
        if let Some(writer) = lock(&self.writer).take()
            && writer.join().is_err()
        {
            tracing::error!("the writer of the local store panicked");
        }
    }

    async fn order(
        &self,
        command: Command,
        request_id: Option<RequestId>,
        deadline: Instant,
    ) -> Result<Answer, Undone> {
        let (reply, mut answer) = oneshot::channel();
        let ticket = Arc::new(Ticket::default());
        self.enqueue(Proposal { command, request_id, deadline, ticket: Arc::clone(&ticket), reply })?;
        match tokio::time::timeout_at(deadline.into(), &mut answer).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_)) => Err(Undone::OutcomeUnknown("the store's writer stopped".to_owned())),
            Err(_) if ticket.abandon() => Err(late()),
            // The writer has it. The answer may have come in this very moment.
            Err(_) => answer.try_recv().unwrap_or_else(|_| {
                Err(Undone::OutcomeUnknown("the deadline passed while the write was under way".to_owned()))
            }),
        }
    }

    fn enqueue(&self, proposal: Proposal) -> Result<(), Undone> {
        let queue = lock(&self.queue);
        let queue = queue.as_ref().ok_or_else(|| Undone::Unavailable("the store is closed".to_owned()))?;
        queue.try_send(proposal).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => {
                Undone::Unavailable(format!("{PROPOSALS_MAX} mutations are waiting already; retry later"))
            }
            mpsc::error::TrySendError::Closed(_) => Undone::Unavailable("the store's writer has stopped".to_owned()),
        })
    }
}

impl Drop for LocalAdapter {
    fn drop(&mut self) {
        self.close();
    }
}

impl Adapter for LocalAdapter {
    fn propose(&self, command: Command, deadline: Instant) -> BoxFuture<'_, Result<Answer, Undone>> {
        self.order(command, None, deadline).boxed()
    }

    fn propose_once(
        &self,
        command: Command,
        request_id: RequestId,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Answer, Undone>> {
        self.order(command, Some(request_id), deadline).boxed()
    }

    fn ask(&self, asked: Query, deadline: Instant) -> BoxFuture<'_, Result<Found, Undone>> {
        async move {
            if Instant::now() >= deadline {
                return Err(late());
            }
            match query(&Records::new(&*self.store.tree()), &asked) {
                Ok(Ok(found)) => Ok(found),
                Ok(Err(refusal)) => Err(Undone::Refused(refusal)),
                Err(fault) => Err(Undone::Unavailable(fault.0)),
            }
        }
        .boxed()
    }
}

impl History for LocalAdapter {
    fn look(&self, look: &mut dyn FnMut(&dyn View)) {
        look(&Records::new(&*self.store.tree()));
    }

    fn applied(&self) -> FeedPlace {
        FeedPlace { index: self.applied.load(Ordering::Acquire), ordinal: u32::MAX }
    }

    fn catch_up(&self) -> BoxFuture<'_, Result<(), String>> {
        async { Ok(()) }.boxed()
    }
}

fn late() -> Undone {
    Undone::Unavailable("the deadline passed before the store came to it".to_owned())
}

fn forgotten() -> Undone {
    let why = "it was repeated so late that nobody remembers whether it had happened";
    Undone::OutcomeUnknown(why.to_owned())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Proposal {
    command: Command,
    /// What its caller calls it, if it may come again.
    request_id: Option<RequestId>,
    deadline: Instant,
    ticket: Arc<Ticket>,
    reply: oneshot::Sender<Result<Answer, Undone>>,
}

/// Who has a proposal now: settles the race between a caller that gives up and the writer that takes it.
#[derive(Default)]
struct Ticket(AtomicU8);

impl Ticket {
    const QUEUED: u8 = 0;
    const TAKEN: u8 = 1;
    const ABANDONED: u8 = 2;

    /// True when the writer will never carry it out.
    fn abandon(&self) -> bool {
        self.leave_queue(Ticket::ABANDONED)
    }

    /// True when the caller still wants it.
    fn take(&self) -> bool {
        self.leave_queue(Ticket::TAKEN)
    }

    fn leave_queue(&self, to: u8) -> bool {
        self.0.compare_exchange(Ticket::QUEUED, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The one thread that changes anything.
struct Writer {
    store: Arc<MemoryStore>,
    journal: Option<Box<dyn Journal>>,
    last_index: u64,
    /// What was answered before this time is not remembered: the files have no place for it.
    started_ms: i64,
    /// The same, for readers.
    applied: Arc<AtomicU64>,
    mint: Arc<dyn Mint>,
    sink: Arc<dyn EventSink>,
}

/// Commands decided against the state and each other, not yet visible to anyone.
#[derive(Default)]
struct Batch {
    changed: Changed,
    changes: Vec<Change>,
    decided: Vec<Decided>,
}

struct Decided {
    reply: oneshot::Sender<Result<Answer, Undone>>,
    answer: Result<Answer, Undone>,
    /// Its place in the history, when it changed something.
    index: Option<u64>,
    events: Vec<Event>,
}

impl Writer {
    fn run(mut self, mut proposals: mpsc::Receiver<Proposal>) {
        while let Some(first) = proposals.blocking_recv() {
            let mut waiting = vec![first];
            while waiting.len() < BATCH_MAX
                && let Ok(next) = proposals.try_recv()
            {
                waiting.push(next);
            }
            self.carry_out(waiting);
        }
    }

    /// The order of effects: decide, keep, make visible, answer, publish.
    fn carry_out(&mut self, proposals: Vec<Proposal>) {
        let batch = self.decide(proposals);
        if !batch.changes.is_empty()
            && let Some(journal) = &mut self.journal
            && let Err(error) = journal.keep(&batch.changes)
        {
            tracing::error!(%error, mutations = batch.decided.len(), "a batch could not be written; nothing of it happened");
            let why = format!("the write to disk failed: {error}");
            for decided in batch.decided {
                answer(decided.reply, Err(Undone::Unavailable(why.clone())));
            }
            return;
        }
        self.store.merge(batch.changed);
        let last = batch.decided.iter().filter_map(|decided| decided.index).max();
        self.applied.fetch_max(last.unwrap_or(0), Ordering::Release);
        for decided in batch.decided {
            answer(decided.reply, decided.answer);
            if let Some(index) = decided.index {
                self.last_index = index;
                self.publish(decided.events);
            }
        }
    }

    fn decide(&self, proposals: Vec<Proposal>) -> Batch {
        let tree = self.store.tree();
        let mut batch = Batch::default();
        let mut last_index = self.last_index;
        for Proposal { command, request_id, deadline, ticket, reply } in proposals {
            if !ticket.take() {
                continue;
            }
            if Instant::now() >= deadline {
                answer(reply, Err(late()));
                continue;
            }
            if request_id.is_some_and(|id| id.born_ms() < self.started_ms) {
                answer(reply, Err(forgotten()));
                continue;
            }
            let (repeated, request_id) = (request_id.is_some(), request_id.unwrap_or(RequestId::UNREPEATED));
            let stamped = Stamped { stamp: self.mint.stamp(), request_id, repeated, command };
            let decided = match self.decide_one(&tree, &mut batch.changed, &stamped, last_index + 1) {
                Ok(Outcome { answer: Ok(Answer::Forgotten), .. }) => {
                    Decided { reply, answer: Err(forgotten()), index: None, events: Vec::new() }
                }
                Ok(outcome) => {
                    let index = (!outcome.changes.is_empty()).then_some(last_index + 1);
                    last_index = index.unwrap_or(last_index);
                    batch.changes.extend(outcome.changes);
                    Decided { reply, answer: outcome.answer.map_err(Undone::Refused), index, events: outcome.events }
                }
                Err(fault) => {
                    Decided { reply, answer: Err(Undone::Unavailable(fault.0)), index: None, events: Vec::new() }
                }
            };
            batch.decided.push(decided);
        }
        batch
    }

    /// One command against the state and what the batch changed of it so far.
    fn decide_one(&self, tree: &Tree, changed: &mut Changed, stamped: &Stamped, index: u64) -> Result<Outcome, Fault> {
        let seen = Layer { over: changed, base: tree };
        let mut outcome = apply(&Records::new(&seen), stamped)?;
        if let Some(refusal) = self.refusal_of(&outcome.changes) {
            return Ok(Outcome::refused(refusal));
        }
        feed::record(index, &mut outcome);
        let written = write(&seen, &outcome.changes)?;
        changed.extend(written);
        Ok(outcome)
    }

    /// A session the journal cannot hold is refused alone, before it can fail the batch for everyone.
    fn refusal_of(&self, changes: &[Change]) -> Option<Refusal> {
        let journal = self.journal.as_ref()?;
        let mut written = changes.iter().filter_map(|change| match change {
            Change::PutMeta(meta) => Some(&meta.session_id),
            Change::PutEntry(id, _) | Change::SetLeaf(id, _) => Some(id),
            Change::DeleteMeta(_)
            | Change::DeleteEntries(_)
            | Change::DeleteLeaf(_)
            | Change::SetSeq(..)
            | Change::DeleteSeq(_)
            | Change::SetClock(_)
            | Change::Remember(..)
            | Change::Forget(_)
            | Change::Record { .. }
            | Change::TrimFeed { .. }
            | Change::SetCursor(..) => None,
        });
        written.find_map(|id| journal.refuses(id)).map(Refusal::RequestInvalid)
    }

    fn publish(&self, events: Vec<Event>) {
        let index = self.last_index;
        let placed = |(ordinal, event)| Arc::new(Committed::new(Position { group: 0, index, ordinal }, event));
        let events: Vec<Arc<Committed>> = (0..).zip(events).map(placed).collect();
        if !events.is_empty() {
            self.sink.publish(events);
        }
    }
}

/// A caller that gave up is no longer listening, which is its right.
fn answer(reply: oneshot::Sender<Result<Answer, Undone>>, answer: Result<Answer, Undone>) {
    drop(reply.send(answer));
}

#[cfg(test)]
#[path = "local_test.rs"]
mod tests;
