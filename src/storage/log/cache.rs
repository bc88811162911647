//! Owns: the newest entries of the log in memory, bounded in bytes. Entries that are not in a file yet are never
//! evicted.

use std::collections::VecDeque;

use super::record::Entry;

#[derive(Debug)]
pub struct Cache {
    entries: VecDeque<Entry>,
    bytes: usize,
    bytes_max: usize,
}

impl Cache {
    pub fn new(bytes_max: usize) -> Cache {
        Cache { entries: VecDeque::new(), bytes: 0, bytes_max }
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

    /// Evicts the oldest entries while the cache is too large, but only those that are in a file (`index < written`).
    pub fn shrink(&mut self, written: u64) {
        while self.bytes > self.bytes_max && self.first().is_some_and(|first| first < written) {
            self.drop_front();
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
