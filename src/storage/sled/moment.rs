//! Owns: a freeze of the state, read in key order while commits and flushes go on.
//!
//! What the layers hold at the moment of the freeze is shared with it. The base goes on changing: before the flusher
//! changes a key that the freeze has not reached yet, the old value goes to the freeze's undo area. So a moment is
//!
//! ```text
//! the base now, over it the undo area, over that the layers of the moment
//! ```
//!
//! read piece by piece. The base is read without a lock: whatever the flusher changed before or while it was read was
//! kept first, so looking into the undo area afterwards, under its lock, takes every change back.
//! Never: stops a commit or a flush.

use std::ops::Bound;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec;

use bytes::Bytes;

use super::base::Base;
use super::undo::{Taken, Undo};
use crate::machine::refusal::Fault;
use crate::storage::keys;
use crate::storage::kv::{Changed, Kv};

/// Keys that are kept for a freeze before it may go on.
const KEYS_PER_TURN: usize = 256;

/// A freeze, as the flusher knows it.
pub struct Lease {
    /// The layers of the moment, oldest first.
    layers: Vec<Arc<Changed>>,
    passage: Mutex<Passage>,
}

/// How far a freeze has been read, and what it needs of the rest.
struct Passage {
    reached: Reached,
    undo: Undo,
}

enum Reached {
    Nothing,
    /// Every key up to this one.
    Key(Vec<u8>),
    End,
}

impl Lease {
    pub fn new(layers: Vec<Arc<Changed>>, undo_path: PathBuf, spill_bytes: usize) -> Lease {
        let passage = Passage { reached: Reached::Nothing, undo: Undo::new(undo_path, spill_bytes) };
        Lease { layers, passage: Mutex::new(passage) }
    }

    /// Whether this layer is part of the moment: whatever the base has of it, the freeze reads the layer itself.
    pub fn covers(&self, layer: &Arc<Changed>) -> bool {
        self.layers.iter().any(|own| Arc::ptr_eq(own, layer))
    }

    /// Keeps what these keys of the base hold, where the freeze still needs it. To be called before they change.
    pub fn keep<'a>(&self, base: &Base, mut keys: impl Iterator<Item = &'a [u8]>) -> Result<(), Fault> {
        loop {
            // Not all at once: the freeze waits for this lock.
            let mut passage = self.passage();
            let mut any = false;
            for key in keys.by_ref().take(KEYS_PER_TURN) {
                any = true;
                passage.keep(base, key)?;
            }
            passage.undo.make_room()?;
            if !any {
                return Ok(());
            }
        }
    }

    fn passage(&self) -> MutexGuard<'_, Passage> {
        self.passage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Passage {
    fn keep(&mut self, base: &Base, key: &[u8]) -> Result<(), Fault> {
        let needed = match &self.reached {
            Reached::Nothing => true,
            Reached::Key(reached) => key > reached.as_slice(),
            Reached::End => false,
        };
        if needed && !self.undo.has(key) {
            self.undo.keep(key, base.get(key)?);
        }
        Ok(())
    }
}

/// The pairs of a freeze, without the mark.
pub struct Moment {
    lease: Arc<Lease>,
    base: Arc<Base>,
    piece_bytes: usize,
    piece: vec::IntoIter<(Vec<u8>, Bytes)>,
    /// Nothing comes after an error.
    broken: bool,
}

impl Moment {
    pub fn new(lease: Arc<Lease>, base: Arc<Base>, piece_bytes: usize) -> Moment {
        Moment { lease, base, piece_bytes, piece: Vec::new().into_iter(), broken: false }
    }

    /// Reads the next keys; false at the end.
    fn load(&mut self) -> Result<bool, Fault> {
        let after = match &self.lease.passage().reached {
            Reached::Nothing => None,
            Reached::Key(key) => Some(key.clone()),
            Reached::End => return Ok(false),
        };
        let after = after.as_deref();
        let (mut piece, mut end) = self.base.piece_after(after, self.piece_bytes)?;
        let mut passage = self.lease.passage();
        let Taken { pairs: undone, cut } = passage.undo.take(end.as_deref(), self.piece_bytes)?;
        if let Some(cut) = cut {
            // There is more to undo than to read: what was read beyond it is read again.
            drop(piece.split_off(&cut));
            end = Some(cut);
        }
        piece.extend(undone);
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), bound_to(end.as_deref()));
        for layer in &self.lease.layers {
            piece.extend(layer.range::<[u8], _>(range).map(|(key, value)| (key.clone(), value.clone())));
        }
        passage.reached = end.map_or(Reached::End, Reached::Key);
        drop(passage);
        // The mark travels beside the pairs.
        piece.remove(&keys::mark());
        let present: Vec<_> = piece.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        self.piece = present.into_iter();
        Ok(true)
    }
}

fn bound_to(end: Option<&[u8]>) -> Bound<&[u8]> {
    end.map_or(Bound::Unbounded, Bound::Included)
}

impl Iterator for Moment {
    type Item = Result<(Vec<u8>, Bytes), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.broken {
            if let Some(pair) = self.piece.next() {
                return Some(Ok(pair));
            }
            match self.load() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(fault) => {
                    self.broken = true;
                    return Some(Err(fault));
                }
            }
        }
        None
    }
}
