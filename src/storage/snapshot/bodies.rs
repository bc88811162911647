//! Owns: the bodies of a snapshot: copies of the body files of the state, in a directory beside the snapshots.
//!
//! A body file only grows, and a full one never changes. So the next snapshot of the same state adds to the copies what is
//! new, and every body is copied once, however many snapshots are built. The copies are the snapshot's own: a damaged
//! file of the state can be rebuilt from them, and a damaged copy from the state. Where the file system shares blocks
//! between files, a copy takes no space.
//!
//! ```text
//! bodies-<name>/bodies-<number>
//! ```
//!
//! What is known of the copies is kept in memory: after a start the first snapshot copies everything into a new directory.
//! Files that no snapshot needs are removed. Only the real file system: the state of a simulated node is in memory.
//! Never: which bodies are alive.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::Watch;
use super::error::{Damage, SnapshotError, disk_error};
use super::write::SYNC_BYTES;
use crate::storage::files;
use crate::storage::sled::FrozenPairs;
use crate::storage::sled::bodies::{Bodies, BodyFault};

const PREFIX: &str = "bodies-";

/// The bodies of one snapshot. While somebody has it, its files stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Apart {
    pub(super) name: u128,
    dir: PathBuf,
    /// The files, and how much of each belongs to the snapshot.
    pub(super) files: BTreeMap<u32, u64>,
    /// The length of the snapshot with its bodies inside.
    pub(super) whole_bytes: u64,
    /// Length and checksum of the snapshot with its bodies inside, once somebody asked for them.
    pub(super) measured: OnceLock<(u64, u128)>,
}

impl Apart {
    pub(super) fn new(snapshots: &Path, name: u128, files: BTreeMap<u32, u64>, whole_bytes: u64) -> Apart {
        Apart { name, dir: dir(snapshots, name), files, whole_bytes, measured: OnceLock::new() }
    }

    pub(super) fn bodies(&self) -> Bodies {
        Bodies::closed(&self.dir)
    }

    /// Reads every body file of the snapshot.
    pub(super) fn check(&self) -> Result<(), SnapshotError> {
        let bodies = self.bodies();
        for (file, end) in &self.files {
            bodies.check(*file, 0, *end).map_err(|fault| error(&bodies.path(*file), fault))?;
        }
        Ok(())
    }
}

/// A body of a snapshot that cannot be read.
pub(super) fn error(file: &Path, fault: BodyFault) -> SnapshotError {
    match fault {
        BodyFault::Damaged(why) => SnapshotError::Damaged { file: file.to_owned(), why: Damage::Body(why) },
        BodyFault::Disk(error) => disk_error(format_args!("reading {}", file.display()))(error),
    }
}

/// The copies that this process writes.
pub(super) struct Copies {
    pub name: u128,
    dir: PathBuf,
    /// The set of body files that they are copies of.
    set: u128,
    /// How much of each is copied and durable.
    ends: BTreeMap<u32, u64>,
}

impl Copies {
    /// Starts a new directory.
    pub fn begin(snapshots: &Path, set: u128) -> Result<Copies, SnapshotError> {
        let name = uuid::Uuid::new_v4().as_u128();
        let dir = dir(snapshots, name);
        files::create_dir(&dir).map_err(disk_error(format_args!("creating {}", dir.display())))?;
        Ok(Copies { name, dir, set, ends: BTreeMap::new() })
    }

    pub fn is_of(&self, bodies: &Bodies) -> bool {
        self.set == bodies.set()
    }

    /// Copies what a file has grown by, if it is intact: the log is purged behind a snapshot, and then its copy is the
    /// only other one. Returns how long the file is.
    pub fn bring_up_to_date(&mut self, pairs: &FrozenPairs, file: u32, watch: Watch<'_>) -> Result<u64, SnapshotError> {
        let bodies = pairs.bodies();
        let path = self.dir.join(format!("{PREFIX}{file}"));
        let failed = |error| disk_error(format!("writing {}", path.display()))(error);
        let end = bodies.end(file).map_err(failed)?;
        let mut at = self.ends.get(&file).copied().unwrap_or(0);
        if at >= end {
            return Ok(at);
        }
        pairs.check_bodies(file, at as u32, end).map_err(SnapshotError::State)?;
        let mut source = File::open(bodies.path(file)).map_err(failed)?;
        let mut copy = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        source.seek(SeekFrom::Start(at)).and_then(|_| copy.seek(SeekFrom::Start(at))).map_err(failed)?;
        while at < end {
            let step = SYNC_BYTES.min(end - at);
            watch(step as usize)?;
            let copied = io::copy(&mut (&mut source).take(step), &mut copy).map_err(failed)?;
            if copied < step {
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
            copy.sync_data().map_err(failed)?;
            at += step;
        }
        files::sync_dir(&self.dir).map_err(failed)?;
        self.ends.insert(file, end);
        Ok(end)
    }
}

/// Removes the files that none of these snapshots needs.
pub(super) fn remove_all_but(snapshots: &Path, needed: &[Arc<Apart>], copies: Option<&mut Copies>) -> io::Result<()> {
    let is_needed =
        |name: u128, file: u32| needed.iter().any(|apart| apart.name == name && apart.files.contains_key(&file));
    let own = copies.as_ref().map(|copies| copies.name);
    if let Some(copies) = copies {
        let name = copies.name;
        copies.ends.retain(|file, _| is_needed(name, *file));
    }
    for found in fs::read_dir(snapshots)? {
        let path = found?.path();
        let Some(name) = number_in(&path, |digits| u128::from_str_radix(digits, 16).ok()) else { continue };
        let mut empty = true;
        for found in fs::read_dir(&path)? {
            let path = found?.path();
            match number_in(&path, |digits| digits.parse().ok()) {
                Some(file) if is_needed(name, file) => empty = false,
                Some(_) | None => files::remove(&path)?,
            }
        }
        if empty && own != Some(name) {
            files::remove(&path)?;
        }
    }
    Ok(())
}

fn number_in<N>(path: &Path, parse: impl FnOnce(&str) -> Option<N>) -> Option<N> {
    path.file_name()?.to_str()?.strip_prefix(PREFIX).and_then(parse)
}

fn dir(snapshots: &Path, name: u128) -> PathBuf {
    snapshots.join(format!("{PREFIX}{name:032x}"))
}
