//! Owns: the scenarios: what is broken in each, how often, and for how long. Every one ends with everything mended.

use crate::determinism::Chance;

/// A way to break things. One word each, which the summary counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breakage {
    /// One node from all others.
    Isolate,
    /// A minority from the rest.
    Split,
    /// One direction between two nodes.
    OneWay,
    /// What two nodes send each other waits and then comes at once.
    Hold,
    /// Some of what two nodes send each other is lost.
    Loss,
    /// What two nodes send each other takes long.
    Latency,
    /// The clients from one node.
    ClientCut,
    /// A node loses power: what was not synced is lost, or half written.
    Crash,
    /// The leader does.
    CrashLeader,
    /// All nodes do, at once.
    CrashAll,
    /// The bridge's process is killed; it keeps nothing.
    CrashBridge,
    /// A node's process is killed and started again at once; the system keeps what it wrote.
    Kill,
    /// A node stops in order and comes back.
    Stop,
    /// Its disk is full.
    DiskFull,
    /// Its disk fails writes.
    DiskWrites,
    /// Its disk fails syncs.
    DiskSyncs,
    /// What it reads from its disk has flipped bits.
    DiskReads,
    /// Some of its disk's reads fail.
    DiskEio,
    Join,
    Remove,
    Transfer,
    Snapshot,
    /// A node's clock is wrong by up to some seconds, either way.
    Skew,
    /// A node's clock jumps by minutes.
    Jump,
}

impl Breakage {
    pub fn word(self) -> &'static str {
        match self {
            Breakage::Isolate => "isolate",
            Breakage::Split => "split",
            Breakage::OneWay => "one-way",
            Breakage::Hold => "hold",
            Breakage::Loss => "loss",
            Breakage::Latency => "latency",
            Breakage::ClientCut => "client-cut",
            Breakage::Crash => "crash",
            Breakage::CrashLeader => "crash-leader",
            Breakage::CrashAll => "crash-all",
            Breakage::CrashBridge => "crash-bridge",
            Breakage::Kill => "kill",
            Breakage::Stop => "stop",
            Breakage::DiskFull => "disk-full",
            Breakage::DiskWrites => "disk-writes",
            Breakage::DiskSyncs => "disk-syncs",
            Breakage::DiskReads => "disk-reads",
            Breakage::DiskEio => "disk-eio",
            Breakage::Join => "join",
            Breakage::Remove => "remove",
            Breakage::Transfer => "transfer",
            Breakage::Snapshot => "snapshot",
            Breakage::Skew => "skew",
            Breakage::Jump => "jump",
        }
    }
}

/// One kind of run.
#[derive(Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    /// What may be broken, each with its weight.
    breakages: &'static [(Breakage, u64)],
    /// Milliseconds between two of them.
    pub pause_ms: (u64, u64),
    /// Milliseconds until one is mended.
    pub lasts_ms: (u64, u64),
    /// How many nodes there are at least and at most; three of them are members from the start.
    pub nodes: (u64, u64),
    /// At most one node is down or cut off at a time, so that the others get on without it.
    pub one_away: bool,
}

impl Scenario {
    /// True when this is among what it breaks.
    pub fn breaks(&self, breakage: Breakage) -> bool {
        self.breakages.iter().any(|(one, _)| *one == breakage)
    }

    pub fn pick(&self, chance: &mut Chance) -> Option<Breakage> {
        let total: u64 = self.breakages.iter().map(|(_, weight)| weight).sum();
        if total == 0 {
            return None;
        }
        let mut left = chance.between(0, total - 1);
        for (breakage, weight) in self.breakages {
            match left.checked_sub(*weight) {
                None => return Some(*breakage),
                Some(rest) => left = rest,
            }
        }
        None
    }
}

const NETWORK: [(Breakage, u64); 7] = [
    (Breakage::Isolate, 4),
    (Breakage::Split, 2),
    (Breakage::OneWay, 4),
    (Breakage::Hold, 3),
    (Breakage::Loss, 3),
    (Breakage::Latency, 2),
    (Breakage::ClientCut, 1),
];

pub const ALL: [Scenario; 8] = [
    Scenario {
        name: "calm",
        about: "nothing is broken; snapshots and leader transfers only",
        breakages: &[(Breakage::Snapshot, 1), (Breakage::Transfer, 2)],
        pause_ms: (500, 2_000),
        lasts_ms: (100, 500),
        nodes: (3, 3),
        one_away: false,
    },
    Scenario {
        name: "partitions",
        about: "nodes cut off, in both or one direction, messages held, lost and late",
        breakages: &NETWORK,
        pause_ms: (200, 1_500),
        lasts_ms: (100, 2_500),
        nodes: (3, 5),
        one_away: false,
    },
    Scenario {
        name: "crashes",
        about: "power lost on one or all nodes with torn and lost writes, kills, orderly stops",
        breakages: &[
            (Breakage::Crash, 4),
            (Breakage::CrashLeader, 4),
            (Breakage::CrashAll, 1),
            (Breakage::CrashBridge, 1),
            (Breakage::Kill, 2),
            (Breakage::Stop, 2),
            (Breakage::Snapshot, 4),
        ],
        pause_ms: (300, 1_500),
        lasts_ms: (20, 2_000),
        nodes: (3, 5),
        one_away: false,
    },
    Scenario {
        name: "disk",
        about: "full disks, failing writes, syncs and reads, flipped bits in what is read, and crashes",
        breakages: &[
            (Breakage::DiskFull, 3),
            (Breakage::DiskWrites, 3),
            (Breakage::DiskSyncs, 3),
            (Breakage::DiskReads, 3),
            (Breakage::DiskEio, 4),
            (Breakage::Crash, 4),
            (Breakage::Kill, 2),
            (Breakage::Snapshot, 5),
        ],
        pause_ms: (300, 1_500),
        lasts_ms: (100, 1_500),
        nodes: (3, 3),
        one_away: false,
    },
    Scenario {
        name: "membership",
        about: "nodes join, leave and hand over leadership, while some crash or are cut off",
        breakages: &[
            (Breakage::Join, 6),
            (Breakage::Remove, 5),
            (Breakage::Transfer, 4),
            (Breakage::Snapshot, 4),
            (Breakage::CrashLeader, 1),
            (Breakage::Crash, 1),
            (Breakage::Isolate, 2),
        ],
        pause_ms: (200, 1_200),
        lasts_ms: (100, 1_000),
        nodes: (5, 5),
        one_away: false,
    },
    Scenario {
        name: "snapshots",
        about: "nodes away for so long that only a snapshot brings them back, and transfers that break off",
        breakages: &[
            (Breakage::Snapshot, 3),
            (Breakage::Crash, 5),
            (Breakage::Isolate, 5),
            (Breakage::Loss, 1),
            (Breakage::DiskEio, 6),
            (Breakage::CrashLeader, 1),
        ],
        pause_ms: (100, 400),
        lasts_ms: (1_500, 3_500),
        nodes: (3, 3),
        one_away: true,
    },
    Scenario {
        name: "skew",
        about: "clocks that are wrong and jump, under elections",
        breakages: &[
            (Breakage::Skew, 5),
            (Breakage::Jump, 2),
            (Breakage::Transfer, 3),
            (Breakage::CrashLeader, 2),
            (Breakage::Isolate, 2),
        ],
        pause_ms: (200, 1_000),
        lasts_ms: (100, 1_500),
        nodes: (3, 3),
        one_away: false,
    },
    Scenario {
        name: "everything",
        about: "all of it at once",
        breakages: &[
            (Breakage::Isolate, 2),
            (Breakage::Split, 1),
            (Breakage::OneWay, 2),
            (Breakage::Hold, 2),
            (Breakage::Loss, 2),
            (Breakage::Latency, 1),
            (Breakage::ClientCut, 1),
            (Breakage::Crash, 3),
            (Breakage::CrashLeader, 2),
            (Breakage::CrashAll, 1),
            (Breakage::CrashBridge, 1),
            (Breakage::Kill, 2),
            (Breakage::Stop, 1),
            (Breakage::DiskFull, 1),
            (Breakage::DiskWrites, 1),
            (Breakage::DiskSyncs, 1),
            (Breakage::DiskReads, 1),
            (Breakage::DiskEio, 1),
            (Breakage::Join, 2),
            (Breakage::Remove, 2),
            (Breakage::Transfer, 2),
            (Breakage::Snapshot, 2),
            (Breakage::Skew, 2),
            (Breakage::Jump, 1),
        ],
        pause_ms: (100, 1_000),
        lasts_ms: (50, 2_000),
        nodes: (3, 5),
        one_away: false,
    },
];

pub fn named(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}
