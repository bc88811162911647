//! Owns: writing a snapshot file, durable when it returns.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::Sealed;
use super::error::{SnapshotError, disk_error};
use super::format::{BUFFER_BYTES, END, MAGIC, VERSION};
use crate::storage::Pairs;
use crate::storage::disk::{Disk, DiskFile};

/// The file is synced in steps of this size. An fdatasync of the log may have to wait for one of them.
const SYNC_BYTES: u64 = 1 << 20;

/// Writes all pairs to `path`. Stops with the error of `check_open`, which it calls for each pair.
pub(super) fn write(
    disk: &dyn Disk,
    path: &Path,
    index: u64,
    checkpoint: Bytes,
    pairs: Pairs<'_>,
    check_open: impl Fn() -> Result<(), SnapshotError>,
) -> Result<Sealed, SnapshotError> {
    // The text is made for an error only: this is called several times for each pair.
    let failed = |error| disk_error(format!("writing {}", path.display()))(error);
    let file = disk.create(path).map_err(failed)?;
    let mut out = Hashing { file: BufWriter::with_capacity(BUFFER_BYTES, file), hash: Xxh3::new(), bytes: 0 };
    out.put(MAGIC).map_err(failed)?;
    out.put(&VERSION.to_le_bytes()).map_err(failed)?;
    out.put(&(checkpoint.len() as u32).to_le_bytes()).map_err(failed)?;
    out.put(&checkpoint).map_err(failed)?;
    let (mut count, mut synced) = (0u64, 0);
    for pair in pairs {
        let (key, value) = pair.map_err(SnapshotError::State)?;
        check_open()?;
        out.put(&(key.len() as u32).to_le_bytes()).map_err(failed)?;
        out.put(&(value.len() as u32).to_le_bytes()).map_err(failed)?;
        out.put(&key).map_err(failed)?;
        out.put(&value).map_err(failed)?;
        count += 1;
        if out.bytes - synced >= SYNC_BYTES {
            out.sync().map_err(failed)?;
            synced = out.bytes;
        }
    }
    out.put(&END.to_le_bytes()).map_err(failed)?;
    out.put(&count.to_le_bytes()).map_err(failed)?;
    let bytes = out.bytes + 8 + 16;
    out.put(&bytes.to_le_bytes()).map_err(failed)?;
    let checksum = out.hash.digest128();
    out.put(&checksum.to_le_bytes()).map_err(failed)?;
    out.sync().map_err(failed)?;
    Ok(Sealed { path: path.to_owned(), index, checkpoint, bytes, checksum })
}

/// A file that is hashed while it is written.
struct Hashing {
    file: BufWriter<Box<dyn DiskFile>>,
    hash: Xxh3,
    bytes: u64,
}

impl Hashing {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_mut().sync_data()
    }
}
