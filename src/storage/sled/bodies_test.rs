//! Tests of the body files: references, checksums, torn ends, reclaimed space.

use super::*;
use crate::storage::state::entry;

fn key(n: u32) -> Vec<u8> {
    entry::key(&"s".into(), &format!("e{n:05}").into())
}

fn value(n: u32, bytes: usize) -> Bytes {
    format!("{n} {}", "word ".repeat(bytes / 5 + 1)).into_bytes().into()
}

/// Adds bodies and returns what sled would hold for them.
fn add(bodies: &Bodies, values: &[(u32, Bytes)]) -> Vec<(Vec<u8>, Bytes)> {
    let mut writer = bodies.writer();
    let stored = values.iter().map(|(n, value)| {
        let (key, stored) = writer.store((key(*n), Some(value.clone()))).unwrap();
        (key, stored.unwrap())
    });
    let stored = stored.collect();
    writer.finish().unwrap();
    stored
}

fn read(bodies: &Bodies, key: &[u8], stored: &[u8]) -> Result<Bytes, BodyFault> {
    bodies.read(key, Place::of(key, stored)?.expect("a reference"))
}

fn opened(dir: &Path, book: Book) -> Bodies {
    Bodies::open(dir, book).unwrap()
}

#[test]
fn a_body_reads_back_as_written_now_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let bodies = opened(dir.path(), Book::new());
    let values: Vec<_> = (0..40).map(|n| (n, value(n, 100 + 400 * n as usize))).collect();
    let stored = add(&bodies, &values);
    let book = bodies.book().clone();
    assert_eq!(parse_book(&print_book(&book)), Some(book.clone()));
    for bodies in [bodies, opened(dir.path(), book)] {
        for ((_, value), (key, stored)) in values.iter().zip(&stored) {
            if value.len() >= BODY_BYTES_MIN {
                assert_eq!(stored.len(), REFERENCE_BYTES);
                assert_eq!(read(&bodies, key, stored).unwrap(), *value);
            } else {
                assert_eq!(stored, value);
            }
        }
    }
}

#[test]
fn a_short_value_that_looks_like_a_reference_does_not_stand_in_sled() {
    let dir = tempfile::tempdir().unwrap();
    let bodies = opened(dir.path(), Book::new());
    let odd = Bytes::from_static(b"\0short");
    let stored = add(&bodies, &[(1, odd.clone())]);
    assert_eq!(read(&bodies, &stored[0].0, &stored[0].1).unwrap(), odd);
}

#[test]
fn only_long_values_of_entries_leave_sled() {
    let dir = tempfile::tempdir().unwrap();
    let bodies = opened(dir.path(), Book::new());
    let mut writer = bodies.writer();
    let long = Some(value(1, 5000));
    let feed = (vec![Family::Feed as u8, 1], long.clone());
    assert_eq!(writer.store(feed.clone()).unwrap(), feed);
    assert_eq!(writer.store((key(1), None)).unwrap(), (key(1), None));
    assert_ne!(writer.store((key(1), long.clone())).unwrap().1, long);
}

#[test]
fn the_bytes_of_a_body_file_and_of_its_book_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let bodies = opened(dir.path(), Book::new());
    // Incompressible, so that the bytes do not depend on the version of LZ4.
    let stored = add(&bodies, &[(1, Bytes::from_static(b"\0v"))]);
    assert_eq!(&stored[0].1[..], b"\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\x02");
    let mut records = b"\0\0\0\x0c\0\0\0\x02".to_vec();
    records.extend(key(1));
    records.extend(b"\0v");
    let mut golden = b"\0\0\0\x16\0\0\0\x16".to_vec();
    golden.extend(crc32fast::hash(&[&b"\0\0\0\x01\0\0\0\0\0\0\0\x16\0\0\0\x16"[..], &records].concat()).to_be_bytes());
    golden.extend(records);
    assert_eq!(fs::read(body_path(dir.path(), 1)).unwrap(), golden);
    let book = b"\x01\0\0\0\x01\0\0\0\x22\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0";
    assert_eq!(print_book(&bodies.book())[..], book[..]);
}

#[test]
fn what_a_flush_left_that_did_not_happen_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let bodies = opened(dir.path(), Book::new());
    let kept = add(&bodies, &[(1, value(1, 300))]);
    let book = bodies.book().clone();
    add(&bodies, &[(2, value(2, 300))]);
    fs::write(body_path(dir.path(), 7), b"of a flush that never ended").unwrap();
    fs::write(dir.path().join("bodies-of-another"), b"not ours").unwrap();
    let bodies = opened(dir.path(), book.clone());
    assert_eq!(fs::metadata(body_path(dir.path(), 1)).unwrap().len(), u64::from(book[&1].end));
    assert!(!body_path(dir.path(), 7).exists());
    assert!(dir.path().join("bodies-of-another").exists());
    // The next body takes the place of the one that was cut off.
    let next = add(&bodies, &[(3, value(3, 300))]);
    assert_eq!(read(&bodies, &kept[0].0, &kept[0].1).unwrap(), value(1, 300));
    assert_eq!(read(&bodies, &next[0].0, &next[0].1).unwrap(), value(3, 300));
}

#[test]
fn a_file_that_lost_its_end_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let bodies = opened(dir.path(), Book::new());
    add(&bodies, &[(1, value(1, 300))]);
    let book = bodies.book().clone();
    OpenOptions::new().write(true).open(body_path(dir.path(), 1)).unwrap().set_len(20).unwrap();
    let error = Bodies::open(dir.path(), book).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn every_flipped_byte_of_a_body_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let stored = add(&opened(dir.path(), Book::new()), &[(1, value(1, 300)), (2, Bytes::from_static(b"\0x"))]);
    let path = body_path(dir.path(), 1);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        fs::write(&path, &flipped).unwrap();
        let bodies = Bodies::closed(dir.path());
        for (key, stored) in &stored {
            assert!(matches!(read(&bodies, key, stored), Err(BodyFault::Damaged(_))), "byte {at}");
        }
    }
}

#[test]
fn a_reference_to_another_record_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let bodies = opened(dir.path(), Book::new());
    let stored = add(&bodies, &[(1, value(1, 300)), (2, value(2, 300))]);
    assert!(matches!(read(&bodies, &stored[0].0, &stored[1].1), Err(BodyFault::Damaged(_))));
    for at in 1..REFERENCE_BYTES {
        let mut wrong = stored[0].1.to_vec();
        wrong[at] ^= 0x41;
        assert!(matches!(read(&bodies, &stored[0].0, &wrong), Err(BodyFault::Damaged(_))), "byte {at}");
    }
    assert!(matches!(read(&bodies, &stored[0].0, &stored[0].1[..9]), Err(BodyFault::Damaged(_))));
}

#[test]
fn a_full_file_is_followed_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let full = Extent { end: FILE_BYTES, total: 10, dead: 0 };
    let path = body_path(dir.path(), 4);
    File::create(&path).unwrap().set_len(u64::from(FILE_BYTES)).unwrap();
    let bodies = opened(dir.path(), Book::from([(4, full)]));
    let values: Vec<_> = (0..100).map(|n| (n, value(n, 1000))).collect();
    let stored = add(&bodies, &values);
    assert_eq!(fs::metadata(&path).unwrap().len(), u64::from(FILE_BYTES));
    assert_eq!(bodies.book().keys().copied().collect::<Vec<_>>(), [4, 5]);
    let mut visited = 0;
    let mut next = Some(0);
    while let Some(from) = next {
        let visit = &mut |key: Bytes, place: Place, value: Bytes| {
            assert_eq!((&stored[visited].0[..], stored[visited].1.clone()), (&key[..], place.reference()));
            assert_eq!(value, values[visited].1);
            visited += 1;
            Ok(())
        };
        next = bodies.visit(5, from, 1, visit).unwrap_or_else(|_| panic!("a good file"));
    }
    assert_eq!(visited, values.len());
}

#[test]
fn a_file_that_is_mostly_dead_gets_no_more_bodies_and_its_number_is_never_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let half_dead = Extent { end: REWRITE_BYTES_MIN, total: 10, dead: 5 };
    let mostly_dead = Extent { dead: 6, ..half_dead };
    let small = Extent { end: REWRITE_BYTES_MIN - 1, ..mostly_dead };
    assert_eq!([half_dead, mostly_dead, small].map(|extent| extent.is_closed()), [false, true, false]);

    File::create(body_path(dir.path(), 4)).unwrap().set_len(u64::from(REWRITE_BYTES_MIN)).unwrap();
    let bodies = opened(dir.path(), Book::from([(4, mostly_dead)]));
    let mut writer = bodies.writer();
    writer.forget(4).unwrap();
    writer.finish().unwrap();
    assert!(bodies.remove(4).unwrap());
    // The same after a restart.
    let book = bodies.book().clone();
    assert_eq!(book, Book::from([(5, Extent::default())]));
    let bodies = opened(dir.path(), parse_book(&print_book(&book)).unwrap());
    let stored = add(&bodies, &[(1, value(1, 300))]);
    assert_eq!(bodies.book().keys().copied().collect::<Vec<_>>(), [5]);
    assert_eq!(read(&bodies, &stored[0].0, &stored[0].1).unwrap_or_default(), value(1, 300));
}

#[test]
fn a_file_is_not_removed_while_somebody_reads() {
    let dir = tempfile::tempdir().unwrap();
    let bodies = opened(dir.path(), Book::new());
    let stored = add(&bodies, &[(1, value(1, 300))]);
    let reading = bodies.reading();
    assert!(!bodies.remove(1).unwrap());
    assert!(read(&bodies, &stored[0].0, &stored[0].1).is_ok());
    drop(reading);
    assert!(bodies.remove(1).unwrap());
    assert!(matches!(read(&bodies, &stored[0].0, &stored[0].1), Err(BodyFault::Damaged(_))));
}
