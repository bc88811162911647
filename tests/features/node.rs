//! Owns: one node under test: everything from the text of a call to its answer, over one kind of store. Its clock and
//! its randomness count up, so that every run is the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use session_manager::events::stored::StoredFeed;
use session_manager::machine::ids::RequestId;
use session_manager::machine::long::Steps;
use session_manager::machine::model::profile::Terms;
use session_manager::machine::stamp::Stamp;
use session_manager::machine::{Command, Found, Query};
use session_manager::mint::Mint;
use session_manager::proposal::local::LocalAdapter;
use session_manager::proposal::long::Chores;
use session_manager::proposal::raft::{RaftAdapter, RaftSettings};
use session_manager::proposal::{Adapter, AdapterError, Freshness, Proposal};
use session_manager::requests::Limits;
use session_manager::surface::calls::{Calls, Runtime};
use session_manager::surface::{Call, CallError, Caller, Door, Service};
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::edge::Edge;
use crate::event_recorder::EventRecorder;

/// The kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Jsonl,
    /// The raft adapter: a cluster of one over the log, with its state in sled.
    Sled,
    /// Three members of a cluster. Scenarios talk to one that follows. Only turns and the session model run here too.
    Cluster,
    /// The bridge adapter, with a main that takes decisions.
    Bridge,
    /// The bridge adapter, with a main that only stores records.
    Records,
}

impl Kind {
    pub const ALL: [Kind; 6] = [Kind::Memory, Kind::Jsonl, Kind::Sled, Kind::Cluster, Kind::Bridge, Kind::Records];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Jsonl => "jsonl",
            Kind::Sled => "sled",
            Kind::Cluster => "a cluster of three",
            Kind::Bridge => "a bridge",
            Kind::Records => "a bridge to records",
        }
    }

    /// Whether a scenario with these tags applies to this store.
    pub fn runs(self, tags: &[String]) -> bool {
        tags.iter().all(|tag| match (self, tag.as_str()) {
            (_, "engine" | "gateway" | "door") => false,
            (Kind::Memory, "durable" | "jsonl" | "sled" | "cluster") => false,
            (Kind::Jsonl, "sled" | "not-jsonl" | "cluster") => false,
            (Kind::Sled, "jsonl" | "cluster") => false,
            (Kind::Cluster, "jsonl") => false,
            (Kind::Bridge | Kind::Records, "durable" | "jsonl" | "sled" | "kept-feed" | "cluster") => false,
            (Kind::Jsonl | Kind::Bridge | Kind::Records, "turns") => false,
            (_, _) => true,
        })
    }
}

impl Kind {
    pub fn is_edge(self) -> bool {
        match self {
            Kind::Bridge | Kind::Records => true,
            Kind::Memory | Kind::Jsonl | Kind::Sled | Kind::Cluster => false,
        }
    }

    /// Whether it runs a scenario at all. A cluster takes a second to form.
    pub fn is_for(self, tags: &[String]) -> bool {
        self != Kind::Cluster || tags.iter().any(|tag| tag == "turns")
    }
}

/// Long enough for a busy machine. A call that takes longer counts as hanging.
const PATIENCE: Duration = Duration::from_secs(20);

/// Each stamp is one millisecond after the last one, each seed is the next number.
#[derive(Debug)]
pub struct CountingMint {
    now_ms: AtomicI64,
    next: AtomicU64,
}

impl CountingMint {
    fn count(&self) -> u128 {
        u128::from(self.next.fetch_add(1, Ordering::SeqCst))
    }

    pub fn shift(&self, by_ms: i64) {
        self.now_ms.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl Mint for CountingMint {
    fn stamp(&self) -> Stamp {
        Stamp { at_ms: self.now_ms.fetch_add(1, Ordering::SeqCst), seed: self.count() }
    }

    fn request_id(&self) -> RequestId {
        RequestId::new(self.now_ms.load(Ordering::SeqCst), self.count())
    }
}

pub struct Node {
    pub kind: Kind,
    pub mint: Arc<CountingMint>,
    pub recorder: Arc<EventRecorder>,
    /// Removed with the node.
    directory: TempDir,
    running: Option<Running>,
    settings: Settings,
}

struct Running {
    calls: Arc<Calls>,
    adapter: Arc<dyn Adapter>,
    /// The state that holds what is due; none behind a bridge.
    state: Option<Arc<dyn StoredFeed>>,
    close: Close,
}

/// How to shut down each adapter.
enum Close {
    Local(Arc<LocalAdapter>),
    Raft(Arc<RaftAdapter>),
    Cluster(Cluster),
    Edge(Edge),
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub limits: Limits,
    pub legacy_names: bool,
    pub authoritative: bool,
}

impl Node {
    pub async fn start(kind: Kind) -> Node {
        let mint = CountingMint { now_ms: AtomicI64::new(1_700_000_000_000), next: AtomicU64::new(1) };
        let limits = Limits { default_list_limit: 50, max_list_limit: 500, model: Terms::DEFAULT };
        let mut node = Node {
            kind,
            mint: Arc::new(mint),
            recorder: EventRecorder::new(),
            directory: tempfile::tempdir().expect("a temporary directory"),
            running: None,
            settings: Settings { limits, legacy_names: true, authoritative: !kind.is_edge() },
        };
        node.open().await;
        node
    }

    pub fn data(&self) -> &std::path::Path {
        self.directory.path()
    }

    async fn open(&mut self) {
        let (mint, recorder) = (self.mint.clone(), self.recorder.clone());
        let (adapter, state, close): (Arc<dyn Adapter>, Option<Arc<dyn StoredFeed>>, Close) = match self.kind {
            Kind::Memory => {
                let adapter = Arc::new(LocalAdapter::memory(mint, recorder));
                (adapter.clone(), Some(adapter.clone()), Close::Local(adapter))
            }
            Kind::Jsonl => {
                let adapter = LocalAdapter::open_jsonl(self.data(), mint, recorder).expect("the data directory opens");
                let adapter = Arc::new(adapter);
                (adapter.clone(), Some(adapter.clone()), Close::Local(adapter))
            }
            Kind::Sled => {
                let settings = RaftSettings::new(self.data(), 1);
                let adapter = RaftAdapter::open(settings, mint, recorder).await.expect("the data directory opens");
                let adapter = Arc::new(adapter);
                (adapter.clone(), Some(adapter.clone()), Close::Raft(adapter))
            }
            Kind::Cluster => {
                let cluster = Cluster::open(self.data(), mint, recorder).await;
                let adapter = cluster.follower();
                (adapter.clone(), Some(adapter), Close::Cluster(cluster))
            }
            Kind::Bridge | Kind::Records => {
                let edge = Edge::open(self.kind == Kind::Bridge, mint, recorder).await;
                (edge.adapter.clone(), None, Close::Edge(edge))
            }
        };
        if let Some(state) = &state {
            self.recorder.reads_from(state.clone());
        }
        let calls = Arc::new(Calls::new(self.settings.runtime(&adapter)));
        self.running = Some(Running { calls, adapter, state, close });
    }

    /// Shuts the node down.
    pub async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            drop((running.calls, running.adapter, running.state));
            match running.close {
                Close::Local(adapter) => {
                    let closed = tokio::task::spawn_blocking(move || adapter.close()).await;
                    closed.expect("the node stops");
                }
                Close::Raft(adapter) => adapter.shutdown().await,
                Close::Cluster(cluster) => cluster.close().await,
                Close::Edge(edge) => edge.close(),
            }
            self.recorder.restart();
        }
    }

    pub async fn restart(&mut self) {
        self.stop().await;
        self.open().await;
    }

    /// Takes the leader of a cluster away.
    pub async fn stop_leader(&mut self) {
        match self.running.as_mut().map(|running| &mut running.close) {
            Some(Close::Cluster(cluster)) => cluster.stop_leader().await,
            _other => panic!("only a cluster can lose its leader"),
        }
    }

    /// Time passes, and what was due fires as the leader lets it. Returns how much was proposed.
    pub async fn time_passes(&self, by_ms: i64) -> usize {
        self.mint.shift(by_ms);
        let Running { adapter, state, .. } = self.running();
        let chores = Chores {
            adapter: adapter.clone(),
            state: state.clone().expect("a state with what is due"),
            is_leader: Box::new(|| true),
            mint: self.mint.clone(),
            steps: Steps::default(),
        };
        let mut proposed = 0;
        while chores.step().await.is_some() {
            proposed += 1;
            // A follower must have applied it, or it would propose the same again.
            self.wait_for_events().await;
        }
        proposed
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the node runs")
    }

    pub fn calls(&self) -> Arc<Calls> {
        Arc::clone(&self.running().calls)
    }

    pub fn configure(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
        let running = self.running();
        running.calls.swap(self.settings.runtime(&running.adapter));
    }

    /// `None`: there is no such function.
    pub async fn call(&self, function: &str, body: &str) -> Option<Result<Value, String>> {
        call(&self.calls(), function, body).await
    }

    pub async fn propose(&self, command: Command) -> Result<(), AdapterError> {
        let proposal = Proposal::new(command, Instant::now() + PATIENCE);
        self.running().adapter.propose(proposal).await.map(|_| ())
    }

    /// Returns when every event of every answered call was recorded.
    pub async fn wait_for_events(&self) {
        let seen = self.recorder.markers();
        self.propose(EventRecorder::marker()).await.expect("a marker is accepted");
        self.recorder.wait_for_marker(seen).await;
    }

    /// Everything that the node stores, to see whether anything changed.
    pub async fn everything(&self) -> Value {
        let Found::Metas(metas) = self.ask(Query::Metas).await else { unreachable!("metas were asked for") };
        let mut all = Vec::new();
        for meta in metas {
            let Found::Entries(entries) = self.ask(Query::Entries(meta.session_id.clone())).await else {
                unreachable!("entries were asked for")
            };
            let Found::Leaf(leaf) = self.ask(Query::Leaf(meta.session_id.clone())).await else {
                unreachable!("a leaf was asked for")
            };
            all.push(json!({ "meta": meta, "entries": entries, "leaf": leaf }));
        }
        Value::Array(all)
    }

    async fn ask(&self, query: Query) -> Found {
        let asked = self.running().adapter.ask(query, Freshness::Linearizable, Instant::now() + PATIENCE);
        asked.await.expect("the state can be read")
    }
}

/// One call with a JSON text. The response is parsed from its text, as a client does.
pub async fn call(calls: &Calls, function: &str, body: &str) -> Option<Result<Value, String>> {
    let call = Call::new(function, body, Instant::now() + PATIENCE, Caller::unauthenticated(Door::Bus));
    Some(match calls.call(&call).await {
        Err(CallError::FunctionUnknown(_)) => return None,
        Ok(answer) => {
            let text = answer.into_text();
            Ok(serde_json::from_str(&text).unwrap_or_else(|error| panic!("not JSON ({error}): {text}")))
        }
        Err(error) => Err(error.to_string()),
    })
}

impl Settings {
    fn runtime(&self, adapter: &Arc<dyn Adapter>) -> Runtime {
        Runtime {
            adapter: Arc::clone(adapter),
            limits: self.limits.clone(),
            legacy_names: self.legacy_names,
            authoritative: self.authoritative,
            keeps_turns: self.authoritative,
            call_timeout: PATIENCE,
        }
    }
}
