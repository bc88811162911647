//! Owns: the disk of a simulated host, for the log and the snapshots: reads and writes that fail on demand. What a power
//! loss does is in `file_system.rs`. Never: what the bytes mean.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use session_manager::planted::{self, Bug};
use session_manager::storage::disk::{Disk, DiskFile, Lock};

use crate::determinism::Chance;
use crate::file_system::{File, FileSystem};
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
    pub fn new(mut chance: Chance) -> Faults {
        let piece_bytes = *chance.pick(&[1 << 10, 2 << 10, 4 << 10, 16 << 10]).unwrap_or(&usize::MAX);
        Faults { state: Mutex::new((None, chance)), piece_bytes }
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

/// A file that the product does not sync is written back by the operating system after this many writes.
const WRITTEN_BACK_AFTER: usize = 64;

/// The disk of a host. It outlives the processes of the host.
#[derive(Clone)]
pub struct SimulatedDisk {
    files: Arc<FileSystem>,
    pub faults: Arc<Faults>,
}

impl SimulatedDisk {
    pub fn new(files: FileSystem, faults: Faults) -> SimulatedDisk {
        SimulatedDisk { files: Arc::new(files), faults: Arc::new(faults) }
    }

    /// The host loses power.
    pub fn lose_power(&self) {
        self.files.lose_power();
    }

    fn opened(&self, file: File) -> Box<dyn DiskFile> {
        Box::new(SimulatedFile { file, cursor: 0, unsynced: 0, disk: self.clone() })
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
        let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !self.files.exists(dir)).collect();
        if !missing.is_empty() && self.faults.feel(Trouble::Full) {
            return Err(no_space());
        }
        missing.iter().rev().try_for_each(|dir| self.files.create_dir(dir))?;
        missing.into_iter().filter_map(Path::parent).try_for_each(|dir| self.files.sync_dir(dir))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.files.list(dir)
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = self.files.open(path)?;
        // The product reads a draft only to verify a snapshot that it received.
        if planted::has(Bug::AcceptTruncatedSnapshot) && path.extension().is_some_and(|ending| ending == "new") {
            truncated::complete(&file);
        }
        Ok(self.opened(file))
    }

    fn edit(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.opened(self.files.open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        if self.faults.feel(Trouble::Full) {
            return Err(no_space());
        }
        Ok(self.opened(self.files.create(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.faults.feel(Trouble::FailingWrites) {
            return Err(broken("renaming"));
        }
        self.files.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.files.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if self.faults.feel(Trouble::FailingSyncs) {
            return Err(broken("syncing a directory"));
        }
        self.files.sync_dir(dir)
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

struct SimulatedFile {
    file: File,
    disk: SimulatedDisk,
    cursor: u64,
    /// Writes since the system wrote the file back.
    unsynced: usize,
}

impl SimulatedFile {
    /// Files with checksums. Only these get read faults, because other files cannot detect damage.
    fn is_checked(path: &Path) -> bool {
        let name = path.extension().and_then(|ending| ending.to_str());
        matches!(name, Some("log" | "snap")) || path.ends_with("vote")
    }
}

impl Read for SimulatedFile {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (path, faults) = (self.file.path(), &self.disk.faults);
        if Self::is_checked(&path) && faults.fails_to_read(&path) {
            return Err(broken("reading"));
        }
        let room = bytes.len().min(faults.piece_bytes);
        let read = self.file.read_at(self.cursor as usize, &mut bytes[..room]);
        self.cursor += read as u64;
        if Self::is_checked(&path) {
            faults.flip(&mut bytes[..read]);
        }
        Ok(read)
    }
}

impl Write for SimulatedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let faults = &self.disk.faults;
        if faults.feel(Trouble::FailingWrites) {
            return Err(broken("writing"));
        }
        let full = faults.feel(Trouble::Full);
        let taken = if full { &bytes[..bytes.len() / 2] } else { bytes };
        self.file.write_at(self.cursor as usize, taken);
        self.disk.files.write_back(&self.file);
        self.cursor += taken.len() as u64;
        self.unsynced += 1;
        if self.unsynced >= WRITTEN_BACK_AFTER && self.file.path().ends_with("durable") {
            self.file.sync();
            self.unsynced = 0;
        }
        if full { Err(no_space()) } else { Ok(taken.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for SimulatedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::Current(by) => (self.cursor, by),
            SeekFrom::End(by) => (self.file.len() as u64, by),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "a position before the start of the file");
        self.cursor = from.checked_add_signed(by).ok_or_else(before)?;
        Ok(self.cursor)
    }
}

impl DiskFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.len() as u64)
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        if self.disk.faults.feel(Trouble::FailingWrites) {
            return Err(broken("cutting"));
        }
        self.file.set_len(len as usize);
        self.disk.files.write_back(&self.file);
        Ok(())
    }

    fn sync_data(&mut self) -> io::Result<()> {
        if self.disk.faults.feel(Trouble::FailingSyncs) {
            return Err(broken("syncing"));
        }
        if planted::has(Bug::SkipFsync) && self.file.path().extension().is_some_and(|ending| ending == "log") {
            return Ok(());
        }
        self.file.sync();
        Ok(())
    }
}
