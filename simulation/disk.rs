//! Owns: the disk of a simulated host, for the log and the snapshots, and its faults. turmoil loses or tears unsynced
//! writes when the host crashes; this file makes reads and writes fail on demand.
//! Never: what the bytes mean.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use session_manager::planted::{self, Bug};
use session_manager::storage::disk::{Disk, DiskFile, Lock};
use turmoil::fs::shim::std::fs;

use crate::determinism::Chance;
use crate::truncated;

/// A fault of a disk. A node has at most one at a time, and it outlives crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Writes fail for lack of space after their first half.
    Full,
    /// Writes fail.
    FailingWrites,
    /// Syncs fail, and unsynced data may be lost.
    FailingSyncs,
    /// One read in `one_in` has a flipped bit.
    FlippedReads { one_in: u64 },
    /// One read in `one_in` fails: of all files, or only of snapshots, which interrupts their transfer to another node.
    FailingReads { one_in: u64, snapshots: bool },
    /// Each write of the log takes this long.
    Slow { ms: u64 },
}

#[derive(Debug)]
pub struct Faults {
    state: Mutex<(Option<Trouble>, Chance)>,
    /// The maximum of one read. Operating systems may return less than asked for, and snapshots travel in small parts.
    piece_bytes: usize,
}

impl Faults {
    pub fn new(mut chance: Chance) -> Arc<Faults> {
        let piece_bytes = *chance.pick(&[1 << 10, 2 << 10, 4 << 10, 16 << 10]).unwrap_or(&usize::MAX);
        Arc::new(Faults { state: Mutex::new((None, chance)), piece_bytes })
    }

    pub fn set(&self, trouble: Option<Trouble>) {
        self.lock().0 = trouble;
    }

    fn lock(&self) -> MutexGuard<'_, (Option<Trouble>, Chance)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn feel(&self, what: Trouble) -> bool {
        self.lock().0 == Some(what)
    }

    /// Whether this read fails.
    fn fails_to_read(&self, path: &Path) -> bool {
        let snapshot = path.extension().is_some_and(|ending| ending == "snap");
        match &mut *self.lock() {
            (Some(Trouble::FailingReads { one_in, snapshots }), chance) => {
                (snapshot || !*snapshots) && chance.one_in(*one_in)
            }
            (Some(_) | None, _) => false,
        }
    }

    fn flip(&self, bytes: &mut [u8]) {
        let mut state = self.lock();
        if let (Some(Trouble::FlippedReads { one_in }), chance) = &mut *state
            && !bytes.is_empty()
            && chance.one_in(*one_in)
        {
            let at = chance.below(bytes.len());
            bytes[at] ^= 1 << chance.below(8);
        }
    }
}

/// The open files with their current names. The simulated disk knows files only by name, so a rename must be tracked.
type Open = Arc<Mutex<(u64, BTreeMap<u64, PathBuf>)>>;

#[derive(Clone)]
pub struct SimulatedDisk {
    faults: Arc<Faults>,
    open: Open,
}

impl SimulatedDisk {
    pub fn new(faults: Arc<Faults>) -> SimulatedDisk {
        SimulatedDisk { faults, open: Open::default() }
    }

    fn opened(&self, path: &Path, writes: bool, file: fs::File) -> Box<dyn DiskFile> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.0 += 1;
        let id = open.0;
        open.1.insert(id, path.to_owned());
        let handle = Handle { id, path: path.to_owned(), open: self.open.clone() };
        Box::new(SimulatedFile { file, handle, writes, cursor: 0, unsynced: 0, faults: self.faults.clone() })
    }
}

fn no_space() -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, "no space left on the simulated disk")
}

fn broken(what: &str) -> io::Error {
    io::Error::other(format!("{what}: the simulated disk fails"))
}

impl Disk for SimulatedDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !fs::exists(dir)).collect();
        if !missing.is_empty() && self.faults.feel(Trouble::Full) {
            return Err(no_space());
        }
        fs::create_dir_all(dir)?;
        missing.into_iter().filter_map(Path::parent).try_for_each(fs::sync_dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for found in fs::read_dir(dir)? {
            names.extend(found?.file_name().into_string());
        }
        Ok(names)
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        // The product reads a draft only to verify a snapshot that it received.
        if planted::has(Bug::AcceptTruncatedSnapshot) && path.extension().is_some_and(|ending| ending == "new") {
            truncated::complete(path)?;
        }
        Ok(self.opened(path, false, fs::File::open(path)?))
    }

    fn edit(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.opened(path, true, fs::OpenOptions::new().read(true).write(true).open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        if self.faults.feel(Trouble::Full) {
            return Err(no_space());
        }
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(self.opened(path, true, file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.faults.feel(Trouble::FailingWrites) {
            return Err(broken("renaming"));
        }
        fs::rename(from, to)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.1.values_mut().filter(|path| path.as_path() == from).for_each(|path| *path = to.to_owned());
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if self.faults.feel(Trouble::FailingSyncs) {
            return Err(broken("syncing a directory"));
        }
        fs::sync_dir(dir)
    }

    fn sync_delay(&self) -> Duration {
        match self.faults.lock().0 {
            Some(Trouble::Slow { ms }) => Duration::from_millis(ms),
            _other => Duration::ZERO,
        }
    }

    /// The simulation runs one process per host, so no lock is needed.
    fn lock(&self, _dir: &Path) -> io::Result<Lock> {
        Ok(Box::new(()))
    }
}

struct Handle {
    id: u64,
    /// The name under which the file was last opened.
    path: PathBuf,
    open: Open,
}

impl Handle {
    /// The current name of the file.
    fn name(&self) -> PathBuf {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.1.get(&self.id).unwrap_or(&self.path).clone()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&self.id);
    }
}

struct SimulatedFile {
    file: fs::File,
    handle: Handle,
    writes: bool,
    cursor: u64,
    /// Writes since the last sync.
    unsynced: usize,
    faults: Arc<Faults>,
}

/// A file that the product does not sync is written back by the operating system after this many writes. turmoil looks
/// through all unsynced writes of a host at every access, so without it a long run spends half its time there.
const WRITTEN_BACK_AFTER: usize = 64;

impl SimulatedFile {
    /// The open file under its current name.
    fn file(&mut self) -> io::Result<&mut fs::File> {
        let now = self.handle.name();
        if now != self.handle.path {
            self.file = fs::OpenOptions::new().read(true).write(self.writes).open(&now)?;
            self.handle.path = now;
        }
        self.file.seek(SeekFrom::Start(self.cursor))?;
        Ok(&mut self.file)
    }

    /// Files with checksums. Only these get read faults, because other files cannot detect damage.
    fn is_checked(&self) -> bool {
        let name = self.handle.path.extension().and_then(|ending| ending.to_str());
        matches!(name, Some("log" | "snap")) || self.handle.path.ends_with("vote")
    }
}

impl Read for SimulatedFile {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.is_checked() && self.faults.fails_to_read(&self.handle.path) {
            return Err(broken("reading"));
        }
        let room = bytes.len().min(self.faults.piece_bytes);
        let read = self.file()?.read(&mut bytes[..room])?;
        self.cursor += read as u64;
        if self.is_checked() {
            self.faults.flip(&mut bytes[..read]);
        }
        Ok(read)
    }
}

impl Write for SimulatedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.faults.feel(Trouble::FailingWrites) {
            return Err(broken("writing"));
        }
        let full = self.faults.feel(Trouble::Full);
        let taken = if full { &bytes[..bytes.len() / 2] } else { bytes };
        let written = self.file()?.write(taken)?;
        self.cursor += written as u64;
        self.unsynced += 1;
        if self.unsynced >= WRITTEN_BACK_AFTER && self.handle.path.ends_with("durable") {
            self.file()?.sync_data()?;
            self.unsynced = 0;
        }
        if full { Err(no_space()) } else { Ok(written) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for SimulatedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.cursor = self.file()?.seek(to)?;
        Ok(self.cursor)
    }
}

impl DiskFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        fs::metadata(self.handle.name()).map(|found| found.len())
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        if self.faults.feel(Trouble::FailingWrites) {
            return Err(broken("cutting"));
        }
        self.file()?.set_len(len)
    }

    fn sync_data(&mut self) -> io::Result<()> {
        if self.faults.feel(Trouble::FailingSyncs) {
            return Err(broken("syncing"));
        }
        if planted::has(Bug::SkipFsync) && self.handle.path.extension().is_some_and(|ending| ending == "log") {
            return Ok(());
        }
        self.file()?.sync_data()
    }
}
