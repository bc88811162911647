//! Owns: a cache of decoded entries that were read recently. One page of a transcript takes a hundred lookups and a
//! hundred decoded records, and live transcripts are read often. Entries that are only written are not cached: an append
//! reads no entry.
//!
//! The lock of the store keeps it correct: readers add entries under the shared lock, commits replace and remove them
//! under the exclusive lock. So no reader can add an entry that a commit has replaced. The cache is bounded in bytes;
//! entries that were not read recently are evicted first.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Mutex, PoisonError};

use super::seeded_hash::Seed;
use crate::machine::entry::Entry;

/// Enough that readers on different cores rarely wait for the same shard.
const SHARDS: usize = 16;

/// A larger entry would evict too many others.
const ENTRY_BYTES_MAX: usize = 64 << 10;

/// About how much memory an entry takes beside its body: ids, maps, counters.
const OVERHEAD_BYTES: usize = 400;

pub struct EntryCache {
    shards: [Mutex<Shard>; SHARDS],
    seed: Seed,
    /// When the young half of a shard exceeds this, it becomes the old half.
    half_bytes: usize,
}

/// Two halves. An entry of the old half that is read moves to the young half. When the young half is full it replaces
/// the old one.
struct Shard {
    young: HashMap<Vec<u8>, Entry, Seed>,
    young_bytes: usize,
    old: HashMap<Vec<u8>, Entry, Seed>,
}

impl EntryCache {
    pub fn new(bytes_max: usize) -> EntryCache {
        let seed = Seed::default();
        let empty = || HashMap::with_hasher(seed);
        let shard = |_| Mutex::new(Shard { young: empty(), young_bytes: 0, old: empty() });
        EntryCache { shards: std::array::from_fn(shard), seed, half_bytes: bytes_max / SHARDS / 2 }
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

    pub fn put(&self, key: Vec<u8>, entry: &Entry) {
        if weight(entry) <= ENTRY_BYTES_MAX {
            let mut shard = self.shard(&key).lock().unwrap_or_else(PoisonError::into_inner);
            shard.add(key, entry.clone(), self.half_bytes);
        }
    }

    /// Replaces an entry that is cached: a message that grows is read with every update. Needs exclusive access: only a
    /// commit replaces.
    pub fn replace(&mut self, key: &[u8], entry: &Entry) {
        let (at, half_bytes) = (self.place(key), self.half_bytes);
        let shard = self.shards[at].get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((key, _)) = shard.remove(key)
            && weight(entry) <= ENTRY_BYTES_MAX
        {
            shard.add(key, entry.clone(), half_bytes);
        }
    }

    /// Needs exclusive access: only a commit removes.
    pub fn remove(&mut self, key: &[u8]) {
        let at = self.place(key);
        self.shards[at].get_mut().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    fn place(&self, key: &[u8]) -> usize {
        (self.seed.hash_one(key) >> 32) as usize % SHARDS
    }

    fn shard(&self, key: &[u8]) -> &Mutex<Shard> {
        &self.shards[self.place(key)]
    }
}

impl Shard {
    fn remove(&mut self, key: &[u8]) -> Option<(Vec<u8>, Entry)> {
        // Two readers that missed it together may have put it into both halves.
        let old = self.old.remove_entry(key);
        let young = self.young.remove_entry(key).inspect(|(_, entry)| self.young_bytes -= weight(entry));
        young.or(old)
    }

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

    fn bytes(cache: &EntryCache) -> usize {
        let halves = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap();
            shard.young.values().chain(shard.old.values()).map(weight).sum::<usize>()
        };
        cache.shards.iter().map(halves).sum()
    }

    #[test]
    fn an_entry_is_found_until_it_is_removed() {
        let mut cache = EntryCache::new(1 << 20);
        cache.put(b"a".to_vec(), &entry("a", 10));
        cache.put(b"a".to_vec(), &entry("a", 20));
        assert_eq!(cache.get(b"a"), Some(entry("a", 20)));
        cache.remove(b"a");
        cache.remove(b"never kept");
        assert_eq!(cache.get(b"a"), None);
        assert_eq!(bytes(&cache), 0);
    }

    #[test]
    fn only_what_is_cached_is_replaced() {
        let mut cache = EntryCache::new(1 << 20);
        cache.replace(b"a", &entry("a", 10));
        assert_eq!(cache.get(b"a"), None, "nobody has read it");
        cache.put(b"a".to_vec(), &entry("a", 10));
        cache.replace(b"a", &entry("a", 30));
        assert_eq!(cache.get(b"a"), Some(entry("a", 30)));
        assert_eq!(bytes(&cache), weight(&entry("a", 30)));
        cache.replace(b"a", &entry("a", ENTRY_BYTES_MAX));
        assert_eq!((cache.get(b"a"), bytes(&cache)), (None, 0), "too large");
    }

    #[test]
    fn the_bound_holds_and_what_is_read_again_stays() {
        let bytes_max = 256 << 10;
        let cache = EntryCache::new(bytes_max);
        cache.put(b"hot".to_vec(), &entry("hot", 1000));
        for n in 0..2000 {
            let id = format!("cold {n}");
            cache.put(id.clone().into_bytes(), &entry(&id, 1000));
            assert!(cache.get(b"hot").is_some(), "after {n}");
            // Each half of a shard may exceed its limit by one entry.
            assert!(bytes(&cache) <= bytes_max + 2 * SHARDS * 1500);
        }
        assert_eq!(cache.get(b"cold 0"), None);
    }

    #[test]
    fn an_entry_that_would_push_out_many_is_not_kept() {
        let cache = EntryCache::new(1 << 20);
        cache.put(b"a".to_vec(), &entry("a", ENTRY_BYTES_MAX));
        assert_eq!(cache.get(b"a"), None);
    }
}
