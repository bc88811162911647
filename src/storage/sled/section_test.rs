//! Pages of transcripts from sections: what a store answers equals what a store without sections answers, whatever was
//! read before.

use std::ops::Range;

use proptest::prelude::*;

use super::store_test::{checkpoint, meta};
use super::*;
use crate::machine::change::{Change, SessionChange};
use crate::machine::entry::{Body, Entry, Place};
use crate::machine::ids::EntryId;
use crate::machine::json::Json;
use crate::machine::query::messages::{MessagesPage, MessagesQuery};
use crate::machine::section;
use crate::machine::{self, Found, Query};
use crate::storage::state::memory::MemoryStore;
use crate::storage::with_view;

/// A session with these entries of one path. Their ids tell their places.
fn path(session: u8, depths: Range<u64>, data: &str) -> Vec<Change> {
    let id = |depth: u64| EntryId::from(format!("p{depth:03}"));
    let placed = |depth: u64| {
        let parent = depth.saturating_sub(1);
        Entry {
            id: id(depth),
            parent_id: (depth > 0).then(|| id(parent)),
            timestamp: 1,
            revision: 0,
            origin: None,
            body: Body::Custom { custom_type: "c".to_owned(), data: Json::print(&data) },
            place: Some(Place { depth, jump: id(parent), jump_depth: parent }),
        }
    };
    let entries = depths.map(|depth| Change::put_entry(&format!("s{session}").into(), placed(depth)));
    [meta(session, 1)].into_iter().chain(entries).collect()
}

/// Two pages of the path to an entry. The store answers from its sections, a store in memory entry by entry.
fn page(view: &dyn View, session: u8, depth: u64, limit: usize) -> String {
    let (session_id, from_entry_id) = (format!("s{session}").into(), Some(format!("p{depth:03}").into()));
    let first = MessagesQuery { session_id, from_entry_id, roles: None, include_custom: true, cursor: None, limit };
    let read = |query: &MessagesQuery| match machine::query(view, &Query::Messages(query.clone())) {
        Ok(Ok(Found::Messages(page))) => Ok(page),
        other => Err(format!("{other:?}")),
    };
    let text = |page: &MessagesPage| format!("{:?} {:?}", page.entries().collect::<Vec<_>>(), page.next_cursor);
    match read(&first) {
        Ok(page) => {
            let second = page.next_cursor.clone().map(|cursor| read(&MessagesQuery { cursor: Some(cursor), ..first }));
            format!("{} {:?}", text(&page), second.map(|page| page.map(|page| text(&page))))
        }
        Err(other) => other,
    }
}

pub fn any_path() -> impl Strategy<Value = Vec<Change>> {
    let places = (0u8..3, 0u64..70, 1u64..150, "[a-z]{0,5}");
    places.prop_map(|(session, first, count, data)| path(session, first..first + count, &data))
}

/// Pages of all sessions, at the borders of sections too.
pub fn pages(view: &dyn View) -> Vec<String> {
    let asked =
        (0..3).flat_map(|session| [(session, 70, 40), (session, 63, 99), (session, 150, 200), (session, 128, 9)]);
    asked.map(|(session, depth, limit)| page(view, session, depth, limit)).collect()
}

#[test]
fn pages_that_were_read_before_are_read_as_the_last_commit_left_them() {
    let dir = tempfile::tempdir().unwrap();
    let (store, twin) = (SledStore::open(dir.path()).unwrap(), MemoryStore::new());
    let session = |change| vec![Change::Session("s1".into(), change)];
    let steps = [
        path(1, 0..200, "old"),
        // The first section, the last one, and one in between.
        path(1, 3..4, "new"),
        path(1, 199..200, "new"),
        path(1, 70..71, "new"),
        path(1, 200..300, "more"),
        session(SessionChange::DeleteEntries),
        path(1, 0..150, "again"),
        session(SessionChange::DeleteMeta),
        path(1, 2..3, "back"),
    ];
    for (n, changes) in steps.into_iter().enumerate() {
        for target in [&store as &dyn Store, &twin] {
            target.commit(&changes, checkpoint(&n.to_string())).unwrap();
        }
        for (depth, limit) in [(299, 500), (199, 150), (149, 100), (70, 40), (63, 40), (64, 64), (2, 100)] {
            let pages = |store: &dyn Store| with_view(store, |view| page(view, 1, depth, limit));
            // Twice: the second read finds what the first one kept.
            assert_eq!((pages(&store), pages(&store)), (pages(&twin), pages(&twin)), "step {n}, depth {depth}");
        }
    }
    let other = MemoryStore::new();
    other.commit(&path(1, 0..100, "replaced"), checkpoint("r")).unwrap();
    store.replace(other.freeze().unwrap().pairs, checkpoint("r")).unwrap();
    let pages = |store: &dyn Store| with_view(store, |view| page(view, 1, 99, 100));
    assert_eq!(pages(&store), pages(&other));
}

#[test]
fn a_page_is_kept_and_shared_and_a_change_beside_it_leaves_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = SledStore::open(dir.path()).unwrap();
    store.commit(&path(1, 0..130, "x"), checkpoint("1")).unwrap();
    let section = |end: u64| {
        let end_id = EntryId::from(format!("p{end:03}"));
        with_view(&store, |view| view.section(&"s1".into(), &end_id, end)).unwrap()
    };
    let (first, last) = (section(section::ENTRIES - 1).unwrap(), section(129).unwrap());
    store.commit(&path(1, 130..131, "x"), checkpoint("2")).unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &section(section::ENTRIES - 1).unwrap()));
    assert!(!std::sync::Arc::ptr_eq(&last, &section(129).unwrap()), "the append is in the same section");
    assert_eq!(section(130).unwrap().entries().len(), 3);
    // Bodies that are too long together are not kept together.
    store.commit(&path(1, 0..64, &"y".repeat(20 << 10)), checkpoint("3")).unwrap();
    assert!(section(section::ENTRIES - 1).is_none());
    assert_eq!(section(129).unwrap().entries().len(), 2);
}
