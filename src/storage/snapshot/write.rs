//! Owns: writing a snapshot file, durable when it returns.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::bodies::{Apart, Copies};
use super::error::{SnapshotError, disk_error};
use super::format::{BODY, BUFFER_BYTES, FOOT_BYTES, VERSION, VERSION_PACKED, print_foot, print_head};
use super::packed::{BLOCK_BYTES, pack};
use super::{Sealed, Watch};
use crate::storage::Pairs;
use crate::storage::disk::{Disk, DiskFile};
use crate::storage::sled::{FrozenPairs, Stored};

/// The file is synced in steps of this size. An fdatasync of the log may have to wait for one of them.
pub(super) const SYNC_BYTES: u64 = 1 << 20;

/// Where a snapshot goes, and what it is of.
pub(super) struct Target<'a> {
    pub disk: &'a dyn Disk,
    pub path: &'a Path,
    pub index: u64,
    pub checkpoint: Bytes,
}

/// Writes all pairs. Stops with the error of `watch`, which it calls for each pair.
pub(super) fn write(target: Target<'_>, pairs: Pairs<'_>, watch: Watch<'_>) -> Result<Sealed, SnapshotError> {
    let mut out = Out::create(&target, VERSION)?;
    for pair in pairs {
        let (key, value) = pair.map_err(SnapshotError::State)?;
        watch(key.len() + value.len())?;
        out.pair(&key, value.len() as u32, &value)?;
    }
    out.finish(target, None)
}

/// Writes all pairs, packed, and brings the copies of the body files that they refer to up to date.
pub(super) fn write_apart(
    target: Target<'_>,
    mut pairs: FrozenPairs,
    copies: &mut Copies,
    watch: Watch<'_>,
) -> Result<Sealed, SnapshotError> {
    let mut out = Packing::create(&target)?;
    let mut files = BTreeSet::new();
    let mut whole_bytes = print_head(VERSION, &target.checkpoint).len() as u64 + FOOT_BYTES;
    for pair in pairs.by_ref() {
        let (key, value) = pair.map_err(SnapshotError::State)?;
        whole_bytes += 8 + key.len() as u64;
        match value {
            Stored::Value(value) => {
                watch(key.len() + value.len())?;
                whole_bytes += value.len() as u64;
                out.pair(&key, value.len() as u32, &value)?;
            }
            Stored::Body(place) => {
                watch(key.len())?;
                whole_bytes += u64::from(place.length());
                files.insert(place.file);
                out.pair(&key, BODY | place.length(), &place.print())?;
            }
        }
    }
    let mut ends = BTreeMap::new();
    for file in files {
        ends.insert(file, copies.bring_up_to_date(&pairs, file, watch)?);
    }
    let dir = target.path.parent().unwrap_or(Path::new("."));
    out.finish(target, Arc::new(Apart::new(dir, copies.name, ends, whole_bytes)))
}

/// A file whose pairs are packed block by block.
struct Packing<'a> {
    out: Out<'a>,
    /// Pairs that are not packed yet, and the block they become.
    pairs: Vec<u8>,
    block: Vec<u8>,
}

impl<'a> Packing<'a> {
    fn create(target: &Target<'a>) -> Result<Packing<'a>, SnapshotError> {
        let out = Out::create(target, VERSION_PACKED)?;
        Ok(Packing { out, pairs: Vec::with_capacity(BLOCK_BYTES), block: Vec::new() })
    }

    fn pair(&mut self, key: &[u8], length: u32, value: &[u8]) -> Result<(), SnapshotError> {
        for mut part in [&(key.len() as u32).to_le_bytes(), &length.to_le_bytes(), key, value] {
            while !part.is_empty() {
                let (now, later) = part.split_at(part.len().min(BLOCK_BYTES - self.pairs.len()));
                self.pairs.extend_from_slice(now);
                part = later;
                if self.pairs.len() == BLOCK_BYTES {
                    self.end_block()?;
                }
            }
        }
        self.out.pairs += 1;
        Ok(())
    }

    fn end_block(&mut self) -> Result<(), SnapshotError> {
        pack(&self.pairs, &mut self.block);
        self.pairs.clear();
        self.out.put(&[&self.block])?;
        self.out.sync_step()
    }

    fn finish(mut self, target: Target<'_>, apart: Arc<Apart>) -> Result<Sealed, SnapshotError> {
        if !self.pairs.is_empty() {
            self.end_block()?;
        }
        self.out.finish(target, Some(apart))
    }
}

/// A file that is hashed while it is written.
struct Out<'a> {
    path: &'a Path,
    file: BufWriter<Box<dyn DiskFile>>,
    hash: Xxh3,
    bytes: u64,
    synced: u64,
    pairs: u64,
}

impl<'a> Out<'a> {
    fn create(target: &Target<'a>, version: u32) -> Result<Out<'a>, SnapshotError> {
        let path = target.path;
        let file = target.disk.create(path).map_err(disk_error(format_args!("writing {}", path.display())))?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let mut out = Out { path, file, hash: Xxh3::new(), bytes: 0, synced: 0, pairs: 0 };
        out.put(&[&print_head(version, &target.checkpoint)])?;
        Ok(out)
    }

    fn pair(&mut self, key: &[u8], length: u32, value: &[u8]) -> Result<(), SnapshotError> {
        self.put(&[&(key.len() as u32).to_le_bytes(), &length.to_le_bytes(), key, value])?;
        self.pairs += 1;
        self.sync_step()
    }

    fn finish(mut self, target: Target<'_>, apart: Option<Arc<Apart>>) -> Result<Sealed, SnapshotError> {
        let foot = print_foot(apart.as_deref(), self.pairs, self.bytes);
        self.put(&[&foot])?;
        let checksum = self.hash.digest128();
        self.put(&[&checksum.to_le_bytes()])?;
        self.sync()?;
        let Target { path, index, checkpoint, .. } = target;
        Ok(Sealed { path: path.to_owned(), index, checkpoint, bytes: self.bytes, checksum, apart })
    }

    fn put(&mut self, parts: &[&[u8]]) -> Result<(), SnapshotError> {
        for bytes in parts {
            self.hash.update(bytes);
            self.bytes += bytes.len() as u64;
            let written = self.file.write_all(bytes);
            self.done(written)?;
        }
        Ok(())
    }

    fn sync_step(&mut self) -> Result<(), SnapshotError> {
        if self.bytes - self.synced >= SYNC_BYTES { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<(), SnapshotError> {
        self.synced = self.bytes;
        let synced = self.file.flush().and_then(|()| self.file.get_mut().sync_data());
        self.done(synced)
    }

    /// The text is made for an error only: this is called several times for each pair.
    fn done(&self, result: io::Result<()>) -> Result<(), SnapshotError> {
        result.map_err(|error| disk_error(format_args!("writing {}", self.path.display()))(error))
    }
}
