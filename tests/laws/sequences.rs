//! Owns: the law that the machine, over any store, behaves like the model for random sequences of commands.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde_json::{Map, Value, json};
use session_manager::machine::apply::append::AppendEntry;
use session_manager::machine::apply::append_many::AppendMany;
use session_manager::machine::apply::create::CreateSession;
use session_manager::machine::apply::delete::DeleteSession;
use session_manager::machine::apply::ensure::EnsureSession;
use session_manager::machine::apply::fork::ForkSession;
use session_manager::machine::apply::long::{LongWork, due};
use session_manager::machine::apply::set_active_leaf::SetActiveLeaf;
use session_manager::machine::apply::set_meta::SetMeta;
use session_manager::machine::apply::set_status::SetStatus;
use session_manager::machine::apply::store::{Envelope, StoreWrite};
use session_manager::machine::apply::update_message::{NewContent, UpdateMessage};
use session_manager::machine::change::{AnswerChange, Change, SessionChange};
use session_manager::machine::entry::{Body, Entry};
use session_manager::machine::event::EventKind;
use session_manager::machine::ids::{EntryId, RequestId, SessionId};
use session_manager::machine::json::Json;
use session_manager::machine::law::{self, LawError};
use session_manager::machine::long::{PendingFork, Steps};
use session_manager::machine::path;
use session_manager::machine::query::list::ListQuery;
use session_manager::machine::query::messages::MessagesQuery;
use session_manager::machine::session::{SessionMeta, SessionStatus};
use session_manager::machine::stamp::Stamp;
use session_manager::machine::view::ListOrder;
use session_manager::machine::{self, Answer, Command, Found, Outcome, Query, Stamped};
use session_manager::storage::Store;
use session_manager::storage::sled::SledStore;
use session_manager::storage::state::family::Family;
use session_manager::storage::state::key::Key;
use session_manager::storage::state::memory::MemoryStore;

use crate::applied_log::{Run, answer_json, custom, event_json, message, minted, stamped, text};
use crate::model::{After, Model, entries_json, list_time};
use crate::operations::{Op, Pick, op};

/// Ids that break careless key encodings: prefixes of each other, empty, separators, zero bytes, the last code point.
const SESSIONS: [&str; 8] = ["a", "a\0", "a\0b", "ab", "../escape/chat 42:?", "🦀 e\u{301}", "\u{10ffff}", "%2e"];
const ENTRIES: [&str; 6] = ["x", "x\0", "xy", "", "../e 1:?", "🦀"];

/// Comparing everything is slow. Other steps compare only the sessions that the command changed.
const COMPARE_ALL_EVERY: u64 = 8;

/// A reader that stays open while commands run: the query with the product's cursor, and the model's position.
struct Reader<Q> {
    query: Q,
    after: After,
}

/// One run: the same commands go to the product and to the model, and the results are compared.
struct Comparison {
    run: Run,
    model: Model,
    at_ms: i64,
    log: Vec<Stamped>,
    transcripts: [Option<Reader<MessagesQuery>>; 2],
    lists: [Option<Reader<ListQuery>>; 2],
}

type Verdict = Result<(), TestCaseError>;

impl Comparison {
    fn new(store: Arc<dyn Store>) -> Comparison {
        let (transcripts, lists) = ([None, None], [None, None]);
        Comparison { run: Run::new(store), model: Model::default(), at_ms: 1_000, log: Vec::new(), transcripts, lists }
    }

    fn session(&self, pick: Pick) -> SessionId {
        let pick = usize::from(pick);
        let known: Vec<&String> = self.model.metas.keys().collect();
        match pick.checked_sub(SESSIONS.len() * 8) {
            Some(pick) if !known.is_empty() => SessionId::from(known[pick % known.len()].as_str()),
            Some(_) | None => SessionId::from(SESSIONS[pick % SESSIONS.len()]),
        }
    }

    fn entry(&self, session: &SessionId, pick: Pick) -> EntryId {
        let pick = usize::from(pick);
        let known = self.model.entries.get(session.as_str()).filter(|known| !known.is_empty());
        match (pick.checked_sub(ENTRIES.len() * 8), known) {
            (Some(pick), Some(known)) => EntryId::from(known[pick % known.len()]["id"].as_str().unwrap()),
            (_, _) => EntryId::from(ENTRIES[pick % ENTRIES.len()]),
        }
    }

    fn body(&self, session: &SessionId, pick: u8) -> Body {
        match pick % 8 {
            6 => custom("compaction", &json!({ "tail_start_entry_id": self.entry(session, pick), "kept": 1.5 })),
            7 => custom("🦀", &json!(["x", null])),
            role => Body::Message(message(role, "hello \u{0} 🦀")),
        }
    }

    fn step(&mut self, op: Op) -> Verdict {
        match op {
            Op::ReadMessages { reader, anew, session, from, roles, custom } => {
                let session_id = self.session(session);
                let from_entry_id = from.map(|from| self.entry(&session_id, from));
                let slot = usize::from(reader);
                if anew || self.transcripts[slot].is_none() {
                    let query = MessagesQuery {
                        session_id,
                        from_entry_id,
                        roles,
                        include_custom: custom,
                        cursor: None,
                        limit: 2,
                    };
                    self.transcripts[slot] = Some(Reader { query, after: After::Start });
                }
                self.read_messages(slot)
            }
            Op::ReadList { reader, anew, order, status, filter } => {
                let slot = usize::from(reader);
                if anew || self.lists[slot].is_none() {
                    let query = ListQuery { order, status, metadata: filter, cursor: None, limit: 2 };
                    self.lists[slot] = Some(Reader { query, after: After::Start });
                }
                self.read_list(slot)
            }
            Op::Continue { fork, records, give_up } => {
                let forks = self.run.look(|view| view.forks()).unwrap();
                let Some(PendingFork { source, fork, .. }) = forks.get(usize::from(fork) % forks.len().max(1)).cloned()
                else {
                    return Ok(());
                };
                self.apply(Command::Long(match give_up {
                    true => LongWork::GiveUpFork { source, fork },
                    false => LongWork::ContinueFork { source, fork, records },
                }))
            }
            Op::Chore { records } => match self.due(self.at_ms, records) {
                Some(command) => self.apply(command),
                None => Ok(()),
            },
            mutation => {
                let command = self.command(mutation);
                self.apply(command)
            }
        }
    }

    fn due(&self, now_ms: i64, records: u32) -> Option<Command> {
        let steps = Steps { records, ..Steps::default() };
        self.run.look(|view| due(view, now_ms, steps)).expect("the store can be read")
    }

    /// When the leader has done what is due, the state holds the entries of the model and no others.
    fn nothing_is_left(&mut self) -> Verdict {
        while let Some(command) = self.due(i64::MAX, 2) {
            self.apply(command)?;
        }
        prop_assert!(self.model.forks.is_empty());
        let count = |family: Family| state(&*self.run.store).iter().filter(|(key, _)| family.owns(key)).count();
        prop_assert_eq!(count(Family::Entry), self.model.entries.values().map(Vec::len).sum::<usize>());
        prop_assert_eq!((count(Family::Leftover), count(Family::Fork)), (0, 0));
        let homeless = |id: &str| !self.model.metas.contains_key(id) && !self.model.entries.contains_key(id);
        for (key, _) in state(&*self.run.store) {
            if let Ok(Key::Home(session_id)) = Key::parse(&key) {
                prop_assert!(!homeless(session_id.as_str()), "a home of {:?}, which is gone", session_id);
            }
        }
        Ok(())
    }

    fn command(&self, op: Op) -> Command {
        let origin = |n: u8| n.is_multiple_of(3).then(|| Json::print(&json!({ "turn": n })));
        match op {
            Op::Create { metadata } => Command::Create(new("Created", metadata)),
            Op::Ensure { session, metadata } => {
                Command::Ensure(EnsureSession { session_id: self.session(session), session: new("Ensured", metadata) })
            }
            Op::SetMeta { session, title, metadata } => Command::SetMeta(SetMeta {
                session_id: self.session(session),
                description: title.clone().filter(|title| title.len() > 5),
                title,
                metadata,
            }),
            Op::SetStatus { session, status, reason } => {
                Command::SetStatus(SetStatus { session_id: self.session(session), status, reason })
            }
            Op::Delete { session, long } => {
                let delete = DeleteSession { session_id: self.session(session) };
                if long { Command::Long(LongWork::Delete(delete)) } else { Command::Delete(delete) }
            }
            Op::Continue { .. } | Op::Chore { .. } => unreachable!("the state says what they do"),
            Op::Append { session, entry, parent, body } => {
                let session_id = self.session(session);
                Command::Append(AppendEntry {
                    entry_id: entry.map(|entry| self.entry(&session_id, entry)),
                    parent_id: parent.map(|parent| self.entry(&session_id, parent)),
                    origin: origin(body),
                    body: self.body(&session_id, body),
                    session_id,
                })
            }
            Op::AppendMany { session, parent, roles } => {
                let session_id = self.session(session);
                Command::AppendMany(AppendMany {
                    parent_id: parent.map(|parent| self.entry(&session_id, parent)),
                    origin: origin(roles.len() as u8),
                    messages: roles.into_iter().map(|role| message(role, "many")).collect(),
                    session_id,
                })
            }
            Op::Update { session, entry, expected, details } => {
                let session_id = self.session(session);
                Command::UpdateMessage(UpdateMessage {
                    entry_id: self.entry(&session_id, entry),
                    content: NewContent::Full(Json::print(&text(&"word ".repeat(20 * (1 + usize::from(entry)))))),
                    details: details.then(|| Json::print(&json!({ "new": [1] }))),
                    expected_revision: expected,
                    origin: origin(entry),
                    session_id,
                })
            }
            Op::Fork { session, entry, title, long } => {
                let session_id = self.session(session);
                let fork = ForkSession { entry_id: self.entry(&session_id, entry), session_id, title };
                // Only a path whose entries have places is copied in steps.
                let found = self.run.look(|view| view.entry(&fork.session_id, &fork.entry_id)).unwrap();
                let long = long && found.is_none_or(|entry| entry.place.is_some());
                if long { Command::Long(LongWork::BeginFork(fork)) } else { Command::Fork(fork) }
            }
            Op::SetLeaf { session, entry } => {
                let session_id = self.session(session);
                Command::SetActiveLeaf(SetActiveLeaf { entry_id: self.entry(&session_id, entry), session_id })
            }
            Op::RawMeta { session, status, times, count, metadata } => {
                let session_id = self.session(session);
                let meta = SessionMeta {
                    session_id: session_id.clone(),
                    title: "Raw".to_owned(),
                    description: String::new(),
                    status,
                    status_reason: Some("raw".to_owned()),
                    message_count: count,
                    metadata,
                    forked_from: Some(SessionId::from("elsewhere")),
                    created_at: times.0,
                    updated_at: times.1,
                };
                Command::Store(StoreWrite::Session(session_id, SessionChange::PutMeta(meta)))
            }
            Op::RawEntry { session, entry, parent, revision, body } => {
                let session_id = self.session(session);
                let raw = Entry {
                    id: self.entry(&session_id, entry),
                    parent_id: parent.map(|parent| self.entry(&session_id, parent)),
                    timestamp: i64::from(body) - 100,
                    revision,
                    origin: origin(body),
                    body: self.body(&session_id, body),
                    place: None,
                };
                Command::Store(StoreWrite::Session(session_id, SessionChange::PutEntry(raw)))
            }
            Op::RawLeaf { session, entry } => {
                let session_id = self.session(session);
                let entry_id = self.entry(&session_id, entry);
                Command::Store(StoreWrite::Session(session_id, SessionChange::SetLeaf(entry_id)))
            }
            Op::RawDelete { session, what } => {
                let session_id = self.session(session);
                if what % 6 == 1 {
                    return Command::Long(LongWork::DeleteEntries(session_id));
                }
                let delete = match what % 3 {
                    0 => SessionChange::DeleteMeta,
                    1 => SessionChange::DeleteEntries,
                    _two => SessionChange::DeleteLeaf,
                };
                Command::Store(StoreWrite::Session(session_id, delete))
            }
            Op::Publish { session, kinds } => {
                let envelope = |kind: u8| Envelope {
                    kind: EventKind::PUBLISHED[usize::from(kind) % EventKind::PUBLISHED.len()],
                    session_id: self.session(session.wrapping_add(kind % 2)),
                    role: None,
                    payload: Json::print(&json!({ "session_id": "published by a bridge", "n": kind })),
                    metadata: None,
                };
                Command::Store(StoreWrite::PublishEvents(kinds.into_iter().map(envelope).collect()))
            }
            Op::ReadMessages { .. } | Op::ReadList { .. } => unreachable!("reads are no commands"),
        }
    }

    fn apply(&mut self, command: Command) -> Verdict {
        // Sometimes the clock stands still or goes back, as it does when the clock of a new leader is behind.
        let n = self.log.len() as u64 + 1;
        self.at_ms += [1, 0, 7, -20][n as usize % 4];
        let stamped = stamped(n, self.at_ms, command);
        self.patched_update_does_the_same(&stamped)?;
        let outcome = self.run.apply(&stamped);
        self.a_retry_changes_nothing(&stamped, &outcome)?;
        let mut minted = minted(&outcome);
        // Earlier commands of a long fork have copied most of its entries.
        if let (Command::Long(_), Ok(Answer::Forked { meta })) = (&stamped.command, &outcome.answer) {
            minted = self.path_of(&meta.session_id);
        }
        let expected = self.model.apply(self.at_ms, &stamped.command, &minted);
        prop_assert_eq!(&answer_json(&outcome.answer), &expected.answer, "answer to {:?}", &stamped.command);
        let events: Vec<Value> = outcome.events.iter().map(event_json).collect();
        prop_assert_eq!(&events, &expected.events, "events of {:?}", &stamped.command);
        let touched = stamped.command.session_id().into_iter().map(|id| id.as_str().to_owned());
        let touched: Vec<String> = touched.chain(minted.into_iter().take(1)).collect();
        self.log.push(stamped);
        for id in touched {
            self.compare_session(&id)?;
        }
        if n.is_multiple_of(COMPARE_ALL_EVERY) { self.compare() } else { Ok(()) }
    }

    /// The id of a session, then those of its transcript.
    fn path_of(&self, session_id: &SessionId) -> Vec<String> {
        let entries = self.run.look(|view| {
            let leaf = view.leaf(session_id)?.expect("a leaf");
            path::walk(view, session_id, &view.entry(session_id, &leaf)?.expect("an entry"))
        });
        let ids = entries.expect("the store can be read").into_iter().map(|entry| entry.id.as_str().to_owned());
        std::iter::once(session_id.as_str().to_owned()).chain(ids).collect()
    }

    /// A retry with the same request id gets the answer of the first attempt and changes nothing.
    fn a_retry_changes_nothing(&self, stamped: &Stamped, first: &Outcome) -> Verdict {
        if first.changes.is_empty() {
            return self.a_late_original_has_no_effect(stamped);
        }
        let again = Stamped { is_retry: true, stamp: Stamp { seed: !0, ..stamped.stamp }, ..stamped.clone() };
        let repeat = self.run.look(|view| machine::apply(view, &again)).expect("the store can be read");
        prop_assert_eq!(&repeat, &Outcome { changes: Vec::new(), events: Vec::new(), answer: first.answer.clone() });
        // After the retention time the answer is gone, and the only safe answer is to say so.
        let late = Stamp { at_ms: stamped.stamp.at_ms + 120_000, seed: !0 };
        let again = Stamped { stamp: late, request_id: RequestId(stamped.request_id.0 + 1), ..again };
        let repeat = self.run.look(|view| machine::apply(view, &again)).expect("the store can be read");
        prop_assert_eq!(&repeat, &Outcome::unchanged(Answer::Forgotten));
        // The answer to an id of a far future would be kept until then, so such a proposal has no effect, retry or not.
        let two_days_ahead = stamped.stamp.at_ms + 2 * 24 * 60 * 60 * 1000;
        for is_retry in [false, true] {
            let request_id = RequestId::new(two_days_ahead, 1);
            let ahead = Stamped { request_id, is_retry, ..stamped.clone() };
            let outcome = self.run.look(|view| machine::apply(view, &ahead)).expect("the store can be read");
            prop_assert_eq!(&outcome, &Outcome::unchanged(Answer::Forgotten));
        }
        Ok(())
    }

    /// Retries are recorded even if refused, so that a late original cannot succeed afterwards.
    fn a_late_original_has_no_effect(&self, stamped: &Stamped) -> Verdict {
        let again = Stamped { is_retry: true, ..stamped.clone() };
        let outcome = self.run.look(|view| machine::apply(view, &again)).expect("the store can be read");
        prop_assert!(!outcome.has_effect() && outcome.events.is_empty());
        let remembered = outcome.changes.iter().find_map(|change| match change {
            Change::Answer(AnswerChange::Record(request_id, answer)) if *request_id == stamped.request_id => {
                Some(answer)
            }
            _other => None,
        });
        prop_assert_eq!(remembered, Some(&outcome.answer));
        Ok(())
    }

    /// An update that carries only a patch has the same outcome as one that carries the whole content.
    fn patched_update_does_the_same(&self, stamped: &Stamped) -> Verdict {
        let Command::UpdateMessage(update) = &stamped.command else { return Ok(()) };
        let Some(shrunk) = self.run.look(|view| update.shrunk(view)).expect("the store can be read") else {
            return Ok(());
        };
        let patched = Stamped { command: Command::UpdateMessage(shrunk), ..stamped.clone() };
        let decide = |stamped: &Stamped| self.run.look(|view| machine::apply(view, stamped)).expect("a readable store");
        prop_assert_eq!(decide(&patched), decide(stamped));
        Ok(())
    }

    /// Compares the whole state with the model.
    fn compare(&self) -> Verdict {
        let Found::Metas(metas) = self.run.ask(&Query::Metas).unwrap() else { unreachable!() };
        let mut by_age: Vec<&Value> = self.model.metas.values().collect();
        by_age.sort_by_key(|meta| meta["created_at"].as_i64());
        prop_assert_eq!(json!(metas), json!(by_age), "metas, oldest first");
        let names = self.model.metas.keys().chain(self.model.entries.keys()).chain(self.model.seqs.keys());
        for id in names.map(String::as_str).chain(SESSIONS) {
            self.compare_session(id)?;
        }
        self.compare_lists()
    }

    fn compare_session(&self, id: &str) -> Verdict {
        let session_id = SessionId::from(id);
        let Found::Meta(meta) = self.run.ask(&Query::Meta(session_id.clone())).unwrap() else { unreachable!() };
        prop_assert_eq!(json!(meta), json!(self.model.metas.get(id)), "meta of {:?}", id);
        let Found::Leaf(leaf) = self.run.ask(&Query::Leaf(session_id.clone())).unwrap() else { unreachable!() };
        prop_assert_eq!(json!(leaf), json!(self.model.leaves.get(id)), "leaf of {:?}", id);
        let seq = self.run.look(|view| view.seq(&session_id)).unwrap();
        prop_assert_eq!(seq, self.model.seqs.get(id).copied().unwrap_or(0), "seq of {:?}", id);
        self.compare_entries(id)?;

        let query = MessagesQuery {
            session_id: session_id.clone(),
            from_entry_id: None,
            roles: None,
            include_custom: true,
            cursor: None,
            limit: 1_000,
        };
        self.compare_page(&query, &After::Start)?;
        if !self.model.tainted.contains(id) {
            let laws = self.run.look(|view| {
                law::leaf_reaches_root(view, &session_id)?;
                law::message_count_counts_messages(view, &session_id)?;
                Ok::<(), LawError>(())
            });
            prop_assert_eq!(laws, Ok(()));
        }
        Ok(())
    }

    fn compare_entries(&self, id: &str) -> Verdict {
        let session_id = SessionId::from(id);
        // The copies of a fork under way are stored, but nobody knows its id.
        if self.model.forks.contains_key(id) {
            return Ok(());
        }
        let Found::Entries(entries) = self.run.ask(&Query::Entries(session_id.clone())).unwrap() else {
            unreachable!()
        };
        let empty = Vec::new();
        let expected = self.model.entries.get(id).unwrap_or(&empty);
        let sorted = |mut entries: Vec<Value>| {
            entries.sort_by_key(|entry| entry["id"].as_str().unwrap().to_owned());
            entries
        };
        prop_assert_eq!(sorted(entries_json(&entries)), sorted(expected.clone()), "entries of {:?}", id);
        for entry in expected {
            let entry_id = entry["id"].as_str().unwrap();
            let Found::Entry(found) = self.run.ask(&Query::Entry(session_id.clone(), EntryId::from(entry_id))).unwrap()
            else {
                unreachable!()
            };
            prop_assert_eq!(&json!(found), entry);
            // Parents come before their children, unless the parents form a cycle.
            let place = |wanted: &str| entries.iter().position(|entry| entry.id.as_str() == wanted);
            let path = self.model.path(id, entry_id);
            if path[0].get("parent_id").and_then(|parent| self.model.entry(id, parent.as_str().unwrap())).is_none() {
                let places: Vec<_> = path.iter().map(|entry| place(entry["id"].as_str().unwrap())).collect();
                prop_assert!(places.is_sorted(), "{:?}: {:?} at {:?}", id, entry_id, places);
            }
        }
        Ok(())
    }

    /// Reads every order, with and without filters, to its end in pages of one and of three.
    fn compare_lists(&self) -> Verdict {
        let orders = [ListOrder::CreatedAsc, ListOrder::CreatedDesc, ListOrder::UpdatedDesc];
        let statuses = [None, Some(SessionStatus::Idle), Some(SessionStatus::Error)];
        let filter = |value: Value| value.as_object().cloned();
        let filters = [None, filter(json!({ "team": 1 })), filter(json!({ "team": null, "🦀": "1" }))];
        for (n, order) in orders.into_iter().enumerate() {
            for (m, status) in statuses.into_iter().enumerate() {
                let metadata = filters[(n + m) % filters.len()].clone();
                let limit = if m % 2 == 0 { 3 } else { 1 };
                let mut reader =
                    Reader { query: ListQuery { order, status, metadata, cursor: None, limit }, after: After::Start };
                while self.list_page(&mut reader)? {}
            }
        }
        Ok(())
    }

    /// Reads one page of a list and advances the reader; false at the end.
    fn list_page(&self, reader: &mut Reader<ListQuery>) -> Result<bool, TestCaseError> {
        let query = &reader.query;
        let (expected, more) = self.model.list(query, &reader.after).unwrap();
        let Ok(Found::List(page)) = self.run.ask(&Query::List(query.clone())) else {
            return Err(TestCaseError::fail(format!("no page for {query:?}")));
        };
        prop_assert_eq!(json!(page.sessions), json!(expected), "list {:?}", query);
        prop_assert_eq!(page.next_cursor.is_some(), more, "a cursor exactly where more follows: {:?}", query);
        if let Some(last) = expected.last() {
            let id = last["session_id"].as_str().unwrap().to_owned();
            reader.after = After::Session { time: list_time(query.order, last), id };
        }
        reader.query.cursor = page.next_cursor;
        Ok(more)
    }

    fn read_list(&mut self, slot: usize) -> Verdict {
        let Some(mut reader) = self.lists[slot].take() else { return Ok(()) };
        if self.list_page(&mut reader)? {
            self.lists[slot] = Some(reader);
        }
        Ok(())
    }

    fn read_messages(&mut self, slot: usize) -> Verdict {
        let Some(mut reader) = self.transcripts[slot].take() else { return Ok(()) };
        if let Some((last, cursor)) = self.compare_page(&reader.query, &reader.after)? {
            reader.query.cursor = Some(cursor);
            reader.after = After::Entry(last);
            self.transcripts[slot] = Some(reader);
        }
        Ok(())
    }

    /// Compares one page. Returns the last entry and the cursor if another page follows.
    fn compare_page(&self, query: &MessagesQuery, after: &After) -> Result<Option<(String, String)>, TestCaseError> {
        let expected = self.model.messages(query, after).map_err(str::to_owned);
        let found = self.run.ask(&Query::Messages(query.clone())).map_err(|refusal| refusal.code().to_owned());
        let found = found.map(|found| match found {
            Found::Messages(page) => page,
            other => unreachable!("{other:?}"),
        });
        let seen =
            found.as_ref().map(|page| (entries_json(page.entries()), page.next_cursor.is_some())).map_err(Clone::clone);
        prop_assert_eq!(seen, expected, "{:?}", query);
        let Ok(page) = found else { return Ok(None) };
        let last = page.entries().last().map(|entry| entry.id.as_str().to_owned());
        Ok(last.zip(page.next_cursor))
    }
}

fn new(title: &str, metadata: Option<Map<String, Value>>) -> CreateSession {
    CreateSession { title: title.to_owned(), description: "d".to_owned(), metadata }
}

/// Every key-value pair of the state, to compare stores byte by byte.
fn state(store: &dyn Store) -> Vec<(Vec<u8>, Bytes)> {
    store.freeze().unwrap().pairs.map(|pair| pair.unwrap()).collect()
}

/// The state of an empty memory store after a whole log.
fn replayed(log: &[Stamped]) -> Vec<(Vec<u8>, Bytes)> {
    let mut run = Run::new(Arc::new(MemoryStore::new()));
    for stamped in log {
        run.apply(stamped);
    }
    state(&*run.store)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_machine_over_memory_behaves_like_the_model(ops in prop::collection::vec(op(), 1..60)) {
        let mut comparison = Comparison::new(Arc::new(MemoryStore::new()));
        for op in ops {
            comparison.step(op)?;
        }
        comparison.compare()?;
        comparison.nothing_is_left()?;
        prop_assert!(state(&*comparison.run.store) == replayed(&comparison.log), "replaying the log gave another state");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_machine_over_sled_behaves_like_the_model(
        before in prop::collection::vec(op(), 1..60),
        after in prop::collection::vec(op(), 1..60),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let open = || Arc::new(SledStore::open(directory.path()).unwrap());
        let store = open();
        let mut comparison = Comparison::new(store.clone());
        for op in before {
            comparison.step(op)?;
        }

        // Closing writes the memory layer to sled, so the second half reads from sled.
        comparison.run.store = Arc::new(MemoryStore::new());
        store.close();
        drop(store);
        comparison.run.store = open();
        prop_assert_eq!(comparison.run.store.checkpoint().unwrap().is_some(), comparison.run.index > 0);
        comparison.compare()?;
        for op in after {
            comparison.step(op)?;
        }
        comparison.compare()?;
        comparison.nothing_is_left()?;
        prop_assert!(state(&*comparison.run.store) == replayed(&comparison.log), "the same log gave another state on sled");
    }
}
