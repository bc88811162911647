//! Owns: file operations of the real file system: sync a directory, replace a file atomically, lock a directory.
//! Never: what is in the files.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Makes the creation, renaming and removal of files in a directory durable. Windows does that itself and cannot sync a
/// directory.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(windows) {
        return Ok(());
    }
    File::open(dir)?.sync_all()?;
    #[cfg(test)]
    synced::SEEN.with_borrow_mut(|seen| seen.push(dir.to_owned()));
    Ok(())
}

/// For tests: the directories that this thread has synced.
#[cfg(test)]
pub mod synced {
    use super::PathBuf;
    use std::cell::RefCell;

    thread_local! {
        pub static SEEN: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
    }

    /// What was synced since the last look.
    pub fn take() -> Vec<PathBuf> {
        SEEN.take()
    }
}

/// Creates a directory and those above it that do not exist, durably.
pub fn create_dir(dir: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
    fs::create_dir_all(dir)?;
    // If a crash loses the name of a directory, its files are lost too: sync every new parent.
    missing.into_iter().filter(|dir| !dir.as_os_str().is_empty()).try_for_each(sync_parent)
}

/// Replaces the file at `path` atomically and durably.
pub fn put_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let tmp = beside(path, ".tmp");
    let mut file = File::create(&tmp)?;
    file.write_all(content)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&tmp, path)?;
    sync_parent(path)
}

/// The free and all bytes of the file system of a directory. `None` where the system does not say.
pub fn disk_space(dir: &Path) -> Option<(u64, u64)> {
    #[cfg(unix)]
    return rustix::fs::statvfs(dir)
        .ok()
        .map(|found| (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize));
    #[cfg(not(unix))]
    return None;
}

pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        Some(_) | None => sync_dir(Path::new(".")),
    }
}

/// The same path with `suffix` appended to its name.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Removes a file, or a directory with its content. It is no error if it does not exist.
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

/// Locks a directory for one process. The operating system releases the lock when the process ends.
#[derive(Debug)]
pub struct DirLock {
    _held: File,
}

/// How long to wait for the lock: a previous process may be about to end.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

impl DirLock {
    pub fn acquire(dir: &Path) -> io::Result<DirLock> {
        let path = dir.join("LOCK");
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        let give_up = Instant::now() + LOCK_TIMEOUT;
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
