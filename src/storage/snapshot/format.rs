//! Owns: the layout of a snapshot file, and what can be known from its head and foot.
//!
//! ```text
//! <index, 20 digits>.snap:
//!   magic 8 | version u32 | checkpoint length u32 | checkpoint
//!   (key length u32 | value length u32 | key | value) for each pair in key order
//!   end u32 = ffffffff | pairs u64 | length of the file u64 | xxh3-128 of all bytes before, 16   (little-endian)
//! ```
//! The file holds its own length and checksum, so that a truncated copy is never taken for a complete one.
//!
//! Format 1, above, holds everything. It is what nodes send to each other and what a backup holds. A node whose bodies are
//! in files writes format 3 for itself. The texts of entries are in copies of these files (`bodies.rs`), and the rest is
//! packed in blocks (`packed.rs`):
//!
//! ```text
//! <index, 20 digits>.snap:
//!   magic 8 | version u32 | checkpoint length u32 | checkpoint
//!   blocks, which hold (key length u32 | value length u32 | key | value) for each pair in key order; the highest bit of a
//!                       value length says that the value is a body, and the place of the body stands there instead, 16
//!   end u32 = ffffffff | (number u32 | bytes u64) for each body file | body files u32 | directory of the copies 16
//!   | pairs u64 | length in format 1 u64 | length of the file u64 | xxh3-128 of all bytes before, 16
//! ```
//! Format 2 is the same without blocks: the pairs stand in the file as they are. It is read and not written any more.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use super::Sealed;
use super::bodies::Apart;
use super::error::{Damage, SnapshotError, disk_error};
use crate::storage::disk::Disk;

pub(super) const MAGIC: &[u8; 8] = b"SMSNAPSH";
pub(super) const VERSION: u32 = 1;
/// Bodies stand in files of their own.
pub(super) const VERSION_APART: u32 = 2;
/// And the pairs are packed.
pub(super) const VERSION_PACKED: u32 = 3;
/// In the length of a value: it is a body.
pub(super) const BODY: u32 = 1 << 31;
/// The part of the foot of formats 2 and 3 whose length is known, without the checksum.
const APART_TAIL_BYTES: usize = 44;
const FILE_BYTES: usize = 12;
pub(super) const CHECKSUM_BYTES: u64 = 16;
pub(super) const HEAD_BYTES: u64 = 16;
pub(super) const FOOT_BYTES: u64 = 36;
/// Marks the end of the pairs, in the place of a key length or of a block.
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
    let Head { version, checkpoint_bytes } = check_head(&head).map_err(damaged)?;
    if HEAD_BYTES + u64::from(checkpoint_bytes) + FOOT_BYTES > bytes {
        return Err(damaged(Damage::CutShort));
    }
    let mut checkpoint = vec![0; checkpoint_bytes as usize];
    file.read_exact(&mut checkpoint).map_err(failed)?;
    let mut end = |count: u64| {
        let mut foot = vec![0; count as usize];
        file.seek(SeekFrom::End(-(count as i64))).and_then(|_| file.read_exact(&mut foot)).map(|()| foot)
    };
    let mut foot = end(FOOT_BYTES).map_err(failed)?;
    let mut apart = None;
    if version >= VERSION_APART {
        let tail_bytes = APART_TAIL_BYTES as u64 + CHECKSUM_BYTES;
        if HEAD_BYTES + u64::from(checkpoint_bytes) + tail_bytes + 4 > bytes {
            return Err(damaged(Damage::CutShort));
        }
        let tail = end(tail_bytes).map_err(failed)?;
        let files = u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
        let foot_bytes = tail_bytes + u64::from(files) * FILE_BYTES as u64 + 4;
        if HEAD_BYTES + u64::from(checkpoint_bytes) + foot_bytes > bytes {
            return Err(damaged(Damage::CutShort));
        }
        foot = end(foot_bytes).map_err(failed)?;
        apart = Some(Arc::new(read_apart(&foot, path).ok_or_else(|| damaged(Damage::CutShort))?));
    }
    let (rest, checksum) = foot.split_at(foot.len() - CHECKSUM_BYTES as usize);
    let whole = rest[..4] == END.to_le_bytes() && rest.ends_with(&bytes.to_le_bytes());
    if !whole {
        return Err(damaged(Damage::CutShort));
    }
    let checksum = u128_of(checksum);
    Ok(Sealed { path: path.to_owned(), index, checkpoint: checkpoint.into(), bytes, checksum, apart })
}

/// What follows the pairs, from the end mark to the checksum.
pub(super) fn print_foot(apart: Option<&Apart>, pairs: u64, bytes_before: u64) -> Vec<u8> {
    let mut foot = END.to_le_bytes().to_vec();
    if let Some(apart) = apart {
        for (file, end) in &apart.files {
            foot.extend(file.to_le_bytes());
            foot.extend(end.to_le_bytes());
        }
        foot.extend((apart.files.len() as u32).to_le_bytes());
        foot.extend(apart.name.to_le_bytes());
        foot.extend(pairs.to_le_bytes());
        foot.extend(apart.whole_bytes.to_le_bytes());
    } else {
        foot.extend(pairs.to_le_bytes());
    }
    let bytes = bytes_before + foot.len() as u64 + 8 + CHECKSUM_BYTES;
    foot.extend(bytes.to_le_bytes());
    foot
}

/// What a foot of format 2 or 3 says of the bodies.
fn read_apart(foot: &[u8], path: &Path) -> Option<Apart> {
    let tail = foot.len().checked_sub(APART_TAIL_BYTES + CHECKSUM_BYTES as usize)?;
    let number = |at: usize| Some(u64::from_le_bytes(foot.get(at..at + 8)?.try_into().ok()?));
    let mut files = BTreeMap::new();
    for at in (4..tail).step_by(FILE_BYTES) {
        let file = u32::from_le_bytes(foot.get(at..at + 4)?.try_into().ok()?);
        files.insert(file, number(at + 4)?);
    }
    let name = u128_of(foot.get(tail + 4..tail + 20)?);
    Some(Apart::new(path.parent()?, name, files, number(tail + 28)?))
}

fn u128_of(bytes: &[u8]) -> u128 {
    let mut number = [0; 16];
    number.copy_from_slice(bytes);
    u128::from_le_bytes(number)
}

pub(super) struct Head {
    pub version: u32,
    pub checkpoint_bytes: u32,
}

pub(super) fn print_head(version: u32, checkpoint: &[u8]) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend(version.to_le_bytes());
    head.extend((checkpoint.len() as u32).to_le_bytes());
    head.extend(checkpoint);
    head
}

pub(super) fn check_head(head: &[u8; HEAD_BYTES as usize]) -> Result<Head, Damage> {
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if &head[..8] != MAGIC {
        return Err(Damage::NotASnapshot);
    }
    let version = number(8);
    if !(VERSION..=VERSION_PACKED).contains(&version) {
        return Err(Damage::UnknownVersion(version));
    }
    match number(12) {
        checkpoint_bytes if checkpoint_bytes <= CHECKPOINT_BYTES_MAX => Ok(Head { version, checkpoint_bytes }),
        bytes => Err(Damage::CheckpointTooLong(bytes)),
    }
}
