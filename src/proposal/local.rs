//! Owns: `LocalAdapter`, one process that holds all data itself: in memory for tests, over JSONL files for `fs`.
//! One writer thread carries out proposals in the order of a bounded queue; what waits together is synced together.
//! Never: replication. Never makes visible, answers or publishes what is not on disk yet.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::mint::Mint;
use super::{Adapter, Undone};
use crate::events::{Committed, EventSink};
use crate::machine::event::Event;
use crate::machine::feed;
use crate::machine::ids::{Position, RequestId, SessionId};
use crate::machine::refusal::{Fault, Refusal};
use crate::machine::view::Change;
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
        let (queue, proposals) = mpsc::channel(PROPOSALS_MAX);
        let writer = Writer { store: Arc::clone(&store), journal, last_index, mint, sink };
        let writer =
            std::thread::Builder::new().name("local-writer".to_owned()).spawn(move || writer.run(proposals))?;
        Ok(LocalAdapter { store, queue: Mutex::new(Some(queue)), writer: Mutex::new(Some(writer)) })
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
        async move {
            let (reply, mut answer) = oneshot::channel();
            let ticket = Arc::new(Ticket::default());
            self.enqueue(Proposal { command, deadline, ticket: Arc::clone(&ticket), reply })?;
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
        .boxed()
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

fn late() -> Undone {
    Undone::Unavailable("the deadline passed before the store came to it".to_owned())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Proposal {
    command: Command,
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
        for Proposal { command, deadline, ticket, reply } in proposals {
            if !ticket.take() {
                continue;
            }
            if Instant::now() >= deadline {
                answer(reply, Err(late()));
                continue;
            }
            let stamped =
                Stamped { stamp: self.mint.stamp(), request_id: RequestId::UNREPEATED, repeated: false, command };
            let decided = match self.decide_one(&tree, &mut batch.changed, &stamped, last_index + 1) {
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
mod tests {
    use std::sync::Condvar;
    use std::time::Duration;

    use super::*;
    use crate::machine::apply::append::AppendEntry;
    use crate::machine::apply::create::CreateSession;
    use crate::machine::apply::ensure::EnsureSession;
    use crate::machine::entry::Body;
    use crate::machine::json::Json;
    use crate::machine::query::messages::MessagesQuery;
    use crate::proposal::mint::SystemMint;

    #[derive(Default)]
    struct Heard(Mutex<Vec<(u64, u32, u64)>>);

    impl EventSink for Heard {
        fn publish(&self, events: Vec<Arc<Committed>>) {
            let told = events.iter().map(|e| (e.position.index, e.position.ordinal, e.event.seq));
            lock(&self.0).extend(told);
        }
    }

    /// A journal that keeps nothing until it is told how to end.
    #[derive(Clone, Default)]
    struct Gate(Arc<(Mutex<GateState>, Condvar)>);

    #[derive(Default)]
    struct GateState {
        arrived: usize,
        verdicts: Vec<bool>,
        kept: Vec<usize>,
    }

    impl Gate {
        fn release(&self, verdict: bool) {
            lock(&self.0.0).verdicts.push(verdict);
            self.0.1.notify_all();
        }

        fn await_arrivals(&self, wanted: usize) {
            let state = lock(&self.0.0);
            drop(self.0.1.wait_while(state, |state| state.arrived < wanted).unwrap());
        }
    }

    impl Journal for Gate {
        fn keep(&mut self, changes: &[Change]) -> io::Result<()> {
            let mut state = lock(&self.0.0);
            state.arrived += 1;
            self.0.1.notify_all();
            let mut state = self.0.1.wait_while(state, |state| state.verdicts.is_empty()).unwrap();
            if !state.verdicts.remove(0) {
                return Err(io::Error::other("no space left"));
            }
            state.kept.push(changes.len());
            Ok(())
        }

        fn refuses(&self, session_id: &SessionId) -> Option<String> {
            (session_id.as_str() == "bad").then(|| "session_id is bad".to_owned())
        }
    }

    fn gated(gate: &Gate, heard: &Arc<Heard>) -> Arc<LocalAdapter> {
        let journal: Box<dyn Journal> = Box::new(gate.clone());
        let mint = Arc::new(SystemMint::default());
        let adapter = LocalAdapter::start(Changed::new(), Some(journal), 0, mint, heard.clone()).unwrap();
        Arc::new(adapter)
    }

    fn in_memory(heard: &Arc<Heard>) -> LocalAdapter {
        LocalAdapter::memory(Arc::new(SystemMint::default()), heard.clone())
    }

    fn ensure(id: &str) -> Command {
        let session = CreateSession { title: String::new(), description: String::new(), metadata: None };
        Command::Ensure(EnsureSession { session_id: id.into(), session })
    }

    fn append(id: &str, entry_id: &str) -> Command {
        let body = Body::Custom { custom_type: "note".to_owned(), data: Json::adopt("1") };
        let entry_id = Some(entry_id.into());
        Command::Append(AppendEntry { session_id: id.into(), entry_id, parent_id: None, origin: None, body })
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    async fn transcript(adapter: &LocalAdapter, id: &str) -> Vec<String> {
        let asked = MessagesQuery {
            session_id: id.into(),
            from_entry_id: None,
            roles: None,
            include_custom: true,
            cursor: None,
            limit: 100,
        };
        match adapter.ask(Query::Messages(asked), soon()).await {
            Ok(Found::Messages(page)) => page.entries.iter().map(|entry| entry.id.to_string()).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn what_was_answered_is_visible_to_the_next_question() {
        let adapter = in_memory(&Arc::default());
        adapter.propose(ensure("s"), soon()).await.unwrap();
        for n in 0..20 {
            adapter.propose(append("s", &format!("e{n}")), soon()).await.unwrap();
            assert_eq!(transcript(&adapter, "s").await.len(), n + 1);
        }
    }

    #[tokio::test]
    async fn a_refusal_is_an_answer_and_publishes_nothing() {
        let heard = Arc::new(Heard::default());
        let adapter = in_memory(&heard);
        let refused = adapter.propose(append("nowhere", "e"), soon()).await;
        assert!(matches!(refused, Err(Undone::Refused(Refusal::SessionUnknown(_)))), "{refused:?}");
        adapter.close();
        assert!(lock(&heard.0).is_empty());
    }

    #[tokio::test]
    async fn events_come_in_commit_order_one_index_per_commit() {
        let heard = Arc::new(Heard::default());
        let adapter = in_memory(&heard);
        adapter.propose(ensure("s"), soon()).await.unwrap();
        adapter.propose(append("s", "a"), soon()).await.unwrap();
        adapter.propose(append("s", "a"), soon()).await.unwrap();
        adapter.propose(append("s", "b"), soon()).await.unwrap();
        adapter.close();
        assert_eq!(*lock(&heard.0), [(1, 0, 1), (2, 0, 2), (3, 0, 3)]);
    }

    #[tokio::test]
    async fn what_waits_together_is_kept_together_and_sees_each_other() {
        let (gate, heard) = (Gate::default(), Arc::new(Heard::default()));
        let adapter = gated(&gate, &heard);
        let propose = |command| {
            let adapter = adapter.clone();
            tokio::spawn(async move { adapter.propose(command, soon()).await })
        };
        let first = propose(ensure("s"));
        tokio::task::spawn_blocking({
            let gate = gate.clone();
            move || gate.await_arrivals(1)
        })
        .await
        .unwrap();
        // While the first is being kept nobody sees it, and the next ones gather.
        assert_eq!(adapter.ask(Query::Meta("s".into()), soon()).await, Ok(Found::Meta(None)));
        let rest: Vec<_> = ["a", "b", "b", "c"].iter().map(|id| propose(append("s", id))).collect();
        while lock(&adapter.queue).as_ref().unwrap().capacity() > PROPOSALS_MAX - rest.len() {
            tokio::task::yield_now().await;
        }
        gate.release(true);
        gate.release(true);
        first.await.unwrap().unwrap();
        for appended in rest {
            appended.await.unwrap().unwrap();
        }
        assert_eq!(lock(&gate.0.0).kept.len(), 2);
        assert_eq!(transcript(&adapter, "s").await, ["a", "b", "c"]);
    }

    #[tokio::test]
    async fn a_batch_that_cannot_be_kept_never_happened_and_the_next_one_may() {
        let (gate, heard) = (Gate::default(), Arc::new(Heard::default()));
        let adapter = gated(&gate, &heard);
        gate.release(false);
        let failed = adapter.propose(ensure("s"), soon()).await;
        assert!(matches!(&failed, Err(Undone::Unavailable(why)) if why.contains("no space left")), "{failed:?}");
        assert_eq!(adapter.ask(Query::Meta("s".into()), soon()).await, Ok(Found::Meta(None)));
        gate.release(true);
        adapter.propose(ensure("s"), soon()).await.unwrap();
        adapter.close();
        assert_eq!(lock(&heard.0).len(), 1);
    }

    #[tokio::test]
    async fn a_session_the_journal_cannot_hold_is_refused_alone() {
        let gate = Gate::default();
        let adapter = gated(&gate, &Arc::default());
        let refused = adapter.propose(ensure("bad"), soon()).await;
        assert!(matches!(refused, Err(Undone::Refused(Refusal::RequestInvalid(_)))), "{refused:?}");
        assert_eq!(lock(&gate.0.0).arrived, 0);
    }

    #[tokio::test]
    async fn a_deadline_that_passes_in_the_queue_means_nothing_happened() {
        let adapter = in_memory(&Arc::default());
        let late = adapter.propose(ensure("s"), Instant::now()).await;
        assert!(matches!(late, Err(Undone::Unavailable(_))), "{late:?}");
        let late = adapter.ask(Query::Meta("s".into()), Instant::now()).await;
        assert!(matches!(late, Err(Undone::Unavailable(_))), "{late:?}");
        assert_eq!(adapter.ask(Query::Meta("s".into()), soon()).await, Ok(Found::Meta(None)));
    }

    #[tokio::test]
    async fn a_deadline_that_passes_under_way_leaves_the_outcome_unknown() {
        let gate = Gate::default();
        let adapter = gated(&gate, &Arc::default());
        let unknown = adapter.propose(ensure("s"), Instant::now() + Duration::from_millis(300)).await;
        assert!(matches!(unknown, Err(Undone::OutcomeUnknown(_))), "{unknown:?}");
        gate.release(true);
    }

    #[tokio::test]
    async fn a_full_queue_says_so_at_once() {
        let gate = Gate::default();
        let adapter = gated(&gate, &Arc::default());
        let mut waiting = Vec::new();
        let full = loop {
            let mut proposed = adapter.propose(ensure("s"), soon());
            match futures::poll!(&mut proposed) {
                std::task::Poll::Pending => waiting.push(proposed),
                std::task::Poll::Ready(answered) => break answered,
            }
        };
        assert!(matches!(full, Err(Undone::Unavailable(_))), "{full:?}");
        assert!(waiting.len() >= PROPOSALS_MAX);
        drop(waiting);
        for _ in 0..=PROPOSALS_MAX {
            gate.release(true);
        }
    }

    #[tokio::test]
    async fn what_was_answered_is_there_after_a_restart_and_positions_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let heard = Arc::new(Heard::default());
        let open = || LocalAdapter::open_jsonl(dir.path(), Arc::new(SystemMint::default()), heard.clone()).unwrap();
        let adapter = open();
        adapter.propose(ensure("../chat 42:?"), soon()).await.unwrap();
        adapter.propose(append("../chat 42:?", "a"), soon()).await.unwrap();
        drop(adapter);
        let adapter = open();
        adapter.propose(append("../chat 42:?", "b"), soon()).await.unwrap();
        assert_eq!(transcript(&adapter, "../chat 42:?").await, ["a", "b"]);
        adapter.close();
        let indexes: Vec<u64> = lock(&heard.0).iter().map(|(index, _, _)| *index).collect();
        assert!(indexes.windows(2).all(|pair| pair[0] < pair[1]), "{indexes:?}");
    }

    #[tokio::test]
    async fn an_id_no_file_can_have_is_an_invalid_request() {
        let dir = tempfile::tempdir().unwrap();
        let adapter =
            LocalAdapter::open_jsonl(dir.path(), Arc::new(SystemMint::default()), Arc::new(Heard::default())).unwrap();
        let refused = adapter.propose(ensure(&"x".repeat(300)), soon()).await;
        assert!(matches!(refused, Err(Undone::Refused(Refusal::RequestInvalid(_)))), "{refused:?}");
        adapter.propose(ensure("fine"), soon()).await.unwrap();
    }

    #[tokio::test]
    async fn a_closed_store_answers_that_it_is_closed() {
        let adapter = in_memory(&Arc::default());
        adapter.propose(ensure("s"), soon()).await.unwrap();
        adapter.close();
        let closed = adapter.propose(ensure("s"), soon()).await;
        assert!(matches!(closed, Err(Undone::Unavailable(_))), "{closed:?}");
    }
}
