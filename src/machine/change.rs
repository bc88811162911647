//! Owns: `Change`, the writes that applying a command makes to the state, grouped by what they are about.
//! Never: how a store encodes or commits them. A store executes all changes of one command, or none.

use super::beside::{RecordKey, RecordLeftover};
use super::command::Answer;
use super::entry::Entry;
use super::feed_record::Record;
use super::ids::{EntryId, FeedPlace, Position, RequestId, SessionId};
use super::json::Json;
use super::long::{Home, Leftover, PendingFork};
use super::refusal::Refusal;
use super::session::SessionMeta;

/// One write to the state.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A record of one session.
    Session(SessionId, SessionChange),
    /// The answers that are kept for retries.
    Answer(AnswerChange),
    /// The event feed and the positions of its readers.
    Feed(FeedChange),
    /// Work that takes many commands.
    Work(WorkChange),
    /// A record beside sessions.
    Record(RecordChange),
    /// Sets the clock of the state, in milliseconds. Every command sets it, so that time never runs backwards when
    /// the leader changes.
    Clock(i64),
}

/// A write to the records of one session. The raw store protocol writes these too (`StoreWrite`).
#[derive(Debug, Clone, PartialEq)]
pub enum SessionChange {
    /// Its `session_id` is the one the change names.
    PutMeta(SessionMeta),
    DeleteMeta,
    PutEntry(Entry),
    /// Deletes every entry of the session.
    DeleteEntries,
    SetLeaf(EntryId),
    DeleteLeaf,
}

/// A write to the recorded answers.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerChange {
    /// Records an answer for the retries of its proposal.
    Record(RequestId, Result<Answer, Refusal>),
    /// Drops the answers to proposals that were issued before this time, in milliseconds.
    ExpireBefore(i64),
}

/// A write to the event feed.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedChange {
    /// The sequence number of a session's last event; `None` deletes it.
    SetSeq(SessionId, Option<u64>),
    /// Appends the events of one log entry, each with its ordinal: events that are not kept leave gaps.
    Append { index: u64, records: Vec<(u32, Record)> },
    /// Drops the events up to this place.
    Trim { upto: FeedPlace },
    /// How far an attach point has delivered; `None` deletes the cursor.
    SetCursor(String, Option<Position>),
}

/// A write to the records of work that takes many commands.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkChange {
    /// Takes all entries from a session. They wait to be freed; new ones are stored in the new home.
    Detach {
        session_id: SessionId,
        new_home: Home,
    },
    /// Frees at most so many of the entries that wait. The record goes with the last of them.
    Free {
        leftover: Leftover,
        records: u32,
    },
    PutFork(PendingFork),
    /// The fork is not under way any more; `shown`: it is a session now.
    EndFork {
        source: SessionId,
        fork: SessionId,
        shown: bool,
    },
}

/// A write to the records beside sessions.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordChange {
    Put(RecordKey, Json),
    Delete(RecordKey),
    /// Deletes all records of a session: at once if they are few, else they wait to be freed.
    DropSession(SessionId),
    /// Frees at most so many of the records that wait.
    Free {
        leftover: RecordLeftover,
        records: u32,
    },
}

impl Change {
    pub fn put_record(key: RecordKey, value: Json) -> Change {
        Change::Record(RecordChange::Put(key, value))
    }

    pub fn delete_record(key: RecordKey) -> Change {
        Change::Record(RecordChange::Delete(key))
    }

    pub fn drop_records(session_id: &SessionId) -> Change {
        Change::Record(RecordChange::DropSession(session_id.clone()))
    }

    pub fn put_meta(meta: SessionMeta) -> Change {
        Change::Session(meta.session_id.clone(), SessionChange::PutMeta(meta))
    }

    pub fn put_entry(session_id: &SessionId, entry: Entry) -> Change {
        Change::Session(session_id.clone(), SessionChange::PutEntry(entry))
    }

    pub fn set_leaf(session_id: &SessionId, entry_id: EntryId) -> Change {
        Change::Session(session_id.clone(), SessionChange::SetLeaf(entry_id))
    }

    /// The time it sets the state's clock to.
    pub fn clock_ms(&self) -> Option<i64> {
        match self {
            Change::Clock(clock_ms) => Some(*clock_ms),
            Change::Session(..) | Change::Answer(_) | Change::Feed(_) | Change::Work(_) | Change::Record(_) => None,
        }
    }
}
