//! Owns: one running member of the Raft group: its log, snapshots and state connected to openraft, from start to
//! shutdown.
//! Never: stamp a command.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::{Config, ServerState, SnapshotPolicy};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info};

use super::RAFT_GROUP;
use super::admin_service;
use super::apply::Applier;
use super::autopilot;
use super::channels::Channels;
use super::checkpoint::Checkpoint;
use super::client_urls::{ClientUrl, ClientUrls};
use super::cluster_clock::ClusterClock;
use super::disk_space::{DiskSpace, FreeBytes};
use super::elections::{ElectionTimes, Elections, Signs, VOTE_REQUEST_MAX};
use super::failure::Failure;
use super::figures::Figures;
use super::formation::announce::Announce;
use super::formation::discovery::Discover;
use super::formation::meeting::Meeting;
use super::formation::record::{self, Who};
use super::held_notices::Hurry;
use super::housekeeping::{self, Cadence, Kept};
use super::identity::{DataDir, Identity, IdentityError};
use super::local_node::LocalNode;
use super::log_store::LogStore;
use super::membership::MembershipChanges;
use super::network::Peers;
use super::pace::Pace;
use super::peer_service::OnCluster;
use super::read_index::ReadIndex;
use super::recover::{check_vote, recover};
use super::self_report::{DescribeNode, SelfReport};
use super::state_machine::{StateMachine, off_runtime};
use super::threads::{ApplyDelay, Threads};
use super::types::Types;
use crate::access::tls::PeerTls;
use crate::events::EventSink;
use crate::machine::level::{self, NEWEST};
use crate::machine::long::Steps;
use crate::machine::refusal::Fault;
use crate::metrics::trace::Tracer;
use crate::proto::admin::{Health, Role};
use crate::sockets::{RealSockets, Sockets};
use crate::storage::disk::{Disk, RealDisk};
use crate::storage::log::record::Peer;
use crate::storage::log::{Limits, Log, LogError};
use crate::storage::snapshot::{SnapshotError, Snapshots};
use crate::storage::{Store, with_view};

/// How long a leader that stops waits for another node to take over.
const STEP_DOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// No metric changes when a leader loses its quorum, so leadership is checked this often.
const LEADERSHIP_CHECK: Duration = Duration::from_millis(100);

pub type Raft = openraft::Raft<Types, StateMachine>;

/// The settings of one member.
#[derive(Clone)]
pub struct RaftSettings {
    pub data_dir: PathBuf,
    pub node_id: u64,
    /// The address for peers; none for a node that stays alone. Port 0 picks a free port. Beyond loopback it needs
    /// `peer_tls` or `open_peer_port`.
    pub peer_listen: Option<SocketAddr>,
    /// The address that peers connect to, if it differs: HOST:PORT.
    pub peer_advertise: Option<String>,
    /// Mutual TLS with peers and operators.
    pub peer_tls: Option<Arc<PeerTls>>,
    /// The operator wants the port open for everybody.
    pub open_peer_port: bool,
    /// What this node says about itself.
    pub describe: DescribeNode,
    /// An empty data directory waits for the invitation of a cluster, instead of founding one.
    pub join: bool,
    /// The name of this node for people; empty for a node that an operator adds by hand.
    pub name: String,
    /// Where the other nodes are said to be, for a node that finds its cluster by itself.
    pub discover: Option<Discover>,
    /// A member that does not answer for so long is removed.
    pub reap_after: Option<Duration>,
    /// The leader never raises the level of the cluster beyond this one.
    pub max_level: Option<u32>,
    /// Reads are answered from the local state, however old it is.
    pub stale_reads: bool,
    /// Called with the cluster id as soon as it is known, before the first entry is applied.
    pub on_cluster: Option<OnCluster>,
    pub sockets: Arc<dyn Sockets>,
    pub disk: Arc<dyn Disk>,
    /// Consensus, apply and the writer of the log have threads of their own. False: everything is a task of the runtime
    /// that starts the member, for a simulation.
    pub own_threads: bool,
    /// How long a simulated apply takes.
    pub apply_delay: ApplyDelay,
    pub log: Limits,
    /// A snapshot is built after this many entries, but never before the log has grown by the size of the previous one.
    pub snapshot_every: u64,
    /// A snapshot is built after this many bytes of log too, however few the entries. A quarter of it is kept behind
    /// the snapshot.
    pub log_bytes_max: u64,
    /// The most entries kept behind the newest snapshot, for followers that lag a little. Never small: openraft can
    /// panic when a purge races apply.
    pub keep_entries: u64,
    pub heartbeat: Duration,
    /// A follower grants no vote for this long after the last request of its leader.
    pub lease: Duration,
    /// After the lease, a follower pauses 1 to 1.5 times this long before it asks for votes. Slow disks make later rounds
    /// longer.
    pub election: Duration,
    /// The longest wait for a peer's answer to entries.
    pub peer_timeout: Duration,
    /// How much one command does to a long session.
    pub steps: Steps,
    /// What the disk of the data directory has left.
    pub free_bytes: FreeBytes,
    /// Below this the cluster accepts no writes; 0 for never.
    pub min_free_bytes: u64,
    /// Records the spans of this node.
    pub tracer: Option<Arc<Tracer>>,
}

impl RaftSettings {
    pub fn new(data_dir: impl Into<PathBuf>, node_id: u64) -> RaftSettings {
        RaftSettings {
            data_dir: data_dir.into(),
            node_id,
            peer_listen: None,
            peer_advertise: None,
            peer_tls: None,
            open_peer_port: false,
            describe: Arc::new(SelfReport::default),
            join: false,
            name: String::new(),
            discover: None,
            reap_after: None,
            max_level: None,
            stale_reads: false,
            on_cluster: None,
            sockets: Arc::new(RealSockets),
            disk: Arc::new(RealDisk),
            own_threads: true,
            apply_delay: Arc::new(|| Duration::ZERO),
            log: Limits::default(),
            // A state that is lost is rebuilt by replaying at most so many small entries, which takes seconds.
            snapshot_every: 500_000,
            log_bytes_max: 256 << 20,
            keep_entries: 50_000,
            // A lost leader is replaced within 0.4 s, and a follower may miss five heartbeats before an election.
            heartbeat: Duration::from_millis(40),
            lease: Duration::from_millis(135),
            election: Duration::from_millis(90),
            peer_timeout: Duration::from_secs(2),
            steps: Steps::default(),
            free_bytes: Arc::new(|| None),
            min_free_bytes: 0,
            tracer: None,
        }
    }

    fn cadence(&self) -> Cadence {
        Cadence { entries: self.snapshot_every, bytes: self.log_bytes_max, keep_entries: self.keep_entries }
    }

    fn config(&self) -> Result<Arc<Config>, StartError> {
        let vote_request_ms = VOTE_REQUEST_MAX.as_millis() as u64;
        let config = Config {
            cluster_name: "session-manager".to_owned(),
            heartbeat_interval: self.heartbeat.as_millis() as u64,
            // `elections.rs` decides when to start an election. openraft uses these times only for vote requests.
            enable_elect: false,
            election_timeout_min: vote_request_ms,
            election_timeout_max: vote_request_ms * 3 / 2,
            install_snapshot_timeout: 10 * 60 * 1000,
            max_payload_entries: 4096,
            // A follower that lacks purged entries gets a snapshot anyway.
            replication_lag_threshold: 2 * self.snapshot_every,
            // `housekeeping.rs` decides when to build a snapshot and what to purge: openraft does not know the cost.
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX,
            enable_pre_vote: Some(true),
            // The state may be behind the log after a restart: a leader learns only in an election what is committed.
            enable_leader_restore: Some(false),
            ..Config::default()
        };
        Ok(Arc::new(config.validate().map_err(|error| StartError::Raft(error.to_string()))?))
    }
}

/// The advice for a node whose disk lost acknowledged data. It must not return under its old id with less than it
/// acknowledged.
const REPLACE: &str = "nothing was changed. In a cluster, replace this node: run `session-manager cluster remove ID \
                       --peer ADDRESS` with its id and the peer address of another member, start a node with a new id \
                       and an empty data directory (`session-manager serve --node-id NEW --data-dir DIR --peer-listen \
                       ADDRESS --join`), then `session-manager cluster add NEW ADDRESS` and `session-manager cluster \
                       promote NEW`, each with --peer. A node that stands alone needs a backup of its data directory";

/// Why a node cannot start. A failed start loses nothing that a later start needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartError {
    DataDir {
        path: PathBuf,
        why: IdentityError,
    },
    Log(LogError),
    Snapshot(SnapshotError),
    State(Fault),
    /// The log directory is not the one of this node: its vote is missing.
    VoteLost {
        index: u64,
    },
    /// The state is lost, and so are the entries or snapshots to rebuild it from.
    Lost {
        next: u64,
        purged: u64,
    },
    /// The peer port cannot be used.
    PeerListen {
        address: SocketAddr,
        why: String,
    },
    /// The cluster was raised to a level that only newer builds know.
    NewerLevel {
        level: u32,
    },
    Raft(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::DataDir { path, why } => write!(f, "data directory {}: {why}", path.display()),
            StartError::Log(error @ LogError::Damaged { .. }) => write!(f, "{error}; {REPLACE}"),
            StartError::Log(error) => write!(f, "{error}"),
            StartError::Snapshot(error @ (SnapshotError::Damaged { .. } | SnapshotError::State(_))) => {
                write!(f, "{error}; {REPLACE}")
            }
            StartError::Snapshot(error @ SnapshotError::Disk { .. }) => write!(f, "{error}"),
            StartError::State(fault) => write!(f, "state: {fault}"),
            StartError::NewerLevel { level } => write!(
                f,
                "the cluster of this data directory is at level {level}, and this build knows level {NEWEST}: start a \
                 newer build"
            ),
            StartError::VoteLost { index } => write!(
                f,
                "this node holds entries up to {index}, but the vote in log/ is missing: restore the log directory as it \
                 was; {REPLACE}"
            ),
            StartError::Lost { next, purged } => write!(
                f,
                "the state needs log entry {next}, but the log begins after entry {purged} and there is no usable \
                 snapshot; {REPLACE}"
            ),
            StartError::PeerListen { address, why } => write!(f, "peer_listen: {address}: {why}"),
            StartError::Raft(why) => write!(f, "consensus: {why}"),
        }
    }
}

impl std::error::Error for StartError {}

/// Consensus or the state machine has stopped, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped(pub String);

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Stopped {}

/// A running member.
pub struct Replica {
    raft: Raft,
    log: Log,
    store: Arc<dyn Store>,
    snapshots: Arc<Snapshots>,
    /// The index after the last applied entry.
    next_index: watch::Receiver<u64>,
    failure: Failure,
    /// Aborted with the replica.
    _housekeeping: AbortOnDropHandle<()>,
    _elections: AbortOnDropHandle<()>,
    _asks_for_urls: AbortOnDropHandle<()>,
    _autopilot: AbortOnDropHandle<()>,
    _announce: Option<AbortOnDropHandle<()>>,
    _watches_disks: AbortOnDropHandle<()>,
    disk_space: Arc<DiskSpace>,
    client_urls: ClientUrls,
    describe: DescribeNode,
    figures: Arc<Figures>,
    threads: Arc<Threads>,
    clock: Arc<ClusterClock>,
    data_dir: Arc<DataDir>,
    disk: Arc<dyn Disk>,
    membership: Arc<MembershipChanges>,
    read_index: Arc<ReadIndex>,
    /// The address and instance of this node, as peers know it.
    peer: Peer,
    max_level: Option<u32>,
}

impl Replica {
    /// Opens log and snapshots, recovers the state, and founds a cluster if the settings say so. `address` is this node's
    /// address for peers, empty for a node without a peer port.
    pub async fn start(
        settings: RaftSettings,
        threads: Arc<Threads>,
        data_dir: DataDir,
        address: String,
        store: Arc<dyn Store>,
        sink: Arc<dyn EventSink>,
    ) -> Result<Replica, StartError> {
        let config = settings.config()?;
        let disk = settings.disk.clone();
        let data_dir = Arc::new(data_dir);
        let local = Arc::new(LocalNode { node: settings.node_id, group: RAFT_GROUP, data_dir: data_dir.clone() });
        let times = ElectionTimes { lease: settings.lease, timeout: settings.election };
        let signs = Arc::new(Signs::new(times, settings.peer_timeout));
        let clients = threads.clients().clone();
        let channels = Arc::new(Channels::new(settings.sockets.clone(), settings.peer_tls.clone(), clients));
        let peers = Peers { local, channels, disk: disk.clone(), signs: signs.clone(), hurry: Hurry::default() };
        let (log, writer) =
            Log::open(disk.clone(), &data_dir.log_dir(), RAFT_GROUP, settings.log).map_err(StartError::Log)?;
        let snapshots = Snapshots::open(disk.clone(), &data_dir.snapshot_dir()).map_err(StartError::Snapshot)?;
        let snapshots = Arc::new(snapshots);
        let (held, kept, entries) = (store.clone(), snapshots.clone(), log.clone());
        off_runtime(move || {
            check_vote(&*held, &kept, &entries, RAFT_GROUP)?;
            recover(&*held, &kept, &entries, RAFT_GROUP)
        })
        .await
        .map_err(|error| StartError::Raft(error.to_string()))??;
        let level = with_view(&*store, level::level).map_err(StartError::State)?;
        if level > NEWEST {
            return Err(StartError::NewerLevel { level });
        }

        let mut applier = Applier::new(store.clone(), sink, RAFT_GROUP).map_err(StartError::State)?;
        applier.report_replay(log.edges().last.map_or(0, |last| last.index + 1));
        let (next_index, clock) = (applier.watch_next_index(), applier.clock());
        let no_thread = |error| StartError::Raft(format!("a thread cannot be started: {error}"));
        if settings.own_threads {
            writer.on_thread().map_err(no_thread)?;
        } else {
            tokio::spawn(writer.run());
        }
        let mut apply = threads.apply_with(applier, settings.apply_delay.clone()).map_err(no_thread)?;
        let apply_failure = apply.failure();
        let figures = Arc::new(Figures::default());
        let (free, min_free) = (settings.free_bytes.clone(), settings.min_free_bytes);
        let disk_space = Arc::new(DiskSpace::new(settings.node_id, free, min_free));
        // Without threads of its own a member must never sleep.
        let pace = if settings.own_threads { Pace::Half } else { Pace::Full };
        let machine =
            StateMachine::new(apply, RAFT_GROUP, snapshots.clone(), figures.clone(), disk_space.clone(), pace);
        let raft = Raft::new(settings.node_id, config, peers.clone(), LogStore::new(log.clone()), machine);
        let raft = threads.on_consensus(raft).await.map_err(|error| StartError::Raft(error.to_string()))?;
        let raft = raft.map_err(|fatal| StartError::Raft(fatal.to_string()))?;

        // The tasks that this function starts from here on belong to consensus.
        let replica = {
            let _consensus = threads.consensus().enter();
            let failure = Failure::watch(raft.clone(), figures.clone(), apply_failure);
            let membership = Arc::new(MembershipChanges::new(raft.clone(), peers.clone(), store.clone()));
            let kept = Kept {
                log: log.clone(),
                snapshots: snapshots.clone(),
                store: store.clone(),
                disk_space: disk_space.clone(),
            };
            let keeping = housekeeping::run(raft.clone(), membership.clone(), kept, settings.cadence());
            let elections = Elections { raft: raft.clone(), node: settings.node_id, times, signs, log: log.clone() };
            let describe = settings.describe.clone();
            let (instance, name) = (data_dir.identity().instance, settings.name.clone());
            let peer = Peer { address, instance, name };
            let meeting = Meeting { own: who(&peer), channels: peers.channels.clone() };
            let announce = settings.discover.clone();
            let announce = announce.map(|discover| Announce { discover, meeting, membership: membership.clone() });
            let client_urls = ClientUrls::new(raft.clone(), peers.clone(), describe.clone());
            let watching = disk_space.clone().run(raft.clone(), peers.clone());
            Replica {
                _watches_disks: AbortOnDropHandle::new(tokio::spawn(watching)),
                disk_space,
                _asks_for_urls: AbortOnDropHandle::new(tokio::spawn(client_urls.clone().run())),
                client_urls,
                describe,
                figures,
                _housekeeping: AbortOnDropHandle::new(tokio::spawn(keeping)),
                _elections: AbortOnDropHandle::new(tokio::spawn(elections.run())),
                membership: membership.clone(),
                read_index: Arc::new(ReadIndex::new(raft.clone(), peers, log.clone(), &threads)),
                _autopilot: AbortOnDropHandle::new(tokio::spawn(autopilot::run(
                    membership.clone(),
                    settings.reap_after,
                ))),
                _announce: announce.map(|announce| AbortOnDropHandle::new(tokio::spawn(announce.run()))),
                peer,
                max_level: settings.max_level,
                threads: threads.clone(),
                clock,
                raft,
                log,
                store,
                snapshots,
                next_index,
                failure,
                data_dir,
                disk,
            }
        };
        match replica.lead_alone(&settings).await {
            Ok(()) => Ok(replica),
            Err(error) => {
                replica.shutdown().await;
                Err(error)
            }
        }
    }

    /// A node that is its own cluster waits for no other: it founds the cluster on its first start, is elected at once,
    /// and is ready when it has applied its whole log. A node that waits for an invitation does nothing.
    async fn lead_alone(&self, settings: &RaftSettings) -> Result<(), StartError> {
        fn failed(error: impl fmt::Display) -> StartError {
            StartError::Raft(error.to_string())
        }
        if self.identity().cluster_id.is_empty() {
            info!(node = settings.node_id, address = self.peer.address, "waiting for the invitation of a cluster");
            return Ok(());
        }
        let known = self.raft.is_initialized().await.map_err(failed)?;
        if known {
            let voters: Vec<u64> = self.raft.voter_ids().collect();
            if voters != [settings.node_id] {
                return Ok(());
            }
            self.raft.trigger().elect(false).await.map_err(failed)?;
        } else if let Some(founders) = founders(&*self.disk, settings)? {
            // All first members begin with the same entry. Whoever is elected first sends it to those that come late.
            info!(members = founders.len(), "founding a cluster together with its other first members");
            if let Err(error) = self.raft.initialize(founders).await
                && !self.raft.is_initialized().await.map_err(failed)?
            {
                return Err(failed(error));
            }
            return Ok(());
        } else if self.identity().joins {
            // It was invited, and stopped before the first entry arrived.
            return Ok(());
        } else {
            let members = BTreeMap::from([(settings.node_id, self.peer.clone())]);
            self.raft.initialize(members).await.map_err(failed)?;
        }
        let leads = |metrics: &openraft::RaftMetrics<Types>| metrics.state == ServerState::Leader;
        self.raft.wait(None).metrics(leads, "lead").await.map_err(failed)?;
        // Reads are correct after everything is applied that the log held at the election, with the leader's first entry.
        let last = self.log.edges().last.map_or(0, |last| last.index);
        self.await_applied(last).await.map_err(failed)?;
        // A node that had no peer port before may have one now.
        self.membership.record_own_address(self.peer.clone()).await.map_err(|status| failed(status.message()))?;
        info!(node = settings.node_id, term = self.term(), applied = last, "leading");
        Ok(())
    }

    /// Returns when the entry with this index is applied here.
    pub async fn await_applied(&self, index: u64) -> Result<(), Stopped> {
        let mut next_index = self.next_index.clone();
        let mut failure = self.failure.why.clone();
        tokio::select! {
            reached = next_index.wait_for(|next| *next > index) => {
                reached.map(|_| ()).map_err(|_| Stopped("the state machine has stopped".to_owned()))
            }
            failed = failure.wait_for(Option::is_some) => {
                let why = failed.ok().and_then(|why| why.clone());
                Err(Stopped(why.unwrap_or_else(|| "consensus has stopped".to_owned())))
            }
        }
    }

    /// The index of the last entry applied here.
    pub fn applied(&self) -> u64 {
        self.next_index.borrow().saturating_sub(1)
    }

    pub fn raft(&self) -> &Raft {
        &self.raft
    }

    /// The time of the cluster, by what is applied here.
    pub fn clock(&self) -> &Arc<ClusterClock> {
        &self.clock
    }

    pub fn threads(&self) -> &Arc<Threads> {
        &self.threads
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// The setting `max_level`.
    pub fn max_level(&self) -> Option<u32> {
        self.max_level
    }

    pub fn membership(&self) -> &Arc<MembershipChanges> {
        &self.membership
    }

    /// The URLs of the members for clients, as far as they are known here.
    pub fn client_urls(&self) -> Vec<ClientUrl> {
        self.client_urls.all()
    }

    pub fn describe(&self) -> &DescribeNode {
        &self.describe
    }

    pub fn disk_space(&self) -> &Arc<DiskSpace> {
        &self.disk_space
    }

    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    pub fn read_index(&self) -> &Arc<ReadIndex> {
        &self.read_index
    }

    /// The address and instance of this node, as peers know it.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    pub fn snapshots(&self) -> &Arc<Snapshots> {
        &self.snapshots
    }

    /// The role of this node in its cluster, and the reason if it cannot serve at the moment.
    pub fn condition(&self) -> (&'static str, Option<String>) {
        let waiting = self.identity().cluster_id.is_empty();
        let silence = self.membership.peers.signs.silence();
        let (role, health, why) = admin_service::condition(&self.raft.metrics().borrow_watched(), waiting, silence);
        let role = match role {
            Role::Leader => "leader",
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Learner => "learner",
            Role::Waiting => "waiting",
            Role::Stopped | Role::Unspecified => "stopped",
        };
        (role, (health != Health::Ok).then_some(why))
    }

    /// Whether this node is the leader and hears from a quorum.
    pub fn is_leader(&self) -> bool {
        self.condition() == ("leader", None)
    }

    /// Waits until `is_leader` differs from `before`.
    pub async fn leadership_changed(&self, before: bool) {
        let mut metrics = self.raft.server_metrics();
        while self.is_leader() == before {
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() {
                    // Consensus has stopped, so the metrics never change again.
                    tokio::time::sleep(LEADERSHIP_CHECK).await;
                },
                () = tokio::time::sleep(LEADERSHIP_CHECK) => {}
            }
        }
    }

    pub fn identity(&self) -> Identity {
        self.data_dir.identity()
    }

    /// The checkpoint of the state: applied log id, membership, state hash.
    pub fn checkpoint(&self) -> Result<Checkpoint, Fault> {
        Checkpoint::of(self.store.checkpoint()?, RAFT_GROUP)
    }

    pub fn term(&self) -> u64 {
        self.raft.metrics().borrow_watched().current_term
    }

    /// Resolves with the reason when consensus has failed and the process must end. Never resolves after an orderly
    /// shutdown.
    pub async fn failed(&self) -> String {
        let mut failure = self.failure.why.clone();
        if let Ok(why) = failure.wait_for(Option::is_some).await
            && let Some(why) = why.clone()
        {
            return why;
        }
        std::future::pending().await
    }

    /// False after consensus has stopped, in order or not.
    pub fn is_running(&self) -> bool {
        self.raft.metrics().borrow_watched().running_state.is_ok()
    }

    /// Transfers leadership to another voter, if there is one, so that clients need not wait for an election.
    pub async fn step_down(&self) {
        self.membership.step_down(STEP_DOWN_TIMEOUT).await;
    }

    /// Stops consensus, aborts a snapshot and closes the log. Everything acknowledged is on disk.
    pub async fn shutdown(&self) {
        self.read_index.stop().await;
        if let Err(error) = self.raft.shutdown().await {
            error!(%error, "consensus did not stop in order");
        }
        let snapshots = self.snapshots.clone();
        if let Err(error) = off_runtime(move || snapshots.close()).await {
            error!(%error, "the snapshots were not closed in order");
        }
        self.log.close().await;
        self.threads.clone().stop().await;
    }
}

/// A node, as it presents itself to others.
pub fn who(peer: &Peer) -> Who {
    let Peer { address, instance, name } = peer.clone();
    Who { name, instance, address }
}

/// The first members of the cluster that this node founded together with others.
fn founders(disk: &dyn Disk, settings: &RaftSettings) -> Result<Option<BTreeMap<u64, Peer>>, StartError> {
    let record = record::read(disk, &settings.data_dir)
        .map_err(|why| StartError::DataDir { path: settings.data_dir.clone(), why })?;
    let founding = record.as_ref().and_then(|record| record.founding());
    let peer = |member: &Who| {
        let Who { name, instance, address } = member.clone();
        Peer { address, instance, name }
    };
    Ok(founding.map(|founding| (1..).zip(founding.members.iter().map(peer)).collect()))
}
