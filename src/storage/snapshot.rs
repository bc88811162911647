//! Owns: snapshot files, the state of one moment as a file. Written whole, made durable, then named; the newest named
//! one counts. Read back as a stream, whatever its size, and checked on the way.
//! Never: what the pairs or the mark mean.
//!
//! ```text
//! <index, 20 digits>.snap:
//!   magic 8 | version u32 | mark length u32 | mark
//!   (key length u32 | value length u32 | key | value) for each pair in key order
//!   end u32 = ffffffff | pairs u64 | length of the file u64 | xxh3-128 of all bytes before, 16            (little-endian)
//! ```
//! Length and checksum stand in the file, so that a copy that was cut short never looks whole.

use std::fmt;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tracing::{info, warn};
use xxhash_rust::xxh3::Xxh3;

use super::Pairs;
use super::disk::{Disk, DiskFile};
use crate::machine::refusal::Fault;
use crate::planted::{self, Bug};

const MAGIC: &[u8; 8] = b"SMSNAPSH";
const VERSION: u32 = 1;
const HEAD_BYTES: u64 = 16;
const FOOT_BYTES: u64 = 36;
const END: u32 = u32::MAX;
/// A mark is a log id and a membership: a longer one is damage.
const MARK_BYTES_MAX: u32 = 1 << 20;
/// Written bytes go to the disk in steps, so that the log's fdatasync never waits behind a gigabyte.
const SYNC_BYTES: u64 = 8 << 20;
const BUFFER_BYTES: usize = 256 << 10;

/// A snapshot that cannot be written or is not what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotError {
    Disk {
        doing: String,
        kind: io::ErrorKind,
        why: String,
    },
    Damaged {
        file: PathBuf,
        why: String,
    },
    /// The state could not be read while it was being written down.
    State(Fault),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Disk { doing, why, .. } => write!(f, "snapshot: {doing}: {why}"),
            SnapshotError::Damaged { file, why } => write!(f, "snapshot: {} is damaged: {why}", file.display()),
            SnapshotError::State(fault) => write!(f, "snapshot: {fault}"),
        }
    }
}

impl std::error::Error for SnapshotError {}

impl From<SnapshotError> for io::Error {
    fn from(error: SnapshotError) -> io::Error {
        let kind = match &error {
            SnapshotError::Disk { kind, .. } => *kind,
            SnapshotError::Damaged { .. } => io::ErrorKind::InvalidData,
            SnapshotError::State(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

fn disk_error(doing: impl fmt::Display) -> impl FnOnce(io::Error) -> SnapshotError {
    move |error| SnapshotError::Disk { doing: doing.to_string(), kind: error.kind(), why: error.to_string() }
}

/// A complete snapshot file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    pub path: PathBuf,
    /// The index of the last log entry in it.
    pub index: u64,
    pub mark: Bytes,
    /// Length of the file.
    pub bytes: u64,
    pub checksum: u128,
}

/// The snapshots of one Raft group in one directory.
pub struct Snapshots {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    newest: Mutex<Option<Sealed>>,
    /// Tells drafts of one process apart.
    drafts: AtomicU64,
    /// Held while a snapshot is written.
    writing: Mutex<()>,
    /// The newest was found to be damaged: the next one takes its place, whatever its index.
    damaged: AtomicBool,
    closed: AtomicBool,
}

impl Snapshots {
    /// Finds the newest whole snapshot in a directory. Drafts that were never named are removed.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path) -> Result<Snapshots, SnapshotError> {
        disk.create_dir(dir).map_err(disk_error(format_args!("creating {}", dir.display())))?;
        let mut found = Vec::new();
        for name in disk.list(dir).map_err(disk_error(format_args!("listing {}", dir.display())))? {
            let path = dir.join(&name);
            if name.ends_with(".new") {
                disk.remove(&path).map_err(disk_error(format_args!("removing {}", path.display())))?;
            } else if let Some(index) = index_of(&name) {
                found.push((index, path));
            }
        }
        found.sort();
        let mut newest = None;
        while let Some((index, path)) = found.pop() {
            match inspect(&*disk, &path, index) {
                Ok(sealed) => {
                    newest = Some(sealed);
                    break;
                }
                Err(error) => warn!(%error, "ignoring a snapshot"),
            }
        }
        // A crash may have come between the naming of a snapshot and the removal of the one before it.
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

    /// Writes the state down. The file is whole and durable, but does not count before `publish`.
    pub fn write(&self, index: u64, mark: Bytes, pairs: Pairs<'_>) -> Result<Sealed, SnapshotError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.draft();
        let written = self.write_to(&path, index, mark, pairs);
        if written.is_err() {
            // Whatever is left of it is removed at the next start too.
            let _ = self.disk.remove(&path);
        }
        written
    }

    /// A name for a file that is being written or received.
    pub fn draft(&self) -> PathBuf {
        self.dir.join(format!("{}.new", self.drafts.fetch_add(1, Ordering::Relaxed)))
    }

    /// Checks a file that came from elsewhere from its first to its last byte.
    pub fn verify(&self, path: &Path, index: u64) -> Result<Sealed, SnapshotError> {
        let sealed = inspect(&*self.disk, path, index)?;
        for pair in self.pairs(&sealed)? {
            pair.map_err(SnapshotError::State)?;
        }
        Ok(sealed)
    }

    /// Makes a whole file the newest snapshot, durably, and removes the one before it. A snapshot that is not newer
    /// than the newest is removed instead: a slow build never replaces what was installed meanwhile.
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
        let path = self.dir.join(file_name(sealed.index));
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

    /// Reads the newest snapshot from its first to its last byte. Damage is remembered until another takes its place:
    /// a snapshot may lie for a long time before somebody needs it.
    pub fn scrub(&self) {
        let Some(newest) = self.newest() else { return };
        let Err(error) = self.verify(&newest.path, newest.index) else { return };
        // It may have been replaced, and removed, meanwhile.
        if self.lock().as_ref() == Some(&newest) && self.check_open().is_ok() {
            warn!(%error, "the snapshot is damaged; another one is built from the state");
            self.damaged.store(true, Ordering::SeqCst);
        }
    }

    /// Whether the newest snapshot was found to be damaged.
    pub fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::SeqCst)
    }

    /// Breaks off what is being written and waits until it has ended: from here on no file changes any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        drop(self.writing.lock().unwrap_or_else(PoisonError::into_inner));
        drop(self.lock());
    }

    fn check_open(&self) -> Result<(), SnapshotError> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(SnapshotError::State(Fault("the node is shutting down".to_owned()))),
            false => Ok(()),
        }
    }

    /// Sets a damaged snapshot aside: it is kept for the operator but counts no more.
    pub fn discard(&self, sealed: &Sealed) {
        let aside = sealed.path.with_extension("damaged");
        if let Err(error) = self.disk.rename(&sealed.path, &aside) {
            warn!(%error, file = %sealed.path.display(), "a damaged snapshot cannot be set aside");
        }
        self.lock().take_if(|newest| newest.path == sealed.path);
    }

    /// The pairs, as a stream. Ends with an error unless every byte of the file was as written.
    pub fn pairs(&self, sealed: &Sealed) -> Result<Pairs<'static>, SnapshotError> {
        Ok(Box::new(Reading::begin(&*self.disk, sealed)?))
    }

    fn write_to(&self, path: &Path, index: u64, mark: Bytes, pairs: Pairs<'_>) -> Result<Sealed, SnapshotError> {
        let doing = || disk_error(format!("writing {}", path.display()));
        let file = self.disk.create(path).map_err(doing())?;
        let mut out = Hashing { file: BufWriter::with_capacity(BUFFER_BYTES, file), hash: Xxh3::new(), bytes: 0 };
        out.put(MAGIC).map_err(doing())?;
        out.put(&VERSION.to_le_bytes()).map_err(doing())?;
        out.put(&(mark.len() as u32).to_le_bytes()).map_err(doing())?;
        out.put(&mark).map_err(doing())?;
        let (mut count, mut synced) = (0u64, 0);
        for pair in pairs {
            let (key, value) = pair.map_err(SnapshotError::State)?;
            self.check_open()?;
            out.put(&(key.len() as u32).to_le_bytes()).map_err(doing())?;
            out.put(&(value.len() as u32).to_le_bytes()).map_err(doing())?;
            out.put(&key).map_err(doing())?;
            out.put(&value).map_err(doing())?;
            count += 1;
            if out.bytes - synced >= SYNC_BYTES {
                out.sync().map_err(doing())?;
                synced = out.bytes;
            }
        }
        out.put(&END.to_le_bytes()).map_err(doing())?;
        out.put(&count.to_le_bytes()).map_err(doing())?;
        let bytes = out.bytes + 8 + 16;
        out.put(&bytes.to_le_bytes()).map_err(doing())?;
        let checksum = out.hash.digest128();
        out.put(&checksum.to_le_bytes()).map_err(doing())?;
        out.sync().map_err(doing())?;
        Ok(Sealed { path: path.to_owned(), index, mark, bytes, checksum })
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

fn file_name(index: u64) -> String {
    format!("{index:020}.snap")
}

fn index_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".snap")?;
    if digits.len() == 20 { digits.parse().ok() } else { None }
}

/// A file that is hashed as it is written.
struct Hashing {
    file: BufWriter<Box<dyn DiskFile>>,
    hash: Xxh3,
    bytes: u64,
}

impl Hashing {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_mut().sync_data()
    }
}

/// Reads head and foot: enough to know that the file is whole, unless bits flipped.
fn inspect(disk: &dyn Disk, path: &Path, index: u64) -> Result<Sealed, SnapshotError> {
    let doing = || disk_error(format!("reading {}", path.display()));
    let damaged = |why: &str| SnapshotError::Damaged { file: path.to_owned(), why: why.to_owned() };
    let mut file = disk.read(path).map_err(doing())?;
    let bytes = file.len().map_err(doing())?;
    if bytes < HEAD_BYTES + FOOT_BYTES {
        return Err(damaged("it was cut short"));
    }
    let mut head = [0; HEAD_BYTES as usize];
    file.read_exact(&mut head).map_err(doing())?;
    let mark_bytes = check_head(&head).map_err(|why| damaged(&why))?;
    if HEAD_BYTES + u64::from(mark_bytes) + FOOT_BYTES > bytes {
        return Err(damaged("it was cut short"));
    }
    let mut mark = vec![0; mark_bytes as usize];
    file.read_exact(&mut mark).map_err(doing())?;
    let mut foot = [0; FOOT_BYTES as usize];
    file.seek(SeekFrom::End(-(FOOT_BYTES as i64))).and_then(|_| file.read_exact(&mut foot)).map_err(doing())?;
    let whole = foot[..4] == END.to_le_bytes() && foot[12..20] == bytes.to_le_bytes();
    if !whole && !planted::has(Bug::AcceptTruncatedSnapshot) {
        return Err(damaged("it was cut short"));
    }
    let mut checksum = [0; 16];
    checksum.copy_from_slice(&foot[20..]);
    let checksum = u128::from_le_bytes(checksum);
    Ok(Sealed { path: path.to_owned(), index, mark: mark.into(), bytes, checksum })
}

/// The length of the mark.
fn check_head(head: &[u8; HEAD_BYTES as usize]) -> Result<u32, String> {
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if &head[..8] != MAGIC {
        return Err("it is no snapshot".to_owned());
    }
    if number(8) != VERSION {
        return Err(format!("snapshot format {}; this build reads format {VERSION}", number(8)));
    }
    match number(12) {
        bytes if bytes <= MARK_BYTES_MAX => Ok(bytes),
        bytes => Err(format!("a mark of {bytes} bytes")),
    }
}

/// A snapshot being read.
struct Reading {
    file: BufReader<Box<dyn DiskFile>>,
    hash: Xxh3,
    path: PathBuf,
    /// Bytes of pairs that are still to come.
    left: u64,
    pairs: u64,
    checksum: u128,
    ended: bool,
}

impl Reading {
    fn begin(disk: &dyn Disk, sealed: &Sealed) -> Result<Reading, SnapshotError> {
        let doing = || disk_error(format!("reading {}", sealed.path.display()));
        let file = disk.read(&sealed.path).map_err(doing())?;
        let before = HEAD_BYTES + sealed.mark.len() as u64;
        let mut reading = Reading {
            file: BufReader::with_capacity(BUFFER_BYTES, file),
            hash: Xxh3::new(),
            path: sealed.path.clone(),
            left: (sealed.bytes + 4).saturating_sub(before + FOOT_BYTES),
            pairs: 0,
            checksum: sealed.checksum,
            ended: false,
        };
        let mut head = vec![0; before as usize];
        reading.fill(&mut head).map_err(doing())?;
        Ok(reading)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.hash.update(bytes);
        Ok(())
    }

    fn number(&mut self) -> Result<u32, String> {
        let mut bytes = [0; 4];
        self.left = self.left.checked_sub(4).ok_or("it runs beyond its end")?;
        self.fill(&mut bytes).map_err(|error| error.to_string())?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// A length is believed only as far as the file goes: damage reserves no memory.
    fn bytes(&mut self, count: u32) -> Result<Vec<u8>, String> {
        self.left = self.left.checked_sub(u64::from(count)).ok_or("a length runs beyond its end")?;
        let mut bytes = vec![0; count as usize];
        self.fill(&mut bytes).map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    fn pair(&mut self) -> Result<Option<(Vec<u8>, Bytes)>, String> {
        let key_bytes = self.number()?;
        if key_bytes == END {
            return self.end().map(|()| None);
        }
        let value_bytes = self.number()?;
        let key = self.bytes(key_bytes)?;
        let value = self.bytes(value_bytes)?;
        self.pairs += 1;
        Ok(Some((key, value.into())))
    }

    fn end(&mut self) -> Result<(), String> {
        let mut foot = [0; 16];
        self.fill(&mut foot).map_err(|error| error.to_string())?;
        if self.left != 0 || foot[..8] != self.pairs.to_le_bytes() {
            return Err("it does not hold what its end says".to_owned());
        }
        if self.hash.digest128() != self.checksum {
            return Err("its checksum does not match".to_owned());
        }
        Ok(())
    }
}

impl Iterator for Reading {
    type Item = Result<(Vec<u8>, Bytes), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let pair = self.pair();
        self.ended = !matches!(pair, Ok(Some(_)));
        if pair.is_err() && planted::has(Bug::AcceptTruncatedSnapshot) {
            return None;
        }
        let error = |why| Fault(SnapshotError::Damaged { file: self.path.clone(), why }.to_string());
        pair.map_err(error).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::disk::RealDisk;
    use proptest::prelude::*;
    use std::fs;
    use tempfile::TempDir;

    fn snapshots(dir: &TempDir) -> Snapshots {
        Snapshots::open(Arc::new(RealDisk), dir.path()).unwrap()
    }

    fn pairs(count: u32) -> Vec<(Vec<u8>, Bytes)> {
        (0..count).map(|n| (n.to_be_bytes().to_vec(), Bytes::from(vec![n as u8; n as usize % 50]))).collect()
    }

    fn write(snapshots: &Snapshots, index: u64, pairs: Vec<(Vec<u8>, Bytes)>) -> Sealed {
        snapshots.write(index, Bytes::from_static(b"mark"), Box::new(pairs.into_iter().map(Ok))).unwrap()
    }

    fn read(snapshots: &Snapshots, sealed: &Sealed) -> Result<Vec<(Vec<u8>, Bytes)>, Fault> {
        snapshots.pairs(sealed).map_err(|error| Fault(error.to_string()))?.collect()
    }

    #[test]
    fn a_snapshot_reads_back_as_written_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let first = snapshots(&dir);
        assert_eq!(first.newest(), None);
        let sealed = write(&first, 7, pairs(300));
        assert_eq!(first.newest(), None, "it counts only once it is published");
        let published = first.publish(sealed).unwrap();
        assert_eq!(published.path.file_name().unwrap(), "00000000000000000007.snap");
        assert_eq!(published.bytes, fs::metadata(&published.path).unwrap().len());

        let second = snapshots(&dir);
        assert_eq!(second.newest(), Some(published.clone()));
        assert_eq!(read(&second, &published).unwrap(), pairs(300));
        assert_eq!(second.verify(&published.path, 7), Ok(published));
    }

    #[test]
    fn a_slow_build_never_replaces_a_newer_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = snapshots(&dir);
        let slow = write(&snapshots, 5, pairs(1));
        let newer = snapshots.publish(write(&snapshots, 9, pairs(2))).unwrap();
        assert_eq!(snapshots.publish(slow).unwrap(), newer);
        assert_eq!(snapshots.publish(newer.clone()).unwrap(), newer, "publishing twice is harmless");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_snapshot_is_found_and_replaced_even_by_one_of_the_same_moment() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = snapshots(&dir);
        let good = snapshots.publish(write(&snapshots, 5, pairs(9))).unwrap();
        snapshots.scrub();
        assert!(!snapshots.is_damaged());
        let mut bytes = fs::read(&good.path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&good.path, bytes).unwrap();
        snapshots.scrub();
        assert!(snapshots.is_damaged());
        let again = snapshots.publish(write(&snapshots, 5, pairs(9))).unwrap();
        assert!(!snapshots.is_damaged());
        assert_eq!(read(&snapshots, &again).unwrap(), pairs(9));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_build_that_fails_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = snapshots(&dir);
        let broken = vec![Ok((vec![1], Bytes::new())), Err(Fault("lost".to_owned()))];
        let error = snapshots.write(1, Bytes::new(), Box::new(broken.into_iter())).unwrap_err();
        assert_eq!(error, SnapshotError::State(Fault("lost".to_owned())));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_closed_directory_changes_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = snapshots(&dir);
        let sealed = write(&snapshots, 1, pairs(2));
        snapshots.close();
        assert!(snapshots.publish(sealed).is_err());
        assert!(snapshots.write(2, Bytes::new(), Box::new(pairs(2).into_iter().map(Ok))).is_err());
        assert_eq!(snapshots.newest(), None);
    }

    #[test]
    fn a_snapshot_cut_short_anywhere_is_not_one() {
        let dir = tempfile::tempdir().unwrap();
        let first = snapshots(&dir);
        let published = first.publish(write(&first, 3, pairs(5))).unwrap();
        let whole = fs::read(&published.path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&published.path, &whole[..cut]).unwrap();
            assert_eq!(snapshots(&dir).newest(), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found_before_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let first = snapshots(&dir);
        let published = first.publish(write(&first, 3, pairs(5))).unwrap();
        let whole = fs::read(&published.path).unwrap();
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 4;
            fs::write(&published.path, bad).unwrap();
            assert!(first.verify(&published.path, 3).is_err(), "byte {at}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_bytes_are_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), keep in 0..120usize) {
            let dir = tempfile::tempdir().unwrap();
            let snapshots = snapshots(&dir);
            let sealed = write(&snapshots, 1, pairs(3));
            let mut file = fs::read(&sealed.path).unwrap();
            file.truncate(keep);
            file.extend(bytes);
            fs::write(&sealed.path, file).unwrap();
            let _ = snapshots.verify(&sealed.path, 1);
        }
    }
}
