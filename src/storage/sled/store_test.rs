//! The laws of `SledStore`: it behaves like a `MemoryStore` and survives the end of its process at any time.

use std::fs;

use proptest::prelude::*;
use serde_json::json;

use super::section_test::{any_path, pages};
use super::*;
use crate::machine::Answer;
use crate::machine::beside::{RecordKey, Space};
use crate::machine::change::{AnswerChange, Change, FeedChange, SessionChange};
use crate::machine::entry::{Body, Entry};
use crate::machine::feed_record::{Record, Recorded};
use crate::machine::ids::{FeedPlace, RequestId, SessionId};
use crate::machine::json::Json;
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::machine::view::{Facet, ListOrder};
use crate::storage::state::kv::Changed;
use crate::storage::state::memory::MemoryStore;
use crate::storage::state::{clock, write};
use crate::storage::with_view;

pub fn meta(session: u8, updated_at: i64) -> Change {
    Change::put_meta(SessionMeta {
        session_id: format!("s{session}").into(),
        title: "t".to_owned(),
        description: String::new(),
        status: SessionStatus::Idle,
        status_reason: None,
        message_count: 0,
        metadata: json!({"team": session % 2}).as_object().cloned(),
        forked_from: None,
        created_at: 1,
        updated_at,
    })
}

pub fn entry(session: u8, entry: u8, data: &str) -> Change {
    let body = Body::Custom { custom_type: "c".to_owned(), data: Json::print(&data) };
    let id = format!("e{entry}").into();
    let entry = Entry { id, parent_id: None, timestamp: 1, revision: 0, origin: None, body, place: None };
    Change::put_entry(&format!("s{session}").into(), entry)
}

pub fn checkpoint(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Everything a store holds, the checkpoint included.
pub fn content(store: &dyn Store) -> Vec<(Vec<u8>, Bytes)> {
    let frozen = store.freeze().unwrap();
    let mut pairs: Vec<_> = frozen.pairs.collect::<Result<_, _>>().unwrap();
    assert!(pairs.windows(2).all(|pair| pair[0].0 < pair[1].0), "pairs come in key order, each once");
    pairs.extend(frozen.checkpoint.map(|checkpoint| (checkpoint::key(), checkpoint)));
    pairs
}

/// A state with two commits, closed, and the same state in memory.
fn prepared(dir: &Path) -> MemoryStore {
    let (store, twin) = (SledStore::open(dir).unwrap(), MemoryStore::new());
    for target in [&store as &dyn Store, &twin] {
        target.commit(&[meta(1, 1), entry(1, 1, "old"), entry(1, 2, "gone")], checkpoint("1")).unwrap();
        target.commit(&[meta(2, 2)], checkpoint("2")).unwrap();
    }
    twin
}

/// The keys of the next commit, which is also made in `twin`.
fn next_layer(twin: &MemoryStore) -> Changed {
    let changes =
        [Change::Session("s1".into(), SessionChange::DeleteEntries), entry(1, 1, "new"), meta(1, 3), meta(3, 3)];
    let mut layer = write(&*twin.tree(), &Encoded::new(&changes)).unwrap();
    layer.insert(checkpoint::key(), Some(checkpoint("3")));
    twin.commit(&changes, checkpoint("3")).unwrap();
    layer
}

#[test]
fn what_was_committed_is_there_after_a_clean_close() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    let store = SledStore::open(dir.path()).unwrap();
    assert_eq!(content(&store), content(&twin));
    assert_eq!(store.checkpoint().unwrap(), Some(checkpoint("2")));
}

#[test]
fn of_a_session_that_moves_often_only_its_last_place_is_written_down() {
    let dir = tempfile::tempdir().unwrap();
    let (store, twin) = (SledStore::open(dir.path()).unwrap(), MemoryStore::new());
    for round in 0..3 {
        for moved in 1..50 {
            for target in [&store as &dyn Store, &twin] {
                target.commit(&[meta(1, round * 100 + moved)], checkpoint("1")).unwrap();
            }
        }
        // Only the position that was flushed before must be deleted, in each of its three facets.
        let gone = store.shared.layers().active.values().filter(|value| value.is_none()).count();
        assert!(gone <= 3, "{gone} keys are to be deleted");
        flusher::flush(&store.shared).unwrap();
        assert_eq!(content(&store), content(&twin));
    }
}

#[test]
fn an_entry_that_was_read_before_is_read_as_the_last_commit_left_it() {
    let dir = tempfile::tempdir().unwrap();
    drop(prepared(dir.path()));
    let store = SledStore::open(dir.path()).unwrap();
    let read = |id: &str| {
        // Twice: the second read finds what the first one cached.
        let first = with_view(&store, |view| view.entry(&"s1".into(), &id.into())).unwrap();
        assert_eq!(with_view(&store, |view| view.entry(&"s1".into(), &id.into())).unwrap(), first);
        first.map(|entry| match entry.body {
            Body::Custom { data, .. } => data.text().to_owned(),
            Body::Message(message) => message.body.text().to_owned(),
        })
    };
    assert_eq!(read("e1").as_deref(), Some("\"old\""));
    store.commit(&[entry(1, 1, "new")], checkpoint("3")).unwrap();
    assert_eq!(read("e1").as_deref(), Some("\"new\""));
    assert_eq!(read("e2").as_deref(), Some("\"gone\""));
    store.commit(&[Change::Session("s1".into(), SessionChange::DeleteEntries)], checkpoint("4")).unwrap();
    assert_eq!((read("e1"), read("e2")), (None, None));
    let other = MemoryStore::new();
    other.commit(&[entry(1, 1, "replaced")], checkpoint("5")).unwrap();
    store.replace(other.freeze().unwrap().pairs, checkpoint("5")).unwrap();
    assert_eq!(read("e1").as_deref(), Some("\"replaced\""));
}

#[test]
fn a_flush_killed_before_its_file_has_its_name_never_happened() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    fs::write(dir.path().join("gen-1/flush.tmp"), b"half a layer").unwrap();
    assert_eq!(content(&SledStore::open(dir.path()).unwrap()), content(&twin));
}

#[test]
fn a_flush_killed_at_any_point_after_that_is_completed_at_open() {
    for share_put in [0, 1, 5, usize::MAX] {
        let dir = tempfile::tempdir().unwrap();
        let twin = prepared(dir.path());
        let layer = next_layer(&twin);
        {
            let base = Base::open_current(dir.path()).unwrap();
            let groups = base.plan(&layer).unwrap();
            flush_file::write(&dir.path().join("gen-1/flush.kv"), &groups).unwrap();
            base.put_groups(groups.into_iter().take(share_put).map(Ok)).unwrap();
        }
        let store = SledStore::open(dir.path()).unwrap();
        assert_eq!(content(&store), content(&twin), "{share_put} groups were put before the kill");
        assert!(!dir.path().join("gen-1/flush.kv").exists());
    }
}

#[test]
fn a_damaged_flush_file_asks_for_a_rebuild() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    let path = dir.path().join("gen-1/flush.kv");
    flush_file::write(&path, &[next_layer(&twin).into_iter().collect()]).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(matches!(SledStore::open(dir.path()), Err(OpenFault::Damaged(_))));

    SledStore::wipe(dir.path()).unwrap();
    let store = SledStore::open(dir.path()).unwrap();
    assert_eq!(content(&store), []);
    assert_eq!(store.checkpoint().unwrap(), None);
}

#[test]
fn sled_files_that_make_no_sense_ask_for_a_rebuild() {
    let dir = tempfile::tempdir().unwrap();
    prepared(dir.path());
    let conf = dir.path().join("gen-1/sled/conf");
    fs::write(&conf, b"nonsense, and more than a few bytes of it").unwrap();
    let opened = SledStore::open(dir.path()).map(|_| "opened");
    assert!(matches!(opened, Err(OpenFault::Damaged(_))), "{opened:?}");
}

#[test]
fn a_newer_format_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    prepared(dir.path());
    let text = "session-manager state 4\n1\n";
    let sum = crc32fast::hash(text.as_bytes());
    fs::write(dir.path().join("CURRENT"), format!("{text}{sum:08x}\n")).unwrap();
    assert!(matches!(SledStore::open(dir.path()), Err(OpenFault::Newer(_))));
    assert!(dir.path().join("gen-1/sled/db").exists());
}

#[test]
fn an_earlier_layout_asks_for_a_rebuild() {
    let dir = tempfile::tempdir().unwrap();
    prepared(dir.path());
    fs::write(dir.path().join("CURRENT"), b"session-manager state 1\n1\n7ae2fea4\n").unwrap();
    let opened = SledStore::open(dir.path()).map(|_| "opened");
    assert!(matches!(&opened, Err(OpenFault::Damaged(why)) if why.contains("an earlier layout")), "{opened:?}");
}

#[test]
fn a_state_without_body_files_opens_as_it_is_and_gets_them() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    fs::write(dir.path().join("CURRENT"), b"session-manager state 2\n1\n6857514a\n").unwrap();
    let store = SledStore::open(dir.path()).unwrap();
    assert_eq!(content(&store), content(&twin));
    assert!(fs::read_to_string(dir.path().join("CURRENT")).unwrap().starts_with("session-manager state 3\n"));
    for target in [&store as &dyn Store, &twin] {
        target.commit(&[entry(1, 3, &"long ".repeat(100))], checkpoint("3")).unwrap();
    }
    drop(store);
    assert!(dir.path().join("gen-1/bodies-1").exists());
    assert_eq!(content(&SledStore::open(dir.path()).unwrap()), content(&twin));
}

/// Body files that are in the book of an open store.
#[test]
fn the_space_of_dead_bodies_is_freed_and_live_ones_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (store, twin) = (SledStore::open(dir.path()).unwrap(), MemoryStore::new());
    let mut random = 1_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b' ' + (random >> 58) as u8)
    };
    // Every body is in a chunk of its own, so the same text in all of them does not pack better.
    let text: String = (0..180_000).map(|_| next()).filter(|letter| *letter != '\\').collect();
    // 58 MiB that hardly pack, in four commits: a body file is full and half of it dies.
    for n in 0..4 {
        let changes: Vec<_> = (0..80).map(|e| entry(n, e, &text)).collect();
        for target in [&store as &dyn Store, &twin] {
            target.commit(&changes, checkpoint(&n.to_string())).unwrap();
        }
        flush_now(&store);
    }
    let body_files = || store.shared.layers().base.bodies().book().keys().copied().collect::<Vec<u32>>();
    let full = body_files();
    assert!(full.len() >= 2, "{full:?}");
    let frozen = (store.freeze().unwrap(), twin.freeze().unwrap());
    for target in [&store as &dyn Store, &twin] {
        let gone = |s: &str| Change::Session(s.into(), SessionChange::DeleteEntries);
        target.commit(&[gone("s0"), gone("s2"), entry(1, 1, &"short".repeat(100))], checkpoint("5")).unwrap();
    }
    flush_now(&store);
    for _ in 0..40 {
        flusher::reclaim(&store.shared, false);
    }
    let kept = body_files();
    assert!(!kept.contains(&full[0]), "{kept:?}");
    let emptied = dir.path().join(format!("gen-1/bodies-{}", full[0]));
    assert!(emptied.exists(), "the freeze refers to it");
    compare(&mut vec![frozen]);
    flusher::reclaim(&store.shared, false);
    assert!(!emptied.exists());
    assert_eq!(content(&store), content(&twin));
    drop(store);
    assert_eq!(content(&SledStore::open(dir.path()).unwrap()), content(&twin));
}

#[test]
fn a_damaged_body_condemns_the_state_and_a_missing_file_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = SledStore::open(dir.path()).unwrap();
    store.commit(&[entry(1, 1, &"long ".repeat(100))], checkpoint("1")).unwrap();
    drop(store);
    let path = dir.path().join("gen-1/bodies-1");
    let mut bytes = fs::read(&path).unwrap();
    bytes[40] ^= 4;
    fs::write(&path, &bytes).unwrap();
    {
        let store = SledStore::open(dir.path()).unwrap();
        let fault = with_view(&store, |view| view.entry(&"s1".into(), &"e1".into())).unwrap_err();
        assert!(fault.0.contains("bodies-1"), "{fault}");
        assert!(store.commit(&[meta(1, 1)], checkpoint("2")).is_err());
    }
    assert!(matches!(SledStore::open(dir.path()), Err(OpenFault::Damaged(_))));
    fs::remove_file(dir.path().join("gen-1/damaged")).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(matches!(SledStore::open(dir.path()), Err(OpenFault::Damaged(_))));
}

#[test]
fn a_flipped_bit_in_current_asks_for_a_rebuild() {
    let dir = tempfile::tempdir().unwrap();
    prepared(dir.path());
    let path = dir.path().join("CURRENT");
    let good = fs::read(&path).unwrap();
    assert_eq!(good, b"session-manager state 3\n1\nd0eb362f\n");
    for at in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[at / 8] ^= 1 << (at % 8);
        fs::write(&path, bad).unwrap();
        let opened = SledStore::open(dir.path()).map(|_| ());
        assert!(matches!(opened, Err(OpenFault::Damaged(_))), "bit {at}: {opened:?}");
    }
    assert!(dir.path().join("gen-1/sled/db").exists(), "nothing was removed");
}

#[test]
fn a_snapshot_sled_did_not_finish_does_not_keep_it_from_opening() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    fs::write(dir.path().join("gen-1/sled/snap.00000000000000FF.generating"), b"half").unwrap();
    assert_eq!(content(&SledStore::open(dir.path()).unwrap()), content(&twin));
}

#[test]
fn a_state_is_open_once_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let _held = SledStore::open(dir.path()).unwrap();
    assert!(matches!(SledStore::open(dir.path()), Err(OpenFault::Busy(_))));
    assert!(SledStore::wipe(dir.path()).is_err());
}

#[test]
fn a_freeze_stays_the_same_while_commits_continue() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    let store = SledStore::open(dir.path()).unwrap();
    store
        .commit(&[entry(1, 1, "newer"), Change::Session("s1".into(), SessionChange::DeleteLeaf)], checkpoint("3"))
        .unwrap();
    twin.commit(&[entry(1, 1, "newer")], checkpoint("3")).unwrap();
    let expected = content(&twin);

    let frozen = store.freeze().unwrap();
    store.commit(&[Change::Session("s1".into(), SessionChange::DeleteEntries), meta(9, 9)], checkpoint("4")).unwrap();
    flush_now(&store);
    assert!(store.shared.layers().sealed.is_empty(), "a freeze does not block a flush");
    let mut pairs: Vec<_> = frozen.pairs.collect::<Result<_, _>>().unwrap();
    pairs.extend(frozen.checkpoint.map(|checkpoint| (checkpoint::key(), checkpoint)));
    assert_eq!(pairs, expected);

    twin.commit(&[Change::Session("s1".into(), SessionChange::DeleteEntries), meta(9, 9)], checkpoint("4")).unwrap();
    assert_eq!(content(&store), content(&twin));
}

/// Flushes all layers on this thread.
fn flush_now(store: &SledStore) {
    while flusher::flush(&store.shared).unwrap() {}
}

/// Limits so small that a few commits exceed all of them.
fn tight() -> Bounds {
    let slow_after = Duration::from_millis(5);
    Bounds { flush_bytes: 2 << 10, ahead_bytes: 8 << 10, undo_bytes: 1 << 10, piece_bytes: 200, slow_after }
}

fn undo_files(dir: &Path) -> usize {
    let names = fs::read_dir(dir.join("gen-1")).unwrap().map(|found| found.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(undo::PREFIX)).count()
}

#[test]
fn a_freeze_that_nobody_reads_stops_no_commit_and_takes_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (store, twin) = (SledStore::open_within(dir.path(), tight()).unwrap(), MemoryStore::new());
    let both: [&dyn Store; 2] = [&store, &twin];
    let round = |n: u8| {
        let text = n.to_string().repeat(200);
        (0..40).flat_map(|e| [entry(e % 5, e, &text), meta(e % 5, i64::from(n))]).collect::<Vec<_>>()
    };
    let commit = |changes: &[Change], text: &str| {
        both.iter().for_each(|store| store.commit(changes, checkpoint(text)).unwrap());
    };
    commit(&round(0), "0");
    flush_now(&store);
    let (slow, expected) = (store.freeze().unwrap(), twin.freeze().unwrap());

    // Fifty times the limit: the commits would block if the freeze stopped the flusher.
    for n in 1..40 {
        commit(&round(n), &n.to_string());
        flush_now(&store);
        assert!(store.shared.control().ahead_bytes() == 0);
    }
    commit(&[Change::Session("s1".into(), SessionChange::DeleteEntries), meta(9, 9)], "last");
    flush_now(&store);
    assert!(undo_files(dir.path()) > 0, "what changed under the freeze went to files");

    compare(&mut vec![(slow, expected)]);
    assert_eq!(undo_files(dir.path()), 0);
    assert_eq!(content(&store), content(&twin));
}

#[test]
fn a_commit_waits_for_a_slow_flush_however_long_it_takes() {
    let dir = tempfile::tempdir().unwrap();
    let store = SledStore::open_within(dir.path(), tight()).unwrap();
    let all: Vec<_> = (0..80).map(|e| entry(1, e, &"text".repeat(50))).collect();
    // Before the first commit, which wakes the flusher: it must not be done before the second.
    let stalled = store.shared.turn();
    store.commit(&all, checkpoint("1")).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| store.commit(&[meta(1, 1)], checkpoint("2")));
        // Many times the time after which it is reported.
        std::thread::sleep(20 * tight().slow_after);
        assert!(!waiting.is_finished());
        drop(stalled);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_raw_entry_counts_the_record_of_its_session_that_it_loads() {
    const SESSIONS: u8 = 100;
    let dir = tempfile::tempdir().unwrap();
    let store = SledStore::open(dir.path()).unwrap();
    let large = |session: u8| match meta(session, 1) {
        Change::Session(session_id, SessionChange::PutMeta(meta)) => {
            let metadata = json!({"text": "x".repeat(4 << 10)}).as_object().cloned();
            Change::Session(session_id, SessionChange::PutMeta(SessionMeta { metadata, ..meta }))
        }
        other => other,
    };
    let records: Vec<_> = (0..SESSIONS).map(large).chain([Change::Clock(1)]).collect();
    store.commit(&records, checkpoint("1")).unwrap();
    flush_now(&store);

    // The flusher must not seal what is counted here.
    let stalled = store.shared.turn();
    for session in 0..SESSIONS {
        store.commit(&[entry(session, 1, "tiny")], checkpoint("2")).unwrap();
    }
    let counted = store.shared.control().active_bytes;
    assert!(counted > usize::from(SESSIONS) * (4 << 10), "{counted} bytes for {SESSIONS} records of 4 KiB");
    // Counted once: the same sessions again add their entries only.
    for session in 0..SESSIONS {
        store.commit(&[entry(session, 2, "tiny")], checkpoint("3")).unwrap();
    }
    let again = store.shared.control().active_bytes - counted;
    assert!(again < usize::from(SESSIONS) * 1024, "{again} bytes for {SESSIONS} tiny entries");
    drop(stalled);
    flush_now(&store);
    assert_eq!(store.shared.control().active_bytes, 0);
}

#[test]
fn keys_a_freeze_has_passed_are_not_kept_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = SledStore::open_within(dir.path(), tight()).unwrap();
    let all: Vec<_> = (0..40).map(|e| entry(1, e, &"old".repeat(50))).collect();
    store.commit(&all, checkpoint("1")).unwrap();
    flush_now(&store);
    let mut frozen = store.freeze().unwrap();
    assert!(frozen.pairs.by_ref().all(|pair| pair.is_ok()));
    let all: Vec<_> = (0..40).map(|e| entry(1, e, &"new".repeat(50))).collect();
    store.commit(&all, checkpoint("2")).unwrap();
    flush_now(&store);
    assert_eq!(undo_files(dir.path()), 0);
}

#[test]
fn a_replacement_is_whole_and_lasts() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    next_layer(&twin);
    let store = SledStore::open(dir.path()).unwrap();
    store.commit(&[meta(7, 7)], checkpoint("old")).unwrap();
    let old_freeze = store.freeze().unwrap();
    store.replace(twin.freeze().unwrap().pairs, checkpoint("3")).unwrap();
    assert_eq!(content(&store), content(&twin));
    assert!(old_freeze.pairs.count() > 0, "a freeze of the old state stays readable");

    for target in [&store as &dyn Store, &twin] {
        target.commit(&[meta(5, 5)], checkpoint("4")).unwrap();
    }
    drop(store);
    let store = SledStore::open(dir.path()).unwrap();
    assert_eq!(content(&store), content(&twin));
    assert!(!dir.path().join("gen-1").exists());
}

#[test]
fn a_replacement_that_breaks_off_leaves_the_old_state() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    let store = SledStore::open(dir.path()).unwrap();
    let broken = [Ok((clock::key(), checkpoint("x"))), Err(Fault("cut".to_owned()))];
    assert!(store.replace(Box::new(broken.into_iter()), checkpoint("x")).is_err());
    assert_eq!(content(&store), content(&twin));
    store.commit(&[meta(5, 5)], checkpoint("3")).unwrap();
    twin.commit(&[meta(5, 5)], checkpoint("3")).unwrap();
    drop(store);
    assert_eq!(content(&SledStore::open(dir.path()).unwrap()), content(&twin));
}

#[test]
fn a_replacement_killed_before_it_counts_never_happened() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    // An incomplete generation, and a CURRENT without its final name.
    fs::create_dir_all(dir.path().join("gen-2/sled")).unwrap();
    fs::write(dir.path().join("gen-2/sled/db"), b"half").unwrap();
    fs::write(dir.path().join("CURRENT.tmp"), "session-manager state 1\n2\n").unwrap();
    assert_eq!(content(&SledStore::open(dir.path()).unwrap()), content(&twin));
    assert!(!dir.path().join("gen-2").exists());
    assert!(!dir.path().join("CURRENT.tmp").exists());
}

#[test]
fn a_replacement_killed_after_it_counts_took_place() {
    let dir = tempfile::tempdir().unwrap();
    prepared(dir.path());
    let store = SledStore::open(dir.path()).unwrap();
    let pairs = [Ok((clock::key(), Bytes::copy_from_slice(&5i64.to_be_bytes())))];
    store.replace(Box::new(pairs.into_iter()), checkpoint("5")).unwrap();
    drop(store);
    // The kill came before the old generation was removed.
    fs::create_dir_all(dir.path().join("gen-1/sled")).unwrap();
    let store = SledStore::open(dir.path()).unwrap();
    assert_eq!(with_view(&store, |view| view.clock_ms()), Ok(5));
    assert!(!dir.path().join("gen-1").exists());
}

#[test]
fn a_flush_that_fails_loses_nothing_and_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    let store = SledStore::open(dir.path()).unwrap();
    // A directory in the place of its file fails every flush, like a full disk.
    let obstacle = dir.path().join("gen-1/flush.tmp");
    fs::create_dir(&obstacle).unwrap();
    let value = "x".repeat(8 << 20);
    let mut refused = None;
    for n in 0..40 {
        let (changes, checkpoint) = ([entry(1, n, &value)], checkpoint(&n.to_string()));
        if let Err(fault) = store.commit(&changes, checkpoint.clone()) {
            refused = Some(fault);
            break;
        }
        twin.commit(&changes, checkpoint).unwrap();
        if n == 0 {
            let control = store.shared.control();
            drop(store.shared.room.wait_while(control, |control| control.failing.is_none()).unwrap());
        }
    }
    let refused = refused.expect("a layer that cannot be flushed is full in the end");
    assert!(refused.0.contains("cannot be flushed to disk"), "{refused}");
    assert!(content(&store) == content(&twin), "everything that was committed is still readable");

    fs::remove_dir(&obstacle).unwrap();
    drop(store);
    let store = SledStore::open(dir.path()).unwrap();
    assert!(content(&store) == content(&twin), "everything that was committed is on disk in the end");
}

#[derive(Debug, Clone)]
enum Step {
    Commit(Vec<Change>),
    Flush,
    Reopen,
    Freeze,
    /// Reads a few pairs of every freeze.
    Read(usize),
    Replace,
}

fn any_change() -> impl Strategy<Value = Change> {
    let id = |session: u8| SessionId::from(format!("s{session}"));
    prop_oneof![
        4 => (0u8..3, 0i64..9).prop_map(|(session, at)| meta(session, at)),
        4 => (0u8..3, 0u8..4, "[a-z]{0,5}").prop_map(|(session, e, data)| entry(session, e, &data)),
        1 => (0u8..3).prop_map(move |session| Change::Session(id(session), SessionChange::DeleteEntries)),
        1 => (0u8..3).prop_map(move |session| Change::Session(id(session), SessionChange::DeleteMeta)),
        1 => (0u8..3, 0u8..4).prop_map(move |(session, e)| Change::set_leaf(&id(session), format!("e{e}").into())),
        1 => (0u8..3).prop_map(move |session| Change::Session(id(session), SessionChange::DeleteLeaf)),
        1 => (0u8..3, 0u64..9).prop_map(move |(session, seq)| Change::Feed(FeedChange::SetSeq(id(session), Some(seq)))),
        1 => (0i64..9).prop_map(Change::Clock),
        3 => (0u8..3, 0u64..9, 0u8..9).prop_map(move |(session, seq, value)| {
            Change::put_record(journal(&id(session)).with(seq), Json::print(&value))
        }),
        1 => (0u8..3, 0u64..9).prop_map(move |(session, seq)| Change::delete_record(journal(&id(session)).with(seq))),
        1 => (0u8..3).prop_map(move |session| Change::drop_records(&id(session))),
        1 => (0u8..3).prop_map(move |session| {
            Change::put_record(RecordKey::of_cluster(Space::Driver).with("d"), Json::print(&session))
        }),
    ]
}

fn journal(session_id: &SessionId) -> RecordKey {
    RecordKey::of_session(session_id, Space::Journal)
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => proptest::collection::vec(any_change(), 1..4).prop_map(Step::Commit),
        4 => any_path().prop_map(Step::Commit),
        4 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        2 => Just(Step::Freeze),
        2 => (1usize..12).prop_map(Step::Read),
        1 => Just(Step::Replace),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn it_is_a_memory_store_whatever_happens(steps in proptest::collection::vec(any_step(), 1..30)) {
        let dir = tempfile::tempdir().unwrap();
        let twin = MemoryStore::new();
        let mut store = SledStore::open_within(dir.path(), tight()).unwrap();
        let mut freezes: Vec<(Frozen, Frozen)> = Vec::new();
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Commit(mut changes) => {
                    changes.extend(recorded(n as u64));
                    store.commit(&changes, checkpoint(&n.to_string())).unwrap();
                    twin.commit(&changes, checkpoint(&n.to_string())).unwrap();
                }
                Step::Flush => flush_now(&store),
                Step::Reopen => {
                    compare(&mut freezes);
                    drop(store);
                    store = SledStore::open_within(dir.path(), tight()).unwrap();
                }
                Step::Read(count) => {
                    for (ours, twins) in &mut freezes {
                        prop_assert!(ours.pairs.by_ref().take(count).eq(twins.pairs.by_ref().take(count)));
                    }
                }
                Step::Freeze => freezes.push((store.freeze().unwrap(), twin.freeze().unwrap())),
                Step::Replace => {
                    let copy = twin.freeze().unwrap();
                    store.replace(copy.pairs, checkpoint("copied")).unwrap();
                    let copy = twin.freeze().unwrap();
                    twin.replace(copy.pairs, checkpoint("copied")).unwrap();
                }
            }
            prop_assert_eq!(store.checkpoint().unwrap(), twin.checkpoint().unwrap());
            prop_assert_eq!(seen(&store), seen(&twin));
        }
        prop_assert_eq!(content(&store), content(&twin));
        compare(&mut freezes);
    }
}

/// What the `n`-th commit records: an event and an answer. Some commits let old answers expire or trim the feed.
fn recorded(n: u64) -> Vec<Change> {
    let what = if n % 5 == 4 { Recorded::Deleted { metadata: None } } else { Recorded::Created };
    let record = Record { session_id: format!("s{}", n % 3).into(), seq: n, at_ms: 1, what };
    let mut changes = vec![
        Change::Answer(AnswerChange::Record(RequestId::new(n as i64, 7), Ok(Answer::Stored))),
        Change::Feed(FeedChange::Append { index: n + 1, records: vec![(0, record)] }),
        Change::Clock(n as i64),
    ];
    if n % 4 == 3 {
        changes.push(Change::Answer(AnswerChange::ExpireBefore(n as i64 - 2)));
        changes.push(Change::Feed(FeedChange::SetCursor("a".to_owned(), Some(place(n).in_group(1)))));
    }
    if n % 7 == 6 {
        changes.push(Change::Feed(FeedChange::Trim { upto: place(n - 3) }));
    }
    changes
}

fn place(index: u64) -> FeedPlace {
    FeedPlace { index, ordinal: 0 }
}

/// Everything that a view answers.
fn seen(store: &dyn Store) -> Vec<String> {
    let facets = || {
        let team = |value: &str| Facet::Metadata { key: "team".to_owned(), value: value.to_owned() };
        [Facet::All, Facet::Status(SessionStatus::Idle), team("0"), team("1")]
    };
    with_view(store, |view| {
        let mut seen = Vec::new();
        for session in 0..3 {
            let id = SessionId::from(format!("s{session}"));
            seen.push(format!("{:?} {:?} {:?}", view.meta(&id), view.leaf(&id), view.seq(&id)));
            seen.push(format!("{:?} {:?}", view.entries(&id), view.deleted_at(&id)));
            seen.push(format!("{:?} {:?}", view.has_records(&id), view.records(&journal(&id), None, 99)));
            seen.push(format!("{:?}", (0..4).map(|e| view.entry(&id, &format!("e{e}").into())).collect::<Vec<_>>()));
        }
        seen.extend(pages(view));
        for order in [ListOrder::CreatedAsc, ListOrder::CreatedDesc, ListOrder::UpdatedDesc] {
            seen.extend(facets().map(|facet| format!("{order:?} {:?}", view.listed(&facet, order, None, 9))));
        }
        let answers: Vec<_> = (0..30).map(|n| view.recorded_answer(RequestId::new(n, 7))).collect();
        seen.push(format!("{answers:?} {:?} {:?}", view.clock_ms(), view.cursors("")));
        let feed = [None, Some(place(2)), Some(place(9))].map(|after| view.feed_records(after, 7));
        seen.push(format!("{feed:?} {:?}", view.feed_edge()));
        seen
    })
}

/// Each freeze still holds the state of its own time.
fn compare(freezes: &mut Vec<(Frozen, Frozen)>) {
    for (ours, twins) in freezes.drain(..) {
        assert_eq!(ours.checkpoint, twins.checkpoint);
        let pairs: Vec<_> = ours.pairs.collect::<Result<_, _>>().unwrap();
        assert_eq!(pairs, twins.pairs.collect::<Result<Vec<_>, _>>().unwrap());
    }
}
