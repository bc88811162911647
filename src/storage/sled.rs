//! Owns: `SledStore`, the state on disk: sled as a base that moves in steps, under layers in memory that move with
//! every commit.
//!
//! ```text
//! commit → active ──(every 250 ms or 8 MiB)──→ frozen ──→ flush.kv ──→ sled
//! read   → active, else frozen, else sled
//! ```
//!
//! A value that changes a hundred times a second reaches sled four times. What the layers hold is lost with the
//! process; the mark in sled then is that of the last whole layer, and the log brings the rest back.
//! Never: the truth. `OpenFault::Damaged` means: wipe, and rebuild from snapshot and log.

mod base;
mod flush_file;
mod flusher;

use std::collections::btree_map;
use std::io;
use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;

use base::Base;
pub use base::OpenFault;

use super::files::{self, DirLock};
use super::kv::{Changed, Kv, Layer};
use super::view::{Records, write};
use super::{Frozen, Pairs, Store, keys};
use crate::machine::refusal::Fault;
use crate::machine::view::{Change, View};

/// Layers over this size do not wait for the clock.
const FLUSH_BYTES: usize = 8 << 20;

/// The most a commit may leave in the active layer before it waits for the flusher.
const ACTIVE_BYTES_MAX: usize = 64 << 20;

/// The same while a freeze is being read and the base must stand still: a snapshot should not stop commits.
const ACTIVE_BYTES_MAX_FROZEN: usize = 256 << 20;

/// A commit that waits longer than this for the flusher has a disk that stands still.
const COMMIT_PATIENCE: Duration = Duration::from_secs(30);

/// What a key costs in memory beside its bytes.
const KEY_OVERHEAD_BYTES: usize = 96;

/// The state of one Raft group on one node's disk.
pub struct SledStore {
    shared: Arc<Shared>,
    flusher: Mutex<Option<JoinHandle<()>>>,
}

/// Lock order: `writer`, `turn`, `control`, `layers`.
struct Shared {
    root: PathBuf,
    /// One commit or replacement at a time.
    writer: Mutex<()>,
    /// Held while the base changes.
    turn: Mutex<()>,
    control: Mutex<Control>,
    /// Tells the flusher that there is something to do or to stop.
    wake: Condvar,
    /// Tells commits that there may be room again.
    room: Condvar,
    layers: RwLock<Layers>,
    _lock: DirLock,
}

#[derive(Default)]
struct Control {
    closing: bool,
    active_bytes: usize,
    /// Freezes being read: while there are any, the active layer stays where it is.
    leases: usize,
    /// Why the last flush failed; commits go on until the layer is full.
    failing: Option<String>,
}

struct Layers {
    active: Changed,
    frozen: Option<Arc<Changed>>,
    base: Arc<Base>,
}

impl Layers {
    /// The state as of now, newest layer first.
    fn read<R>(&self, read: impl FnOnce(&dyn Kv) -> R) -> R {
        let none = Changed::new();
        let frozen = Layer { over: self.frozen.as_deref().unwrap_or(&none), base: &*self.base };
        read(&Layer { over: &self.active, base: &frozen })
    }

    /// Puts changed keys on top; answers by how many bytes the active layer grew.
    fn put(&mut self, changed: Changed) -> isize {
        let mut grown = 0;
        for (key, value) in changed {
            let length = value.as_ref().map_or(0, Bytes::len) as isize;
            let key_cost = (key.len() + KEY_OVERHEAD_BYTES) as isize;
            grown += match self.active.insert(key, value) {
                Some(old) => length - old.map_or(0, |old| old.len()) as isize,
                None => length + key_cost,
            };
        }
        grown
    }
}

impl SledStore {
    /// Opens the state in `dir`, or starts an empty one. A flush that a kill cut short is completed first.
    pub fn open(dir: &Path) -> Result<SledStore, OpenFault> {
        std::fs::create_dir_all(dir)?;
        let lock = DirLock::acquire(dir)?;
        let base = Base::open_current(dir)?;
        // The first reads tell whether the content makes sense at all.
        Records::new(&base).clock_ms().map_err(|fault| OpenFault::Damaged(fault.0))?;
        let shared = Arc::new(Shared {
            root: dir.to_owned(),
            writer: Mutex::default(),
            turn: Mutex::default(),
            control: Mutex::default(),
            wake: Condvar::new(),
            room: Condvar::new(),
            layers: RwLock::new(Layers { active: Changed::new(), frozen: None, base: Arc::new(base) }),
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
        // Without CURRENT nothing counts: a kill from here on leaves an empty state, not half of one.
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

    /// Writes everything down and ends the flusher. Later commits fail; reads go on.
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

    /// Waits until the active layer may grow.
    fn await_room(&self) -> Result<(), Fault> {
        let full = |control: &mut Control| {
            let max = if control.leases > 0 { ACTIVE_BYTES_MAX_FROZEN } else { ACTIVE_BYTES_MAX };
            control.active_bytes > max && !control.closing && control.failing.is_none()
        };
        let (control, waited) =
            self.room.wait_timeout_while(self.control(), COMMIT_PATIENCE, full).unwrap_or_else(PoisonError::into_inner);
        if control.closing {
            return Err(Fault("the state is closed".to_owned()));
        }
        if waited.timed_out() {
            return Err(Fault(format!("the state was not written down within {COMMIT_PATIENCE:?}")));
        }
        match &control.failing {
            Some(why) if control.active_bytes > ACTIVE_BYTES_MAX => {
                Err(Fault(format!("the state cannot be written down: {why}")))
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl Store for SledStore {
    fn look(&self, look: &mut dyn FnMut(&dyn View)) {
        self.shared.layers().read(|kv| look(&Records::new(kv)));
    }

    fn commit(&self, changes: &[Change], mark: Bytes) -> Result<(), Fault> {
        let _writer = self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.await_room()?;
        // Only this thread writes, so what is read here still holds when it is put.
        let mut changed = self.shared.layers().read(|kv| write(kv, changes))?;
        changed.insert(keys::mark(), Some(mark));
        // Under both locks, so that the flusher never sees the keys without their weight.
        let mut control = self.shared.control();
        let grown = self.shared.layers_mut().put(changed);
        control.active_bytes = control.active_bytes.saturating_add_signed(grown);
        if control.active_bytes >= FLUSH_BYTES {
            self.shared.wake.notify_all();
        }
        Ok(())
    }

    fn mark(&self) -> Result<Option<Bytes>, Fault> {
        self.shared.layers().read(|kv| kv.get(&keys::mark()))
    }

    fn freeze(&self) -> Result<Frozen, Fault> {
        let (lease, mut over) = Lease::take(&self.shared);
        let mark = match over.remove(&keys::mark()) {
            Some(changed) => changed,
            None => lease.base.get(&keys::mark())?,
        };
        let base: Pairs<'static> = Box::new(lease.base.pairs());
        let pairs =
            FrozenPairs { over: over.into_iter().peekable(), base: base.peekable(), broken: false, _lease: lease };
        Ok(Frozen { mark, pairs: Box::new(pairs) })
    }

    fn replace(&self, pairs: Pairs<'_>, mark: Bytes) -> Result<(), Fault> {
        let _writer = self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if self.shared.control().closing {
            return Err(Fault("the state is closed".to_owned()));
        }
        let root = &self.shared.root;
        let old = Arc::clone(&self.shared.layers().base);
        let new = old.successor(root).map_err(|fault| Fault(fault.to_string()))?;
        // Until it is current, dropping it removes it.
        new.doom(true);
        let mark_key = keys::mark();
        let given = pairs.filter(|pair| !matches!(pair, Ok((key, _)) if *key == mark_key));
        let with_mark = given.map(|pair| pair.map(|(key, value)| (key, Some(value))));
        new.put_all(with_mark.chain([Ok((keys::mark(), Some(mark)))]))?;
        new.make_durable()?;
        // The flusher must not write into the old base once the new one counts.
        let _turn = self.shared.turn();
        if let Err(error) = new.make_current(root) {
            // The name may be in place already: take it back before the new generation goes.
            let back = old.make_current(root);
            new.doom(back.is_ok());
            return Err(Fault(format!("make the new state current: {error}")));
        }
        new.doom(false);
        old.doom(true);
        let mut control = self.shared.control();
        *self.shared.layers_mut() = Layers { active: Changed::new(), frozen: None, base: Arc::new(new) };
        control.active_bytes = 0;
        self.shared.room.notify_all();
        Ok(())
    }
}

/// Keeps the base still under a freeze.
struct Lease {
    shared: Arc<Shared>,
    base: Arc<Base>,
}

impl Lease {
    /// The lease, and a copy of what the layers hold at this moment. A flush that is under way may go on: all it
    /// writes is in the copy.
    fn take(shared: &Arc<Shared>) -> (Lease, Changed) {
        let mut control = shared.control();
        control.leases += 1;
        let layers = shared.layers();
        let mut over = layers.frozen.as_deref().cloned().unwrap_or_default();
        over.extend(layers.active.iter().map(|(key, value)| (key.clone(), value.clone())));
        (Lease { shared: Arc::clone(shared), base: Arc::clone(&layers.base) }, over)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.control().leases -= 1;
        self.shared.wake.notify_all();
    }
}

/// The copied layers over the still base, pair by pair.
struct FrozenPairs {
    over: Peekable<btree_map::IntoIter<Vec<u8>, Option<Bytes>>>,
    base: Peekable<Pairs<'static>>,
    /// Nothing comes after an error.
    broken: bool,
    _lease: Lease,
}

impl Iterator for FrozenPairs {
    type Item = Result<(Vec<u8>, Bytes), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.broken {
            let base_key = match self.base.peek() {
                Some(Ok((key, _))) => Some(key),
                Some(Err(_)) => {
                    self.broken = true;
                    return self.base.next();
                }
                None => None,
            };
            let takes_over = match (self.over.peek(), base_key) {
                (Some((over, _)), Some(base)) => over <= base,
                (Some(_), None) => true,
                (None, _) => false,
            };
            if !takes_over {
                let pair = self.base.next()?;
                // The mark travels beside the pairs.
                match pair {
                    Ok((key, _)) if key == keys::mark() => continue,
                    pair => return Some(pair),
                }
            }
            let (key, changed) = self.over.next()?;
            self.base.next_if(|pair| matches!(pair, Ok((base, _)) if *base == key));
            if let Some(value) = changed {
                return Some(Ok((key, value)));
            }
        }
        None
    }
}

#[cfg(test)]
mod kill_tests;
#[cfg(test)]
mod tests;
