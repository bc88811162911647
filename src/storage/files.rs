//! Owns: the few file moves that storage relies on: sync a directory, put a whole file in place, hold a directory.
//! Never: what is in the files.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Makes created, renamed and removed names of a directory durable. Windows journals names itself and cannot sync
/// a directory.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(windows) {
        return Ok(());
    }
    File::open(dir)?.sync_all()
}

/// Puts `content` at `path`, wholly or not at all, and durably.
pub fn put_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let tmp = beside(path, ".tmp");
    let mut file = File::create(&tmp)?;
    file.write_all(content)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&tmp, path)?;
    sync_parent(path)
}

pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        Some(_) | None => sync_dir(Path::new(".")),
    }
}

/// The same path with `suffix` after its name.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Removes a file or a directory with all it holds; missing is fine.
pub fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Holds a directory for one process. The system lets go when the process ends, however it ends.
#[derive(Debug)]
pub struct DirLock {
    _held: File,
}

/// A predecessor that is just ending is waited for, not more.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

impl DirLock {
    pub fn acquire(dir: &Path) -> io::Result<DirLock> {
        let path = dir.join("LOCK");
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        let give_up = Instant::now() + LOCK_PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(DirLock { _held: file }),
                Err(TryLockError::WouldBlock) if Instant::now() < give_up => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(TryLockError::WouldBlock) => {
                    let why = format!("{} is in use by another process", dir.display());
                    return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_held_by_one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirLock::acquire(dir.path()).unwrap();
        let second = DirLock::acquire(dir.path()).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::ResourceBusy);
        drop(first);
        DirLock::acquire(dir.path()).unwrap();
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        put_file(&path, b"one").unwrap();
        put_file(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert!(!beside(&path, ".tmp").exists());
        remove(&path).unwrap();
        remove(&path).unwrap();
    }
}
