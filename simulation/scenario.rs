//! Owns: the scenarios: which faults each injects, how often, and for how long. Every run ends with all faults mended.

use crate::determinism::Chance;

/// A kind of fault. The summary counts them by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breakage {
    /// Cuts one node off from all others.
    Isolate,
    /// Cuts a minority off from the rest.
    Split,
    /// Cuts one direction between two nodes.
    OneWay,
    /// Messages between two nodes are held, and then arrive together.
    Hold,
    /// Some messages between two nodes are lost.
    Loss,
    /// Messages between two nodes are slow.
    Latency,
    /// Cuts the clients off from one node.
    ClientCut,
    /// A node loses power: unsynced writes are lost or torn.
    Crash,
    /// The leader loses power.
    CrashLeader,
    /// All nodes lose power at once.
    CrashAll,
    /// The process of the bridge is killed; it has no disk.
    CrashBridge,
    /// The process of a node is killed and restarted at once; the operating system keeps its writes.
    Kill,
    /// A node shuts down and is restarted.
    Stop,
    /// The disk of a node is full.
    DiskFull,
    /// The disk of a node fails writes.
    DiskWrites,
    /// The disk of a node fails syncs.
    DiskSyncs,
    /// Reads from the disk of a node have flipped bits.
    DiskReads,
    /// Some reads from the disk of a node fail.
    DiskEio,
    /// Each sync of a node takes up to two seconds.
    DiskSlow,
    /// Each sync of every node takes up to half a second.
    DiskSlowAll,
    Join,
    Remove,
    Transfer,
    Snapshot,
    /// The clock of a node is up to some seconds fast or slow.
    Skew,
    /// The clock of a node jumps by minutes.
    Jump,
    /// The process of a node is stopped for a while: others hear nothing from it, and when it goes on, its monotonic clock
    /// has jumped and all its timers are due.
    Pause,
    /// The monotonic clock of a node jumps: the process was not scheduled for a moment.
    Nap,
    /// Applying the next commands takes a node up to three seconds.
    LongCommand,
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
            Breakage::DiskSlow => "disk-slow",
            Breakage::DiskSlowAll => "disk-slow-all",
            Breakage::Join => "join",
            Breakage::Remove => "remove",
            Breakage::Transfer => "transfer",
            Breakage::Snapshot => "snapshot",
            Breakage::Skew => "skew",
            Breakage::Jump => "jump",
            Breakage::Pause => "pause",
            Breakage::Nap => "nap",
            Breakage::LongCommand => "long-command",
        }
    }
}

/// One kind of run.
#[derive(Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    /// The kinds of faults, each with its weight.
    breakages: &'static [(Breakage, u64)],
    /// Milliseconds between two faults.
    pub pause_ms: (u64, u64),
    /// Milliseconds until a fault is mended.
    pub lasts_ms: (u64, u64),
    /// The least and the largest number of nodes.
    pub nodes: (u64, u64),
    /// At most one node is down or cut off at a time, so that the others make progress without it.
    pub one_away: bool,
    /// None of the faults is a reason for an election.
    pub keeps_leader: bool,
}

impl Scenario {
    /// Whether the scenario contains this kind of fault.
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

pub const ALL: [Scenario; 10] = [
    Scenario {
        name: "calm",
        about: "no faults; snapshots and leader transfers only",
        breakages: &[(Breakage::Snapshot, 1), (Breakage::Transfer, 2)],
        pause_ms: (500, 2_000),
        lasts_ms: (100, 500),
        nodes: (3, 3),
        one_away: false,
        keeps_leader: false,
    },
    Scenario {
        name: "partitions",
        about: "nodes are cut off in one or both directions; messages are held, lost and slow",
        breakages: &NETWORK,
        pause_ms: (200, 1_500),
        lasts_ms: (100, 2_500),
        nodes: (3, 5),
        one_away: false,
        keeps_leader: false,
    },
    Scenario {
        name: "crashes",
        about: "power failures of one or all nodes with torn and lost writes, kills, shutdowns",
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
        keeps_leader: false,
    },
    Scenario {
        name: "disk",
        about: "full disks, failing writes, syncs and reads, flipped bits in reads, and crashes",
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
        keeps_leader: false,
    },
    Scenario {
        name: "membership",
        about: "nodes join, leave and transfer leadership, while some crash or are cut off",
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
        keeps_leader: false,
    },
    Scenario {
        name: "snapshots",
        about: "nodes are away so long that they need a snapshot; snapshot transfers are interrupted",
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
        keeps_leader: false,
    },
    Scenario {
        name: "skew",
        about: "clocks are wrong and jump, and processes stop for a while, during elections",
        breakages: &[
            (Breakage::Skew, 5),
            (Breakage::Jump, 2),
            (Breakage::Pause, 2),
            (Breakage::Transfer, 3),
            (Breakage::CrashLeader, 2),
            (Breakage::Isolate, 2),
        ],
        pause_ms: (200, 1_000),
        lasts_ms: (100, 1_500),
        nodes: (3, 3),
        one_away: false,
        keeps_leader: false,
    },
    Scenario {
        name: "everything",
        about: "all kinds of faults together",
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
            (Breakage::Pause, 2),
            (Breakage::LongCommand, 1),
        ],
        pause_ms: (100, 1_000),
        lasts_ms: (50, 2_000),
        nodes: (3, 5),
        one_away: false,
        keeps_leader: false,
    },
    Scenario {
        name: "slow-disks",
        about: "syncs that take 10 ms to 2 s, on one node and on all, while leaders crash",
        breakages: &[
            (Breakage::DiskSlow, 3),
            (Breakage::DiskSlowAll, 4),
            (Breakage::CrashLeader, 2),
            (Breakage::Kill, 1),
            (Breakage::Snapshot, 1),
        ],
        pause_ms: (500, 2_500),
        lasts_ms: (1_000, 6_000),
        nodes: (3, 5),
        one_away: false,
        keeps_leader: false,
    },
    Scenario {
        name: "patience",
        about: "slow disks, long commands and short naps, none of which is a reason for an election",
        breakages: &[
            (Breakage::DiskSlow, 4),
            (Breakage::DiskSlowAll, 2),
            (Breakage::LongCommand, 4),
            (Breakage::Nap, 2),
            (Breakage::Snapshot, 1),
        ],
        pause_ms: (200, 1_500),
        lasts_ms: (500, 3_000),
        nodes: (3, 5),
        one_away: false,
        keeps_leader: true,
    },
];

pub fn named(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}
