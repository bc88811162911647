//! Tests of several members: every node reads what one acknowledged, and the loss of a leader loses nothing. Each node
//! has its own runtime and real sockets, so that it can be killed as a whole.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use futures::future::join_all;
use tempfile::TempDir;
use tokio::runtime::{Handle, Runtime};
use tonic::Code;

use super::*;
use crate::events::bindings::{Binding, BindingKey};
use crate::events::delivery::{AttachPoint, Delivery, Handed};
use crate::events::feed::{Feed, FeedSettings};
use crate::events::filter::Filter;
use crate::events::{Committed, EventSink};
use crate::machine::Command;
use crate::machine::apply::append::AppendEntry;
use crate::machine::apply::beside::Beside;
use crate::machine::apply::create::CreateSession;
use crate::machine::apply::ensure::EnsureSession;
use crate::machine::entry::Body;
use crate::machine::ids::Position;
use crate::machine::json::Json;
use crate::machine::message::{Message, Role};
use crate::machine::turn::TurnCommand;
use crate::mint::SystemMint;
use crate::replication::admin_messages::admin_client::AdminClient;
use crate::replication::admin_messages::{self as admin, Call};
use crate::replication::checkpoint::Checkpoint;
use crate::replication::peer_messages::peer_client::PeerClient;
use crate::replication::peer_messages::snapshot_part::Part;
use crate::replication::peer_messages::{ReadIndexRequest, SnapshotPart};
use crate::replication::types::Types;
use crate::replication::{RAFT_GROUP, wire};
use crate::storage::state::memory::MemoryStore;

#[path = "forward_test.rs"]
mod forward;

#[path = "read_index_test.rs"]
mod read_index;

struct NoSubscribers;

impl EventSink for NoSubscribers {
    fn publish(&self, _events: Vec<Arc<Committed>>) {}
}

/// A running node that can be killed at once.
struct Node {
    settings: RaftSettings,
    adapter: Arc<RaftAdapter>,
    runtime: Option<Runtime>,
    _dir: Arc<TempDir>,
}

fn free_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

impl Node {
    async fn begin(node_id: u64, adjust: impl FnOnce(RaftSettings) -> RaftSettings) -> Node {
        Node::begin_with_sink(node_id, adjust, Arc::new(NoSubscribers)).await
    }

    async fn begin_with_sink(
        node_id: u64,
        adjust: impl FnOnce(RaftSettings) -> RaftSettings,
        sink: Arc<dyn EventSink>,
    ) -> Node {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let settings = RaftSettings {
            peer_listen: Some(free_port()),
            join: node_id != 1,
            // The machine that runs the tests may be busy with other things.
            heartbeat: Duration::from_millis(100),
            lease: Duration::from_millis(450),
            election: Duration::from_millis(300),
            ..RaftSettings::new(dir.path(), node_id)
        };
        Node::start_with_sink(adjust(settings), dir, sink).await.unwrap()
    }

    async fn start(settings: RaftSettings, dir: Arc<TempDir>) -> Result<Node, StartError> {
        Node::start_with_sink(settings, dir, Arc::new(NoSubscribers)).await
    }

    async fn start_with_sink(
        mut settings: RaftSettings,
        dir: Arc<TempDir>,
        sink: Arc<dyn EventSink>,
    ) -> Result<Node, StartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let store = Arc::new(MemoryStore::new());
        let starting = RaftAdapter::start(settings.clone(), Arc::new(SystemMint::default()), store, sink);
        let started = runtime.spawn(starting).await.unwrap();
        let adapter = match started {
            Ok(adapter) => Arc::new(adapter),
            Err(error) => {
                runtime.shutdown_background();
                return Err(error);
            }
        };
        settings.peer_listen = adapter.peer_address();
        Ok(Node { settings, adapter, runtime: Some(runtime), _dir: dir })
    }

    fn id(&self) -> u64 {
        self.settings.node_id
    }

    fn address(&self) -> String {
        self.settings.peer_listen.unwrap().to_string()
    }

    fn handle(&self) -> Handle {
        self.runtime.as_ref().unwrap().handle().clone()
    }

    /// Ends all tasks of the node at once. Writes that the disk already has are completed.
    async fn kill(mut self) -> (RaftSettings, Arc<TempDir>) {
        let log = self.adapter.replica().log().clone();
        let runtime = self.runtime.take().unwrap();
        let threads = self.adapter.replica().threads().clone();
        let Node { settings, adapter, _dir, .. } = &self;
        let (settings, dir) = (settings.clone(), _dir.clone());
        let adapter = Arc::downgrade(adapter);
        drop(self);
        let end = move || {
            threads.end();
            runtime.shutdown_timeout(Duration::from_secs(20));
        };
        tokio::task::spawn_blocking(end).await.unwrap();
        log.close().await;
        assert_eq!(adapter.strong_count(), 0, "nothing references a killed node");
        (settings, dir)
    }

    async fn restart(self) -> Node {
        let (settings, dir) = self.kill().await;
        Node::start(settings, dir).await.unwrap()
    }

    async fn propose(&self, command: Command) -> Result<Answer, AdapterError> {
        let adapter = self.adapter.clone();
        self.handle().spawn(async move { adapter.propose(Proposal::new(command, soon())).await }).await.unwrap()
    }

    async fn ask(&self, query: Query) -> Result<Found, AdapterError> {
        let adapter = self.adapter.clone();
        self.handle().spawn(async move { adapter.ask(query, Freshness::Linearizable, soon()).await }).await.unwrap()
    }

    async fn texts(&self, session: &str) -> Vec<String> {
        match self.ask(Query::Entries(session.into())).await {
            Ok(Found::Entries(entries)) => entries.iter().map(text_of).collect(),
            other => panic!("{other:?}"),
        }
    }

    async fn admin(&self) -> AdminClient<tonic::transport::Channel> {
        AdminClient::connect(format!("http://{}", self.address())).await.unwrap()
    }

    async fn status(&self) -> admin::StatusResponse {
        let request = admin::StatusRequest { call: call() };
        self.admin().await.status(request).await.unwrap().into_inner()
    }

    async fn wait(&self, what: &str, until: impl Fn(&openraft::RaftMetrics<Types>) -> bool + Send) {
        let waiting = self.adapter.replica().raft().wait(Some(Duration::from_secs(60)));
        waiting.metrics(until, what).await.unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn call() -> Option<Call> {
    Some(Call { protocol: 1, ..Call::default() })
}

/// A cheap query that is never answered from an old state.
fn any_cursor() -> Query {
    Query::Cursor(String::new())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn ensure(id: &str) -> Command {
    let session = CreateSession { title: id.to_owned(), description: String::new(), metadata: None };
    Command::Ensure(EnsureSession { session_id: id.into(), session })
}

/// A message whose id is minted, so that applying it twice is visible.
fn say(id: &str, text: &str) -> Command {
    let body = Json::adopt(&format!(r#"{{"role":"user","content":[{{"text":"{text}"}}]}}"#));
    let body = Body::Message(Message { role: Role::User, body });
    Command::Append(AppendEntry { session_id: id.into(), entry_id: None, parent_id: None, origin: None, body })
}

fn text_of(entry: &crate::machine::entry::Entry) -> String {
    let Body::Message(message) = &entry.body else { panic!("{entry:?}") };
    let body: serde_json::Value = serde_json::from_str(message.body.text()).unwrap();
    body["content"][0]["text"].as_str().unwrap().to_owned()
}

/// A cluster of `size` voters, grown from one node.
async fn cluster(size: u64, adjust: impl Fn(RaftSettings) -> RaftSettings) -> Vec<Node> {
    let mut nodes = vec![Node::begin(1, &adjust).await];
    for id in 2..=size {
        let node = Node::begin(id, &adjust).await;
        join(&nodes[0], &node).await;
        nodes.push(node);
    }
    nodes
}

async fn join(through: &Node, node: &Node) {
    let mut admin = through.admin().await;
    let add = admin::AddLearnerRequest { call: call(), node: node.id(), address: node.address() };
    admin.add_learner(add).await.unwrap();
    admin.promote(admin::PromoteRequest { call: call(), node: node.id() }).await.unwrap();
}

async fn leader_of(nodes: &[Node]) -> usize {
    let leads = |metrics: &openraft::RaftMetrics<Types>| {
        metrics.current_leader.is_some_and(|leader| nodes.iter().any(|node| node.id() == leader))
    };
    nodes[0].wait("a leader among the living", leads).await;
    let leader = Leader::of(nodes[0].adapter.replica().raft()).unwrap().node;
    nodes.iter().position(|node| node.id() == leader).unwrap()
}

/// All nodes reach the same index and have the same hash there.
async fn agree(nodes: &[Node]) {
    let last = nodes.iter().map(|node| node.adapter.replica().log().edges().last.unwrap().index).max().unwrap();
    for node in nodes {
        let applied = node.adapter.replica().await_applied(last);
        tokio::time::timeout(Duration::from_secs(60), applied).await.expect("everything is applied").unwrap();
    }
    let checkpoints: Vec<Checkpoint> = nodes.iter().map(|node| node.adapter.replica().checkpoint().unwrap()).collect();
    assert!(checkpoints.iter().all(|at| at.applied == checkpoints[0].applied), "{checkpoints:?}");
    assert!(checkpoints.iter().all(|at| at.state_hash == checkpoints[0].state_hash), "{checkpoints:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_level_is_raised_on_first_use_if_every_member_answers_and_nothing_holds_it() {
    let beside = || Command::Beside(Beside::Turn(TurnCommand::Detach { driver_id: "d".to_owned(), node: None }));
    // 1. A setting holds it.
    let held = Node::begin(1, |settings| RaftSettings { max_level: Some(1), ..settings }).await;
    let refused = held.propose(beside()).await.unwrap_err().to_string();
    assert!(refused.contains("max_level holds it at 1"), "{refused}");
    // 2. A member that does not answer could be of an older build.
    let mut nodes = cluster(3, |settings| settings).await;
    nodes[0].propose(ensure("s")).await.unwrap();
    let leader = leader_of(&nodes).await;
    let lost = nodes.remove((leader + 1) % 3).kill().await;
    let (adapter, within) = (nodes[0].adapter.clone(), Instant::now() + Duration::from_secs(5));
    let proposing = async move { adapter.propose(Proposal::new(beside(), within)).await };
    let silent = nodes[0].handle().spawn(proposing).await.unwrap().unwrap_err().to_string();
    assert!(silent.contains("does not answer"), "{silent}");
    // 3. It answers again, and the call goes through a follower.
    nodes.push(Node::start(lost.0, lost.1).await.unwrap());
    let leader = leader_of(&nodes).await;
    nodes[(leader + 1) % 3].propose(beside()).await.unwrap();
    agree(&nodes).await;
    assert_eq!((nodes[2].status().await.level, nodes[2].status().await.knows_level), (2, 2));
    // 4. An operator may raise it as well.
    let alone = Node::begin(1, |settings| settings).await;
    let finalized = alone.admin().await.finalize(admin::FinalizeRequest { call: call() }).await;
    assert_eq!((finalized.unwrap().into_inner().level, alone.status().await.level), (2, 2));
}

/// Much longer than the lease of the leader.
const LONG: Duration = Duration::from_secs(2);

/// Delays the thread that publishes the next event, and with it apply.
#[derive(Default)]
struct SlowSink(AtomicBool);

impl EventSink for SlowSink {
    fn publish(&self, _events: Vec<Arc<Committed>>) {
        if self.0.swap(false, Ordering::SeqCst) {
            std::thread::sleep(LONG);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_a_long_query_nor_a_long_apply_delays_heartbeats() {
    let slow = Arc::new(SlowSink::default());
    let leader = Node::begin_with_sink(1, |settings| settings, slow.clone()).await;
    let mut nodes = vec![leader];
    for id in 2..=3 {
        let node = Node::begin(id, |settings| settings).await;
        join(&nodes[0], &node).await;
        nodes.push(node);
    }
    nodes[1].propose(ensure("s")).await.unwrap();
    let terms = || nodes.iter().map(|node| node.adapter.replica().term()).collect::<Vec<_>>();
    let before = terms();
    // 1. Every thread that serves clients of the leader is busy, as with a query that reads very much.
    let busy: Vec<_> = (0..4).map(|_| nodes[0].handle().spawn(async { std::thread::sleep(LONG) })).collect();
    join_all(busy).await.into_iter().for_each(Result::unwrap);
    assert_eq!(terms(), before, "the leader lost its leadership to its clients");
    // 2. One command takes the leader very long to apply.
    slow.0.store(true, Ordering::SeqCst);
    nodes[0].propose(say("s", "slow")).await.unwrap();
    nodes[0].propose(say("s", "behind it")).await.unwrap();
    assert_eq!(terms(), before, "the leader lost its leadership to apply");
    assert_eq!(nodes[2].texts("s").await, ["slow", "behind it"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_voters_whose_leader_was_lost_is_completed_by_the_next_one() {
    let mut nodes = cluster(3, |settings| settings).await;
    let fourth = Node::begin(4, |settings| settings).await;
    let add = admin::AddLearnerRequest { call: call(), node: 4, address: fourth.address() };
    nodes[0].admin().await.add_learner(add).await.unwrap();
    nodes.push(fourth);
    let leader = leader_of(&nodes).await;
    let sets = |metrics: &openraft::RaftMetrics<Types>| metrics.membership_config.membership().get_joint_config().len();
    // Dropped between its two entries: nobody writes the second one for it.
    let raft = nodes[leader].adapter.replica().raft().clone();
    let change = openraft::ChangeMembers::AddVoterIds([4].into());
    tokio::select! {
        biased;
        () = nodes[leader].wait("the first entry", |metrics| sets(metrics) == 2) => {}
        changed = raft.change_membership(change, true) => panic!("it was not interrupted: {changed:?}"),
    }
    // It has left the leader. Otherwise nobody would know of it after the kill.
    let told = |metrics: &openraft::RaftMetrics<Types>| {
        metrics.membership_config.membership().voter_ids().any(|voter| voter == 4)
    };
    nodes[(leader + 1) % 3].wait("the first entry at a follower", told).await;
    nodes.remove(leader).kill().await;
    for node in &nodes {
        let complete = |metrics: &openraft::RaftMetrics<Types>| {
            sets(metrics) == 1 && metrics.membership_config.membership().voter_ids().count() == 4
        };
        node.wait("the change is complete", complete).await;
    }
    nodes[0].propose(ensure("s")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_takes_nothing_acknowledged_with_it_and_nothing_happens_twice() {
    let mut nodes = cluster(3, |settings| settings).await;
    nodes[0].propose(ensure("s")).await.unwrap();
    let (mut acknowledged, mut doubtful) = (Vec::new(), Vec::new());
    for round in 0..2 {
        let victim = leader_of(&nodes).await;
        let stop = Arc::new(AtomicBool::new(false));
        let survivors: Vec<usize> = (0..nodes.len()).filter(|index| *index != victim).collect();
        let writers = survivors.iter().flat_map(|node| (0..4).map(move |writer| (*node, writer)));
        let writing: Vec<_> = writers
            .map(|(node, writer)| {
                let (adapter, stop) = (nodes[node].adapter.clone(), stop.clone());
                nodes[node].handle().spawn(async move {
                    let mut outcomes = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let text = format!("{round}.{node}.{writer}.{}", outcomes.len());
                        let outcome = adapter.propose(Proposal::new(say("s", &text), soon())).await;
                        outcomes.push((text, outcome));
                    }
                    outcomes
                })
            })
            .collect();
        let reached = nodes[victim].adapter.replica().log().edges().last.unwrap().index + 50;
        let written = move |metrics: &openraft::RaftMetrics<Types>| {
            metrics.last_applied.is_some_and(|applied| applied.index >= reached)
        };
        nodes[survivors[0]].wait("the load has begun", written).await;

        let dead = nodes.remove(victim);
        let killed = dead.kill().await;
        let new = leader_of(&nodes).await;
        let from = nodes[new].adapter.replica().log().edges().last.unwrap().index + 50;
        let goes_on = move |metrics: &openraft::RaftMetrics<Types>| {
            metrics.last_applied.is_some_and(|applied| applied.index >= from)
        };
        nodes[new].wait("the load goes on", goes_on).await;
        stop.store(true, Ordering::Relaxed);
        for (text, outcome) in join_all(writing).await.into_iter().flat_map(Result::unwrap) {
            match outcome {
                Ok(_) => acknowledged.push(text),
                Err(AdapterError::OutcomeUnknown(_)) => doubtful.push(text),
                Err(AdapterError::Unavailable(_)) => {}
                Err(refused @ (AdapterError::Refused(_) | AdapterError::RefusedByMain { .. })) => panic!("{refused}"),
            }
        }
        nodes.push(Node::start(killed.0, killed.1).await.unwrap());
    }
    for node in &nodes {
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        for text in node.texts("s").await {
            *times.entry(text).or_default() += 1;
        }
        assert!(acknowledged.iter().all(|text| times.get(text) == Some(&1)), "lost or doubled on node {}", node.id());
        assert!(times.values().all(|times| *times == 1));
        assert!(times.len() <= acknowledged.len() + doubtful.len());
    }
    assert!(acknowledged.len() > 200, "{}", acknowledged.len());
    agree(&nodes).await;
}

/// A killed node, and the last log index it has.
struct Behind {
    settings: RaftSettings,
    dir: Arc<TempDir>,
    missed: u64,
}

/// Two running nodes whose logs are purged beyond what the third one, which was killed, has.
async fn cluster_with_one_behind(messages: usize) -> (Vec<Node>, Behind) {
    let small = |settings| RaftSettings {
        snapshot_every: 100,
        keep_entries: 20,
        log: crate::storage::log::Limits { segment_bytes: 4 << 10, ..Default::default() },
        ..settings
    };
    let mut nodes = cluster(3, small).await;
    nodes[0].propose(ensure("s")).await.unwrap();
    let (settings, dir) = nodes.pop().unwrap().kill().await;
    let missed = nodes[0].adapter.replica().log().edges().last.unwrap().index;
    for round in 0..10 {
        let texts: Vec<String> = (0..messages / 10).map(|n| format!("{round}.{n}")).collect();
        for done in join_all(texts.iter().map(|text| nodes[1].propose(say("s", text)))).await {
            done.unwrap();
        }
    }
    let purged = move |metrics: &openraft::RaftMetrics<Types>| metrics.purged.is_some_and(|id| id.index > missed);
    let leader = leader_of(&nodes).await;
    nodes[leader].wait("the log is purged beyond the killed node", purged).await;
    (nodes, Behind { settings, dir, missed })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_far_behind_catches_up_by_snapshot_while_writes_go_on() {
    let (mut nodes, Behind { settings, dir, missed }) = cluster_with_one_behind(500).await;

    let late = Node::start(settings, dir).await.unwrap();
    for n in 0..50 {
        nodes[0].propose(say("s", &format!("meanwhile {n}"))).await.unwrap();
    }
    let installed = move |metrics: &openraft::RaftMetrics<Types>| metrics.snapshot.is_some_and(|id| id.index > missed);
    late.wait("a snapshot is installed", installed).await;
    assert_eq!(late.texts("s").await.len(), 550);
    nodes.push(late);
    agree(&nodes).await;
}

/// A sink that delays a jump of the state until the test has connected its feed.
struct GatedSink {
    feed: Arc<Feed>,
    may_jump: (Mutex<bool>, Condvar),
    jumped: AtomicBool,
}

impl EventSink for GatedSink {
    fn publish(&self, events: Vec<Arc<Committed>>) {
        self.feed.publish(events);
    }

    fn jumped(&self, to: Position) {
        let (allowed, changed) = &self.may_jump;
        drop(changed.wait_while(allowed.lock().unwrap(), |allowed| !*allowed).unwrap());
        self.feed.jumped(to);
        self.jumped.store(true, Ordering::SeqCst);
    }
}

/// Records position and sequence number of each event.
#[derive(Default)]
struct Listener(Mutex<Vec<(Position, u64)>>);

impl AttachPoint for Listener {
    fn deliver(&self, delivery: Delivery<'_>) -> Handed {
        self.0.lock().unwrap().push((delivery.committed.position, delivery.committed.event.seq));
        Handed::Taken
    }

    fn room(&self, _: &Binding) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_subscriber_of_a_follower_that_installs_a_snapshot_hears_everything_once() {
    let (nodes, Behind { settings, dir, .. }) = cluster_with_one_behind(300).await;

    // The subscriber binds before the node has any data.
    let feed = Feed::new(FeedSettings::default());
    let listener = Arc::new(Listener::default());
    feed.bind(Binding {
        key: BindingKey { owner: 1, id: "all".into() },
        function_id: "f".into(),
        filter: Filter::parse("session::message-added", &serde_json::Value::Null).unwrap(),
        sidecar_fields: String::new(),
        after: None,
        to: listener.clone(),
    })
    .unwrap();
    let sink = Arc::new(GatedSink { feed: feed.clone(), may_jump: Default::default(), jumped: AtomicBool::new(false) });
    let late = Node::start_with_sink(settings, dir, sink.clone()).await.unwrap();
    let history: Arc<dyn StoredFeed> = late.adapter.clone();
    feed.reads_from(&history);
    drop(history);
    late.handle().spawn(feed.clone().dispatch(tokio_util::sync::CancellationToken::new()));
    *sink.may_jump.0.lock().unwrap() = true;
    sink.may_jump.1.notify_all();
    for n in 0..30 {
        nodes[0].propose(say("s", &format!("meanwhile {n}"))).await.unwrap();
    }
    for _ in 0..30_000 {
        if listener.0.lock().unwrap().len() >= 330 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(sink.jumped.load(Ordering::SeqCst), "a snapshot was installed");
    let heard = listener.0.lock().unwrap().clone();
    assert!(heard.is_sorted_by(|one, next| one.0 < next.0), "in order, each once: {heard:?}");
    assert_eq!(heard.iter().map(|(_, seq)| *seq).collect::<Vec<_>>(), (2..=331).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_added_promoted_led_by_another_and_removed() {
    let mut nodes = cluster(2, |settings| settings).await;
    let third = Node::begin(3, |settings| settings).await;
    assert_eq!(third.status().await.role(), admin::Role::Waiting);
    let mut admin = nodes[1].admin().await;
    let add = admin::AddLearnerRequest { call: call(), node: 3, address: third.address() };
    let members = admin.add_learner(add.clone()).await.unwrap().into_inner().members;
    assert_eq!(members.iter().map(|member| member.voter).collect::<Vec<_>>(), [true, true, false]);
    admin.add_learner(add).await.unwrap();
    admin.promote(admin::PromoteRequest { call: call(), node: 3 }).await.unwrap();
    nodes.push(third);
    nodes[2].propose(ensure("s")).await.unwrap();

    admin.transfer_leader(admin::TransferLeaderRequest { call: call(), to: 3 }).await.unwrap();
    for node in &nodes {
        node.wait("node 3 leads", |metrics| metrics.current_leader == Some(3)).await;
    }
    nodes[0].propose(say("s", "under node 3")).await.unwrap();
    let refused = admin.remove(admin::RemoveRequest { call: call(), node: 3, force: false }).await.unwrap_err();
    assert!(refused.message().contains("node 3 leads"), "{refused:?}");
    let refused = admin.remove(admin::RemoveRequest { call: call(), node: 9, force: false }).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);

    let removed = admin.remove(admin::RemoveRequest { call: call(), node: 2, force: false }).await.unwrap();
    assert_eq!(removed.into_inner().members.iter().map(|member| member.node).collect::<Vec<_>>(), [1, 3]);
    // A removed node cannot know that it was removed, but it no longer confirms reads, so bridges use another node.
    let brief = Instant::now() + Duration::from_secs(1);
    let confirmed = nodes[1].adapter.ask(any_cursor(), Freshness::Linearizable, brief).await;
    assert!(matches!(confirmed, Err(AdapterError::Unavailable(_))), "{confirmed:?}");
    nodes[0].adapter.ask(any_cursor(), Freshness::Linearizable, soon()).await.unwrap();
    nodes.remove(1).kill().await;
    nodes[0].propose(say("s", "without node 2")).await.unwrap();
    let status = nodes[0].status().await;
    assert_eq!((status.role(), status.leader, status.health()), (admin::Role::Follower, 3, admin::Health::Ok));
    agree(&nodes).await;
    assert_eq!(nodes[0].status().await.state_hash, nodes[1].status().await.state_hash);

    // With one of two nodes there is no quorum, so no linearizable read is answered.
    nodes.remove(0).kill().await;
    let brief = Instant::now() + Duration::from_secs(2);
    let unread = nodes[0].adapter.ask(Query::Meta("s".into()), Freshness::Linearizable, brief).await;
    assert!(matches!(unread, Err(AdapterError::Unavailable(_))), "{unread:?}");
    // A local read is answered.
    let local = nodes[0].adapter.ask(Query::Meta("s".into()), Freshness::Local, soon()).await;
    assert!(matches!(local, Ok(Found::Meta(Some(_)))), "{local:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_nodes_data_becomes_the_first_member_of_a_cluster() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let settings = RaftSettings::new(dir.path(), 1);
    let store = Arc::new(MemoryStore::new());
    let alone =
        RaftAdapter::start(settings.clone(), Arc::new(SystemMint::default()), store, Arc::new(NoSubscribers)).await;
    let alone = alone.unwrap();
    alone.propose(Proposal::new(ensure("s"), soon())).await.unwrap();
    alone.shutdown().await;
    drop(alone);

    let first = Node::start(RaftSettings { peer_listen: Some(free_port()), ..settings }, dir).await.unwrap();
    let second = Node::begin(2, |settings| settings).await;
    join(&first, &second).await;
    second.propose(say("s", "from the second")).await.unwrap();
    assert_eq!(first.texts("s").await, ["from the second"]);
    assert_eq!(first.status().await.cluster_id, second.status().await.cluster_id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_and_wiped_disks_are_refused_by_name() {
    let mut nodes = cluster(3, |settings| settings).await;
    let mut client = PeerClient::connect(format!("http://{}", nodes[0].address())).await.unwrap();
    let peers = &nodes[1].adapter.replica().membership().peers;
    let mut hop = peers.local.hop_to(1, &Default::default());
    client.read_index(ReadIndexRequest { hop: Some(hop.clone()), term: 0 }).await.unwrap();
    hop.cluster_id = "another".to_owned();
    let refused = client.read_index(ReadIndexRequest { hop: Some(hop), term: 0 }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("calls from cluster another, but node 1 belongs to cluster"), "{refused:?}");

    // A node that founded its own cluster cannot join another.
    let founder = Node::begin(4, |settings| RaftSettings { join: false, ..settings }).await;
    let add = |node: &Node| admin::AddLearnerRequest { call: call(), node: node.id(), address: node.address() };
    let refused = nodes[0].admin().await.add_learner(add(&founder)).await.unwrap_err();
    assert!(refused.message().contains("node 4 belongs to cluster"), "{refused:?}");

    // Node 3 returns with an empty disk.
    let (settings, _dir) = nodes.pop().unwrap().kill().await;
    let wiped = Node::begin(3, |fresh| RaftSettings { peer_listen: settings.peer_listen, ..fresh }).await;
    let refused = nodes[1].admin().await.add_learner(add(&wiped)).await.unwrap_err();
    assert_eq!(refused.message(), "node 3 has lost its disk: remove it and add it under a new id");
    nodes[0].admin().await.remove(admin::RemoveRequest { call: call(), node: 3, force: false }).await.unwrap();
    nodes[1].propose(ensure("s")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_cut_short_or_has_a_flipped_bit_is_refused() {
    let nodes = cluster(2, |settings| settings).await;
    nodes[0].propose(ensure("s")).await.unwrap();
    let built = nodes[0].admin().await.snapshot(admin::SnapshotRequest { call: call() }).await.unwrap().into_inner();
    let replica = nodes[0].adapter.replica();
    let sealed = replica.snapshots().newest().unwrap();
    assert_eq!(sealed.index, built.index);
    let checkpoint = Checkpoint::decode(&sealed.checkpoint, RAFT_GROUP).unwrap();
    let vote = replica.raft().metrics();
    let vote = openraft::async_runtime::WatchReceiver::borrow_watched(&vote).vote;
    let meta = checkpoint.snapshot_meta().unwrap();
    let peer = nodes[1].adapter.replica().peer().clone();
    let hop = replica.membership().peers.local.hop_to(2, &peer);
    let whole = std::fs::read(&sealed.path).unwrap();
    let mut client = PeerClient::connect(format!("http://{}", nodes[1].address())).await.unwrap();
    // A read on node 2 is answered once it has applied what was acknowledged.
    nodes[1].texts("s").await;
    let before = nodes[1].adapter.replica().checkpoint().unwrap();
    for (bytes, word) in [
        (whole[..whole.len() - 1].to_vec(), "cut short"),
        ([&whole[..], b"x"].concat(), "longer"),
        (flipped(&whole, whole.len() / 2), "damaged"),
        (flipped(&whole, whole.len() - 1), "damaged"),
    ] {
        let length = whole.len() as u64;
        let header = wire::snapshot_header_to_proto(hop.clone(), &vote, &meta, length, sealed.checksum);
        let parts = [Part::Header(header), Part::Chunk(bytes.into())].map(|part| SnapshotPart { part: Some(part) });
        let refused = client.install_snapshot(futures::stream::iter(parts)).await.unwrap_err();
        assert_eq!(refused.code(), Code::DataLoss);
        assert!(refused.message().contains(word), "{word}: {refused:?}");
    }
    assert_eq!(nodes[1].adapter.replica().checkpoint().unwrap(), before);
    nodes[1].propose(say("s", "unharmed")).await.unwrap();
}

fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 1;
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_in_order_transfers_leadership_first() {
    let mut nodes = cluster(3, |settings| settings).await;
    let leader = leader_of(&nodes).await;
    let stopping = nodes.remove(leader);
    let before = Instant::now();
    let adapter = stopping.adapter.clone();
    stopping.handle().spawn(async move { adapter.shutdown().await }).await.unwrap();
    nodes[0].propose(ensure("s")).await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(5));
    stopping.restart().await;
}
