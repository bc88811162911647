//! Owns: a freeze of the state, which is read in key order while commits and flushes continue.
//!
//! A freeze shares the layers that existed when it was taken. The base continues to change: before the flusher changes
//! a key that the freeze has not read yet, it saves the old value in the freeze's undo area. So the frozen state is
//!
//! ```text
//! the current base, over it the undo area, over that the layers of the freeze
//! ```
//!
//! Values in the base are read as they stand there: a body as its place. No body file is removed while a freeze exists.
//!
//! It is read in pieces. The base is read without a lock. The flusher saves an old value before it changes a key, so
//! the undo area, which is read afterwards under its lock, contains every change that the read may have seen.
//! Never: blocks a commit or a flush.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec;

use bytes::Bytes;

use super::base::{Base, Put};
use super::bodies::{Bodies, Place};
use super::undo::{Taken, Undo};
use crate::machine::refusal::Fault;
use crate::storage::Pairs;
use crate::storage::state::checkpoint;
use crate::storage::state::kv::Changed;

/// The number of keys that are saved before the lock is released for the reader.
const KEYS_PER_TURN: usize = 256;

/// A freeze: its layers, and how far it was read.
pub struct Freeze {
    /// Oldest first.
    layers: Vec<Arc<Changed>>,
    progress: Mutex<Progress>,
}

/// How far a freeze was read, and the old values that it needs for the rest.
struct Progress {
    reached: Reached,
    undo: Undo,
}

enum Reached {
    Nothing,
    /// Every key up to this one.
    Key(Vec<u8>),
    End,
}

impl Freeze {
    pub fn new(layers: Vec<Arc<Changed>>, undo_path: PathBuf, spill_bytes: usize) -> Freeze {
        let progress = Progress { reached: Reached::Nothing, undo: Undo::new(undo_path, spill_bytes) };
        Freeze { layers, progress: Mutex::new(progress) }
    }

    /// True if this layer is part of the freeze. Then its flush changes nothing for the freeze.
    pub fn covers(&self, layer: &Arc<Changed>) -> bool {
        self.layers.iter().any(|own| Arc::ptr_eq(own, layer))
    }

    /// Saves the values that these keys have in the base, if the freeze still needs them. Call it before they change.
    pub fn save<'a>(
        &self,
        mut keys: impl Iterator<Item = &'a [u8]>,
        old: impl Fn(&[u8]) -> Result<Option<Bytes>, Fault>,
    ) -> Result<(), Fault> {
        loop {
            // In small steps, because the reader of the freeze waits for this lock.
            let mut progress = self.progress();
            let mut any = false;
            for key in keys.by_ref().take(KEYS_PER_TURN) {
                any = true;
                if progress.needs(key) {
                    progress.undo.save(key, old(key)?);
                }
            }
            progress.undo.make_room()?;
            if !any {
                return Ok(());
            }
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    fn needs(&self, key: &[u8]) -> bool {
        let is_ahead = match &self.reached {
            Reached::Nothing => true,
            Reached::Key(reached) => key > reached.as_slice(),
            Reached::End => false,
        };
        is_ahead && !self.undo.has(key)
    }
}

/// A value of a frozen state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    Value(Bytes),
    /// In a body file.
    Body(Place),
}

/// The pairs of a freeze, without the checkpoint. Bodies are not read.
pub struct FrozenPairs {
    freeze: Arc<Freeze>,
    base: Arc<Base>,
    piece_bytes: usize,
    piece: vec::IntoIter<(Vec<u8>, Stored)>,
    /// The iterator ends after an error.
    failed: bool,
}

impl FrozenPairs {
    pub fn new(freeze: Arc<Freeze>, base: Arc<Base>, piece_bytes: usize) -> FrozenPairs {
        base.bodies().hold();
        FrozenPairs { freeze, base, piece_bytes, piece: Vec::new().into_iter(), failed: false }
    }

    /// The files of the bodies. What a pair refers to is there until this is dropped.
    pub fn bodies(&self) -> &Bodies {
        self.base.bodies()
    }

    /// Checks a part of a body file. If it is damaged, so is the state.
    pub fn check_bodies(&self, file: u32, from: u32, end: u64) -> Result<(), Fault> {
        self.bodies().check(file, from, end).map_err(|fault| self.base.body_fault(fault))
    }

    /// The pairs with their bodies.
    pub fn whole(mut self) -> Pairs<'static> {
        Box::new(std::iter::from_fn(move || {
            let pair = self.next()?;
            Some(pair.and_then(|(key, value)| match value {
                Stored::Value(value) => Ok((key, value)),
                Stored::Body(place) => {
                    let body = self.base.bodies().read(&key, place);
                    Ok((key, body.map_err(|fault| self.base.body_fault(fault))?))
                }
            }))
        }))
    }

    /// Reads the next piece; false at the end.
    fn load(&mut self) -> Result<bool, Fault> {
        let after = match &self.freeze.progress().reached {
            Reached::Nothing => None,
            Reached::Key(key) => Some(key.clone()),
            Reached::End => return Ok(false),
        };
        let after = after.as_deref();
        let (mut piece, mut end) = self.base.piece_after(after, self.piece_bytes)?;
        let mut progress = self.freeze.progress();
        let Taken { pairs: undone, cut } = progress.undo.take(end.as_deref(), self.piece_bytes)?;
        if let Some(cut) = cut {
            // The undo area is larger than one piece: what was read beyond the cut is read again.
            piece.truncate(piece.partition_point(|(key, _)| *key < cut));
            end = Some(cut);
        }
        let with_place = |(key, stored): Put| {
            let place = Place::of(&key, stored.as_deref().unwrap_or_default())?;
            let value = stored.map(|stored| place.map_or(Stored::Value(stored), Stored::Body));
            Ok((key, value))
        };
        let damaged = |fault| self.base.body_fault(fault);
        // In order already, so this is quicker than one insertion after the other.
        let pairs = piece.into_iter().map(with_place).collect::<Result<BTreeMap<_, _>, _>>();
        let mut pairs = pairs.map_err(damaged)?;
        for undone in undone {
            pairs.extend([with_place(undone).map_err(damaged)?]);
        }
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), bound_to(end.as_deref()));
        for layer in &self.freeze.layers {
            let values = layer.range::<[u8], _>(range);
            pairs.extend(values.map(|(key, value)| (key.clone(), value.clone().map(Stored::Value))));
        }
        progress.reached = end.map_or(Reached::End, Reached::Key);
        drop(progress);
        // The checkpoint is returned separately.
        pairs.remove(&checkpoint::key());
        let present: Vec<_> = pairs.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        self.piece = present.into_iter();
        Ok(true)
    }
}

fn bound_to(end: Option<&[u8]>) -> Bound<&[u8]> {
    end.map_or(Bound::Unbounded, Bound::Included)
}

impl Drop for FrozenPairs {
    fn drop(&mut self) {
        self.base.bodies().release();
    }
}

impl Iterator for FrozenPairs {
    type Item = Result<(Vec<u8>, Stored), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.failed {
            if let Some(pair) = self.piece.next() {
                return Some(Ok(pair));
            }
            match self.load() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(fault) => {
                    self.failed = true;
                    return Some(Err(fault));
                }
            }
        }
        None
    }
}
