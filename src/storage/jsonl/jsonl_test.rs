//! The laws of `JsonlDir`: it reads back what was written, also after a kill and after manual edits of the files.

use std::ops::ControlFlow;

use proptest::prelude::*;

use super::*;
use crate::machine::apply::append::AppendEntry;
use crate::machine::apply::create::CreateSession;
use crate::machine::apply::delete::DeleteSession;
use crate::machine::apply::ensure::EnsureSession;
use crate::machine::apply::set_active_leaf::SetActiveLeaf;
use crate::machine::apply::set_status::SetStatus;
use crate::machine::apply::store::StoreWrite;
use crate::machine::change::SessionChange;
use crate::machine::entry::{Body, Entry, SessionEntry};
use crate::machine::ids::RequestId;
use crate::machine::json::List;
use crate::machine::message::{AgentMessage, ContentBlock, Message};
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;
use crate::machine::{Command, Stamped, apply};
use crate::storage::state::key::Key;
use crate::storage::state::kv::{Kv, Layer};
use crate::storage::state::memory::Tree;
use crate::storage::state::{Encoded, Records, write};

const META: &str = r#"{"type":"meta","meta":{"session_id":"s","title":"T","description":"","status":"idle","message_count":7,"metadata":{"team":"red"},"created_at":10,"updated_at":20}}"#;
const ROOT: &str = r#"{"type":"entry","entry":{"kind":"message","id":"a","timestamp":11,"revision":0,"message":{"role":"user","content":[{"type":"text","text":"hi"}],"timestamp":11}}}"#;
const CHILD: &str = r#"{"type":"entry","entry":{"kind":"custom","id":"b","parent_id":"a","timestamp":12,"custom_type":"compaction","data":{"n":1}}}"#;
const LEAF: &str = r#"{"type":"leaf","entry_id":"b"}"#;

fn file(dir: &Path, lines: &[&str]) {
    fs::write(dir.join("s.jsonl"), lines.join("\n") + "\n").unwrap();
}

fn open(dir: &Path) -> (JsonlDir, Tree) {
    let (files, state) = JsonlDir::open(dir).unwrap();
    let mut tree = Tree::default();
    tree.merge(state);
    (files, tree)
}

/// Reopens the directory and reads the state.
fn reopened<R>(dir: &Path, look: impl FnOnce(&dyn View) -> R) -> R {
    let (_files, tree) = open(dir);
    look(&Records::new(&tree))
}

fn ids(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.id.as_str()).collect()
}

fn entry(id: &str, parent_id: Option<&str>) -> Change {
    let message = AgentMessage::User { content: List::of(&[ContentBlock::Text { text: id.to_owned() }]), timestamp: 1 };
    let json = SessionEntry::Message {
        id: id.into(),
        parent_id: parent_id.map(Into::into),
        timestamp: 1,
        revision: 0,
        origin: None,
        message,
    };
    Change::put_entry(&"s".into(), json.into())
}

fn meta(session_id: &str) -> Change {
    Change::put_meta(SessionMeta {
        session_id: session_id.into(),
        title: String::new(),
        description: String::new(),
        status: SessionStatus::Idle,
        status_reason: None,
        message_count: 0,
        metadata: None,
        forked_from: None,
        created_at: 1,
        updated_at: 1,
    })
}

#[test]
fn a_file_written_by_hand_opens() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), &[META, CHILD, ROOT, LEAF]);
    reopened(dir.path(), |view| {
        let meta = view.meta(&"s".into()).unwrap().unwrap();
        assert_eq!((meta.title.as_str(), meta.message_count, meta.updated_at), ("T", 1, 20));
        assert_eq!(view.leaf(&"s".into()).unwrap(), Some("b".into()));
        let child = view.entry(&"s".into(), &"b".into()).unwrap().unwrap();
        assert_eq!(child.place.map(|place| (place.depth, place.jump)), Some((1, "a".into())));
        assert_eq!(view.clock_ms(), Ok(20));
    });
}

#[test]
fn the_lines_we_write_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let (mut files, _) = open(dir.path());
    let changes = [meta("s"), entry("a", None), Change::set_leaf(&"s".into(), "a".into()), Change::Clock(1)];
    files.write(&changes).unwrap();
    files.sync().unwrap();
    let golden = [
        r#"{"type":"entry","entry":{"kind":"message","message":{"role":"user","content":[{"type":"text","text":"a"}],"timestamp":1},"id":"a","timestamp":1,"revision":0}}"#,
        r#"{"type":"leaf","entry_id":"a"}"#,
        r#"{"type":"meta","meta":{"session_id":"s","title":"","description":"","status":"idle","message_count":0,"created_at":1,"updated_at":1}}"#,
        "",
    ];
    assert_eq!(fs::read_to_string(dir.path().join("s.jsonl")).unwrap(), golden.join("\n"));
}

#[test]
#[cfg(not(windows))]
fn the_name_of_every_directory_that_it_creates_is_durable_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("there")).unwrap();
    let sessions = dir.path().join("there/new/newer/sessions");
    files::synced::take();
    let (mut opened, _) = open(&sessions);
    // A name is durable once the directory that holds it is synced. The one above `there` has no new name.
    let mut synced = files::synced::take();
    synced.sort();
    assert_eq!(synced, ["there", "there/new", "there/new/newer"].map(|above| dir.path().join(above)));
    // The files in it have names too.
    opened.write(&[meta("s")]).unwrap();
    opened.sync().unwrap();
    assert_eq!(files::synced::take(), [sessions]);
}

#[test]
fn the_last_line_of_a_kind_wins() {
    let dir = tempfile::tempdir().unwrap();
    let renamed = META.replace("\"T\"", "\"U\"");
    let edited = ROOT.replace("hi", "ho").replace("\"revision\":0", "\"revision\":1");
    file(dir.path(), &[META, ROOT, &renamed, &edited, LEAF, r#"{"type":"leaf","entry_id":"a"}"#]);
    reopened(dir.path(), |view| {
        assert_eq!(view.meta(&"s".into()).unwrap().unwrap().title, "U");
        let root = view.entry(&"s".into(), &"a".into()).unwrap().unwrap();
        assert_eq!(root.revision, 1);
        assert!(matches!(root.body, Body::Message(Message { body, .. }) if body.text().contains("ho")));
        assert_eq!(view.leaf(&"s".into()).unwrap(), Some("a".into()));
    });
}

#[test]
fn a_line_that_cannot_be_read_takes_nothing_else_down() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), &[META, ROOT, "{\"type\":\"entry\"", "", "\u{0}garbage", r#"{"type":"new kind"}"#, CHILD, LEAF]);
    fs::write(dir.path().join("other.jsonl"), b"\xff\xfe\n").unwrap();
    reopened(dir.path(), |view| {
        assert_eq!(ids(&view.entries(&"s".into()).unwrap()), ["a", "b"]);
        assert_eq!(view.meta(&"other".into()).unwrap(), None);
    });
}

#[test]
fn a_leaf_whose_entry_was_lost_gives_way_to_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), &[META, ROOT, r#"{"type":"leaf","entry_id":"a"}"#, &CHILD[..40], LEAF]);
    reopened(dir.path(), |view| assert_eq!(view.leaf(&"s".into()).unwrap(), Some("a".into())));
}

#[test]
fn a_torn_last_line_never_swallows_the_next_one() {
    for cut in 1..ROOT.len() {
        if cut % 17 != 1 {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("s.jsonl"), format!("{META}\n{}", &ROOT[..cut])).unwrap();
        let (mut files, _) = open(dir.path());
        files.write(&[entry("n", None)]).unwrap();
        files.sync().unwrap();
        drop(files);
        reopened(dir.path(), |view| {
            assert_eq!(ids(&view.entries(&"s".into()).unwrap()), ["n"], "cut at {cut}");
            assert!(view.meta(&"s".into()).unwrap().is_some());
        });
    }
}

#[test]
fn a_whole_last_line_without_its_end_counts() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("s.jsonl"), format!("{META}\n{ROOT}")).unwrap();
    let (mut files, _) = open(dir.path());
    files.write(&[entry("n", Some("a"))]).unwrap();
    files.sync().unwrap();
    drop(files);
    reopened(dir.path(), |view| assert_eq!(ids(&view.entries(&"s".into()).unwrap()), ["a", "n"]));
}

#[test]
fn a_deleted_session_has_no_file() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), &[META, ROOT, CHILD, LEAF]);
    let (mut files, _) = open(dir.path());
    let id = SessionId::from("s");
    let deletes = [
        Change::Session(id.clone(), SessionChange::DeleteMeta),
        Change::Session(id.clone(), SessionChange::DeleteEntries),
        Change::Session(id.clone(), SessionChange::DeleteLeaf),
    ];
    files.write(&deletes).unwrap();
    files.sync().unwrap();
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|found| found.unwrap().file_name()).collect();
    assert_eq!(left, ["LOCK"]);
    // Deleting missing records changes nothing.
    files.write(&deletes).unwrap();
    files.sync().unwrap();
}

#[test]
fn a_session_made_anew_in_the_same_batch_has_nothing_of_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), &[META, ROOT, CHILD, LEAF]);
    let (mut files, _) = open(dir.path());
    let id = SessionId::from("s");
    let changes = [
        entry("lost", None),
        Change::Session(id.clone(), SessionChange::DeleteMeta),
        Change::Session(id.clone(), SessionChange::DeleteEntries),
        Change::Session(id.clone(), SessionChange::DeleteLeaf),
        meta("s"),
        entry("n", None),
    ];
    files.write(&changes).unwrap();
    files.sync().unwrap();
    drop(files);
    reopened(dir.path(), |view| {
        assert_eq!(ids(&view.entries(&id).unwrap()), ["n"]);
        assert_eq!(view.leaf(&id).unwrap(), None);
        assert_eq!(view.meta(&id).unwrap().unwrap().title, "");
    });
}

#[test]
fn raw_deletes_remove_only_their_kind_and_the_last_one_the_file() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), &[META, ROOT, CHILD, LEAF]);
    let id = SessionId::from("s");
    let (mut files, _) = open(dir.path());
    let mut delete = |change: Change| {
        files.write(&[change]).unwrap();
        files.sync().unwrap();
        fs::read_to_string(dir.path().join("s.jsonl")).unwrap_or_default()
    };
    let text = delete(Change::Session(id.clone(), SessionChange::DeleteLeaf));
    assert!(!text.contains("\"leaf\"") && text.contains("\"meta\"") && text.contains("\"entry\""), "{text}");
    let text = delete(Change::Session(id.clone(), SessionChange::DeleteEntries));
    assert!(!text.contains("\"entry\"") && text.contains("\"meta\""), "{text}");
    delete(Change::Session(id, SessionChange::DeleteMeta));
    assert!(!dir.path().join("s.jsonl").exists());
}

#[test]
fn a_write_that_fails_leaves_every_file_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), &[META, ROOT]);
    let before = fs::read(dir.path().join("s.jsonl")).unwrap();
    let (mut files, _) = open(dir.path());
    // A directory in the place of its file fails every write to session "z", after "s" and "new" were written.
    fs::create_dir(dir.path().join("z.jsonl")).unwrap();
    let changes = [entry("n", Some("a")), meta("new"), meta("z")];
    for _ in 0..2 {
        assert!(files.write(&changes).is_err());
        assert_eq!(fs::read(dir.path().join("s.jsonl")).unwrap(), before);
        assert!(!dir.path().join("new.jsonl").exists());
    }
    fs::remove_dir(dir.path().join("z.jsonl")).unwrap();
    files.write(&changes).unwrap();
    files.sync().unwrap();
    drop(files);
    reopened(dir.path(), |view| {
        assert_eq!(ids(&view.entries(&"s".into()).unwrap()), ["a", "n"]);
        assert!(view.meta(&"z".into()).unwrap().is_some());
    });
}

#[test]
fn rewritten_and_removed_files_come_back_when_the_batch_fails() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), &[META, ROOT, LEAF]);
    fs::write(dir.path().join("gone.jsonl"), META).unwrap();
    let before = fs::read(dir.path().join("s.jsonl")).unwrap();
    let (mut files, _) = open(dir.path());
    fs::create_dir(dir.path().join("z.jsonl")).unwrap();
    let gone = SessionId::from("gone");
    let changes = [
        Change::Session("s".into(), SessionChange::DeleteLeaf),
        Change::Session(gone.clone(), SessionChange::DeleteMeta),
        Change::Session(gone.clone(), SessionChange::DeleteEntries),
        Change::Session(gone, SessionChange::DeleteLeaf),
        meta("z"),
    ];
    assert!(files.write(&changes).is_err());
    assert_eq!(fs::read(dir.path().join("s.jsonl")).unwrap(), before);
    assert_eq!(fs::read_to_string(dir.path().join("gone.jsonl")).unwrap(), META);
}

#[test]
fn what_cannot_be_taken_back_stops_writing_until_it_can() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), &[META]);
    let before = fs::read(dir.path().join("s.jsonl")).unwrap();
    let (mut files, _) = open(dir.path());
    files.write(&[entry("n", None)]).unwrap();
    // The file cannot be reached when the write has to be undone.
    let away = dir.path().join("away");
    fs::rename(dir.path().join("s.jsonl"), &away).unwrap();
    files.undo_all();
    assert!(files.write(&[meta("other")]).is_err());
    fs::rename(&away, dir.path().join("s.jsonl")).unwrap();
    files.write(&[meta("other")]).unwrap();
    assert_eq!(fs::read(dir.path().join("s.jsonl")).unwrap(), before);
}

#[test]
fn leftovers_of_a_kill_are_removed_and_strange_names_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), &[META]);
    for name in [REWRITE_NAME, "removed-1", "not an id.jsonl", "notes.txt"] {
        fs::write(dir.path().join(name), "x").unwrap();
    }
    reopened(dir.path(), |view| assert!(view.meta(&"s".into()).unwrap().is_some()));
    assert!(!dir.path().join(REWRITE_NAME).exists() && !dir.path().join("removed-1").exists());
    assert!(dir.path().join("not an id.jsonl").exists() && dir.path().join("notes.txt").exists());
}

#[test]
fn a_session_may_be_named_like_a_file_of_ours() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["removed-", "removed-1", "removed-1.tmp", "rewrite", "rewrite.tmp", "batch.intent", "LOCK"];
    let (mut files, _) = open(dir.path());
    let all: Vec<Change> = names.into_iter().map(meta).collect();
    files.write(&all).unwrap();
    files.sync().unwrap();
    drop(files);
    for _ in 0..2 {
        reopened(dir.path(), |view| {
            for name in names {
                assert!(view.meta(&name.into()).unwrap().is_some(), "{name}");
            }
        });
    }
}

/// Eight entries in one batch, as `session::append-many` writes them.
fn batch_of_eight() -> Vec<Change> {
    let id = |n: u32| format!("n{n}");
    let mut changes: Vec<Change> =
        (1..=8).map(|n| entry(&id(n), Some(&if n == 1 { "a".to_owned() } else { id(n - 1) }))).collect();
    changes.extend([Change::set_leaf(&"s".into(), id(8).into()), meta("s")]);
    changes
}

#[test]
fn a_batch_is_there_whole_or_not_at_all_wherever_a_kill_cuts_it() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), &[META, ROOT, r#"{"type":"leaf","entry_id":"a"}"#]);
    let path = dir.path().join("s.jsonl");
    let before = fs::read(&path).unwrap();
    let (mut files, _) = open(dir.path());
    files.write(&batch_of_eight()).unwrap();
    // The process is killed here: the batch is written and not synced, and nothing is tidied up.
    drop(files);
    let (after, intent) = (fs::read(&path).unwrap(), fs::read(dir.path().join(intent::NAME)).unwrap());
    let newlines = (before.len()..after.len()).filter(|at| after[*at] == b'\n').map(|at| at + 1);
    let cuts = (before.len()..after.len()).step_by(41).chain(newlines).chain([after.len()]);
    for cut in cuts {
        fs::write(&path, &after[..cut]).unwrap();
        fs::write(dir.path().join(intent::NAME), &intent).unwrap();
        let whole = cut == after.len();
        reopened(dir.path(), |view| {
            let id = SessionId::from("s");
            assert_eq!(view.entries(&id).unwrap().len(), if whole { 9 } else { 1 }, "cut at {cut}");
            assert_eq!(view.leaf(&id).unwrap(), Some(if whole { "n8".into() } else { "a".into() }), "cut at {cut}");
        });
    }
    // A torn intent says nothing: its batch was not begun.
    fs::write(&path, &after).unwrap();
    fs::write(dir.path().join(intent::NAME), &intent[..intent.len() - 1]).unwrap();
    reopened(dir.path(), |view| assert_eq!(view.entries(&"s".into()).unwrap().len(), 9));
}

#[test]
fn an_intent_that_was_carried_out_touches_nothing_later() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), &[META, ROOT]);
    let (mut files, _) = open(dir.path());
    files.write(&batch_of_eight()).unwrap();
    files.sync().unwrap();
    files.write(&[entry("later", Some("n8"))]).unwrap();
    files.sync().unwrap();
    drop(files);
    // Somebody edits the file by hand.
    let path = dir.path().join("s.jsonl");
    let edited = fs::read_to_string(&path).unwrap().replace("\"n3\"", "\"N3\"");
    fs::write(&path, &edited).unwrap();
    reopened(dir.path(), |view| assert_eq!(view.entries(&"s".into()).unwrap().len(), 10));
    assert_eq!(fs::read_to_string(&path).unwrap(), edited);
}

#[test]
fn open_handles_stay_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let (mut files, _) = open(dir.path());
    let all: Vec<Change> = (0..HANDLES_MAX + 50).map(|n| meta(&format!("s{n}"))).collect();
    files.write(&all).unwrap();
    files.sync().unwrap();
    assert!(files.handles.len() <= HANDLES_MAX);
    drop(files);
    reopened(dir.path(), |view| assert!(view.meta(&"s170".into()).unwrap().is_some()));
}

#[test]
fn a_directory_serves_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let _held = open(dir.path());
    assert_eq!(JsonlDir::open(dir.path()).map(|_| ()).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
}

fn any_command() -> impl Strategy<Value = Command> {
    let session = |n: u8| SessionId::from(format!("s/{n}"));
    let id = |n: u8| format!("e{n}");
    let create = || CreateSession { title: "t".to_owned(), description: String::new(), metadata: None };
    prop_oneof![
        3 => (0u8..3).prop_map(move |s| Command::Ensure(EnsureSession { session_id: session(s), session: create() })),
        8 => (0u8..3, 0u8..9, any::<bool>()).prop_map(move |(s, e, message)| {
            let body = match (message, entry("x", None)) {
                (true, Change::Session(_, SessionChange::PutEntry(entry))) => entry.body,
                _ => Body::Custom { custom_type: "c".to_owned(), data: crate::machine::json::Json::adopt("[1]") },
            };
            let (session_id, entry_id) = (session(s), Some(id(e).into()));
            Command::Append(AppendEntry { session_id, entry_id, parent_id: None, origin: None, body })
        }),
        2 => (0u8..3, 0u8..9).prop_map(move |(s, e)| {
            Command::SetActiveLeaf(SetActiveLeaf { session_id: session(s), entry_id: id(e).into() })
        }),
        1 => (0u8..3).prop_map(move |s| Command::SetStatus(SetStatus {
            session_id: session(s), status: SessionStatus::Done, reason: None,
        })),
        1 => (0u8..3).prop_map(move |s| Command::Delete(DeleteSession { session_id: session(s) })),
        1 => (0u8..3).prop_map(move |s| Command::Store(StoreWrite::Session(session(s), SessionChange::DeleteLeaf))),
    ]
}

/// The part of a state that the files hold: without event sequences and the clock.
fn kept(tree: &Tree) -> Vec<(Vec<u8>, bytes::Bytes)> {
    let mut pairs = Vec::new();
    tree.scan(&[], None, &mut |key, value| {
        match Key::parse(key).unwrap() {
            Key::Seq(_) | Key::Clock | Key::Checkpoint | Key::Answer(_) => {}
            Key::FeedEdge | Key::Feed(_) | Key::Tombstone(_) | Key::Cursor(_) => {}
            Key::EntryIn(..) | Key::Home(_) | Key::Leftover(_) | Key::Fork { .. } => {}
            Key::SessionRecord(..) | Key::RecordGeneration(_) | Key::RecordLeftover(_) | Key::ClusterRecord(_) => {}
            Key::Meta(_) | Key::Leaf(_) | Key::Entry(..) | Key::List(..) => pairs.push((key.to_vec(), value.clone())),
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    pairs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn reopening_gives_the_state_that_was_written(
        batches in proptest::collection::vec(proptest::collection::vec(any_command(), 1..6), 1..12),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (mut files, mut tree) = open(dir.path());
        let mut at_ms = 1000;
        for batch in batches {
            let (mut changes, mut over) = (Vec::new(), Changed::new());
            for command in batch {
                at_ms += 1;
                let stamped = Stamped { stamp: Stamp { at_ms, seed: at_ms as u128 }, request_id: RequestId::NONE, is_retry: false, scope: None, command };
                let seen = Layer { over: &over, base: &tree };
                let outcome = apply(&Records::new(&seen), &stamped).unwrap();
                let written = write(&seen, &Encoded::new(&outcome.changes)).unwrap();
                over.extend(written);
                changes.extend(outcome.changes);
            }
            files.write(&changes).unwrap();
            files.sync().unwrap();
            tree.merge(over);
        }
        drop(files);
        let (_files, read) = open(dir.path());
        prop_assert_eq!(kept(&read), kept(&tree));
    }
}
