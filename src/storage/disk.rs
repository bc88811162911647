//! Owns: the few things the log and the snapshot files ask of a file system, behind a trait, so that a test can count
//! and fail them and the simulation can bring its own disk. Never: what the bytes mean.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

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

    /// Creates a file, or empties the one that is there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Renames a file over whatever bears the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes created, renamed and removed names of a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Keeps other processes out of a directory for as long as the hold lives.
    fn hold(&self, dir: &Path) -> io::Result<Hold>;
}

/// Dropping it lets go.
pub type Hold = Box<dyn std::any::Any + Send + Sync>;

/// An open file.
pub trait DiskFile: Read + Write + Seek + Send {
    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    fn set_len(&mut self, len: u64) -> io::Result<()>;

    /// Makes the written bytes and the length durable.
    fn sync_data(&mut self) -> io::Result<()>;
}

/// The machine's own file system.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
        fs::create_dir_all(dir)?;
        // A directory whose name a crash takes away takes its files along.
        missing.into_iter().filter(|dir| !dir.as_os_str().is_empty()).try_for_each(files::sync_parent)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for file in fs::read_dir(dir)? {
            // A name that is no text is not one of ours.
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

    fn hold(&self, dir: &Path) -> io::Result<Hold> {
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
}

/// Writes a whole small file so that after a crash the old or the new content is there, never a mixture.
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

/// Reads a whole small file; `None` when it is not there.
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
    use std::io::SeekFrom;
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
        fn hold(&self, dir: &Path) -> io::Result<Hold> {
            RealDisk.hold(dir)
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
                // A full disk takes a part of the write before it refuses the rest.
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
    }
}
