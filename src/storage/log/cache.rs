//! Owns: the newest entries of the log in memory, bounded in bytes. Entries that are not in a file yet are never
//! evicted. Entries that apply has not read yet have a larger bound: apply needs each of them once, soon, and on the thread
//! of consensus, which must not wait for a disk.

use std::collections::VecDeque;

use super::record::Entry;

/// How many times the bound the cache may hold while apply is behind. With the default bound that is 128 MiB: some batches
/// of the largest size.
const BEHIND_FACTOR: usize = 8;

#[derive(Debug)]
pub struct Cache {
    entries: VecDeque<Entry>,
    bytes: usize,
    bytes_max: usize,
    /// Apply has read the entries below this index. `None` until it reads the first time.
    applied: Option<u64>,
}

impl Cache {
    pub fn new(bytes_max: usize) -> Cache {
        Cache { entries: VecDeque::new(), bytes: 0, bytes_max, applied: None }
    }

    /// The index of the oldest cached entry.
    pub fn first(&self) -> Option<u64> {
        self.entries.front().map(Entry::index)
    }

    /// The entry with this index, if it is cached.
    pub fn get(&self, index: u64) -> Option<&Entry> {
        let at = index.checked_sub(self.first()?)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// Adds an entry after the newest one.
    pub fn push(&mut self, entry: Entry) {
        self.bytes += entry.weight();
        self.entries.push_back(entry);
    }

    /// Apply has read the entries below this index.
    pub fn applied(&mut self, next: u64) {
        self.applied = self.applied.max(Some(next));
    }

    /// Evicts the oldest entries while the cache is too large, but only those that are in a file (`index < written`).
    pub fn shrink(&mut self, written: u64) {
        while let Some(first) = self.first()
            && first < written
            && self.bytes > self.bound(first)
        {
            self.drop_front();
        }
    }

    /// How large the cache may be with this entry in it.
    fn bound(&self, index: u64) -> usize {
        match self.applied {
            Some(applied) if index >= applied => self.bytes_max.saturating_mul(BEHIND_FACTOR),
            Some(_) | None => self.bytes_max,
        }
    }

    /// Removes the entries from this index on.
    pub fn truncate(&mut self, from: u64) {
        while let Some(entry) = self.entries.pop_back_if(|entry| entry.index() >= from) {
            self.bytes -= entry.weight();
        }
    }

    /// Removes the entries up to this index.
    pub fn purge(&mut self, upto: u64) {
        while self.first().is_some_and(|first| first <= upto) {
            self.drop_front();
        }
    }

    fn drop_front(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry.weight();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::log::record::{LogId, Payload};

    fn entry(index: u64) -> Entry {
        Entry { id: LogId::new(1, 1, index), payload: Payload::Blank }
    }

    #[test]
    fn entries_that_are_in_no_file_yet_are_kept_beyond_the_bound() {
        let mut cache = Cache::new(3 * entry(0).weight());
        (5..15).for_each(|index| cache.push(entry(index)));
        cache.shrink(7);
        assert_eq!(cache.first(), Some(7));
        cache.shrink(15);
        assert_eq!(cache.first(), Some(12));
        assert_eq!(cache.get(13).map(Entry::index), Some(13));
        assert!(cache.get(11).is_none() && cache.get(15).is_none());
    }

    #[test]
    fn entries_that_apply_has_not_read_yet_are_kept_longer() {
        let mut cache = Cache::new(3 * entry(0).weight());
        (0..100).for_each(|index| cache.push(entry(index)));
        cache.applied(40);
        cache.shrink(100);
        // Of those that apply needs, as many as the larger bound allows.
        assert_eq!(cache.first(), Some(100 - 3 * BEHIND_FACTOR as u64));
        cache.applied(90);
        // A second reader that began earlier changes nothing.
        cache.applied(50);
        cache.shrink(100);
        assert_eq!(cache.first(), Some(90));
        cache.applied(100);
        cache.shrink(100);
        assert_eq!(cache.first(), Some(97));
    }

    #[test]
    fn truncate_and_purge_remove_both_ends() {
        let mut cache = Cache::new(usize::MAX);
        (0..10).for_each(|index| cache.push(entry(index)));
        cache.truncate(8);
        cache.purge(2);
        assert_eq!((cache.first(), cache.get(7).is_some(), cache.get(8).is_none()), (Some(3), true, true));
        cache.purge(100);
        assert_eq!((cache.first(), cache.bytes), (None, 0));
    }
}
