//! Owns: reading the pairs of a snapshot file as a stream, whatever its size. Every byte is checked on the way.

use std::io::{self, BufReader, Read};
use std::path::PathBuf;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::Sealed;
use super::error::{Damage, SnapshotError, disk_error};
use super::format::{BUFFER_BYTES, END, FOOT_BYTES, HEAD_BYTES, check_head};
use crate::machine::refusal::Fault;
use crate::storage::disk::{Disk, DiskFile};

/// One key with its value.
pub type Pair = (Vec<u8>, Bytes);

/// The pairs of a snapshot. Ends with an error unless every byte of the file is as it was written.
pub struct PairReader<R> {
    file: R,
    hash: Xxh3,
    path: PathBuf,
    /// Length of the whole snapshot.
    bytes: u64,
    /// Bytes of pairs that were not read yet.
    left: u64,
    pairs: u64,
    /// The checksum that was announced, if one was. The one in the file is checked in any case.
    announced: Option<u128>,
    ended: bool,
}

impl PairReader<BufReader<Box<dyn DiskFile>>> {
    pub(super) fn open(disk: &dyn Disk, sealed: &Sealed) -> Result<Self, SnapshotError> {
        let failed = |error| disk_error(format!("reading {}", sealed.path.display()))(error);
        let file = BufReader::with_capacity(BUFFER_BYTES, disk.read(&sealed.path).map_err(failed)?);
        let mut reader = PairReader::new(file, sealed.path.clone(), sealed.bytes);
        reader.announced = Some(sealed.checksum);
        let before = HEAD_BYTES + sealed.checkpoint.len() as u64;
        let mut head = vec![0; before as usize];
        reader.fill(&mut head).map_err(failed)?;
        reader.left = (sealed.bytes + 4).saturating_sub(before + FOOT_BYTES);
        Ok(reader)
    }
}

impl<R: Read> PairReader<R> {
    /// Reads a snapshot of this length from a stream: its checkpoint, and then its pairs.
    pub fn stream(file: R, path: PathBuf, bytes: u64) -> Result<(Bytes, PairReader<R>), Damage> {
        let mut reader = PairReader::new(file, path, bytes);
        let mut head = [0; HEAD_BYTES as usize];
        reader.fill(&mut head).map_err(unreadable)?;
        let checkpoint_bytes = check_head(&head)?;
        let around = HEAD_BYTES + u64::from(checkpoint_bytes) + FOOT_BYTES;
        reader.left = (bytes + 4).checked_sub(around).filter(|left| *left >= 4).ok_or(Damage::CutShort)?;
        let mut checkpoint = vec![0; checkpoint_bytes as usize];
        reader.fill(&mut checkpoint).map_err(unreadable)?;
        Ok((checkpoint.into(), reader))
    }

    fn new(file: R, path: PathBuf, bytes: u64) -> PairReader<R> {
        PairReader { file, hash: Xxh3::new(), path, bytes, left: 0, pairs: 0, announced: None, ended: false }
    }

    /// What comes after the snapshot in the stream, once all pairs were read.
    pub fn rest(&mut self) -> &mut R {
        &mut self.file
    }

    /// The next pair; `None` after the last one, when the checksum matches.
    pub fn pair(&mut self) -> Result<Option<Pair>, Damage> {
        let key_bytes = self.number()?;
        if key_bytes == END {
            return self.check_foot().map(|()| None);
        }
        let value_bytes = self.number()?;
        let key = self.bytes(key_bytes)?;
        let value = self.bytes(value_bytes)?;
        self.pairs += 1;
        Ok(Some((key, value.into())))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.hash.update(bytes);
        Ok(())
    }

    fn number(&mut self) -> Result<u32, Damage> {
        let mut bytes = [0; 4];
        self.left = self.left.checked_sub(4).ok_or(Damage::BeyondEnd)?;
        self.fill(&mut bytes).map_err(unreadable)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Checks the length against the size of the file before it allocates: a damaged length must not reserve memory.
    fn bytes(&mut self, count: u32) -> Result<Vec<u8>, Damage> {
        self.left = self.left.checked_sub(u64::from(count)).ok_or(Damage::BeyondEnd)?;
        let mut bytes = vec![0; count as usize];
        self.fill(&mut bytes).map_err(unreadable)?;
        Ok(bytes)
    }

    fn check_foot(&mut self) -> Result<(), Damage> {
        let mut foot = [0; 16];
        self.fill(&mut foot).map_err(unreadable)?;
        if self.left != 0 || foot[..8] != self.pairs.to_le_bytes() || foot[8..] != self.bytes.to_le_bytes() {
            return Err(Damage::FooterMismatch);
        }
        let mut written = [0; 16];
        self.file.read_exact(&mut written).map_err(unreadable)?;
        let read = self.hash.digest128();
        if read != u128::from_le_bytes(written) || self.announced.is_some_and(|announced| read != announced) {
            return Err(Damage::Checksum);
        }
        Ok(())
    }
}

fn unreadable(error: io::Error) -> Damage {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Damage::CutShort,
        _other => Damage::Unreadable(error.to_string()),
    }
}

impl<R: Read> Iterator for PairReader<R> {
    type Item = Result<Pair, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let pair = self.pair();
        self.ended = !matches!(pair, Ok(Some(_)));
        let error = |why| Fault(SnapshotError::Damaged { file: self.path.clone(), why }.to_string());
        pair.map_err(error).transpose()
    }
}
