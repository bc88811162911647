//! Owns: the newest commits, decoded. Most commits change the same few sessions again and again. What they change is
//! kept as it is, and its keys are made once, when the layer is sealed, and not with every commit.
//!
//! ```text
//! head     record, leaf, sequence number and home of a session that was changed lately
//! answers  recorded answers
//! feed     records of the feed
//! ```
//!
//! Entries get their keys at once, because they are read by key and never change places. So does every change that deletes
//! something (`is_plain` tells which changes do not): the keys of everything before it are made first.
//! Never: a lock of the store. Readers share `Recent`, one commit at a time changes it.

use std::collections::{HashMap, HashSet};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;

use super::KEY_OVERHEAD_BYTES;
use super::spine::Spine;
use crate::machine::change::{AnswerChange, Change, FeedChange, RecordChange, SessionChange, WorkChange};
use crate::machine::entry::{Entry, Place};
use crate::machine::event::EventKind;
use crate::machine::feed_record::{FeedEdge, Record};
use crate::machine::ids::{EntryId, FeedPlace, RequestId, SessionId};
use crate::machine::long::Home;
use crate::machine::refusal::Fault;
use crate::machine::session::SessionMeta;
use crate::machine::view::View;
use crate::storage::state::encoded::Values;
use crate::storage::state::kv::{Changed, Kv};
use crate::storage::state::seeded_hash::Seed;
use crate::storage::state::write::delete_range;
use crate::storage::state::{
    Encoded, Records, answer, beside, checkpoint, clock, cursor, entry, feed_edge, feed_record, leaf, list, meta, seq,
};

/// About what the keys of a changed session take in a layer, beside its record.
const HEAD_BYTES: usize = 1024;

/// How many times its encoded size a record takes in memory: decoded metadata is much larger than its text.
const META_FACTOR: usize = 4;

/// Unchanged heads that are kept after a seal: sessions in use are read and written again.
const HEADS_KEPT_MAX: usize = 2048;

/// A larger record is not kept after a seal, so that kept heads have a bound in bytes too.
const KEPT_META_BYTES_MAX: usize = 1024;

/// The newest commits over the layers of keys.
#[derive(Default)]
pub struct Recent {
    heads: HashMap<SessionId, Head, Seed>,
    answers: HashMap<RequestId, Bytes, Seed>,
    /// No answer among them was issued earlier.
    answers_from_ms: Option<i64>,
    /// Oldest first.
    feed: Vec<(FeedPlace, Bytes)>,
    feed_edge: Option<FeedEdge>,
    clock_ms: Option<i64>,
    checkpoint: Option<Bytes>,
    /// About how many bytes a seal adds to the layer.
    bytes: usize,
    lists: RwLock<Lists>,
}

/// The records of one session.
#[derive(Debug, Clone)]
pub struct Head {
    meta: Option<SessionMeta>,
    leaf: Option<EntryId>,
    seq: Option<u64>,
    home: Option<Home>,
    /// The next append is mostly below the entry that was written last.
    spine: Spine,
    /// The encoded size of the record.
    meta_bytes: usize,
    /// Its size is part of `Recent::bytes`.
    counted: bool,
    /// `None` if the layers of keys hold the same.
    changed: Option<Pending>,
}

/// What a changed head needs for its keys.
#[derive(Debug, Clone)]
struct Pending {
    /// The record that the indexes in the layers of keys were made of.
    indexed: Option<SessionMeta>,
    /// The encoded record, if it was put.
    meta_value: Option<Bytes>,
    leaf: bool,
    seq: bool,
}

/// The keys by which changed sessions are listed. Made when a list is read, so appends do not pay for them.
#[derive(Default)]
struct Lists {
    keys: Changed,
    /// The record of each session that `keys` was made of.
    shown: HashMap<SessionId, SessionMeta>,
    /// Sessions whose record changed since.
    stale: HashSet<SessionId>,
}

/// What a commit needs to know of older layers. Read before anything changes, so that a failed read changes nothing.
pub struct Prepared {
    heads: Vec<(SessionId, Head)>,
    feed_edge: Option<FeedEdge>,
    /// Keys that the commit writes or deletes beside those of its entries.
    keys: Changed,
}

/// Whether a change goes to `Recent`. The others delete, or move entries.
pub fn is_plain(change: &Change) -> bool {
    match change {
        Change::Clock(_) | Change::Answer(_) => true,
        Change::Session(_, change) => match change {
            SessionChange::PutMeta(_) | SessionChange::PutEntry(_) | SessionChange::SetLeaf(_) => true,
            SessionChange::DeleteMeta | SessionChange::DeleteEntries | SessionChange::DeleteLeaf => false,
        },
        Change::Feed(change) => match change {
            FeedChange::SetSeq(_, seq) => seq.is_some(),
            // The record of a deletion also writes a tombstone.
            FeedChange::Append { records, .. } => records.iter().all(|(_, record)| record.kind() != EventKind::Deleted),
            FeedChange::SetCursor(..) => true,
            FeedChange::Trim { .. } => false,
        },
        Change::Work(_) => false,
        // Records get their keys at once, like entries.
        Change::Record(change) => match change {
            RecordChange::Put(..) | RecordChange::Delete(_) => true,
            RecordChange::DropSession(_) | RecordChange::Free { .. } => false,
        },
    }
}

/// The session whose records a change writes.
fn session_of(change: &Change) -> Option<&SessionId> {
    match change {
        Change::Session(session_id, _) | Change::Feed(FeedChange::SetSeq(session_id, _)) => Some(session_id),
        Change::Work(WorkChange::Detach { session_id, .. }) => Some(session_id),
        Change::Work(WorkChange::Free { leftover, .. }) => Some(&leftover.session_id),
        Change::Work(WorkChange::PutFork(_) | WorkChange::EndFork { .. }) => None,
        Change::Feed(FeedChange::Append { .. } | FeedChange::Trim { .. } | FeedChange::SetCursor(..)) => None,
        Change::Answer(_) | Change::Record(_) | Change::Clock(_) => None,
    }
}

impl Recent {
    /// Reads what plain changes need of the layers of keys. `None` if the state is empty: its first command starts the
    /// feed, and makes keys.
    pub fn prepare(&self, kv: &dyn Kv, changes: &[Change]) -> Result<Option<Prepared>, Fault> {
        let records = Records::new(kv);
        if self.clock_ms.is_none() && kv.get(&clock::key())?.is_none() {
            return Ok(None);
        }
        let mut prepared = Prepared { heads: Vec::new(), feed_edge: None, keys: Changed::new() };
        for change in changes {
            if let Some(session_id) = session_of(change)
                && !self.heads.contains_key(session_id)
                && prepared.heads.iter().all(|(known, _)| known != session_id)
            {
                prepared.heads.push((session_id.clone(), Head::read(&records, session_id)?));
            }
            match change {
                Change::Answer(AnswerChange::ExpireBefore(issued_ms)) => {
                    let (from, to) = answer::keys_before(*issued_ms);
                    delete_range(&mut prepared.keys, kv, &from, Some(&to))?;
                }
                Change::Feed(FeedChange::SetCursor(attach, position)) => {
                    prepared.keys.insert(cursor::key(attach), position.map(cursor::encode));
                }
                Change::Feed(FeedChange::Append { .. }) if self.feed_edge.is_none() => {
                    prepared.feed_edge = Some(records.feed_edge()?);
                }
                Change::Record(RecordChange::Put(key, value)) => {
                    prepared.keys.insert(beside::key_now(kv, key)?, Some(beside::encode(value)));
                }
                Change::Record(RecordChange::Delete(key)) => {
                    prepared.keys.insert(beside::key_now(kv, key)?, None);
                }
                Change::Session(..)
                | Change::Answer(_)
                | Change::Feed(_)
                | Change::Work(_)
                | Change::Record(_)
                | Change::Clock(_) => {}
            }
        }
        Ok(Some(prepared))
    }

    /// Takes plain changes. Returns the keys that go to the layer at once. Calls `put_entry` with each entry, its key
    /// and its value.
    pub fn take(
        &mut self,
        prepared: Prepared,
        changes: &Encoded<'_>,
        checkpoint: Bytes,
        mut put_entry: impl FnMut(Vec<u8>, Bytes, &Entry),
    ) -> Changed {
        let Prepared { heads, feed_edge, keys } = prepared;
        for (session_id, mut head) in heads {
            // Also if nothing of it changes: a raw entry is written to a session whose record stays as it is.
            head.count(&mut self.bytes);
            self.heads.insert(session_id, head);
        }
        self.feed_edge = self.feed_edge.or(feed_edge);
        for (change, values) in changes.iter() {
            match change {
                Change::Session(session_id, change) => {
                    if let SessionChange::PutEntry(entry) = change {
                        let head = self.heads.get_mut(session_id);
                        put_entry(
                            entry::key_in(session_id, head.as_ref().and_then(|head| head.home), &entry.id),
                            values.one(),
                            entry,
                        );
                        if let Some(head) = head {
                            head.spine.put(entry);
                        }
                    } else {
                        self.take_session(session_id, change, values);
                    }
                }
                Change::Feed(FeedChange::SetSeq(session_id, seq)) => {
                    if let Some(head) = self.heads.get_mut(session_id) {
                        head.pending(&mut self.bytes).seq = true;
                        head.seq = *seq;
                    }
                }
                Change::Feed(FeedChange::Append { index, records }) => {
                    let edge = self.feed_edge.get_or_insert_default();
                    for ((ordinal, _), value) in records.iter().zip(values.iter()) {
                        let place = FeedPlace { index: *index, ordinal: *ordinal };
                        feed_record::extend(edge, place, &value);
                        self.bytes += value.len() + KEY_OVERHEAD_BYTES;
                        self.feed.push((place, value));
                    }
                }
                Change::Answer(AnswerChange::Record(request_id, _)) => {
                    let value = values.one();
                    self.bytes += value.len() + KEY_OVERHEAD_BYTES;
                    let issued_ms = request_id.issued_ms();
                    self.answers_from_ms = Some(self.answers_from_ms.map_or(issued_ms, |from| from.min(issued_ms)));
                    self.answers.insert(*request_id, value);
                }
                Change::Answer(AnswerChange::ExpireBefore(issued_ms)) => {
                    // Hardly ever: they are a minute younger than what expires.
                    if self.answers_from_ms.is_some_and(|from| from < *issued_ms) {
                        self.answers.retain(|request_id, _| request_id.issued_ms() >= *issued_ms);
                        self.answers_from_ms = Some(*issued_ms);
                    }
                }
                Change::Clock(at_ms) => self.clock_ms = Some(*at_ms),
                // `prepare` made the keys of cursors and records; the rest is not plain.
                Change::Feed(FeedChange::SetCursor(..) | FeedChange::Trim { .. })
                | Change::Record(_)
                | Change::Work(_) => {}
            }
        }
        self.checkpoint = Some(checkpoint);
        keys
    }

    fn take_session(&mut self, session_id: &SessionId, change: &SessionChange, values: Values<'_>) {
        let Some(head) = self.heads.get_mut(session_id) else { return };
        match change {
            SessionChange::PutMeta(meta) => {
                let stale = &mut self.lists.get_mut().unwrap_or_else(PoisonError::into_inner).stale;
                if !stale.contains(session_id) {
                    stale.insert(session_id.clone());
                }
                let value = values.one();
                head.pending(&mut self.bytes);
                self.bytes += META_FACTOR * value.len();
                self.bytes -= META_FACTOR * std::mem::replace(&mut head.meta_bytes, value.len());
                head.pending(&mut self.bytes).meta_value = Some(value);
                head.meta = Some(meta.clone());
            }
            SessionChange::SetLeaf(leaf) => {
                head.pending(&mut self.bytes).leaf = true;
                head.leaf = Some(leaf.clone());
            }
            SessionChange::PutEntry(_)
            | SessionChange::DeleteMeta
            | SessionChange::DeleteEntries
            | SessionChange::DeleteLeaf => {}
        }
    }

    /// Makes the keys of everything that has none yet. The unchanged heads of sessions in use stay.
    pub fn make_keys(&mut self) -> Changed {
        let mut keys = Changed::new();
        *self.lists.get_mut().unwrap_or_else(PoisonError::into_inner) = Lists::default();
        let keep = self.heads.len() <= HEADS_KEPT_MAX;
        self.heads.retain(|session_id, head| {
            let keep = keep && head.meta_bytes <= KEPT_META_BYTES_MAX;
            head.counted = false;
            let Some(pending) = head.changed.take() else { return keep };
            if let Some(value) = pending.meta_value {
                list::reindex(&mut keys, pending.indexed.as_ref(), head.meta.as_ref());
                keys.insert(meta::key(session_id), Some(value));
            }
            if pending.leaf {
                keys.insert(leaf::key(session_id), head.leaf.as_ref().map(leaf::encode));
            }
            if pending.seq {
                keys.insert(seq::key(session_id), head.seq.map(seq::encode));
            }
            keep
        });
        self.answers_from_ms = None;
        for (request_id, value) in self.answers.drain() {
            keys.insert(answer::key(request_id), Some(value));
        }
        for (place, value) in self.feed.drain(..) {
            keys.insert(feed_record::key(place), Some(value));
        }
        if let Some(edge) = self.feed_edge.take() {
            keys.insert(feed_edge::key(), Some(feed_edge::encode(&edge)));
        }
        if let Some(clock_ms) = self.clock_ms.take() {
            keys.insert(clock::key(), Some(clock::encode(clock_ms)));
        }
        if let Some(checkpoint) = self.checkpoint.take() {
            keys.insert(checkpoint::key(), Some(checkpoint));
        }
        self.bytes = 0;
        keys
    }

    /// Forgets the heads that changes with keys of their own concern. Their keys were made before.
    pub fn forget(&mut self, changes: &[Change]) {
        for session_id in changes.iter().filter_map(session_of) {
            self.heads.remove(session_id);
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn checkpoint(&self) -> Option<&Bytes> {
        self.checkpoint.as_ref()
    }

    pub fn head(&self, session_id: &SessionId) -> Option<&Head> {
        self.heads.get(session_id)
    }

    pub fn answer(&self, request_id: RequestId) -> Option<&Bytes> {
        self.answers.get(&request_id)
    }

    pub fn feed_edge(&self) -> Option<FeedEdge> {
        self.feed_edge
    }

    pub fn clock_ms(&self) -> Option<i64> {
        self.clock_ms
    }

    /// The records of the feed after a place, oldest first.
    pub fn feed_after(&self, after: Option<FeedPlace>) -> &[(FeedPlace, Bytes)] {
        let from = after.map_or(0, |after| self.feed.partition_point(|(place, _)| *place <= after));
        &self.feed[from..]
    }

    /// Calls `read` with the index keys of the changed sessions, to be read over those of the older layers.
    pub fn with_list_keys<R>(&self, read: impl FnOnce(&Changed) -> R) -> R {
        let shared = || self.lists.read().unwrap_or_else(PoisonError::into_inner);
        let mut lists: RwLockReadGuard<'_, Lists> = shared();
        if !lists.stale.is_empty() {
            drop(lists);
            self.lists.write().unwrap_or_else(PoisonError::into_inner).refresh(&self.heads);
            // No commit comes between: the caller shares the lock of the store.
            lists = shared();
        }
        read(&lists.keys)
    }
}

impl Lists {
    fn refresh(&mut self, heads: &HashMap<SessionId, Head, Seed>) {
        for session_id in self.stale.drain() {
            let Some(Head { meta: Some(meta), changed: Some(pending), .. }) = heads.get(&session_id) else { continue };
            let indexed = pending.indexed.as_ref();
            if let Some(shown) = self.shown.get(&session_id) {
                let mut before = Changed::new();
                list::reindex(&mut before, indexed, Some(shown));
                before.keys().for_each(|key| drop(self.keys.remove(key)));
            }
            list::reindex(&mut self.keys, indexed, Some(meta));
            self.shown.insert(session_id, meta.clone());
        }
    }
}

impl Head {
    fn read<K: Kv + ?Sized>(records: &Records<'_, K>, session_id: &SessionId) -> Result<Head, Fault> {
        let seq = records.seq(session_id)?;
        let meta = records.meta(session_id)?;
        Ok(Head {
            meta_bytes: meta.as_ref().map_or(0, |meta| meta::encode(meta).len()),
            meta,
            leaf: records.leaf(session_id)?,
            seq: (seq > 0).then_some(seq),
            home: records.home(session_id)?,
            spine: Spine::default(),
            counted: false,
            changed: None,
        })
    }

    /// Adds its size to `bytes`, once between two seals.
    fn count(&mut self, bytes: &mut usize) {
        if !std::mem::replace(&mut self.counted, true) {
            *bytes += HEAD_BYTES + META_FACTOR * self.meta_bytes;
        }
    }

    /// What its keys need.
    fn pending(&mut self, bytes: &mut usize) -> &mut Pending {
        self.count(bytes);
        let indexed = &self.meta;
        self.changed.get_or_insert_with(|| Pending {
            indexed: indexed.clone(),
            meta_value: None,
            leaf: false,
            seq: false,
        })
    }

    pub fn meta(&self) -> Option<&SessionMeta> {
        self.meta.as_ref()
    }

    pub fn leaf(&self) -> Option<&EntryId> {
        self.leaf.as_ref()
    }

    pub fn seq(&self) -> u64 {
        self.seq.unwrap_or(0)
    }

    pub fn home(&self) -> Option<Home> {
        self.home
    }

    /// The place of an entry, if it is one of those that the next append asks for.
    pub fn place(&self, entry_id: &EntryId) -> Option<&Place> {
        self.spine.place(entry_id)
    }
}

/// A decoded record of the feed.
pub fn read_record((place, value): &(FeedPlace, Bytes)) -> Result<(FeedPlace, Record), Fault> {
    Ok((*place, feed_record::decode(*place, value)?))
}
