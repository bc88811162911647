//! Blocks compared with an ordered map: after any changes both hold the same pairs.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Sled, reduced to what blocks need.
#[derive(Default)]
struct Shelf(RefCell<BTreeMap<Vec<u8>, Bytes>>);

impl Blocks for Shelf {
    fn at_or_before(&self, key: &[u8]) -> Result<Option<(Bytes, Bytes)>, Fault> {
        let shelf = self.0.borrow();
        let found = shelf.range(..=key.to_vec()).next_back();
        Ok(found.map(|(key, value)| (Bytes::copy_from_slice(key), value.clone())))
    }

    fn key_after(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let shelf = self.0.borrow();
        Ok(shelf.keys().find(|found| found.as_slice() > key).map(|found| Bytes::copy_from_slice(found)))
    }
}

impl Shelf {
    fn change(&self, changes: BTreeMap<Vec<u8>, Option<Bytes>>) {
        let mut changes = changes.into_iter().map(Ok).peekable();
        while let Some(group) = next_group(self, &mut changes, &mut |_, _| {}).unwrap() {
            for (key, value) in group {
                match value {
                    Some(value) => self.0.borrow_mut().insert(key, value),
                    None => self.0.borrow_mut().remove(&key),
                };
            }
        }
    }

    fn all(&self) -> BTreeMap<Vec<u8>, Bytes> {
        let mut all = BTreeMap::new();
        for (key, value) in self.0.borrow().iter() {
            match key::run_prefix(key) {
                Some(run) => all.extend(read(run, value).unwrap()),
                None => drop(all.insert(key.clone(), value.clone())),
            }
        }
        all
    }

    fn get(&self, key: &[u8]) -> Option<Bytes> {
        let run = key::run_prefix(key).unwrap();
        let (_, block) = block_of(self, run, key).unwrap()?;
        find(unpack(&block).unwrap(), run, key).unwrap()
    }
}

fn entry(session: &str, n: u32) -> Vec<u8> {
    crate::storage::state::entry::key(&session.into(), &format!("e{n:05}").as_str().into())
}

fn text(bytes: usize) -> Bytes {
    "words and more words, ".bytes().cycle().take(bytes).collect()
}

#[test]
fn a_transcript_that_grows_fills_its_blocks() {
    let shelf = Shelf::default();
    for n in 0..200 {
        shelf.change([(entry("s", n), Some(text(1000)))].into());
    }
    assert!(shelf.0.borrow().len() <= 200 / 7, "{} blocks", shelf.0.borrow().len());
    assert!(shelf.0.borrow().values().all(|block| block.len() < BLOCK_BYTES / 2), "they are compressed");
    assert_eq!(shelf.all().len(), 200);
}

#[test]
fn a_block_never_holds_two_sessions() {
    let shelf = Shelf::default();
    shelf.change(["a", "a\0", "b"].map(|session| (entry(session, 1), Some(text(10)))).into());
    assert_eq!(shelf.0.borrow().len(), 3);
    assert_eq!(shelf.get(&entry("a\0", 1)), Some(text(10)));
    assert_eq!(shelf.get(&entry("a\0", 2)), None);
}

#[test]
fn what_does_not_compress_is_kept_as_it_is() {
    let noise: Bytes = (0..4000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
    let shelf = Shelf::default();
    shelf.change([(entry("s", 1), Some(noise.clone()))].into());
    assert_eq!(shelf.0.borrow().values().next().unwrap()[0], PLAIN);
    assert_eq!(shelf.get(&entry("s", 1)), Some(noise));
}

#[test]
fn the_bytes_of_a_block_stay_as_they_are() {
    let pairs = [(b"\x40ab".to_vec(), Bytes::from_static(b"v")), (b"\x40ac".to_vec(), Bytes::new())];
    assert_eq!(&encode(b"\x40", &pairs)[..], b"\x01\0\0\0\x02\0\0\0\x01abv\0\0\0\x02\0\0\0\0ac");
}

#[test]
fn a_state_that_is_put_whole_is_read_one_block_at_a_time() {
    let pairs = (0..500).map(|n| (entry(if n < 400 { "a" } else { "b" }, n), text(1000)));
    let all: BTreeMap<_, _> = pairs.chain([(b"\x10plain".to_vec(), text(9))]).collect();
    let taken = std::cell::Cell::new(0);
    let counted = all.clone().into_iter().inspect(|_| taken.set(taken.get() + 1));
    let mut pairs = counted.map(|(key, value)| Ok((key, Some(value)))).peekable();
    let shelf = Shelf::default();
    let mut before = 0;
    while let Some(group) = next_fresh(&mut pairs).unwrap() {
        assert!(taken.get() - before <= 9, "{} pairs were held", taken.get() - before);
        before = taken.get();
        shelf.0.borrow_mut().extend(group.into_iter().map(|(key, value)| (key, value.unwrap())));
    }
    assert_eq!(shelf.all(), all);
    assert!(all.keys().filter(|key| key::run_prefix(key).is_some()).all(|key| shelf.get(key).is_some()));
}

proptest! {
    #[test]
    fn blocks_hold_what_a_map_holds(
        steps in prop::collection::vec(prop::collection::vec((0..3u8, 0..60u32, prop::option::of(0..4000usize)), 1..40), 1..12),
    ) {
        let shelf = Shelf::default();
        let mut map = BTreeMap::new();
        for step in steps {
            let key = |session: u8, n: u32| match session {
                0 => crate::storage::state::feed_record::key(crate::machine::ids::FeedPlace { index: u64::from(n), ordinal: 0 }),
                session => entry(&session.to_string(), n),
            };
            let changes: BTreeMap<_, _> =
                step.into_iter().map(|(session, n, bytes)| (key(session, n), bytes.map(text))).collect();
            for (key, value) in &changes {
                match value {
                    Some(value) => map.insert(key.clone(), value.clone()),
                    None => map.remove(key),
                };
            }
            shelf.change(changes);
            prop_assert_eq!(shelf.all(), map.clone());
            for (key, value) in &map {
                prop_assert_eq!(shelf.get(key), Some(value.clone()));
            }
        }
    }

    #[test]
    fn any_bytes_are_a_block_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = read(b"\x40", &bytes.into());
    }

    #[test]
    fn a_spoilt_block_is_read_or_refused(at in any::<prop::sample::Index>(), with in any::<u8>()) {
        let pairs: Vec<_> = (0..40u8).map(|n| (vec![0x40, n], text(50))).collect();
        let mut bytes = encode(b"\x40", &pairs).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = with;
        let _ = read(b"\x40", &bytes.into());
    }
}
