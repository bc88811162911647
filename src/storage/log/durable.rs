//! Owns: the note of how far the newest segment was durable (`log/durable`). Proof that a bad frame at the very end of
//! the log is damage, and not a write that a crash cut short.
//!
//! ```text
//! magic 8 | salt of the segment u32 | durable end u64 | crc u32                                    (little-endian)
//! ```
//! It is written after each fdatasync of a frame and has no fsync of its own but at close: a killed process leaves it
//! exact, a power cut may leave an older one, which proves less and never too much. A note that cannot be read proves
//! nothing. See architecture/decisions/0011-torn-or-damaged.md.

use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use tracing::warn;

use super::segment::Header;
use crate::storage::disk::{Disk, DiskFile, read_whole};

const FILE: &str = "durable";
const MAGIC: &[u8; 8] = b"SMDURABL";
const BYTES: usize = 24;

/// What a note says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurableEnd {
    salt: u32,
    end: u64,
}

impl DurableEnd {
    /// The note in a directory; `None` where there is none that can be read.
    pub fn read(disk: &dyn Disk, dir: &Path) -> Option<DurableEnd> {
        let bytes = read_whole(disk, &dir.join(FILE)).ok()??;
        let (body, crc) = bytes.get(..BYTES)?.split_last_chunk::<4>()?;
        if &body[..8] != MAGIC || crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let (salt, end) = body[8..].split_first_chunk::<4>()?;
        Some(DurableEnd { salt: u32::from_le_bytes(*salt), end: u64::from_le_bytes(end.try_into().ok()?) })
    }

    /// How far the segment with this header was durable, where the note is about it.
    pub fn of(note: Option<DurableEnd>, header: &Header) -> Option<u64> {
        note.filter(|note| note.salt == header.salt).map(|note| note.end)
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

/// Keeps the note. It is worth having, not worth failing for.
pub struct Notary {
    file: Option<Box<dyn DiskFile>>,
}

impl Notary {
    pub fn open(disk: &dyn Disk, dir: &Path) -> Notary {
        let path = dir.join(FILE);
        let file = match disk.edit(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create(&path),
            opened => opened,
        };
        let file = file.inspect_err(|error| warn!(%error, file = %path.display(), "log: the durable end is not noted"));
        Notary { file: file.ok() }
    }

    pub fn note(&mut self, salt: u32, end: u64) {
        let bytes = DurableEnd { salt, end }.print();
        self.attempt(|file| file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&bytes)));
    }

    /// Makes the note last: the log is closed in order.
    pub fn settle(&mut self) {
        self.attempt(|file| file.sync_data());
    }

    fn attempt(&mut self, work: impl FnOnce(&mut Box<dyn DiskFile>) -> io::Result<()>) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = work(file) {
            warn!(%error, "log: the durable end is not noted any more");
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
    fn a_note_reads_back_and_a_damaged_one_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(DurableEnd::read(&RealDisk, dir.path()), None);
        let mut notary = Notary::open(&RealDisk, dir.path());
        notary.note(7, 1 << 40);
        notary.note(8, 60);
        notary.settle();
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
    fn the_bytes_of_a_note_stay_as_they_are() {
        let hex: String = DurableEnd { salt: 9, end: 60 }.print().iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(hex.starts_with("534d4455524142 4c".replace(' ', "").as_str()) && hex.len() == 48, "{hex}");
        assert_eq!(&hex[16..40], "090000003c00000000000000");
    }
}
