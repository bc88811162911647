//! The laws of the log: acknowledged entries survive, and foreign or damaged files are refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::oneshot;

use super::command::Order;
use super::record::{Entry, LogId, Payload, Vote};
use super::{Edges, Limits, Log, LogError};
use crate::machine::apply::create::CreateSession;
use crate::machine::ids::RequestId;
use crate::machine::stamp::Stamp;
use crate::machine::{Command, Stamped};
use crate::storage::disk::watched::WatchedDisk;

fn limits() -> Limits {
    Limits { segment_bytes: 4 << 10, cache_bytes: 2 << 10, frame_bytes: 1 << 10, point_bytes: 512, queue_jobs: 64 }
}

fn id(term: u64, index: u64) -> LogId {
    LogId::new(term, 1, index)
}

/// An entry with a unique title.
fn entry(term: u64, index: u64) -> Entry {
    let title = format!("entry {index} of term {term}");
    let command = Command::Create(CreateSession { title, description: String::new(), metadata: None });
    let stamped =
        Stamped { stamp: Stamp { at_ms: 1, seed: 1 }, request_id: RequestId(1), is_retry: false, scope: None, command };
    Entry { id: id(term, index), payload: Payload::Command(Order::new(stamped)) }
}

struct World {
    dir: TempDir,
    disk: WatchedDisk,
}

impl World {
    fn new() -> World {
        World { dir: tempfile::tempdir().unwrap(), disk: WatchedDisk::default() }
    }

    /// A log that entries were appended to one by one.
    async fn filled(entries: std::ops::Range<u64>) -> (World, Log) {
        let world = World::new();
        let log = world.open();
        append_each(&log, 1, entries).await;
        (world, log)
    }

    fn try_open(&self) -> Result<Log, LogError> {
        let (log, writer) = Log::open(Arc::new(self.disk.clone()), self.dir.path(), 0, limits())?;
        writer.on_thread().unwrap();
        Ok(log)
    }

    fn open(&self) -> Log {
        self.try_open().unwrap()
    }

    /// The bytes of the durable end on disk.
    fn note(&self) -> Vec<u8> {
        fs::read(self.dir.path().join("durable")).unwrap()
    }

    /// Where the next frame goes. Behind it the newest segment has only zeros.
    fn end(&self) -> usize {
        u64::from_le_bytes(self.note()[12..20].try_into().unwrap()) as usize
    }

    /// A crash during a write leaves the durable end of the previous write.
    fn set_note(&self, note: &[u8]) {
        fs::write(self.dir.path().join("durable"), note).unwrap();
    }

    fn segments(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.dir.path()).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
        files.sort();
        files
    }
}

async fn append(log: &Log, entries: Vec<Entry>) -> Result<(), LogError> {
    let (tell, told) = oneshot::channel();
    log.append(entries, Box::new(move |outcome| tell.send(outcome).unwrap())).await?;
    told.await.unwrap()
}

/// One frame per entry.
async fn append_each(log: &Log, term: u64, range: std::ops::Range<u64>) {
    for index in range {
        append(log, vec![entry(term, index)]).await.unwrap();
    }
}

fn all(log: &Log) -> Vec<Entry> {
    log.read(0, u64::MAX, usize::MAX).unwrap()
}

fn expected(term: u64, range: std::ops::Range<u64>) -> Vec<Entry> {
    range.map(|index| entry(term, index)).collect()
}

#[tokio::test]
async fn a_reopened_log_equals_the_one_that_was_closed() {
    let (world, log) = World::filled(0..100).await;
    log.hint_committed(Some(id(1, 99)));
    append(&log, expected(1, 100..200)).await.unwrap();
    let vote = Vote { term: 2, node: 3, committed: true };
    log.save_vote(vote).await.unwrap();
    log.close().await;
    assert!(world.segments().len() > 3, "the test wants several segments");

    let log = world.open();
    assert_eq!(log.edges(), Edges { purged: None, last: Some(id(1, 199)) });
    assert_eq!(log.vote(), Some(vote));
    assert_eq!(log.committed(), Some(id(1, 99)));
    assert_eq!(all(&log), expected(1, 0..200));
    append_each(&log, 2, 200..210).await;
    assert_eq!(log.read(150, 160, usize::MAX).unwrap(), expected(1, 150..160));
    assert_eq!(log.read(198, 202, usize::MAX).unwrap(), [expected(1, 198..200), expected(2, 200..202)].concat());
}

#[tokio::test]
async fn entries_are_readable_before_they_are_durable() {
    let world = World::new();
    let (log, writer) = Log::open(Arc::new(world.disk.clone()), world.dir.path(), 0, limits()).unwrap();
    log.append(expected(1, 0..50), Box::new(|_| {})).await.unwrap();
    assert_eq!(all(&log), expected(1, 0..50));
    writer.on_thread().unwrap();
    log.close().await;
}

#[tokio::test]
async fn a_read_is_bounded_by_bytes_but_never_empty() {
    let (_world, log) = World::filled(0..20).await;
    assert_eq!(log.read(3, 20, 0).unwrap(), expected(1, 3..4));
    let three = 3 * entry(1, 10).weight();
    assert_eq!(log.read(10, 20, three).unwrap(), expected(1, 10..13));
}

#[tokio::test]
async fn a_tail_torn_at_any_byte_loses_only_the_torn_write() {
    let (world, log) = World::filled(0..5).await;
    let path = world.segments().pop().unwrap();
    let (whole, note) = (world.end(), world.note());
    append(&log, vec![entry(1, 5)]).await.unwrap();
    log.close().await;
    let (bytes, end) = (fs::read(&path).unwrap(), world.end());
    for cut in whole..end {
        // A file that ends there, as an older version left it, and one with zeros from there on.
        let mut zeros = bytes[..cut].to_vec();
        zeros.resize(bytes.len(), 0);
        for torn in [&bytes[..cut], &zeros] {
            fs::write(&path, torn).unwrap();
            world.set_note(&note);
            let log = world.open();
            assert_eq!(all(&log), expected(1, 0..5), "cut at byte {cut}");
            log.close().await;
            assert!(fs::read(&path).unwrap()[whole..].iter().all(|byte| *byte == 0), "the tail is zero");
        }
    }
    world.set_note(&note);
    let log = world.open();
    assert_eq!(all(&log), expected(1, 0..5));
    append_each(&log, 1, 5..8).await;
    log.close().await;
    assert_eq!(all(&world.open()), expected(1, 0..8));
}

/// Flips one bit and opens; the bit stays flipped.
fn open_flipped_for_good(world: &World, path: &Path, at: usize) -> Log {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
    world.open()
}

/// Flips one bit and opens.
fn open_flipped(world: &World, path: &Path, at: usize) -> Result<Log, LogError> {
    let good = fs::read(path).unwrap();
    let mut bad = good.clone();
    bad[at] ^= 0x10;
    fs::write(path, bad).unwrap();
    let opened = world.try_open();
    fs::write(path, good).unwrap();
    opened
}

#[tokio::test]
async fn a_flipped_bit_before_the_last_frame_is_damage_with_a_place() {
    let (world, log) = World::filled(0..10).await;
    let path = world.segments().pop().unwrap();
    let before_last = world.end();
    append_each(&log, 1, 10..11).await;
    log.close().await;
    for at in 0..before_last {
        match open_flipped(&world, &path, at) {
            Err(LogError::Damaged { file, offset, .. }) => {
                assert_eq!(file, path);
                assert!(offset as usize <= at, "byte {at} is in the frame at {offset}");
            }
            other => panic!("byte {at}: {:?}", other.map(|log| log.edges())),
        }
    }
    assert_eq!(all(&world.open()), expected(1, 0..11), "nothing was dropped");
}

#[tokio::test]
async fn a_write_torn_at_every_sector_of_64_kib_loses_nothing_that_was_acknowledged() {
    let world = World::new();
    let wide = Limits { segment_bytes: 1 << 20, frame_bytes: 1 << 20, cache_bytes: 1 << 20, ..limits() };
    let (log, writer) = Log::open(Arc::new(world.disk.clone()), world.dir.path(), 0, wide).unwrap();
    writer.on_thread().unwrap();
    append_each(&log, 1, 0..5).await;
    let path = world.segments().pop().unwrap();
    let (whole, note) = (world.end(), world.note());
    append(&log, expected(1, 5..2000)).await.unwrap();
    log.close().await;
    let mut bytes = fs::read(&path).unwrap();
    bytes.truncate(world.end());
    assert!(bytes.len() - whole > 64 << 10, "{} bytes are one write", bytes.len() - whole);
    for cut in (bytes.len() - (64 << 10)..bytes.len()).step_by(512) {
        // Truncated; grown without its bytes; and with one sector that was not written.
        let mut zeros = bytes[..cut].to_vec();
        zeros.resize(bytes.len(), 0);
        let mut hole = bytes.clone();
        let end = hole.len().min(cut + 512);
        hole[cut..end].fill(0);
        for torn in [&bytes[..cut], &zeros, &hole] {
            fs::write(&path, torn).unwrap();
            world.set_note(&note);
            let (log, writer) = Log::open(Arc::new(world.disk.clone()), world.dir.path(), 0, wide).unwrap();
            assert_eq!(all(&log), expected(1, 0..5), "torn at byte {cut}");
            drop((log, writer));
        }
    }
}

#[tokio::test]
async fn a_flipped_bit_in_the_last_frame_is_damage_once_it_was_acknowledged() {
    let (world, log) = World::filled(0..5).await;
    let path = world.segments().pop().unwrap();
    let before = world.end();
    append_each(&log, 1, 5..6).await;
    log.close().await;
    let (note, end) = (world.note(), world.end());
    let bytes = fs::read(&path).unwrap();
    for at in before..end {
        let opened = open_flipped(&world, &path, at).map(|log| log.edges());
        assert!(matches!(&opened, Err(LogError::Damaged { offset, .. }) if *offset == before as u64), "{opened:?}");
        // A shorter file is damage too.
        fs::write(&path, &bytes[..at]).unwrap();
        let why = world.try_open().map(|log| log.edges()).unwrap_err().to_string();
        assert!(why.contains("durable up to byte"), "{why}");
        fs::write(&path, &bytes).unwrap();
        world.set_note(&note);
    }
    assert_eq!(all(&world.open()), expected(1, 0..6), "nothing was dropped");
}

#[tokio::test]
async fn zeros_before_the_durable_end_are_damage_and_zeros_behind_it_are_free_space() {
    let (world, log) = World::filled(0..5).await;
    let path = world.segments().pop().unwrap();
    let before = world.end();
    append_each(&log, 1, 5..6).await;
    log.close().await;
    let (good, end) = (fs::read(&path).unwrap(), world.end());
    assert_eq!(good.len() as u64, limits().segment_bytes, "zeros were written ahead of the frames");
    assert!(good[end..].iter().all(|byte| *byte == 0));
    // A lost write of a whole frame, of the last one and of an earlier one.
    for from in [before, 60] {
        let mut lost = good.clone();
        lost[from..end].fill(0);
        fs::write(&path, &lost).unwrap();
        let why = world.try_open().map(|log| log.edges()).unwrap_err().to_string();
        assert!(why.contains(&format!("at byte {from}: ")) && why.contains("durable up to byte"), "{why}");
        assert_eq!(fs::read(&path).unwrap(), lost, "damage is not touched");
    }
    // A flipped bit in the free space hides nothing, and the next frame is written over it.
    for at in [end, end + 1, end + 700, good.len() - 1] {
        fs::write(&path, &good).unwrap();
        let log = open_flipped_for_good(&world, &path, at);
        assert_eq!(all(&log), expected(1, 0..6), "byte {at}");
        append_each(&log, 1, 6..9).await;
        log.close().await;
        assert_eq!(all(&world.open()), expected(1, 0..9), "byte {at}");
        let after = world.end();
        assert!(fs::read(&path).unwrap()[after..].iter().all(|byte| *byte == 0), "byte {at}");
        world.set_note(&[]);
    }
}

#[tokio::test]
async fn small_frames_share_the_zeros_ahead_of_them_and_a_full_segment_returns_its_rest() {
    let (world, log) = World::filled(0..120).await;
    log.close().await;
    let mut segments = world.segments();
    let newest = segments.pop().unwrap();
    assert_eq!(fs::metadata(newest).unwrap().len(), limits().segment_bytes);
    assert!(segments.len() > 1);
    for full in segments {
        assert_ne!(fs::read(&full).unwrap().last(), Some(&0), "{} ends with a frame", full.display());
    }
}

#[tokio::test]
async fn a_write_that_is_under_way_shows_how_slow_the_disk_is_before_it_ends() {
    let (world, log) = World::filled(0..3).await;
    let before = log.sync_time_so_far();
    world.disk.fail_writes.store(true, Ordering::SeqCst);
    let waiting = tokio::spawn({
        let log = log.clone();
        async move { append(&log, vec![entry(1, 3)]).await }
    });
    while log.sync_time_so_far() < before + Duration::from_millis(50) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!waiting.is_finished());
    world.disk.fail_writes.store(false, Ordering::SeqCst);
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_append_to_a_full_disk_waits_for_space_and_a_close_ends_the_wait() {
    for before in [0, 5] {
        let (world, log) = World::filled(0..before).await;
        world.disk.fail_writes.store(true, Ordering::SeqCst);
        let waiting = tokio::spawn({
            let log = log.clone();
            async move { append(&log, vec![entry(1, before)]).await }
        });
        let voting = tokio::spawn({
            let log = log.clone();
            async move { log.save_vote(Vote { term: 7, node: 1, committed: false }).await }
        });
        tokio::time::sleep(Duration::from_millis(250)).await;
        assert!(!waiting.is_finished() && !voting.is_finished(), "nothing is acknowledged on a full disk");
        assert_eq!(log.read(0, before, usize::MAX).unwrap(), expected(1, 0..before), "entries stay readable");
        world.disk.fail_writes.store(false, Ordering::SeqCst);
        waiting.await.unwrap().unwrap();
        voting.await.unwrap().unwrap();
        append_each(&log, 1, before + 1..before + 3).await;

        world.disk.fail_writes.store(true, Ordering::SeqCst);
        let waiting = tokio::spawn({
            let log = log.clone();
            async move { append(&log, vec![entry(1, before + 3)]).await }
        });
        tokio::task::yield_now().await;
        log.close().await;
        assert!(waiting.await.unwrap().is_err());
        world.disk.fail_writes.store(false, Ordering::SeqCst);
        let log = world.open();
        assert_eq!(all(&log)[..before as usize + 3], expected(1, 0..before + 3)[..]);
        assert_eq!(log.vote(), Some(Vote { term: 7, node: 1, committed: false }));
    }
}

#[tokio::test]
async fn damage_in_an_earlier_segment_and_a_missing_segment_are_refused() {
    let (world, log) = World::filled(0..120).await;
    log.close().await;
    let segments = world.segments();
    let last_byte = fs::metadata(&segments[0]).unwrap().len() as usize - 1;
    assert!(matches!(open_flipped(&world, &segments[0], last_byte), Err(LogError::Damaged { .. })));

    let moved = segments[1].with_extension("away");
    fs::rename(&segments[1], &moved).unwrap();
    let why = world.try_open().map(|log| log.edges()).unwrap_err().to_string();
    assert!(why.contains("continues after"), "{why}");
    fs::rename(&moved, &segments[1]).unwrap();
    assert_eq!(all(&world.open()), expected(1, 0..120));
}

#[tokio::test]
async fn damage_that_happens_while_the_log_is_open_is_never_served() {
    let (world, log) = World::filled(0..120).await;
    let path = &world.segments()[0];
    let mut bytes = fs::read(path).unwrap();
    bytes[200] ^= 1;
    fs::write(path, bytes).unwrap();
    assert!(matches!(log.read(0, 120, usize::MAX), Err(LogError::Damaged { .. })));
}

#[tokio::test]
async fn a_damaged_vote_is_refused() {
    let world = World::new();
    let log = world.open();
    log.save_vote(Vote { term: 1, node: 1, committed: false }).await.unwrap();
    log.close().await;
    let path = world.dir.path().join("vote");
    for at in 0..fs::metadata(&path).unwrap().len() as usize {
        assert!(matches!(open_flipped(&world, &path, at), Err(LogError::Damaged { .. })), "byte {at}");
    }
}

#[tokio::test]
async fn a_log_of_another_group_or_version_is_refused() {
    let (world, log) = World::filled(0..1).await;
    log.close().await;
    let opened = Log::open(Arc::new(world.disk.clone()), world.dir.path(), 7, limits());
    assert!(opened.map(|_| ()).unwrap_err().to_string().contains("group 0, not 7"));
}

#[tokio::test]
async fn a_cut_log_goes_on_from_the_cut_and_so_does_its_reopening() {
    let (world, log) = World::filled(0..150).await;
    let segments_before = world.segments().len();
    // Inside the newest segment, inside an older one, at the edge of one, and inside a frame of many entries.
    let edge: u64 = world.segments()[1].file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let mut want = expected(1, 0..150);
    for (term, keep) in [(2, 148), (3, 70), (4, edge), (5, 9), (6, 4)] {
        log.truncate_after(Some(want[keep as usize - 1].id)).await.unwrap();
        want.truncate(keep as usize);
        assert_eq!(all(&log), want);
        let more: Vec<Entry> = (keep..keep + 6).map(|index| entry(term, index)).collect();
        append(&log, more.clone()).await.unwrap();
        want.extend(more);
        assert_eq!(all(&log), want, "after the cut to {keep}");
    }
    assert!(world.segments().len() < segments_before);
    log.close().await;
    let log = world.open();
    assert_eq!(all(&log), want);
    assert_eq!(log.edges().last, want.last().map(|entry| entry.id));

    log.truncate_after(None).await.unwrap();
    assert_eq!(log.edges(), Edges { purged: None, last: None });
    append_each(&log, 7, 0..3).await;
    log.close().await;
    assert_eq!(all(&world.open()), expected(7, 0..3));
}

#[tokio::test]
async fn the_log_knows_how_many_bytes_lie_behind_an_entry() {
    let (world, log) = World::filled(0..150).await;
    let (all, near) = (log.bytes_after(0), 2 * limits().point_bytes);
    assert!(log.bytes() - all < near + 60 * world.segments().len() as u64);
    assert_eq!((log.bytes_after(149), log.bytes_after(1000)), (0, 0));
    assert!(log.bytes_after(75).abs_diff(all / 2) < near, "{} of {all}", log.bytes_after(75));
    for bytes in [0, 700, 3000, 5000] {
        let index = log.index_before(100, bytes).unwrap();
        let between = log.bytes_after(index) - log.bytes_after(100);
        assert!(between.abs_diff(bytes) < near, "{between} for {bytes}");
    }
    assert_eq!(log.index_before(100, 1 << 20), None);
}

#[tokio::test]
async fn purge_frees_whole_segments_and_keeps_the_rest() {
    let (world, log) = World::filled(0..150).await;
    let segments = world.segments().len();
    log.purge(id(1, 100)).await.unwrap();
    assert_eq!(log.edges(), Edges { purged: Some(id(1, 100)), last: Some(id(1, 149)) });
    assert_eq!(all(&log), expected(1, 101..150));
    log.close().await;
    assert!(world.segments().len() < segments);
    let log = world.open();
    let purged = log.edges().purged.unwrap();
    assert!(purged.index <= 100, "a segment with entries to keep stays whole");
    assert_eq!(all(&log), expected(1, purged.index + 1..150));
}

#[tokio::test]
async fn a_purge_beyond_the_end_begins_the_log_anew() {
    let (world, log) = World::filled(0..60).await;
    log.purge(id(4, 500)).await.unwrap();
    let edges = Edges { purged: Some(id(4, 500)), last: Some(id(4, 500)) };
    assert_eq!((log.edges(), all(&log)), (edges, Vec::new()));
    let gap = append(&log, vec![entry(4, 60)]).await;
    assert_eq!(gap, Err(LogError::Gap { expected: 501, got: 60 }));
    log.close().await;
    let log = world.open();
    assert_eq!(log.edges(), edges);
    append_each(&log, 4, 501..505).await;
    log.close().await;
    assert_eq!(all(&world.open()), expected(4, 501..505));
    assert_eq!(world.segments().len(), 1);
}

#[tokio::test]
async fn a_purge_that_a_crash_interrupted_is_completed_at_opening() {
    let (world, log) = World::filled(0..60).await;
    log.close().await;
    let old = world.segments()[0].clone();
    let bytes = fs::read(&old).unwrap();
    let log = world.open();
    log.purge(id(4, 500)).await.unwrap();
    log.close().await;
    fs::write(&old, bytes).unwrap();
    assert_eq!(world.open().edges().purged, Some(id(4, 500)));
    assert!(!old.exists());
}

#[tokio::test]
async fn waiting_appends_share_one_fsync() {
    let world = World::new();
    let (log, writer) = Log::open(Arc::new(world.disk.clone()), world.dir.path(), 0, Limits::default()).unwrap();
    let mut waiting = Vec::new();
    for index in 0..50 {
        let (tell, told) = oneshot::channel();
        log.append(vec![entry(1, index)], Box::new(move |outcome| tell.send(outcome).unwrap())).await.unwrap();
        waiting.push(told);
    }
    writer.on_thread().unwrap();
    for told in waiting {
        told.await.unwrap().unwrap();
    }
    assert_eq!(world.disk.syncs(), 2, "one for the new segment, one for all the appends");
}

#[tokio::test]
async fn a_failed_sync_poisons_the_log_and_reopening_recovers() {
    let (world, log) = World::filled(0..5).await;
    let fail = &world.disk.fail_syncs;
    fail.store(true, Ordering::SeqCst);
    assert!(matches!(append(&log, vec![entry(1, 5)]).await, Err(LogError::Disk { .. })));
    fail.store(false, Ordering::SeqCst);
    let later = append(&log, vec![entry(1, 6)]).await;
    assert!(matches!(later, Err(LogError::Poisoned(_))), "{later:?}");
    assert!(matches!(log.save_vote(Vote { term: 1, node: 1, committed: false }).await, Err(LogError::Poisoned(_))));
    assert_eq!(log.read(0, 5, usize::MAX).unwrap(), expected(1, 0..5), "entries stay readable");
    log.close().await;

    let log = world.open();
    let survived = all(&log);
    assert_eq!(survived[..5], expected(1, 0..5)[..]);
    assert!(survived.len() <= 6, "at most the entry whose outcome is unknown");
    append_each(&log, 2, survived.len() as u64..10).await;
}

#[tokio::test]
async fn after_close_every_write_is_refused() {
    let (_world, log) = World::filled(0..2).await;
    log.close().await;
    assert_eq!(append(&log, vec![entry(1, 2)]).await, Err(LogError::Closed));
    log.close().await;
}
