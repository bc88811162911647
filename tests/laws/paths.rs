//! Owns: the laws of reading a transcript: the pages equal a naive walk, and the cost of a page depends on the size of
//! the page, not on the length of the transcript.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use session_manager::machine::apply::append::AppendEntry;
use session_manager::machine::apply::append_many::AppendMany;
use session_manager::machine::apply::create::CreateSession;
use session_manager::machine::apply::ensure::EnsureSession;
use session_manager::machine::entry::{Body, Entry};
use session_manager::machine::ids::{EntryId, SessionId};
use session_manager::machine::message::Role;
use session_manager::machine::query::messages::{self, MessagesPage, MessagesQuery};
use session_manager::machine::refusal::Fault;
use session_manager::machine::session::SessionMeta;
use session_manager::machine::view::{Facet, ListOrder, ListPoint, View};
use session_manager::machine::{Answer, Command};
use session_manager::storage::state::memory::MemoryStore;

use crate::applied_log::{Run, message, stamped};

/// A view that counts how many entries are read through it.
pub struct Counted<'a> {
    view: &'a dyn View,
    pub entries: Cell<u64>,
    /// Points asked for in the list indexes.
    pub points: Cell<u64>,
}

impl Counted<'_> {
    pub fn over(view: &dyn View) -> Counted<'_> {
        Counted { view, entries: Cell::new(0), points: Cell::new(0) }
    }
}

impl View for Counted<'_> {
    fn below(&self) -> Option<&dyn View> {
        Some(self.view)
    }

    fn meta(&self, session_id: &SessionId) -> Result<Option<SessionMeta>, Fault> {
        self.view.meta(session_id)
    }

    fn leaf(&self, session_id: &SessionId) -> Result<Option<EntryId>, Fault> {
        self.view.leaf(session_id)
    }

    fn entry(&self, session_id: &SessionId, entry_id: &EntryId) -> Result<Option<Entry>, Fault> {
        self.entries.set(self.entries.get() + 1);
        self.view.entry(session_id, entry_id)
    }

    fn entries(&self, session_id: &SessionId) -> Result<Vec<Entry>, Fault> {
        let entries = self.view.entries(session_id)?;
        self.entries.set(self.entries.get() + entries.len() as u64);
        Ok(entries)
    }

    fn entries_after(
        &self,
        session_id: &SessionId,
        after: Option<&EntryId>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Entry>, Fault> {
        let entries = self.view.entries_after(session_id, after, limit, bytes_max)?;
        self.entries.set(self.entries.get() + entries.len() as u64);
        Ok(entries)
    }

    fn seq(&self, session_id: &SessionId) -> Result<u64, Fault> {
        self.view.seq(session_id)
    }

    fn listed(
        &self,
        facet: &Facet,
        order: ListOrder,
        from: Option<&ListPoint>,
        limit: usize,
    ) -> Result<Vec<ListPoint>, Fault> {
        self.points.set(self.points.get() + limit as u64);
        self.view.listed(facet, order, from, limit)
    }

    fn clock_ms(&self) -> Result<i64, Fault> {
        self.view.clock_ms()
    }
}

/// One session of a run, with the parents of its entries.
struct Tree {
    run: Run,
    parents: BTreeMap<String, Option<String>>,
    written: u64,
}

const SESSION: &str = "s";

impl Tree {
    fn new() -> Tree {
        let mut tree = Tree { run: Run::new(Arc::new(MemoryStore::new())), parents: BTreeMap::new(), written: 0 };
        let session = CreateSession { title: String::new(), description: String::new(), metadata: None };
        tree.apply(Command::Ensure(EnsureSession { session_id: SessionId::from(SESSION), session }));
        tree
    }

    fn apply(&mut self, command: Command) -> Answer {
        self.written += 1;
        self.run.apply(&stamped(self.written, 1_000 + self.written as i64, command)).answer.unwrap()
    }

    /// Appends one message to `parent` (to the leaf if `None`) and returns its id.
    fn append(&mut self, parent: Option<&str>, role: u8) -> String {
        let answer = self.apply(Command::Append(AppendEntry {
            session_id: SessionId::from(SESSION),
            entry_id: None,
            parent_id: parent.map(EntryId::from),
            origin: None,
            body: Body::Message(message(role, "w")),
        }));
        let Answer::Appended { entry_id, parent_id, .. } = answer else { unreachable!("{answer:?}") };
        self.parents.insert(entry_id.to_string(), parent_id.map(|parent| parent.to_string()));
        entry_id.to_string()
    }

    fn append_many(&mut self, count: usize) {
        let answer = self.apply(Command::AppendMany(AppendMany {
            session_id: SessionId::from(SESSION),
            parent_id: None,
            origin: None,
            messages: (0..count).map(|n| message(n as u8, "w")).collect(),
        }));
        let Answer::AppendedMany { entry_ids } = answer else { unreachable!("{answer:?}") };
        let mut parent = self.parents.iter().last().map(|(id, _)| id.clone());
        for entry_id in entry_ids {
            self.parents.insert(entry_id.to_string(), parent);
            parent = Some(entry_id.to_string());
        }
    }

    fn naive_path(&self, leaf: &str) -> Vec<String> {
        let mut path = vec![leaf.to_owned()];
        while let Some(Some(parent)) = self.parents.get(&path[path.len() - 1]) {
            path.push(parent.clone());
        }
        path.reverse();
        path
    }

    /// One page, and how many entries were read to build it.
    fn page(&self, query: &MessagesQuery) -> (MessagesPage, u64) {
        self.run.look(|view| {
            let counted = Counted::over(view);
            let page = messages::query(&counted, query).unwrap();
            (page, counted.entries.get())
        })
    }

    /// Reads the path to `leaf` in pages of `limit` and checks the cost of each page.
    fn read_in_pages(&self, leaf: &str, limit: usize) -> Vec<String> {
        let mut query = query(leaf, limit);
        let mut ids = Vec::new();
        loop {
            let (page, reads) = self.page(&query);
            let depth = self.parents.len() as f64;
            let bound = limit as u64 + 8 + (4.0 * depth.log2()).ceil() as u64;
            assert!(reads <= bound, "{reads} entries read for a page of {limit} in a path of at most {depth}");
            ids.extend(page.entries().map(|entry| entry.id.to_string()));
            match page.next_cursor {
                Some(cursor) => query.cursor = Some(cursor),
                None => return ids,
            }
        }
    }
}

fn query(leaf: &str, limit: usize) -> MessagesQuery {
    MessagesQuery {
        session_id: SessionId::from(SESSION),
        from_entry_id: Some(EntryId::from(leaf)),
        roles: None,
        include_custom: false,
        cursor: None,
        limit,
    }
}

#[test]
fn the_cost_of_a_page_does_not_grow_with_a_transcript_of_100_000_messages() {
    let mut tree = Tree::new();
    for _ in 0..100 {
        tree.append_many(1_000);
    }
    let path: Vec<String> = tree.parents.keys().cloned().collect();
    let leaf = path[path.len() - 1].clone();
    assert_eq!(tree.naive_path(&leaf), path);
    assert_eq!(tree.read_in_pages(&leaf, 500), path);

    // Pages at any depth, by cursors from earlier reads.
    let (first, _) = tree.page(&query(&leaf, 7));
    for depth in [6, 999, 50_000, 99_990] {
        let (earlier, _) = tree.page(&query(&path[depth + 1], depth + 1));
        let cursor = earlier.next_cursor;
        assert!(cursor.is_some());
        let (page, reads) = tree.page(&MessagesQuery { cursor, ..query(&leaf, 7) });
        let ids: Vec<String> = page.entries().map(|entry| entry.id.to_string()).collect();
        assert_eq!(ids, path[depth + 1..depth + 8]);
        assert!(reads <= 7 + 8 + 4 * 17, "{reads} reads at depth {depth}");
    }
    assert_eq!(first.entries().count(), 7);
}

#[test]
fn a_rare_role_costs_one_pass_over_the_path() {
    let mut tree = Tree::new();
    for _ in 0..1_000 {
        tree.append(None, 0);
    }
    let leaf = tree.append(None, 1);
    let (page, reads) = tree.page(&MessagesQuery { roles: Some(vec![Role::Assistant]), ..query(&leaf, 50) });
    assert_eq!(page.entries().count(), 1);
    assert_eq!(page.next_cursor, None);
    assert!(reads <= 1_001 + 20 * (8 + 4 * 10), "{reads} reads to filter a path of 1,001");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pages_through_any_tree_equal_a_naive_walk(
        picks in prop::collection::vec((any::<prop::sample::Index>(), prop::bool::weighted(0.7)), 1..400),
        limit in 1..40usize,
    ) {
        let mut tree = Tree::new();
        let mut ids: Vec<String> = Vec::new();
        for (pick, below_leaf) in &picks {
            let parent = (!below_leaf && !ids.is_empty()).then(|| pick.get(&ids).clone());
            let id = tree.append(parent.as_deref(), 0);
            ids.push(id);
        }
        for (pick, _) in picks.iter().step_by(picks.len() / 12 + 1) {
            let leaf = pick.get(&ids);
            prop_assert_eq!(tree.read_in_pages(leaf, limit), tree.naive_path(leaf));
        }
    }
}
