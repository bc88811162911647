//! Owns: what a run records: every call of every client, every event every subscriber heard, what each node applied and
//! which state it had, and what was broken on purpose. Oracles are pure functions over a finished `History`.
//! Never: judge. Never: a real clock; a simulation has one thread, so `order` is the true order of things.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use session_manager::storage::log::record::{Entry, LogId};

/// When something happened. Two moments never have the same `order`; many share a millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    pub order: u64,
    /// Simulated milliseconds since the run began.
    pub at_ms: u64,
}

/// What a client knows after a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Acknowledged, with the response.
    Answered(Value),
    /// Final: any error but `session/storage`. Nothing was changed.
    Refused { code: String, message: String },
    /// `session/storage`, or nobody listened: certainly not carried out.
    Unavailable(String),
    /// `session/storage: outcome unknown`, a broken connection, the client's own deadline, or the end of the run: it may
    /// have been carried out, once, at any time after the call.
    Unknown(String),
}

/// One call on its way: what is sent once over one connection. A client that repeats itself makes several of them.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Equal to its place in `History::operations`.
    pub id: usize,
    pub client: usize,
    pub node: u64,
    /// `session::append`, ….
    pub function: &'static str,
    pub request: Value,
    /// The operation this one repeats word for word, because its outcome was not a final one.
    pub repeats: Option<usize>,
    pub called: Moment,
    /// `None` only while the run goes on.
    pub returned: Option<Moment>,
    pub outcome: Outcome,
}

/// A place in a session's and the cluster's order of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub index: u64,
    pub ordinal: u32,
}

/// One connection of a subscriber, bound to every event of every session.
#[derive(Debug, Clone)]
pub struct Subscription {
    /// Equal to its place in `History::subscriptions`.
    pub id: usize,
    pub subscriber: usize,
    pub node: u64,
    /// The position it asked to resume after; it gets every committed event past it. `None`: whatever is published
    /// after `bound`.
    pub after: Option<Place>,
    /// When the node confirmed the binding.
    pub bound: Moment,
    /// When the connection broke or was given up; `None`: it lived to the end of the run.
    pub ended: Option<Moment>,
}

/// One event as a subscriber heard it.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub subscription: usize,
    pub heard: Moment,
    /// `session::message-added`, ….
    pub kind: String,
    pub session_id: String,
    pub seq: u64,
    pub place: Place,
    pub payload: Value,
}

/// An entry that a node applied, as it lies in that node's log.
#[derive(Debug, Clone)]
pub struct Applied {
    pub node: u64,
    /// Counts the starts of this node.
    pub boot: u32,
    pub noticed: Moment,
    pub entry: Entry,
}

/// How far a node's state was, and what its hash was there.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub node: u64,
    pub boot: u32,
    pub at: Moment,
    pub applied: LogId,
    pub state_hash: u128,
    /// The sum of all that its state held there (`replay::sum`), when somebody looked: the hash comes with a snapshot and
    /// says nothing of what else came with it.
    pub contents: Option<u128>,
}

/// Something broken on purpose, or mended.
#[derive(Debug, Clone)]
pub struct Fault {
    pub at: Moment,
    /// `partition`, `crash`, …: one word per kind, counted in the summary.
    pub kind: &'static str,
    pub words: String,
}

/// A node began or ended, by itself or by our hand.
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
    /// A node that cannot go on ends its process, with the reason: it is restarted a little later.
    Ended(String),
    /// A node that refuses to start, with the reason.
    Refused(String),
    /// Killed by the simulation.
    Crashed,
    /// Became the leader of this term.
    Leads(u64),
}

/// Everything that was recorded, in order within each list.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub operations: Vec<Operation>,
    pub subscriptions: Vec<Subscription>,
    pub deliveries: Vec<Delivery>,
    /// What nodes applied, as they noticed it. Every index that any node applied is here, from the first on.
    pub applied: Vec<Applied>,
    pub samples: Vec<Sample>,
    pub faults: Vec<Fault>,
    pub lives: Vec<Life>,
    /// From here on nothing is broken any more; a moment later every node must answer again.
    pub healed: Option<Moment>,
    /// Who votes in the end. Other nodes were never invited, or were removed, and answer nothing.
    pub voters: BTreeSet<u64>,
    /// The bridge, which listeners know as one more node.
    pub bridge: Option<u64>,
    /// When the clients had stopped and the nodes had come to rest. Whatever was called after this reads the final state.
    pub rested: Option<Moment>,
}

impl History {
    /// The committed log: one entry per index. The first one noticed stands for the index; that all are equal is an
    /// oracle's to check.
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

    /// Mutations that were acknowledged.
    pub fn acknowledged(&self) -> usize {
        let done = |operation: &&Operation| matches!(operation.outcome, Outcome::Answered(_)) && operation.mutates();
        self.operations.iter().filter(done).count()
    }
}

impl Operation {
    /// True for functions that may change state. What only reads is listed; everything else counts as a change.
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
