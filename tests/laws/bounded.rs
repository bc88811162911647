//! Every command writes and every query reads a bounded number of records, however long a session is.

use std::sync::Arc;

use serde_json::json;
use session_manager::machine::apply::append::AppendEntry;
use session_manager::machine::apply::append_many::AppendMany;
use session_manager::machine::apply::create::CreateSession;
use session_manager::machine::apply::delete::DeleteSession;
use session_manager::machine::apply::ensure::EnsureSession;
use session_manager::machine::apply::fork::ForkSession;
use session_manager::machine::apply::import::{FinishImport, IfExists, ImportEntries};
use session_manager::machine::apply::long::{FORK_IDLE_MS, LongWork, bounded, due};
use session_manager::machine::apply::store::StoreWrite;
use session_manager::machine::apply::update_message::{NewContent, UpdateMessage};
use session_manager::machine::change::SessionChange;
use session_manager::machine::entry::Body;
use session_manager::machine::ids::{EntryId, SessionId};
use session_manager::machine::json::Json;
use session_manager::machine::long::Steps;
use session_manager::machine::message::Role;
use session_manager::machine::query::list::{self, ListQuery};
use session_manager::machine::query::messages::{self, MessagesQuery};
use session_manager::machine::refusal::Refusal;
use session_manager::machine::view::ListOrder;
use session_manager::machine::{self, Answer, Command, Found, Query};
use session_manager::storage::state::family::Family;
use session_manager::storage::state::memory::MemoryStore;
use session_manager::storage::state::{Encoded, write};
use session_manager::storage::{Store, with_view};

use crate::applied_log::{message, stamped, text};
use crate::fuzz::memory::peak;
use crate::paths::Counted;

/// Keys that one command may write: a step, and what every command writes.
const KEYS_MAX: usize = Steps::RECORDS_MAX as usize + 32;

/// Executes commands as the leader does, and counts the keys that each of them writes.
struct Leader {
    store: Arc<MemoryStore>,
    commands: u64,
    at_ms: i64,
    /// The most keys that a command wrote.
    worst: usize,
}

impl Leader {
    fn new() -> Leader {
        Leader { store: Arc::new(MemoryStore::new()), commands: 0, at_ms: 1_000, worst: 0 }
    }

    fn run(&mut self, command: Command) -> Result<Answer, Refusal> {
        let short = with_view(&*self.store, |view| bounded(view, &command, Steps::default())).unwrap();
        self.commands += 1;
        self.at_ms += 1;
        let stamped = stamped(self.commands, self.at_ms, short.unwrap_or(command));
        let outcome = with_view(&*self.store, |view| machine::apply(view, &stamped)).unwrap();
        let written = write(&*self.store.tree(), &Encoded::new(&outcome.changes)).unwrap().len();
        self.worst = self.worst.max(written);
        self.store.commit(&outcome.changes, bytes::Bytes::new()).unwrap();
        outcome.answer
    }

    fn ensure(&mut self, id: &str, metadata: serde_json::Value) {
        let session =
            CreateSession { title: "T".into(), description: String::new(), metadata: metadata.as_object().cloned() };
        self.run(Command::Ensure(EnsureSession { session_id: id.into(), session })).unwrap();
    }

    fn append(&mut self, id: &str, entry_id: &str, role: u8, words: &str) {
        let body = Body::Message(message(role, words));
        let (session_id, entry_id) = (id.into(), Some(entry_id.into()));
        self.run(Command::Append(AppendEntry { session_id, entry_id, parent_id: None, origin: None, body })).unwrap();
    }

    /// A session with `count` messages. Returns their ids.
    fn long_session(&mut self, id: &str, count: usize) -> Vec<EntryId> {
        self.ensure(id, json!({ "team": "red" }));
        let mut ids = Vec::new();
        for _ in 0..count.div_ceil(200) {
            let messages = (0..200).map(|_| message(0, "x")).collect();
            let append = AppendMany { session_id: id.into(), parent_id: None, origin: None, messages };
            let Answer::AppendedMany { entry_ids } = self.run(Command::AppendMany(append)).unwrap() else {
                unreachable!()
            };
            ids.extend(entry_ids);
        }
        ids
    }

    fn delete(&mut self, id: &str) -> Result<Answer, Refusal> {
        self.run(Command::Delete(DeleteSession { session_id: id.into() }))
    }

    fn fork(&mut self, id: &str, entry_id: &EntryId) -> Result<Answer, Refusal> {
        let (session_id, entry_id) = (id.into(), entry_id.clone());
        self.run(Command::Fork(ForkSession { session_id, entry_id, title: None }))
    }

    /// Does what is due. Returns how many commands it took.
    fn chores(&mut self) -> usize {
        for done in 0.. {
            let now_ms = self.at_ms;
            let Some(command) = with_view(&*self.store, |view| due(view, now_ms, Steps::default())).unwrap() else {
                return done;
            };
            self.run(command).unwrap();
        }
        unreachable!()
    }

    fn ask(&self, query: &Query) -> Result<Found, Refusal> {
        with_view(&*self.store, |view| machine::query(view, query)).unwrap()
    }

    fn exists(&self, id: &str) -> bool {
        self.ask(&Query::Meta(id.into())).unwrap() != Found::Meta(None)
    }

    /// How many keys of a family the state has.
    fn keys(&self, family: Family) -> usize {
        self.store.freeze().unwrap().pairs.filter(|pair| family.owns(&pair.as_ref().unwrap().0)).count()
    }
}

#[test]
fn a_long_session_is_gone_at_once_and_freed_in_small_commands() {
    let mut leader = Leader::new();
    leader.long_session("s", 3_000);
    leader.worst = 0;
    assert_eq!(leader.delete("s"), Ok(Answer::Deleted { deleted: true }));
    assert!(leader.worst <= 32, "the delete wrote {} keys", leader.worst);
    assert!(!leader.exists("s"));
    let nobody = MessagesQuery {
        session_id: "s".into(),
        from_entry_id: None,
        roles: None,
        include_custom: true,
        cursor: None,
        limit: 10,
    };
    assert_eq!(leader.ask(&Query::Messages(nobody)), Err(Refusal::SessionUnknown("s".into())));
    assert_eq!(leader.ask(&Query::Entries("s".into())), Ok(Found::Entries(Vec::new())));
    assert_eq!(leader.delete("s"), Ok(Answer::Deleted { deleted: false }));

    // The id can be used again at once, also twice, while the old entries are still there.
    leader.ensure("s", json!({}));
    leader.append("s", "new", 0, "again");
    assert_eq!(leader.keys(Family::Entry), 3_001);
    let before = leader.commands;
    assert!(leader.chores() >= 3_000 / Steps::RECORDS_MAX as usize);
    assert!(leader.worst <= KEYS_MAX, "a command of {} wrote {} keys", leader.commands - before, leader.worst);
    assert_eq!((leader.keys(Family::Entry), leader.keys(Family::Leftover)), (1, 0));
    let Ok(Found::Entries(entries)) = leader.ask(&Query::Entries("s".into())) else { unreachable!() };
    assert_eq!(entries.len(), 1);
    leader.delete("s").unwrap();
    leader.chores();
    assert_eq!((leader.keys(Family::Entry), leader.keys(Family::Home)), (0, 0));
}

#[test]
fn raw_deletes_and_replacing_imports_of_a_long_session_are_small_commands_too() {
    let mut leader = Leader::new();
    leader.long_session("s", 1_000);
    leader.worst = 0;
    let delete = SessionChange::DeleteEntries;
    leader.run(Command::Store(StoreWrite::Session("s".into(), delete))).unwrap();
    assert!(leader.worst <= 32, "the delete wrote {} keys", leader.worst);
    assert_eq!(leader.ask(&Query::Entries("s".into())), Ok(Found::Entries(Vec::new())));
    leader.chores();
    leader.long_session("s", 1_000);
    leader.worst = 0;
    let Ok(Found::Meta(Some(meta))) = leader.ask(&Query::Meta("s".into())) else { unreachable!() };
    let import = ImportEntries {
        session_id: "s".into(),
        if_exists: IfExists::Replace,
        first: true,
        entries: Vec::new(),
        finish: Some(FinishImport { meta: machine::session::SessionMeta { title: "New".into(), ..meta }, leaf: None }),
    };
    leader.run(Command::Import(import)).unwrap();
    assert!(leader.worst <= 64, "the import wrote {} keys", leader.worst);
    assert_eq!(leader.ask(&Query::Entries("s".into())), Ok(Found::Entries(Vec::new())));
    leader.chores();
    assert_eq!(leader.keys(Family::Entry), 0);
}

#[test]
fn a_fork_of_a_long_session_shows_at_its_last_command_and_not_before() {
    let mut leader = Leader::new();
    let ids = leader.long_session("s", 2_000);
    leader.worst = 0;
    let Ok(Answer::ForkBegun { source, fork }) = leader.fork("s", &ids[1_998]) else { unreachable!() };
    let mut shown = None;
    while shown.is_none() {
        assert!(!leader.exists(fork.as_str()));
        let list = ListQuery { order: ListOrder::CreatedAsc, status: None, metadata: None, cursor: None, limit: 100 };
        let Ok(Found::List(page)) = leader.ask(&Query::List(list)) else { unreachable!() };
        assert_eq!(page.sessions.len(), 1);
        // What is copied already follows its source.
        update(&mut leader, &ids[0], "rewritten");
        update(&mut leader, &ids[1_900], "rewritten later");
        let (source, fork) = (source.clone(), fork.clone());
        let records = Steps::RECORDS_MAX;
        match leader.run(Command::Long(LongWork::ContinueFork { source, fork, records })).unwrap() {
            Answer::Forked { meta } => shown = Some(meta),
            other => assert!(matches!(other, Answer::ForkBegun { .. })),
        }
    }
    assert!(leader.worst <= KEYS_MAX, "a command wrote {} keys", leader.worst);
    let shown = shown.unwrap();
    assert_eq!((shown.message_count, shown.forked_from.as_ref()), (1_999, Some(&SessionId::from("s"))));
    let Ok(Found::Entries(copies)) = leader.ask(&Query::Entries(shown.session_id.clone())) else { unreachable!() };
    let Ok(Found::Entries(originals)) = leader.ask(&Query::Entries("s".into())) else { unreachable!() };
    assert_eq!(copies.len(), 1_999);
    for (copy, original) in copies.iter().zip(&originals) {
        assert_eq!((&copy.body, copy.timestamp, copy.revision), (&original.body, original.timestamp, 0));
        assert_eq!(copy.place.as_ref().map(|place| place.depth), original.place.as_ref().map(|place| place.depth));
    }
    // Another proposer that continues it gets the same answer.
    let again = Command::Long(LongWork::ContinueFork { source, fork, records: 1 });
    assert_eq!(leader.run(again), Ok(Answer::Forked { meta: shown }));
    assert_eq!(leader.chores(), 0);
}

fn update(leader: &mut Leader, entry_id: &EntryId, words: &str) {
    let content = NewContent::Full(Json::print(&text(words)));
    let (session_id, entry_id) = ("s".into(), entry_id.clone());
    let update = UpdateMessage { session_id, entry_id, content, details: None, expected_revision: None, origin: None };
    leader.run(Command::UpdateMessage(update)).unwrap();
}

#[test]
fn a_fork_that_nobody_continues_or_whose_source_is_deleted_leaves_nothing() {
    let mut leader = Leader::new();
    let ids = leader.long_session("s", 1_000);
    let begin = |leader: &mut Leader| {
        let Ok(Answer::ForkBegun { source, fork }) = leader.fork("s", &ids[999]) else { unreachable!() };
        let next = LongWork::ContinueFork { source, fork, records: 100 };
        leader.run(Command::Long(next.clone())).unwrap();
        next
    };
    let next = begin(&mut leader);
    assert_eq!(leader.chores(), 0);
    leader.at_ms += FORK_IDLE_MS + 10;
    assert!(leader.chores() > 0);
    assert_eq!((leader.keys(Family::Entry), leader.keys(Family::Fork)), (1_000, 0));
    assert_eq!((leader.keys(Family::Leftover), leader.keys(Family::Home)), (0, 0));
    assert_eq!(leader.run(Command::Long(next)).unwrap_err().code(), "session/invalid_request");

    let next = begin(&mut leader);
    leader.delete("s").unwrap();
    assert_eq!(leader.run(Command::Long(next)), Err(Refusal::SessionUnknown("s".into())));
    leader.chores();
    assert_eq!((leader.keys(Family::Entry), leader.keys(Family::Fork)), (0, 0));
    assert_eq!((leader.keys(Family::Leftover), leader.keys(Family::Home)), (0, 0));
}

#[test]
fn a_role_that_is_rare_costs_a_page_and_not_the_transcript() {
    let mut leader = Leader::new();
    leader.long_session("s", 20_000);
    leader.append("s", "answer", 1, "at last");
    let mut query = MessagesQuery {
        session_id: "s".into(),
        from_entry_id: None,
        roles: Some(vec![Role::Assistant]),
        include_custom: false,
        cursor: None,
        limit: 10,
    };
    let mut found = Vec::new();
    for call in 1.. {
        let (page, reads) = with_view(&*leader.store, |view| {
            let counted = Counted::over(view);
            let page = messages::query(&counted, &query).unwrap();
            (page, counted.entries.get())
        });
        assert!(reads <= 2_000, "call {call} read {reads} entries");
        found.extend(page.entries().cloned());
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    assert_eq!(found.iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), ["answer"]);
}

#[test]
fn filters_that_never_meet_cost_a_page_and_not_all_sessions() {
    let mut leader = Leader::new();
    for n in 0..6_000 {
        let metadata = if n % 2 == 0 { json!({ "a": 1 }) } else { json!({ "b": 1 }) };
        leader.ensure(&format!("s{n:05}"), metadata);
    }
    leader.ensure("both", json!({ "a": 1, "b": 1 }));
    let mut query = ListQuery {
        order: ListOrder::CreatedAsc,
        status: None,
        metadata: json!({ "a": 1, "b": 1 }).as_object().cloned(),
        cursor: None,
        limit: 10,
    };
    let (mut found, mut calls) = (Vec::new(), 0);
    loop {
        calls += 1;
        let (page, points) = with_view(&*leader.store, |view| {
            let counted = Counted::over(view);
            let page = list::query(&counted, &query).unwrap();
            (page, counted.points.get())
        });
        assert!(points <= 5_000, "call {calls} looked at {points} points");
        found.extend(page.sessions.into_iter().map(|meta| meta.session_id));
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    assert_eq!(found, [SessionId::from("both")]);
    assert!(calls > 1);
}

#[test]
fn a_raw_list_that_is_too_long_is_refused_before_all_of_it_is_read() {
    let mut leader = Leader::new();
    leader.ensure("s", json!({}));
    let words = "x".repeat(1 << 20);
    for n in 0..100 {
        leader.append("s", &format!("e{n:03}"), 0, &words);
    }
    let (refused, reads) = with_view(&*leader.store, |view| {
        let counted = Counted::over(view);
        let refused = machine::query(&counted, &Query::Entries("s".into())).unwrap().unwrap_err();
        (refused, counted.entries.get())
    });
    assert!(refused.to_string().contains("session::messages"), "{refused}");
    assert!(reads <= 65, "{reads} entries of 1 MiB were read");
}

#[test]
fn a_raw_list_that_is_too_long_takes_little_memory_and_a_long_one_comes_whole() {
    let mut leader = Leader::new();
    leader.ensure("s", json!({}));
    let words = "x".repeat(1 << 20);
    for n in 0..40 {
        leader.append("s", &format!("e{n:03}"), 0, &words);
    }
    let list = |leader: &Leader| leader.ask(&Query::Entries("s".into()));
    let Ok(Found::Entries(whole)) = list(&leader) else { unreachable!() };
    let ids: Vec<String> = (0..40).map(|n| format!("e{n:03}")).collect();
    assert_eq!(whole.iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), ids);
    drop(whole);
    for n in 40..70 {
        leader.append("s", &format!("e{n:03}"), 0, &words);
    }
    let (refused, bytes) = peak(|| list(&leader));
    assert!(refused.is_err());
    assert!(bytes < 16 << 20, "{} MiB for a list that was refused", bytes >> 20);
}
