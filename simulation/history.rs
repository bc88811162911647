//! Owns: what a run records: every call of every client, every event that a subscriber received, what each node applied
//! and its state hash, and the injected faults. Oracles are pure functions over a finished `History`.
//! Never: checks, or a real clock. A simulation has one thread, so `order` is the real order of events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use session_manager::machine::scope::Scope;
use session_manager::storage::log::record::{Entry, LogId};

pub use crate::http_call::Outcome;

/// When something happened. No two moments have the same `order`; many have the same millisecond.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    pub order: u64,
    /// Simulated milliseconds since the run began.
    pub at_ms: u64,
}

/// One attempt of a call, sent once over one connection. A client that retries records several of them.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Its index in `History::operations`.
    pub id: usize,
    pub client: usize,
    /// The caller sees only the sessions of this scope. `None`: it sees everything.
    pub scope: Option<Arc<Scope>>,
    pub node: u64,
    /// `session::append`, ….
    pub function: &'static str,
    pub request: Value,
    /// The operation that this one retries with the same request.
    pub repeats: Option<usize>,
    pub called: Moment,
    /// `None` only during the run.
    pub returned: Option<Moment>,
    pub outcome: Outcome,
}

/// The position of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub index: u64,
    pub ordinal: u32,
}

/// One connection of a subscriber that is bound to every event of every session that it may see.
#[derive(Debug, Clone)]
pub struct Subscription {
    /// Its index in `History::subscriptions`.
    pub id: usize,
    pub subscriber: usize,
    /// The subscriber sees only the sessions of this scope.
    pub scope: Option<Arc<Scope>>,
    pub node: u64,
    /// The position to resume after: it receives every later committed event. `None`: it receives what is published
    /// after `bound`.
    pub after: Option<Place>,
    /// When the node confirmed the binding.
    pub bound: Moment,
    /// When the connection ended; `None`: it was open at the end of the run.
    pub ended: Option<Moment>,
}

/// One event as a subscriber received it.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub subscription: usize,
    pub heard: Moment,
    /// `session::message-added`, ….
    pub kind: String,
    pub session_id: String,
    pub seq: u64,
    /// Events of the session that were left out before this one, because later ones replaced them: the first and the last
    /// sequence number.
    pub skipped: Option<(u64, u64)>,
    pub place: Place,
    pub payload: Value,
}

/// An entry that a node applied, as stored in its log.
#[derive(Debug, Clone)]
pub struct Applied {
    pub node: u64,
    /// The number of the node's start.
    pub boot: u32,
    pub noticed: Moment,
    pub entry: Entry,
}

/// The applied index of a node and its state hash there.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub node: u64,
    pub boot: u32,
    pub at: Moment,
    pub applied: LogId,
    pub state_hash: u128,
    /// The sum over its state (`replay::add`), if it was computed. A snapshot carries the hash, so the hash alone does
    /// not show whether the installed state is right.
    pub contents: Option<u128>,
}

/// An injected fault.
#[derive(Debug, Clone)]
pub struct Fault {
    pub at: Moment,
    /// `isolate`, `crash`, …: the summary counts by kind.
    pub kind: &'static str,
    pub words: String,
}

/// From this moment on a sync of the node takes this long.
#[derive(Debug, Clone, Copy)]
pub struct DiskSpeed {
    pub at: Moment,
    pub node: u64,
    pub sync_ms: u64,
}

/// A start or an end of a node, or the start of its leadership.
#[derive(Debug, Clone)]
pub struct Life {
    pub at: Moment,
    pub node: u64,
    pub boot: u32,
    pub what: LifeEvent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LifeEvent {
    Started,
    /// The node ended its process for this reason. It is restarted later.
    Ended(String),
    /// The node refused to start for this reason.
    Refused(String),
    /// Killed by the simulation.
    Crashed,
    /// Became the leader of this term.
    Leads(u64),
}

/// A frame that a client of the gateway got, or a message that says where it stands: `join_session` as it was sent,
/// `(lost)` when its connection ended, and `emitted` with the `events` of the batch.
#[derive(Debug, Clone)]
pub struct GatewayFrame {
    pub client: usize,
    pub node: u64,
    pub at: Moment,
    pub frame: Value,
}

/// Everything that was recorded. Each list is in order.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub operations: Vec<Operation>,
    pub subscriptions: Vec<Subscription>,
    pub deliveries: Vec<Delivery>,
    pub gateway: Vec<GatewayFrame>,
    /// Every index that any node applied, from the first on.
    pub applied: Vec<Applied>,
    pub samples: Vec<Sample>,
    pub faults: Vec<Fault>,
    pub lives: Vec<Life>,
    pub disk_speeds: Vec<DiskSpeed>,
    /// When the cluster was up, and faults began.
    pub up: Option<Moment>,
    /// None of the faults is a reason for an election.
    pub keeps_leader: bool,
    /// When all faults were mended. Soon afterwards every node must answer again.
    pub healed: Option<Moment>,
    /// The voters at the end. Other nodes were never added or were removed, and need not answer.
    pub voters: BTreeSet<u64>,
    /// The number of the bridge, which subscribers treat as one more node.
    pub bridge: Option<u64>,
    /// When clients and operator had stopped. Every later call reads the final state.
    pub rested: Option<Moment>,
}

impl History {
    /// The committed log: for each index the entry that was recorded first. The oracle `agreement` checks that all are
    /// equal.
    pub fn log(&self) -> BTreeMap<u64, &Entry> {
        let mut log = BTreeMap::new();
        for applied in &self.applied {
            log.entry(applied.entry.index()).or_insert(&applied.entry);
        }
        log
    }

    pub fn elections(&self) -> usize {
        self.lives.iter().filter(|life| matches!(life.what, LifeEvent::Leads(_))).count()
    }

    /// The number of acknowledged mutations.
    pub fn acknowledged(&self) -> usize {
        let done = |operation: &&Operation| matches!(operation.outcome, Outcome::Answered(_)) && operation.mutates();
        self.operations.iter().filter(done).count()
    }
}

impl Operation {
    /// Refused because of who the caller is, without a look at the state.
    pub fn is_forbidden(&self) -> bool {
        matches!(&self.outcome, Outcome::Refused { code, .. } if code == "forbidden")
    }

    /// Whether the function may change state. The functions that only read are listed.
    pub fn mutates(&self) -> bool {
        const READS: [&str; 11] = [
            "session::get",
            "session::get-message",
            "session::messages",
            "session::list",
            "session::config-status",
            "session::on-config-change",
            "session::store::get-meta",
            "session::store::list-metas",
            "session::store::get-entry",
            "session::store::list-entries",
            "session::store::get-active-leaf",
        ];
        !READS.contains(&self.function)
    }
}
