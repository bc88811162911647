//! The laws of snapshot files: they read back as written, damage is found, and only a newer snapshot replaces one.

use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;

use super::{Sealed, SnapshotError, Snapshots};
use crate::machine::refusal::Fault;
use crate::storage::disk::RealDisk;

fn snapshots(dir: &TempDir) -> Snapshots {
    Snapshots::open(Arc::new(RealDisk), dir.path()).unwrap()
}

fn pairs(count: u32) -> Vec<(Vec<u8>, Bytes)> {
    (0..count).map(|n| (n.to_be_bytes().to_vec(), Bytes::from(vec![n as u8; n as usize % 50]))).collect()
}

fn write(snapshots: &Snapshots, index: u64, pairs: Vec<(Vec<u8>, Bytes)>) -> Sealed {
    snapshots.write(index, Bytes::from_static(b"checkpoint"), Box::new(pairs.into_iter().map(Ok))).unwrap()
}

fn read(snapshots: &Snapshots, sealed: &Sealed) -> Result<Vec<(Vec<u8>, Bytes)>, Fault> {
    snapshots.pairs(sealed).map_err(|error| Fault(error.to_string()))?.collect()
}

#[test]
fn a_snapshot_reads_back_as_written_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = snapshots(&dir);
    assert_eq!(first.newest(), None);
    let sealed = write(&first, 7, pairs(300));
    assert_eq!(first.newest(), None, "it is not used before it is published");
    let published = first.publish(sealed).unwrap();
    assert_eq!(published.path.file_name().unwrap(), "00000000000000000007.snap");
    assert_eq!(published.bytes, fs::metadata(&published.path).unwrap().len());

    let second = snapshots(&dir);
    assert_eq!(second.newest(), Some(published.clone()));
    assert_eq!(read(&second, &published).unwrap(), pairs(300));
    assert_eq!(second.verify(&published.path, 7), Ok(published));
}

#[test]
fn the_bytes_of_a_snapshot_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = snapshots(&dir);
    let pair = (b"k".to_vec(), Bytes::from_static(b"v"));
    let sealed = snapshots.write(7, Bytes::from_static(b"mark"), Box::new([Ok(pair)].into_iter())).unwrap();
    let bytes = fs::read(&sealed.path).unwrap();
    let mut golden = b"SMSNAPSH\x01\0\0\0\x04\0\0\0mark".to_vec();
    golden.extend(b"\x01\0\0\0\x01\0\0\0kv");
    golden.extend(b"\xff\xff\xff\xff\x01\0\0\0\0\0\0\0\x42\0\0\0\0\0\0\0");
    golden.extend(xxhash_rust::xxh3::xxh3_128(&golden).to_le_bytes());
    assert_eq!(bytes, golden);
}

#[test]
fn a_slow_build_never_replaces_a_newer_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = snapshots(&dir);
    let slow = write(&snapshots, 5, pairs(1));
    let newer = snapshots.publish(write(&snapshots, 9, pairs(2))).unwrap();
    assert_eq!(snapshots.publish(slow).unwrap(), newer);
    assert_eq!(snapshots.publish(newer.clone()).unwrap(), newer, "publishing twice is harmless");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_damaged_snapshot_is_found_and_replaced_even_by_one_of_the_same_index() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = snapshots(&dir);
    let good = snapshots.publish(write(&snapshots, 5, pairs(9))).unwrap();
    snapshots.scrub();
    assert!(!snapshots.is_damaged());
    let mut bytes = fs::read(&good.path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&good.path, bytes).unwrap();
    snapshots.scrub();
    assert!(snapshots.is_damaged());
    let again = snapshots.publish(write(&snapshots, 5, pairs(9))).unwrap();
    assert!(!snapshots.is_damaged());
    assert_eq!(read(&snapshots, &again).unwrap(), pairs(9));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_build_that_fails_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = snapshots(&dir);
    let broken = vec![Ok((vec![1], Bytes::new())), Err(Fault("lost".to_owned()))];
    let error = snapshots.write(1, Bytes::new(), Box::new(broken.into_iter())).unwrap_err();
    assert_eq!(error, SnapshotError::State(Fault("lost".to_owned())));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_closed_directory_changes_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = snapshots(&dir);
    let sealed = write(&snapshots, 1, pairs(2));
    snapshots.close();
    assert!(snapshots.publish(sealed).is_err());
    assert!(snapshots.write(2, Bytes::new(), Box::new(pairs(2).into_iter().map(Ok))).is_err());
    assert_eq!(snapshots.newest(), None);
}

#[test]
fn a_snapshot_cut_short_anywhere_is_not_one() {
    let dir = tempfile::tempdir().unwrap();
    let first = snapshots(&dir);
    let published = first.publish(write(&first, 3, pairs(5))).unwrap();
    let whole = fs::read(&published.path).unwrap();
    for cut in 0..whole.len() {
        fs::write(&published.path, &whole[..cut]).unwrap();
        assert_eq!(snapshots(&dir).newest(), None, "cut at {cut}");
    }
}

#[test]
fn a_flipped_bit_anywhere_is_found_before_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let first = snapshots(&dir);
    let published = first.publish(write(&first, 3, pairs(5))).unwrap();
    let whole = fs::read(&published.path).unwrap();
    for at in 0..whole.len() {
        let mut bad = whole.clone();
        bad[at] ^= 4;
        fs::write(&published.path, bad).unwrap();
        assert!(first.verify(&published.path, 3).is_err(), "byte {at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_are_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), keep in 0..120usize) {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = snapshots(&dir);
        let sealed = write(&snapshots, 1, pairs(3));
        let mut file = fs::read(&sealed.path).unwrap();
        file.truncate(keep);
        file.extend(bytes);
        fs::write(&sealed.path, file).unwrap();
        let _ = snapshots.verify(&sealed.path, 1);
    }
}
