//! Owns: `Records`, the machine's `View` over any ordered key-value store.
//! Never: where the keys are stored.

use std::cell::RefCell;
use std::ops::ControlFlow;

use bytes::Bytes;

use super::entry_cache::EntryCache;
use super::key::Key;
use super::kv::Kv;
use super::list::FacetKey;
use super::{
    answer, beside, clock, cursor, entry, feed_edge, feed_record, home, key, leaf, leftover, list, meta, pending_fork,
    seq, tombstone,
};
use crate::machine::Answer;
use crate::machine::beside::{RecordKey, RecordLeftover};
use crate::machine::entry::Entry;
use crate::machine::feed_record::{FeedEdge, Record};
use crate::machine::ids::{EntryId, FeedPlace, Position, RequestId, SessionId};
use crate::machine::json::Json;
use crate::machine::long::{Home, Leftover, PendingFork};
use crate::machine::refusal::{Fault, Refusal};
use crate::machine::session::SessionMeta;
use crate::machine::view::{Facet, ListOrder, ListPoint, View};

/// The state over an ordered key-value store.
pub struct Records<'a, K: Kv + ?Sized> {
    pub kv: &'a K,
    cache: Option<&'a EntryCache>,
    /// The prefix of the entries of the session that was asked for last: the next question is about it too.
    prefix: RefCell<Option<(SessionId, Vec<u8>)>>,
}

impl<'a, K: Kv + ?Sized> Records<'a, K> {
    pub fn new(kv: &'a K) -> Records<'a, K> {
        Records { kv, cache: None, prefix: RefCell::new(None) }
    }

    /// Reads entries through a cache, which must hold nothing but what `kv` holds now.
    pub fn with_cache(kv: &'a K, cache: &'a EntryCache) -> Records<'a, K> {
        Records { kv, cache: Some(cache), prefix: RefCell::new(None) }
    }

    /// The home of a session's entries; `None`: they are stored under its own id.
    pub fn home(&self, session_id: &SessionId) -> Result<Option<Home>, Fault> {
        self.read(&home::key(session_id), |value| home::decode(session_id, value))
    }

    /// Tells where the entries of a session are, so that the next questions about it need not look it up.
    pub fn know_home(&self, session_id: &SessionId, home: Option<Home>) {
        if self.prefix.borrow().as_ref().is_none_or(|(last, _)| last != session_id) {
            *self.prefix.borrow_mut() = Some((session_id.clone(), entries_prefix(session_id, home)));
        }
    }

    /// The common prefix of all entries of a session.
    pub fn entry_prefix(&self, session_id: &SessionId) -> Result<Vec<u8>, Fault> {
        if let Some((last, prefix)) = &*self.prefix.borrow()
            && last == session_id
        {
            return Ok(prefix.clone());
        }
        let prefix = entries_prefix(session_id, self.home(session_id)?);
        *self.prefix.borrow_mut() = Some((session_id.clone(), prefix.clone()));
        Ok(prefix)
    }

    /// Calls `read` with the key of an entry. A page reads a hundred of them, so the key is built in place.
    fn with_entry_key<T>(
        &self,
        session_id: &SessionId,
        entry_id: &EntryId,
        read: impl FnOnce(&[u8]) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.prefix.borrow().as_ref().is_none_or(|(last, _)| last != session_id) {
            let prefix = entries_prefix(session_id, self.home(session_id)?);
            *self.prefix.borrow_mut() = Some((session_id.clone(), prefix));
        }
        let mut prefix = self.prefix.borrow_mut();
        let Some((_, key)) = &mut *prefix else { return Err(Fault("a session without a prefix".to_owned())) };
        let length = key.len();
        key::put_text(key, entry_id.as_str());
        let result = read(key);
        key.truncate(length);
        result
    }

    fn read<T>(&self, key: &[u8], parse: impl FnOnce(&[u8]) -> Result<T, Fault>) -> Result<Option<T>, Fault> {
        self.kv.get(key)?.map(|value| parse(&value)).transpose()
    }
}

impl<K: Kv + ?Sized> View for Records<'_, K> {
    fn meta(&self, session_id: &SessionId) -> Result<Option<SessionMeta>, Fault> {
        self.read(&meta::key(session_id), |value| meta::decode(session_id, value))
    }

    fn leaf(&self, session_id: &SessionId) -> Result<Option<EntryId>, Fault> {
        self.read(&leaf::key(session_id), |value| leaf::decode(session_id, value))
    }

    fn entry(&self, session_id: &SessionId, entry_id: &EntryId) -> Result<Option<Entry>, Fault> {
        self.with_entry_key(session_id, entry_id, |key| {
            if let Some(entry) = self.cache.and_then(|cache| cache.get(key)) {
                return Ok(Some(entry));
            }
            let found = self.read(key, |value| entry::decode(session_id, entry_id, value))?;
            if let (Some(cache), Some(entry)) = (self.cache, &found) {
                cache.put(key.to_vec(), entry);
            }
            Ok(found)
        })
    }

    fn entries(&self, session_id: &SessionId) -> Result<Vec<Entry>, Fault> {
        let parse = |key: &[u8], value: &Bytes| decode_entry(session_id, key, value);
        let prefix = self.entry_prefix(session_id)?;
        collect(self.kv, &prefix, key::after(&prefix).as_deref(), usize::MAX, parse)
    }

    fn entries_after(
        &self,
        session_id: &SessionId,
        after: Option<&EntryId>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Entry>, Fault> {
        let prefix = self.entry_prefix(session_id)?;
        // No key stands between an entry's and the same with a zero behind it.
        let from =
            after.map_or_else(|| prefix.clone(), |after| [entry::key_under(prefix.clone(), after), vec![0]].concat());
        let mut found: Result<Vec<Entry>, Fault> = Ok(Vec::new());
        let mut bytes = 0;
        self.kv.scan(&from, key::after(&prefix).as_deref(), &mut |key, value| {
            let Ok(entries) = &mut found else { return ControlFlow::Break(()) };
            bytes += value.len();
            if entries.len() == limit || (bytes > bytes_max && !entries.is_empty()) {
                return ControlFlow::Break(());
            }
            match decode_entry(session_id, key, value) {
                Ok(entry) => entries.push(entry),
                Err(fault) => found = Err(fault),
            }
            ControlFlow::Continue(())
        })?;
        found
    }

    fn seq(&self, session_id: &SessionId) -> Result<u64, Fault> {
        Ok(self.read(&seq::key(session_id), |value| seq::decode(session_id, value))?.unwrap_or(0))
    }

    fn listed(
        &self,
        facet: &Facet,
        order: ListOrder,
        from: Option<&ListPoint>,
        limit: usize,
    ) -> Result<Vec<ListPoint>, Fault> {
        let facet = FacetKey::of(facet);
        let prefix = list::prefix(facet, order);
        let first = from.map(|point| list::key(facet, order, point));
        let parse = |key: &[u8], _: &Bytes| match Key::parse(key)? {
            Key::List(_, _, point) => Ok(point),
            other => Err(Fault(format!("a key of another family in a list index: {other:?}"))),
        };
        collect(self.kv, first.as_deref().unwrap_or(&prefix), key::after(&prefix).as_deref(), limit, parse)
    }

    fn recorded_answer(&self, request_id: RequestId) -> Result<Option<Result<Answer, Refusal>>, Fault> {
        self.read(&answer::key(request_id), answer::decode)
    }

    fn feed_records(&self, after: Option<FeedPlace>, limit: usize) -> Result<Vec<(FeedPlace, Record)>, Fault> {
        let (from, to) = feed_record::keys_after(after);
        let parse = |key: &[u8], value: &Bytes| {
            let place = feed_record::place_of(key)?;
            Ok((place, feed_record::decode(place, value)?))
        };
        collect(self.kv, &from, Some(&to), limit, parse)
    }

    fn feed_edge(&self) -> Result<FeedEdge, Fault> {
        Ok(self.read(&feed_edge::key(), feed_edge::decode)?.unwrap_or_default())
    }

    fn deleted_at(&self, session_id: &SessionId) -> Result<Option<FeedPlace>, Fault> {
        self.read(&tombstone::key(session_id), tombstone::decode)
    }

    fn cursor(&self, attach: &str) -> Result<Option<Position>, Fault> {
        self.read(&cursor::key(attach), cursor::decode)
    }

    fn cursors(&self, starting: &str) -> Result<Vec<(String, Position)>, Fault> {
        let prefix = cursor::prefix(starting);
        let parse = |key: &[u8], value: &Bytes| Ok((cursor::attach_of(key)?, cursor::decode(value)?));
        collect(self.kv, &prefix, key::after(&prefix).as_deref(), usize::MAX, parse)
    }

    fn leftovers(&self, limit: usize) -> Result<Vec<Leftover>, Fault> {
        let prefix = leftover::prefix();
        let parse = |key: &[u8], _: &Bytes| match Key::parse(key)? {
            Key::Leftover(leftover) => Ok(leftover),
            other => Err(Fault(format!("a key of another family among the leftovers: {other:?}"))),
        };
        collect(self.kv, &prefix, key::after(&prefix).as_deref(), limit, parse)
    }

    fn is_leftover(&self, leftover: &Leftover) -> Result<bool, Fault> {
        Ok(self.kv.get(&leftover::key(leftover))?.is_some())
    }

    fn forks(&self) -> Result<Vec<PendingFork>, Fault> {
        forks_under(self.kv, &pending_fork::prefix())
    }

    fn forks_of(&self, source: &SessionId) -> Result<Vec<PendingFork>, Fault> {
        forks_under(self.kv, &pending_fork::prefix_of(source))
    }

    fn record(&self, key: &RecordKey) -> Result<Option<Json>, Fault> {
        let key = beside::key_now(self.kv, key)?;
        self.read(&key, |value| beside::decode(&key, value))
    }

    fn records(
        &self,
        under: &RecordKey,
        after: Option<&RecordKey>,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Json)>, Fault> {
        beside::read(self.kv, under, after, limit)
    }

    fn has_records(&self, session_id: &SessionId) -> Result<bool, Fault> {
        let prefix = beside::session_prefix(session_id, beside::generation(self.kv, session_id)?);
        let found = collect(self.kv, &prefix, key::after(&prefix).as_deref(), 1, |_, _| Ok(()))?;
        Ok(!found.is_empty())
    }

    fn record_leftovers(&self, limit: usize) -> Result<Vec<RecordLeftover>, Fault> {
        beside::leftovers(self.kv, limit)
    }

    fn is_record_leftover(&self, leftover: &RecordLeftover) -> Result<bool, Fault> {
        Ok(self.kv.get(&beside::leftover_key(leftover))?.is_some())
    }

    fn clock_ms(&self) -> Result<i64, Fault> {
        Ok(self.read(&clock::key(), clock::decode)?.unwrap_or(0))
    }
}

/// The common prefix of the entries of a session, or of those in a home.
pub(super) fn entries_prefix(session_id: &SessionId, home: Option<Home>) -> Vec<u8> {
    home.map_or_else(|| entry::prefix(session_id), home::prefix)
}

fn forks_under(kv: &(impl Kv + ?Sized), prefix: &[u8]) -> Result<Vec<PendingFork>, Fault> {
    let parse = |key: &[u8], value: &Bytes| match Key::parse(key)? {
        Key::Fork { source, fork } => pending_fork::decode(&source, &fork, value),
        other => Err(Fault(format!("a key of another family among the forks: {other:?}"))),
    };
    collect(kv, prefix, key::after(prefix).as_deref(), usize::MAX, parse)
}

fn decode_entry(session_id: &SessionId, key: &[u8], value: &Bytes) -> Result<Entry, Fault> {
    match Key::parse(key)? {
        Key::Entry(_, entry_id) | Key::EntryIn(_, entry_id) => entry::decode(session_id, &entry_id, value),
        other => Err(Fault(format!("a key of another family among the entries of a session: {other:?}"))),
    }
}

/// The first `limit` pairs of a range, parsed. Reads no further pair.
pub(in crate::storage) fn collect<T>(
    kv: &(impl Kv + ?Sized),
    from: &[u8],
    to: Option<&[u8]>,
    limit: usize,
    parse: impl Fn(&[u8], &Bytes) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let mut found = Ok(Vec::new());
    if limit == 0 {
        return found;
    }
    kv.scan(from, to, &mut |key, value| {
        let Ok(items) = &mut found else { return ControlFlow::Break(()) };
        match parse(key, value) {
            Ok(item) => items.push(item),
            Err(fault) => {
                found = Err(fault);
                return ControlFlow::Break(());
            }
        }
        if items.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    found
}
