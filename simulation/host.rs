//! Owns: one node's life on a simulated host: started as the program starts it, watched while it runs, ended as its
//! process would end. Never: decide when to crash it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use session_manager::config::{AdapterConfig, Config, DataDir};
use session_manager::node::{Ground, Node, NodeSettings};
use session_manager::proposal::mint::SystemMint;
use session_manager::proposal::raft::RaftSettings;
use session_manager::replication::replica::Replica;
use session_manager::storage::log::Limits;
use tokio::sync::Notify;

use crate::determinism::{self, EPOCH};
use crate::disk::{Faults, SimulatedDisk};
use crate::history::LifeEvent;
use crate::network::SimulatedSockets;
use crate::oracle::replay::sum;
use crate::recorder::Recorder;

pub const CLIENT_PORT: u16 = 7000;
pub const PEER_PORT: u16 = 7001;

/// Adding up a whole state is slow: besides after every jump it is done where an applied entry has such a number.
const CONTENTS_EVERY: u64 = 16;

/// Sizes that make everything that happens rarely happen often.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub segment_bytes: u64,
    pub cache_bytes: usize,
    pub snapshot_every: u64,
    pub keep_entries: u64,
}

/// What the rest of the run knows of a node.
#[derive(Debug, Clone, Copy, Default)]
pub struct Status {
    pub boot: u32,
    pub started: bool,
    /// Its process is over, or it refused to start: somebody has to start it again.
    pub over: bool,
    /// The term it leads.
    pub leads: Option<u64>,
    pub applied: Option<u64>,
    pub state_hash: u128,
}

/// A host and what of it outlives a crash.
#[derive(Clone)]
pub struct Station {
    pub node: u64,
    pub address: IpAddr,
    /// The first member founds the cluster; the others wait to be invited.
    pub founds: bool,
    pub sizes: Sizes,
    pub faults: Arc<Faults>,
    /// How wrong its clock is.
    pub skew_ms: Arc<AtomicI64>,
    /// Told when it is to stop in order.
    pub stop: Arc<Notify>,
    pub recorder: Recorder,
    status: Arc<Mutex<Status>>,
}

impl Station {
    pub fn new(node: u64, address: IpAddr, sizes: Sizes, faults: Arc<Faults>, recorder: Recorder) -> Station {
        Station {
            node,
            address,
            founds: node == 1,
            sizes,
            faults,
            skew_ms: Arc::default(),
            stop: Arc::default(),
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

    /// Nothing of the node is left.
    pub fn is_down(&self) {
        let mut status = self.lock();
        *status = Status { boot: status.boot, applied: status.applied, ..Status::default() };
    }

    fn lock(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn life(&self, what: LifeEvent) {
        self.recorder.life(self.node, self.status().boot, what);
    }

    /// The life of the node's process. Whoever looks after the host ends it.
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
            () = self.stop.notified() => "stopped in order".to_owned(),
            () = self.watch(&node) => "nothing to watch".to_owned(),
        };
        if why == "stopped in order" {
            self.recorder.say(&format!("node {}", self.node), "stops in order");
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
            ..Config::default()
        };
        let (skew, sizes) = (self.skew_ms.clone(), self.sizes);
        let clock = move || (EPOCH + determinism::now()).as_millis() as i64 + skew.load(Ordering::SeqCst);
        let ground = Ground {
            sockets: Arc::new(SimulatedSockets { host: self.address }),
            disk: Arc::new(SimulatedDisk::new(self.faults.clone())),
            mint: Arc::new(SystemMint::with_clock(Arc::new(clock))),
            state_in_memory: true,
            tune: Some(Arc::new(move |settings| tuned(settings, sizes))),
            dial: None,
        };
        NodeSettings { config, reread: None, ground, engine: None }
    }

    /// Writes down what the node applies and which state it has, whenever that changes.
    async fn watch(&self, node: &Node) {
        let Some(replica) = node.replica() else { return };
        let mut metrics = replica.raft().metrics();
        let (mut next, mut led) = (0, None);
        loop {
            let leads = {
                let seen = metrics.borrow_watched();
                seen.state.is_leader().then_some(seen.current_term)
            };
            if leads.is_some() && leads != led {
                self.life(LifeEvent::Leads(leads.unwrap_or_default()));
            }
            led = leads;
            self.lock().leads = leads;
            next = self.note_applied(&replica, next);
            // A long apply reports only at its end; looking again soon costs nothing here.
            let soon = tokio::time::sleep(Duration::from_millis(20));
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() { std::future::pending::<()>().await },
                () = soon => {}
            }
        }
    }

    /// Writes down the entries applied from `next` on. Returns where to go on.
    fn note_applied(&self, replica: &Replica, next: u64) -> u64 {
        let Ok(mark) = replica.mark() else { return next };
        let Some(applied) = mark.applied.filter(|applied| applied.index >= next) else { return next };
        // A read that fails for a disk fault is tried again.
        let Ok(entries) = replica.log().read(next, applied.index + 1, usize::MAX) else { return next };
        let boot = self.status().boot;
        // What came from a snapshot, at the start or later, did not come out of these entries.
        let jumped = next == 0 || entries.first().is_none_or(|first| first.index() != next);
        let contents = (jumped || applied.index % CONTENTS_EVERY == 0).then(|| contents(replica)).flatten();
        self.recorder.applied(self.node, boot, entries);
        self.recorder.sample(self.node, boot, applied, mark.state_hash, contents);
        let mut status = self.lock();
        (status.applied, status.state_hash) = (Some(applied.index), mark.state_hash);
        applied.index + 1
    }
}

/// The sum of all that the state of a node holds.
fn contents(replica: &Replica) -> Option<u128> {
    let pairs = replica.store().freeze().ok()?.pairs;
    Some(sum(pairs.collect::<Result<Vec<_>, _>>().ok()?.into_iter()))
}

pub fn name(node: u64) -> String {
    format!("node-{node}")
}

fn tuned(settings: RaftSettings, sizes: Sizes) -> RaftSettings {
    RaftSettings {
        log_thread: false,
        log: Limits {
            segment_bytes: sizes.segment_bytes,
            cache_bytes: sizes.cache_bytes,
            frame_bytes: 64 << 10,
            point_bytes: 512,
            queue_jobs: 1024,
        },
        snapshot_every: sizes.snapshot_every,
        keep_entries: sizes.keep_entries,
        ..settings
    }
}
