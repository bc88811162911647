//! Owns: the layout of a backup file: where it comes from, one snapshot, and a checksum over all of it.
//! Never: what the checkpoint or the pairs mean.
//!
//! ```text
//! magic 8 | version u32 | head length u32 | head (JSON) | a snapshot file | xxh3-128 of all bytes before, 16
//! ```
//! The numbers are little-endian. The head says how long the snapshot is, so a file that was cut short is recognised at
//! once. A file is written and read as a stream, whatever its size.

use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::snapshot::{Damage, Pair, PairReader};
use crate::machine::refusal::Fault;

const MAGIC: &[u8; 8] = b"SMBACKUP";
const VERSION: u32 = 1;
/// Magic, version and the length of the head.
const BEFORE_HEAD_BYTES: u64 = 16;
const CHECKSUM_BYTES: u64 = 16;
/// The head has a few short fields. A longer one is damage.
const HEAD_BYTES_MAX: u32 = 64 << 10;
const BUFFER_BYTES: usize = 256 << 10;

/// Where a backup comes from. JSON, so that a person can read it in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub cluster_id: String,
    /// The node that wrote the snapshot.
    pub node: u64,
    /// The last log entry in it.
    pub index: u64,
    /// The state hash at that entry, 32 hex digits.
    pub state_hash: String,
    /// Milliseconds since the epoch.
    pub taken_at_ms: i64,
    /// The version of the program that wrote the snapshot.
    pub version: String,
    pub snapshot_bytes: u64,
}

/// Why a backup cannot be written or read.
#[derive(Debug)]
pub enum BackupError {
    Disk {
        file: PathBuf,
        error: io::Error,
    },
    /// Another kind of file.
    NotABackup(PathBuf),
    /// A file of a later version of this program.
    Newer {
        file: PathBuf,
        version: u32,
    },
    Damaged {
        file: PathBuf,
        why: Damage,
    },
    /// The head does not say what the snapshot holds, or cannot be read.
    Head {
        file: PathBuf,
        why: String,
    },
    /// Bytes follow the end of the backup.
    Longer(PathBuf),
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupError::Disk { file, error } => write!(f, "{}: {error}", file.display()),
            BackupError::NotABackup(file) => {
                write!(f, "{}: it is not a backup file of session-manager", file.display())
            }
            BackupError::Newer { file, version } => write!(
                f,
                "{}: it has backup format {version}; this build reads format {VERSION}: use a newer build",
                file.display()
            ),
            BackupError::Damaged { file, why } => write!(f, "{}: the backup is damaged: {why}", file.display()),
            BackupError::Head { file, why } => write!(f, "{}: the backup is damaged: its head: {why}", file.display()),
            BackupError::Longer(file) => {
                write!(f, "{}: the backup is damaged: bytes follow its end", file.display())
            }
        }
    }
}

impl std::error::Error for BackupError {}

/// Writes a backup as a stream.
pub struct BackupWriter<W> {
    out: W,
    hash: Xxh3,
    /// Bytes of the snapshot that are still to come.
    left: u64,
}

impl<W: Write> BackupWriter<W> {
    pub fn begin(out: W, head: &Head) -> io::Result<BackupWriter<W>> {
        let text = serde_json::to_vec(head)?;
        let mut writer = BackupWriter { out, hash: Xxh3::new(), left: head.snapshot_bytes };
        writer.put(MAGIC)?;
        writer.put(&VERSION.to_le_bytes())?;
        writer.put(&(text.len() as u32).to_le_bytes())?;
        writer.put(&text)?;
        Ok(writer)
    }

    /// Writes the next bytes of the snapshot.
    pub fn chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        let too_long = || io::Error::new(io::ErrorKind::InvalidData, "more bytes came than were announced");
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(too_long)?;
        self.put(bytes)
    }

    /// Writes the checksum, if the whole snapshot came.
    pub fn finish(mut self) -> io::Result<W> {
        if self.left > 0 {
            let why = format!("the stream ended {} bytes too early", self.left);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        self.out.write_all(&self.hash.digest128().to_le_bytes())?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.out.write_all(bytes)
    }
}

/// A stream that is hashed while it is read.
struct Hashed<R> {
    input: R,
    hash: Xxh3,
    bytes: u64,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.hash.update(&buffer[..read]);
        self.bytes += read as u64;
        Ok(read)
    }
}

/// The pairs of a backup. The last one comes before the checksums are checked: act on them only after the end.
pub struct BackupReader<R: Read> {
    pub head: Head,
    pub checkpoint: Bytes,
    file: PathBuf,
    pairs: PairReader<Hashed<BufReader<R>>>,
    ended: bool,
}

impl BackupReader<std::fs::File> {
    /// Opens a file. One that was cut short is refused at once.
    pub fn open(file: &Path) -> Result<BackupReader<std::fs::File>, BackupError> {
        let at = |error| BackupError::Disk { file: file.to_owned(), error };
        let input = std::fs::File::open(file).map_err(at)?;
        let bytes = input.metadata().map_err(at)?.len();
        BackupReader::new(input, file, Some(bytes))
    }
}

impl<R: Read> BackupReader<R> {
    /// Reads the start of a backup. `file` names it in errors; `bytes` is its length, if it is known.
    pub fn new(input: R, file: &Path, bytes: Option<u64>) -> Result<BackupReader<R>, BackupError> {
        let damaged = |why| BackupError::Damaged { file: file.to_owned(), why };
        let read = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged(Damage::CutShort),
            _other => BackupError::Disk { file: file.to_owned(), error },
        };
        let mut input = Hashed { input: BufReader::with_capacity(BUFFER_BYTES, input), hash: Xxh3::new(), bytes: 0 };
        let mut start = [0; BEFORE_HEAD_BYTES as usize];
        match input.read_exact(&mut start) {
            // So short that it is nothing of ours.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(BackupError::NotABackup(file.to_owned()));
            }
            outcome => outcome.map_err(read)?,
        }
        let number = |at: usize| u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]);
        if &start[..8] != MAGIC {
            return Err(BackupError::NotABackup(file.to_owned()));
        }
        if number(8) != VERSION {
            return Err(BackupError::Newer { file: file.to_owned(), version: number(8) });
        }
        let head_error = |why: String| BackupError::Head { file: file.to_owned(), why };
        if number(12) > HEAD_BYTES_MAX {
            return Err(head_error(format!("it has {} bytes", number(12))));
        }
        let mut text = vec![0; number(12) as usize];
        input.read_exact(&mut text).map_err(read)?;
        let head: Head = serde_json::from_slice(&text).map_err(|error| head_error(error.to_string()))?;
        let whole = head.snapshot_bytes.checked_add(BEFORE_HEAD_BYTES + text.len() as u64 + CHECKSUM_BYTES);
        match (bytes, whole) {
            (Some(bytes), Some(whole)) if bytes < whole => return Err(damaged(Damage::CutShort)),
            (Some(bytes), Some(whole)) if bytes > whole => return Err(BackupError::Longer(file.to_owned())),
            (_, None) => return Err(damaged(Damage::BeyondEnd)),
            (Some(_) | None, Some(_)) => {}
        }
        let (checkpoint, pairs) = PairReader::stream(input, file.to_owned(), head.snapshot_bytes).map_err(damaged)?;
        Ok(BackupReader { head, checkpoint, file: file.to_owned(), pairs, ended: false })
    }

    /// The next pair; `None` after the last one, when every byte was as it was written.
    pub fn pair(&mut self) -> Result<Option<Pair>, BackupError> {
        let damaged = |why| BackupError::Damaged { file: self.file.clone(), why };
        if self.ended {
            return Ok(None);
        }
        match self.pairs.pair() {
            Ok(Some(pair)) => Ok(Some(pair)),
            Ok(None) => {
                self.ended = true;
                self.check_end().map(|()| None)
            }
            Err(why) => {
                self.ended = true;
                Err(damaged(why))
            }
        }
    }

    /// Bytes that were read so far.
    pub fn bytes(&mut self) -> u64 {
        self.pairs.rest().bytes
    }

    fn check_end(&mut self) -> Result<(), BackupError> {
        let file = self.file.clone();
        let read = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => BackupError::Damaged { file: file.clone(), why: Damage::CutShort },
            _other => BackupError::Disk { file: file.clone(), error },
        };
        let hashed = self.pairs.rest();
        let got = hashed.hash.digest128();
        let mut written = [0; CHECKSUM_BYTES as usize];
        hashed.read_exact(&mut written).map_err(&read)?;
        if got != u128::from_le_bytes(written) {
            return Err(BackupError::Damaged { file: file.clone(), why: Damage::Checksum });
        }
        if hashed.read(&mut [0]).map_err(&read)? > 0 {
            return Err(BackupError::Longer(file.clone()));
        }
        Ok(())
    }
}

impl<R: Read> Iterator for BackupReader<R> {
    type Item = Result<Pair, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        self.pair().map_err(|error| Fault(error.to_string())).transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::storage::disk::RealDisk;
    use crate::storage::snapshot::Snapshots;

    fn pairs(count: u32) -> Vec<Pair> {
        (0..count).map(|n| (n.to_be_bytes().to_vec(), Bytes::from(vec![n as u8; n as usize % 50]))).collect()
    }

    fn backup(count: u32) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(Arc::new(RealDisk), dir.path()).unwrap();
        let all = Box::new(pairs(count).into_iter().map(Ok));
        let sealed = snapshots.write(7, Bytes::from_static(b"checkpoint"), all).unwrap();
        let snapshot = std::fs::read(&sealed.path).unwrap();
        let head = Head {
            cluster_id: "c".to_owned(),
            node: 2,
            index: 7,
            state_hash: "0a".repeat(16),
            taken_at_ms: 1,
            version: "0.1.0".to_owned(),
            snapshot_bytes: snapshot.len() as u64,
        };
        let mut writer = BackupWriter::begin(Vec::new(), &head).unwrap();
        for chunk in snapshot.chunks(100) {
            writer.chunk(chunk).unwrap();
        }
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8], length: Option<u64>) -> Result<(Head, Vec<Pair>), BackupError> {
        let mut reader = BackupReader::new(bytes, Path::new("b"), length)?;
        let mut pairs = Vec::new();
        while let Some(pair) = reader.pair()? {
            pairs.push(pair);
        }
        Ok((reader.head, pairs))
    }

    #[test]
    fn a_backup_reads_back_as_written() {
        let bytes = backup(300);
        for length in [None, Some(bytes.len() as u64)] {
            let (head, read) = read(&bytes, length).unwrap();
            assert_eq!((head.index, head.node), (7, 2));
            assert_eq!(read, pairs(300));
        }
    }

    #[test]
    fn the_start_of_a_backup_stays_as_it_is() {
        let bytes = backup(1);
        let head = br#"{"cluster_id":"c","node":2,"index":7,"state_hash":"#;
        assert_eq!(&bytes[..12], b"SMBACKUP\x01\0\0\0");
        assert_eq!(&bytes[16..16 + head.len()], head);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = backup(12);
        for at in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[at / 8] ^= 1 << (at % 8);
            for length in [None, Some(bad.len() as u64)] {
                assert!(read(&bad, length).is_err(), "bit {} of byte {}", at % 8, at / 8);
            }
        }
    }

    #[test]
    fn every_truncation_and_every_extra_byte_is_found_and_named() {
        let good = backup(12);
        for bytes in 0..good.len() {
            for length in [None, Some(bytes as u64)] {
                let error = read(&good[..bytes], length).unwrap_err().to_string();
                let expected = if bytes < 16 { "is not a backup" } else { "it was cut short" };
                assert!(error.contains(expected), "{bytes} bytes: {error}");
            }
        }
        let mut longer = good.clone();
        longer.push(0);
        for length in [None, Some(longer.len() as u64)] {
            assert!(read(&longer, length).unwrap_err().to_string().contains("bytes follow its end"));
        }
    }

    #[test]
    fn a_foreign_and_a_newer_file_are_refused_by_name() {
        let foreign = read(b"SMSNAPSH\x01\0\0\0\x04\0\0\0mark", None).unwrap_err().to_string();
        assert!(foreign.contains("b: it is not a backup file"), "{foreign}");
        let mut newer = backup(1);
        newer[8] = 9;
        let newer = read(&newer, None).unwrap_err().to_string();
        assert!(newer.contains("backup format 9; this build reads format 1"), "{newer}");
    }

    #[test]
    fn a_stream_that_ends_early_is_no_backup() {
        let head = Head {
            cluster_id: String::new(),
            node: 1,
            index: 1,
            state_hash: String::new(),
            taken_at_ms: 0,
            version: String::new(),
            snapshot_bytes: 10,
        };
        let mut writer = BackupWriter::begin(Vec::new(), &head).unwrap();
        writer.chunk(&[0; 4]).unwrap();
        assert!(writer.chunk(&[0; 7]).is_err(), "more than announced");
        assert!(writer.finish().unwrap_err().to_string().contains("6 bytes too early"));
    }
}
