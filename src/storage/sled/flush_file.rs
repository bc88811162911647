//! Owns: the flush file, a redo log for one layer: all writes of a layer, durable before sled gets the first of them.
//!
//! A kill may leave sled with half of a layer. Writing the same keys a second time is harmless, but applying the same
//! commands a second time is not. So the next open writes the whole flush file to sled again. Its keys and values are
//! those of sled, blocks included.
//!
//! ```text
//! "SMFLUSH1"  { key length u32, value length u32 or FFFFFFFF for a deleted key, key, value }*  CRC-32 of all before
//! ```

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use bytes::Bytes;

use super::base::Put;
use crate::storage::files;

const MAGIC: &[u8; 8] = b"SMFLUSH1";
const DELETED: u32 = u32::MAX;

/// Writes groups of pairs to `path`, durably and completely, or not at all.
pub fn write(path: &Path, groups: &[Vec<Put>]) -> io::Result<()> {
    let tmp = path.with_extension("tmp");
    let mut out =
        Summed { sum: crc32fast::Hasher::new(), file: BufWriter::with_capacity(1 << 16, File::create(&tmp)?) };
    out.put(MAGIC)?;
    for (key, value) in groups.iter().flatten() {
        out.put(&length(key.len())?.to_be_bytes())?;
        out.put(&value.as_ref().map_or(Ok(DELETED), |value| length(value.len()))?.to_be_bytes())?;
        out.put(key)?;
        out.put(value.as_deref().unwrap_or_default())?;
    }
    let Summed { sum, mut file } = out;
    file.write_all(&sum.finalize().to_be_bytes())?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    fs::rename(&tmp, path)?;
    // The name must be durable before sled gets a key: otherwise an older flush file would undo it after a crash.
    files::sync_parent(path)
}

/// The writes of an interrupted flush, as one group; `None` if there was none. Damage is `InvalidData`.
pub fn read(path: &Path) -> io::Result<Option<Vec<Vec<Put>>>> {
    // A file without its final name was never written to sled.
    files::remove(&path.with_extension("tmp"))?;
    let content = match fs::read(path) {
        Ok(content) => Bytes::from(content),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match parse(content) {
        Some(puts) => Ok(Some(vec![puts])),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged", path.display()))),
    }
}

fn parse(content: Bytes) -> Option<Vec<Put>> {
    let (body, sum) = content.split_last_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_be_bytes(*sum) {
        return None;
    }
    let mut at = content.slice(..body.len());
    let mut take = |count: usize| (count <= at.len()).then(|| at.split_to(count));
    if take(MAGIC.len())? != MAGIC[..] {
        return None;
    }
    let mut puts = Vec::new();
    while let Some(lengths) = take(8) {
        let (key_length, value_length) = lengths.split_first_chunk::<4>()?;
        let value_length = u32::from_be_bytes(value_length.try_into().ok()?);
        let key = take(u32::from_be_bytes(*key_length) as usize)?.to_vec();
        let value = match value_length {
            DELETED => None,
            length => Some(take(length as usize)?),
        };
        puts.push((key, value));
    }
    at.is_empty().then_some(puts)
}

fn length(length: usize) -> io::Result<u32> {
    let fits = u32::try_from(length).ok().filter(|length| *length != DELETED);
    fits.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a key or value of 4 GiB"))
}

struct Summed {
    sum: crc32fast::Hasher,
    file: BufWriter<File>,
}

impl Summed {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.file.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups() -> Vec<Vec<Put>> {
        let pairs = [(&b""[..], Some(&b""[..])), (b"a", Some(b"1")), (b"b", None)];
        vec![pairs.into_iter().map(|(key, value)| (key.to_vec(), value.map(Bytes::copy_from_slice))).collect()]
    }

    #[test]
    fn groups_read_back_as_one_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("flush.kv");
        assert_eq!(read(&path).unwrap(), None);
        write(&path, &groups()).unwrap();
        assert_eq!(read(&path).unwrap(), Some(groups()));
        write(&path, &[]).unwrap();
        assert_eq!(read(&path).unwrap(), Some(vec![Vec::new()]));
    }

    #[test]
    fn the_bytes_of_a_flush_file_stay_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("flush.kv");
        let one = (b"k".to_vec(), Some(Bytes::from_static(b"v")));
        write(&path, &[vec![one]]).unwrap();
        let mut golden = b"SMFLUSH1\0\0\0\x01\0\0\0\x01kv".to_vec();
        golden.extend(crc32fast::hash(&golden).to_be_bytes());
        assert_eq!(fs::read(&path).unwrap(), golden);
    }

    #[test]
    fn every_cut_and_every_flipped_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("flush.kv");
        write(&path, &groups()).unwrap();
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::InvalidData, "cut at {at}");
            let mut flipped = whole.clone();
            flipped[at] ^= 0x40;
            fs::write(&path, &flipped).unwrap();
            assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::InvalidData, "flipped at {at}");
        }
    }

    #[test]
    fn a_flush_file_without_its_final_name_never_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("flush.kv");
        fs::write(dir.path().join("flush.tmp"), b"anything").unwrap();
        assert_eq!(read(&path).unwrap(), None);
        assert!(!dir.path().join("flush.tmp").exists());
    }
}
