//! The laws of snapshot files: a changed file is refused before it is installed, and the state stays unchanged. Invalid
//! pairs in an intact file are a fault, never a panic.

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
use session_manager::replication::checkpoint::Checkpoint;
use session_manager::storage::disk::RealDisk;
use session_manager::storage::snapshot::Snapshots;
use session_manager::storage::state::memory::MemoryStore;
use session_manager::storage::state::{answer, clock, entry, key, leaf, meta, seq};
use session_manager::storage::{Store, with_view};

use super::corruption::{Corruption, corrupt, corruptions};
use super::inputs;
use super::memory::peak;
use super::requests;

type Pair = (Vec<u8>, Bytes);

const MEMORY_MAX: usize = 2 << 20;

fn state() -> Vec<Pair> {
    let run = requests::prepared();
    run.store.freeze().expect("it freezes").pairs.map(|pair| pair.expect("a pair")).collect()
}

/// Installs the file into a store that already has a state.
fn install(snapshots: &Snapshots, bytes: &[u8], store: &MemoryStore) -> Result<(), String> {
    let path = snapshots.draft();
    fs::write(&path, bytes).unwrap();
    let sealed = snapshots.verify(&path, 1).map_err(|error| error.to_string())?;
    let pairs = snapshots.pairs(&sealed).map_err(|error| error.to_string())?;
    store.replace(pairs, sealed.checkpoint.clone()).map_err(|fault| fault.to_string())
}

/// Runs every kind of query. A fault is acceptable.
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
        let _ = with_view(store, |view| query(view, &question));
    }
}

/// A corrupted pair of a state, or any bytes.
fn any_pair() -> impl Strategy<Value = Pair> {
    let of_state =
        (any::<prop::sample::Index>(), corruptions(), any::<bool>()).prop_map(|(at, corruptions, of_key)| {
            let corruptions: Vec<Corruption> = corruptions;
            let pairs = state();
            let (mut key, value) = pairs[at.index(pairs.len())].clone();
            let mut value = value.to_vec();
            corrupt(if of_key { &mut key } else { &mut value }, &corruptions);
            (key, Bytes::from(value))
        });
    let any_bytes = (vec(any::<u8>(), 0..30), vec(any::<u8>(), 0..60)).prop_map(|(key, value)| (key, value.into()));
    prop_oneof![3 => of_state, 1 => any_bytes]
}

proptest! {
    #![proptest_config(inputs(1))]

    #[test]
    fn a_corrupted_snapshot_is_refused_or_is_the_one_that_was_written(corruptions in corruptions()) {
        let corruptions: Vec<Corruption> = corruptions;
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(Arc::new(RealDisk), dir.path()).unwrap();
        let sealed = snapshots.write(1, Bytes::from_static(b"mark"), Box::new(state().into_iter().map(Ok))).unwrap();
        let whole = fs::read(&sealed.path).unwrap();
        let mut bytes = whole.clone();
        corrupt(&mut bytes, &corruptions);
        let store = MemoryStore::new();
        store.replace(Box::new([Ok((clock::key(), clock::encode(5)))].into_iter()), Bytes::new()).unwrap();
        let (installed, held) = peak(|| install(&snapshots, &bytes, &store));
        prop_assert!(held <= MEMORY_MAX, "{held} bytes for a file of {}", bytes.len());
        prop_assert_eq!(installed.is_ok(), bytes == whole, "{:?}", installed);
        let clock = with_view(&store, |view| view.clock_ms());
        prop_assert_eq!(clock, Ok(if bytes == whole { 10 } else { 5 }), "a refused snapshot changed the state");
    }

    #[test]
    fn invalid_pairs_are_faults(mut pairs in vec(any_pair(), 1..6)) {
        let mut whole = state();
        whole.append(&mut pairs);
        let store = MemoryStore::new();
        store.replace(Box::new(whole.into_iter().map(Ok)), Bytes::new()).unwrap();
        ask_everything(&store);
    }

    #[test]
    fn records_of_any_bytes_are_refused_or_read_back(bytes in vec(any::<u8>(), 0..120)) {
        let (session, entry_id) = (SessionId::from("s"), "e1".into());
        if let Ok(read) = meta::decode(&session, &bytes) {
            prop_assert_eq!(meta::decode(&session, &meta::encode(&read)).unwrap(), read);
        }
        if let Ok(read) = entry::decode(&session, &entry_id, &bytes) {
            prop_assert_eq!(entry::decode(&session, &entry_id, &entry::encode(&read)).unwrap(), read);
        }
        if let Ok(read) = answer::decode(&bytes) {
            prop_assert_eq!(answer::decode(&answer::encode(&read)).unwrap(), read);
        }
        if let Ok(mark) = Checkpoint::decode(&bytes, 0) {
            prop_assert_eq!(Checkpoint::decode(&mark.encode(), 0).unwrap(), mark);
        }
        if let Ok(read) = key::Key::parse(&bytes) {
            prop_assert_eq!(key::Key::parse(&read.print()).unwrap(), read);
        }
        let _ = leaf::decode(&session, &bytes);
        let _ = seq::decode(&session, &bytes);
        let _ = clock::decode(&bytes);
    }
}
