//! Owns: `LocalAdapter`, one process that holds all data itself: in memory for tests, over JSONL files for `fs`.
//! One writer thread applies proposals in the order of a bounded queue. Proposals that wait together share one sync.
//! Never: replication. Never show, answer or publish what is not on disk yet.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::long::complete_fork;
use super::{Adapter, AdapterError, Freshness, Proposal, expired_retry};
use crate::events::errors::ResumeError;
use crate::events::stored::StoredFeed;
use crate::events::{Committed, EventSink};
use crate::machine::apply::beside::not_here;
use crate::machine::apply::long::bounded;
use crate::machine::change::{Change, FeedChange, SessionChange};
use crate::machine::event::Event;
use crate::machine::feed_record::record_events;
use crate::machine::ids::{FeedPlace, Position, RequestId, SessionId};
use crate::machine::long::Steps;
use crate::machine::refusal::{Fault, Refusal};
use crate::machine::view::View;
use crate::machine::{Answer, Command, Found, Outcome, Query, Stamped, apply, query};
use crate::mint::Mint;
use crate::storage::jsonl::JsonlDir;
use crate::storage::state::kv::{Changed, Layer};
use crate::storage::state::memory::{MemoryStore, Tree};
use crate::storage::state::{Encoded, Records, write};

/// One second of proposals at the rate of a slow disk. Further ones are refused and told to retry.
const PROPOSALS_MAX: usize = 4096;

/// Proposals that share one sync. Bounds the proposals that one failed sync fails.
const BATCH_MAX: usize = 512;

/// The durable record of commits, written before they are answered.
pub trait Journal: Send + 'static {
    /// Makes all changes durable. If it fails, none of them will be there after a restart.
    fn write(&mut self, changes: &[Change]) -> io::Result<()>;

    /// The reason, if this journal can never hold the session.
    fn refuses(&self, session_id: &SessionId) -> Option<String>;
}

impl Journal for JsonlDir {
    fn write(&mut self, changes: &[Change]) -> io::Result<()> {
        JsonlDir::write(self, changes)?;
        self.sync()
    }

    fn refuses(&self, session_id: &SessionId) -> Option<String> {
        JsonlDir::refuses(self, session_id).map(|why| why.to_string())
    }
}

pub struct LocalAdapter {
    store: Arc<MemoryStore>,
    /// The index of the last commit.
    applied: Arc<AtomicU64>,
    /// `None` after `close`.
    queue: Mutex<Option<mpsc::Sender<Queued>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    steps: Steps,
    /// The files have no place for records beside sessions.
    keeps_records: bool,
}

/// What a local adapter is made of.
pub struct LocalParts {
    pub state: Changed,
    pub journal: Option<Box<dyn Journal>>,
    /// The first commit gets the index after this one.
    pub last_index: u64,
    pub mint: Arc<dyn Mint>,
    pub sink: Arc<dyn EventSink>,
    /// How much one command does to a long session.
    pub steps: Steps,
}

impl LocalAdapter {
    /// Data in memory, for tests.
    pub fn memory(mint: Arc<dyn Mint>, sink: Arc<dyn EventSink>) -> LocalAdapter {
        let (state, steps) = (Changed::new(), Steps::default());
        let parts = LocalParts { state, journal: None, last_index: 0, mint, sink, steps };
        LocalAdapter::start(parts).expect("a test can start a thread")
    }

    /// Data in JSONL files under `dir`, one per session.
    pub fn open_jsonl(dir: &Path, mint: Arc<dyn Mint>, sink: Arc<dyn EventSink>) -> io::Result<LocalAdapter> {
        let (files, state) = JsonlDir::open(dir)?;
        // The files keep no index. An index that starts from the clock never repeats a position, as long as the last run
        // made fewer than 65,536 commits per millisecond.
        let last_index = u64::try_from(mint.stamp().at_ms).unwrap_or(0) << 16;
        let journal: Option<Box<dyn Journal>> = Some(Box::new(files));
        LocalAdapter::start(LocalParts { state, journal, last_index, mint, sink, steps: Steps::default() })
    }

    pub fn start(parts: LocalParts) -> io::Result<LocalAdapter> {
        let LocalParts { state, journal, last_index, mint, sink, steps } = parts;
        let keeps_records = journal.is_none();
        let store = Arc::new(MemoryStore::new());
        store.merge(state);
        // The files do not hold the feed of an earlier process.
        let beginning = Change::Feed(FeedChange::Trim { upto: FeedPlace { index: last_index, ordinal: u32::MAX } });
        let begun = write(&*store.tree(), &Encoded::new(&[beginning])).map_err(|fault| io::Error::other(fault.0))?;
        store.merge(begun);
        let applied = Arc::new(AtomicU64::new(last_index));
        let (queue, proposals) = mpsc::channel(PROPOSALS_MAX);
        let started_ms = mint.stamp().at_ms;
        let readable = Arc::clone(&applied);
        let writer =
            Writer { store: Arc::clone(&store), journal, last_index, applied: readable, started_ms, mint, sink, steps };
        let writer =
            std::thread::Builder::new().name("local-writer".to_owned()).spawn(move || writer.run(proposals))?;
        let (queue, writer) = (Mutex::new(Some(queue)), Mutex::new(Some(writer)));
        Ok(LocalAdapter { store, applied, queue, writer, steps, keeps_records })
    }

    /// Applies the queued proposals, then ends the writer. Later proposals are answered `Unavailable`.
    pub fn close(&self) {
        drop(lock(&self.queue).take());
        if let Some(writer) = lock(&self.writer).take()
            && writer.join().is_err()
        {
            tracing::error!("the writer of the local store panicked");
        }
    }

    /// Whether proposals are accepted.
    pub fn is_open(&self) -> bool {
        lock(&self.queue).as_ref().is_some_and(|queue| !queue.is_closed())
    }

    fn enqueue(&self, queued: Queued) -> Result<(), AdapterError> {
        let queue = lock(&self.queue);
        let queue = queue.as_ref().ok_or_else(|| AdapterError::Unavailable("the store is closed".to_owned()))?;
        queue.try_send(queued).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => {
                AdapterError::Unavailable(format!("{PROPOSALS_MAX} mutations are waiting already; retry later"))
            }
            mpsc::error::TrySendError::Closed(_) => {
                AdapterError::Unavailable("the store's writer has stopped".to_owned())
            }
        })
    }
}

impl Drop for LocalAdapter {
    fn drop(&mut self) {
        self.close();
    }
}

impl LocalAdapter {
    /// Executes one command.
    async fn execute(&self, proposal: Proposal) -> Result<Answer, AdapterError> {
        let deadline = proposal.deadline;
        let (reply, mut answer) = oneshot::channel();
        let ticket = Arc::new(Ticket::default());
        self.enqueue(Queued { proposal, ticket: Arc::clone(&ticket), reply })?;
        match tokio::time::timeout_at(deadline.into(), &mut answer).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_)) => Err(AdapterError::OutcomeUnknown("the store's writer stopped".to_owned())),
            Err(_) if ticket.abandon() => Err(late()),
            // The writer has taken it. The answer may have arrived since the time-out.
            Err(_) => answer.try_recv().unwrap_or_else(|_| {
                Err(AdapterError::OutcomeUnknown("the deadline passed during the write".to_owned()))
            }),
        }
    }
}

impl Adapter for LocalAdapter {
    fn propose(&self, proposal: Proposal) -> BoxFuture<'_, Result<Answer, AdapterError>> {
        async move {
            if !self.keeps_records && matches!(proposal.command, Command::Beside(_)) {
                return Err(AdapterError::Refused(not_here("fs")));
            }
            let (deadline, scope) = (proposal.deadline, proposal.scope.clone());
            let is_fork = matches!(proposal.command, Command::Fork(_));
            let first = self.execute(proposal).await;
            if !is_fork {
                return first;
            }
            complete_fork(first, self.steps, scope, deadline, || false, |proposal| self.execute(proposal)).await
        }
        .boxed()
    }

    /// The state of this process is the newest there is, so both kinds of freshness are the same.
    fn ask(&self, asked: Query, _: Freshness, deadline: Instant) -> BoxFuture<'_, Result<Found, AdapterError>> {
        async move {
            if Instant::now() >= deadline {
                return Err(late());
            }
            if !self.keeps_records && asked.is_beside() {
                return Err(AdapterError::Refused(not_here("fs")));
            }
            super::answer(&asked, |piece| query(&Records::new(&*self.store.tree()), piece)).await
        }
        .boxed()
    }
}

impl StoredFeed for LocalAdapter {
    fn read_view(&self, read: &mut dyn FnMut(&dyn View)) {
        read(&Records::new(&*self.store.tree()));
    }

    fn applied(&self) -> FeedPlace {
        FeedPlace { index: self.applied.load(Ordering::Acquire), ordinal: u32::MAX }
    }

    fn catch_up(&self) -> BoxFuture<'_, Result<(), ResumeError>> {
        async { Ok(()) }.boxed()
    }
}

fn late() -> AdapterError {
    AdapterError::Unavailable("the deadline passed while the call was queued".to_owned())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Queued {
    proposal: Proposal,
    ticket: Arc<Ticket>,
    reply: oneshot::Sender<Result<Answer, AdapterError>>,
}

/// The state of a queued proposal. Settles the race between a caller that gives up and the writer.
#[derive(Default)]
struct Ticket(AtomicU8);

impl Ticket {
    const QUEUED: u8 = 0;
    const TAKEN: u8 = 1;
    const ABANDONED: u8 = 2;

    /// True if the writer will never apply it.
    fn abandon(&self) -> bool {
        self.leave_queue(Ticket::ABANDONED)
    }

    /// True if the caller still waits for it.
    fn take(&self) -> bool {
        self.leave_queue(Ticket::TAKEN)
    }

    fn leave_queue(&self, to: u8) -> bool {
        self.0.compare_exchange(Ticket::QUEUED, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The only thread that changes the state.
struct Writer {
    store: Arc<MemoryStore>,
    journal: Option<Box<dyn Journal>>,
    last_index: u64,
    /// Answers before this time are not remembered: the files do not hold them.
    started_ms: i64,
    /// `last_index` for readers.
    applied: Arc<AtomicU64>,
    mint: Arc<dyn Mint>,
    sink: Arc<dyn EventSink>,
    steps: Steps,
}

/// Commands decided against the state and each other, not visible yet.
#[derive(Default)]
struct Batch {
    changed: Changed,
    changes: Vec<Change>,
    decided: Vec<Decided>,
}

struct Decided {
    reply: oneshot::Sender<Result<Answer, AdapterError>>,
    answer: Result<Answer, AdapterError>,
    /// The index of its commit, if it changed something.
    index: Option<u64>,
    events: Vec<Event>,
}

impl Writer {
    fn run(mut self, mut proposals: mpsc::Receiver<Queued>) {
        while let Some(first) = proposals.blocking_recv() {
            let mut waiting = vec![first];
            while waiting.len() < BATCH_MAX
                && let Ok(next) = proposals.try_recv()
            {
                waiting.push(next);
            }
            self.commit(waiting);
        }
    }

    /// The order of effects: decide, write, make visible, answer, publish.
    fn commit(&mut self, queued: Vec<Queued>) {
        let batch = self.decide(queued);
        if !batch.changes.is_empty()
            && let Some(journal) = &mut self.journal
            && let Err(error) = journal.write(&batch.changes)
        {
            tracing::error!(%error, mutations = batch.decided.len(), "a batch could not be written; none of it is applied");
            let why = format!("the write to disk failed: {error}");
            for decided in batch.decided {
                answer(decided.reply, Err(AdapterError::Unavailable(why.clone())));
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

    fn decide(&self, queued: Vec<Queued>) -> Batch {
        let tree = self.store.tree();
        let mut batch = Batch::default();
        let mut last_index = self.last_index;
        for Queued { proposal: Proposal { command, request_id, scope, deadline }, ticket, reply } in queued {
            if !ticket.take() {
                continue;
            }
            if Instant::now() >= deadline {
                answer(reply, Err(late()));
                continue;
            }
            if request_id.is_some_and(|id| id.issued_ms() < self.started_ms) {
                answer(reply, Err(expired_retry()));
                continue;
            }
            let (is_retry, request_id) = (request_id.is_some(), request_id.unwrap_or(RequestId::NONE));
            let stamped = Stamped { stamp: self.mint.stamp(), request_id, is_retry, scope, command };
            let decided = match self.decide_one(&tree, &mut batch.changed, &stamped, last_index + 1) {
                Ok(Outcome { answer: Ok(Answer::Forgotten), .. }) => {
                    Decided { reply, answer: Err(expired_retry()), index: None, events: Vec::new() }
                }
                Ok(outcome) => {
                    let index = (!outcome.changes.is_empty()).then_some(last_index + 1);
                    last_index = index.unwrap_or(last_index);
                    batch.changes.extend(outcome.changes);
                    Decided {
                        reply,
                        answer: outcome.answer.map_err(AdapterError::Refused),
                        index,
                        events: outcome.events,
                    }
                }
                Err(fault) => {
                    Decided { reply, answer: Err(AdapterError::Unavailable(fault.0)), index: None, events: Vec::new() }
                }
            };
            batch.decided.push(decided);
        }
        batch
    }

    /// Decides one command against the state and the earlier changes of the batch.
    fn decide_one(&self, tree: &Tree, changed: &mut Changed, stamped: &Stamped, index: u64) -> Result<Outcome, Fault> {
        let seen = Layer { over: changed, base: tree };
        let view = Records::new(&seen);
        let mut outcome = match bounded(&view, &stamped.command, self.steps)? {
            Some(command) => apply(&view, &Stamped { command, ..stamped.clone() })?,
            None => apply(&view, stamped)?,
        };
        if let Some(refusal) = self.refusal_of(&outcome.changes) {
            return Ok(Outcome::refused(refusal));
        }
        record_events(index, &mut outcome);
        let written = write(&seen, &Encoded::new(&outcome.changes))?;
        changed.extend(written);
        Ok(outcome)
    }

    /// Refuses a session that the journal cannot hold, before it can fail the whole batch.
    fn refusal_of(&self, changes: &[Change]) -> Option<Refusal> {
        let journal = self.journal.as_ref()?;
        let mut written = changes.iter().filter_map(|change| match change {
            Change::Session(id, SessionChange::PutMeta(_) | SessionChange::PutEntry(_) | SessionChange::SetLeaf(_)) => {
                Some(id)
            }
            Change::Session(..)
            | Change::Answer(_)
            | Change::Feed(_)
            | Change::Work(_)
            | Change::Record(_)
            | Change::Clock(_) => None,
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

/// The send fails if the caller gave up.
fn answer(reply: oneshot::Sender<Result<Answer, AdapterError>>, answer: Result<Answer, AdapterError>) {
    drop(reply.send(answer));
}

#[cfg(test)]
#[path = "local_test.rs"]
mod tests;
