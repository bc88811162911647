//! Owns: `Disk`, the file system operations of the log and of snapshots. A trait, so that tests can count and fail them
//! and the simulation can use its own disk. Never: what the bytes mean.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use super::files;

/// A file system.
pub trait Disk: Send + Sync + 'static {
    /// Creates a directory with its parents, durably.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Names of the files in a directory, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Opens an existing file to read it.
    fn read(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens an existing file to read and write it.
    fn edit(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens an existing file that is written at its end in small pieces: past the page cache, if the system can.
    /// The bytes behind a write, up to the end of a sector, become zero.
    fn edit_end(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.edit(path)
    }

    /// Creates a file, or empties the one that is there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Renames a file. Replaces a file that has the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the creation, renaming and removal of files in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Locks a directory against other processes until the lock is dropped.
    fn lock(&self, dir: &Path) -> io::Result<Lock>;

    /// How long the log writer waits before it writes. A simulated disk cannot block in a sync, so it is slow this way.
    fn sync_delay(&self) -> Duration {
        Duration::ZERO
    }
}

/// Dropping it releases the directory.
pub type Lock = Box<dyn std::any::Any + Send + Sync>;

/// An open file.
pub trait DiskFile: Read + Write + Seek + Send {
    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    fn set_len(&mut self, len: u64) -> io::Result<()>;

    /// The size of a sector, if writes go to the disk by sectors and not by pages.
    fn sector_bytes(&self) -> Option<usize> {
        None
    }

    /// Makes the written bytes and the length durable.
    fn sync_data(&mut self) -> io::Result<()>;

    /// Writes at an offset.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.seek(SeekFrom::Start(offset))?;
        self.write_all(bytes)
    }
}

/// The real file system.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        files::create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for file in fs::read_dir(dir)? {
            // A name that is not Unicode is not one of ours.
            names.extend(file?.file_name().into_string());
        }
        Ok(names)
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(File::open(path)?))
    }

    fn edit(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().read(true).write(true).open(path)?))
    }

    #[cfg(target_os = "linux")]
    fn edit_end(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        match super::direct::DirectFile::open(path)? {
            Some(file) => Ok(Box::new(file)),
            None => self.edit(path),
        }
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        files::sync_dir(dir)
    }

    fn lock(&self, dir: &Path) -> io::Result<Lock> {
        Ok(Box::new(files::DirLock::acquire(dir)?))
    }
}

impl DiskFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    fn sync_data(&mut self) -> io::Result<()> {
        File::sync_data(self)
    }

    #[cfg(unix)]
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, offset)
    }
}

/// Replaces a small file atomically: after a crash it has the old or the new content.
pub fn write_whole(disk: &dyn Disk, path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let draft = path.with_extension("new");
    let mut file = disk.create(&draft)?;
    file.write_all(content)?;
    file.sync_data()?;
    drop(file);
    disk.rename(&draft, path)?;
    disk.sync_dir(dir)
}

/// Reads a small file; `None` if it does not exist.
pub fn read_whole(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = match disk.read(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(Some(content))
}

/// A disk for tests: counts its syncs and fails on demand.
#[cfg(test)]
pub mod watched {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[derive(Debug, Default, Clone)]
    pub struct WatchedDisk {
        pub syncs: Arc<AtomicUsize>,
        pub fail_writes: Arc<AtomicBool>,
        pub fail_syncs: Arc<AtomicBool>,
    }

    impl WatchedDisk {
        pub fn syncs(&self) -> usize {
            self.syncs.load(Ordering::SeqCst)
        }

        fn watch(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
            Box::new(WatchedFile { file, disk: self.clone() })
        }
    }

    struct WatchedFile {
        file: Box<dyn DiskFile>,
        disk: WatchedDisk,
    }

    impl Disk for WatchedDisk {
        fn create_dir(&self, dir: &Path) -> io::Result<()> {
            RealDisk.create_dir(dir)
        }
        fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
            RealDisk.list(dir)
        }
        fn read(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
            RealDisk.read(path)
        }
        fn edit(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
            Ok(self.watch(RealDisk.edit(path)?))
        }
        fn edit_end(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
            Ok(self.watch(RealDisk.edit_end(path)?))
        }
        fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
            Ok(self.watch(RealDisk.create(path)?))
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            RealDisk.rename(from, to)
        }
        fn remove(&self, path: &Path) -> io::Result<()> {
            RealDisk.remove(path)
        }
        fn sync_dir(&self, dir: &Path) -> io::Result<()> {
            RealDisk.sync_dir(dir)
        }
        fn lock(&self, dir: &Path) -> io::Result<Lock> {
            RealDisk.lock(dir)
        }
    }

    impl Read for WatchedFile {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.file.read(buf)
        }
    }

    impl Write for WatchedFile {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            if self.disk.fail_writes.load(Ordering::SeqCst) {
                // A full disk writes a part before it fails.
                self.file.write_all(&buf[..buf.len() / 2])?;
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            self.file.write(buf)
        }
        fn flush(&mut self) -> io::Result<()> {
            self.file.flush()
        }
    }

    impl Seek for WatchedFile {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.file.seek(to)
        }
    }

    impl DiskFile for WatchedFile {
        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }
        fn set_len(&mut self, len: u64) -> io::Result<()> {
            self.file.set_len(len)
        }
        fn sync_data(&mut self) -> io::Result<()> {
            if self.disk.fail_syncs.load(Ordering::SeqCst) {
                return Err(io::Error::other("the disk lost it"));
            }
            self.disk.syncs.fetch_add(1, Ordering::SeqCst);
            self.file.sync_data()
        }
        fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
            if self.disk.fail_writes.load(Ordering::SeqCst) {
                self.file.write_at(&bytes[..bytes.len() / 2], offset)?;
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            self.file.write_at(bytes, offset)
        }
    }
}
