//! Owns: reading entries, from the cache if they are there, otherwise from the files. Bytes from a file are checked
//! against their checksum: damage is an error, never an entry.

use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;

use bytes::Bytes;
use prost::Message as _;

use super::record::{Entry, Unreadable};
use super::segment::{FRAME_HEAD_BYTES, FrameHead};
use super::{Log, LogError, Shared, disk_error};
use crate::blocking::block;
use crate::proto::log as proto;
use crate::storage::disk::Disk;

/// A range of a file that holds the entries `from..to`.
struct FileRange {
    path: PathBuf,
    salt: u32,
    offset: u64,
    end: u64,
    from: u64,
    to: u64,
}

impl Log {
    /// The entries with `from <= index < to` that the log holds, limited to `bytes_max` but at least one.
    pub fn read(&self, from: u64, to: u64, bytes_max: usize) -> Result<Vec<Entry>, LogError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        let mut next = from;
        loop {
            let range = {
                let state = self.shared.state();
                // The result must have no gap: if entries are purged during the read, it ends there.
                if entries.is_empty() {
                    next = next.max(state.purged.map_or(0, |purged| purged.index + 1));
                    let first = state.segments.first().map(|segment| segment.header.first).or(state.cache.first());
                    next = next.max(first.unwrap_or(0));
                }
                let end = to.min(state.next_index().unwrap_or(0));
                while next < end
                    && let Some(entry) = state.cache.get(next)
                {
                    if !take(&mut entries, &mut bytes, bytes_max, entry.clone()) {
                        return Ok(entries);
                    }
                    next += 1;
                }
                if next >= end {
                    return Ok(entries);
                }
                // The newest entries may be in no file yet. They are in the cache, so a file is read only up to them.
                match end.min(state.written) {
                    written if next < written => find(&state.segments, next, written),
                    _in_no_file => None,
                }
            };
            let Some(range) = range else { return missing(&self.shared, entries, next) };
            // Consensus reads here too, and its thread must not wait for a disk: it answers heartbeats.
            let read = match block(|| read_range(&*self.disk, &range)) {
                Ok(read) => read,
                // The file may have been purged or truncated in the meantime. Then its entries are rightly gone.
                Err(error) => {
                    let state = self.shared.state();
                    let purged = state.purged.is_some_and(|purged| purged.index >= next);
                    let truncated = state.next_index().is_none_or(|end| end <= next);
                    return if purged || truncated { Ok(entries) } else { Err(error) };
                }
            };
            for entry in read {
                if !take(&mut entries, &mut bytes, bytes_max, entry) {
                    return Ok(entries);
                }
                next += 1;
            }
        }
    }
}

/// Adds an entry if it fits; the first one always.
fn take(entries: &mut Vec<Entry>, bytes: &mut usize, bytes_max: usize, entry: Entry) -> bool {
    *bytes = bytes.saturating_add(entry.weight());
    let fits = entries.is_empty() || *bytes <= bytes_max;
    if fits {
        entries.push(entry);
    }
    fits
}

fn missing(shared: &Shared, entries: Vec<Entry>, index: u64) -> Result<Vec<Entry>, LogError> {
    if shared.state().purged.is_some_and(|purged| purged.index >= index) {
        return Ok(entries);
    }
    Err(LogError::Damaged { file: shared.dir.clone(), offset: 0, why: format!("entry {index} is in no segment") })
}

fn find(segments: &[super::Segment], next: u64, end: u64) -> Option<FileRange> {
    let rank = segments.partition_point(|segment| segment.header.first <= next).checked_sub(1)?;
    let segment = &segments[rank];
    let at = segment.points.partition_point(|(index, _)| *index <= next).checked_sub(1)?;
    let later = segment.points.get(at + 1);
    let after = segments.get(rank + 1).map_or(end, |later| later.header.first);
    Some(FileRange {
        path: segment.path.clone(),
        salt: segment.header.salt,
        offset: segment.points[at].1,
        end: later.map_or(segment.end, |(_, offset)| *offset),
        from: next,
        to: later.map_or(after, |(index, _)| *index).min(end),
    })
}

fn read_range(disk: &dyn Disk, range: &FileRange) -> Result<Vec<Entry>, LogError> {
    let doing = || format!("reading {}", range.path.display());
    let mut file = disk.read(&range.path).map_err(disk_error(doing()))?;
    file.seek(SeekFrom::Start(range.offset)).map_err(disk_error(doing()))?;
    let mut file = BufReader::with_capacity(64 << 10, file);
    let mut entries: Vec<Entry> = Vec::new();
    let mut offset = range.offset;
    let mut next = range.from;
    while offset < range.end && next < range.to {
        let damaged = |Unreadable(why)| LogError::Damaged { file: range.path.clone(), offset, why };
        let mut head = [0; FRAME_HEAD_BYTES];
        file.read_exact(&mut head).map_err(disk_error(doing()))?;
        let head = FrameHead::parse(&head).map_err(damaged)?;
        // The end of the frames is known, so a longer one is damage. Check before allocating.
        if offset + (FRAME_HEAD_BYTES + head.len) as u64 > range.end {
            return Err(damaged(Unreadable("the frame runs beyond the end of the log".to_owned())));
        }
        let mut body = vec![0; head.len];
        file.read_exact(&mut body).map_err(disk_error(doing()))?;
        head.check(range.salt, offset, &body).map_err(damaged)?;
        let frame = proto::Frame::decode(Bytes::from(body)).map_err(|error| damaged(Unreadable(error.to_string())))?;
        for encoded in frame.entries {
            if encoded.index == next && next < range.to {
                entries.push(Entry::from_proto(encoded).map_err(damaged)?);
                next += 1;
            }
        }
        offset += (FRAME_HEAD_BYTES + head.len) as u64;
    }
    if next < range.to {
        let why = format!("entry {next} is missing");
        return Err(LogError::Damaged { file: range.path.clone(), offset: range.offset, why });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::storage::disk::RealDisk;
    use crate::storage::log::Limits;
    use crate::storage::log::record::{LogId, Payload};

    fn entry(index: u64) -> Entry {
        Entry { id: LogId::new(1, 1, index), payload: Payload::Blank }
    }

    #[tokio::test]
    async fn entries_in_a_file_and_entries_in_no_file_yet_are_read_together() {
        let dir = tempfile::tempdir().unwrap();
        // Every entry that is in a file is evicted at once.
        let limits = Limits { cache_bytes: 0, ..Limits::default() };
        let (log, writer) = Log::open(Arc::new(RealDisk), dir.path(), 0, limits).unwrap();
        // The writer works only when it is polled.
        let mut writer = Box::pin(writer.run());
        log.append((1..10).map(entry).collect(), Box::new(|outcome| outcome.unwrap())).await.unwrap();
        assert!(futures::poll!(&mut writer).is_pending());
        log.append((10..20).map(entry).collect(), Box::new(|outcome| outcome.unwrap())).await.unwrap();
        assert_eq!(log.shared.state().cache.first(), Some(10));
        let read =
            |from, to| -> Vec<u64> { log.read(from, to, usize::MAX).unwrap().iter().map(Entry::index).collect() };
        for from in 1..20 {
            assert_eq!(read(from, u64::MAX), (from..20).collect::<Vec<_>>());
            assert_eq!(read(from, 12), (from..12).collect::<Vec<_>>());
        }
        assert!(futures::poll!(&mut writer).is_pending());
        assert_eq!(log.shared.state().cache.first(), None);
        assert_eq!(read(1, u64::MAX), (1..20).collect::<Vec<_>>());
    }
}
