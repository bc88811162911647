//! Owns: one sled database on disk, called a generation, with its flush file; and `CURRENT`, which names the generation
//! in use.
//!
//! ```text
//! LOCK  CURRENT  gen-7/sled/…  gen-7/bodies-1  gen-7/flush.kv  gen-7/damaged
//! ```
//!
//! If sled or a body file is corrupt, the file `damaged` marks its generation: commits fail, and the next open asks for a
//! rebuild. A new state is built in the next generation, and one rename of `CURRENT` switches to it. Generations that
//! `CURRENT` does not name are left over from a kill; the next open removes them.
//! Families that grow at their end are packed into blocks (`blocks.rs`), and the values of entries stand in body files
//! (`bodies.rs`). Readers of the base see single keys and whole values.
//! Never: the layers over the base (`layers.rs`).

use std::collections::BTreeMap;
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
use super::bodies::{self, BOOK_KEY, Bodies, BodyFault, Place};
use super::freeze::Freeze;
use super::panic_guard::catch_panic;
use super::{flush_file, undo};
use crate::machine::refusal::Fault;
use crate::storage::files;
use crate::storage::state::kv::{Changed, Kv, Visit};
use crate::storage::state::{checkpoint, key};

/// Sled's page cache. Small, because the hot part of the state is in the layers.
const CACHE_BYTES: u64 = 16 << 20;

/// The size of one write batch. Small enough not to block sled's other writers for long.
const BATCH_BYTES: usize = 1 << 20;

/// A flush begins only if this much of the disk is free, and this many times the bytes of the layer.
const SPARE_BYTES: u64 = 4 << 20;
const SLED_WRITES: u64 = 3;

/// Sled's threads release the file shortly after the last handle is dropped. An open waits this long for it.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(5);

const FORMAT: &str = "session-manager state 3";

/// The layout before body files. It is the current one without any reference to a body, so it opens as it is.
const FORMAT_WITHOUT_BODIES: &str = "session-manager state 2";

/// Layouts of earlier builds. They are not migrated: the state is rebuilt from snapshot and log.
const FORMATS_BEFORE: [&str; 1] = ["session-manager state 1"];

/// Sled writes a node of up to 17 values as one piece. A node larger than a quarter of this gets a file of its own.
const SEGMENT_BYTES: usize = 1 << 20;

/// The lowest key that a family may have: the byte after the key of the book.
const FIRST_KEY: [u8; 1] = [BOOK_KEY[0] + 1];

/// The file that marks a generation as damaged.
const DAMAGED: &str = "damaged";

/// Why a state directory did not open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenFault {
    /// Another process uses it. Retry later.
    Busy(String),
    /// The content is damaged: wipe it and rebuild it from snapshot and log.
    Damaged(String),
    /// A newer build wrote it. Use that build, or wipe and rebuild.
    Newer(String),
    /// The file system failed (permissions, space). The content is intact.
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

/// Called with a key and what stands in sled for it.
type VisitStored<'a> = &'a mut dyn FnMut(&[u8], Bytes) -> Result<ControlFlow<()>, Fault>;

/// One open generation.
pub struct Base {
    // Dropped first: sled and the body files must be closed before they are removed.
    db: Db,
    bodies: Bodies,
    dir: GenerationDir,
    generation: u64,
    /// The block that was read last: packed and unpacked.
    last_unpacked: Mutex<Option<(Bytes, Bytes)>>,
}

struct GenerationDir {
    path: PathBuf,
    /// Sled or a body file is corrupt.
    damaged: AtomicBool,
    /// Another generation replaced this one: remove the files when the last reader is done.
    remove_on_drop: AtomicBool,
}

impl Base {
    /// Opens the current generation, or creates the first one. The caller has locked the directory.
    pub fn open_current(root: &Path) -> Result<Base, OpenFault> {
        let current = read_current(root)?;
        remove_all_but(root, current.map(|current| current.generation))?;
        match current {
            Some(Current { generation, format }) => {
                let base = Base::open(root, generation)?;
                if format != FORMAT {
                    // Before the first body is written: an earlier build could not read it.
                    base.make_current(root)?;
                }
                Ok(base)
            }
            None => {
                let base = Base::open(root, 1)?;
                base.make_durable().map_err(|fault| OpenFault::Disk(fault.0))?;
                base.make_current(root)?;
                Ok(base)
            }
        }
    }

    /// Creates an empty generation after this one. It is not current yet.
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
        let (damaged, remove_on_drop) = (AtomicBool::new(false), AtomicBool::new(false));
        let dir = GenerationDir { path: dir, damaged, remove_on_drop };
        let bodies = Bodies::closed(&dir.path);
        let mut base = Base { db, dir, generation, bodies, last_unpacked: Mutex::default() };
        if let Some(puts) = flush_file::read(&base.flush_path())? {
            tracing::info!(keys = puts.len(), "completing an interrupted flush");
            base.put_durably(&puts).map_err(|fault| OpenFault::Damaged(fault.0))?;
        }
        let book = base.checked(|db| db.get(BOOK_KEY)).map_err(|fault| OpenFault::Damaged(fault.0))?;
        let book = book.map_or(Some(bodies::Book::new()), |book| bodies::parse_book(&book));
        let book = book.ok_or_else(|| OpenFault::Damaged("the book of the body files is damaged".to_owned()))?;
        base.bodies = Bodies::open(&base.dir.path, book).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => OpenFault::Damaged(format!("a body file is missing: {error}")),
            _ => error.into(),
        })?;
        Ok(base)
    }

    /// Makes this generation the current one.
    pub fn make_current(&self, root: &Path) -> io::Result<()> {
        files::sync_dir(root)?;
        files::put_file(&root.join("CURRENT"), print_current(FORMAT, self.generation).as_bytes())
    }

    /// Writes a layer to sled. If the process is killed at any point, the next open finds the old or the new state.
    /// Saves the old values for the given freezes first.
    pub fn flush(&self, layer: &Changed, freezes: &[Arc<Freeze>]) -> Result<(), Fault> {
        let mut replaced = BTreeMap::new();
        let groups = self.plan_without(layer, None, &mut |key, old| {
            if !freezes.is_empty() {
                replaced.insert(key.to_vec(), old.clone());
            }
        })?;
        // The plan has read every block that changes.
        let old = |key: &[u8]| match key::run_prefix(key) {
            Some(_) => Ok(replaced.get(key).cloned()),
            None => self.stored(key),
        };
        for freeze in freezes {
            freeze.save(layer.keys().map(Vec::as_slice), old)?;
        }
        self.put_groups_safely(&groups)
    }

    /// Writes values that the state has already once more, so that nothing refers to a body file. Its place in the book
    /// goes with the last of them.
    pub fn move_bodies(&self, layer: &Changed, emptied: Option<u32>) -> Result<(), Fault> {
        self.put_groups_safely(&self.plan_without(layer, emptied, &mut |_, _| {})?)
    }

    fn put_groups_safely(&self, groups: &[Vec<Put>]) -> Result<(), Fault> {
        flush_file::write(&self.flush_path(), groups)
            .map_err(|error| Fault(format!("write the flush file: {error}")))?;
        self.put_durably(groups)
    }

    /// The writes to sled that a layer needs. The bodies that they refer to are durable.
    pub fn plan(&self, layer: &Changed) -> Result<Vec<Vec<Put>>, Fault> {
        self.plan_without(layer, None, &mut |_, _| {})
    }

    /// The same, and takes a body file out of the book. Calls `gone` with the pairs of blocks that the layer replaces.
    fn plan_without(
        &self,
        layer: &Changed,
        forgotten: Option<u32>,
        gone: &mut dyn FnMut(&[u8], &Bytes),
    ) -> Result<Vec<Vec<Put>>, Fault> {
        let mut writer = self.bodies.writer();
        let mut dropped = Vec::new();
        let mut changes = layer.iter().map(|(key, value)| writer.store((key.clone(), value.clone()))).peekable();
        let mut drop = |key: &[u8], stored: &Bytes| {
            gone(key, stored);
            dropped.extend(Place::of(key, stored).ok().flatten());
        };
        let groups = std::iter::from_fn(|| blocks::next_group(self, &mut changes, &mut drop).transpose());
        let mut groups: Vec<Vec<Put>> = groups.collect::<Result<_, Fault>>()?;
        std::mem::drop(changes);
        dropped.into_iter().for_each(|place| writer.count_dead(place));
        forgotten.map_or(Ok(()), |number| writer.forget(number))?;
        groups.push(vec![writer.finish()?]);
        Ok(groups)
    }

    fn put_durably(&self, groups: &[Vec<Put>]) -> Result<(), Fault> {
        self.put_groups(groups.iter().cloned().map(Ok))?;
        self.make_durable()?;
        files::remove(&self.flush_path()).map_err(|error| Fault(format!("remove the flush file: {error}")))
    }

    /// Writes the sorted pairs of a new state to this empty generation.
    pub fn put_all(&self, pairs: impl Iterator<Item = Result<Put, Fault>>) -> Result<(), Fault> {
        let mut writer = self.bodies.writer();
        let mut pairs = pairs.map(|pair| writer.store(pair?)).peekable();
        self.put_groups(std::iter::from_fn(|| blocks::next_fresh(&mut pairs).transpose()))?;
        drop(pairs);
        self.put_groups([Ok(vec![writer.finish()?])].into_iter())
    }

    /// Writes groups in batches without splitting a group. The checkpoint comes last.
    pub fn put_groups(&self, groups: impl Iterator<Item = Result<Vec<Put>, Fault>>) -> Result<(), Fault> {
        let checkpoint_key = checkpoint::key();
        let (mut batch, mut bytes) = (Batch::default(), 0);
        let mut checkpoint = Batch::default();
        for group in groups {
            for (key, value) in group? {
                bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
                let batch = if key == checkpoint_key { &mut checkpoint } else { &mut batch };
                match value {
                    Some(value) => batch.insert(key, &value[..]),
                    None => batch.remove(key),
                }
            }
            if bytes >= BATCH_BYTES {
                self.checked(|db| db.apply_batch(std::mem::take(&mut batch)))?;
                bytes = 0;
            }
        }
        self.checked(|db| db.apply_batch(batch))?;
        self.checked(|db| db.apply_batch(checkpoint))
    }

    /// Sled's own flush only writes to the operating system. Syncing its files makes the data durable.
    pub fn make_durable(&self) -> Result<(), Fault> {
        self.checked(|db| db.flush())?;
        let sled_dir = self.dir.path.join("sled");
        let sync = || {
            OpenOptions::new().read(true).write(true).open(sled_dir.join("db"))?.sync_all()?;
            files::sync_dir(&sled_dir.join("blobs"))?;
            files::sync_dir(&sled_dir)?;
            files::sync_dir(&self.dir.path)
        };
        sync().map_err(|error| Fault(format!("sync sled's file: {error}")))
    }

    /// The pairs after the key `after`, about `bytes_max` of them, and the last key if there are more. The values are as
    /// they stand in sled.
    pub fn piece_after(&self, after: Option<&[u8]>, bytes_max: usize) -> Result<(Vec<Put>, Option<Vec<u8>>), Fault> {
        let (mut piece, mut bytes, mut last) = (Vec::new(), 0, None);
        // The next possible key: the same key with a zero byte appended.
        let from = after.map_or_else(Vec::new, |after| [after, &[0]].concat());
        self.scan_stored(&from, None, &mut |key, value| {
            bytes += key.len() + value.len();
            piece.push((key.to_vec(), Some(value)));
            if bytes < bytes_max {
                return Ok(ControlFlow::Continue(()));
            }
            last = Some(key.to_vec());
            Ok(ControlFlow::Break(()))
        })?;
        Ok((piece, last))
    }

    /// Visits the pairs of a range as they stand in sled.
    fn scan_stored(&self, from: &[u8], to: Option<&[u8]>, visit: VisitStored<'_>) -> Result<(), Fault> {
        // The book of the body files is no part of the state.
        let from = if from <= &BOOK_KEY[..] { &FIRST_KEY } else { from };
        if to.is_some_and(|to| to <= from) {
            return Ok(());
        }
        // The block that holds the first key may start before it.
        let home = key::run_prefix(from).map(|run| blocks::block_of(self, run, from)).transpose()?.flatten();
        let begin = home.as_ref().map_or(from, |(start, _)| start);
        let mut range = match to {
            Some(to) => self.db.range(begin..to),
            None => self.db.range(begin..),
        };
        while let Some((key, value)) = self.checked(|_| range.next().transpose())? {
            let Some(run) = key::run_prefix(&key) else {
                match visit(&key, bytes_of(value))? {
                    ControlFlow::Continue(()) => continue,
                    ControlFlow::Break(()) => return Ok(()),
                }
            };
            for (key, value) in blocks::read(run, &bytes_of(value))? {
                let wanted = key.as_slice() >= from && to.is_none_or(|to| key.as_slice() < to);
                if wanted && visit(&key, value)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Calls sled. If it reports corruption or panics, marks the generation as damaged.
    fn checked<R>(&self, work: impl FnOnce(&Db) -> ::sled::Result<R>) -> Result<R, Fault> {
        let why = match catch_panic(|| work(&self.db)) {
            Some(Ok(result)) => return Ok(result),
            Some(Err(error @ (::sled::Error::Corruption { .. } | ::sled::Error::ReportableBug(_)))) => {
                error.to_string()
            }
            Some(Err(error)) => return Err(Fault(format!("sled: {error}"))),
            None => "it panicked".to_owned(),
        };
        Err(self.condemn(format!("sled in {} is damaged: {why}", self.dir.path.display())))
    }

    /// Marks the generation as damaged.
    fn condemn(&self, why: String) -> Fault {
        if !self.dir.damaged.swap(true, Ordering::AcqRel) {
            tracing::error!(why, "the state is damaged; restart this node, and it is rebuilt from snapshot and log");
            if let Err(error) = files::put_file(&self.dir.path.join(DAMAGED), why.as_bytes()) {
                tracing::error!(%error, "the damage cannot be recorded: remove the directory state/ and restart");
            }
        }
        Fault(why)
    }

    /// A body that cannot be read. If it is damaged, so is the generation.
    pub fn body_fault(&self, fault: BodyFault) -> Fault {
        match fault {
            BodyFault::Damaged(why) => self.condemn(why),
            BodyFault::Disk(error) => Fault(format!("read a body file: {error}")),
        }
    }

    /// The value that stands in sled for `key`: a whole value, or a reference to a body.
    pub fn stored(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let Some(run) = key::run_prefix(key) else {
            return Ok(self.checked(|db| db.get(key))?.map(bytes_of));
        };
        match blocks::block_of(self, run, key)? {
            Some((_, block)) => blocks::find(self.unpacked(block)?, run, key),
            None => Ok(None),
        }
    }

    /// The value behind what stands in sled.
    pub fn whole(&self, key: &[u8], stored: Bytes) -> Result<Bytes, Fault> {
        let place = Place::of(key, &stored);
        match place.and_then(|place| place.map(|place| self.bodies.read(key, place)).transpose()) {
            Ok(Some(body)) => Ok(body),
            Ok(None) => Ok(stored),
            Err(fault) => Err(self.body_fault(fault)),
        }
    }

    pub fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// Unpacks a block. Keeps the last one, because the next key is often in the same block.
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

    /// Fails once the generation is damaged.
    pub fn check(&self) -> Result<(), Fault> {
        match self.dir.damaged.load(Ordering::Acquire) {
            true => Err(Fault("the state is damaged; restart this node, and it is rebuilt".to_owned())),
            false => Ok(()),
        }
    }

    /// The path of the undo files of a freeze.
    pub fn undo_path(&self, freeze: u64) -> PathBuf {
        self.dir.path.join(format!("{}{freeze}", undo::PREFIX))
    }

    /// Whether dropping the last handle removes the files.
    pub fn remove_on_drop(&self, remove: bool) {
        self.dir.remove_on_drop.store(remove, Ordering::Release);
    }

    /// Whether the disk has space to write this much. Sled writes a page for a changed key, and it cannot be used any
    /// more after a write that found no space.
    pub fn has_space_for(&self, bytes: usize) -> bool {
        let needed = SPARE_BYTES + SLED_WRITES * bytes as u64;
        files::disk_space(&self.dir.path).is_none_or(|(free, _)| free >= needed)
    }

    fn flush_path(&self) -> PathBuf {
        self.dir.path.join("flush.kv")
    }
}

impl Drop for GenerationDir {
    fn drop(&mut self) {
        if self.remove_on_drop.load(Ordering::Acquire)
            && let Err(error) = files::remove(&self.path)
        {
            // The next open tries again.
            tracing::debug!(%error, dir = %self.path.display(), "an old generation of the state was not removed yet");
        }
    }
}

impl Kv for Base {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let _reading = self.bodies.reading();
        self.stored(key)?.map(|stored| self.whole(key, stored)).transpose()
    }

    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: Visit<'_>) -> Result<(), Fault> {
        let _reading = self.bodies.reading();
        self.scan_stored(from, to, &mut |key, stored| Ok(visit(key, &self.whole(key, stored)?)))
    }
}

impl Blocks for Base {
    fn at_or_before(&self, key: &[u8]) -> Result<Option<(Bytes, Bytes)>, Fault> {
        let found = self.checked(|db| db.range(..=key).next_back().transpose())?;
        Ok(found.map(|(key, value)| (bytes_of(key), bytes_of(value))))
    }

    fn key_after(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let found = self.checked(|db| db.get_gt(key))?;
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

/// What `CURRENT` says.
#[derive(Clone, Copy)]
struct Current {
    generation: u64,
    format: &'static str,
}

fn print_current(format: &str, generation: u64) -> String {
    let text = format!("{format}\n{generation}\n");
    let sum = crc32fast::hash(text.as_bytes());
    format!("{text}{sum:08x}\n")
}

/// The current generation; `None` before the first.
fn read_current(root: &Path) -> Result<Option<Current>, OpenFault> {
    let Some(text) = read_text(&root.join("CURRENT"))? else { return Ok(None) };
    let damaged = || OpenFault::Damaged(format!("{} is damaged", root.join("CURRENT").display()));
    let generation: u64 = text.lines().nth(1).and_then(|line| line.parse().ok()).ok_or_else(damaged)?;
    for format in [FORMAT, FORMAT_WITHOUT_BODIES] {
        if text == print_current(format, generation) {
            return Ok(Some(Current { generation, format }));
        }
    }
    // A later build may use another format, but its last line is a checksum too.
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

/// A small file; `None` if it does not exist.
fn read_text(path: &Path) -> Result<Option<String>, OpenFault> {
    match fs::read(path) {
        // Invalid UTF-8 is damage. The caller finds it when it parses the text.
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

/// A kill while sled opens can leave `snap.*.generating`. With such a file sled does not open.
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
    let give_up = Instant::now() + REOPEN_TIMEOUT;
    loop {
        let config =
            Config::new().path(dir).cache_capacity(CACHE_BYTES).flush_every_ms(None).segment_size(SEGMENT_BYTES);
        // Sled panics on some damaged files: treat a panic as damage.
        let opened = catch_panic(|| config.open());
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
