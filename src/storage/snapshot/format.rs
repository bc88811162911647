//! Owns: the layout of a snapshot file, and what can be known from its head and foot.
//!
//! ```text
//! <index, 20 digits>.snap:
//!   magic 8 | version u32 | checkpoint length u32 | checkpoint
//!   (key length u32 | value length u32 | key | value) for each pair in key order
//!   end u32 = ffffffff | pairs u64 | length of the file u64 | xxh3-128 of all bytes before, 16   (little-endian)
//! ```
//! The file holds its own length and checksum, so that a truncated copy is never taken for a complete one.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::Sealed;
use super::error::{Damage, SnapshotError, disk_error};
use crate::storage::disk::Disk;

pub(super) const MAGIC: &[u8; 8] = b"SMSNAPSH";
pub(super) const VERSION: u32 = 1;
pub(super) const HEAD_BYTES: u64 = 16;
pub(super) const FOOT_BYTES: u64 = 36;
/// Marks the end of the pairs, in the place of a key length.
pub(super) const END: u32 = u32::MAX;
/// A checkpoint is a log id and a membership. A longer one is damage.
const CHECKPOINT_BYTES_MAX: u32 = 1 << 20;
pub(super) const BUFFER_BYTES: usize = 256 << 10;

pub(super) fn file_name(index: u64) -> String {
    format!("{index:020}.snap")
}

pub(super) fn index_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".snap")?;
    if digits.len() == 20 { digits.parse().ok() } else { None }
}

/// Reads head and foot. That shows whether the file is complete, but not whether its pairs are intact.
pub(super) fn inspect(disk: &dyn Disk, path: &Path, index: u64) -> Result<Sealed, SnapshotError> {
    let failed = |error| disk_error(format!("reading {}", path.display()))(error);
    let damaged = |why: Damage| SnapshotError::Damaged { file: path.to_owned(), why };
    let mut file = disk.read(path).map_err(failed)?;
    let bytes = file.len().map_err(failed)?;
    if bytes < HEAD_BYTES + FOOT_BYTES {
        return Err(damaged(Damage::CutShort));
    }
    let mut head = [0; HEAD_BYTES as usize];
    file.read_exact(&mut head).map_err(failed)?;
    let checkpoint_bytes = check_head(&head).map_err(damaged)?;
    if HEAD_BYTES + u64::from(checkpoint_bytes) + FOOT_BYTES > bytes {
        return Err(damaged(Damage::CutShort));
    }
    let mut checkpoint = vec![0; checkpoint_bytes as usize];
    file.read_exact(&mut checkpoint).map_err(failed)?;
    let mut foot = [0; FOOT_BYTES as usize];
    file.seek(SeekFrom::End(-(FOOT_BYTES as i64))).and_then(|_| file.read_exact(&mut foot)).map_err(failed)?;
    let whole = foot[..4] == END.to_le_bytes() && foot[12..20] == bytes.to_le_bytes();
    if !whole {
        return Err(damaged(Damage::CutShort));
    }
    let mut checksum = [0; 16];
    checksum.copy_from_slice(&foot[20..]);
    let checksum = u128::from_le_bytes(checksum);
    Ok(Sealed { path: path.to_owned(), index, checkpoint: checkpoint.into(), bytes, checksum })
}

/// The length of the checkpoint.
pub(super) fn check_head(head: &[u8; HEAD_BYTES as usize]) -> Result<u32, Damage> {
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if &head[..8] != MAGIC {
        return Err(Damage::NotASnapshot);
    }
    if number(8) != VERSION {
        return Err(Damage::UnknownVersion(number(8)));
    }
    match number(12) {
        bytes if bytes <= CHECKPOINT_BYTES_MAX => Ok(bytes),
        bytes => Err(Damage::CheckpointTooLong(bytes)),
    }
}
