//! The laws of the feed in the store: what a reader sees of old events, trimming, tombstones and cursors.

use bytes::Bytes;
use serde_json::json;

use super::memory::MemoryStore;
use super::{clock, feed_record};
use crate::machine::apply::append::AppendEntry;
use crate::machine::apply::create::CreateSession;
use crate::machine::apply::delete::DeleteSession;
use crate::machine::apply::ensure::EnsureSession;
use crate::machine::apply::feed_order::FeedOrder;
use crate::machine::apply::set_meta::SetMeta;
use crate::machine::apply::set_status::SetStatus;
use crate::machine::apply::update_message::{NewContent, UpdateMessage};
use crate::machine::change::Change;
use crate::machine::entry::Body;
use crate::machine::event::{Event, EventKind, Happened};
use crate::machine::feed_record::{FeedEdge, Record, record_events};
use crate::machine::ids::{FeedPlace, Position, RequestId};
use crate::machine::json::Json;
use crate::machine::message::{Message, Role};
use crate::machine::query::feed_page::{FeedLimits, page};
use crate::machine::session::SessionStatus;
use crate::machine::stamp::Stamp;
use crate::machine::{Answer, Command, Stamped, apply};
use crate::storage::{Store, with_view};

const ALL: FeedLimits = FeedLimits { records: usize::MAX, body_bytes: usize::MAX };

fn place(index: u64, ordinal: u32) -> FeedPlace {
    FeedPlace { index, ordinal }
}

/// A state and its log index. Applies commands like a replica.
#[derive(Default)]
struct Run {
    store: MemoryStore,
    index: u64,
}

impl Run {
    fn run(&mut self, command: Command) -> Vec<Event> {
        self.index += 1;
        let stamp = Stamp { at_ms: 1000 * self.index as i64, seed: u128::from(self.index) };
        let stamped = Stamped { stamp, request_id: RequestId::NONE, is_retry: false, scope: None, command };
        let mut outcome = with_view(&self.store, |view| apply(view, &stamped)).unwrap();
        outcome.answer.as_ref().unwrap();
        record_events(self.index, &mut outcome);
        self.store.commit(&outcome.changes, Bytes::new()).unwrap();
        outcome.events
    }

    fn ensure(&mut self, id: &str) {
        let metadata = json!({"tenant": id}).as_object().cloned();
        let session = CreateSession { title: "old".to_owned(), description: String::new(), metadata };
        self.run(Command::Ensure(EnsureSession { session_id: id.into(), session }));
    }

    fn append(&mut self, id: &str, entry_id: &str) -> Vec<Event> {
        let body = Json::adopt(r#"{"role":"user","content":[{"type":"text","text":"a"}],"timestamp":1}"#);
        self.run(Command::Append(AppendEntry {
            session_id: id.into(),
            entry_id: Some(entry_id.into()),
            parent_id: None,
            origin: None,
            body: Body::Message(Message { role: Role::User, body }),
        }))
    }

    fn update(&mut self, id: &str, entry_id: &str, text: &str) -> Vec<Event> {
        self.run(Command::UpdateMessage(UpdateMessage {
            session_id: id.into(),
            entry_id: entry_id.into(),
            content: NewContent::Full(Json::print(&json!([{"type": "text", "text": text}]))),
            details: None,
            expected_revision: None,
            origin: Some(Json::adopt("{\"turn\":1}")),
        }))
    }

    fn read(&self, after: Option<FeedPlace>) -> Vec<(FeedPlace, Event)> {
        with_view(&self.store, |view| page(view, after, ALL, &|_| true)).unwrap().events
    }

    fn edge(&self) -> FeedEdge {
        with_view(&self.store, |view| view.feed_edge()).unwrap()
    }

    fn kinds(&self, after: Option<FeedPlace>) -> Vec<(u64, EventKind)> {
        self.read(after).into_iter().map(|(place, event)| (place.index, event.kind())).collect()
    }
}

#[test]
fn what_nothing_changed_since_is_read_exactly_as_it_was_published() {
    let mut run = Run::default();
    run.ensure("s");
    let mut published = run.append("s", "a");
    published.extend(run.update("s", "a", "b"));
    published.extend(run.run(Command::SetStatus(SetStatus {
        session_id: "s".into(),
        status: SessionStatus::Error,
        reason: Some("why".to_owned()),
    })));
    published.extend(run.run(Command::SetMeta(SetMeta {
        session_id: "s".into(),
        title: Some("new".to_owned()),
        description: None,
        metadata: None,
    })));
    // message-added shows the new content by now, so compare from the update on.
    let read: Vec<Event> = run.read(Some(place(2, 0))).into_iter().map(|(_, event)| event).collect();
    assert_eq!(read, published[1..]);
    let payloads: Vec<String> = read.iter().map(|event| event.payload().text().to_owned()).collect();
    assert_eq!(payloads, published[1..].iter().map(|event| event.payload().text().to_owned()).collect::<Vec<_>>());
}

#[test]
fn a_replaced_update_is_left_out_and_the_last_one_never() {
    let mut run = Run::default();
    run.ensure("s");
    run.append("s", "a");
    for text in ["1", "2", "3"] {
        run.update("s", "a", text);
    }
    assert_eq!(
        run.kinds(None),
        [(1, EventKind::Created), (2, EventKind::MessageAdded), (5, EventKind::MessageUpdated)]
    );
    let (_, last) = run.read(None).pop().unwrap();
    assert_eq!(last.seq, 5);
    assert!(matches!(&last.happened, Happened::MessageUpdated { revision: 3, message, .. }
        if message.body.text().contains("\"3\"")));
}

#[test]
fn of_a_deleted_session_only_the_deletion_is_left_also_when_its_id_lives_again() {
    let mut run = Run::default();
    run.ensure("s");
    run.append("s", "a");
    run.run(Command::Delete(DeleteSession { session_id: "s".into() }));
    assert_eq!(run.kinds(None), [(3, EventKind::Deleted)]);
    let (_, deleted) = run.read(None).pop().unwrap();
    assert_eq!(deleted.metadata, json!({"tenant": "s"}).as_object().cloned());
    run.ensure("s");
    run.append("s", "a");
    assert_eq!(run.kinds(None), [(3, EventKind::Deleted), (4, EventKind::Created), (5, EventKind::MessageAdded)]);
}

#[test]
fn a_trim_drops_lines_and_tombs_and_counts_what_is_left() {
    let mut run = Run::default();
    assert_eq!(run.edge(), FeedEdge::default());
    run.ensure("s");
    run.ensure("t");
    run.run(Command::Delete(DeleteSession { session_id: "s".into() }));
    run.run(Command::Delete(DeleteSession { session_id: "t".into() }));
    run.ensure("u");
    let before = run.edge();
    assert_eq!((before.trimmed, before.newest), (Some(place(0, u32::MAX)), Some(place(5, 0))));
    run.run(Command::Feed(FeedOrder::Trim { upto: place(3, 0) }));
    let after = run.edge();
    assert_eq!((after.trimmed, after.newest), (Some(place(3, 0)), Some(place(5, 0))));
    let lines = with_view(&run.store, |view| view.feed_records(None, 9)).unwrap();
    assert_eq!(lines.iter().map(|(place, _)| place.index).collect::<Vec<_>>(), [4, 5]);
    let kept: u64 = lines.iter().map(|(_, line)| feed_record::size(line)).sum();
    assert_eq!(after.bytes, kept);
    with_view(&run.store, |view| {
        assert_eq!(view.deleted_at(&"s".into()), Ok(None));
        assert_eq!(view.deleted_at(&"t".into()), Ok(Some(place(4, 0))));
    });
    // An older trim that arrives late changes nothing.
    run.run(Command::Feed(FeedOrder::Trim { upto: place(2, 0) }));
    assert_eq!(run.edge(), after);
}

#[test]
fn a_cursor_never_goes_back_and_has_a_name() {
    let mut run = Run::default();
    let at = |index| Position { group: 0, index, ordinal: 0 };
    let delivered = |index| Command::Feed(FeedOrder::Delivered { attach: "engine".to_owned(), position: at(index) });
    for (index, expected) in [(5, 5), (3, 5), (8, 8)] {
        run.run(delivered(index));
        assert_eq!(with_view(&run.store, |view| view.cursor("engine")), Ok(Some(at(expected))));
    }
    assert_eq!(with_view(&run.store, |view| view.cursor("other")), Ok(None));
    run.run(Command::Feed(FeedOrder::Delivered { attach: "engine#b\u{0}".to_owned(), position: at(9) }));
    run.run(Command::Feed(FeedOrder::Delivered { attach: "engines".to_owned(), position: at(2) }));
    let named = |starting: &str| with_view(&run.store, |view| view.cursors(starting)).unwrap();
    assert_eq!(named("engine#"), [("engine#b\u{0}".to_owned(), at(9))]);
    assert_eq!(named("engine").len(), 3);
    run.run(Command::Feed(FeedOrder::Detached { attach: "engine#b\u{0}".to_owned() }));
    run.run(Command::Feed(FeedOrder::Detached { attach: "unknown".to_owned() }));
    assert_eq!(with_view(&run.store, |view| view.cursors("engine#")), Ok(Vec::new()));
    let nameless = Command::Feed(FeedOrder::Delivered { attach: String::new(), position: at(1) });
    let stamp = Stamp { at_ms: 1, seed: 0 };
    let stamped = Stamped { stamp, request_id: RequestId::NONE, is_retry: false, scope: None, command: nameless };
    let outcome = with_view(&run.store, |view| apply(view, &stamped)).unwrap();
    assert!(!matches!(outcome.answer, Ok(Answer::Stored)), "{:?}", outcome.answer);
}

#[test]
fn pages_are_bounded_and_together_say_everything() {
    let mut run = Run::default();
    run.ensure("s");
    for n in 0..10 {
        run.append("s", &n.to_string());
    }
    let all = run.read(None);
    for limits in [FeedLimits { records: 3, ..ALL }, FeedLimits { body_bytes: 1, ..ALL }] {
        let (mut after, mut read) = (None, Vec::new());
        loop {
            let page = with_view(&run.store, |view| page(view, after, limits, &|_| true)).unwrap();
            assert!(page.events.len() <= 3);
            read.extend(page.events);
            after = page.upto.or(after);
            if !page.more {
                break;
            }
        }
        assert_eq!(read, all);
    }
}

#[test]
fn what_nothing_came_before_is_not_missing() {
    let mut run = Run { index: 41, ..Run::default() };
    run.ensure("s");
    assert_eq!(run.edge().trimmed, Some(FeedPlace::BEGINNING));
    // The first command may have no event.
    let mut quiet = Run { index: 41, ..Run::default() };
    quiet.store.commit(&[Change::Clock(7)], Bytes::new()).unwrap();
    quiet.ensure("s");
    assert_eq!(quiet.edge().trimmed, Some(FeedPlace::BEGINNING));
    // A state that is older than its feed has no record of earlier events.
    let mut older = Run { index: 41, ..Run::default() };
    let pairs = vec![Ok((clock::key(), clock::encode(7)))];
    older.store.replace(Box::new(pairs.into_iter()), Bytes::new()).unwrap();
    older.ensure("s");
    assert_eq!(older.edge().trimmed, Some(place(41, u32::MAX)));
}

#[test]
fn a_cursor_that_is_set_before_the_first_event_is_no_history() {
    let mut run = Run { index: 7, ..Run::default() };
    for index in 1..=3 {
        let position = Position { group: 0, index, ordinal: 0 };
        run.run(Command::Feed(FeedOrder::Delivered { attach: "engine".to_owned(), position }));
        assert_eq!(run.edge().trimmed, Some(FeedPlace::BEGINNING), "a reader may start from any place");
    }
    run.ensure("s");
    assert_eq!(run.edge().trimmed, Some(FeedPlace::BEGINNING));
    assert_eq!(run.read(Some(place(7, u32::MAX))).len(), 1);
}

#[test]
fn only_lines_that_are_wanted_are_made_whole() {
    let mut run = Run::default();
    run.ensure("s");
    run.ensure("t");
    run.append("s", "a");
    run.append("t", "b");
    let wanted = |line: &Record| line.session_id.as_str() == "t";
    let found = with_view(&run.store, |view| page(view, None, ALL, &wanted)).unwrap();
    assert_eq!(found.events.iter().map(|(place, _)| place.index).collect::<Vec<_>>(), [2, 4]);
    assert_eq!((found.upto, found.more), (Some(place(4, 0)), false));
}
