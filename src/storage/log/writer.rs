//! Owns: all writes to the log's files. Takes all queued appends, writes one frame, makes it durable with one fdatasync
//! and completes the appends. Never: writes a frame before the previous one is durable.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, error, info};

use super::durable::DurableEndFile;
use super::open::write_vote;
use super::record::{Entry, LogId, Vote};
use super::segment::{self, FRAME_HEAD_BYTES, HEADER_BYTES, Header};
use super::{Done, LogError, Segment, Shared, disk_error};
use crate::proto::log as proto;
use crate::storage::disk::{Disk, DiskFile};

/// A small frame is written together with this many zeros behind it. For the next frames the file system then only
/// overwrites blocks, and their fdatasync needs no commit of its journal.
const ZEROS_AHEAD: u64 = 64 << 10;

/// A larger frame gets no zeros: they would cost more than the journal. Neither does a small one among larger ones.
const SMALL_FRAME_BYTES: usize = 16 << 10;

/// Frames of at most half a sector do not cross into the next one: a write that touches two sectors costs twice as much.
const PADDED_FRAME_BYTES: usize = 256;

/// Such a frame says how far the log is committed only after so many entries: the hint is a fifteenth of its size.
const HINT_ENTRIES: u64 = 16;

/// The pause before a write is repeated that found no space.
const FULL_RETRY: Duration = Duration::from_millis(100);

/// The jobs of the writer. It does them in order.
pub(super) enum Job {
    Append { entries: Vec<Entry>, done: Done },
    Vote(Vote, Done),
    Truncate { last: Option<LogId>, done: Done },
    Purge(LogId),
    Close(Done),
}

/// The only writer of a log's files.
pub struct Writer {
    disk: Arc<dyn Disk>,
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Job>,
    active: Option<Box<dyn DiskFile>>,
    durable: DurableEndFile,
    /// The last entry in the files. The next segment continues after it.
    tail: Option<LogId>,
    /// The commit hint that is in the files.
    hinted: Option<LogId>,
    buffer: Vec<u8>,
    /// Up to this offset the newest segment has been written, with frames or with zeros.
    zeros_end: u64,
    /// The length of the latest frames, on average.
    frame_bytes: usize,
    /// How long a simulated disk delayed the current write.
    delay: Duration,
    /// A write that finds no space is repeated until there is some. Only a thread of its own can wait.
    patient: bool,
    /// The first failure. Nothing is written after it.
    poison: Option<LogError>,
}

/// Appends that share one fdatasync.
#[derive(Default)]
struct Group {
    entries: Vec<Entry>,
    bytes: usize,
    waiting: Vec<Done>,
}

impl Writer {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        shared: Arc<Shared>,
        queue: mpsc::Receiver<Job>,
        active: Option<Box<dyn DiskFile>>,
        durable: DurableEndFile,
    ) -> Writer {
        let (tail, hinted) = {
            let state = shared.state();
            (state.last, state.committed)
        };
        Writer {
            disk,
            shared,
            queue,
            active,
            durable,
            tail,
            hinted,
            buffer: Vec::new(),
            zeros_end: 0,
            frame_bytes: 0,
            delay: Duration::ZERO,
            patient: false,
            poison: None,
        }
    }

    /// Runs the writer on its own thread, because an fdatasync would block a runtime.
    pub fn on_thread(mut self) -> std::io::Result<std::thread::JoinHandle<()>> {
        self.patient = true;
        let thread = std::thread::Builder::new().name("raft-log".to_owned());
        thread.spawn(move || futures::executor::block_on(self.run()))
    }

    /// Runs until the log is closed.
    pub async fn run(mut self) {
        while let Some(job) = self.queue.recv().await {
            let mut group = Group::default();
            let mut next = Some(job);
            while let Some(job) = next.take() {
                match job {
                    Job::Append { entries, done } => {
                        group.bytes += entries.iter().map(Entry::weight).sum::<usize>();
                        group.entries.extend(entries);
                        group.waiting.push(done);
                    }
                    Job::Close(done) => {
                        self.commit(&mut group).await;
                        self.durable.sync();
                        done(Ok(()));
                        return;
                    }
                    Job::Vote(..) | Job::Truncate { .. } | Job::Purge(_) => {
                        self.commit(&mut group).await;
                        // A vote is a file and its directory.
                        self.shared.begins(if matches!(job, Job::Vote(..)) { 2 } else { 1 });
                        self.wait_for_disk().await;
                        self.run_job(job);
                        self.shared.ended();
                    }
                }
                if group.bytes < self.shared.limits.frame_bytes {
                    next = self.queue.try_recv().ok();
                }
            }
            self.commit(&mut group).await;
        }
    }

    async fn wait_for_disk(&mut self) {
        self.delay = self.disk.sync_delay();
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
    }

    /// Writes a group and completes its appends.
    async fn commit(&mut self, group: &mut Group) {
        let Group { entries, waiting, .. } = std::mem::take(group);
        if waiting.is_empty() {
            return;
        }
        self.shared.begins(1);
        self.wait_for_disk().await;
        let outcome = self.guard(|writer| writer.write_entries(&entries));
        self.shared.ended();
        for done in waiting {
            done(outcome.clone());
        }
    }

    fn run_job(&mut self, job: Job) {
        match job {
            Job::Vote(vote, done) => {
                let began = Instant::now();
                done(self.guard(|writer| {
                    writer.when_there_is_space(|writer| {
                        write_vote(&*writer.disk, &writer.shared.dir, writer.shared.group, vote)
                    })
                }));
                // The file and its directory.
                self.shared.took(self.delay + began.elapsed() / 2);
            }
            Job::Truncate { last, done } => done(self.guard(|writer| writer.truncate(last))),
            Job::Purge(upto) => {
                // The next append reports a failure: the log is poisoned.
                let _ = self.guard(|writer| writer.purge(upto));
            }
            Job::Append { .. } | Job::Close(_) => {}
        }
    }

    /// Does nothing after the first failure: after a failed fsync a second one proves nothing.
    fn guard(&mut self, work: impl FnOnce(&mut Writer) -> Result<(), LogError>) -> Result<(), LogError> {
        if let Some(first) = &self.poison {
            return Err(LogError::Poisoned(first.to_string()));
        }
        let outcome = work(self);
        if let Err(failure) = &outcome {
            error!(%failure, "log: a write failed; nothing more is written until the node is restarted");
            self.poison = Some(failure.clone());
        }
        outcome
    }

    /// Repeats a write that found no space, until there is some or the log closes. Such a write has changed nothing that
    /// counts: the next attempt writes the same bytes to the same place. Never after a failed sync.
    fn when_there_is_space(
        &mut self,
        mut write: impl FnMut(&mut Writer) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        let mut waited = false;
        loop {
            let outcome = write(self);
            let full = matches!(&outcome, Err(LogError::Disk { kind: io::ErrorKind::StorageFull, .. }));
            if !full || !self.patient || self.shared.closing.load(Ordering::Relaxed) {
                if waited && outcome.is_ok() {
                    info!("log: the disk has space again");
                }
                return outcome;
            }
            if let Err(failure) = &outcome
                && !std::mem::replace(&mut waited, true)
            {
                error!(%failure, "log: the disk is full; nothing is acknowledged until it has space");
            }
            std::thread::sleep(FULL_RETRY);
        }
    }

    /// Writes entries in frames of a bounded size, each durable before the next.
    fn write_entries(&mut self, entries: &[Entry]) -> Result<(), LogError> {
        let mut rest = entries;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fitting = rest.iter().take_while(|entry| {
                bytes += entry.weight();
                bytes <= self.shared.limits.frame_bytes
            });
            let (frame, later) = rest.split_at(fitting.count().max(1));
            self.write_frame(None, frame)?;
            rest = later;
        }
        Ok(())
    }

    fn write_frame(&mut self, truncate: Option<Option<LogId>>, entries: &[Entry]) -> Result<(), LogError> {
        self.when_there_is_space(|writer| writer.make_room(truncate, entries))?;
        self.when_there_is_space(|writer| writer.try_frame(truncate, entries))
    }

    fn try_frame(&mut self, truncate: Option<Option<LogId>>, entries: &[Entry]) -> Result<(), LogError> {
        let hint = self.hint(entries);
        let frame = proto::Frame {
            cut: truncate.map(|last| proto::Cut { last: last.map(LogId::to_proto) }),
            entries: entries.iter().map(Entry::to_proto).collect(),
            committed: hint.map(LogId::to_proto),
            padding: Bytes::new(),
        };
        let (salt, offset, path) = {
            let state = self.shared.state();
            let Some(segment) = state.segments.last() else { return Err(LogError::Closed) };
            (segment.header.salt, segment.end, segment.path.clone())
        };
        let Some(file) = &mut self.active else { return Err(LogError::Closed) };

        self.buffer.clear();
        self.buffer.resize(FRAME_HEAD_BYTES, 0);
        // Encoding into a vector cannot fail.
        let _ = frame.encode(&mut self.buffer);
        if let Some(padding) = file.sector_bytes().and_then(|sector| padding(sector, offset, self.buffer.len())) {
            let padding = Bytes::from(vec![0; padding]);
            let _ = proto::Frame { padding, ..proto::Frame::default() }.encode(&mut self.buffer);
        }
        segment::seal(&mut self.buffer, salt, offset);
        let end = offset + self.buffer.len() as u64;
        self.frame_bytes = (7 * self.frame_bytes + self.buffer.len()) / 8;
        let mut zeros_end = self.zeros_end;
        if end > zeros_end && self.buffer.len().max(2 * self.frame_bytes) <= SMALL_FRAME_BYTES {
            zeros_end = (end + ZEROS_AHEAD).min(self.shared.limits.segment_bytes).max(end);
            self.buffer.resize((zeros_end - offset) as usize, 0);
        }
        let began = Instant::now();
        let failed = |error| disk_error(format!("writing {}", path.display()))(error);
        file.write_at(&self.buffer, offset).map_err(failed)?;
        // After a failed sync the content of the disk is unknown, whatever the reason.
        file.sync_data().map_err(io::Error::other).map_err(failed)?;
        self.zeros_end = zeros_end;
        let took = self.delay + began.elapsed();
        self.shared.took(took);
        self.shared.syncs.observe(took);

        self.durable.write(salt, end);
        // Do not keep the memory of an exceptionally large frame.
        self.buffer.shrink_to(2 * self.shared.limits.frame_bytes);
        self.hinted = hint.or(self.hinted);
        self.publish(truncate, entries, offset, end);
        Ok(())
    }

    /// The committed entry, if a frame with these entries says it.
    fn hint(&self, entries: &[Entry]) -> Option<LogId> {
        let committed = self.shared.state().committed?;
        let news = match self.hinted {
            Some(hinted) if entries.iter().map(Entry::weight).sum::<usize>() <= PADDED_FRAME_BYTES => {
                committed.index >= hinted.index + HINT_ENTRIES
            }
            hinted => hinted != Some(committed),
        };
        news.then_some(committed)
    }

    /// Makes the durable frame visible to readers.
    fn publish(&mut self, truncate: Option<Option<LogId>>, entries: &[Entry], offset: u64, end: u64) {
        let mut state = self.shared.state();
        let point_bytes = self.shared.limits.point_bytes;
        if let Some(segment) = state.segments.last_mut() {
            segment.end = end;
            if let Some(last) = truncate {
                segment.discard_points(last.map_or(0, |last| last.index + 1), offset);
            }
            if let Some(first) = entries.first() {
                segment.point(first.index(), offset, point_bytes);
            }
        }
        if let Some(last) = truncate {
            self.tail = last;
        }
        self.tail = entries.last().map(|entry| entry.id).or(self.tail);
        state.written = self.tail.map_or(0, |tail| tail.index + 1);
        let written = state.written;
        state.cache.shrink(written);
    }

    /// Starts a new segment if there is none or the last one is full.
    fn make_room(&mut self, truncate: Option<Option<LogId>>, entries: &[Entry]) -> Result<(), LogError> {
        let full = {
            let state = self.shared.state();
            state.segments.last().is_none_or(|segment| segment.end >= self.shared.limits.segment_bytes)
        };
        match entries.first() {
            Some(first) if self.active.is_none() || (full && truncate.is_none()) => {
                self.begin_segment(first.index(), self.tail, false)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Creates the file under a draft name first, so that every segment has its header.
    fn begin_segment(&mut self, first: u64, prev: Option<LogId>, reset: bool) -> Result<(), LogError> {
        let salt = uuid::Uuid::new_v4().as_u128() as u32;
        let header = Header { group: self.shared.group, salt, first, prev, reset };
        let path = self.shared.dir.join(segment::file_name(first));
        let draft = path.with_extension("new");
        let doing = || format!("creating {}", path.display());
        let mut file = self.disk.create(&draft).map_err(disk_error(doing()))?;
        file.write_at(&header.print(), 0).and_then(|()| file.sync_data()).map_err(disk_error(doing()))?;
        self.disk.rename(&draft, &path).map_err(disk_error(doing()))?;
        self.disk.sync_dir(&self.shared.dir).map_err(disk_error(doing()))?;
        drop(file);
        let file = self.disk.edit_end(&path).map_err(disk_error(doing()))?;
        debug!(file = %path.display(), "log: a new segment");
        let full = self.active.replace(file);
        self.zeros_end = 0;
        let segment = Segment { header, path, points: Vec::new(), end: HEADER_BYTES as u64 };
        let mut state = self.shared.state();
        let end = state.segments.last().map(|full| full.end);
        state.segments.push(segment);
        drop(state);
        // Returns the zeros behind the last frame of the full segment. Nothing depends on it.
        match (full, end) {
            (Some(mut full), Some(end)) => full.set_len(end).map_err(disk_error("shortening a full segment")),
            (None, _) | (_, None) => Ok(()),
        }
    }

    /// Removes every entry after `last`: whole segments by deleting them, newest first, the rest by a frame with a cut.
    /// A crash in between leaves a longer log, as if the truncation had not been requested yet.
    fn truncate(&mut self, last: Option<LogId>) -> Result<(), LogError> {
        let from = last.map_or(0, |last| last.index + 1);
        loop {
            let path = {
                let state = self.shared.state();
                match &state.segments[..] {
                    [_, .., newest] if newest.header.first >= from => newest.path.clone(),
                    [] => return Ok(()),
                    [..] => break,
                }
            };
            self.active = None;
            self.disk.remove(&path).map_err(disk_error(format_args!("removing {}", path.display())))?;
            self.shared.state().segments.pop();
        }
        if self.active.is_none() {
            self.disk.sync_dir(&self.shared.dir).map_err(disk_error("syncing the log directory"))?;
            let path = self.shared.state().segments.last().map(|segment| segment.path.clone());
            let Some(path) = path else { return Err(LogError::Closed) };
            let file = self.disk.edit_end(&path).map_err(disk_error(format_args!("opening {}", path.display())))?;
            self.active = Some(file);
            self.zeros_end = 0;
        }
        self.write_frame(Some(last), &[])
    }

    /// Removes the segments that have no entry after `upto`.
    fn purge(&mut self, upto: LogId) -> Result<(), LogError> {
        let next = upto.index + 1;
        let begins_there = |segment: &Segment| segment.header.first == next;
        let empty = self.tail.is_none_or(|tail| tail.index <= upto.index);
        if empty && !self.shared.state().segments.last().is_some_and(begins_there) {
            self.active = None;
            self.when_there_is_space(|writer| writer.begin_segment(next, Some(upto), true))?;
            self.tail = Some(upto);
            self.shared.state().written = next;
        }
        let removed: Vec<Segment> = {
            let mut state = self.shared.state();
            let count = state.segments.windows(2).take_while(|pair| pair[1].header.first <= next).count();
            state.segments.drain(..count).collect()
        };
        if removed.is_empty() {
            return Ok(());
        }
        for segment in &removed {
            let doing = || format!("removing {}", segment.path.display());
            self.disk.remove(&segment.path).map_err(disk_error(doing()))?;
        }
        self.disk.sync_dir(&self.shared.dir).map_err(disk_error("syncing the log directory"))
    }
}

/// How many bytes of padding a frame of this length gets at this offset, so that the next one of its length does not cross
/// the end of a sector. `None` if that one has room, and for larger frames.
fn padding(sector: usize, offset: u64, frame: usize) -> Option<usize> {
    let sector = sector as u64;
    let rest = (offset + frame as u64).next_multiple_of(sector) - (offset + frame as u64);
    // Beside its bytes the field takes two more, and three if it is longer than 127.
    let field = if rest > 130 { 3 } else { 2 };
    let crosses = frame <= PADDED_FRAME_BYTES && rest < frame as u64;
    crosses.then(|| rest.saturating_sub(field) as usize).filter(|padding| *padding > 0)
}

impl Segment {
    /// Adds a point for a frame with this first entry at this offset, unless there is one nearby.
    pub(super) fn point(&mut self, index: u64, offset: u64, point_bytes: u64) {
        if self.points.last().is_none_or(|(_, near)| offset - near >= point_bytes) {
            self.points.push((index, offset));
        }
    }

    /// Removes the points of truncated entries: entries from this index on are at or after this offset.
    pub(super) fn discard_points(&mut self, from: u64, offset: u64) {
        let from = from.max(self.header.first);
        while self.points.pop_if(|(index, _)| *index >= from).is_some() {}
        self.points.push((from, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_frames_of_one_length_hardly_ever_take_parts_of_two_sectors() {
        for length in 40..=PADDED_FRAME_BYTES {
            let (mut offset, mut crossed) = (HEADER_BYTES as u64, 0);
            for _ in 0..1000 {
                let padding = padding(512, offset, length).map(|bytes| Bytes::from(vec![0; bytes]));
                let padding = proto::Frame { padding: padding.unwrap_or_default(), ..proto::Frame::default() };
                let end = offset + (length + padding.encoded_len()) as u64;
                crossed += usize::from(offset / 512 != (end - 1) / 512);
                offset = end;
            }
            // One byte or two are too few for the field, and it cannot take 130.
            assert!(crossed <= 250, "{crossed} of 1000 frames of {length} bytes");
        }
    }

    #[test]
    fn large_frames_and_frames_with_room_behind_them_get_no_padding() {
        assert_eq!(padding(512, 1024, PADDED_FRAME_BYTES + 1), None);
        assert_eq!(padding(512, 1024, 256), None, "another one fits");
        assert_eq!(padding(512, 1024, 200), None);
        assert_eq!(padding(512, 1224, 200), Some(110), "the third one does not");
    }
}
