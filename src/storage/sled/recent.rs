//! Owns: entries that were read or written lately, parsed. A page of a transcript is a hundred lookups in sled and a hundred parsed
//! records, and live transcripts are read again and again.
//!
//! Correct by the lock of the layers: readers add under its shared side, commits forget and add under its exclusive side,
//! so no reader can add what a commit has replaced. Bounded in bytes; what was not read for a while goes first.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, PoisonError};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::machine::entry::Entry;
use crate::storage::view::ParsedEntries;

/// Readers on different cores rarely meet in one shard.
const SHARDS: usize = 16;

/// A larger entry is worth less than those it would push out.
const ENTRY_BYTES_MAX: usize = 64 << 10;

/// What an entry costs in memory beside its body: ids, maps, counters.
const OVERHEAD_BYTES: usize = 400;

pub struct Recent {
    shards: [Mutex<Shard>; SHARDS],
    seed: Seed,
    /// The most that the young half of one shard holds before it becomes the old half.
    half_bytes: usize,
}

impl ParsedEntries for Recent {
    fn get(&self, key: &[u8]) -> Option<Entry> {
        Recent::get(self, key)
    }

    fn keep(&self, key: Vec<u8>, entry: &Entry) {
        Recent::keep(self, key, entry);
    }
}

/// Hashes keys: they are long, and a page asks for a hundred of them. Seeded by chance, so that nobody can choose ids that
/// fall into one bucket.
#[derive(Debug, Clone, Copy)]
struct Seed(u64);

struct KeyHasher(u64);

impl BuildHasher for Seed {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.0)
    }
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn write_usize(&mut self, _length: usize) {
        // The bytes of a key tell its length already.
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Two halves: an entry of the old one that is read again becomes young; when the young half is full it takes the place
/// of the old one.
struct Shard {
    young: HashMap<Vec<u8>, Entry, Seed>,
    young_bytes: usize,
    old: HashMap<Vec<u8>, Entry, Seed>,
}

impl Recent {
    pub fn new(bytes_max: usize) -> Recent {
        let seed = Seed(RandomState::new().hash_one(0));
        let empty = || HashMap::with_hasher(seed);
        let shard = |_| Mutex::new(Shard { young: empty(), young_bytes: 0, old: empty() });
        Recent { shards: std::array::from_fn(shard), seed, half_bytes: bytes_max / SHARDS / 2 }
    }

    pub fn get(&self, key: &[u8]) -> Option<Entry> {
        let mut shard = self.shard(key).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = shard.young.get(key) {
            return Some(entry.clone());
        }
        let (key, entry) = shard.old.remove_entry(key)?;
        shard.add(key, entry.clone(), self.half_bytes);
        Some(entry)
    }

    pub fn keep(&self, key: Vec<u8>, entry: &Entry) {
        if weight(entry) <= ENTRY_BYTES_MAX {
            let mut shard = self.shard(&key).lock().unwrap_or_else(PoisonError::into_inner);
            shard.add(key, entry.clone(), self.half_bytes);
        }
    }

    /// The caller holds the layers alone.
    pub fn forget(&mut self, key: &[u8]) {
        let at = self.place(key);
        let shard = self.shards[at].get_mut().unwrap_or_else(PoisonError::into_inner);
        shard.old.remove(key);
        if let Some(entry) = shard.young.remove(key) {
            shard.young_bytes -= weight(&entry);
        }
    }

    fn place(&self, key: &[u8]) -> usize {
        (self.seed.hash_one(key) >> 32) as usize % SHARDS
    }

    fn shard(&self, key: &[u8]) -> &Mutex<Shard> {
        &self.shards[self.place(key)]
    }
}

impl Shard {
    fn add(&mut self, key: Vec<u8>, entry: Entry, half_bytes: usize) {
        self.young_bytes += weight(&entry);
        if let Some(replaced) = self.young.insert(key, entry) {
            self.young_bytes -= weight(&replaced);
        }
        if self.young_bytes > half_bytes {
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
            self.young_bytes = 0;
        }
    }
}

fn weight(entry: &Entry) -> usize {
    OVERHEAD_BYTES + entry.body.bytes() + entry.origin.as_ref().map_or(0, |origin| origin.text().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::entry::Body;
    use crate::machine::json::Json;

    fn entry(id: &str, bytes: usize) -> Entry {
        let data = Json::adopt(&format!("\"{}\"", "x".repeat(bytes)));
        Entry {
            id: id.into(),
            parent_id: None,
            timestamp: 1,
            revision: 0,
            origin: None,
            body: Body::Custom { custom_type: "c".to_owned(), data },
            place: None,
        }
    }

    fn bytes(recent: &Recent) -> usize {
        let halves = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap();
            shard.young.values().chain(shard.old.values()).map(weight).sum::<usize>()
        };
        recent.shards.iter().map(halves).sum()
    }

    #[test]
    fn what_was_kept_is_found_until_it_is_forgotten() {
        let mut recent = Recent::new(1 << 20);
        recent.keep(b"a".to_vec(), &entry("a", 10));
        recent.keep(b"a".to_vec(), &entry("a", 20));
        assert_eq!(recent.get(b"a"), Some(entry("a", 20)));
        recent.forget(b"a");
        recent.forget(b"never kept");
        assert_eq!(recent.get(b"a"), None);
        assert_eq!(bytes(&recent), 0);
    }

    #[test]
    fn the_bound_holds_and_what_is_read_again_stays() {
        let bytes_max = 256 << 10;
        let recent = Recent::new(bytes_max);
        recent.keep(b"hot".to_vec(), &entry("hot", 1000));
        for n in 0..2000 {
            let id = format!("cold {n}");
            recent.keep(id.clone().into_bytes(), &entry(&id, 1000));
            assert!(recent.get(b"hot").is_some(), "after {n}");
            // One entry per half of a shard may stand over.
            assert!(bytes(&recent) <= bytes_max + 2 * SHARDS * 1500);
        }
        assert_eq!(recent.get(b"cold 0"), None);
    }

    #[test]
    fn an_entry_that_would_push_out_many_is_not_kept() {
        let recent = Recent::new(1 << 20);
        recent.keep(b"a".to_vec(), &entry("a", ENTRY_BYTES_MAX));
        assert_eq!(recent.get(b"a"), None);
    }
}
