//! Owns: openraft's view of our log. `append` returns when entries are queued; the log's writer reports when they are
//! durable, for many appends at once.
//! Never: hold an entry itself.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};

use futures::Stream;
use futures::stream;
use openraft::OptionalSend;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};

use super::types::{self, Entry, LogId, Types, Vote};
use crate::storage::log::Log;

/// The bytes that one read of the log returns at most, to replication or apply. It returns at least one entry.
const READ_BYTES: usize = 1 << 20;

#[derive(Clone)]
pub struct LogStore {
    log: Log,
}

impl LogStore {
    pub fn new(log: Log) -> LogStore {
        LogStore { log }
    }

    fn read(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let entries = self.log.read(from, to, bytes_max)?;
        let checked = entries.iter().try_for_each(types::check);
        checked.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(entries)
    }
}

/// The range as `from..to`.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(from) => *from,
        Bound::Excluded(from) => from + 1,
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(to) => to + 1,
        Bound::Excluded(to) => *to,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<R>(&mut self, range: R) -> io::Result<Vec<Entry>>
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        self.read(from, to, usize::MAX)
    }

    async fn limited_get_log_entries(&mut self, from: u64, to: u64) -> io::Result<Vec<Entry>> {
        self.read(from, to, READ_BYTES)
    }

    /// Read by apply, in pieces, so that a long replay needs no more memory than a short one.
    async fn entries_stream<R>(&mut self, range: R) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        let store = self.clone();
        let pieces = stream::unfold(from, move |next| {
            // It asks for the next piece when it has the one before.
            store.log.note_applied(next);
            let piece = if next < to { store.read(next, to, READ_BYTES) } else { Ok(Vec::new()) };
            async move {
                match piece {
                    Ok(entries) => {
                        let last = entries.last()?.index();
                        let entries: Vec<io::Result<Entry>> = entries.into_iter().map(Ok).collect();
                        Some((stream::iter(entries), last + 1))
                    }
                    // The stream ends after an error.
                    Err(error) => Some((stream::iter(vec![Err(error)]), to)),
                }
            }
        });
        Box::pin(futures::StreamExt::flatten(pieces))
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.log.vote().map(types::vote))
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let edges = self.log.edges();
        Ok(LogState { last_purged_log_id: edges.purged.map(types::log_id), last_log_id: edges.last.map(types::log_id) })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let vote = types::our_vote(vote);
        if vote.committed && self.log.note_won(vote) {
            return Ok(());
        }
        Ok(self.log.save_vote(vote).await?)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.log.hint_committed(committed.as_ref().map(types::our_log_id));
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.log.committed().map(types::log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let done = Box::new(|outcome: Result<(), _>| callback.io_completed(outcome.map_err(io::Error::from)));
        Ok(self.log.append(entries.into_iter().collect(), done).await?)
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        Ok(self.log.truncate_after(last.as_ref().map(types::our_log_id)).await?)
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        Ok(self.log.purge(types::our_log_id(&upto)).await?)
    }
}
