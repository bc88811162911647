//! The append-only log of one Raft group.
//!
//! Owns: entries, vote and commit hint, durable in segment files in one directory. Group commit: one writer
//! (`writer.rs`) takes all queued appends, makes one write and one fdatasync, and completes all of them. The newest
//! entries stay in memory (`cache.rs`); older ones are read from their files (`reader.rs`).
//! Never: consensus. `replication/` translates between its types and ours.
//!
//! The vote has its own small file, which is replaced atomically: it must survive every purge. A crash cannot tear it,
//! so a bad checksum there is always damage, and the node must not vote again.
//!
//! A write that finds no space on the disk waits until there is some. Any other failed write or fdatasync poisons the
//! log: this and every later write fails, because after a failed fsync the content of the disk is unknown. Entries stay readable. The next open (a restart, when the disk has space) finds out
//! what survived: it removes a torn frame, and everything that was acknowledged is there.

pub mod command;
pub mod record;
mod cache;
mod durable;
mod open;
mod reader;
pub mod segment;
mod writer;
#[cfg(test)]
mod codec_test;
#[cfg(test)]
mod log_test;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::disk::Disk;
use crate::metrics::{Durations, Page, catalogue};
use cache::Cache;
use record::{Entry, LogId, Vote};
use writer::Job;
pub use writer::Writer;

/// A write that is under way for longer says no more about the disk: it may wait for space.
const UNDER_WAY_MAX: Duration = Duration::from_secs(2);

/// Why an operation of the log failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogError {
    /// The file system failed.
    Disk { doing: String, kind: io::ErrorKind, why: String },
    /// Bytes that were durable have changed. Nothing was dropped; the operator decides.
    Damaged { file: PathBuf, offset: u64, why: String },
    /// An append does not continue the log.
    Gap { expected: u64, got: u64 },
    /// An earlier write failed; the log writes nothing more until it is opened again.
    Poisoned(String),
    /// The log was closed.
    Closed,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::Disk { doing, why, .. } => write!(f, "log: {doing}: {why}"),
            LogError::Damaged { file, offset, why } => {
                write!(f, "log: {} is damaged at byte {offset}: {why}", file.display())
            }
            LogError::Gap { expected, got } => {
                write!(f, "log: entry {got} was appended where entry {expected} is next")
            }
            LogError::Poisoned(why) => write!(f, "log: an earlier write failed, restart the node: {why}"),
            LogError::Closed => f.write_str("log: closed"),
        }
    }
}

impl std::error::Error for LogError {}

impl From<LogError> for io::Error {
    fn from(error: LogError) -> io::Error {
        let kind = match &error {
            LogError::Disk { kind, .. } => *kind,
            LogError::Damaged { .. } | LogError::Gap { .. } => io::ErrorKind::InvalidData,
            LogError::Poisoned(_) | LogError::Closed => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

fn disk_error(doing: impl fmt::Display) -> impl FnOnce(io::Error) -> LogError {
    move |error| LogError::Disk { doing: doing.to_string(), kind: error.kind(), why: error.to_string() }
}

/// The limits of a log.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// A larger segment gets no further frame. Purge frees whole segments.
    pub segment_bytes: u64,
    /// The size of the cache of newest entries.
    pub cache_bytes: usize,
    /// A larger frame gets no further entry.
    pub frame_bytes: usize,
    /// The index of offsets has one point per this many bytes of a segment.
    pub point_bytes: u64,
    /// The length of the writer's queue. Callers bound the proposals in flight, so it is rarely full.
    pub queue_jobs: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            segment_bytes: 32 << 20,
            cache_bytes: 16 << 20,
            frame_bytes: 4 << 20,
            point_bytes: 64 << 10,
            queue_jobs: 1024,
        }
    }
}

/// The writer calls it with the result.
pub type Done = Box<dyn FnOnce(Result<(), LogError>) + Send>;

/// The first and last entry of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edges {
    /// The last entry that was purged.
    pub purged: Option<LogId>,
    /// The last entry; the last purged one if the log is empty.
    pub last: Option<LogId>,
}

/// A file of the log, with an index of offsets.
#[derive(Debug, Clone)]
struct Segment {
    header: segment::Header,
    path: PathBuf,
    /// Ascending (index, offset): the entries from this index to the next point's lie between the two offsets.
    points: Vec<(u64, u64)>,
    /// The offset of the next frame.
    end: u64,
}

#[derive(Debug)]
struct State {
    purged: Option<LogId>,
    last: Option<LogId>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    cache: Cache,
    /// Entries below this index can be read from a file.
    written: u64,
    segments: Vec<Segment>,
}

impl State {
    fn next_index(&self) -> Option<u64> {
        self.last.map(|last| last.index + 1)
    }

    /// The offset in a segment where the entries after this one start, rounded down to a point of the index. The end
    /// of the segment if it has no such entries.
    fn offset_after(&self, rank: usize, index: u64) -> u64 {
        let segment = &self.segments[rank];
        let past = self.segments.get(rank + 1).map(|later| later.header.first).or(self.next_index());
        if past.is_none_or(|past| past <= index + 1) {
            return segment.end;
        }
        let known = segment.points.partition_point(|(first, _)| *first <= index + 1);
        known.checked_sub(1).map_or(segment::HEADER_BYTES as u64, |at| segment.points[at].1)
    }
}

/// Shared by the log, its readers and its writer.
#[derive(Debug)]
struct Shared {
    group: u32,
    dir: PathBuf,
    limits: Limits,
    state: Mutex<State>,
    /// The writer waits for space no longer.
    closing: AtomicBool,
    /// How long syncs take lately, in microseconds.
    sync_us: AtomicU64,
    /// When the write that is under way was begun, and how many syncs it takes.
    under_way: Mutex<Option<(Instant, u32)>>,
    /// How long all syncs took, for a page of metrics.
    syncs: Durations,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begins(&self, syncs: u32) {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), syncs));
    }

    fn ended(&self) {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Follows a slower sync at once and forgets it slowly: one quick sync says nothing about the next.
    fn took(&self, sync: Duration) {
        let before = self.sync_us.load(Ordering::Relaxed);
        let now = u64::try_from(sync.as_micros()).unwrap_or(u64::MAX);
        self.sync_us.store(now.max(before - before / 16), Ordering::Relaxed);
    }
}

/// A handle of the log. Clones share the log.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    jobs: mpsc::Sender<Job>,
}

impl Log {
    /// Opens the log in a directory, or creates it. The caller must run the writer: `Writer::on_thread`, or
    /// `Writer::run` on its own runtime.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, group: u32, limits: Limits) -> Result<(Log, Writer), LogError> {
        let opened = open::open(&*disk, dir, group, limits)?;
        let shared = Arc::new(Shared {
            group,
            dir: dir.to_owned(),
            limits,
            state: Mutex::new(opened.state),
            closing: AtomicBool::new(false),
            sync_us: AtomicU64::new(0),
            under_way: Mutex::default(),
            syncs: Durations::default(),
        });
        let (jobs, queue) = mpsc::channel(limits.queue_jobs);
        let writer = Writer::new(disk.clone(), shared.clone(), queue, opened.active, opened.durable);
        Ok((Log { shared, disk, jobs }, writer))
    }

    pub fn edges(&self) -> Edges {
        let state = self.shared.state();
        Edges { purged: state.purged, last: state.last }
    }

    pub fn vote(&self) -> Option<Vote> {
        self.shared.state().vote
    }

    pub fn committed(&self) -> Option<LogId> {
        self.shared.state().committed
    }

    /// How long the disk takes to make a write durable, lately.
    pub fn sync_time(&self) -> Duration {
        Duration::from_micros(self.shared.sync_us.load(Ordering::Relaxed))
    }

    /// The same, and a write that is under way for longer counts already: a disk that has become slow shows it before the
    /// first slow sync ends.
    pub fn sync_time_so_far(&self) -> Duration {
        let under_way = *self.shared.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let so_far = under_way.map_or(Duration::ZERO, |(began, syncs)| began.elapsed() / syncs);
        self.sync_time().max(so_far.min(UNDER_WAY_MAX))
    }

    /// Adds the figures of the log to a page.
    pub fn measure(&self, page: &mut Page) {
        page.durations(catalogue::LOG_FSYNC, &[], &self.shared.syncs);
        page.whole(catalogue::LOG_QUEUE, (self.jobs.max_capacity() - self.jobs.capacity()) as u64);
    }

    /// Bytes of all segment files.
    pub fn bytes(&self) -> u64 {
        self.shared.state().segments.iter().map(|segment| segment.end).sum()
    }

    /// About how many of these bytes hold entries after this one.
    pub fn bytes_after(&self, index: u64) -> u64 {
        let state = self.shared.state();
        (0..state.segments.len()).map(|rank| state.segments[rank].end - state.offset_after(rank, index)).sum()
    }

    /// The index of an entry about `bytes` before `index`; `None` if the log is shorter.
    pub fn index_before(&self, index: u64, bytes: u64) -> Option<u64> {
        let state = self.shared.state();
        let mut between = 0;
        for rank in (0..state.segments.len()).rev() {
            let end = state.offset_after(rank, index);
            let mut before = state.segments[rank].points.iter().rev().filter(|(first, _)| *first <= index);
            if let Some((first, _)) = before.find(|(_, offset)| between + end - offset >= bytes) {
                return first.checked_sub(1);
            }
            between += end - segment::HEADER_BYTES as u64;
        }
        None
    }

    /// Sets how far the log is committed. The next append writes it; it gets no fsync of its own.
    pub fn hint_committed(&self, committed: Option<LogId>) {
        self.shared.state().committed = committed;
    }

    /// Apply has read the entries below this index. Until then they are kept in memory, up to a larger bound.
    pub fn note_applied(&self, next: u64) {
        let mut state = self.shared.state();
        let written = state.written;
        state.cache.applied(next);
        state.cache.shrink(written);
    }

    /// Makes entries readable at once. The writer calls `done` when they are durable.
    pub async fn append(&self, entries: Vec<Entry>, done: Done) -> Result<(), LogError> {
        let slot = self.jobs.reserve().await.map_err(|_| LogError::Closed)?;
        let mut state = self.shared.state();
        let mut next = state.next_index();
        for entry in &entries {
            if let Some(expected) = next
                && expected != entry.index()
            {
                return Err(LogError::Gap { expected, got: entry.index() });
            }
            next = Some(entry.index() + 1);
        }
        for entry in &entries {
            state.cache.push(entry.clone());
        }
        state.last = entries.last().map(|entry| entry.id).or(state.last);
        let written = state.written;
        state.cache.shrink(written);
        drop(state);
        slot.send(Job::Append { entries, done });
        Ok(())
    }

    /// Returns when the vote is durable.
    pub async fn save_vote(&self, vote: Vote) -> Result<(), LogError> {
        self.wait(|done| Job::Vote(vote, done)).await?;
        self.shared.state().vote = Some(vote);
        Ok(())
    }

    /// Notes that the candidate of the saved vote has won. It is not written: with the same term and node on disk, nothing
    /// depends on it after a restart, and every election needs one vote file less on each node. False if the saved vote is
    /// another one.
    pub fn note_won(&self, vote: Vote) -> bool {
        let mut state = self.shared.state();
        let same = state.vote.is_some_and(|saved| (saved.term, saved.node) == (vote.term, vote.node));
        if same {
            state.vote = Some(vote);
        }
        same
    }

    /// Removes every entry after `last`; all of them if `None`. Returns when that is durable.
    pub async fn truncate_after(&self, last: Option<LogId>) -> Result<(), LogError> {
        let last = {
            let mut state = self.shared.state();
            let from = last.map_or(0, |last| last.index + 1);
            if state.next_index().is_none_or(|next| next <= from) {
                return Ok(());
            }
            // Purged entries stay purged.
            let last = last.max(state.purged);
            state.cache.truncate(last.map_or(0, |last| last.index + 1));
            state.last = last;
            last
        };
        self.wait(|done| Job::Truncate { last, done }).await
    }

    /// Removes every entry up to `upto`. The writer removes the files later; the next append reports a failure.
    pub async fn purge(&self, upto: LogId) -> Result<(), LogError> {
        let slot = self.jobs.reserve().await.map_err(|_| LogError::Closed)?;
        let mut state = self.shared.state();
        if state.purged.is_some_and(|purged| purged.index >= upto.index) {
            return Ok(());
        }
        state.purged = Some(upto);
        state.cache.purge(upto.index);
        if state.last.is_none_or(|last| last.index < upto.index) {
            state.last = Some(upto);
        }
        drop(state);
        slot.send(Job::Purge(upto));
        Ok(())
    }

    /// Writes what is queued and stops the writer. Later writes fail with `Closed`.
    pub async fn close(&self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        // An error means that the writer has stopped already.
        let _ = self.wait(Job::Close).await;
        self.jobs.closed().await;
    }

    async fn wait(&self, job: impl FnOnce(Done) -> Job) -> Result<(), LogError> {
        let (tell, told) = oneshot::channel();
        let done: Done = Box::new(move |outcome| {
            // The caller may have stopped waiting.
            let _ = tell.send(outcome);
        });
        self.jobs.send(job(done)).await.map_err(|_| LogError::Closed)?;
        told.await.map_err(|_| LogError::Closed)?
    }
}
