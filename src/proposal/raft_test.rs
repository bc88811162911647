//! Tests of one member: answered mutations survive a restart, a lost state is rebuilt, and unrecoverable loss is reported.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use tempfile::TempDir;

use super::*;
use crate::events::{Committed, EventSink};
use crate::machine::Command;
use crate::machine::apply::append::AppendEntry;
use crate::machine::apply::create::CreateSession;
use crate::machine::apply::delete::DeleteSession;
use crate::machine::apply::ensure::EnsureSession;
use crate::machine::apply::update_message::{NewContent, UpdateMessage};
use crate::machine::entry::Body;
use crate::machine::ids::Position;
use crate::machine::json::Json;
use crate::machine::message::{Message, Role};
use crate::machine::refusal::{Fault, Refusal};
use crate::mint::SystemMint;
use crate::replication::RAFT_GROUP;
use crate::replication::types::Types;
use crate::storage::disk::watched::WatchedDisk;
use crate::storage::state::Encoded;
use crate::storage::state::memory::MemoryStore;
use crate::storage::{Frozen, Pairs, Store};

#[derive(Default)]
struct Heard(Mutex<Vec<Position>>);

impl Heard {
    fn positions(&self) -> Vec<Position> {
        self.0.lock().unwrap().clone()
    }
}

impl EventSink for Heard {
    fn publish(&self, events: Vec<Arc<Committed>>) {
        self.0.lock().unwrap().extend(events.iter().map(|event| event.position));
    }
}

pub struct World {
    pub dir: TempDir,
    pub disk: WatchedDisk,
    heard: Arc<Heard>,
}

impl World {
    pub fn new() -> World {
        World { dir: tempfile::tempdir().unwrap(), disk: WatchedDisk::default(), heard: Arc::default() }
    }

    pub fn heard(&self) -> Arc<dyn EventSink> {
        self.heard.clone()
    }

    pub fn settings(&self) -> RaftSettings {
        RaftSettings { disk: Arc::new(self.disk.clone()), ..RaftSettings::new(self.dir.path(), 1) }
    }

    async fn open(&self) -> RaftAdapter {
        self.open_with(self.settings()).await
    }

    pub async fn open_with(&self, settings: RaftSettings) -> RaftAdapter {
        RaftAdapter::open(settings, Arc::new(SystemMint::default()), self.heard.clone()).await.unwrap()
    }

    async fn in_memory(&self, settings: RaftSettings) -> RaftAdapter {
        let store = Arc::new(MemoryStore::new());
        RaftAdapter::start(settings, Arc::new(SystemMint::default()), store, self.heard.clone()).await.unwrap()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn ensure(id: &str) -> Command {
    let session = CreateSession { title: id.to_owned(), description: String::new(), metadata: None };
    Command::Ensure(EnsureSession { session_id: id.into(), session })
}

/// A message that is long enough for a body file.
fn append(id: &str, entry_id: &str) -> Command {
    let text = format!("{entry_id} of {id}, ").repeat(12);
    let body = format!(r#"{{"role":"user","content":[{{"type":"text","text":"{text}"}}]}}"#);
    Command::Append(AppendEntry {
        session_id: id.into(),
        entry_id: Some(entry_id.into()),
        parent_id: None,
        origin: None,
        body: Body::Message(Message { role: Role::User, body: Json::adopt(&body) }),
    })
}

async fn messages(adapter: &RaftAdapter, id: &str) -> u64 {
    match adapter.ask(Query::Meta(id.into()), Freshness::Linearizable, soon()).await {
        Ok(Found::Meta(Some(meta))) => meta.message_count,
        other => panic!("{other:?}"),
    }
}

/// Sessions s0..s9, each with a few messages.
pub async fn fill(adapter: &RaftAdapter, messages: usize) {
    join_all((0..10).map(|n| adapter.propose(Proposal::new(ensure(&format!("s{n}")), soon())))).await;
    for round in 0..messages {
        let ids: Vec<(String, String)> = (0..10).map(|n| (format!("s{n}"), format!("e{round}"))).collect();
        for done in
            join_all(ids.iter().map(|(id, entry)| adapter.propose(Proposal::new(append(id, entry), soon())))).await
        {
            done.unwrap();
        }
    }
}

/// Each mutation moves its future several times. Combinators that are written as `async fn` double it.
#[tokio::test(flavor = "multi_thread")]
async fn the_future_of_a_mutation_is_small() {
    let adapter = World::new().open().await;
    let Proposal { command, scope, deadline, .. } = Proposal::new(append("s", "e"), soon());
    let attempt = Stamped { stamp: NO_STAMP, request_id: adapter.request_id(), is_retry: false, scope, command };
    let bytes = std::mem::size_of_val(&adapter.retry_on_leader(attempt, deadline));
    adapter.shutdown().await;
    assert!(bytes <= 6 << 10, "{bytes} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_is_there_after_a_restart() {
    let world = World::new();
    let adapter = world.open().await;
    fill(&adapter, 5).await;
    let (identity, before) = (adapter.replica().identity(), adapter.replica().checkpoint().unwrap());
    assert_eq!(messages(&adapter, "s3").await, 5);
    adapter.shutdown().await;
    drop(adapter);

    let adapter = world.open().await;
    assert_eq!(adapter.replica().identity(), identity);
    let after = adapter.replica().checkpoint().unwrap();
    assert!(after.applied > before.applied, "a new leader begins its term with an entry of its own");
    assert_eq!(messages(&adapter, "s3").await, 5);
    adapter.propose(Proposal::new(append("s3", "more"), soon())).await.unwrap();
    assert_eq!(messages(&adapter, "s3").await, 6);
    adapter.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_loses_nothing_it_answered() {
    let mut world = World::new();
    let mut running = Vec::new();
    for round in 0..3 {
        // The state need not be on disk: the log holds everything.
        let adapter = world.in_memory(world.settings()).await;
        adapter.propose(Proposal::new(ensure("s"), soon())).await.unwrap();
        adapter.propose(Proposal::new(append("s", &format!("e{round}")), soon())).await.unwrap();
        assert_eq!(messages(&adapter, "s").await, round + 1);
        // A crash would leave what is on disk while the process runs.
        let left = World::new();
        for file in walk(world.dir.path()) {
            let copy = left.dir.path().join(file.strip_prefix(world.dir.path()).unwrap());
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(file, copy).unwrap();
        }
        running.push((adapter, std::mem::replace(&mut world, left)));
    }
    join_all(running.iter().map(|(adapter, _)| adapter.shutdown())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_state_is_rebuilt_from_snapshot_and_log_to_the_same_hash() {
    let world = World::new();
    let settings = RaftSettings {
        snapshot_every: 50,
        keep_entries: 20,
        log: crate::storage::log::Limits { segment_bytes: 2 << 10, ..Default::default() },
        ..world.settings()
    };
    let adapter = world.open_with(settings.clone()).await;
    fill(&adapter, 20).await;
    let raft = adapter.replica().raft().clone();
    let purged = |metrics: &openraft::RaftMetrics<Types>| metrics.purged.is_some();
    raft.wait(Some(Duration::from_secs(20))).metrics(purged, "a snapshot and a purge").await.unwrap();
    adapter.propose(Proposal::new(append("s7", "last"), soon())).await.unwrap();
    let before = adapter.replica().checkpoint().unwrap();
    adapter.shutdown().await;
    drop((adapter, raft));
    let edges = |world: &World| {
        let log = world.dir.path().join("log");
        crate::storage::log::Log::open(Arc::new(world.disk.clone()), &log, RAFT_GROUP, settings.log).unwrap().0.edges()
    };
    assert!(edges(&world).purged.is_some(), "the log alone is not enough any more");

    fs::remove_dir_all(world.dir.path().join("state")).unwrap();
    let adapter = world.open_with(settings.clone()).await;
    let after = adapter.replica().checkpoint().unwrap();
    let own_first =
        crate::replication::chain::link(before.state_hash, before.applied.unwrap().index + 1, &Encoded::new(&[]));
    assert_eq!(after.state_hash, own_first, "the same history, then the blank entry of the new term");
    assert_eq!(messages(&adapter, "s7").await, 21);
    adapter.shutdown().await;
    drop(adapter);

    // A damaged state is rebuilt, too.
    for file in walk(&world.dir.path().join("state")) {
        fs::write(file, b"nonsense").unwrap();
    }
    let adapter = world.open_with(settings.clone()).await;
    assert_eq!(messages(&adapter, "s7").await, 21);
    adapter.shutdown().await;
    drop(adapter);

    // Without state and snapshot the purged entries are lost, and the start fails.
    fs::remove_dir_all(world.dir.path().join("state")).unwrap();
    fs::remove_dir_all(world.dir.path().join("snapshots")).unwrap();
    let lost = RaftAdapter::open(settings, Arc::new(SystemMint::default()), world.heard.clone()).await;
    assert!(matches!(lost.map(|_| ()), Err(StartError::Lost { next: 0, .. })));
}

pub fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for found in fs::read_dir(dir).unwrap() {
        let path = found.unwrap().path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_snapshot_is_ignored_if_the_log_alone_is_enough() {
    let world = World::new();
    let settings = RaftSettings { snapshot_every: 20, ..world.settings() };
    let adapter = world.open_with(settings.clone()).await;
    fill(&adapter, 5).await;
    let raft = adapter.replica().raft().clone();
    let built = |metrics: &openraft::RaftMetrics<Types>| metrics.snapshot.is_some();
    raft.wait(Some(Duration::from_secs(20))).metrics(built, "a snapshot").await.unwrap();
    adapter.shutdown().await;
    drop((adapter, raft));
    for file in walk(&world.dir.path().join("snapshots")) {
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(file, bytes).unwrap();
    }
    fs::remove_dir_all(world.dir.path().join("state")).unwrap();
    let adapter = world.open_with(settings).await;
    assert_eq!(messages(&adapter, "s9").await, 5);
    adapter.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_proposals_share_fsyncs() {
    let world = World::new();
    let adapter = world.open().await;
    adapter.propose(Proposal::new(ensure("s"), soon())).await.unwrap();
    let before = world.disk.syncs();
    let ids: Vec<String> = (0..500).map(|n| format!("e{n}")).collect();
    for done in join_all(ids.iter().map(|id| adapter.propose(Proposal::new(append("s", id), soon())))).await {
        done.unwrap();
    }
    let syncs = world.disk.syncs() - before;
    assert!(syncs < 250, "500 proposals took {syncs} fsyncs");
    assert_eq!(messages(&adapter, "s").await, 500);
    adapter.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mutation_that_changes_nothing_is_answered_without_the_log() {
    let world = World::new();
    let adapter = world.open().await;
    adapter.propose(Proposal::new(ensure("s"), soon())).await.unwrap();
    let first = adapter.propose(Proposal::new(append("s", "e"), soon())).await.unwrap();
    let before = adapter.replica().log().edges();
    assert_eq!(adapter.propose(Proposal::new(append("s", "e"), soon())).await.unwrap(), first);
    let stale = Command::UpdateMessage(UpdateMessage {
        session_id: "s".into(),
        entry_id: "e".into(),
        content: NewContent::Full(Json::adopt("[]")),
        details: None,
        expected_revision: Some(7),
        origin: None,
    });
    let unchanged = Answer::Updated { updated: false, revision: 0 };
    assert_eq!(adapter.propose(Proposal::new(stale, soon())).await.unwrap(), unchanged);
    assert_eq!(adapter.replica().log().edges(), before);
    adapter.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_in_log_order_with_dense_ordinals() {
    let world = World::new();
    let adapter = world.open().await;
    fill(&adapter, 3).await;
    adapter.propose(Proposal::new(Command::Delete(DeleteSession { session_id: "s1".into() }), soon())).await.unwrap();
    adapter.shutdown().await;
    let positions = world.heard.positions();
    assert_eq!(positions.len(), 10 + 30 + 1);
    assert!(positions.is_sorted());
    assert!(positions.iter().all(|position| position.group == RAFT_GROUP && position.ordinal == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_answers_and_deadlines_are_kept() {
    let world = World::new();
    let adapter = world.open().await;
    let refused = adapter.propose(Proposal::new(append("nowhere", "e"), soon())).await;
    assert_eq!(refused, Err(AdapterError::Refused(Refusal::SessionUnknown("nowhere".into()))));
    let late = adapter.propose(Proposal::new(ensure("s"), Instant::now())).await;
    assert!(matches!(late, Err(AdapterError::Unavailable(_))), "{late:?}");
    assert_eq!(adapter.ask(Query::Meta("s".into()), Freshness::Linearizable, soon()).await, Ok(Found::Meta(None)));
    adapter.shutdown().await;
    let stopped = adapter.propose(Proposal::new(ensure("s"), soon())).await;
    assert!(matches!(stopped, Err(AdapterError::OutcomeUnknown(_))), "{stopped:?}");
    assert!(matches!(
        adapter.ask(Query::Metas, Freshness::Linearizable, soon()).await,
        Err(AdapterError::Unavailable(_))
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_fsync_ends_the_node_and_a_restart_recovers() {
    let world = World::new();
    let adapter = world.in_memory(world.settings()).await;
    adapter.propose(Proposal::new(ensure("before"), soon())).await.unwrap();
    world.disk.fail_syncs.store(true, Ordering::SeqCst);
    let failed = adapter.propose(Proposal::new(ensure("during"), soon())).await;
    assert!(matches!(failed, Err(AdapterError::OutcomeUnknown(_))), "{failed:?}");
    let why = tokio::time::timeout(Duration::from_secs(10), adapter.replica().failed()).await.unwrap();
    assert!(why.contains("the disk lost it"), "{why}");
    let later = adapter.propose(Proposal::new(ensure("after"), soon())).await;
    assert!(matches!(later, Err(AdapterError::OutcomeUnknown(_) | AdapterError::Unavailable(_))), "{later:?}");
    adapter.shutdown().await;
    drop(adapter);

    world.disk.fail_syncs.store(false, Ordering::SeqCst);
    let adapter = world.in_memory(world.settings()).await;
    assert_eq!(messages(&adapter, "before").await, 0);
    adapter.propose(Proposal::new(ensure("after"), soon())).await.unwrap();
    adapter.shutdown().await;
}

/// A state that cannot be changed any more.
#[derive(Default)]
struct Stuck {
    store: MemoryStore,
    is_stuck: AtomicBool,
}

impl Store for Stuck {
    fn read(&self, read: &mut dyn FnMut(&dyn View)) {
        self.store.read(read);
    }

    fn commit_encoded(&self, changes: &Encoded<'_>, checkpoint: bytes::Bytes) -> Result<(), Fault> {
        match self.is_stuck.load(Ordering::SeqCst) {
            true => Err(Fault("the state is stuck".to_owned())),
            false => self.store.commit_encoded(changes, checkpoint),
        }
    }

    fn checkpoint(&self) -> Result<Option<bytes::Bytes>, Fault> {
        self.store.checkpoint()
    }

    fn freeze(&self) -> Result<Frozen, Fault> {
        self.store.freeze()
    }

    fn replace(&self, pairs: Pairs<'_>, checkpoint: bytes::Bytes) -> Result<(), Fault> {
        self.store.replace(pairs, checkpoint)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_cannot_be_applied_ends_the_node() {
    let (world, store) = (World::new(), Arc::new(Stuck::default()));
    let adapter = RaftAdapter::start(world.settings(), Arc::new(SystemMint::default()), store.clone(), world.heard())
        .await
        .unwrap();
    adapter.propose(Proposal::new(ensure("before"), soon())).await.unwrap();
    store.is_stuck.store(true, Ordering::SeqCst);
    let failed = adapter.propose(Proposal::new(ensure("during"), soon())).await;
    assert!(matches!(failed, Err(AdapterError::OutcomeUnknown(_))), "{failed:?}");
    let why = tokio::time::timeout(Duration::from_secs(10), adapter.replica().failed()).await.unwrap();
    assert!(why.contains("the state is stuck"), "{why}");
    assert!(!adapter.replica().is_running());
    adapter.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_is_refused() {
    let world = World::new();
    let adapter = world.open().await;
    let second = RaftAdapter::open(world.settings(), Arc::new(SystemMint::default()), world.heard.clone()).await;
    assert!(second.map(|_| ()).unwrap_err().to_string().contains("in use"));
    adapter.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_vote_does_not_start() {
    let world = World::new();
    let adapter = world.open().await;
    adapter.propose(Proposal::new(ensure("s"), soon())).await.unwrap();
    adapter.shutdown().await;
    drop(adapter);
    let start = || RaftAdapter::open(world.settings(), Arc::new(SystemMint::default()), world.heard.clone());
    fs::remove_file(world.dir.path().join("log").join("vote")).unwrap();
    assert!(matches!(start().await.map(|_| ()), Err(StartError::VoteLost { .. })));
    fs::remove_dir_all(world.dir.path().join("log")).unwrap();
    let why = start().await.map(|_| ()).unwrap_err();
    assert!(matches!(why, StartError::VoteLost { .. }), "the state shows that there were entries: {why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_of_few_but_large_entries_is_kept_within_its_bytes() {
    let world = World::new();
    let limits = crate::storage::log::Limits { segment_bytes: 64 << 10, ..Default::default() };
    let adapter = world.open_with(RaftSettings { log: limits, log_bytes_max: 1 << 20, ..world.settings() }).await;
    // Large entries that leave the state as it is.
    let session = CreateSession { title: "t".repeat(1000), description: String::new(), metadata: None };
    let again = || Command::Ensure(EnsureSession { session_id: "s".into(), session: session.clone() });
    for _ in 0..8 {
        for done in join_all((0..500).map(|_| adapter.propose(Proposal::new(again(), soon())))).await {
            done.unwrap();
        }
    }
    // At most 1 MiB is not in a snapshot, and a quarter of it is kept behind the snapshot.
    let purged = |metrics: &openraft::RaftMetrics<Types>| metrics.purged.is_some_and(|purged| purged.index > 1900);
    let raft = adapter.replica().raft();
    raft.wait(Some(Duration::from_secs(60))).metrics(purged, "the log is purged").await.unwrap();
    adapter.shutdown().await;
    let bytes = adapter.replica().log().bytes();
    assert!(bytes < 2_000_000, "{bytes} bytes are left of more than 4,000,000");
}
