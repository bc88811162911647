//! The append-only log of one Raft group.
//!
//! Owns: entries, vote and commit hint, durable in segment files under one directory. One writer (`writer.rs`) drains
//! a queue into one write and one fdatasync, then tells everyone who waited: that is the group commit. The newest
//! entries stay in memory (`cache.rs`), older ones are read from their files (`reader.rs`).
//! Never: know what consensus is. `replication/` translates.
//!
//! The vote lies in a small file of its own, replaced as a whole: it must outlive every purge, and since a crash
//! cannot tear it, a bad checksum there is always damage and never a reason to vote twice.
//!
//! A failed write or fdatasync poisons the log: that and every later write fails, since after a failed fsync nobody
//! knows what is on disk. Entries stay readable. Opening the log again (a restart, once the disk has space) finds out
//! what survived: a frame that was cut short is cut off, everything acknowledged is there.

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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::disk::Disk;
use cache::Cache;
use record::{Entry, LogId, Vote};
use writer::Job;
pub use writer::Writer;

/// Why the log cannot do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogError {
    /// The file system refused.
    Disk { doing: String, kind: io::ErrorKind, why: String },
    /// Bytes that were durable once are not what they were. Nothing was dropped; the operator decides.
    Damaged { file: PathBuf, offset: u64, why: String },
    /// An append that does not continue the log.
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

/// The sizes a log keeps to.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// A segment takes no further frame beyond this. Purge frees space in this unit.
    pub segment_bytes: u64,
    /// The newest entries kept in memory.
    pub cache_bytes: usize,
    /// One write takes no further entry beyond this.
    pub frame_bytes: usize,
    /// One entry of the index of offsets per this many bytes of a segment.
    pub point_bytes: u64,
    /// Appends that wait for the writer. The proposals in flight are bounded before they come here.
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

/// Called by the writer once the outcome is known.
pub type Done = Box<dyn FnOnce(Result<(), LogError>) + Send>;

/// Where a log begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edges {
    /// The last entry that was purged.
    pub purged: Option<LogId>,
    /// The last entry; the last purged one when no other is left.
    pub last: Option<LogId>,
}

/// A file of the log, and where in it to look for an entry.
#[derive(Debug, Clone)]
struct Segment {
    header: segment::Header,
    path: PathBuf,
    /// Ascending (index, offset): entries from this index up to the next point's lie between the two offsets.
    points: Vec<(u64, u64)>,
    /// Where the next frame goes.
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

    /// Where the entries after this one begin in a segment, to the nearest note before them; its end where there are
    /// none.
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

/// What the log, its readers and its writer share.
#[derive(Debug)]
struct Shared {
    group: u32,
    dir: PathBuf,
    limits: Limits,
    state: Mutex<State>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The log. Clones are the same log.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    jobs: mpsc::Sender<Job>,
}

impl Log {
    /// Opens the log in a directory, or begins one. The writer must be run for anything to be written:
    /// `Writer::on_thread`, or `Writer::run` on a runtime of the caller's.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, group: u32, limits: Limits) -> Result<(Log, Writer), LogError> {
        let opened = open::open(&*disk, dir, group, limits)?;
        let shared = Arc::new(Shared { group, dir: dir.to_owned(), limits, state: Mutex::new(opened.state) });
        let (jobs, queue) = mpsc::channel(limits.queue_jobs);
        let writer = Writer::new(disk.clone(), shared.clone(), queue, opened.active, opened.notary);
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

    /// Bytes of all segment files.
    pub fn bytes(&self) -> u64 {
        self.shared.state().segments.iter().map(|segment| segment.end).sum()
    }

    /// About how many bytes of them hold entries after this one.
    pub fn bytes_after(&self, index: u64) -> u64 {
        let state = self.shared.state();
        (0..state.segments.len()).map(|rank| state.segments[rank].end - state.offset_after(rank, index)).sum()
    }

    /// An entry that has about `bytes` of other entries between itself and `index`; `None` in a log that is shorter.
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

    /// Remembers how far the log is committed. It reaches the disk with the next append, without an fsync of its own.
    pub fn hint_committed(&self, committed: Option<LogId>) {
        self.shared.state().committed = committed;
    }

    /// Makes entries readable at once and durable soon; `done` is called by the writer when they are.
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

    /// Drops every entry after `last`; all of them when `None`. Returns when that is durable.
    pub async fn truncate_after(&self, last: Option<LogId>) -> Result<(), LogError> {
        let last = {
            let mut state = self.shared.state();
            let from = last.map_or(0, |last| last.index + 1);
            if state.next_index().is_none_or(|next| next <= from) {
                return Ok(());
            }
            // What was purged stays purged.
            let last = last.max(state.purged);
            state.cache.cut(last.map_or(0, |last| last.index + 1));
            state.last = last;
            last
        };
        self.wait(|done| Job::Cut { last, done }).await
    }

    /// Forgets every entry up to `upto`. Files go in the background; a failure shows with the next append.
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

    /// The entries with `from <= index < to` that the log holds, up to `bytes_max` of them but at least one.
    pub fn read(&self, from: u64, to: u64, bytes_max: usize) -> Result<Vec<Entry>, LogError> {
        reader::read(&self.shared, &*self.disk, from, to, bytes_max)
    }

    /// Writes what is queued and ends the writer. Later writes fail with `Closed`.
    pub async fn close(&self) {
        // An error means that the writer ended already.
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
