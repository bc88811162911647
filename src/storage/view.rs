//! Owns: the bridge between the machine and any ordered key-value store. `Records` answers the machine's `View` from
//! keys; `write` turns the machine's `Change`s into keys, the list indexes included.
//! Never: where the keys lie, nor when they reach a disk.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use bytes::Bytes;

use super::keys::{self, FacetKey, Key};
use super::kv::{Changed, Kv, Layer};
use super::{answers, feed, records};
use crate::machine::Answer;
use crate::machine::entry::Entry;
use crate::machine::feed::{FeedEdge, Record};
use crate::machine::ids::{EntryId, FeedPlace, Position, RequestId, SessionId};
use crate::machine::refusal::Fault;
use crate::machine::session::SessionMeta;
use crate::machine::view::{Change, Facet, ListOrder, ListPoint, View};

/// The state as the machine sees it, over any ordered store.
pub struct Records<'a, K: Kv + ?Sized> {
    pub kv: &'a K,
    parsed: Option<&'a dyn ParsedEntries>,
}

/// Entries that need no second look into the store, by key. It holds only what the store holds now.
pub trait ParsedEntries {
    fn get(&self, key: &[u8]) -> Option<Entry>;

    fn keep(&self, key: Vec<u8>, entry: &Entry);
}

impl<'a, K: Kv + ?Sized> Records<'a, K> {
    pub fn new(kv: &'a K) -> Records<'a, K> {
        Records { kv, parsed: None }
    }

    pub fn with_parsed(kv: &'a K, parsed: &'a dyn ParsedEntries) -> Records<'a, K> {
        Records { kv, parsed: Some(parsed) }
    }

    fn read<T>(&self, key: &[u8], parse: impl FnOnce(&[u8]) -> Result<T, Fault>) -> Result<Option<T>, Fault> {
        self.kv.get(key)?.map(|value| parse(&value)).transpose()
    }
}

impl<K: Kv + ?Sized> View for Records<'_, K> {
    fn meta(&self, session_id: &SessionId) -> Result<Option<SessionMeta>, Fault> {
        self.read(&keys::meta(session_id), |value| records::parse_meta(session_id, value))
    }

    fn leaf(&self, session_id: &SessionId) -> Result<Option<EntryId>, Fault> {
        self.read(&keys::leaf(session_id), |value| records::parse_leaf(session_id, value))
    }

    fn entry(&self, session_id: &SessionId, entry_id: &EntryId) -> Result<Option<Entry>, Fault> {
        let key = keys::entry(session_id, entry_id);
        if let Some(entry) = self.parsed.and_then(|parsed| parsed.get(&key)) {
            return Ok(Some(entry));
        }
        let found = self.read(&key, |value| records::parse_entry(session_id, entry_id, value))?;
        if let (Some(parsed), Some(entry)) = (self.parsed, &found) {
            parsed.keep(key, entry);
        }
        Ok(found)
    }

    fn entries(&self, session_id: &SessionId) -> Result<Vec<Entry>, Fault> {
        let parse = |key: &[u8], value: &Bytes| match Key::parse(key)? {
            Key::Entry(_, entry_id) => records::parse_entry(session_id, &entry_id, value),
            other => Err(Fault(format!("a key of another family among the entries of a session: {other:?}"))),
        };
        let prefix = keys::entries(session_id);
        collect(self.kv, &prefix, keys::after(&prefix).as_deref(), usize::MAX, parse)
    }

    fn seq(&self, session_id: &SessionId) -> Result<u64, Fault> {
        Ok(self.read(&keys::seq(session_id), |value| records::parse_seq(session_id, value))?.unwrap_or(0))
    }

    fn listed(
        &self,
        facet: &Facet,
        order: ListOrder,
        from: Option<&ListPoint>,
        limit: usize,
    ) -> Result<Vec<ListPoint>, Fault> {
        let facet = FacetKey::of(facet);
        let prefix = keys::lists(facet, order);
        let first = from.map(|point| keys::list(facet, order, point));
        let parse = |key: &[u8], _: &Bytes| match Key::parse(key)? {
            Key::List(_, _, point) => Ok(point),
            other => Err(Fault(format!("a key of another family in a list index: {other:?}"))),
        };
        collect(self.kv, first.as_deref().unwrap_or(&prefix), keys::after(&prefix).as_deref(), limit, parse)
    }

    fn remembered(&self, request_id: RequestId) -> Result<Option<Answer>, Fault> {
        self.read(&keys::answer(request_id), answers::parse_remembered)
    }

    fn recorded(&self, after: Option<FeedPlace>, limit: usize) -> Result<Vec<(FeedPlace, Record)>, Fault> {
        let (from, to) = keys::feed_after(after);
        let parse = |key: &[u8], value: &Bytes| {
            let place = feed::place_of(key)?;
            Ok((place, feed::parse_record(place, value)?))
        };
        collect(self.kv, &from, Some(&to), limit, parse)
    }

    fn feed_edge(&self) -> Result<FeedEdge, Fault> {
        Ok(self.read(&keys::edge(), feed::parse_edge)?.unwrap_or_default())
    }

    fn deleted_at(&self, session_id: &SessionId) -> Result<Option<FeedPlace>, Fault> {
        self.read(&keys::tomb(session_id), feed::parse_tomb)
    }

    fn cursor(&self, attach: &str) -> Result<Option<Position>, Fault> {
        self.read(&keys::cursor(attach), feed::parse_cursor)
    }

    fn cursors(&self, starting: &str) -> Result<Vec<(String, Position)>, Fault> {
        let prefix = keys::cursors(starting);
        let parse = |key: &[u8], value: &Bytes| Ok((feed::attach_of(key)?, feed::parse_cursor(value)?));
        collect(self.kv, &prefix, keys::after(&prefix).as_deref(), usize::MAX, parse)
    }

    fn clock_ms(&self) -> Result<i64, Fault> {
        Ok(self.read(&keys::clock(), records::parse_clock)?.unwrap_or(0))
    }
}

/// The first `limit` pairs of a range, parsed. Reads no pair beyond those.
fn collect<T>(
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

/// The keys that carry out `changes`. Later changes see earlier ones.
pub fn write<K: Kv + ?Sized>(kv: &K, changes: &[Change]) -> Result<Changed, Fault> {
    let mut changed = Changed::new();
    for change in changes {
        match change {
            Change::PutMeta(meta) => {
                let old = Records::new(&Layer { over: &changed, base: kv }).meta(&meta.session_id)?;
                reindex(&mut changed, old.as_ref(), Some(meta));
                changed.insert(keys::meta(&meta.session_id), Some(records::print_meta(meta)));
            }
            Change::DeleteMeta(session_id) => {
                let old = Records::new(&Layer { over: &changed, base: kv }).meta(session_id)?;
                reindex(&mut changed, old.as_ref(), None);
                changed.insert(keys::meta(session_id), None);
            }
            Change::PutEntry(session_id, entry) => {
                changed.insert(keys::entry(session_id, &entry.id), Some(records::print_entry(entry)));
            }
            Change::DeleteEntries(session_id) => {
                let prefix = keys::entries(session_id);
                delete(&mut changed, kv, &prefix, keys::after(&prefix).as_deref())?;
            }
            Change::SetLeaf(session_id, entry_id) => {
                changed.insert(keys::leaf(session_id), Some(records::print_leaf(entry_id)));
            }
            Change::DeleteLeaf(session_id) => {
                changed.insert(keys::leaf(session_id), None);
            }
            Change::SetSeq(session_id, seq) => {
                changed.insert(keys::seq(session_id), Some(records::print_seq(*seq)));
            }
            Change::DeleteSeq(session_id) => {
                changed.insert(keys::seq(session_id), None);
            }
            Change::Remember(request_id, answer) => {
                changed.insert(keys::answer(*request_id), Some(answers::print(&Ok(answer.clone()))));
            }
            Change::Forget(born_ms) => {
                let (from, to) = keys::answers_before(*born_ms);
                delete(&mut changed, kv, &from, Some(&to))?;
            }
            Change::Record { index, records } => feed::write_records(&mut changed, kv, *index, records)?,
            Change::TrimFeed { upto } => feed::write_trim(&mut changed, kv, *upto)?,
            Change::SetCursor(attach, position) => {
                changed.insert(keys::cursor(attach), position.map(feed::print_cursor));
            }
            Change::SetClock(at_ms) => {
                feed::write_beginning(&mut changed, kv)?;
                changed.insert(keys::clock(), Some(records::print_clock(*at_ms)));
            }
        }
    }
    Ok(changed)
}

/// Deletes a range of keys.
fn delete<K: Kv + ?Sized>(changed: &mut Changed, kv: &K, from: &[u8], to: Option<&[u8]>) -> Result<(), Fault> {
    let layer = Layer { over: changed, base: kv };
    let found = collect(&layer, from, to, usize::MAX, |key, _| Ok(key.to_vec()))?;
    changed.extend(found.into_iter().map(|key| (key, None)));
    Ok(())
}

/// Moves a session in the list indexes: only the keys that differ are touched.
fn reindex(changed: &mut Changed, old: Option<&SessionMeta>, new: Option<&SessionMeta>) {
    // An append moves one time and nothing else: the keys of the other orders need not even be built.
    if let (Some(old), Some(new)) = (old, new)
        && old.status == new.status
        && old.created_at == new.created_at
        && old.metadata == new.metadata
    {
        let order = ListOrder::UpdatedDesc;
        if old.updated_at != new.updated_at {
            for facet in FacetKey::of_meta(new) {
                changed.insert(keys::list(facet, order, &order.point(old)), None);
                changed.insert(keys::list(facet, order, &order.point(new)), Some(Bytes::new()));
            }
        }
        return;
    }
    let (before, after) = (index_keys(old), index_keys(new));
    changed.extend(before.difference(&after).map(|key| (key.clone(), None)));
    changed.extend(after.difference(&before).map(|key| (key.clone(), Some(Bytes::new()))));
}

/// Every key of `meta` in the list indexes.
fn index_keys(meta: Option<&SessionMeta>) -> BTreeSet<Vec<u8>> {
    let Some(meta) = meta else { return BTreeSet::new() };
    let facets = FacetKey::of_meta(meta);
    let orders = [ListOrder::CreatedAsc, ListOrder::CreatedDesc, ListOrder::UpdatedDesc];
    let of_order = |order: ListOrder| {
        let point = order.point(meta);
        facets.iter().map(move |facet| keys::list(*facet, order, &point)).collect::<Vec<_>>()
    };
    orders.into_iter().flat_map(of_order).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::machine::query::list::{self, ListQuery};
    use crate::machine::session::SessionStatus;
    use crate::storage::kv::{Nothing, Visit};
    use proptest::prelude::*;
    use serde_json::json;

    fn meta(id: &str, created_at: i64, updated_at: i64) -> SessionMeta {
        SessionMeta {
            session_id: id.into(),
            title: "".into(),
            description: "".into(),
            status: SessionStatus::Idle,
            status_reason: None,
            message_count: 0,
            metadata: None,
            forked_from: None,
            created_at,
            updated_at,
        }
    }

    /// Counts what a reader touches.
    struct Counting<'a> {
        base: &'a dyn Kv,
        reads: Cell<usize>,
    }

    impl Kv for Counting<'_> {
        fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
            self.reads.set(self.reads.get() + 1);
            self.base.get(key)
        }

        fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: Visit<'_>) -> Result<(), Fault> {
            self.base.scan(from, to, &mut |key, value| {
                self.reads.set(self.reads.get() + 1);
                visit(key, value)
            })
        }
    }

    #[test]
    fn a_page_of_a_list_reads_only_what_it_returns() {
        let mut changes = Vec::new();
        for n in 0..500 {
            let metadata = json!({"team": n % 2}).as_object().cloned();
            changes.push(Change::PutMeta(SessionMeta { metadata, ..meta(&format!("s{n}"), n, n) }));
        }
        let state = write(&Nothing, &changes).unwrap();
        let counting = Counting { base: &Layer { over: &state, base: &Nothing }, reads: Cell::new(0) };
        let view = Records::new(&counting);

        let facet = Facet::Metadata { key: "team".to_owned(), value: "1".to_owned() };
        let points = view.listed(&facet, ListOrder::UpdatedDesc, None, 10).unwrap();
        assert_eq!(
            points.iter().map(|point| point.time).collect::<Vec<_>>(),
            [499, 497, 495, 493, 491, 489, 487, 485, 483, 481]
        );
        assert_eq!(counting.reads.get(), 10);

        let query = ListQuery {
            order: ListOrder::CreatedAsc,
            status: Some(SessionStatus::Idle),
            metadata: json!({"team": 0}).as_object().cloned(),
            cursor: None,
            limit: 5,
        };
        counting.reads.set(0);
        assert_eq!(list::query(&view, &query).unwrap().sessions.len(), 5);
        assert!(counting.reads.get() < 60, "{} reads for a page of 5 of 500", counting.reads.get());
    }

    #[test]
    fn a_session_leaves_every_list_it_no_longer_belongs_to() {
        let red = json!({"team": "red"}).as_object().cloned();
        let first = write(&Nothing, &[Change::PutMeta(SessionMeta { metadata: red, ..meta("s", 1, 1) })]).unwrap();
        let base = Layer { over: &first, base: &Nothing };
        let done = SessionMeta { status: SessionStatus::Done, ..meta("s", 1, 2) };
        let second = write(&base, &[Change::PutMeta(done)]).unwrap();
        let view_kv = Layer { over: &second, base: &base };
        let view = Records::new(&view_kv);
        let team = Facet::Metadata { key: "team".to_owned(), value: "\"red\"".to_owned() };
        for (facet, expected) in [
            (Facet::All, 1),
            (Facet::Status(SessionStatus::Idle), 0),
            (Facet::Status(SessionStatus::Done), 1),
            (team, 0),
        ] {
            for order in [ListOrder::CreatedAsc, ListOrder::CreatedDesc, ListOrder::UpdatedDesc] {
                assert_eq!(view.listed(&facet, order, None, 9).unwrap().len(), expected, "{facet:?} {order:?}");
            }
        }
    }

    #[test]
    fn an_append_touches_only_the_index_of_updates() {
        let first = write(&Nothing, &[Change::PutMeta(meta("s", 1, 1))]).unwrap();
        let base = Layer { over: &first, base: &Nothing };
        let moved = write(&base, &[Change::PutMeta(meta("s", 1, 2))]).unwrap();
        // The record, and two facets out of the old place and into the new one.
        assert_eq!(moved.len(), 5);
    }

    #[test]
    fn later_changes_of_one_command_see_earlier_ones() {
        let entry = crate::machine::entry::Entry {
            id: "e".into(),
            parent_id: None,
            timestamp: 1,
            revision: 0,
            origin: None,
            body: crate::machine::entry::Body::Custom {
                custom_type: "c".to_owned(),
                data: crate::machine::json::Json::adopt("1"),
            },
            place: None,
        };
        let id = SessionId::from("s");
        let changes = [
            Change::PutMeta(meta("s", 1, 1)),
            Change::PutMeta(meta("s", 1, 5)),
            Change::PutEntry(id.clone(), entry),
            Change::DeleteEntries(id.clone()),
            Change::DeleteMeta(id.clone()),
        ];
        let state = write(&Nothing, &changes).unwrap();
        assert!(state.values().all(Option::is_none), "{state:?}");
    }

    /// What `listed` must answer, by looking at every meta.
    fn listed_by_brute_force(metas: &[SessionMeta], facet: &Facet, order: ListOrder) -> Vec<ListPoint> {
        let holds = |meta: &&SessionMeta| match facet {
            Facet::All => true,
            Facet::Status(status) => meta.status == *status,
            Facet::Metadata { key, value } => meta
                .metadata
                .as_ref()
                .and_then(|metadata| metadata.get(key))
                .is_some_and(|stored| crate::machine::json::canonical(stored) == *value),
        };
        let mut points: Vec<ListPoint> = metas.iter().filter(holds).map(|meta| order.point(meta)).collect();
        points.sort_by(|a, b| order.compare(a, b));
        points
    }

    proptest! {
        #[test]
        fn lists_follow_every_sequence_of_metas(
            writes in proptest::collection::vec((0u8..6, -3i64..3, 0i64..4, 0u8..2, 0u8..3, any::<bool>()), 1..40),
        ) {
            let mut state = Changed::new();
            let mut metas = std::collections::BTreeMap::new();
            for (id, created_at, updated_at, status, team, delete) in writes {
                let id = format!("s{id}");
                let change = if delete {
                    metas.remove(&id);
                    Change::DeleteMeta(id.as_str().into())
                } else {
                    let status = [SessionStatus::Idle, SessionStatus::Working][usize::from(status)];
                    let metadata = json!({"team": team}).as_object().cloned();
                    let meta = SessionMeta { status, metadata, ..meta(&id, created_at, updated_at) };
                    metas.insert(id, meta.clone());
                    Change::PutMeta(meta)
                };
                let changed = write(&Layer { over: &state, base: &Nothing }, &[change]).unwrap();
                state.extend(changed);
            }
            let metas: Vec<SessionMeta> = metas.into_values().collect();
            let kv = Layer { over: &state, base: &Nothing };
            let view = Records::new(&kv);
            let team = Facet::Metadata { key: "team".to_owned(), value: "1".to_owned() };
            for facet in [Facet::All, Facet::Status(SessionStatus::Working), team] {
                for order in [ListOrder::CreatedAsc, ListOrder::CreatedDesc, ListOrder::UpdatedDesc] {
                    let expected = listed_by_brute_force(&metas, &facet, order);
                    prop_assert_eq!(&view.listed(&facet, order, None, usize::MAX).unwrap(), &expected);
                    for (rank, point) in expected.iter().enumerate() {
                        let rest = view.listed(&facet, order, Some(point), usize::MAX).unwrap();
                        prop_assert_eq!(&rest[..], &expected[rank..]);
                    }
                }
            }
        }
    }
}
