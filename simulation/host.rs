//! Owns: one node on a simulated host: it is started as the program starts it, observed while it runs, and ended as its
//! process would end. Never: when it crashes; the nemesis decides that.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use session_manager::config::{AdapterConfig, Config, DataDir, SessionModelConfig};
use session_manager::machine::long::Steps;
use session_manager::node::{Environment, Node, NodeSettings};
use session_manager::proposal::raft::RaftSettings;
use session_manager::replication::replica::Replica;
use session_manager::replication::threads::ApplyDelay;
use session_manager::storage::log::Limits;
use tokio::sync::Notify;

use crate::determinism::{self, EPOCH};
use crate::disk::SimulatedDisk;
use crate::history::LifeEvent;
use crate::mint::SimulatedMint;
use crate::network::SimulatedSockets;
use crate::oracle::replay::{TERMS, add};
use crate::recorder::Recorder;
use crate::tenant;

pub const CLIENT_PORT: u16 = 7000;
pub const PEER_PORT: u16 = 7001;

/// Summing a whole state is slow. It is done after every snapshot, and at every index that this number divides.
const CONTENTS_EVERY: u64 = 16;

/// Small sizes, so that segments, snapshots and cache misses happen often.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub segment_bytes: u64,
    pub cache_bytes: usize,
    pub snapshot_every: u64,
    pub keep_entries: u64,
}

/// What the rest of the run knows about a node.
#[derive(Debug, Clone, Copy, Default)]
pub struct Status {
    pub boot: u32,
    pub started: bool,
    /// Its process ended, or it refused to start. The nemesis restarts it.
    pub over: bool,
    /// The term in which it is the leader.
    pub leads: Option<u64>,
    /// A change of voters is half done, as far as it knows.
    pub changes_voters: bool,
    pub applied: Option<u64>,
    pub state_hash: u128,
}

/// A host, with everything that outlives a crash.
#[derive(Clone)]
pub struct Station {
    pub node: u64,
    pub address: IpAddr,
    /// The first node founds the cluster; the others wait to be added.
    pub founds: bool,
    pub sizes: Sizes,
    pub disk: SimulatedDisk,
    /// The error of its clock.
    pub skew_ms: Arc<AtomicI64>,
    /// How long applying the next command takes.
    pub long_command_ms: Arc<AtomicU64>,
    /// Notified to shut the node down.
    pub stop: Arc<Notify>,
    jump: Arc<(Mutex<Duration>, Notify)>,
    pub recorder: Recorder,
    status: Arc<Mutex<Status>>,
}

impl Station {
    pub fn new(node: u64, address: IpAddr, sizes: Sizes, disk: SimulatedDisk, recorder: Recorder) -> Station {
        Station {
            node,
            address,
            founds: node == 1,
            sizes,
            disk,
            skew_ms: Arc::default(),
            long_command_ms: Arc::default(),
            stop: Arc::default(),
            jump: Arc::default(),
            recorder,
            status: Arc::default(),
        }
    }

    pub fn name(&self) -> String {
        name(self.node)
    }

    pub fn status(&self) -> Status {
        *self.lock()
    }

    /// Records that the node does not run.
    pub fn is_down(&self) {
        let mut status = self.lock();
        *status = Status { boot: status.boot, applied: status.applied, ..Status::default() };
    }

    /// Lets the monotonic clock of the host jump.
    pub fn jump(&self, by: Duration) {
        *self.jump.0.lock().unwrap_or_else(PoisonError::into_inner) += by;
        self.jump.1.notify_one();
    }

    async fn jumps(&self) -> ! {
        loop {
            self.jump.1.notified().await;
            let by = std::mem::take(&mut *self.jump.0.lock().unwrap_or_else(PoisonError::into_inner));
            tokio::time::advance(by).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn life(&self, what: LifeEvent) {
        self.recorder.life(self.node, self.status().boot, what);
    }

    /// The process of the node. It waits at its end until the nemesis crashes the host.
    pub async fn run(self) -> turmoil::Result {
        {
            let mut status = self.lock();
            *status = Status { boot: status.boot + 1, ..Status::default() };
        }
        let why = match Node::start(self.settings()).await {
            Ok(node) => self.serve(node).await,
            Err(error) => LifeEvent::Refused(error.to_string()),
        };
        self.life(why);
        self.lock().over = true;
        std::future::pending().await
    }

    async fn serve(&self, node: Node) -> LifeEvent {
        self.life(LifeEvent::Started);
        self.lock().started = true;
        let why = tokio::select! {
            why = node.failed() => why,
            () = self.stop.notified() => "shut down".to_owned(),
            () = self.watch(&node) => "nothing to watch".to_owned(),
            never = self.jumps() => never,
        };
        if why == "shut down" {
            self.recorder.say(&format!("node {}", self.node), "shuts down");
            node.shutdown().await;
        }
        LifeEvent::Ended(why)
    }

    fn settings(&self) -> NodeSettings {
        let here = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let config = Config {
            adapter: AdapterConfig::Raft(DataDir { data_dir: PathBuf::from("/data") }),
            listen: here(CLIENT_PORT),
            peer_listen: Some(here(PEER_PORT)),
            node_id: self.node,
            join: !self.founds,
            // Every node listens on the loopback address of its own host.
            advertise: Some(format!("ws://{}:{CLIENT_PORT}", self.address)),
            token_file: Some(tenant::token_file()),
            session_model: session_model(),
            ..Config::default()
        };
        let (skew, sizes, long_command_ms) = (self.skew_ms.clone(), self.sizes, self.long_command_ms.clone());
        let apply_delay: ApplyDelay =
            Arc::new(move || Duration::from_millis(long_command_ms.swap(0, Ordering::SeqCst)));
        let clock = move || (EPOCH + determinism::now()).as_millis() as i64 + skew.load(Ordering::SeqCst);
        let environment = Environment {
            sockets: Arc::new(SimulatedSockets { host: self.address }),
            disk: Arc::new(self.disk.clone()),
            mint: Arc::new(SimulatedMint::new(Arc::new(clock))),
            state_in_memory: true,
            resident_bytes: || None,
            tune: Some(Arc::new(move |settings| RaftSettings {
                apply_delay: apply_delay.clone(),
                ..tuned(settings, sizes)
            })),
            dial: None,
        };
        NodeSettings { config, reread: None, environment, engine: None }
    }

    /// Records what the node applies and its state hash, whenever they change.
    async fn watch(&self, node: &Node) {
        let Some(replica) = node.replica() else { return };
        let mut metrics = replica.raft().metrics();
        let (mut next, mut led, mut held) = (0, None, None);
        loop {
            let (leads, changes_voters) = {
                let seen = metrics.borrow_watched();
                let sets = seen.membership_config.membership().get_joint_config().len();
                (seen.state.is_leader().then_some(seen.current_term), sets > 1)
            };
            self.lock().changes_voters = changes_voters;
            if leads.is_some() && leads != led {
                self.life(LifeEvent::Leads(leads.unwrap_or_default()));
            }
            led = leads;
            self.lock().leads = leads;
            // Most changes of the metrics are none of the state.
            let holds = replica.store().checkpoint().ok().flatten();
            if holds != held || holds.is_none() {
                let noted = self.note_applied(&replica, next);
                (held, next) = (holds.filter(|_| noted > next), noted);
            }
            // A long apply reports only at its end. Polling costs nothing in simulated time.
            let soon = tokio::time::sleep(Duration::from_millis(20));
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() { std::future::pending::<()>().await },
                () = soon => {}
            }
        }
    }

    /// Records the entries applied from `next` on. Returns the next index.
    fn note_applied(&self, replica: &Replica, next: u64) -> u64 {
        let Ok(checkpoint) = replica.checkpoint() else { return next };
        let Some(applied) = checkpoint.applied.filter(|applied| applied.index >= next) else { return next };
        // A read that fails because of a disk fault is retried.
        let Ok(entries) = replica.log().read(next, applied.index + 1, usize::MAX) else { return next };
        let boot = self.status().boot;
        // A snapshot brings a state that does not come from these entries.
        let jumped = next == 0 || entries.first().is_none_or(|first| first.index() != next);
        let contents = (jumped || applied.index % CONTENTS_EVERY == 0).then(|| contents(replica)).flatten();
        self.recorder.applied(self.node, boot, entries);
        self.recorder.sample(self.node, boot, applied, checkpoint.state_hash, contents);
        let mut status = self.lock();
        (status.applied, status.state_hash) = (Some(applied.index), checkpoint.state_hash);
        applied.index + 1
    }
}

/// The sum over all pairs of the state of a node.
fn contents(replica: &Replica) -> Option<u128> {
    let mut pairs = replica.store().freeze().ok()?.pairs;
    pairs.try_fold(0, |sum, pair| pair.map(|(key, value)| add(sum, &key, &value))).ok()
}

/// The settings that give the numbers of the oracles.
pub fn session_model() -> SessionModelConfig {
    SessionModelConfig {
        checkpoint_turns: TERMS.checkpoint_turns,
        checkpoint_passive: TERMS.checkpoint_passive,
        idle_secs: TERMS.idle_ms as u64 / 1000,
        inactive_secs: TERMS.inactive_ms as u64 / 1000,
        group_owner_always: TERMS.group_owner_always,
        access: TERMS.access,
    }
}

pub fn name(node: u64) -> String {
    format!("node-{node}")
}

fn tuned(settings: RaftSettings, sizes: Sizes) -> RaftSettings {
    RaftSettings {
        own_threads: false,
        log: Limits {
            segment_bytes: sizes.segment_bytes,
            cache_bytes: sizes.cache_bytes,
            frame_bytes: 64 << 10,
            point_bytes: 512,
            queue_jobs: 1024,
        },
        snapshot_every: sizes.snapshot_every,
        keep_entries: sizes.keep_entries,
        // Sessions are short here, and still their deletes and forks take several commands.
        steps: Steps { long_after: 3, records: 2 },
        ..settings
    }
}
