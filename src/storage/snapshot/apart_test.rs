//! The laws of snapshots whose bodies are copies of files of the state: they hold what a whole snapshot holds, copy each
//! body once, find damage, and keep their files while somebody reads.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tempfile::TempDir;
use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

use super::format::{BODY, VERSION_APART, print_foot, print_head};
use super::packed::BLOCK_BYTES;
use super::{PairReader, Sealed, Snapshots};
use crate::machine::Answer;
use crate::machine::change::{AnswerChange, Change, FeedChange, SessionChange};
use crate::machine::entry::{Body, Entry};
use crate::machine::feed_record::{Record, Recorded};
use crate::machine::ids::{EntryId, RequestId, SessionId};
use crate::machine::json::Json;
use crate::machine::refusal::Fault;
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::machine::stamp::Stamp;
use crate::storage::Store;
use crate::storage::disk::RealDisk;
use crate::storage::sled::{Bounds, SledStore, Stored};

type Pairs = Vec<(Vec<u8>, Bytes)>;

const BODY_BYTES: usize = 300;

/// A state that flushes every commit, and its snapshots.
struct World {
    dir: TempDir,
    store: SledStore,
    snapshots: Snapshots,
    /// The number of the next entry.
    next: u64,
    deleted: u64,
}

fn open(dir: &TempDir) -> Snapshots {
    Snapshots::open(Arc::new(RealDisk), &dir.path().join("snapshots")).unwrap()
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let bounds = Bounds { flush_bytes: 1, ..Bounds::default() };
        let store = SledStore::open_within(&dir.path().join("state"), bounds).unwrap();
        let snapshots = open(&dir);
        World { dir, store, snapshots, next: 0, deleted: 0 }
    }

    /// Adds entries and waits until they are in body files.
    fn add(&mut self, count: u64) {
        for _ in 0..count {
            let text = format!("{:0>width$}", self.next, width = BODY_BYTES);
            let body = Body::Custom { custom_type: "c".to_owned(), data: Json::print(&text) };
            let id = format!("e{:06}", self.next).into();
            let entry = Entry { id, parent_id: None, timestamp: 1, revision: 0, origin: None, body, place: None };
            self.commit(Change::put_entry(&SessionId::from("s".to_owned()), entry));
            self.next += 1;
        }
        while self.bodies() < self.next - self.deleted {
            std::thread::yield_now();
        }
    }

    /// Adds entries as clients append them: each with its feed record and its answer.
    fn append_like_clients(&mut self, count: u64) {
        const CLIENTS: u64 = 128;
        let random = |n: u64| xxh3_128_with_seed(&n.to_le_bytes(), 7);
        let stamp = |n: u64| Stamp { at_ms: 1_790_000_000_000 + n as i64 / 13, seed: random(n) };
        let session = |n: u64| Stamp { at_ms: 1_789_999_000_000, seed: random(!(n % CLIENTS)) }.session_id();
        let entry_id = |n: u64| -> EntryId { stamp(n).entry_id(0) };
        for first in (0..count).step_by(1000) {
            let mut changes = Vec::new();
            for n in first..count.min(first + 1000) {
                let (at_ms, id, session_id) = (stamp(n).at_ms, entry_id(n), session(n));
                let parent_id = n.checked_sub(CLIENTS).map(entry_id);
                let body = Body::Custom { custom_type: "c".to_owned(), data: Json::print(&"x".repeat(BODY_BYTES)) };
                let (revision, origin, place) = (0, None, None);
                let entry = Entry {
                    id: id.clone(),
                    parent_id: parent_id.clone(),
                    timestamp: at_ms,
                    revision,
                    origin,
                    body,
                    place,
                };
                changes.push(Change::put_entry(&session_id, entry));
                let what = Recorded::MessageAdded(id.clone());
                let records = vec![(0, Record { session_id, seq: n / CLIENTS, at_ms, what })];
                changes.push(Change::Feed(FeedChange::Append { index: n, records }));
                let answer = Answer::Appended { entry_id: id, parent_id, timestamp: at_ms };
                let request = RequestId::new(at_ms, random(n << 32));
                changes.push(Change::Answer(AnswerChange::Record(request, Ok(answer))));
            }
            self.store.commit(&changes, Bytes::from(first.to_string())).unwrap();
        }
        self.next += count;
        self.add(0);
    }

    /// How many bodies are in files.
    fn bodies(&self) -> u64 {
        let apart = self.store.freeze().unwrap().apart.unwrap();
        apart.filter(|pair| matches!(pair, Ok((_, Stored::Body(_))))).count() as u64
    }

    fn commit(&self, change: Change) {
        self.store.commit(&[change], Bytes::from(self.next.to_string())).unwrap();
    }

    fn truth(&self) -> Pairs {
        self.store.freeze().unwrap().pairs.collect::<Result<_, _>>().unwrap()
    }

    fn build(&self, index: u64) -> Sealed {
        let frozen = self.store.freeze().unwrap();
        let sealed = self.snapshots.build(index, Bytes::from_static(b"mark"), frozen, &mut |_| Ok(())).unwrap();
        self.snapshots.publish(sealed).unwrap()
    }

    fn body_files(&self) -> Vec<PathBuf> {
        let dirs = directories(&self.dir.path().join("snapshots"));
        let mut files: Vec<PathBuf> =
            dirs.iter().flat_map(|dir| fs::read_dir(dir).unwrap()).map(|found| found.unwrap().path()).collect();
        files.sort();
        files
    }
}

fn directories(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|found| found.unwrap().path()).filter(|path| path.is_dir()).collect()
}

/// The same snapshot, as earlier builds wrote it.
fn in_format_2(sealed: &Sealed) -> Vec<u8> {
    let mut file = print_head(VERSION_APART, &sealed.checkpoint);
    let mut reader = PairReader::open(&RealDisk, sealed).unwrap();
    let mut pairs = 0;
    while let Some((key, stored)) = reader.stored().unwrap() {
        let (length, value) = match stored {
            Stored::Value(value) => (value.len() as u32, value.to_vec()),
            Stored::Body(place) => (BODY | place.length(), place.print().to_vec()),
        };
        file.extend((key.len() as u32).to_le_bytes());
        file.extend(length.to_le_bytes());
        file.extend(key);
        file.extend(value);
        pairs += 1;
    }
    file.extend(print_foot(sealed.apart.as_deref(), pairs, file.len() as u64));
    file.extend(xxh3_128(&file).to_le_bytes());
    file
}

fn pairs(snapshots: &Snapshots, sealed: &Sealed) -> Result<Pairs, Fault> {
    snapshots.pairs(sealed).map_err(|error| Fault(error.to_string()))?.collect()
}

#[test]
fn it_reads_back_with_its_bodies_also_after_a_restart() {
    let mut world = World::new();
    world.add(200);
    // The newest commit is in no file yet.
    world.commit(Change::Clock(7));
    let sealed = world.build(5);
    let truth = world.truth();
    assert!(sealed.bytes * 2 < sealed.whole_bytes(), "the bodies are elsewhere");
    assert_eq!(pairs(&world.snapshots, &sealed).unwrap(), truth);

    let again = open(&world.dir);
    assert_eq!(again.newest().as_ref(), Some(&sealed));
    assert_eq!(again.verify(&sealed.path, 5).as_ref(), Ok(&sealed));
    assert_eq!(pairs(&again, &sealed).unwrap(), truth);
    let copy = World::new();
    copy.store.replace(again.pairs(&sealed).unwrap(), Bytes::from_static(b"mark")).unwrap();
    assert_eq!(copy.truth(), truth);
}

#[test]
fn one_of_an_earlier_build_is_read() {
    let mut world = World::new();
    world.add(50);
    world.commit(Change::Clock(7));
    let sealed = world.build(5);
    let older = in_format_2(&sealed);
    fs::write(&sealed.path, &older).unwrap();
    let snapshots = open(&world.dir);
    let found = snapshots.newest().unwrap();
    assert_eq!(snapshots.verify(&found.path, 5).as_ref(), Ok(&found));
    assert_eq!(pairs(&snapshots, &found).unwrap(), world.truth());
    assert_eq!(found.whole_bytes(), sealed.whole_bytes());
    for at in (0..older.len()).step_by(7) {
        let mut bad = older.clone();
        bad[at] ^= 4;
        fs::write(&found.path, bad).unwrap();
        assert!(snapshots.verify(&found.path, 5).is_err(), "byte {at}");
    }
}

#[test]
fn keys_records_and_answers_take_less_than_half_of_their_bytes() {
    let mut world = World::new();
    world.append_like_clients(5000);
    let sealed = world.build(5);
    let plain = in_format_2(&sealed).len() as u64;
    assert!(sealed.bytes * 2 < plain, "{} of {plain}", sealed.bytes);
    assert_eq!(pairs(&world.snapshots, &sealed).unwrap(), world.truth());
}

#[test]
fn a_value_that_is_longer_than_a_block_reads_back_and_its_damage_is_found() {
    let world = World::new();
    let noise: String = (0..BLOCK_BYTES as u64 / 8).map(|n| format!("{:032x}", xxh3_128(&n.to_le_bytes()))).collect();
    assert!(noise.len() > 3 * BLOCK_BYTES);
    world.commit(Change::put_meta(SessionMeta {
        session_id: "s".into(),
        title: String::new(),
        description: noise,
        status: SessionStatus::Idle,
        status_reason: None,
        message_count: 0,
        metadata: None,
        forked_from: None,
        created_at: 1,
        updated_at: 2,
    }));
    let sealed = world.build(5);
    assert_eq!(pairs(&world.snapshots, &sealed).unwrap(), world.truth());
    let whole = fs::read(&sealed.path).unwrap();
    assert!(whole.len() > BLOCK_BYTES);
    for at in (0..whole.len()).step_by(199) {
        let mut bad = whole.clone();
        bad[at] ^= 4;
        fs::write(&sealed.path, bad).unwrap();
        assert!(world.snapshots.verify(&sealed.path, 5).is_err(), "byte {at}");
        fs::write(&sealed.path, &whole[..at]).unwrap();
        assert!(world.snapshots.verify(&sealed.path, 5).is_err(), "cut at {at}");
    }
}

#[test]
fn other_nodes_get_it_in_format_1() {
    let mut world = World::new();
    world.add(50);
    let sealed = world.build(5);
    let all = Box::new(world.truth().into_iter().map(Ok));
    let whole = world.snapshots.write(5, Bytes::from_static(b"mark"), all).unwrap();
    let mut stream = Vec::new();
    sealed.stream(&RealDisk).unwrap().read_to_end(&mut stream).unwrap();
    assert!(stream == fs::read(&whole.path).unwrap());
    assert_eq!(sealed.whole_bytes(), whole.bytes);
    assert_eq!(sealed.announcement(&RealDisk), Ok((whole.bytes, whole.checksum)));
}

#[test]
fn each_body_is_copied_once() {
    let mut world = World::new();
    world.add(100);
    world.build(1);
    let (first, bytes) = (world.body_files(), fs::read(&world.body_files()[0]).unwrap());
    // Whatever stands in the copy already is not copied again: a mark in it stays.
    let mut marked = bytes.clone();
    marked[20] ^= 1;
    fs::write(&first[0], &marked).unwrap();
    world.add(100);
    let second = world.build(2);
    assert_eq!(world.body_files(), first);
    let grown = fs::read(&first[0]).unwrap();
    assert!(grown.len() > bytes.len() && grown.starts_with(&marked));
    fs::write(&first[0], [&bytes, &grown[bytes.len()..]].concat()).unwrap();
    assert_eq!(pairs(&world.snapshots, &second).unwrap(), world.truth());
}

#[test]
fn a_damaged_copy_is_found_and_the_next_build_copies_anew() {
    let mut world = World::new();
    world.add(20);
    let sealed = world.build(1);
    let file = world.body_files().remove(0);
    let good = fs::read(&file).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 4;
        fs::write(&file, bad).unwrap();
        assert!(world.snapshots.verify(&sealed.path, 1).is_err(), "byte {at}");
    }
    fs::write(&file, &good[..good.len() - 1]).unwrap();
    world.snapshots.scrub();
    assert!(world.snapshots.is_damaged());
    assert!(pairs(&world.snapshots, &sealed).unwrap_err().0.contains("bodies-1"));
    drop(sealed);
    let again = world.build(1);
    assert!(!world.snapshots.is_damaged());
    assert_eq!(pairs(&world.snapshots, &again).unwrap(), world.truth());
    assert_eq!(directories(&world.dir.path().join("snapshots")).len(), 1);
}

#[test]
fn a_damaged_body_of_the_state_is_not_copied() {
    let mut world = World::new();
    world.add(20);
    let good = world.build(1);
    world.add(20);
    let file = world.dir.path().join("state/gen-1/bodies-1");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 4;
    fs::write(&file, bytes).unwrap();
    let frozen = world.store.freeze().unwrap();
    let error = world.snapshots.build(2, Bytes::from_static(b"mark"), frozen, &mut |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("bodies-1"), "{error}");
    assert_eq!(world.snapshots.verify(&good.path, 1).as_ref(), Ok(&good));
    // The next start rebuilds it from this snapshot and the log.
    assert!(world.store.commit(&[Change::Clock(1)], Bytes::new()).is_err());
}

#[test]
fn a_flipped_bit_anywhere_in_the_snapshot_is_found() {
    let mut world = World::new();
    world.add(3);
    let sealed = world.build(3);
    let whole = fs::read(&sealed.path).unwrap();
    for at in 0..whole.len() {
        let mut bad = whole.clone();
        bad[at] ^= 4;
        fs::write(&sealed.path, bad).unwrap();
        assert!(world.snapshots.verify(&sealed.path, 3).is_err(), "byte {at}");
    }
    for cut in 0..whole.len() {
        fs::write(&sealed.path, &whole[..cut]).unwrap();
        assert!(world.snapshots.verify(&sealed.path, 3).is_err(), "cut at {cut}");
    }
}

#[test]
fn its_files_stay_while_somebody_reads_it_and_go_afterwards() {
    let mut world = World::new();
    world.add(2000);
    let old = world.build(1);
    let mut expected = Vec::new();
    old.stream(&RealDisk).unwrap().read_to_end(&mut expected).unwrap();
    let mut stream = old.stream(&RealDisk).unwrap();
    drop(old);
    let old_files = world.body_files();

    // Another set of files: the next snapshot needs none of these.
    let all = world.truth();
    world.store.replace(Box::new(all.into_iter().map(Ok)), Bytes::from_static(b"mark")).unwrap();
    world.build(2);
    assert!(old_files.iter().all(|file| file.exists()));
    let mut read = Vec::new();
    stream.read_to_end(&mut read).unwrap();
    assert!(read == expected);
    drop(stream);
    world.build(3);
    assert!(!old_files.iter().any(|file| file.exists()));
    assert_eq!(directories(&world.dir.path().join("snapshots")).len(), 1);
}

#[test]
fn one_that_is_not_published_yet_keeps_its_files_too() {
    let mut world = World::new();
    world.add(10);
    let frozen = world.store.freeze().unwrap();
    let built = world.snapshots.build(9, Bytes::from_static(b"mark"), frozen, &mut |_| Ok(())).unwrap();
    // Another node sends a snapshot meanwhile, which is older.
    let received = world.snapshots.write(5, Bytes::from_static(b"mark"), Box::new(std::iter::empty())).unwrap();
    world.snapshots.publish(received).unwrap();
    let published = world.snapshots.publish(built).unwrap();
    assert_eq!(pairs(&world.snapshots, &published).unwrap(), world.truth());
}

#[test]
fn a_build_that_is_stopped_leaves_the_last_snapshot_and_the_next_one_is_whole() {
    let mut world = World::new();
    world.add(300);
    let first = world.build(1);
    world.add(300);
    let frozen = world.store.freeze().unwrap();
    // After the pairs, while the bodies are copied.
    let mut left = 600;
    let stop = &mut |_| {
        left -= 1;
        if left < 0 { Err(Fault("enough".to_owned())) } else { Ok(()) }
    };
    assert!(world.snapshots.build(2, Bytes::new(), frozen, stop).is_err());
    assert_eq!(world.snapshots.newest().as_ref(), Some(&first));
    world.snapshots.verify(&first.path, 1).unwrap();
    let next = world.build(2);
    assert_eq!(pairs(&world.snapshots, &next).unwrap(), world.truth());
}

#[test]
fn a_snapshot_of_a_state_whose_bodies_move_meanwhile_is_the_frozen_one() {
    let mut world = World::new();
    world.add(400);
    let truth = world.truth();
    let mut frozen = world.store.freeze().unwrap();
    let mut apart = frozen.apart.take().unwrap();
    assert!(apart.next().is_some(), "it has begun");
    let frozen = world.store.freeze().unwrap();
    // All of it is deleted, flushed, and its files would be removed.
    world.commit(Change::Session("s".into(), SessionChange::DeleteEntries));
    world.deleted = world.next;
    world.add(50);
    let sealed = world.snapshots.build(9, Bytes::from_static(b"mark"), frozen, &mut |_| Ok(())).unwrap();
    assert_eq!(pairs(&world.snapshots, &sealed).unwrap(), truth);
    assert_eq!(apart.filter(|pair| pair.is_err()).count(), 0);
}
