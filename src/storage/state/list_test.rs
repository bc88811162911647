//! The laws of the list indexes: they follow every change of a session, and a page reads only what it returns.

use std::cell::Cell;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;

use super::kv::{Changed, Kv, Layer, Nothing, Visit};
use super::{Encoded, Records};
use crate::machine::change::{Change, SessionChange};
use crate::machine::ids::SessionId;
use crate::machine::query::list::{self, ListQuery};
use crate::machine::refusal::Fault;
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::machine::view::{Facet, ListOrder, ListPoint, View};

/// The keys that changes write.
fn write(kv: &impl Kv, changes: &[Change]) -> Result<Changed, Fault> {
    super::write(kv, &Encoded::new(changes))
}

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

/// Counts the reads.
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
        changes.push(Change::put_meta(SessionMeta { metadata, ..meta(&format!("s{n}"), n, n) }));
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
    let first = write(&Nothing, &[Change::put_meta(SessionMeta { metadata: red, ..meta("s", 1, 1) })]).unwrap();
    let base = Layer { over: &first, base: &Nothing };
    let done = SessionMeta { status: SessionStatus::Done, ..meta("s", 1, 2) };
    let second = write(&base, &[Change::put_meta(done)]).unwrap();
    let view_kv = Layer { over: &second, base: &base };
    let view = Records::new(&view_kv);
    let team = Facet::Metadata { key: "team".to_owned(), value: "\"red\"".to_owned() };
    for (facet, expected) in
        [(Facet::All, 1), (Facet::Status(SessionStatus::Idle), 0), (Facet::Status(SessionStatus::Done), 1), (team, 0)]
    {
        for order in [ListOrder::CreatedAsc, ListOrder::CreatedDesc, ListOrder::UpdatedDesc] {
            assert_eq!(view.listed(&facet, order, None, 9).unwrap().len(), expected, "{facet:?} {order:?}");
        }
    }
}

#[test]
fn an_append_touches_only_the_index_of_updates() {
    let first = write(&Nothing, &[Change::put_meta(meta("s", 1, 1))]).unwrap();
    let base = Layer { over: &first, base: &Nothing };
    let moved = write(&base, &[Change::put_meta(meta("s", 1, 2))]).unwrap();
    // The record, and for two facets one deleted and one new index key.
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
        Change::put_meta(meta("s", 1, 1)),
        Change::put_meta(meta("s", 1, 5)),
        Change::put_entry(&id, entry),
        Change::Session(id.clone(), SessionChange::DeleteEntries),
        Change::Session(id.clone(), SessionChange::DeleteMeta),
    ];
    let state = write(&Nothing, &changes).unwrap();
    assert!(state.values().all(Option::is_none), "{state:?}");
}

/// The expected result of `listed`, computed from every record.
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
                Change::Session(id.as_str().into(), SessionChange::DeleteMeta)
            } else {
                let status = [SessionStatus::Idle, SessionStatus::Working][usize::from(status)];
                let metadata = json!({"team": team}).as_object().cloned();
                let meta = SessionMeta { status, metadata, ..meta(&id, created_at, updated_at) };
                metas.insert(id, meta.clone());
                Change::put_meta(meta)
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
