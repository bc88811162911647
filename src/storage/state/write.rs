//! Owns: the keys that each `Change` writes.
//! Never: where the keys are stored, nor when they reach a disk.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::encoded::{Encoded, Values};
use super::kv::{Changed, Kv, Layer, some_keys};
use super::view::{Records, collect, entries_prefix};
use super::{
    answer, beside, clock, cursor, entry, feed_edge, feed_record, home, key, leaf, leftover, list, meta, pending_fork,
    seq,
};
use crate::machine::change::{AnswerChange, Change, FeedChange, SessionChange, WorkChange};
use crate::machine::ids::SessionId;
use crate::machine::long::Leftover;
use crate::machine::refusal::Fault;
use crate::machine::session::SessionMeta;
use crate::machine::view::View;

/// The keys that `changes` write. Later changes see earlier ones.
pub fn write<K: Kv + ?Sized>(kv: &K, changes: &Encoded<'_>) -> Result<Changed, Fault> {
    let mut changed = Changed::new();
    let mut moves = Moves::new();
    for (change, values) in changes.iter() {
        match change {
            Change::Work(change) => write_work(&mut changed, kv, change)?,
            Change::Record(change) => beside::write(&mut changed, kv, change, values.one())?,
            Change::Session(session_id, change) => {
                write_session(&mut changed, &mut moves, kv, (session_id, change), values)?;
            }
            Change::Answer(change) => write_answer(&mut changed, kv, change, values)?,
            Change::Feed(change) => write_feed(&mut changed, kv, change, values)?,
            Change::Clock(at_ms) => {
                feed_edge::begin(&mut changed, kv)?;
                changed.insert(clock::key(), Some(clock::encode(*at_ms)));
            }
        }
    }
    for Move { old, new } in moves.values() {
        list::reindex(&mut changed, old.as_ref(), *new);
    }
    Ok(changed)
}

/// The sessions whose place in the lists changes. The index keys are made once, of the first and the last record: a
/// record that moves away and back within one commit must not put a key that the state has already, because the layers
/// take a key that is put for a new one.
type Moves<'a> = BTreeMap<&'a SessionId, Move<'a>>;

struct Move<'a> {
    /// The record before the commit.
    old: Option<SessionMeta>,
    /// The record after the changes so far.
    new: Option<&'a SessionMeta>,
}

fn write_session<'a, K: Kv + ?Sized>(
    changed: &mut Changed,
    moves: &mut Moves<'a>,
    kv: &K,
    (session_id, change): (&'a SessionId, &'a SessionChange),
    values: Values<'_>,
) -> Result<(), Fault> {
    let mut list_as = |new| {
        let moved = match moves.entry(session_id) {
            Entry::Occupied(moved) => moved.into_mut(),
            Entry::Vacant(first) => first.insert(Move { old: Records::new(kv).meta(session_id)?, new: None }),
        };
        moved.new = new;
        Ok(())
    };
    match change {
        SessionChange::PutMeta(new) => {
            list_as(Some(new))?;
            changed.insert(meta::key(session_id), Some(values.one()));
        }
        SessionChange::DeleteMeta => {
            list_as(None)?;
            changed.insert(meta::key(session_id), None);
        }
        SessionChange::PutEntry(entry) => {
            let prefix = prefix_now(changed, kv, session_id)?;
            changed.insert(entry::key_under(prefix, &entry.id), Some(values.one()));
        }
        SessionChange::DeleteEntries => {
            let prefix = prefix_now(changed, kv, session_id)?;
            delete_range(changed, kv, &prefix, key::after(&prefix).as_deref())?;
            // Nothing is in the home any more. New entries go under the session's own id, if nothing old is there.
            leave_home(changed, kv, session_id)?;
        }
        SessionChange::SetLeaf(entry_id) => {
            changed.insert(leaf::key(session_id), Some(leaf::encode(entry_id)));
        }
        SessionChange::DeleteLeaf => {
            changed.insert(leaf::key(session_id), None);
        }
    }
    Ok(())
}

fn write_answer<K: Kv + ?Sized>(
    changed: &mut Changed,
    kv: &K,
    change: &AnswerChange,
    values: Values<'_>,
) -> Result<(), Fault> {
    match change {
        AnswerChange::Record(request_id, _) => {
            changed.insert(answer::key(*request_id), Some(values.one()));
            Ok(())
        }
        AnswerChange::ExpireBefore(issued_ms) => {
            let (from, to) = answer::keys_before(*issued_ms);
            delete_range(changed, kv, &from, Some(&to))
        }
    }
}

fn write_feed<K: Kv + ?Sized>(
    changed: &mut Changed,
    kv: &K,
    change: &FeedChange,
    values: Values<'_>,
) -> Result<(), Fault> {
    match change {
        FeedChange::SetSeq(session_id, seq) => {
            changed.insert(seq::key(session_id), seq.map(seq::encode));
        }
        FeedChange::Append { index, records } => feed_record::append(changed, kv, *index, records, values)?,
        FeedChange::Trim { upto } => feed_record::trim(changed, kv, *upto)?,
        FeedChange::SetCursor(attach, position) => {
            changed.insert(cursor::key(attach), position.map(cursor::encode));
        }
    }
    Ok(())
}

/// The common prefix of a session's entries, with the changes so far.
fn prefix_now<K: Kv + ?Sized>(changed: &Changed, kv: &K, session_id: &SessionId) -> Result<Vec<u8>, Fault> {
    Records::new(&Layer { over: changed, base: kv }).entry_prefix(session_id)
}

fn write_work<K: Kv + ?Sized>(changed: &mut Changed, kv: &K, change: &WorkChange) -> Result<(), Fault> {
    match change {
        WorkChange::Detach { session_id, new_home } => {
            let home = Records::new(&Layer { over: changed, base: kv }).home(session_id)?;
            let left = Leftover { session_id: session_id.clone(), home };
            changed.insert(leftover::key(&left), Some(bytes::Bytes::new()));
            changed.insert(home::key(session_id), Some(home::encode(*new_home)));
        }
        WorkChange::Free { leftover, records } => free(changed, kv, leftover, *records as usize)?,
        WorkChange::PutFork(pending) => {
            changed.insert(pending_fork::key(&pending.source, &pending.fork), Some(pending_fork::encode(pending)));
        }
        WorkChange::EndFork { source, fork, shown: _ } => {
            changed.insert(pending_fork::key(source, fork), None);
        }
    }
    Ok(())
}

/// Deletes some of the entries that wait. With the last of them goes the record, and a home that is not needed.
fn free<K: Kv + ?Sized>(changed: &mut Changed, kv: &K, left: &Leftover, records: usize) -> Result<(), Fault> {
    let prefix = entries_prefix(&left.session_id, left.home);
    let (found, more) = some_keys(&Layer { over: changed, base: kv }, &prefix, records)?;
    changed.extend(found.into_iter().map(|key| (key, None)));
    if more {
        return Ok(());
    }
    changed.insert(leftover::key(left), None);
    leave_home(changed, kv, &left.session_id)
}

/// Deletes the record of a home without entries, unless those under the session's own id still wait.
fn leave_home<K: Kv + ?Sized>(changed: &mut Changed, kv: &K, session_id: &SessionId) -> Result<(), Fault> {
    let layer = Layer { over: changed, base: kv };
    let view = Records::new(&layer);
    let own = Leftover { session_id: session_id.clone(), home: None };
    let is_idle = view.home(session_id)?.is_some()
        && view.entries_after(session_id, None, 1, 0)?.is_empty()
        && !view.is_leftover(&own)?;
    if is_idle {
        changed.insert(home::key(session_id), None);
    }
    Ok(())
}

/// Deletes every key of a range.
pub(in crate::storage) fn delete_range<K: Kv + ?Sized>(
    changed: &mut Changed,
    kv: &K,
    from: &[u8],
    to: Option<&[u8]>,
) -> Result<(), Fault> {
    let layer = Layer { over: changed, base: kv };
    let found = collect(&layer, from, to, usize::MAX, |key, _| Ok(key.to_vec()))?;
    changed.extend(found.into_iter().map(|key| (key, None)));
    Ok(())
}
