//! Owns: `SledStore`, the state on disk: sled as a base that moves in steps, under layers in memory that move with
//! every commit.
//!
//! ```text
//! commit → active ──(every 2 s or 8 MiB)──→ sealed ──→ flush.kv ──→ sled
//! read   → active, else sealed, else sled
//! ```
//!
//! A value that changes a hundred times a second reaches sled every other second. What the layers hold is lost with the
//! process; the mark in sled then is that of the last whole layer, and the log brings the rest back.
//! Never: the truth. `OpenFault::Damaged` means: wipe, and rebuild from snapshot and log.

mod base;
mod blocks;
mod flush_file;
mod flusher;
mod moment;
mod recent;
mod undo;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::{Handle, RuntimeFlavor};

use base::Base;
pub use base::OpenFault;
use moment::{Lease, Moment};
use recent::Recent;

use super::files::{self, DirLock};
use super::kv::{Changed, Kv, Layer};
use super::view::{Records, write};
use super::{Frozen, Pairs, Store, keys};
use crate::machine::refusal::Fault;
use crate::machine::view::{Change, View};

/// What a store may hold in memory beside sled's cache.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// An active layer of this size does not wait for the clock.
    pub flush_bytes: usize,
    /// The most that commits may be ahead of sled; beyond it they wait for the flusher.
    pub ahead_bytes: usize,
    /// The most a freeze keeps of values that changed under it; beyond it they go to a file.
    pub undo_bytes: usize,
    /// How much a freeze reads at once.
    pub piece_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { flush_bytes: 8 << 20, ahead_bytes: 24 << 20, undo_bytes: 8 << 20, piece_bytes: 256 << 10 }
    }
}

/// Parsed entries of transcripts that are read.
const RECENT_BYTES: usize = 24 << 20;

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
    bounds: Bounds,
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
    sealed_bytes: usize,
    /// Why the last flush failed; commits go on until they are too far ahead.
    failing: Option<String>,
    /// Freezes taken so far: each has a name for its undo area.
    freezes: u64,
}

impl Control {
    fn ahead_bytes(&self) -> usize {
        self.active_bytes + self.sealed_bytes
    }
}

struct Layers {
    active: Changed,
    /// Places in lists that came to be in the active layer: nothing below knows them, so nothing is left to say of one
    /// that goes again. A busy session moves in its lists with every append, and only its last place need reach the base.
    fresh: HashSet<Vec<u8>>,
    /// Layers that change no more, oldest first, on their way to the base.
    sealed: VecDeque<Sealed>,
    /// The layer that reached the base last, kept for readers: the next entry of a session reads its last one.
    written: Option<Arc<Changed>>,
    base: Arc<Base>,
    /// Freezes of this base that are being read.
    leases: Vec<Weak<Lease>>,
    recent: Recent,
}

struct Sealed {
    changed: Arc<Changed>,
    bytes: usize,
}

impl Layers {
    fn over(base: Base) -> Layers {
        Layers {
            active: Changed::new(),
            fresh: HashSet::new(),
            sealed: VecDeque::new(),
            written: None,
            base: Arc::new(base),
            leases: Vec::new(),
            recent: Recent::new(RECENT_BYTES),
        }
    }

    /// The state as of now, newest layer first.
    fn read<R>(&self, read: impl FnOnce(&dyn Kv) -> R) -> R {
        let mut read = Some(read);
        let mut result = None;
        let sealed = self.sealed.iter().map(|sealed| &*sealed.changed);
        let older: Vec<&Changed> = self.written.as_deref().into_iter().chain(sealed).collect();
        through(&older, &*self.base, &mut |below| {
            result = read.take().map(|read| read(&Layer { over: &self.active, base: below }));
        });
        result.expect("through calls its closure exactly once")
    }

    /// The active layer changes no more; an empty one takes its place.
    fn seal(&mut self, control: &mut Control) {
        if self.active.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut control.active_bytes);
        self.fresh.clear();
        control.sealed_bytes += bytes;
        self.sealed.push_back(Sealed { changed: Arc::new(std::mem::take(&mut self.active)), bytes });
    }

    /// Puts changed keys on top; answers by how many bytes the active layer grew.
    fn put(&mut self, changed: Changed) -> isize {
        let mut grown = 0;
        for (key, value) in changed {
            if keys::is_entry(&key) {
                self.recent.forget(&key);
            }
            let length = value.as_ref().map_or(0, Bytes::len) as isize;
            let key_cost = (key.len() + KEY_OVERHEAD_BYTES) as isize;
            if value.is_none() && self.fresh.remove(&key) {
                let gone = self.active.remove(&key).flatten();
                grown -= key_cost + gone.map_or(0, |gone| gone.len()) as isize;
                continue;
            }
            match self.active.entry(key) {
                Entry::Occupied(mut present) => {
                    let old = present.insert(value);
                    grown += length - old.map_or(0, |old| old.len()) as isize;
                }
                Entry::Vacant(absent) => {
                    // A place in a list is put only where the state has none: unless a layer on its way says otherwise,
                    // the base cannot hold it either.
                    let known = |sealed: &Sealed| sealed.changed.contains_key(absent.key());
                    if value.is_some() && keys::is_list(absent.key()) && !self.sealed.iter().any(known) {
                        self.fresh.insert(absent.key().clone());
                    }
                    absent.insert(value);
                    grown += length + key_cost;
                }
            }
        }
        grown
    }

    /// Keeps entries parsed as they are written: the next append to a session reads the last entry, and so do its readers.
    fn remember(&mut self, changes: &[Change]) {
        let mut put = BTreeMap::new();
        for change in changes {
            match change {
                Change::PutEntry(session_id, entry) => {
                    put.insert((session_id, &entry.id), entry);
                }
                Change::DeleteEntries(session_id) => put.retain(|(of, _), _| *of != session_id),
                Change::PutMeta(_)
                | Change::DeleteMeta(_)
                | Change::SetLeaf(..)
                | Change::DeleteLeaf(_)
                | Change::SetSeq(..)
                | Change::DeleteSeq(_)
                | Change::SetClock(_)
                | Change::Remember(..)
                | Change::Forget(_)
                | Change::Record { .. }
                | Change::TrimFeed { .. }
                | Change::SetCursor(..) => {}
            }
        }
        for ((session_id, entry_id), entry) in put {
            self.recent.keep(keys::entry(session_id, entry_id), entry);
        }
    }
}

/// Calls `read` once with the layers over the base, oldest layer first.
fn through(layers: &[&Changed], base: &dyn Kv, read: &mut dyn FnMut(&dyn Kv)) {
    match layers.split_last() {
        None => read(base),
        Some((newest, older)) => through(older, base, &mut |below| read(&Layer { over: newest, base: below })),
    }
}

/// Waits without keeping a runtime's worker from its other tasks.
fn wait_aside<R>(wait: impl FnOnce() -> R) -> R {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        Ok(_) | Err(_) => wait(),
    }
}

impl SledStore {
    /// Opens the state in `dir`, or starts an empty one. A flush that a kill cut short is completed first.
    pub fn open(dir: &Path) -> Result<SledStore, OpenFault> {
        SledStore::open_within(dir, Bounds::default())
    }

    pub fn open_within(dir: &Path, bounds: Bounds) -> Result<SledStore, OpenFault> {
        std::fs::create_dir_all(dir)?;
        let lock = DirLock::acquire(dir)?;
        let base = Base::open_current(dir)?;
        // The first reads tell whether the content makes sense at all.
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
        let max = self.bounds.ahead_bytes;
        let full = |control: &mut Control| control.ahead_bytes() > max && !control.closing && control.failing.is_none();
        let mut control = self.control();
        if full(&mut control) {
            drop(control);
            let wait = || self.room.wait_timeout_while(self.control(), COMMIT_PATIENCE, full);
            let (waited, end) = wait_aside(wait).unwrap_or_else(PoisonError::into_inner);
            if end.timed_out() {
                return Err(Fault(format!("the state was not written down within {COMMIT_PATIENCE:?}")));
            }
            control = waited;
        }
        if control.closing {
            return Err(Fault("the state is closed".to_owned()));
        }
        match &control.failing {
            Some(why) if control.ahead_bytes() > max => Err(Fault(format!("the state cannot be written down: {why}"))),
            Some(_) | None => Ok(()),
        }
    }
}

impl Store for SledStore {
    fn look(&self, look: &mut dyn FnMut(&dyn View)) {
        let layers = self.shared.layers();
        layers.read(|kv| look(&Records::with_parsed(kv, &layers.recent)));
    }

    fn commit(&self, changes: &[Change], mark: Bytes) -> Result<(), Fault> {
        let _writer = self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.layers().base.check()?;
        self.shared.await_room()?;
        // Only this thread writes, so what is read here still holds when it is put.
        let mut changed = self.shared.layers().read(|kv| write(kv, changes))?;
        changed.insert(keys::mark(), Some(mark));
        // Under both locks, so that the flusher never sees the keys without their weight.
        let mut control = self.shared.control();
        let mut layers = self.shared.layers_mut();
        let grown = layers.put(changed);
        layers.remember(changes);
        drop(layers);
        control.active_bytes = control.active_bytes.saturating_add_signed(grown);
        if control.active_bytes >= self.shared.bounds.flush_bytes {
            self.shared.wake.notify_all();
        }
        Ok(())
    }

    fn mark(&self) -> Result<Option<Bytes>, Fault> {
        self.shared.layers().read(|kv| kv.get(&keys::mark()))
    }

    fn freeze(&self) -> Result<Frozen, Fault> {
        let Bounds { undo_bytes, piece_bytes, .. } = self.shared.bounds;
        let mut control = self.shared.control();
        let mut layers = self.shared.layers_mut();
        let mark = layers.read(|kv| kv.get(&keys::mark()))?;
        // The layers of this moment are shared, not copied.
        layers.seal(&mut control);
        control.freezes += 1;
        let held = layers.sealed.iter().map(|sealed| Arc::clone(&sealed.changed)).collect();
        let base = Arc::clone(&layers.base);
        let lease = Arc::new(Lease::new(held, base.undo_path(control.freezes), undo_bytes));
        layers.leases.retain(|lease| lease.strong_count() > 0);
        layers.leases.push(Arc::downgrade(&lease));
        Ok(Frozen { mark, pairs: Box::new(Moment::new(lease, base, piece_bytes)) })
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
        *self.shared.layers_mut() = Layers::over(new);
        (control.active_bytes, control.sealed_bytes) = (0, 0);
        self.shared.room.notify_all();
        Ok(())
    }
}

#[cfg(test)]
mod kill_tests;
#[cfg(test)]
mod tests;
