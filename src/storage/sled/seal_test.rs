//! Tests of commits while another thread moves the newest commits to keys, and of what a layer knows of older ones.

use std::sync::atomic::{AtomicBool, Ordering};

use super::store_test::{content, entry, meta};
use super::*;
use crate::machine::Answer;
use crate::machine::change::{AnswerChange, Change, FeedChange, SessionChange};
use crate::machine::feed_record::{Record, Recorded};
use crate::machine::ids::RequestId;
use crate::storage::state::memory::MemoryStore;

const COMMITS: u64 = 3000;

/// An entry of a session whose record is too large to stay in memory, an event and an answer. Now and then old answers
/// expire.
fn changes(n: u64) -> Vec<Change> {
    let mut large = meta(0, n as i64);
    if let Change::Session(_, SessionChange::PutMeta(meta)) = &mut large {
        meta.title = "t".repeat(2000);
    }
    let record = Record { session_id: "s".into(), seq: n, at_ms: 1, what: Recorded::Created };
    let mut changes = vec![
        large,
        entry(0, (n % 100) as u8, &n.to_string()),
        Change::Answer(AnswerChange::Record(RequestId::new(n as i64, 7), Ok(Answer::Stored))),
        Change::Feed(FeedChange::Append { index: n + 1, records: vec![(0, record)] }),
        Change::Clock(n as i64),
    ];
    if n % 4 == 3 {
        changes.push(Change::Answer(AnswerChange::ExpireBefore(n as i64 - 2)));
    }
    changes
}

#[test]
fn a_commit_in_the_moment_of_a_seal_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, twin) = (SledStore::open(dir.path()).unwrap(), MemoryStore::new());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let mut control = store.shared.control();
                store.shared.layers_mut().seal(&mut control);
                drop(control);
                // Seals without a pause would fill the memory for layers.
                std::thread::yield_now();
            }
        });
        for n in 0..COMMITS {
            let checkpoint = Bytes::from(n.to_string());
            store.commit(&changes(n), checkpoint.clone()).unwrap();
            twin.commit(&changes(n), checkpoint).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(content(&store), content(&twin));
}

#[test]
fn a_session_that_moves_away_and_back_in_one_commit_leaves_no_ghost_in_the_lists() {
    let dir = tempfile::tempdir().unwrap();
    let (store, twin) = (SledStore::open(dir.path()).unwrap(), MemoryStore::new());
    let gone = |session: u8| Change::Session(format!("s{session}").into(), SessionChange::DeleteEntries);
    // A change that deletes something makes the keys of its commit at once.
    let commits = [vec![meta(0, 1)], vec![meta(0, 3), meta(0, 1), gone(0)], vec![meta(0, 5), gone(0)]];
    for (n, changes) in commits.into_iter().enumerate() {
        let checkpoint = Bytes::from(n.to_string());
        store.commit(&changes, checkpoint.clone()).unwrap();
        twin.commit(&changes, checkpoint).unwrap();
        if n == 0 {
            while flusher::flush(&store.shared).unwrap() {}
        }
    }
    // Not before: a look at the content seals the layer.
    assert_eq!(content(&store), content(&twin));
}
