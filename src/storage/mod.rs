//! Storage: the log, the state and snapshots on disk.
//!
//! Owns: `Store` (the state of one Raft group: read, commit, freeze, replace) on sled and in memory; the key families
//! of the state (`state/`); the append-only log (`log/`); snapshot files (`snapshot/`); backup files
//! (`backup.rs`); the JSONL files of the fs adapter (`jsonl/`); the version of every format.
//! May touch: the machine's types. Never: a decision about sessions.

pub mod backup;
#[cfg(target_os = "linux")]
mod direct;
pub mod disk;
pub mod files;
pub mod jsonl;
pub mod log;
pub mod proto_types;
pub mod sled;
pub mod snapshot;
pub mod state;

use bytes::Bytes;

use sled::FrozenPairs;
use state::Encoded;

use crate::machine::change::Change;
use crate::machine::refusal::Fault;
use crate::machine::view::View;
use crate::metrics::Page;

/// The materialised state of one Raft group on one node. One writer (apply), any number of readers.
pub trait Store: Send + Sync + 'static {
    /// Calls `read` once with a consistent view: no commit happens during the call.
    fn read(&self, read: &mut dyn FnMut(&dyn View));

    /// Makes the changes of one command and sets the checkpoint (how far the log is applied), both or neither.
    /// Readers see the changes at once. They need not be on disk: after a crash the log restores them.
    fn commit_encoded(&self, changes: &Encoded<'_>, checkpoint: Bytes) -> Result<(), Fault>;

    /// The same for changes that are not encoded yet.
    fn commit(&self, changes: &[Change], checkpoint: Bytes) -> Result<(), Fault> {
        self.commit_encoded(&Encoded::new(changes), checkpoint)
    }

    /// The checkpoint of the last commit; `None` if the store is empty.
    fn checkpoint(&self) -> Result<Option<Bytes>, Fault>;

    /// All keys and values as of now, in key order, with their checkpoint. Commits continue while they are read.
    fn freeze(&self) -> Result<Frozen, Fault>;

    /// Replaces the whole state. The old state stays until `pairs` was read to its end without an error.
    fn replace(&self, pairs: Pairs<'_>, checkpoint: Bytes) -> Result<(), Fault>;

    /// Bytes of the values of entries, without deleted ones. An estimate that lags a little; 0 if it is not known.
    fn entry_bytes(&self) -> u64 {
        0
    }

    /// Adds the figures of the store to a page of metrics.
    fn measure(&self, _page: &mut Page) {}
}

/// Keys and values in key order.
pub type Pairs<'a> = Box<dyn Iterator<Item = Result<(Vec<u8>, Bytes), Fault>> + Send + 'a>;

/// The state at one point in time. It can be read while the state changes.
pub struct Frozen {
    pub checkpoint: Option<Bytes>,
    pub pairs: Pairs<'static>,
    /// The same pairs without the bodies, if the store keeps these in files. Read either this or `pairs`.
    pub apart: Option<FrozenPairs>,
}

/// Reads from a consistent view and returns the result.
pub fn with_view<R>(store: &dyn Store, read: impl FnOnce(&dyn View) -> R) -> R {
    let mut read = Some(read);
    let mut result = None;
    store.read(&mut |view| result = read.take().map(|read| read(view)));
    result.expect("Store::read calls its closure exactly once")
}
