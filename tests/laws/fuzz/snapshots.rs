//! The laws of snapshot files: one that is not what it was is refused before its last pair is believed, and the state
//! stays as it was. Pairs that make no sense, in a file that is whole, are a fault and never a panic.

use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use session_manager::machine::ids::SessionId;
use session_manager::machine::query::list::ListQuery;
use session_manager::machine::query::messages::MessagesQuery;
use session_manager::machine::view::ListOrder;
use session_manager::machine::{Query, query};
use session_manager::replication::mark::Mark;
use session_manager::storage::disk::RealDisk;
use session_manager::storage::memory::MemoryStore;
use session_manager::storage::snapshot::Snapshots;
use session_manager::storage::{Store, answers, keys, look, records};

use super::inputs;
use super::memory::peak;
use super::requests;
use super::spoil::{Harm, harms, spoil};

type Pair = (Vec<u8>, Bytes);

const MEMORY_MAX: usize = 2 << 20;

fn state() -> Vec<Pair> {
    let run = requests::begun();
    run.store.freeze().expect("it freezes").pairs.map(|pair| pair.expect("a pair")).collect()
}

/// Reads the whole file into a store that already has a state, as an installed snapshot is.
fn install(snapshots: &Snapshots, bytes: &[u8], store: &MemoryStore) -> Result<(), String> {
    let path = snapshots.draft();
    fs::write(&path, bytes).unwrap();
    let sealed = snapshots.verify(&path, 1).map_err(|error| error.to_string())?;
    let pairs = snapshots.pairs(&sealed).map_err(|error| error.to_string())?;
    store.replace(pairs, sealed.mark.clone()).map_err(|fault| fault.to_string())
}

/// Asks everything there is to ask. A fault is an answer.
fn ask_everything(store: &MemoryStore) {
    let session = || SessionId::from("s");
    let list = ListQuery { status: None, metadata: None, order: ListOrder::CreatedAsc, cursor: None, limit: 10 };
    let messages = MessagesQuery {
        session_id: session(),
        from_entry_id: None,
        roles: None,
        include_custom: true,
        cursor: None,
        limit: 10,
    };
    for question in [
        Query::Metas,
        Query::Meta(session()),
        Query::Entries(session()),
        Query::Leaf(session()),
        Query::Entry(session(), "e1".into()),
        Query::List(list),
        Query::Messages(messages),
    ] {
        let _ = look(store, |view| query(view, &question));
    }
}

/// A key of some family, or of none.
fn any_pair() -> impl Strategy<Value = Pair> {
    let of_state = (any::<prop::sample::Index>(), harms(), any::<bool>()).prop_map(|(at, harms, of_key)| {
        let harms: Vec<Harm> = harms;
        let pairs = state();
        let (mut key, value) = pairs[at.index(pairs.len())].clone();
        let mut value = value.to_vec();
        spoil(if of_key { &mut key } else { &mut value }, &harms);
        (key, Bytes::from(value))
    });
    let any_bytes = (vec(any::<u8>(), 0..30), vec(any::<u8>(), 0..60)).prop_map(|(key, value)| (key, value.into()));
    prop_oneof![3 => of_state, 1 => any_bytes]
}

proptest! {
    #![proptest_config(inputs(1))]

    #[test]
    fn a_spoiled_snapshot_is_refused_or_is_the_one_that_was_written(harms in harms()) {
        let harms: Vec<Harm> = harms;
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(Arc::new(RealDisk), dir.path()).unwrap();
        let sealed = snapshots.write(1, Bytes::from_static(b"mark"), Box::new(state().into_iter().map(Ok))).unwrap();
        let whole = fs::read(&sealed.path).unwrap();
        let mut bytes = whole.clone();
        spoil(&mut bytes, &harms);
        let store = MemoryStore::new();
        store.replace(Box::new([Ok((keys::clock(), records::print_clock(5)))].into_iter()), Bytes::new()).unwrap();
        let (installed, held) = peak(|| install(&snapshots, &bytes, &store));
        prop_assert!(held <= MEMORY_MAX, "{held} bytes for a file of {}", bytes.len());
        prop_assert_eq!(installed.is_ok(), bytes == whole, "{:?}", installed);
        let clock = look(&store, |view| view.clock_ms());
        prop_assert_eq!(clock, Ok(if bytes == whole { 10 } else { 5 }), "a refused snapshot left a trace");
    }

    #[test]
    fn pairs_that_make_no_sense_are_faults(mut pairs in vec(any_pair(), 1..6)) {
        let mut whole = state();
        whole.append(&mut pairs);
        let store = MemoryStore::new();
        store.replace(Box::new(whole.into_iter().map(Ok)), Bytes::new()).unwrap();
        ask_everything(&store);
    }

    #[test]
    fn records_of_any_bytes_are_refused_or_read_back(bytes in vec(any::<u8>(), 0..120)) {
        let (session, entry) = (SessionId::from("s"), "e1".into());
        if let Ok(meta) = records::parse_meta(&session, &bytes) {
            prop_assert_eq!(records::parse_meta(&session, &records::print_meta(&meta)).unwrap(), meta);
        }
        if let Ok(read) = records::parse_entry(&session, &entry, &bytes) {
            prop_assert_eq!(records::parse_entry(&session, &entry, &records::print_entry(&read)).unwrap(), read);
        }
        if let Ok(answer) = answers::parse(&bytes) {
            prop_assert_eq!(answers::parse(&answers::print(&answer)).unwrap(), answer);
        }
        if let Ok(mark) = Mark::parse(&bytes, 0) {
            prop_assert_eq!(Mark::parse(&mark.print(), 0).unwrap(), mark);
        }
        if let Ok(key) = keys::Key::parse(&bytes) {
            prop_assert_eq!(keys::Key::parse(&key.print()).unwrap(), key);
        }
        let _ = records::parse_leaf(&session, &bytes);
        let _ = records::parse_seq(&session, &bytes);
        let _ = records::parse_clock(&bytes);
    }
}
