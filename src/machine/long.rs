//! Owns: the records of work that takes many commands: entries that wait to be freed, and forks under way.
//! Never: what a command does with them (`apply/long`).

use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::ids::{EntryId, SessionId};
use super::stamp::Stamp;

/// Where the entries of a session are stored if not under its own id. A session that was deleted while it was long, and
/// made anew, has its entries there: the old ones are still being freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Home(pub u128);

impl Home {
    /// A new home for the entries of a session. The id takes part, so that no two sessions get the same one.
    pub fn new(stamp: &Stamp, session_id: &SessionId) -> Home {
        let input = [&stamp.seed.to_be_bytes()[..], session_id.as_str().as_bytes()].concat();
        Home(xxh3_128_with_seed(&input, stamp.at_ms as u64))
    }
}

/// Entries that belong to no session any more and are freed in many small commands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leftover {
    pub session_id: SessionId,
    /// `None`: they are stored under the id of their session.
    pub home: Option<Home>,
}

/// A fork whose entries are being copied. Nothing of it is visible yet.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingFork {
    pub source: SessionId,
    pub fork: SessionId,
    pub entry_id: EntryId,
    /// The source's title when `None`.
    pub title: Option<String>,
    /// The stamp of its first command. The ids of all copies derive from it.
    pub stamp: Stamp,
    /// How many entries of the path are copied.
    pub copied: u64,
    /// How many of them are messages.
    pub messages: u64,
    /// When the last entries were copied, by the clock of the state.
    pub moved_at: i64,
}

impl PendingFork {
    /// The id of the copy of the entry at this depth of the path. Ids grow with the depth, so that copies are written
    /// to the end of the session's keys; an id has room for 4,096 ranks in one millisecond.
    pub fn copy_id(&self, depth: u64) -> EntryId {
        let at_ms = self.stamp.at_ms.saturating_add(((depth + 1) >> 12) as i64);
        Stamp { at_ms, ..self.stamp }.entry_id(depth)
    }
}

/// How much one command does, and from what size on a change takes many commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// A session with more entries than this is deleted and forked in many commands.
    pub long_after: usize,
    /// Records that one command copies or frees.
    pub records: u32,
}

impl Steps {
    /// A few milliseconds of work.
    pub const RECORDS_MAX: u32 = 256;
}

impl Default for Steps {
    fn default() -> Steps {
        Steps { long_after: 256, records: Steps::RECORDS_MAX }
    }
}
