//! Owns: one sled database on disk, called a generation, with its flush file beside it; and `CURRENT`, which says
//! which generation counts.
//!
//! ```text
//! LOCK  CURRENT  gen-7/sled/…  gen-7/flush.kv  gen-7/damaged
//! ```
//!
//! A generation whose sled reads what it did not write is condemned (`damaged`): nothing more is committed to it, and the
//! next open asks for a rebuild.
//! A whole new state is built in the next generation, and one rename of `CURRENT` makes it the state. Whatever
//! `CURRENT` does not name is left over from a kill and is removed at the next open.
//! Families that grow at their end lie in blocks (`blocks.rs`); whoever asks the base sees single keys.
//! Never: the layers over the base (`sled.rs`).

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ::sled::{Batch, Config, Db, IVec};
use bytes::Bytes;

use super::blocks::{self, Blocks};
use super::moment::Lease;
use super::{flush_file, undo};
use crate::machine::refusal::Fault;
use crate::storage::contained::contain;
use crate::storage::files;
use crate::storage::keys;
use crate::storage::kv::{Changed, Kv, Visit};

/// Sled reads pages through this cache; the hot part of the state lies in the layers above anyway.
const CACHE_BYTES: u64 = 16 << 20;

/// What sled is given at once. Small enough not to hold its writers up for long.
const BATCH_BYTES: usize = 1 << 20;

/// Sled's threads let go of the file a moment after the last handle is dropped.
const REOPEN_PATIENCE: Duration = Duration::from_secs(5);

const FORMAT: &str = "session-manager state 2";

/// Layouts of earlier builds. The state is a view: it is built anew from snapshot and log.
const FORMATS_BEFORE: [&str; 1] = ["session-manager state 1"];

/// Sled writes a node of up to 17 values whole, and one that is larger than a quarter of this goes to a file of its own.
const SEGMENT_BYTES: usize = 1 << 20;

/// The file that condemns a generation.
const DAMAGED: &str = "damaged";

/// Why a state directory did not open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenFault {
    /// Another process has it. Retry later.
    Busy(String),
    /// The content cannot be used: wipe it and rebuild it from snapshot and log.
    Damaged(String),
    /// A newer build wrote it. Use that build, or wipe and rebuild.
    Newer(String),
    /// The file system refuses (permissions, space). Nothing is wrong with the content.
    Disk(String),
}

impl fmt::Display for OpenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenFault::Busy(why) => write!(f, "state in use: {why}"),
            OpenFault::Damaged(why) => write!(f, "state damaged: {why}"),
            OpenFault::Newer(why) => write!(f, "state of a newer build: {why}"),
            OpenFault::Disk(why) => write!(f, "state not accessible: {why}"),
        }
    }
}

impl std::error::Error for OpenFault {}

impl From<io::Error> for OpenFault {
    fn from(error: io::Error) -> OpenFault {
        match error.kind() {
            io::ErrorKind::ResourceBusy => OpenFault::Busy(error.to_string()),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => OpenFault::Damaged(error.to_string()),
            _ => OpenFault::Disk(error.to_string()),
        }
    }
}

/// A key and its new value; `None` to delete it.
pub type Put = (Vec<u8>, Option<Bytes>);

/// One open generation.
pub struct Base {
    // Dropped first: files are removed after sled let go of them.
    db: Db,
    place: GenerationDir,
    generation: u64,
    /// The block that was read last, as sled has it and unpacked.
    last_unpacked: Mutex<Option<(Bytes, Bytes)>>,
}

struct GenerationDir {
    path: PathBuf,
    /// Sled found damage: what it holds is not to be relied on.
    condemned: AtomicBool,
    /// Superseded: the files go when the last reader is done.
    doomed: AtomicBool,
}

impl Base {
    /// Opens the generation that counts, or starts the first one. The directory is locked by the caller.
    pub fn open_current(root: &Path) -> Result<Base, OpenFault> {
        let current = read_current(root)?;
        remove_all_but(root, current)?;
        match current {
            Some(generation) => Base::open(root, generation),
            None => {
                let base = Base::open(root, 1)?;
                base.make_durable().map_err(|fault| OpenFault::Disk(fault.0))?;
                base.make_current(root)?;
                Ok(base)
            }
        }
    }

    /// An empty generation after this one, not yet current.
    pub fn successor(&self, root: &Path) -> Result<Base, OpenFault> {
        let generation = self.generation + 1;
        files::remove(&generation_dir(root, generation))?;
        Base::open(root, generation)
    }

    fn open(root: &Path, generation: u64) -> Result<Base, OpenFault> {
        let dir = generation_dir(root, generation);
        let sled_dir = dir.join("sled");
        fs::create_dir_all(&sled_dir)?;
        if let Some(why) = read_text(&dir.join(DAMAGED))? {
            return Err(OpenFault::Damaged(why));
        }
        remove_half_written_snapshots(&sled_dir)?;
        undo::remove_all(&dir)?;
        let db = open_sled(&sled_dir)?;
        let (doomed, condemned) = (AtomicBool::new(false), AtomicBool::new(false));
        let place = GenerationDir { path: dir, condemned, doomed };
        let base = Base { db, place, generation, last_unpacked: Mutex::default() };
        if let Some(puts) = flush_file::read(&base.flush_path())? {
            tracing::info!(keys = puts.len(), "completing a flush that was cut short");
            base.absorb(&puts).map_err(|fault| OpenFault::Damaged(fault.0))?;
        }
        Ok(base)
    }

    /// From here on this generation is the state.
    pub fn make_current(&self, root: &Path) -> io::Result<()> {
        files::sync_dir(root)?;
        files::put_file(&root.join("CURRENT"), print_current(self.generation).as_bytes())
    }

    /// Puts a layer into sled so that a kill at any point leaves either the old or the new state for the next open.
    /// The freezes in `leases` keep their moment.
    pub fn flush(&self, layer: &Changed, leases: &[Arc<Lease>]) -> Result<(), Fault> {
        for lease in leases {
            lease.keep(self, layer.keys().map(Vec::as_slice))?;
        }
        let groups = self.plan(layer)?;
        flush_file::write(&self.flush_path(), &groups)
            .map_err(|error| Fault(format!("write the flush file: {error}")))?;
        self.absorb(&groups)
    }

    /// What a layer makes of sled.
    pub fn plan(&self, layer: &Changed) -> Result<Vec<Vec<Put>>, Fault> {
        let mut changes = layer.iter().map(|(key, value)| Ok((key.clone(), value.clone()))).peekable();
        std::iter::from_fn(|| blocks::next_group(self, &mut changes).transpose()).collect()
    }

    fn absorb(&self, groups: &[Vec<Put>]) -> Result<(), Fault> {
        self.put_groups(groups.iter().cloned().map(Ok))?;
        self.make_durable()?;
        files::remove(&self.flush_path()).map_err(|error| Fault(format!("remove the flush file: {error}")))
    }

    /// Puts the sorted pairs of a whole new state into this empty generation.
    pub fn put_all(&self, pairs: impl Iterator<Item = Result<Put, Fault>>) -> Result<(), Fault> {
        let mut pairs = pairs.peekable();
        self.put_groups(std::iter::from_fn(|| blocks::next_fresh(&mut pairs).transpose()))
    }

    /// Puts groups in batches, none of them divided, the mark after all others.
    pub fn put_groups(&self, groups: impl Iterator<Item = Result<Vec<Put>, Fault>>) -> Result<(), Fault> {
        let mark_key = keys::mark();
        let (mut batch, mut bytes) = (Batch::default(), 0);
        let mut mark = Batch::default();
        for group in groups {
            for (key, value) in group? {
                bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
                let batch = if key == mark_key { &mut mark } else { &mut batch };
                match value {
                    Some(value) => batch.insert(key, &value[..]),
                    None => batch.remove(key),
                }
            }
            if bytes >= BATCH_BYTES {
                self.reliably(|db| db.apply_batch(std::mem::take(&mut batch)))?;
                bytes = 0;
            }
        }
        self.reliably(|db| db.apply_batch(batch))?;
        self.reliably(|db| db.apply_batch(mark))
    }

    /// Sled's own flush hands its bytes to the system; the sync of its file makes them last.
    pub fn make_durable(&self) -> Result<(), Fault> {
        self.reliably(|db| db.flush())?;
        let sled_dir = self.place.path.join("sled");
        let sync = || {
            OpenOptions::new().read(true).write(true).open(sled_dir.join("db"))?.sync_all()?;
            files::sync_dir(&sled_dir.join("blobs"))?;
            files::sync_dir(&sled_dir)?;
            files::sync_dir(&self.place.path)
        };
        sync().map_err(|error| Fault(format!("sync sled's file: {error}")))
    }

    /// The pairs behind `after`, about `bytes_max` of them, and the last key when there are more.
    pub fn piece_after(&self, after: Option<&[u8]>, bytes_max: usize) -> Result<(Changed, Option<Vec<u8>>), Fault> {
        let (mut piece, mut bytes, mut last) = (Changed::new(), 0, None);
        // No key lies between a key and the same with a zero byte behind it.
        let from = after.map_or_else(Vec::new, |after| [after, &[0]].concat());
        self.scan(&from, None, &mut |key, value| {
            bytes += key.len() + value.len();
            piece.insert(key.to_vec(), Some(value.clone()));
            if bytes < bytes_max {
                return ControlFlow::Continue(());
            }
            last = Some(key.to_vec());
            ControlFlow::Break(())
        })?;
        Ok((piece, last))
    }

    /// Asks sled. What it finds damaged, or gives up on in a panic, is condemned.
    fn reliably<R>(&self, work: impl FnOnce(&Db) -> ::sled::Result<R>) -> Result<R, Fault> {
        let why = match contain(|| work(&self.db)) {
            Some(Ok(result)) => return Ok(result),
            Some(Err(error @ (::sled::Error::Corruption { .. } | ::sled::Error::ReportableBug(_)))) => {
                error.to_string()
            }
            Some(Err(error)) => return Err(Fault(format!("sled: {error}"))),
            None => "it panicked".to_owned(),
        };
        let why = format!("sled in {} is damaged: {why}", self.place.path.display());
        if !self.place.condemned.swap(true, Ordering::AcqRel) {
            tracing::error!(why, "the state is damaged; restart this node, and it is rebuilt from snapshot and log");
            if let Err(error) = files::put_file(&self.place.path.join(DAMAGED), why.as_bytes()) {
                tracing::error!(%error, "the damage cannot be noted: remove the directory state/ before the restart");
            }
        }
        Err(Fault(why))
    }

    /// A block, unpacked. The next key that is asked for often lies in the same one.
    fn unpacked(&self, block: Bytes) -> Result<Bytes, Fault> {
        if let Ok(last) = self.last_unpacked.try_lock()
            && let Some((packed, unpacked)) = &*last
            && *packed == block
        {
            return Ok(unpacked.clone());
        }
        let unpacked = blocks::unpack(&block)?;
        if let Ok(mut last) = self.last_unpacked.try_lock() {
            *last = Some((block, unpacked.clone()));
        }
        Ok(unpacked)
    }

    /// Refuses once the generation is condemned.
    pub fn check(&self) -> Result<(), Fault> {
        match self.place.condemned.load(Ordering::Acquire) {
            true => Err(Fault("the state is damaged; restart this node, and it is rebuilt".to_owned())),
            false => Ok(()),
        }
    }

    /// Where the undo area of a freeze may lie.
    pub fn undo_path(&self, freeze: u64) -> PathBuf {
        self.place.path.join(format!("{}{freeze}", undo::PREFIX))
    }

    /// Whether the files go with the last handle.
    pub fn doom(&self, doomed: bool) {
        self.place.doomed.store(doomed, Ordering::Release);
    }

    fn flush_path(&self) -> PathBuf {
        self.place.path.join("flush.kv")
    }
}

impl Drop for GenerationDir {
    fn drop(&mut self) {
        if self.doomed.load(Ordering::Acquire)
            && let Err(error) = files::remove(&self.path)
        {
            // The next open removes what is left.
            tracing::debug!(%error, dir = %self.path.display(), "a superseded state was not removed yet");
        }
    }
}

impl Kv for Base {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let Some(run) = keys::run_of(key) else {
            return Ok(self.reliably(|db| db.get(key))?.map(bytes_of));
        };
        match blocks::home(self, run, key)? {
            Some((_, block)) => blocks::find(self.unpacked(block)?, run, key),
            None => Ok(None),
        }
    }

    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: Visit<'_>) -> Result<(), Fault> {
        if to.is_some_and(|to| to <= from) {
            return Ok(());
        }
        // The block that holds the first keys may begin before them.
        let home = keys::run_of(from).map(|run| blocks::home(self, run, from)).transpose()?.flatten();
        let begin = home.as_ref().map_or(from, |(start, _)| start);
        let mut range = match to {
            Some(to) => self.db.range(begin..to),
            None => self.db.range(begin..),
        };
        while let Some((key, value)) = self.reliably(|_| range.next().transpose())? {
            let Some(run) = keys::run_of(&key) else {
                match visit(&key, &bytes_of(value)) {
                    ControlFlow::Continue(()) => continue,
                    ControlFlow::Break(()) => return Ok(()),
                }
            };
            for (key, value) in blocks::read(run, &bytes_of(value))? {
                let wanted = key.as_slice() >= from && to.is_none_or(|to| key.as_slice() < to);
                if wanted && visit(&key, &value).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

impl Blocks for Base {
    fn at_or_before(&self, key: &[u8]) -> Result<Option<(Bytes, Bytes)>, Fault> {
        let found = self.reliably(|db| db.range(..=key).next_back().transpose())?;
        Ok(found.map(|(key, value)| (bytes_of(key), bytes_of(value))))
    }

    fn key_after(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let found = self.reliably(|db| db.get_gt(key))?;
        Ok(found.map(|(key, _)| bytes_of(key)))
    }
}

/// Sled's bytes, shared and not copied.
fn bytes_of(bytes: IVec) -> Bytes {
    Bytes::from_owner(bytes)
}

fn generation_dir(root: &Path, generation: u64) -> PathBuf {
    root.join(format!("gen-{generation}"))
}

fn print_current(generation: u64) -> String {
    let text = format!("{FORMAT}\n{generation}\n");
    let sum = crc32fast::hash(text.as_bytes());
    format!("{text}{sum:08x}\n")
}

/// The generation that counts; `None` before the first.
fn read_current(root: &Path) -> Result<Option<u64>, OpenFault> {
    let Some(text) = read_text(&root.join("CURRENT"))? else { return Ok(None) };
    let damaged = || OpenFault::Damaged(format!("{} is damaged", root.join("CURRENT").display()));
    let generation: u64 = text.lines().nth(1).and_then(|line| line.parse().ok()).ok_or_else(damaged)?;
    if text == print_current(generation) {
        return Ok(Some(generation));
    }
    // A later build may have another format, but it sums up its lines too.
    let (body, sum) = text.trim_end().rsplit_once('\n').ok_or_else(damaged)?;
    let is_whole = format!("{:08x}", crc32fast::hash(format!("{body}\n").as_bytes())) == sum;
    match text.lines().next() {
        Some(before) if is_whole && FORMATS_BEFORE.contains(&before) => {
            Err(OpenFault::Damaged(format!("CURRENT says {before:?}, an earlier layout than {FORMAT:?}")))
        }
        Some(other) if is_whole && other != FORMAT && other.starts_with("session-manager state ") => {
            Err(OpenFault::Newer(format!("CURRENT says {other:?}; this build reads {FORMAT:?}")))
        }
        Some(_) | None => Err(damaged()),
    }
}

/// A small file; `None` when it is not there.
fn read_text(path: &Path) -> Result<Option<String>, OpenFault> {
    match fs::read(path) {
        // What is no text is damaged, and is found to be by whoever reads it.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn remove_all_but(root: &Path, current: Option<u64>) -> io::Result<()> {
    let keep = current.map(|generation| generation_dir(root, generation));
    for found in fs::read_dir(root)? {
        let path = found?.path();
        let is_generation = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("gen-"));
        if is_generation && Some(&path) != keep.as_ref() {
            files::remove(&path)?;
        }
    }
    files::remove(&root.join("CURRENT.tmp"))
}

/// A kill while sled opens can leave `snap.*.generating`, after which sled refuses to open.
fn remove_half_written_snapshots(sled_dir: &Path) -> io::Result<()> {
    for found in fs::read_dir(sled_dir)? {
        let path = found?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            files::remove(&path)?;
        }
    }
    Ok(())
}

fn open_sled(dir: &Path) -> Result<Db, OpenFault> {
    let give_up = Instant::now() + REOPEN_PATIENCE;
    loop {
        let config =
            Config::new().path(dir).cache_capacity(CACHE_BYTES).flush_every_ms(None).segment_size(SEGMENT_BYTES);
        // Sled asserts where it reads what it cannot explain; for us that is damage like any other.
        let opened = contain(|| config.open());
        let error = match opened {
            Some(Ok(db)) => return Ok(db),
            Some(Err(::sled::Error::Io(error))) => error,
            Some(Err(error)) => return Err(OpenFault::Damaged(format!("sled: {error}"))),
            None => return Err(OpenFault::Damaged("sled panicked while it opened".to_owned())),
        };
        let busy = error.to_string().contains("could not acquire lock");
        if busy && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        return Err(match error.kind() {
            _ if busy => OpenFault::Busy(error.to_string()),
            io::ErrorKind::PermissionDenied | io::ErrorKind::StorageFull | io::ErrorKind::ReadOnlyFilesystem => {
                OpenFault::Disk(error.to_string())
            }
            _ => OpenFault::Damaged(format!("sled: {error}")),
        });
    }
}
