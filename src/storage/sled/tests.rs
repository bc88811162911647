//! The laws of `SledStore`: it is a `MemoryStore` that survives its process, whenever the process dies.

use std::fs;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::machine::entry::{Body, Entry};
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::storage::look;
use crate::storage::memory::MemoryStore;

pub fn meta(session: u8, updated_at: i64) -> Change {
    Change::PutMeta(SessionMeta {
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
    Change::PutEntry(format!("s{session}").into(), entry)
}

pub fn mark(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Everything a store holds, the mark included.
pub fn content(store: &dyn Store) -> Vec<(Vec<u8>, Bytes)> {
    let frozen = store.freeze().unwrap();
    let mut pairs: Vec<_> = frozen.pairs.collect::<Result<_, _>>().unwrap();
    assert!(pairs.windows(2).all(|pair| pair[0].0 < pair[1].0), "pairs come in key order, each once");
    pairs.extend(frozen.mark.map(|mark| (keys::mark(), mark)));
    pairs
}

/// A state with two commits, closed, and the same state in memory.
fn prepared(dir: &Path) -> MemoryStore {
    let (store, twin) = (SledStore::open(dir).unwrap(), MemoryStore::new());
    for target in [&store as &dyn Store, &twin] {
        target.commit(&[meta(1, 1), entry(1, 1, "old"), entry(1, 2, "gone")], mark("1")).unwrap();
        target.commit(&[meta(2, 2)], mark("2")).unwrap();
    }
    twin
}

/// The keys of the next commit, which also takes place in `twin`.
fn next_layer(twin: &MemoryStore) -> Changed {
    let changes = [Change::DeleteEntries("s1".into()), entry(1, 1, "new"), meta(1, 3), meta(3, 3)];
    let mut layer = write(&*twin.tree(), &changes).unwrap();
    layer.insert(keys::mark(), Some(mark("3")));
    twin.commit(&changes, mark("3")).unwrap();
    layer
}

#[test]
fn what_was_committed_is_there_after_a_clean_close() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    let store = SledStore::open(dir.path()).unwrap();
    assert_eq!(content(&store), content(&twin));
    assert_eq!(store.mark().unwrap(), Some(mark("2")));
}

#[test]
fn of_a_session_that_moves_often_only_its_last_place_is_written_down() {
    let dir = tempfile::tempdir().unwrap();
    let (store, twin) = (SledStore::open(dir.path()).unwrap(), MemoryStore::new());
    for round in 0..3 {
        for moved in 1..50 {
            for target in [&store as &dyn Store, &twin] {
                target.commit(&[meta(1, round * 100 + moved)], mark("1")).unwrap();
            }
        }
        // All that has to go is the place that was written down before, under each of its three facets.
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
        // Twice: the second look finds what the first one kept.
        let first = look(&store, |view| view.entry(&"s1".into(), &id.into())).unwrap();
        assert_eq!(look(&store, |view| view.entry(&"s1".into(), &id.into())).unwrap(), first);
        first.map(|entry| match entry.body {
            Body::Custom { data, .. } => data.text().to_owned(),
            Body::Message(message) => message.body.text().to_owned(),
        })
    };
    assert_eq!(read("e1").as_deref(), Some("\"old\""));
    store.commit(&[entry(1, 1, "new")], mark("3")).unwrap();
    assert_eq!(read("e1").as_deref(), Some("\"new\""));
    assert_eq!(read("e2").as_deref(), Some("\"gone\""));
    store.commit(&[Change::DeleteEntries("s1".into())], mark("4")).unwrap();
    assert_eq!((read("e1"), read("e2")), (None, None));
    let other = MemoryStore::new();
    other.commit(&[entry(1, 1, "replaced")], mark("5")).unwrap();
    store.replace(other.freeze().unwrap().pairs, mark("5")).unwrap();
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
    assert_eq!(store.mark().unwrap(), None);
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
    let text = "session-manager state 3\n1\n";
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
fn a_flipped_bit_in_current_asks_for_a_rebuild() {
    let dir = tempfile::tempdir().unwrap();
    prepared(dir.path());
    let path = dir.path().join("CURRENT");
    let good = fs::read(&path).unwrap();
    assert_eq!(good, b"session-manager state 2\n1\n6857514a\n");
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
fn a_freeze_keeps_its_moment_while_commits_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    let store = SledStore::open(dir.path()).unwrap();
    store.commit(&[entry(1, 1, "newer"), Change::DeleteLeaf("s1".into())], mark("3")).unwrap();
    twin.commit(&[entry(1, 1, "newer")], mark("3")).unwrap();
    let expected = content(&twin);

    let frozen = store.freeze().unwrap();
    store.commit(&[Change::DeleteEntries("s1".into()), meta(9, 9)], mark("4")).unwrap();
    flush_now(&store);
    assert!(store.shared.layers().sealed.is_empty(), "a freeze holds up no flush");
    let mut pairs: Vec<_> = frozen.pairs.collect::<Result<_, _>>().unwrap();
    pairs.extend(frozen.mark.map(|mark| (keys::mark(), mark)));
    assert_eq!(pairs, expected);

    twin.commit(&[Change::DeleteEntries("s1".into()), meta(9, 9)], mark("4")).unwrap();
    assert_eq!(content(&store), content(&twin));
}

/// Everything that waits goes to sled, on this thread.
fn flush_now(store: &SledStore) {
    while flusher::flush(&store.shared).unwrap() {}
}

/// Bounds so small that a few commits go beyond all of them.
fn tight() -> Bounds {
    Bounds { flush_bytes: 2 << 10, ahead_bytes: 8 << 10, undo_bytes: 1 << 10, piece_bytes: 200 }
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
        both.iter().for_each(|store| store.commit(changes, mark(text)).unwrap());
    };
    commit(&round(0), "0");
    flush_now(&store);
    let (slow, expected) = (store.freeze().unwrap(), twin.freeze().unwrap());

    // Fifty times what may be ahead of sled: it could wait for room only if the freeze kept the flusher from its work.
    for n in 1..40 {
        commit(&round(n), &n.to_string());
        flush_now(&store);
        assert!(store.shared.control().ahead_bytes() == 0);
    }
    commit(&[Change::DeleteEntries("s1".into()), meta(9, 9)], "last");
    flush_now(&store);
    assert!(undo_files(dir.path()) > 0, "what changed under the freeze went to files");

    compare(&mut vec![(slow, expected)]);
    assert_eq!(undo_files(dir.path()), 0);
    assert_eq!(content(&store), content(&twin));
}

#[test]
fn keys_a_freeze_has_passed_are_not_kept_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = SledStore::open_within(dir.path(), tight()).unwrap();
    let all: Vec<_> = (0..40).map(|e| entry(1, e, &"old".repeat(50))).collect();
    store.commit(&all, mark("1")).unwrap();
    flush_now(&store);
    let mut frozen = store.freeze().unwrap();
    assert!(frozen.pairs.by_ref().all(|pair| pair.is_ok()));
    let all: Vec<_> = (0..40).map(|e| entry(1, e, &"new".repeat(50))).collect();
    store.commit(&all, mark("2")).unwrap();
    flush_now(&store);
    assert_eq!(undo_files(dir.path()), 0);
}

#[test]
fn a_replacement_is_whole_and_lasts() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    next_layer(&twin);
    let store = SledStore::open(dir.path()).unwrap();
    store.commit(&[meta(7, 7)], mark("old")).unwrap();
    let old_moment = store.freeze().unwrap();
    store.replace(twin.freeze().unwrap().pairs, mark("3")).unwrap();
    assert_eq!(content(&store), content(&twin));
    assert!(old_moment.pairs.count() > 0, "a freeze of the old state stays readable");

    for target in [&store as &dyn Store, &twin] {
        target.commit(&[meta(5, 5)], mark("4")).unwrap();
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
    let broken = [Ok((keys::clock(), mark("x"))), Err(Fault("cut".to_owned()))];
    assert!(store.replace(Box::new(broken.into_iter()), mark("x")).is_err());
    assert_eq!(content(&store), content(&twin));
    store.commit(&[meta(5, 5)], mark("3")).unwrap();
    twin.commit(&[meta(5, 5)], mark("3")).unwrap();
    drop(store);
    assert_eq!(content(&SledStore::open(dir.path()).unwrap()), content(&twin));
}

#[test]
fn a_replacement_killed_before_it_counts_never_happened() {
    let dir = tempfile::tempdir().unwrap();
    let twin = prepared(dir.path());
    // A generation that was being built, and a CURRENT that never got its name.
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
    let pairs = [Ok((keys::clock(), Bytes::copy_from_slice(&5i64.to_be_bytes())))];
    store.replace(Box::new(pairs.into_iter()), mark("5")).unwrap();
    drop(store);
    // The kill came before the old generation was removed.
    fs::create_dir_all(dir.path().join("gen-1/sled")).unwrap();
    let store = SledStore::open(dir.path()).unwrap();
    assert_eq!(look(&store, |view| view.clock_ms()), Ok(5));
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
        let (changes, mark) = ([entry(1, n, &value)], mark(&n.to_string()));
        if let Err(fault) = store.commit(&changes, mark.clone()) {
            refused = Some(fault);
            break;
        }
        twin.commit(&changes, mark).unwrap();
        if n == 0 {
            let control = store.shared.control();
            drop(store.shared.room.wait_while(control, |control| control.failing.is_none()).unwrap());
        }
    }
    let refused = refused.expect("a layer that cannot be written down is full at last");
    assert!(refused.0.contains("cannot be written down"), "{refused}");
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
        1 => (0u8..3).prop_map(move |session| Change::DeleteEntries(id(session))),
        1 => (0u8..3).prop_map(move |session| Change::DeleteMeta(id(session))),
        1 => (0u8..3, 0u8..4).prop_map(move |(session, e)| Change::SetLeaf(id(session), format!("e{e}").into())),
        1 => (0u8..3).prop_map(move |session| Change::DeleteLeaf(id(session))),
        1 => (0u8..3, 0u64..9).prop_map(move |(session, seq)| Change::SetSeq(id(session), seq)),
        1 => (0i64..9).prop_map(Change::SetClock),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => proptest::collection::vec(any_change(), 1..4).prop_map(Step::Commit),
        4 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        2 => Just(Step::Freeze),
        2 => (1usize..12).prop_map(Step::Read),
        1 => Just(Step::Replace),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn it_is_a_memory_store_whatever_happens(steps in proptest::collection::vec(any_step(), 1..30)) {
        let dir = tempfile::tempdir().unwrap();
        let twin = MemoryStore::new();
        let mut store = SledStore::open_within(dir.path(), tight()).unwrap();
        let mut freezes: Vec<(Frozen, Frozen)> = Vec::new();
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Commit(changes) => {
                    store.commit(&changes, mark(&n.to_string())).unwrap();
                    twin.commit(&changes, mark(&n.to_string())).unwrap();
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
                    store.replace(copy.pairs, mark("copied")).unwrap();
                    let copy = twin.freeze().unwrap();
                    twin.replace(copy.pairs, mark("copied")).unwrap();
                }
            }
            prop_assert_eq!(store.mark().unwrap(), twin.mark().unwrap());
        }
        prop_assert_eq!(content(&store), content(&twin));
        compare(&mut freezes);
    }
}

/// Each freeze still tells of its own moment.
fn compare(freezes: &mut Vec<(Frozen, Frozen)>) {
    for (ours, twins) in freezes.drain(..) {
        assert_eq!(ours.mark, twins.mark);
        let pairs: Vec<_> = ours.pairs.collect::<Result<_, _>>().unwrap();
        assert_eq!(pairs, twins.pairs.collect::<Result<Vec<_>, _>>().unwrap());
    }
}
