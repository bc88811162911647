//! Snapshot files: the state at one point in time as a file.
//!
//! Owns: the directory of snapshots (this file), the layout (`format.rs`), writing (`write.rs`), reading (`read.rs`),
//! blocks of packed pairs (`packed.rs`), copies of body files (`bodies.rs`), and the stream that other nodes get
//! (`whole.rs`). A snapshot is written completely, synced, and then renamed to its final name. The newest one is used.
//! Never: what the pairs or the checkpoint mean.

mod bodies;
mod error;
mod format;
mod packed;
mod read;
mod whole;
mod write;

#[cfg(test)]
mod apart_test;

#[cfg(test)]
mod snapshot_test;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tracing::{info, warn};

use super::disk::Disk;
use super::sled::FrozenPairs;
use super::{Frozen, Pairs};
use crate::machine::refusal::Fault;
use bodies::{Apart, Copies};
use error::disk_error;
pub use error::{Damage, SnapshotError};
pub use read::{Pair, PairReader};
use whole::WholeReader;
use write::Target;

/// A complete snapshot file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    pub path: PathBuf,
    /// The index of the last log entry in it.
    pub index: u64,
    pub checkpoint: Bytes,
    /// Length of the file.
    pub bytes: u64,
    pub checksum: u128,
    /// The bodies, if they are in files of their own.
    apart: Option<Arc<Apart>>,
}

impl Sealed {
    /// The length of the snapshot with its bodies: about the size of the state.
    pub fn whole_bytes(&self) -> u64 {
        self.apart.as_ref().map_or(self.bytes, |apart| apart.whole_bytes)
    }

    /// The snapshot as a stream of `whole_bytes`, for another node. It can be read to its end although the snapshot is
    /// replaced meanwhile.
    pub fn stream(&self, disk: &dyn Disk) -> Result<Box<dyn Read + Send>, SnapshotError> {
        match &self.apart {
            Some(apart) => {
                let pairs = PairReader::open(disk, self)?.whole();
                Ok(Box::new(WholeReader::new(self, apart.clone(), pairs)))
            }
            None => {
                let failed = disk_error(format!("reading {}", self.path.display()));
                Ok(Box::new(disk.read(&self.path).map_err(failed)?))
            }
        }
    }

    /// Length and checksum of that stream. The first time it reads all of it, if the bodies are in files.
    pub fn announcement(&self, disk: &dyn Disk) -> Result<(u64, u128), SnapshotError> {
        let Some(apart) = &self.apart else { return Ok((self.bytes, self.checksum)) };
        if let Some(measured) = apart.measured.get() {
            return Ok(*measured);
        }
        let failed = disk_error(format!("reading {}", self.path.display()));
        let measured = whole::measure(self.stream(disk)?).map_err(failed)?;
        Ok(*apart.measured.get_or_init(|| measured))
    }
}

/// Called with the bytes that are written next. An error ends the snapshot.
pub type Watch<'a> = &'a mut dyn FnMut(usize) -> Result<(), SnapshotError>;

/// The snapshots of one Raft group in one directory.
pub struct Snapshots {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    newest: Mutex<Option<Sealed>>,
    /// Number of the next draft file of this process.
    drafts: AtomicU64,
    /// Held while a snapshot is written.
    writing: Mutex<Option<Copies>>,
    /// The bodies of snapshots that somebody still has: the newest one, one that is not published yet, one that is sent.
    known: Mutex<Vec<Arc<Apart>>>,
    /// The newest snapshot is damaged. The next one replaces it, whatever its index.
    damaged: AtomicBool,
    closed: AtomicBool,
}

impl Snapshots {
    /// Finds the newest complete snapshot in a directory. Removes drafts that were never published.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path) -> Result<Snapshots, SnapshotError> {
        disk.create_dir(dir).map_err(disk_error(format_args!("creating {}", dir.display())))?;
        let mut found = Vec::new();
        for name in disk.list(dir).map_err(disk_error(format_args!("listing {}", dir.display())))? {
            let path = dir.join(&name);
            if name.ends_with(".new") {
                disk.remove(&path).map_err(disk_error(format_args!("removing {}", path.display())))?;
            } else if let Some(index) = format::index_of(&name) {
                found.push((index, path));
            }
        }
        found.sort();
        let mut newest = None;
        while let Some((index, path)) = found.pop() {
            match format::inspect(&*disk, &path, index) {
                Ok(sealed) => {
                    newest = Some(sealed);
                    break;
                }
                Err(error) => warn!(%error, "ignoring a snapshot"),
            }
        }
        // After a crash the previous snapshot may still be there beside the newest one.
        for (_, path) in found {
            disk.remove(&path).map_err(disk_error(format_args!("removing {}", path.display())))?;
        }
        let bodies = newest.as_ref().and_then(|newest| newest.apart.clone());
        let snapshots = Snapshots {
            disk,
            dir: dir.to_owned(),
            newest: Mutex::new(newest),
            drafts: AtomicU64::new(0),
            writing: Mutex::default(),
            known: Mutex::new(bodies.into_iter().collect()),
            damaged: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        };
        snapshots.remove_unused_bodies();
        Ok(snapshots)
    }

    pub fn newest(&self) -> Option<Sealed> {
        self.lock().clone()
    }

    /// Writes a snapshot. The file is complete and durable, but it is not used before `publish`.
    pub fn write(&self, index: u64, checkpoint: Bytes, pairs: Pairs<'_>) -> Result<Sealed, SnapshotError> {
        self.write_whole(index, checkpoint, pairs, &mut |_| self.check_open())
    }

    /// Writes a snapshot of a state, in the cheapest format. `watch` is called with the bytes to come, and may end it.
    pub fn build(
        &self,
        index: u64,
        checkpoint: Bytes,
        frozen: Frozen,
        watch: &mut dyn FnMut(usize) -> Result<(), Fault>,
    ) -> Result<Sealed, SnapshotError> {
        let watch = &mut |bytes| {
            self.check_open()?;
            watch(bytes).map_err(SnapshotError::State)
        };
        let Frozen { pairs, apart, .. } = frozen;
        match apart {
            Some(apart) => {
                drop(pairs);
                self.write_apart(index, checkpoint, apart, watch)
            }
            None => self.write_whole(index, checkpoint, pairs, watch),
        }
    }

    /// Writes a snapshot with its bodies inside.
    fn write_whole(
        &self,
        index: u64,
        checkpoint: Bytes,
        pairs: Pairs<'_>,
        watch: Watch<'_>,
    ) -> Result<Sealed, SnapshotError> {
        let _writing = self.writing();
        self.drafted(|path| write::write(Target { disk: &*self.disk, path, index, checkpoint }, pairs, watch))
    }

    /// Writes a snapshot whose bodies are copies of files of the state.
    fn write_apart(
        &self,
        index: u64,
        checkpoint: Bytes,
        pairs: FrozenPairs,
        watch: Watch<'_>,
    ) -> Result<Sealed, SnapshotError> {
        let mut writing = self.writing();
        // Of other files, or damaged: begin anew.
        let usable = writing.take().filter(|copies| copies.is_of(pairs.bodies()) && !self.is_damaged());
        let copies = match usable {
            Some(copies) => writing.insert(copies),
            None => writing.insert(Copies::begin(&self.dir, pairs.bodies().set())?),
        };
        let written = self.drafted(|path| {
            write::write_apart(Target { disk: &*self.disk, path, index, checkpoint }, pairs, copies, watch)
        });
        match &written {
            Ok(sealed) => {
                self.known.lock().unwrap_or_else(PoisonError::into_inner).extend(sealed.apart.clone());
            }
            Err(error) => {
                if matches!(error, SnapshotError::Disk { .. }) {
                    // After a failed sync nobody knows what the copies hold.
                    *writing = None;
                }
                drop(writing);
                self.remove_unused_bodies();
            }
        }
        written
    }

    /// Removes the draft if writing it fails.
    fn drafted(&self, write: impl FnOnce(&Path) -> Result<Sealed, SnapshotError>) -> Result<Sealed, SnapshotError> {
        let path = self.draft();
        let written = write(&path);
        if written.is_err() {
            // If this fails too, the next start removes the file.
            let _ = self.disk.remove(&path);
        }
        written
    }

    /// Removes the body files of snapshots that nobody has any more, unless one is written now: it may use them again.
    fn remove_unused_bodies(&self) {
        let Ok(mut copies) = self.writing.try_lock() else { return };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|apart| Arc::strong_count(apart) > 1);
        // The directory of a simulated node is not in the real file system, and has no such files.
        if !self.dir.exists() {
            return;
        }
        if let Err(error) = bodies::remove_all_but(&self.dir, &known, copies.as_mut()) {
            warn!(%error, dir = %self.dir.display(), "body files of old snapshots cannot be removed");
        }
    }

    fn writing(&self) -> MutexGuard<'_, Option<Copies>> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name for a file that is written or received now.
    pub fn draft(&self) -> PathBuf {
        self.dir.join(format!("{}.new", self.drafts.fetch_add(1, Ordering::Relaxed)))
    }

    /// Checks every byte of a file that was received from another node.
    pub fn verify(&self, path: &Path, index: u64) -> Result<Sealed, SnapshotError> {
        let sealed = format::inspect(&*self.disk, path, index)?;
        for pair in PairReader::open(&*self.disk, &sealed)? {
            pair.map_err(SnapshotError::State)?;
        }
        sealed.apart.as_ref().map_or(Ok(()), |apart| apart.check())?;
        Ok(sealed)
    }

    /// Makes a complete file the newest snapshot, durably, and removes the previous one. A snapshot that is not newer
    /// is removed instead: a slow build must not replace a snapshot that was installed in the meantime.
    pub fn publish(&self, sealed: Sealed) -> Result<Sealed, SnapshotError> {
        let mut newest = self.lock();
        self.check_open()?;
        let damaged = self.damaged.load(Ordering::SeqCst);
        if let Some(present) = newest.as_ref().filter(|present| present.index >= sealed.index && !damaged) {
            let present = present.clone();
            if present.path != sealed.path {
                self.remove(&sealed.path);
            }
            drop((newest, sealed));
            self.remove_unused_bodies();
            return Ok(present);
        }
        let path = self.dir.join(format::file_name(sealed.index));
        let doing = || format!("publishing {}", path.display());
        self.disk.rename(&sealed.path, &path).map_err(disk_error(doing()))?;
        self.disk.sync_dir(&self.dir).map_err(disk_error(doing()))?;
        let published = Sealed { path, ..sealed };
        info!(file = %published.path.display(), bytes = published.bytes, "a new snapshot");
        if let Some(old) = newest.replace(published.clone()).filter(|old| old.path != published.path) {
            self.remove(&old.path);
        }
        self.damaged.store(false, Ordering::SeqCst);
        drop(newest);
        self.remove_unused_bodies();
        Ok(published)
    }

    /// Checks every byte of the newest snapshot, because it may be unused for a long time. If it is damaged,
    /// `is_damaged` is true until another snapshot replaces it.
    pub fn scrub(&self) {
        let Some(newest) = self.newest() else { return };
        let Err(error) = self.verify(&newest.path, newest.index) else { return };
        // It may have been replaced and removed in the meantime.
        if self.lock().as_ref() == Some(&newest) && self.check_open().is_ok() {
            warn!(%error, "the snapshot is damaged; another one is built from the state");
            self.damaged.store(true, Ordering::SeqCst);
        }
    }

    pub fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::SeqCst)
    }

    /// Aborts a write in progress and waits until it has ended. No file changes afterwards.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        drop(self.writing());
        drop(self.lock());
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn check_open(&self) -> Result<(), SnapshotError> {
        match self.is_closed() {
            true => Err(SnapshotError::State(Fault("the node is shutting down".to_owned()))),
            false => Ok(()),
        }
    }

    /// Renames a damaged snapshot: the operator can examine it, but it is not used any more.
    pub fn discard(&self, sealed: &Sealed) {
        let aside = sealed.path.with_extension("damaged");
        if let Err(error) = self.disk.rename(&sealed.path, &aside) {
            warn!(%error, file = %sealed.path.display(), "a damaged snapshot cannot be renamed");
        }
        self.lock().take_if(|newest| newest.path == sealed.path);
    }

    /// The pairs with their bodies. They end with an error unless every byte is as it was written.
    pub fn pairs(&self, sealed: &Sealed) -> Result<Pairs<'static>, SnapshotError> {
        Ok(PairReader::open(&*self.disk, sealed)?.whole())
    }

    fn remove(&self, path: &Path) {
        if let Err(error) = self.disk.remove(path) {
            warn!(%error, file = %path.display(), "an old snapshot cannot be removed");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sealed>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
