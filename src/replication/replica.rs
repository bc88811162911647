//! Owns: one running member of the Raft group: its log, snapshots and state wired to openraft, from start to shutdown.
//! Never: time or ids for a command; those come with it.

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

use super::GROUP;
use super::admin_service;
use super::apply::Applier;
use super::channels::Channels;
use super::hop::Me;
use super::housekeeping::{self, Cadence};
use super::identity::{DataDir, Identity};
use super::log_store::LogStore;
use super::mark::Mark;
use super::membership::Council;
use super::network::Peers;
use super::peer_service::OnCluster;
use super::reads::Reads;
use super::recover::{check_vote, recover};
use super::state_machine::{StateMachine, off_runtime};
use super::types::Types;
use crate::events::EventSink;
use crate::machine::refusal::Fault;
use crate::proto::admin::{Health, Role};
use crate::sockets::{RealSockets, Sockets};
use crate::storage::Store;
use crate::storage::disk::{Disk, RealDisk};
use crate::storage::log::record::Peer;
use crate::storage::log::{Limits, Log, LogError};
use crate::storage::snapshot::{SnapshotError, Snapshots};

/// How long a leader that stops waits for another to take over.
const STEP_ASIDE: Duration = Duration::from_secs(1);

/// A leader that lost its quorum is told by nobody, so it is looked at that often.
const LEADERSHIP_LOOK: Duration = Duration::from_millis(100);

pub type Raft = openraft::Raft<Types, StateMachine>;

/// What a member needs to know of itself.
#[derive(Clone)]
pub struct RaftSettings {
    pub data_dir: PathBuf,
    pub node_id: u64,
    /// Where peers reach this node, loopback only; none for a node that stays alone. Port 0 picks a free one.
    pub peer_listen: Option<SocketAddr>,
    /// An empty data directory waits to be invited by a cluster, instead of founding one.
    pub join: bool,
    /// Reads are answered from the state here, however old it is.
    pub stale_reads: bool,
    /// Told the cluster id as soon as it is known, before the first entry is applied.
    pub on_cluster: Option<OnCluster>,
    pub sockets: Arc<dyn Sockets>,
    pub disk: Arc<dyn Disk>,
    /// The log is written by a thread of its own; otherwise by a task, for a disk that never keeps anyone waiting.
    pub log_thread: bool,
    pub log: Limits,
    /// A snapshot is built after this many entries, but never before the log has grown by half a snapshot.
    pub snapshot_every: u64,
    /// A snapshot is built after this many bytes of log too, however few the entries. A quarter of it is kept behind
    /// the snapshot.
    pub log_bytes_max: u64,
    /// The most entries kept behind the newest snapshot, for followers that are a little late. Never small: openraft
    /// can panic when a purge races apply.
    pub keep_entries: u64,
    pub heartbeat: Duration,
    /// A follower whose leader was silent for two and a half to three times this long asks to be elected: the lease of
    /// one and a half times, then a random wait of one to one and a half times.
    pub election: Duration,
}

impl RaftSettings {
    pub fn new(data_dir: impl Into<PathBuf>, node_id: u64) -> RaftSettings {
        RaftSettings {
            data_dir: data_dir.into(),
            node_id,
            peer_listen: None,
            join: false,
            stale_reads: false,
            on_cluster: None,
            sockets: Arc::new(RealSockets),
            disk: Arc::new(RealDisk),
            log_thread: true,
            log: Limits::default(),
            snapshot_every: 100_000,
            log_bytes_max: 256 << 20,
            keep_entries: 50_000,
            // A lost leader is replaced within 0.4 s, and a follower may miss five heartbeats before it asks.
            heartbeat: Duration::from_millis(40),
            election: Duration::from_millis(90),
        }
    }

    fn cadence(&self) -> Cadence {
        Cadence { entries: self.snapshot_every, bytes: self.log_bytes_max, keep_entries: self.keep_entries }
    }

    fn config(&self) -> Result<Arc<Config>, StartError> {
        let election_ms = self.election.as_millis() as u64;
        let config = Config {
            cluster_name: "session-manager".to_owned(),
            heartbeat_interval: self.heartbeat.as_millis() as u64,
            election_timeout_min: election_ms,
            election_timeout_max: election_ms * 3 / 2,
            install_snapshot_timeout: 10 * 60 * 1000,
            max_payload_entries: 4096,
            // A follower that is further behind than the log reaches gets a snapshot anyway.
            replication_lag_threshold: 2 * self.snapshot_every,
            // Housekeeping says when a snapshot is built and what is purged: openraft does not know what they cost.
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX,
            enable_pre_vote: Some(true),
            // The state may be behind the log after a restart: only an election tells a leader what is committed.
            enable_leader_restore: Some(false),
            ..Config::default()
        };
        Ok(Arc::new(config.validate().map_err(|error| StartError::Raft(error.to_string()))?))
    }
}

/// What an operator does about a node whose disk lost what it had promised to keep. It must not come back under its old
/// id with less than it acknowledged.
const REPLACE: &str = "nothing was changed. In a cluster, replace this node: run `session-manager cluster remove ID \
                       --peer ADDRESS` with its id and the peer address of another member, start a node with a new id \
                       and an empty data directory (`session-manager serve --node-id NEW --data-dir DIR --peer-listen \
                       ADDRESS --join`), then `session-manager cluster add NEW ADDRESS` and `session-manager cluster \
                       promote NEW`, each with --peer. A node that stands alone needs a backup of its data directory";

/// Why a node cannot start. Nothing was changed that a later start could miss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartError {
    DataDir {
        path: PathBuf,
        why: String,
    },
    Log(LogError),
    Snapshot(SnapshotError),
    State(Fault),
    /// The log directory is not the one this node had: its vote is missing.
    VoteLost {
        index: u64,
    },
    /// The state is gone, and so are entries and snapshots it could be rebuilt from.
    Lost {
        next: u64,
        purged: u64,
    },
    /// The peer port cannot be used.
    PeerListen {
        address: SocketAddr,
        why: String,
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

/// A running member.
pub struct Replica {
    raft: Raft,
    log: Log,
    store: Arc<dyn Store>,
    snapshots: Arc<Snapshots>,
    applied: watch::Receiver<u64>,
    failure: watch::Receiver<Option<String>>,
    /// Ends with the replica.
    _housekeeping: AbortOnDropHandle<()>,
    data_dir: Arc<DataDir>,
    disk: Arc<dyn Disk>,
    council: Arc<Council>,
    reads: Arc<Reads>,
    /// How peers reach this node.
    peer: Peer,
}

impl Replica {
    /// Opens everything, brings the state up to date with its log, and founds a cluster where that is asked for.
    /// `address` is where peers will reach this node, empty for one without a peer port.
    pub async fn start(
        settings: RaftSettings,
        data_dir: DataDir,
        address: String,
        store: Arc<dyn Store>,
        sink: Arc<dyn EventSink>,
    ) -> Result<Replica, StartError> {
        let config = settings.config()?;
        let disk = settings.disk.clone();
        let data_dir = Arc::new(data_dir);
        let me = Arc::new(Me { node: settings.node_id, group: GROUP, data_dir: data_dir.clone() });
        let peers = Peers { me, channels: Arc::new(Channels::new(settings.sockets.clone())), disk: disk.clone() };
        let (log, writer) =
            Log::open(disk.clone(), &data_dir.log_dir(), GROUP, settings.log).map_err(StartError::Log)?;
        let snapshots = Snapshots::open(disk.clone(), &data_dir.snapshot_dir()).map_err(StartError::Snapshot)?;
        let snapshots = Arc::new(snapshots);
        let (held, kept, entries) = (store.clone(), snapshots.clone(), log.clone());
        off_runtime(move || {
            check_vote(&*held, &kept, &entries, GROUP)?;
            recover(&*held, &kept, &entries, GROUP)
        })
        .await
        .map_err(|error| StartError::Raft(error.to_string()))??;

        let mut applier = Applier::new(store.clone(), sink, GROUP).map_err(StartError::State)?;
        applier.catch_up(log.edges().last.map_or(0, |last| last.index + 1));
        let applied = applier.progress();
        if settings.log_thread {
            writer.on_thread().map_err(|error| StartError::Raft(format!("the log's thread: {error}")))?;
        } else {
            tokio::spawn(writer.run());
        }
        let machine = StateMachine::new(applier, snapshots.clone());
        let raft = Raft::new(settings.node_id, config, peers.clone(), LogStore::new(log.clone()), machine).await;
        let raft = raft.map_err(|fatal| StartError::Raft(fatal.to_string()))?;

        let failure = watch_over(&raft);
        let tending = housekeeping::tend(raft.clone(), log.clone(), snapshots.clone(), settings.cadence());
        let housekeeping = AbortOnDropHandle::new(tokio::spawn(tending));
        let replica = Replica {
            council: Arc::new(Council { raft: raft.clone(), peers: peers.clone() }),
            reads: Arc::new(Reads::new(raft.clone(), peers)),
            peer: Peer { address, instance: data_dir.identity().instance },
            raft,
            log,
            store,
            snapshots,
            applied,
            failure,
            _housekeeping: housekeeping,
            data_dir,
            disk,
        };
        match replica.lead_alone(&settings).await {
            Ok(()) => Ok(replica),
            Err(why) => {
                replica.shutdown().await;
                Err(StartError::Raft(why))
            }
        }
    }

    /// A node that is its own cluster need not wait for anyone: it founds the cluster on its first start, is elected
    /// at once, and is ready when it has applied all of its log. A node that waits to be invited does nothing.
    async fn lead_alone(&self, settings: &RaftSettings) -> Result<(), String> {
        if self.identity().cluster_id.is_empty() {
            info!(node = settings.node_id, address = self.peer.address, "waiting to be invited by a cluster");
            return Ok(());
        }
        let known = self.raft.is_initialized().await.map_err(|fatal| fatal.to_string())?;
        if known {
            let voters: Vec<u64> = self.raft.voter_ids().collect();
            if voters != [settings.node_id] {
                return Ok(());
            }
            self.raft.trigger().elect(false).await.map_err(|fatal| fatal.to_string())?;
        } else if self.identity().joins {
            // Invited, and stopped before the first entry came.
            return Ok(());
        } else {
            let members = BTreeMap::from([(settings.node_id, self.peer.clone())]);
            self.raft.initialize(members).await.map_err(|error| error.to_string())?;
        }
        let leads = |metrics: &openraft::RaftMetrics<Types>| metrics.state == ServerState::Leader;
        self.raft.wait(None).metrics(leads, "lead").await.map_err(|error| error.to_string())?;
        // What this leader may read is what its log held when it was elected, its own first entry included.
        let last = self.log.edges().last.map_or(0, |last| last.index);
        self.await_applied(last).await?;
        // A node that was alone so far can be reached from now on.
        self.council.introduce(self.peer.clone()).await.map_err(|status| status.message().to_owned())?;
        info!(node = settings.node_id, term = self.term(), applied = last, "leading");
        Ok(())
    }

    /// Returns once the entry with this index is applied here.
    pub async fn await_applied(&self, index: u64) -> Result<(), String> {
        let mut applied = self.applied.clone();
        let mut failure = self.failure.clone();
        tokio::select! {
            reached = applied.wait_for(|next| *next > index) => {
                reached.map(|_| ()).map_err(|_| "the state machine has stopped".to_owned())
            }
            failed = failure.wait_for(Option::is_some) => {
                Err(failed.ok().and_then(|why| why.clone()).unwrap_or_else(|| "consensus has stopped".to_owned()))
            }
        }
    }

    /// The index of the last entry applied here.
    pub fn applied(&self) -> u64 {
        self.applied.borrow().saturating_sub(1)
    }

    pub fn raft(&self) -> &Raft {
        &self.raft
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub fn council(&self) -> &Arc<Council> {
        &self.council
    }

    pub fn reads(&self) -> &Arc<Reads> {
        &self.reads
    }

    /// How peers reach this node.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    pub fn snapshots(&self) -> &Arc<Snapshots> {
        &self.snapshots
    }

    /// This node's role in its cluster, and why it cannot serve at the moment, if so.
    pub fn condition(&self) -> (&'static str, Option<String>) {
        let waiting = self.identity().cluster_id.is_empty();
        let (role, health, why) = admin_service::condition(&self.raft.metrics().borrow_watched(), waiting);
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

    /// Whether this node leads, and a quorum answers it.
    pub fn leads(&self) -> bool {
        self.condition() == ("leader", None)
    }

    /// Waits until `leads` says something else than `before`.
    pub async fn leadership_changes(&self, before: bool) {
        let mut metrics = self.raft.server_metrics();
        while self.leads() == before {
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() {
                    // Consensus has stopped: nobody leads any more.
                    tokio::time::sleep(LEADERSHIP_LOOK).await;
                },
                () = tokio::time::sleep(LEADERSHIP_LOOK) => {}
            }
        }
    }

    pub fn identity(&self) -> Identity {
        self.data_dir.identity()
    }

    /// The mark of the state: applied log id, membership, state hash.
    pub fn mark(&self) -> Result<Mark, Fault> {
        Mark::of(self.store.mark()?, GROUP)
    }

    pub fn term(&self) -> u64 {
        self.raft.metrics().borrow_watched().current_term
    }

    /// Resolves when consensus has failed for good and the process should end, with the reason.
    /// Never resolves after an orderly shutdown.
    pub async fn failed(&self) -> String {
        let mut failure = self.failure.clone();
        if let Ok(why) = failure.wait_for(Option::is_some).await
            && let Some(why) = why.clone()
        {
            return why;
        }
        std::future::pending().await
    }

    /// False once consensus has stopped, in order or not.
    pub fn is_running(&self) -> bool {
        self.raft.metrics().borrow_watched().running_state.is_ok()
    }

    /// Hands leadership to another voter, if there is one, so that nobody waits for an election.
    pub async fn step_aside(&self) {
        self.council.step_aside(STEP_ASIDE).await;
    }

    /// Stops consensus, breaks off a snapshot and closes the log. Everything acknowledged is on disk.
    pub async fn shutdown(&self) {
        self.reads.stop().await;
        if let Err(error) = self.raft.shutdown().await {
            error!(%error, "consensus did not stop in order");
        }
        let snapshots = self.snapshots.clone();
        if let Err(error) = off_runtime(move || snapshots.close()).await {
            error!(%error, "the snapshots were not closed in order");
        }
        self.log.close().await;
    }
}

/// Watches for the end of consensus: a storage failure or a bug, after which it does nothing more.
fn watch_over(raft: &Raft) -> watch::Receiver<Option<String>> {
    let (tell, told) = watch::channel(None);
    // These change with leader, vote and membership only; the ones that tell why change with every entry. Both end
    // with consensus.
    let (mut rare, metrics) = (raft.server_metrics(), raft.metrics());
    tokio::spawn(async move {
        while rare.changed().await.is_ok() {}
        let state = metrics.borrow_watched().running_state.clone();
        match state {
            Ok(()) | Err(openraft::errors::Fatal::Stopped) => {}
            Err(fatal) => {
                error!(why = %fatal, "consensus has failed; this node must be restarted");
                tell.send_replace(Some(fatal.to_string()));
            }
        }
    });
    told
}
