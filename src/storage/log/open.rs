//! Owns: recovery, what a directory of segments holds after a shutdown or a crash.
//! Never: drops anything that was durable. A torn write at the end is removed with a warning. Every other irregularity
//! is an error that names the file and the byte.

use std::io::Read;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message as _;
use tracing::{info, warn};

use super::cache::Cache;
use super::durable::{DurableEnd, DurableEndFile};
use super::record::{Entry, LogId, Unreadable, Vote, detached};
use super::segment::{self, FRAME_HEAD_BYTES, FrameAt, HEADER_BYTES, Header};
use super::{Limits, LogError, Segment, State, disk_error};
use crate::proto::log as proto;
use crate::storage::disk::{Disk, DiskFile, read_whole, write_whole};

const VOTE_FILE: &str = "vote";
const VOTE_MAGIC: &[u8; 8] = b"SMVOTE01";

pub(super) struct Opened {
    pub state: State,
    /// The file that the writer continues; `None` in a log without segments.
    pub active: Option<Box<dyn DiskFile>>,
    pub durable: DurableEndFile,
}

pub(super) fn open(disk: &dyn Disk, dir: &Path, group: u32, limits: Limits) -> Result<Opened, LogError> {
    disk.create_dir(dir).map_err(disk_error(format_args!("creating {}", dir.display())))?;
    let state = State {
        purged: None,
        last: None,
        vote: read_vote(disk, dir, group)?,
        committed: None,
        cache: Cache::new(limits.cache_bytes),
        written: 0,
        segments: Vec::new(),
    };
    let mut recovery =
        Recovery { disk, limits, state, last_frame: None, keeps: true, durable: DurableEnd::read(disk, dir) };
    let mut files = list(disk, dir)?;
    drop_purged(disk, dir, &mut files)?;
    let last = files.len().saturating_sub(1);
    for (rank, file) in files.into_iter().enumerate() {
        // The cache holds less than two segments. Older entries are read from their files on demand.
        recovery.keeps = rank + 2 > last;
        recovery.take(file, group, rank == last)?;
    }
    recovery.finish(dir)
}

/// A segment file that is not scanned yet.
struct Found {
    path: PathBuf,
    first: u64,
}

/// The segments, sorted by first index. Removes drafts that never got their final name.
fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<Found>, LogError> {
    let doing = || format!("listing {}", dir.display());
    let mut files = Vec::new();
    for name in disk.list(dir).map_err(disk_error(doing()))? {
        let path = dir.join(&name);
        if name.ends_with(".new") {
            disk.remove(&path).map_err(disk_error(format_args!("removing {}", path.display())))?;
        } else if let Some(first) = segment::first_of(&name) {
            files.push(Found { path, first });
        }
    }
    files.sort_by_key(|file| file.first);
    Ok(files)
}

/// Completes a purge that a crash interrupted: removes all segments before the last one with the `reset` flag.
fn drop_purged(disk: &dyn Disk, dir: &Path, files: &mut Vec<Found>) -> Result<(), LogError> {
    for rank in (1..files.len()).rev() {
        if !read_header(disk, &files[rank].path)?.reset {
            continue;
        }
        for old in files.drain(..rank) {
            info!(file = %old.path.display(), "log: removing a segment that was purged before the restart");
            disk.remove(&old.path).map_err(disk_error(format_args!("removing {}", old.path.display())))?;
        }
        return disk.sync_dir(dir).map_err(disk_error("syncing the log directory"));
    }
    Ok(())
}

fn read_header(disk: &dyn Disk, path: &Path) -> Result<Header, LogError> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    let file = disk.read(path).map_err(disk_error(format_args!("opening {}", path.display())))?;
    let read = file.take(HEADER_BYTES as u64).read_to_end(&mut bytes);
    read.map_err(disk_error(format_args!("reading {}", path.display())))?;
    Header::parse(&bytes).map_err(|why| damaged(path, 0, why))
}

fn damaged(path: &Path, offset: usize, Unreadable(why): Unreadable) -> LogError {
    LogError::Damaged { file: path.to_owned(), offset: offset as u64, why }
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    limits: Limits,
    state: State,
    /// Offset and bytes of the newest frame.
    last_frame: Option<(u64, Bytes)>,
    /// True if entries of this segment go to the cache.
    keeps: bool,
    /// How far the newest segment was durable.
    durable: Option<DurableEnd>,
}

impl Recovery<'_> {
    /// Scans one segment and adds it to the log.
    fn take(&mut self, found: Found, group: u32, is_last: bool) -> Result<(), LogError> {
        let path = &found.path;
        let read = read_whole(self.disk, path).map_err(disk_error(format_args!("reading {}", path.display())))?;
        let file = Bytes::from(read.unwrap_or_default());
        let header = Header::parse(&file).map_err(|why| damaged(path, 0, why))?;
        self.check_header(path, &header, found.first, group)?;
        let mut segment = Segment { header, path: path.clone(), points: Vec::new(), end: HEADER_BYTES as u64 };
        let mut offset = HEADER_BYTES;
        self.last_frame = None;
        loop {
            match segment::frame_at(&file, header.salt, offset) {
                FrameAt::Frame { end } => {
                    let body = file.slice(offset + FRAME_HEAD_BYTES..end);
                    self.replay(&mut segment, offset, body).map_err(|why| damaged(path, offset, why))?;
                    self.last_frame = Some((offset as u64, file.slice(offset..end)));
                    offset = end;
                    segment.end = end as u64;
                }
                FrameAt::End => {
                    self.check_end(path, &header, offset)?;
                    break;
                }
                FrameAt::Bad(why) => {
                    self.remove_torn(path, &file, &header, offset, why, is_last)?;
                    break;
                }
            }
        }
        self.state.segments.push(segment);
        Ok(())
    }

    fn check_header(&mut self, path: &Path, header: &Header, first: u64, group: u32) -> Result<(), LogError> {
        let wrong = |why: String| damaged(path, 0, Unreadable(why));
        if header.prev.is_some_and(LogId::is_beyond_any_log) {
            return Err(wrong("it continues after an entry with the largest possible index".to_owned()));
        }
        if header.first != first {
            return Err(wrong(format!("its header says that it begins with entry {}", header.first)));
        }
        if header.group != group {
            return Err(wrong(format!("it belongs to group {}, not {group}", header.group)));
        }
        if self.state.segments.is_empty() {
            (self.state.purged, self.state.last) = (header.prev, header.prev);
            return Ok(());
        }
        if header.prev != self.state.last {
            let [wanted, have] =
                [header.prev, self.state.last].map(|id| id.map_or("nothing".to_owned(), |id| id.to_string()));
            return Err(wrong(format!("it continues after {wanted}, but the segment before it ends with {have}")));
        }
        Ok(())
    }

    /// Adds the content of one frame.
    fn replay(&mut self, segment: &mut Segment, offset: usize, body: Bytes) -> Result<(), Unreadable> {
        let frame = proto::Frame::decode(body).map_err(|error| Unreadable(error.to_string()))?;
        let state = &mut self.state;
        let cut_at = frame.cut.and_then(|cut| cut.last);
        let ids = frame.entries.iter().map(|entry| entry.index).chain(cut_at.map(|last| last.index));
        if ids.into_iter().any(|index| index == u64::MAX) {
            return Err(Unreadable("an entry with the largest possible index".to_owned()));
        }
        if let Some(cut) = frame.cut {
            state.last = cut.last.map(LogId::from_proto);
            let from = state.last.map_or(0, |last| last.index + 1);
            state.cache.truncate(from);
            segment.discard_points(from, offset as u64);
        }
        for (rank, encoded) in frame.entries.into_iter().enumerate() {
            let index = encoded.index;
            if state.next_index().is_some_and(|next| next != index) {
                return Err(Unreadable(format!("entry {index} where entry {:?} is next", state.next_index())));
            }
            if rank == 0 {
                segment.point(index, offset as u64, self.limits.point_bytes);
            }
            state.last = Some(LogId::new(encoded.term, encoded.leader, index));
            if self.keeps {
                state.cache.push(Entry::from_proto(detached(encoded))?);
                state.cache.shrink(u64::MAX);
            }
        }
        if let Some(committed) = frame.committed {
            state.committed = Some(LogId::from_proto(committed));
        }
        Ok(())
    }

    /// Fails if a segment ends before the byte up to which it was durable.
    fn check_end(&self, path: &Path, header: &Header, offset: usize) -> Result<(), LogError> {
        match DurableEnd::of(self.durable, header).filter(|end| *end > offset as u64) {
            Some(end) => {
                Err(damaged(path, offset, Unreadable(format!("it ends here, but was durable up to byte {end}"))))
            }
            None => Ok(()),
        }
    }

    /// Removes a torn write at the end of the last segment. Everything before the last write was durable, so a bad
    /// frame anywhere else is damage.
    fn remove_torn(
        &self,
        path: &Path,
        file: &[u8],
        header: &Header,
        offset: usize,
        why: Unreadable,
        is_last: bool,
    ) -> Result<(), LogError> {
        if !is_last {
            return Err(damaged(path, offset, why));
        }
        if let Some(good) = segment::good_frame_after(file, header.salt, offset) {
            let why = Unreadable(format!("{why}, and a good frame follows at byte {good}"));
            return Err(damaged(path, offset, why));
        }
        // Read the file again: a disk that returned wrong bytes once may hold a durable frame there.
        let again = read_whole(self.disk, path).map_err(disk_error(format_args!("reading {}", path.display())))?;
        if again.as_deref() != Some(file) {
            return Err(damaged(path, offset, Unreadable(format!("{why}, and reading it again gave other bytes"))));
        }
        if let Some(end) = DurableEnd::of(self.durable, header).filter(|end| *end > offset as u64) {
            let why = Unreadable(format!("{why}, though the log was durable up to byte {end}"));
            return Err(damaged(path, offset, why));
        }
        let bytes = file.len() - offset;
        warn!(file = %path.display(), offset, bytes, %why, "log: removing a torn write at the end");
        let doing = || format!("cutting {} at byte {offset}", path.display());
        let mut file = self.disk.edit(path).map_err(disk_error(doing()))?;
        file.set_len(offset as u64).and_then(|()| file.sync_data()).map_err(disk_error(doing()))
    }

    fn finish(mut self, dir: &Path) -> Result<Opened, LogError> {
        let mut durable = DurableEndFile::open(self.disk, dir);
        let state = &mut self.state;
        state.written = state.next_index().unwrap_or(0);
        // The hint may be newer than the entries that survived: limit it to the log.
        state.committed =
            state.committed.filter(|committed| Some(committed.index) <= state.last.map(|last| last.index));
        let Some(segment) = state.segments.last() else {
            return Ok(Opened { state: self.state, active: None, durable });
        };
        let doing = || format!("rewriting the last frame of {}", segment.path.display());
        let mut file = self.disk.edit_end(&segment.path).map_err(disk_error(doing()))?;
        // The newest frame may be only in the page cache, even marked clean by a failed fsync. Write it again, so that
        // it is durable before it is used.
        let rewritten = match &self.last_frame {
            Some((offset, frame)) => file.write_at(frame, *offset),
            None => Ok(()),
        };
        rewritten.and_then(|()| file.sync_data()).map_err(disk_error(doing()))?;
        durable.write(segment.header.salt, segment.end);
        Ok(Opened { state: self.state, active: Some(file), durable })
    }
}

fn read_vote(disk: &dyn Disk, dir: &Path, group: u32) -> Result<Option<Vote>, LogError> {
    let path = dir.join(VOTE_FILE);
    let read = read_whole(disk, &path).map_err(disk_error(format_args!("reading {}", path.display())))?;
    let Some(bytes) = read else { return Ok(None) };
    let wrong = |why: &str| damaged(&path, 0, Unreadable(why.to_owned()));
    let (magic, rest) = bytes.split_at_checked(VOTE_MAGIC.len()).ok_or_else(|| wrong("too short"))?;
    let (crc, body) = rest.split_first_chunk().ok_or_else(|| wrong("too short"))?;
    if magic != VOTE_MAGIC {
        return Err(wrong("not a vote of a version this build reads"));
    }
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return Err(wrong("the checksum does not match"));
    }
    let file = proto::VoteFile::decode(body).map_err(|error| wrong(&error.to_string()))?;
    if file.group != group {
        return Err(wrong("it belongs to another group"));
    }
    Ok(file.vote.map(Vote::from_proto))
}

pub(super) fn write_vote(disk: &dyn Disk, dir: &Path, group: u32, vote: Vote) -> Result<(), LogError> {
    let body = proto::VoteFile { group, vote: Some(vote.to_proto()) }.encode_to_vec();
    let mut bytes = VOTE_MAGIC.to_vec();
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    write_whole(disk, &dir.join(VOTE_FILE), &bytes).map_err(disk_error("saving the vote"))
}
