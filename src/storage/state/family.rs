//! Owns: the key families, and the fault that reports a damaged key or value.

use std::fmt;

use crate::machine::refusal::Fault;

/// What a key is about. The numbers are on disk: never change one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Checkpoint = 0x01,
    Clock = 0x02,
    FeedEdge = 0x03,
    Meta = 0x10,
    Leaf = 0x11,
    Seq = 0x12,
    Entry = 0x13,
    Home = 0x14,
    List = 0x20,
    Answer = 0x30,
    Feed = 0x40,
    Tombstone = 0x41,
    Cursor = 0x42,
    Leftover = 0x50,
    Fork = 0x51,
    SessionRecord = 0x60,
    RecordGeneration = 0x61,
    RecordLeftover = 0x62,
    ClusterRecord = 0x63,
}

impl Family {
    pub const ALL: [Family; 19] = [
        Family::Checkpoint,
        Family::Clock,
        Family::FeedEdge,
        Family::Meta,
        Family::Leaf,
        Family::Seq,
        Family::Entry,
        Family::Home,
        Family::List,
        Family::Answer,
        Family::Feed,
        Family::Tombstone,
        Family::Cursor,
        Family::Leftover,
        Family::Fork,
        Family::SessionRecord,
        Family::RecordGeneration,
        Family::RecordLeftover,
        Family::ClusterRecord,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Family::Checkpoint => "checkpoint",
            Family::Clock => "clock",
            Family::FeedEdge => "feed edge",
            Family::Meta => "meta",
            Family::Leaf => "leaf",
            Family::Seq => "seq",
            Family::Entry => "entry",
            Family::Home => "home",
            Family::List => "list",
            Family::Answer => "answer",
            Family::Feed => "feed",
            Family::Tombstone => "tombstone",
            Family::Cursor => "cursor",
            Family::Leftover => "leftover",
            Family::Fork => "fork",
            Family::SessionRecord => "session record",
            Family::RecordGeneration => "record generation",
            Family::RecordLeftover => "record leftover",
            Family::ClusterRecord => "cluster record",
        }
    }

    pub fn owns(self, key: &[u8]) -> bool {
        key.first() == Some(&(self as u8))
    }

    /// A damaged key or value of this family.
    pub fn fault(self, what: impl fmt::Display) -> Fault {
        Fault(format!("damaged {} record: {what}", self.name()))
    }
}

/// The layout that this build writes into versioned records, and the only one it reads.
pub(super) const VERSION: u32 = 1;

/// A record of a layout that this build does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownLayout(u32);

impl fmt::Display for UnknownLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layout {}; this build reads {VERSION}", self.0)
    }
}

pub(super) fn check_version(version: u32) -> Result<(), UnknownLayout> {
    if version == VERSION { Ok(()) } else { Err(UnknownLayout(version)) }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
