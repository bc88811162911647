//! The laws of the local adapter.

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
