//! Tests of the local adapter.

use std::sync::Condvar;
use std::time::Duration;

use super::*;
use crate::machine::apply::append::AppendEntry;
use crate::machine::apply::create::CreateSession;
use crate::machine::apply::delete::DeleteSession;
use crate::machine::apply::ensure::EnsureSession;
use crate::machine::apply::fork::ForkSession;
use crate::machine::apply::long::LongWork;
use crate::machine::entry::Body;
use crate::machine::json::Json;
use crate::machine::query::messages::MessagesQuery;
use crate::mint::SystemMint;
use crate::proposal::long::Chores;

#[derive(Default)]
struct Heard(Mutex<Vec<(u64, u32, u64)>>);

impl EventSink for Heard {
    fn publish(&self, events: Vec<Arc<Committed>>) {
        let heard = events.iter().map(|e| (e.position.index, e.position.ordinal, e.event.seq));
        lock(&self.0).extend(heard);
    }
}

/// A journal whose writes wait until the test decides how they end.
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
    fn write(&mut self, changes: &[Change]) -> io::Result<()> {
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
    started(Changed::new(), Box::new(gate.clone()), heard.clone(), Steps::default())
}

fn started(state: Changed, journal: Box<dyn Journal>, sink: Arc<Heard>, steps: Steps) -> Arc<LocalAdapter> {
    let (journal, mint) = (Some(journal), Arc::new(SystemMint::default()));
    Arc::new(LocalAdapter::start(LocalParts { state, journal, last_index: 0, mint, sink, steps }).unwrap())
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
    match adapter.ask(Query::Messages(asked), Freshness::Linearizable, soon()).await {
        Ok(Found::Messages(page)) => page.entries().map(|entry| entry.id.to_string()).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_answered_mutation_is_visible_to_the_next_query() {
    let adapter = in_memory(&Arc::default());
    adapter.propose(Proposal::new(ensure("s"), soon())).await.unwrap();
    for n in 0..20 {
        adapter.propose(Proposal::new(append("s", &format!("e{n}")), soon())).await.unwrap();
        assert_eq!(transcript(&adapter, "s").await.len(), n + 1);
    }
}

#[tokio::test]
async fn a_refusal_is_an_answer_and_publishes_nothing() {
    let heard = Arc::new(Heard::default());
    let adapter = in_memory(&heard);
    let refused = adapter.propose(Proposal::new(append("nowhere", "e"), soon())).await;
    assert!(matches!(refused, Err(AdapterError::Refused(Refusal::SessionUnknown(_)))), "{refused:?}");
    adapter.close();
    assert!(lock(&heard.0).is_empty());
}

#[tokio::test]
async fn events_come_in_commit_order_one_index_per_commit() {
    let heard = Arc::new(Heard::default());
    let adapter = in_memory(&heard);
    adapter.propose(Proposal::new(ensure("s"), soon())).await.unwrap();
    adapter.propose(Proposal::new(append("s", "a"), soon())).await.unwrap();
    adapter.propose(Proposal::new(append("s", "a"), soon())).await.unwrap();
    adapter.propose(Proposal::new(append("s", "b"), soon())).await.unwrap();
    adapter.close();
    assert_eq!(*lock(&heard.0), [(1, 0, 1), (2, 0, 2), (3, 0, 3)]);
}

#[tokio::test]
async fn proposals_that_wait_together_are_written_together_and_see_each_other() {
    let (gate, heard) = (Gate::default(), Arc::new(Heard::default()));
    let adapter = gated(&gate, &heard);
    let propose = |command| {
        let adapter = adapter.clone();
        tokio::spawn(async move { adapter.propose(Proposal::new(command, soon())).await })
    };
    let first = propose(ensure("s"));
    tokio::task::spawn_blocking({
        let gate = gate.clone();
        move || gate.await_arrivals(1)
    })
    .await
    .unwrap();
    // The first is not visible while it is being written, and the next ones queue.
    assert_eq!(adapter.ask(Query::Meta("s".into()), Freshness::Linearizable, soon()).await, Ok(Found::Meta(None)));
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
    let failed = adapter.propose(Proposal::new(ensure("s"), soon())).await;
    assert!(matches!(&failed, Err(AdapterError::Unavailable(why)) if why.contains("no space left")), "{failed:?}");
    assert_eq!(adapter.ask(Query::Meta("s".into()), Freshness::Linearizable, soon()).await, Ok(Found::Meta(None)));
    gate.release(true);
    adapter.propose(Proposal::new(ensure("s"), soon())).await.unwrap();
    adapter.close();
    assert_eq!(lock(&heard.0).len(), 1);
}

#[tokio::test]
async fn a_session_the_journal_cannot_hold_is_refused_alone() {
    let gate = Gate::default();
    let adapter = gated(&gate, &Arc::default());
    let refused = adapter.propose(Proposal::new(ensure("bad"), soon())).await;
    assert!(matches!(refused, Err(AdapterError::Refused(Refusal::RequestInvalid(_)))), "{refused:?}");
    assert_eq!(lock(&gate.0.0).arrived, 0);
}

#[tokio::test]
async fn a_deadline_that_passes_in_the_queue_means_nothing_happened() {
    let adapter = in_memory(&Arc::default());
    let late = adapter.propose(Proposal::new(ensure("s"), Instant::now())).await;
    assert!(matches!(late, Err(AdapterError::Unavailable(_))), "{late:?}");
    let late = adapter.ask(Query::Meta("s".into()), Freshness::Linearizable, Instant::now()).await;
    assert!(matches!(late, Err(AdapterError::Unavailable(_))), "{late:?}");
    assert_eq!(adapter.ask(Query::Meta("s".into()), Freshness::Linearizable, soon()).await, Ok(Found::Meta(None)));
}

#[tokio::test]
async fn a_deadline_that_passes_under_way_leaves_the_outcome_unknown() {
    let gate = Gate::default();
    let adapter = gated(&gate, &Arc::default());
    let unknown = adapter.propose(Proposal::new(ensure("s"), Instant::now() + Duration::from_millis(300))).await;
    assert!(matches!(unknown, Err(AdapterError::OutcomeUnknown(_))), "{unknown:?}");
    gate.release(true);
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let gate = Gate::default();
    let adapter = gated(&gate, &Arc::default());
    let mut waiting = Vec::new();
    let full = loop {
        let mut proposed = adapter.propose(Proposal::new(ensure("s"), soon()));
        match futures::poll!(&mut proposed) {
            std::task::Poll::Pending => waiting.push(proposed),
            std::task::Poll::Ready(answered) => break answered,
        }
    };
    assert!(matches!(full, Err(AdapterError::Unavailable(_))), "{full:?}");
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
    adapter.propose(Proposal::new(ensure("../chat 42:?"), soon())).await.unwrap();
    adapter.propose(Proposal::new(append("../chat 42:?", "a"), soon())).await.unwrap();
    drop(adapter);
    let adapter = open();
    adapter.propose(Proposal::new(append("../chat 42:?", "b"), soon())).await.unwrap();
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
    let refused = adapter.propose(Proposal::new(ensure(&"x".repeat(300)), soon())).await;
    assert!(matches!(refused, Err(AdapterError::Refused(Refusal::RequestInvalid(_)))), "{refused:?}");
    adapter.propose(Proposal::new(ensure("fine"), soon())).await.unwrap();
}

#[tokio::test]
async fn a_closed_store_answers_that_it_is_closed() {
    let adapter = in_memory(&Arc::default());
    adapter.propose(Proposal::new(ensure("s"), soon())).await.unwrap();
    adapter.close();
    let closed = adapter.propose(Proposal::new(ensure("s"), soon())).await;
    assert!(matches!(closed, Err(AdapterError::Unavailable(_))), "{closed:?}");
}

/// Over files, with steps so small that a session of ten entries is long.
fn over_files(dir: &Path) -> Arc<LocalAdapter> {
    let (files, state) = JsonlDir::open(dir).unwrap();
    started(state, Box::new(files), Arc::new(Heard::default()), Steps { long_after: 4, records: 3 })
}

async fn ten_entries(adapter: &LocalAdapter) {
    adapter.propose(Proposal::new(ensure("s"), soon())).await.unwrap();
    for n in 0..10 {
        adapter.propose(Proposal::new(append("s", &format!("e{n}")), soon())).await.unwrap();
    }
}

fn fork_of_ten() -> ForkSession {
    ForkSession { session_id: "s".into(), entry_id: "e9".into(), title: None }
}

fn names(dir: &Path) -> Vec<String> {
    let name = |found: io::Result<std::fs::DirEntry>| found.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = std::fs::read_dir(dir).unwrap().map(name).collect();
    names.retain(|name| name.ends_with(".jsonl") || name.ends_with(".fork"));
    names.sort();
    names
}

#[tokio::test]
async fn a_long_fork_is_in_the_files_when_it_is_answered_and_a_given_up_one_never() {
    let dir = tempfile::tempdir().unwrap();
    let adapter = over_files(dir.path());
    ten_entries(&adapter).await;
    let forked = adapter.propose(Proposal::new(Command::Fork(fork_of_ten()), soon())).await.unwrap();
    let Answer::Forked { meta } = forked else { panic!("{forked:?}") };
    let fork = meta.session_id.clone();
    assert_eq!(names(dir.path()), ["s.jsonl".to_owned(), format!("{fork}.jsonl")]);

    // Another one stops in the middle, as after a kill of its proposer.
    let begin = Command::Long(LongWork::BeginFork(fork_of_ten()));
    let (reply, answer) = oneshot::channel();
    adapter.enqueue(Queued { proposal: Proposal::new(begin, soon()), ticket: Arc::default(), reply }).unwrap();
    let Ok(Answer::ForkBegun { source, fork: half }) = answer.await.unwrap() else { panic!("it is long") };
    let go_on = Command::Long(LongWork::ContinueFork { source, fork: half.clone(), records: 3 });
    let (reply, answer) = oneshot::channel();
    adapter.enqueue(Queued { proposal: Proposal::new(go_on, soon()), ticket: Arc::default(), reply }).unwrap();
    answer.await.unwrap().unwrap();
    assert!(names(dir.path()).contains(&format!("{half}.fork")));
    drop(adapter);

    let adapter = over_files(dir.path());
    assert_eq!(names(dir.path()).len(), 2);
    let found = adapter.ask(Query::Entries(fork.clone()), Freshness::Local, soon()).await.unwrap();
    let Found::Entries(entries) = found else { panic!("{found:?}") };
    assert_eq!(entries.len(), 10);
    let leaf = adapter.ask(Query::Leaf(fork), Freshness::Local, soon()).await.unwrap();
    assert_eq!(leaf, Found::Leaf(entries.last().map(|last| last.id.clone())));
    assert_eq!(adapter.ask(Query::Meta(half), Freshness::Local, soon()).await.unwrap(), Found::Meta(None));
}

#[tokio::test]
async fn a_long_delete_removes_the_file_at_once_and_the_chores_free_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let adapter = over_files(dir.path());
    ten_entries(&adapter).await;
    let delete = Command::Delete(DeleteSession { session_id: "s".into() });
    adapter.propose(Proposal::new(delete, soon())).await.unwrap();
    assert!(names(dir.path()).is_empty());
    adapter.propose(Proposal::new(ensure("s"), soon())).await.unwrap();
    adapter.propose(Proposal::new(append("s", "anew"), soon())).await.unwrap();
    let mint = Arc::new(SystemMint::default());
    let steps = Steps { long_after: 4, records: 3 };
    let chores = Chores { adapter: adapter.clone(), state: adapter.clone(), is_leader: Box::new(|| true), mint, steps };
    let mut commands = 0;
    while chores.step().await.is_some() {
        commands += 1;
    }
    assert_eq!(commands, 4);
    adapter.read_view(&mut |view| assert!(view.leftovers(1).unwrap().is_empty()));
    drop((chores, adapter));
    let adapter = over_files(dir.path());
    let found = adapter.ask(Query::Entries("s".into()), Freshness::Local, soon()).await.unwrap();
    assert!(matches!(found, Found::Entries(entries) if entries.len() == 1));
}
