//! Owns: a planted bug: a disk that completes a snapshot file whose transfer was interrupted, so that the file looks
//! whole to its reader. The format is the one of `storage/snapshot/format.rs`.

use xxhash_rust::xxh3::xxh3_128;

use crate::file_system::File;

const HEAD_BYTES: usize = 16;
const FOOT_BYTES: usize = 36;
const END: u32 = u32::MAX;

/// Ends the file after its last whole pair, with a matching count, length and checksum. A whole file stays as it is.
pub fn complete(file: &File) {
    let mut bytes = vec![0; file.len()];
    file.read_at(0, &mut bytes);
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let Some(mark_bytes) = number(12) else { return };
    let (mut end, mut pairs) = (HEAD_BYTES + mark_bytes as usize, 0u64);
    while let (Some(key), Some(value)) = (number(end), number(end + 4)) {
        let next = end + 8 + key as usize + value as usize;
        if key == END || next > bytes.len() {
            break;
        }
        (end, pairs) = (next, pairs + 1);
    }
    let whole = number(end) == Some(END) && bytes.len() == end + FOOT_BYTES;
    if whole || end > bytes.len() {
        return;
    }
    bytes.truncate(end);
    bytes.extend(END.to_le_bytes());
    bytes.extend(pairs.to_le_bytes());
    bytes.extend(((end + FOOT_BYTES) as u64).to_le_bytes());
    let checksum = xxh3_128(&bytes);
    bytes.extend(checksum.to_le_bytes());
    file.set_len(0);
    file.write_at(0, &bytes);
    file.sync();
}
