//! Owns: the file `log/durable`, which says up to which byte the newest segment is durable. It proves that a bad frame
//! at the end of the log is damage and not a torn write of a crash.
//!
//! ```text
//! magic 8 | salt of the segment u32 | durable end u64 | crc u32                                    (little-endian)
//! ```
//! It is written after each fdatasync of a frame and synced only at close. After a kill of the process it is exact.
//! After a power cut it may be old: then it proves less, but nothing wrong. If it cannot be read it proves nothing.
//! See architecture/decisions/0011-torn-or-damaged.md.

use std::io;
use std::path::Path;

use tracing::warn;

use super::segment::Header;
use crate::storage::disk::{Disk, DiskFile, read_whole};

const FILE: &str = "durable";
const MAGIC: &[u8; 8] = b"SMDURABL";
const BYTES: usize = 24;

/// The content of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurableEnd {
    salt: u32,
    end: u64,
}

impl DurableEnd {
    /// Reads the file of a directory; `None` if it is missing or damaged.
    pub fn read(disk: &dyn Disk, dir: &Path) -> Option<DurableEnd> {
        let bytes = read_whole(disk, &dir.join(FILE)).ok()??;
        let (body, crc) = bytes.get(..BYTES)?.split_last_chunk::<4>()?;
        if &body[..8] != MAGIC || crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let (salt, end) = body[8..].split_first_chunk::<4>()?;
        Some(DurableEnd { salt: u32::from_le_bytes(*salt), end: u64::from_le_bytes(end.try_into().ok()?) })
    }

    /// Up to which byte the segment with this header is durable; `None` if the file is about another segment.
    pub fn of(durable: Option<DurableEnd>, header: &Header) -> Option<u64> {
        durable.filter(|durable| durable.salt == header.salt).map(|durable| durable.end)
    }

    fn print(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&self.salt.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.end.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..20]);
        bytes[20..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// Writes the file. A failure is logged, but it does not stop the log.
pub struct DurableEndFile {
    file: Option<Box<dyn DiskFile>>,
}

impl DurableEndFile {
    pub fn open(disk: &dyn Disk, dir: &Path) -> DurableEndFile {
        let path = dir.join(FILE);
        let file = match disk.edit(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create(&path),
            opened => opened,
        };
        let file =
            file.inspect_err(|error| warn!(%error, file = %path.display(), "log: the durable end cannot be recorded"));
        DurableEndFile { file: file.ok() }
    }

    pub fn write(&mut self, salt: u32, end: u64) {
        let bytes = DurableEnd { salt, end }.print();
        self.attempt(|file| file.write_at(&bytes, 0));
    }

    /// Makes the file durable when the log is closed.
    pub fn sync(&mut self) {
        self.attempt(|file| file.sync_data());
    }

    fn attempt(&mut self, work: impl FnOnce(&mut Box<dyn DiskFile>) -> io::Result<()>) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = work(file) {
            warn!(%error, "log: the durable end is no longer recorded");
            self.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::disk::RealDisk;
    use std::fs;

    #[test]
    fn a_durable_end_reads_back_and_a_damaged_one_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(DurableEnd::read(&RealDisk, dir.path()), None);
        let mut file = DurableEndFile::open(&RealDisk, dir.path());
        file.write(7, 1 << 40);
        file.write(8, 60);
        file.sync();
        assert_eq!(DurableEnd::read(&RealDisk, dir.path()), Some(DurableEnd { salt: 8, end: 60 }));
        let path = dir.path().join(FILE);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, bad).unwrap();
            assert_eq!(DurableEnd::read(&RealDisk, dir.path()), None, "byte {at}");
        }
    }

    #[test]
    fn the_bytes_of_a_durable_end_stay_as_they_are() {
        let hex: String = DurableEnd { salt: 9, end: 60 }.print().iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(hex.starts_with("534d4455524142 4c".replace(' ', "").as_str()) && hex.len() == 48, "{hex}");
        assert_eq!(&hex[16..40], "090000003c00000000000000");
    }
}
