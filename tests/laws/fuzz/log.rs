//! The laws of the files of the log: for any change of their bytes, opening them yields a prefix of the written
//! entries, or an error that names the damaged file. Never other entries, never a panic. A log that opens accepts the
//! next entry.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use prost::Message as _;
use session_manager::machine::Command;
use session_manager::machine::apply::create::CreateSession;
use session_manager::proto::log as proto;
use session_manager::storage::disk::RealDisk;
use session_manager::storage::log::command::Order;
use session_manager::storage::log::record::{Entry, LogId, Payload, Vote};
use session_manager::storage::log::segment::{self, FRAME_HEAD_BYTES, HEADER_BYTES, Header};
use session_manager::storage::log::{Limits, Log, LogError};

use super::corruption::{Corruption, corrupt, corruptions};
use super::inputs;
use super::memory::peak;
use crate::applied_log::stamped;

const ENTRIES: u64 = 40;
const VOTE: Vote = Vote { term: 3, node: 2, committed: true };
/// The files, the cache, and temporary memory for decoding.
const MEMORY_MAX: usize = 1 << 20;

fn limits() -> Limits {
    Limits { segment_bytes: 2 << 10, cache_bytes: 4 << 10, frame_bytes: 512, point_bytes: 256, queue_jobs: 64 }
}

fn entry(index: u64) -> Entry {
    let command = Command::Create(CreateSession {
        title: format!("entry {index}"),
        description: "d".repeat(index as usize % 7 * 20),
        metadata: None,
    });
    let payload = match index {
        0 => Payload::Blank,
        _later => Payload::Command(Order::new(stamped(index, 1, command))),
    };
    Entry { id: LogId::new(1 + index / 20, 1, index), payload }
}

fn open(dir: &Path) -> Result<Log, LogError> {
    let (log, writer) = Log::open(Arc::new(RealDisk), dir, 0, limits())?;
    writer.on_thread().expect("a thread");
    Ok(log)
}

fn append(log: &Log, entries: Vec<Entry>) -> Result<(), LogError> {
    let (sender, outcome) = std::sync::mpsc::channel();
    let done = Box::new(move |outcome| drop(sender.send(outcome)));
    futures::executor::block_on(log.append(entries, done))?;
    outcome.recv().expect("the writer answers")
}

fn close(log: Log) {
    futures::executor::block_on(log.close());
}

/// The files of a log of several segments, made once.
fn files() -> &'static Vec<(String, Vec<u8>)> {
    static FILES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let log = open(dir.path()).expect("an empty log");
        futures::executor::block_on(log.save_vote(VOTE)).expect("a vote");
        for index in 0..ENTRIES {
            append(&log, vec![entry(index)]).expect("an append");
        }
        close(log);
        let mut files: Vec<(String, Vec<u8>)> = names(dir.path())
            .into_iter()
            .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap()))
            .collect();
        files.sort();
        assert!(files.len() > 3, "several segments and the vote");
        files
    })
}

fn names(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect()
}

/// The file that records up to which entry the log was durable. With it, a shorter log is recognised as damaged.
const NOTE: &str = "durable";

/// Whether that file is present, or was lost in a power failure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Note {
    Kept,
    Lost,
}

/// Writes the files with one of them changed, and opens the log.
fn opened_with(name: &str, bytes: &[u8], note: Note) -> (tempfile::TempDir, Result<Log, LogError>) {
    let dir = tempfile::tempdir().expect("a directory");
    for (file, content) in files().iter().filter(|(file, _)| note == Note::Kept || file != NOTE) {
        fs::write(dir.path().join(file), if file == name { bytes } else { content }).unwrap();
    }
    let (log, held) = peak(|| open(dir.path()));
    assert!(held <= MEMORY_MAX, "opening took {held} bytes");
    (dir, log)
}

/// The log holds a prefix of the written entries, and the next entry that is appended is durable.
fn is_a_prefix(dir: &Path, log: Log) -> Result<(), TestCaseError> {
    let Some(last) = log.edges().last else {
        prop_assert!(log.read(0, u64::MAX, usize::MAX).is_ok_and(|entries| entries.is_empty()));
        return Ok(());
    };
    prop_assert!(last.index < ENTRIES);
    let written: Vec<Entry> = (0..=last.index).map(entry).collect();
    prop_assert_eq!(&log.read(0, last.index + 1, usize::MAX).unwrap(), &written);
    let next = entry(last.index + 1);
    append(&log, vec![next.clone()]).map_err(|error| TestCaseError::fail(error.to_string()))?;
    close(log);
    let again = open(dir).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(again.read(last.index + 1, last.index + 2, usize::MAX).unwrap(), vec![next]);
    close(again);
    Ok(())
}

/// Checks the laws for one changed file.
fn check(name: &str, bytes: &[u8], note: Note) -> Result<Option<u64>, TestCaseError> {
    let (dir, log) = opened_with(name, bytes, note);
    match log {
        Ok(log) => {
            prop_assert!(log.vote() == Some(VOTE), "another vote: {:?}", log.vote());
            let last = log.edges().last.map(|last| last.index);
            is_a_prefix(dir.path(), log)?;
            Ok(last)
        }
        Err(LogError::Damaged { file, why, .. }) => {
            prop_assert!(file.starts_with(dir.path()) && !why.is_empty());
            // Damaged files are kept, so that the operator can inspect them.
            let lost = usize::from(note == Note::Lost);
            prop_assert_eq!(names(dir.path()).len(), files().len() - lost);
            Ok(None)
        }
        Err(other) => Err(TestCaseError::fail(format!("neither opened nor damaged: {other}"))),
    }
}

fn any_file() -> impl Strategy<Value = &'static (String, Vec<u8>)> {
    any::<Index>().prop_map(|at| &files()[at.index(files().len())])
}

fn last_segment() -> &'static (String, Vec<u8>) {
    files().iter().rfind(|(name, _)| name.ends_with(".log")).expect("a segment")
}

#[test]
fn a_truncated_segment_is_damaged_if_it_was_durable_and_loses_only_the_cut_frame_otherwise() {
    let (name, whole) = last_segment();
    let first = Header::parse(whole).unwrap().first;
    // Where each frame of the last segment ends, and the last entry in it.
    let mut ends = vec![(HEADER_BYTES, first.checked_sub(1))];
    let salt = Header::parse(whole).unwrap().salt;
    while let segment::FrameAt::Frame { end } = segment::frame_at(whole, salt, ends[ends.len() - 1].0) {
        ends.push((end, Some(first + ends.len() as u64 - 1)));
    }
    assert_eq!(ends[ends.len() - 1].1, Some(ENTRIES - 1), "one frame per entry");
    let (end, last) = ends[ends.len() - 1];
    for cut in HEADER_BYTES..end {
        let kept = ends.iter().rfind(|(end, _)| *end <= cut).expect("the header");
        assert_eq!(check(name, &whole[..cut], Note::Lost).unwrap(), kept.1, "cut at {cut}");
        assert_eq!(check(name, &whole[..cut], Note::Kept).unwrap(), None, "cut at {cut}: it was durable");
    }
    // Behind the last frame are zeros for the next ones. Nothing is lost with them.
    assert!(whole[end..].iter().all(|byte| *byte == 0));
    for cut in [end, end + 1, end + (whole.len() - end) / 2, whole.len()] {
        for note in [Note::Lost, Note::Kept] {
            assert_eq!(check(name, &whole[..cut.min(whole.len())], note).unwrap(), last, "cut at {cut}");
        }
    }
}

proptest! {
    #![proptest_config(inputs(1))]

    #[test]
    fn a_flipped_bit_is_found_or_truncates_the_last_write(file in any_file(), at: Index, bit in 0..8u8) {
        let (name, whole) = file;
        let mut bytes = whole.clone();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let last = check(name, &bytes, Note::Kept)?;
        // The last frame may be a write that a crash interrupted. Every other one was durable.
        prop_assert!(last.is_none_or(|last| last + 2 >= ENTRIES), "only {last:?} of {ENTRIES} entries are left");
    }

    #[test]
    fn corrupted_files_are_a_prefix_or_damaged(file in any_file(), corruptions in corruptions()) {
        let (name, whole) = file;
        let corruptions: Vec<Corruption> = corruptions;
        let mut bytes = whole.clone();
        corrupt(&mut bytes, &corruptions);
        check(name, &bytes, Note::Kept)?;
    }

    /// With valid checksums: only a bug or a manual edit can write such frames.
    #[test]
    fn frames_with_valid_checksums_and_any_content_are_accepted_or_damaged(
        first in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
        prev in prop::option::of(prop_oneof![Just(u64::MAX), any::<u64>()]),
        bodies in vec(any_frame(), 0..4),
        reset: bool,
    ) {
        let prev = prev.map(|index| LogId::new(1, 1, index));
        let header = Header { group: 0, salt: 7, first, prev, reset };
        let mut file = header.print().to_vec();
        for body in bodies {
            let offset = file.len() as u64;
            let mut frame = vec![0; FRAME_HEAD_BYTES];
            frame.extend_from_slice(&body);
            segment::seal(&mut frame, 7, offset);
            file.extend(frame);
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(segment::file_name(first)), &file).unwrap();
        if let Ok(log) = open(dir.path()) {
            let _ = log.read(0, u64::MAX, usize::MAX);
            close(log);
        }
    }

    #[test]
    fn any_bytes_as_a_command_are_refused_or_read_back(bytes in vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        if let Ok(order) = Order::read(bytes) {
            let again = Order::new(order.stamped().clone());
            let again = Order::read(again.encoded().clone()).unwrap();
            prop_assert_eq!(again.stamped(), order.stamped());
        }
    }
}

/// Any bytes, or a frame with extreme numbers.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![Just(0), Just(1), Just(u64::MAX - 1), Just(u64::MAX), any::<u64>()];
    let id = (number.clone(), number.clone()).prop_map(|(term, index)| proto::LogId { term, leader: 1, index });
    let entries = vec(
        number.prop_map(|index| proto::Entry {
            payload: Some(proto::entry::Payload::Blank(proto::Blank {})),
            term: 1,
            leader: 1,
            index,
        }),
        0..3,
    );
    let padding = vec(any::<u8>(), 0..9).prop_map(Into::into);
    let frame = (prop::option::of(prop::option::of(id.clone())), entries, prop::option::of(id), padding).prop_map(
        |(cut, entries, committed, padding)| {
            proto::Frame { cut: cut.map(|last| proto::Cut { last }), entries, committed, padding }.encode_to_vec()
        },
    );
    prop_oneof![frame, vec(any::<u8>(), 0..80)]
}
