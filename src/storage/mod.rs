//! Where state and log live on disk.
//!
//! Owns: `Store` (the state: one look, one commit) over sled, over memory and over JSONL files; the append-only log
//! files; snapshot files; key families with their codecs; on-disk versions.
//! May touch: the machine's vocabulary. Never: decide anything about sessions.

pub mod answers;
pub mod contained;
pub mod kv;
pub mod keys;
pub mod records;
pub mod feed;
pub mod view;
pub mod memory;
pub mod files;
pub mod sled;
pub mod disk;
pub mod log;
pub mod jsonl;
pub mod snapshot;

use bytes::Bytes;

use crate::machine::refusal::Fault;
use crate::machine::view::{Change, View};

/// The materialised state of one Raft group on one node. One writer (apply), any number of readers.
pub trait Store: Send + Sync + 'static {
    /// Calls `look` once with a consistent view: no commit happens under it.
    fn look(&self, look: &mut dyn FnMut(&dyn View));

    /// Carries out the changes of one command and records `mark` (how far the log is applied), both or neither.
    /// Readers see it at once; it need not be on disk, since the log is the truth.
    fn commit(&self, changes: &[Change], mark: Bytes) -> Result<(), Fault>;

    /// The mark of the last commit; `None` when the store is empty.
    fn mark(&self) -> Result<Option<Bytes>, Fault>;

    /// Every key and value of one moment, in key order, with the mark of that moment. Never stops commits.
    fn freeze(&self) -> Result<Frozen, Fault>;

    /// Replaces the whole state. The old state stays until `pairs` has been read to its end without an error.
    fn replace(&self, pairs: Pairs<'_>, mark: Bytes) -> Result<(), Fault>;
}

/// Keys and values in key order.
pub type Pairs<'a> = Box<dyn Iterator<Item = Result<(Vec<u8>, Bytes), Fault>> + Send + 'a>;

/// A moment of the state, readable while the state moves on.
pub struct Frozen {
    pub mark: Option<Bytes>,
    pub pairs: Pairs<'static>,
}

/// One look with a result.
pub fn look<R>(store: &dyn Store, read: impl FnOnce(&dyn View) -> R) -> R {
    let mut read = Some(read);
    let mut result = None;
    store.look(&mut |view| result = read.take().map(|read| read(view)));
    result.expect("Store::look calls its closure exactly once")
}
