//! Owns: the undo area of a freeze: the values that keys had before the base changed them. In memory up to a limit,
//! beyond it in files of sorted pairs, so that a freeze needs little memory however much changes.
//! Never: which keys to save (`freeze.rs`).
//!
//! ```text
//! undo-<freeze>-<run>: { key length u32, value length u32 or FFFFFFFF for a missing key, CRC-32 of both, key, value }*
//! ```

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::KEY_OVERHEAD_BYTES;
use crate::machine::refusal::Fault;
use crate::storage::files;
use crate::storage::state::kv::Changed;

/// The prefix of undo file names. The files are useless to the next process.
pub const PREFIX: &str = "undo-";
const MISSING: u32 = u32::MAX;
const HEAD_BYTES: u64 = 12;
const BUFFER_BYTES: usize = 32 << 10;

/// Old values by key; `None` for a key that did not exist. Only the first value saved for a key is used.
pub struct Undo {
    path: PathBuf,
    saved: Changed,
    saved_bytes: usize,
    spill_bytes: usize,
    /// Oldest first.
    runs: Vec<Run>,
}

/// A part of the undo area: everything up to some key.
pub struct Taken {
    pub pairs: Changed,
    /// The last key, if the limit was reached before the requested end.
    pub cut: Option<Vec<u8>>,
}

impl Undo {
    /// Writes to files next to `path` beyond `spill_bytes` in memory.
    pub fn new(path: PathBuf, spill_bytes: usize) -> Undo {
        Undo { path, saved: Changed::new(), saved_bytes: 0, spill_bytes, runs: Vec::new() }
    }

    pub fn has(&self, key: &[u8]) -> bool {
        self.saved.contains_key(key)
    }

    /// Saves an old value, unless one is saved already.
    pub fn save(&mut self, key: &[u8], old: Option<Bytes>) {
        if !self.has(key) {
            self.saved_bytes += weight(key, old.as_ref());
            // A copy, because bytes from the base keep the whole block in memory.
            self.saved.insert(key.to_vec(), old.map(|old| Bytes::copy_from_slice(&old)));
        }
    }

    /// Moves saved values to a file if they exceed the limit. If that fails they stay in memory.
    pub fn make_room(&mut self) -> Result<(), Fault> {
        if self.saved_bytes <= self.spill_bytes {
            return Ok(());
        }
        let path = files::beside(&self.path, &format!("-{}", self.runs.len()));
        let run = Run::write(path, &self.saved).map_err(|error| Fault(format!("write the undo file: {error}")))?;
        self.runs.push(run);
        (self.saved, self.saved_bytes) = (Changed::new(), 0);
        Ok(())
    }

    /// Removes and returns the values up to `end`, or until `bytes_max` is reached.
    pub fn take(&mut self, end: Option<&[u8]>, bytes_max: usize) -> Result<Taken, Fault> {
        let mut taken = Taken { pairs: Changed::new(), cut: None };
        let mut bytes = 0;
        while let Some(key) = self.first_key().filter(|key| end.is_none_or(|end| *key <= end)).map(<[u8]>::to_vec) {
            let old = self.remove(&key)?;
            bytes += weight(&key, old.as_ref());
            taken.pairs.insert(key.clone(), old);
            if bytes >= bytes_max {
                taken.cut = Some(key);
                break;
            }
        }
        Ok(taken)
    }

    fn first_key(&self) -> Option<&[u8]> {
        let spilled = self.runs.iter().filter_map(|run| run.next.as_ref()).map(|(key, _)| key.as_slice());
        spilled.chain(self.saved.keys().next().map(Vec::as_slice)).min()
    }

    /// Removes the first key from all runs and from memory. Returns the value that was saved first.
    fn remove(&mut self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let mut oldest = None;
        for run in &mut self.runs {
            if let Some((_, old)) = run.next.take_if(|(first, _)| first == key) {
                oldest.get_or_insert(old);
                run.advance().map_err(|error| Fault(format!("read {}: {error}", run.path.display())))?;
            }
        }
        if let Some(old) = self.saved.remove(key) {
            self.saved_bytes -= weight(key, old.as_ref());
            oldest.get_or_insert(old);
        }
        Ok(oldest.flatten())
    }
}

fn weight(key: &[u8], old: Option<&Bytes>) -> usize {
    key.len() + old.map_or(0, Bytes::len) + KEY_OVERHEAD_BYTES
}

/// A file of sorted pairs that is read once, front to back.
struct Run {
    path: PathBuf,
    file: BufReader<File>,
    left: u64,
    next: Option<(Vec<u8>, Option<Bytes>)>,
}

impl Run {
    fn write(path: PathBuf, pairs: &Changed) -> io::Result<Run> {
        let written = write_pairs(&path, pairs).and_then(|left| Ok((left, File::open(&path)?)));
        let (left, file) = match written {
            Ok(written) => written,
            Err(error) => {
                files::remove(&path)?;
                return Err(error);
            }
        };
        let mut run = Run { path, file: BufReader::with_capacity(BUFFER_BYTES, file), left, next: None };
        run.advance()?;
        Ok(run)
    }

    fn advance(&mut self) -> io::Result<()> {
        self.next = None;
        if self.left == 0 {
            return Ok(());
        }
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it is damaged");
        let mut head = [0; HEAD_BYTES as usize];
        self.file.read_exact(&mut head)?;
        let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (key_length, value_length) = (number(0), number(4));
        let value_bytes = if value_length == MISSING { 0 } else { u64::from(value_length) };
        // Check the lengths against the size of the file before allocating.
        let length = HEAD_BYTES + u64::from(key_length) + value_bytes;
        self.left = self.left.checked_sub(length).ok_or_else(damaged)?;
        let mut key = vec![0; key_length as usize];
        self.file.read_exact(&mut key)?;
        let mut value = vec![0; value_bytes as usize];
        self.file.read_exact(&mut value)?;
        if checksum(&head[..8], &key, &value) != number(8) {
            return Err(damaged());
        }
        self.next = Some((key, (value_length != MISSING).then(|| value.into())));
        Ok(())
    }
}

/// Returns the length of the file. It is not synced: no process reads it after a restart.
fn write_pairs(path: &Path, pairs: &Changed) -> io::Result<u64> {
    let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "a key or value of 4 GiB");
    let mut file = BufWriter::with_capacity(BUFFER_BYTES, File::create(path)?);
    let mut bytes = 0;
    for (key, old) in pairs {
        let value = old.as_deref().unwrap_or_default();
        let key_length = u32::try_from(key.len()).map_err(too_long)?;
        let value_length = if old.is_some() { u32::try_from(value.len()).map_err(too_long)? } else { MISSING };
        let mut head = [0; HEAD_BYTES as usize];
        head[..4].copy_from_slice(&key_length.to_be_bytes());
        head[4..8].copy_from_slice(&value_length.to_be_bytes());
        let sum = checksum(&head[..8], key, value);
        head[8..].copy_from_slice(&sum.to_be_bytes());
        file.write_all(&head)?;
        file.write_all(key)?;
        file.write_all(value)?;
        bytes += HEAD_BYTES + key.len() as u64 + value.len() as u64;
    }
    file.flush()?;
    Ok(bytes)
}

fn checksum(lengths: &[u8], key: &[u8], value: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    [lengths, key, value].into_iter().for_each(|part| sum.update(part));
    sum.finalize()
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Err(error) = files::remove(&self.path) {
            // The next open tries again.
            tracing::debug!(%error, file = %self.path.display(), "an undo file was not removed yet");
        }
    }
}

/// Removes the undo files that a killed process left behind.
pub fn remove_all(dir: &Path) -> io::Result<()> {
    for found in fs::read_dir(dir)? {
        let path = found?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX)) {
            files::remove(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<Bytes> {
        Some(Bytes::copy_from_slice(text.as_bytes()))
    }

    /// Everything in it, taken in small parts.
    fn drain(undo: &mut Undo) -> Vec<(Vec<u8>, Option<Bytes>)> {
        let mut all = Vec::new();
        loop {
            let Taken { pairs, cut } = undo.take(None, 1).unwrap();
            all.extend(pairs);
            if cut.is_none() {
                return all;
            }
        }
    }

    #[test]
    fn the_first_value_saved_is_returned_wherever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let mut undo = Undo::new(dir.path().join("undo-1"), 0);
        for (n, keys) in [&["a", "c"][..], &["a", "b"], &["b", "c", "d"]].iter().enumerate() {
            keys.iter().for_each(|key| undo.save(key.as_bytes(), value(&n.to_string()).filter(|_| *key != "b")));
            undo.make_room().unwrap();
        }
        undo.save(b"a", value("late"));
        undo.save(b"e", value("late"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        let want = [("a", value("0")), ("b", None), ("c", value("0")), ("d", value("2")), ("e", value("late"))];
        let got = drain(&mut undo);
        assert_eq!(got, want.map(|(key, old)| (key.as_bytes().to_vec(), old)));
        drop(undo);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "its files go with it");
    }

    #[test]
    fn only_what_was_asked_for_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let mut undo = Undo::new(dir.path().join("undo-1"), 0);
        ["a", "b", "c"].iter().for_each(|key| undo.save(key.as_bytes(), None));
        undo.make_room().unwrap();
        let part = undo.take(Some(b"b"), usize::MAX).unwrap();
        assert_eq!((part.pairs.len(), part.cut), (2, None));
        assert_eq!(drain(&mut undo), [(b"c".to_vec(), None)]);
    }

    #[test]
    fn a_flipped_bit_in_an_undo_file_is_never_taken_for_a_value() {
        for at in 0..30 {
            let dir = tempfile::tempdir().unwrap();
            let mut undo = Undo::new(dir.path().join("undo-1"), 0);
            undo.save(b"first", value("0123456789"));
            undo.save(b"second", value("9"));
            let path = dir.path().join("undo-1-0");
            write_pairs(&path, &undo.saved).unwrap();
            let mut bytes = fs::read(&path).unwrap();
            bytes[at] ^= 4;
            fs::write(&path, &bytes).unwrap();
            let file = BufReader::new(File::open(&path).unwrap());
            let mut run = Run { path, file, left: bytes.len() as u64, next: None };
            let read = run.advance().and_then(|()| run.advance());
            assert!(read.is_err(), "byte {at}");
        }
    }
}
