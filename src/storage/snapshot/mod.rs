//! Snapshot files: the state at one point in time as a file.
//!
//! Owns: the directory of snapshots (this file), the layout (`format.rs`), writing (`write.rs`) and reading
//! (`read.rs`). A snapshot is written completely, synced, and then renamed to its final name. The newest one is used.
//! Never: what the pairs or the checkpoint mean.

mod error;
mod format;
mod read;
mod write;

#[cfg(test)]
mod snapshot_test;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tracing::{info, warn};

use super::Pairs;
use super::disk::Disk;
use crate::machine::refusal::Fault;
use error::disk_error;
pub use error::{Damage, SnapshotError};
pub use read::{Pair, PairReader};

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
}

/// The snapshots of one Raft group in one directory.
pub struct Snapshots {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    newest: Mutex<Option<Sealed>>,
    /// Number of the next draft file of this process.
    drafts: AtomicU64,
    /// Held while a snapshot is written.
    writing: Mutex<()>,
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
        Ok(Snapshots {
            disk,
            dir: dir.to_owned(),
            newest: Mutex::new(newest),
            drafts: AtomicU64::new(0),
            writing: Mutex::new(()),
            damaged: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    pub fn newest(&self) -> Option<Sealed> {
        self.lock().clone()
    }

    /// Writes a snapshot. The file is complete and durable, but it is not used before `publish`.
    pub fn write(&self, index: u64, checkpoint: Bytes, pairs: Pairs<'_>) -> Result<Sealed, SnapshotError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.draft();
        let written = write::write(&*self.disk, &path, index, checkpoint, pairs, || self.check_open());
        if written.is_err() {
            // If this fails too, the next start removes the file.
            let _ = self.disk.remove(&path);
        }
        written
    }

    /// A name for a file that is written or received now.
    pub fn draft(&self) -> PathBuf {
        self.dir.join(format!("{}.new", self.drafts.fetch_add(1, Ordering::Relaxed)))
    }

    /// Checks every byte of a file that was received from another node.
    pub fn verify(&self, path: &Path, index: u64) -> Result<Sealed, SnapshotError> {
        let sealed = format::inspect(&*self.disk, path, index)?;
        for pair in self.pairs(&sealed)? {
            pair.map_err(SnapshotError::State)?;
        }
        Ok(sealed)
    }

    /// Makes a complete file the newest snapshot, durably, and removes the previous one. A snapshot that is not newer
    /// is removed instead: a slow build must not replace a snapshot that was installed in the meantime.
    pub fn publish(&self, sealed: Sealed) -> Result<Sealed, SnapshotError> {
        let mut newest = self.lock();
        self.check_open()?;
        let damaged = self.damaged.load(Ordering::SeqCst);
        if let Some(present) = newest.as_ref().filter(|present| present.index >= sealed.index && !damaged) {
            if present.path != sealed.path {
                self.remove(&sealed.path);
            }
            return Ok(present.clone());
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
        drop(self.writing.lock().unwrap_or_else(PoisonError::into_inner));
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

    /// The pairs as a stream. It ends with an error unless every byte of the file is as it was written.
    pub fn pairs(&self, sealed: &Sealed) -> Result<Pairs<'static>, SnapshotError> {
        Ok(Box::new(PairReader::open(&*self.disk, sealed)?))
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
