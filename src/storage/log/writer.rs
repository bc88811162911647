//! Owns: every byte that goes to the log's files. Drains its queue, writes one frame, makes it durable with one
//! fdatasync, tells everyone who waited. Never: write a frame before the one before it is durable.

use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;

use prost::Message as _;
use tokio::sync::mpsc;
use tracing::{debug, error};

use super::durable::Notary;
use super::open::write_vote;
use super::record::{Entry, LogId, Vote};
use super::segment::{self, FRAME_HEAD_BYTES, HEADER_BYTES, Header};
use super::{Done, LogError, Segment, Shared, disk_error};
use crate::planted::{self, Bug};
use crate::proto::log as proto;
use crate::storage::disk::{Disk, DiskFile};

/// What the writer is asked to do, in order.
pub(super) enum Job {
    Append { entries: Vec<Entry>, done: Done },
    Vote(Vote, Done),
    Cut { last: Option<LogId>, done: Done },
    Purge(LogId),
    Close(Done),
}

/// The only writer of a log's files.
pub struct Writer {
    disk: Arc<dyn Disk>,
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Job>,
    active: Option<Box<dyn DiskFile>>,
    notary: Notary,
    /// The last entry in the files: what the next segment continues after.
    tail: Option<LogId>,
    /// The commit hint that is in the files.
    hinted: Option<LogId>,
    buffer: Vec<u8>,
    /// Why nothing is written any more.
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
        notary: Notary,
    ) -> Writer {
        let (tail, hinted) = {
            let state = shared.state();
            (state.last, state.committed)
        };
        Writer { disk, shared, queue, active, notary, tail, hinted, buffer: Vec::new(), poison: None }
    }

    /// Runs the writer on a thread of its own: an fdatasync would hold up a runtime.
    pub fn on_thread(self) -> std::io::Result<std::thread::JoinHandle<()>> {
        let thread = std::thread::Builder::new().name("raft-log".to_owned());
        thread.spawn(move || futures::executor::block_on(self.run()))
    }

    /// Works until the log is closed.
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
                        self.commit(&mut group);
                        self.notary.settle();
                        done(Ok(()));
                        return;
                    }
                    Job::Vote(..) | Job::Cut { .. } | Job::Purge(_) => {
                        self.commit(&mut group);
                        self.carry_out(job);
                    }
                }
                if group.bytes < self.shared.limits.frame_bytes {
                    next = self.queue.try_recv().ok();
                }
            }
            self.commit(&mut group);
        }
    }

    /// Writes a group and tells its waiters.
    fn commit(&mut self, group: &mut Group) {
        let Group { entries, waiting, .. } = std::mem::take(group);
        if waiting.is_empty() {
            return;
        }
        let outcome = self.guard(|writer| writer.write_entries(&entries));
        for done in waiting {
            done(outcome.clone());
        }
    }

    fn carry_out(&mut self, job: Job) {
        match job {
            Job::Vote(vote, done) => {
                done(self.guard(|writer| write_vote(&*writer.disk, &writer.shared.dir, writer.shared.group, vote)));
            }
            Job::Cut { last, done } => done(self.guard(|writer| writer.cut(last))),
            Job::Purge(upto) => {
                // The next append reports the failure: from here on every write fails.
                let _ = self.guard(|writer| writer.purge(upto));
            }
            Job::Append { .. } | Job::Close(_) => {}
        }
    }

    /// Does nothing any more after a failure: an fsync that failed once says nothing the second time.
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

    fn write_frame(&mut self, cut: Option<Option<LogId>>, entries: &[Entry]) -> Result<(), LogError> {
        self.make_room(cut, entries)?;
        let committed = self.shared.state().committed;
        let hint = committed.filter(|_| committed != self.hinted);
        let frame = proto::Frame {
            cut: cut.map(|last| proto::Cut { last: last.map(LogId::spell) }),
            entries: entries.iter().map(Entry::spell).collect(),
            committed: hint.map(LogId::spell),
        };
        let (salt, offset, path) = {
            let state = self.shared.state();
            let Some(segment) = state.segments.last() else { return Err(LogError::Closed) };
            (segment.header.salt, segment.end, segment.path.clone())
        };
        let Some(file) = &mut self.active else { return Err(LogError::Closed) };

        self.buffer.clear();
        self.buffer.resize(FRAME_HEAD_BYTES, 0);
        // Writing into a vector cannot run out of room.
        let _ = frame.encode(&mut self.buffer);
        segment::seal(&mut self.buffer, salt, offset);
        let written = file
            .seek(SeekFrom::Start(offset))
            .and_then(|_| file.write_all(&self.buffer))
            .and_then(|()| if planted::has(Bug::SkipFsync) { Ok(()) } else { file.sync_data() });
        written.map_err(disk_error(format_args!("writing {}", path.display())))?;

        let end = offset + self.buffer.len() as u64;
        self.notary.note(salt, end);
        // A frame far beyond the usual size must not keep its room for ever.
        self.buffer.shrink_to(2 * self.shared.limits.frame_bytes);
        self.hinted = committed;
        self.settle(cut, entries, offset, end);
        Ok(())
    }

    /// Makes the durable frame known to readers.
    fn settle(&mut self, cut: Option<Option<LogId>>, entries: &[Entry], offset: u64, end: u64) {
        let mut state = self.shared.state();
        let point_bytes = self.shared.limits.point_bytes;
        if let Some(segment) = state.segments.last_mut() {
            segment.end = end;
            if let Some(last) = cut {
                segment.void(last.map_or(0, |last| last.index + 1), offset);
            }
            if let Some(first) = entries.first() {
                segment.point(first.index(), offset, point_bytes);
            }
        }
        if let Some(last) = cut {
            self.tail = last;
        }
        self.tail = entries.last().map(|entry| entry.id).or(self.tail);
        state.written = self.tail.map_or(0, |tail| tail.index + 1);
        let written = state.written;
        state.cache.shrink(written);
    }

    /// Begins a new segment where there is none or the last one is full.
    fn make_room(&mut self, cut: Option<Option<LogId>>, entries: &[Entry]) -> Result<(), LogError> {
        let full = {
            let state = self.shared.state();
            state.segments.last().is_none_or(|segment| segment.end >= self.shared.limits.segment_bytes)
        };
        match entries.first() {
            Some(first) if self.active.is_none() || (full && cut.is_none()) => {
                self.begin_segment(first.index(), self.tail, false)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Creates the file under a draft name first, so that no segment ever lacks its header.
    fn begin_segment(&mut self, first: u64, prev: Option<LogId>, reset: bool) -> Result<(), LogError> {
        let salt = uuid::Uuid::new_v4().as_u128() as u32;
        let header = Header { group: self.shared.group, salt, first, prev, reset };
        let path = self.shared.dir.join(segment::file_name(first));
        let draft = path.with_extension("new");
        let doing = || format!("creating {}", path.display());
        let mut file = self.disk.create(&draft).map_err(disk_error(doing()))?;
        file.write_all(&header.print()).and_then(|()| file.sync_data()).map_err(disk_error(doing()))?;
        self.disk.rename(&draft, &path).map_err(disk_error(doing()))?;
        self.disk.sync_dir(&self.shared.dir).map_err(disk_error(doing()))?;
        debug!(file = %path.display(), "log: a new segment");
        self.active = Some(file);
        let segment = Segment { header, path, points: Vec::new(), end: HEADER_BYTES as u64 };
        self.shared.state().segments.push(segment);
        Ok(())
    }

    /// Drops every entry after `last`: whole segments by removing them, newest first, the rest by a frame that says so.
    /// A crash in between leaves a longer log, as if the cut had not been asked for yet.
    fn cut(&mut self, last: Option<LogId>) -> Result<(), LogError> {
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
            let file = self.disk.edit(&path).map_err(disk_error(format_args!("opening {}", path.display())))?;
            self.active = Some(file);
        }
        self.write_frame(Some(last), &[])
    }

    /// Removes the segments that hold nothing after `upto`.
    fn purge(&mut self, upto: LogId) -> Result<(), LogError> {
        let next = upto.index + 1;
        let begins_there = |segment: &Segment| segment.header.first == next;
        let empty = self.tail.is_none_or(|tail| tail.index <= upto.index);
        if empty && !self.shared.state().segments.last().is_some_and(begins_there) {
            self.active = None;
            self.begin_segment(next, Some(upto), true)?;
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

impl Segment {
    /// Notes that a frame with this first entry stands at this offset, unless a note nearby will do.
    pub(super) fn point(&mut self, index: u64, offset: u64, point_bytes: u64) {
        if self.points.last().is_none_or(|(_, near)| offset - near >= point_bytes) {
            self.points.push((index, offset));
        }
    }

    /// Notes that entries from this index on are void before this offset.
    pub(super) fn void(&mut self, from: u64, offset: u64) {
        let from = from.max(self.header.first);
        while self.points.pop_if(|(index, _)| *index >= from).is_some() {}
        self.points.push((from, offset));
    }
}
