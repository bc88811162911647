//! The state on disk: a sled database as the base, and layers of changed keys in memory over it.
//!
//! Owns: `SledStore`, which commits to the newest layer; a thread flushes layers to sled.
//!
//! ```text
//! commit → active ──(every 2 s or 24 MiB)──→ sealed ──→ flush.kv ──→ sled
//! read   → active, else sealed, else sled
//! ```
//!
//! So a value that changes a hundred times a second is written to sled once in two seconds. The layers are lost with
//! the process. The checkpoint in sled is then that of the last complete layer, and the log restores the rest.
//! Never: the source of truth. `OpenFault::Damaged` means: wipe the state and rebuild it from snapshot and log.

mod base;
mod blocks;
pub mod bodies;
mod flush_file;
mod flusher;
mod freeze;
mod layers;
pub mod panic_guard;
mod positioned;
mod recent;
mod reclaim;
mod spine;
mod undo;
mod view;

#[cfg(test)]
mod kill_test;
#[cfg(test)]
mod seal_test;
#[cfg(test)]
mod section_test;
#[cfg(test)]
mod store_test;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;

use base::Base;
pub use base::OpenFault;
use freeze::Freeze;
pub use freeze::{FrozenPairs, Stored};
use layers::Layers;
use recent::is_plain;

use super::files::{self, DirLock};
use super::state::{Encoded, Records, checkpoint};
use super::{Frozen, Pairs, Store};
use crate::blocking::block;
use crate::machine::refusal::Fault;
use crate::machine::view::View;
use crate::metrics::{Page, catalogue};

/// Memory limits of a store, beside sled's own cache.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// An active layer of this size is flushed at once.
    pub flush_bytes: usize,
    /// The most that commits may be ahead of sled. Beyond it they wait for the flusher (back-pressure).
    pub ahead_bytes: usize,
    /// The most that a freeze keeps in memory of values that changed after it. Beyond it they go to a file.
    pub undo_bytes: usize,
    /// How many bytes a freeze reads at once.
    pub piece_bytes: usize,
    /// A commit that waits this long for the flusher is reported. It goes on waiting: a disk that is slow loses nothing,
    /// and only a failed flush is a reason to end.
    pub slow_after: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            flush_bytes: 24 << 20,
            ahead_bytes: 56 << 20,
            undo_bytes: 8 << 20,
            piece_bytes: 256 << 10,
            slow_after: Duration::from_secs(30),
        }
    }
}

/// About how much memory a key takes beside its bytes.
const KEY_OVERHEAD_BYTES: usize = 96;

/// The state of one Raft group on one node's disk.
pub struct SledStore {
    shared: Arc<Shared>,
    flusher: Mutex<Option<JoinHandle<()>>>,
}

/// Lock order: `writer`, `turn`, `control`, `layers`.
struct Shared {
    root: PathBuf,
    bounds: Bounds,
    /// One commit or replacement at a time.
    writer: Mutex<()>,
    /// Held while the base is changed.
    turn: Mutex<()>,
    control: Mutex<Control>,
    /// Wakes the flusher: a layer is full, or the store closes.
    wake: Condvar,
    /// Wakes commits that wait for the flusher.
    room: Condvar,
    layers: RwLock<Layers>,
    _lock: DirLock,
}

#[derive(Default)]
struct Control {
    closing: bool,
    active_bytes: usize,
    sealed_bytes: usize,
    /// Why the last flush failed. Commits continue until they are too far ahead.
    failing: Option<String>,
    /// The disk has no space for the next flush. Commits that are too far ahead wait until it has.
    no_space: bool,
    /// The number of freezes so far. Names their undo files.
    freeze_count: u64,
}

impl Control {
    fn ahead_bytes(&self) -> usize {
        self.active_bytes + self.sealed_bytes
    }
}

impl SledStore {
    /// Opens the state in `dir`, or creates an empty one. Completes a flush that a kill interrupted.
    pub fn open(dir: &Path) -> Result<SledStore, OpenFault> {
        SledStore::open_within(dir, Bounds::default())
    }

    pub fn open_within(dir: &Path, bounds: Bounds) -> Result<SledStore, OpenFault> {
        std::fs::create_dir_all(dir)?;
        let lock = DirLock::acquire(dir)?;
        let base = Base::open_current(dir)?;
        // A first read shows whether the content can be decoded.
        Records::new(&base).clock_ms().map_err(|fault| OpenFault::Damaged(fault.0))?;
        let shared = Arc::new(Shared {
            root: dir.to_owned(),
            bounds,
            writer: Mutex::default(),
            turn: Mutex::default(),
            control: Mutex::default(),
            wake: Condvar::new(),
            room: Condvar::new(),
            layers: RwLock::new(Layers::over(base)),
            _lock: lock,
        });
        let flusher = flusher::start(Arc::clone(&shared))?;
        Ok(SledStore { shared, flusher: Mutex::new(Some(flusher)) })
    }

    /// Removes the state in `dir`, so that the next open starts empty. The directory must not be open.
    pub fn wipe(dir: &Path) -> io::Result<()> {
        if !dir.exists() {
            return Ok(());
        }
        let _lock = DirLock::acquire(dir)?;
        // CURRENT goes first: if the process is killed after this, the state is empty and not half removed.
        files::remove(&dir.join("CURRENT"))?;
        files::sync_dir(dir)?;
        for found in std::fs::read_dir(dir)? {
            let path = found?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("gen-")) {
                files::remove(&path)?;
            }
        }
        Ok(())
    }

    /// Flushes all layers and stops the flusher. Later commits fail; reads still work.
    pub fn close(&self) {
        self.shared.control().closing = true;
        self.shared.wake.notify_all();
        self.shared.room.notify_all();
        let flusher = self.flusher.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(flusher) = flusher
            && flusher.join().is_err()
        {
            tracing::error!("the flusher of the state panicked");
        }
    }
}

impl Drop for SledStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn layers(&self) -> RwLockReadGuard<'_, Layers> {
        self.layers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn layers_mut(&self) -> RwLockWriteGuard<'_, Layers> {
        self.layers.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until commits are not too far ahead of sled.
    fn await_room(&self) -> Result<(), Fault> {
        let max = self.bounds.ahead_bytes;
        let full = |control: &mut Control| control.ahead_bytes() > max && !control.closing && control.failing.is_none();
        let mut control = self.control();
        while full(&mut control) {
            drop(control);
            let wait = || self.room.wait_timeout_while(self.control(), self.bounds.slow_after, full);
            let (waited, end) = block(wait).unwrap_or_else(PoisonError::into_inner);
            if end.timed_out() {
                tracing::warn!(ahead = waited.ahead_bytes(), "the disk is slow: a commit waits for the state's flush");
            }
            control = waited;
        }
        if control.closing {
            return Err(Fault("the state is closed".to_owned()));
        }
        match &control.failing {
            Some(why) if control.ahead_bytes() > max => {
                Err(Fault(format!("the state cannot be flushed to disk: {why}")))
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl Store for SledStore {
    fn read(&self, read: &mut dyn FnMut(&dyn View)) {
        let layers = self.shared.layers();
        layers.view(|view| read(view));
    }

    fn commit_encoded(&self, changes: &Encoded<'_>, checkpoint: Bytes) -> Result<(), Fault> {
        let _writer = self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.layers().base.check()?;
        self.shared.await_room()?;
        if !changes.changes().iter().all(is_plain) {
            let mut control = self.shared.control();
            let grown = self.shared.layers_mut().make_keys();
            control.active_bytes = control.active_bytes.saturating_add_signed(grown);
        }
        loop {
            // This is the only writer, so the content stays as it is. But the flusher or a freeze may move the newest
            // commits to keys in between: then what was prepared misses what it relied on to be there.
            let (commit, prepared_at) = {
                let layers = self.shared.layers();
                (layers.prepare(changes)?, layers.keys_made)
            };
            // Under both locks, so that the flusher never sees the commit without its size.
            let mut control = self.shared.control();
            let mut layers = self.shared.layers_mut();
            if layers.keys_made != prepared_at {
                continue;
            }
            let grown = layers.commit(commit, changes, checkpoint);
            control.active_bytes = control.active_bytes.saturating_add_signed(grown);
            if control.active_bytes >= self.shared.bounds.flush_bytes {
                self.shared.wake.notify_all();
            }
            return Ok(());
        }
    }

    fn checkpoint(&self) -> Result<Option<Bytes>, Fault> {
        self.shared.layers().checkpoint()
    }

    fn freeze(&self) -> Result<Frozen, Fault> {
        let Bounds { undo_bytes, piece_bytes, .. } = self.shared.bounds;
        let mut control = self.shared.control();
        let mut layers = self.shared.layers_mut();
        let checkpoint = layers.checkpoint()?;
        // The freeze shares the sealed layers and does not copy them.
        layers.seal(&mut control);
        control.freeze_count += 1;
        let held = layers.sealed.iter().map(|sealed| Arc::clone(&sealed.changed)).collect();
        let base = Arc::clone(&layers.base);
        let freeze = Arc::new(Freeze::new(held, base.undo_path(control.freeze_count), undo_bytes));
        layers.freezes.retain(|freeze| freeze.strong_count() > 0);
        layers.freezes.push(Arc::downgrade(&freeze));
        let pairs = || FrozenPairs::new(Arc::clone(&freeze), Arc::clone(&base), piece_bytes);
        Ok(Frozen { checkpoint, pairs: pairs().whole(), apart: Some(pairs()) })
    }

    fn entry_bytes(&self) -> u64 {
        let base = Arc::clone(&self.shared.layers().base);
        let book = base.bodies().book();
        book.values().map(|extent| extent.total.saturating_sub(extent.dead)).sum()
    }

    fn measure(&self, page: &mut Page) {
        let (active, sealed) = {
            let control = self.shared.control();
            (control.active_bytes, control.sealed_bytes)
        };
        page.whole_of(catalogue::STATE_LAYERS, &[("layer", "active")], active as u64);
        page.whole_of(catalogue::STATE_LAYERS, &[("layer", "sealed")], sealed as u64);
    }

    fn replace(&self, pairs: Pairs<'_>, checkpoint: Bytes) -> Result<(), Fault> {
        let _writer = self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if self.shared.control().closing {
            return Err(Fault("the state is closed".to_owned()));
        }
        let root = &self.shared.root;
        let old = Arc::clone(&self.shared.layers().base);
        let new = old.successor(root).map_err(|fault| Fault(fault.to_string()))?;
        // Until it is current, dropping the handle removes its files.
        new.remove_on_drop(true);
        let checkpoint_key = checkpoint::key();
        let given = pairs.filter(|pair| !matches!(pair, Ok((key, _)) if *key == checkpoint_key));
        let puts = given.map(|pair| pair.map(|(key, value)| (key, Some(value))));
        new.put_all(puts.chain([Ok((checkpoint::key(), Some(checkpoint)))]))?;
        new.make_durable()?;
        // The flusher must not write to the old base once the new one is current.
        let _turn = self.shared.turn();
        if let Err(error) = new.make_current(root) {
            // CURRENT may name the new generation already: restore it before the new generation is removed.
            let restored = old.make_current(root);
            new.remove_on_drop(restored.is_ok());
            return Err(Fault(format!("make the new state current: {error}")));
        }
        new.remove_on_drop(false);
        old.remove_on_drop(true);
        let mut control = self.shared.control();
        *self.shared.layers_mut() = Layers::over(new);
        (control.active_bytes, control.sealed_bytes) = (0, 0);
        self.shared.room.notify_all();
        Ok(())
    }
}
