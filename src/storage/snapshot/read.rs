//! Owns: reading the pairs of a snapshot file as a stream, whatever its size. Every byte is checked on the way.

use std::io::{self, BufReader, Read};
use std::path::PathBuf;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::Sealed;
use super::error::{Damage, SnapshotError, disk_error};
use super::format::{BUFFER_BYTES, END, FOOT_BYTES, HEAD_BYTES};
use crate::machine::refusal::Fault;
use crate::storage::disk::{Disk, DiskFile};

/// The pairs of a snapshot. Ends with an error unless every byte of the file is as it was written.
pub(super) struct PairReader {
    file: BufReader<Box<dyn DiskFile>>,
    hash: Xxh3,
    path: PathBuf,
    /// Bytes of pairs that were not read yet.
    left: u64,
    pairs: u64,
    checksum: u128,
    ended: bool,
}

impl PairReader {
    pub fn open(disk: &dyn Disk, sealed: &Sealed) -> Result<PairReader, SnapshotError> {
        let doing = || disk_error(format!("reading {}", sealed.path.display()));
        let file = disk.read(&sealed.path).map_err(doing())?;
        let before = HEAD_BYTES + sealed.checkpoint.len() as u64;
        let mut reader = PairReader {
            file: BufReader::with_capacity(BUFFER_BYTES, file),
            hash: Xxh3::new(),
            path: sealed.path.clone(),
            left: (sealed.bytes + 4).saturating_sub(before + FOOT_BYTES),
            pairs: 0,
            checksum: sealed.checksum,
            ended: false,
        };
        let mut head = vec![0; before as usize];
        reader.fill(&mut head).map_err(doing())?;
        Ok(reader)
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

    fn pair(&mut self) -> Result<Option<(Vec<u8>, Bytes)>, Damage> {
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

    fn check_foot(&mut self) -> Result<(), Damage> {
        let mut foot = [0; 16];
        self.fill(&mut foot).map_err(unreadable)?;
        if self.left != 0 || foot[..8] != self.pairs.to_le_bytes() {
            return Err(Damage::FooterMismatch);
        }
        if self.hash.digest128() != self.checksum {
            return Err(Damage::Checksum);
        }
        Ok(())
    }
}

fn unreadable(error: io::Error) -> Damage {
    Damage::Unreadable(error.to_string())
}

impl Iterator for PairReader {
    type Item = Result<(Vec<u8>, Bytes), Fault>;

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
