//! Owns: the layers of changed keys in memory over the base, and what readers see through them.
//! Never: when a layer is written to the base (`flusher.rs`).

use std::collections::btree_map::Entry;
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::base::Base;
use super::freeze::Freeze;
use super::recent::{Prepared, Recent, is_plain};
use super::view::StateView;
use super::{Control, KEY_OVERHEAD_BYTES};
use crate::machine::refusal::Fault;
use crate::storage::state::entry_cache::EntryCache;
use crate::storage::state::family::Family;
use crate::storage::state::kv::{Changed, Kv, Layer};
use crate::storage::state::section_cache::SectionCache;
use crate::storage::state::{Encoded, Records, checkpoint, write};

/// The size of the cache of decoded entries.
const ENTRY_CACHE_BYTES: usize = 12 << 20;

/// The size of the cache of sections, which hold most of what readers of transcripts ask for.
const SECTION_CACHE_BYTES: usize = 24 << 20;

pub(super) struct Layers {
    /// The newest commits, without keys.
    pub recent: Recent,
    /// How often they were moved to keys.
    pub keys_made: u64,
    pub active: Changed,
    /// Index keys that are new in this layer; deleting one needs no tombstone. A busy session moves in its indexes with
    /// every append, and only its last position must reach the base.
    fresh: HashSet<Vec<u8>>,
    /// Immutable layers that the flusher writes to the base, oldest first.
    pub sealed: VecDeque<Sealed>,
    pub base: Arc<Base>,
    /// Freezes of this base that are still read.
    pub freezes: Vec<Weak<Freeze>>,
    pub entry_cache: EntryCache,
    pub sections: SectionCache,
}

/// A commit that has read everything it needs.
pub(super) enum Commit {
    /// Into `Recent`.
    Recent(Prepared),
    /// As keys. `Recent` has made its keys before.
    Keys(Changed),
}

pub(super) struct Sealed {
    pub changed: Arc<Changed>,
    pub bytes: usize,
}

impl Layers {
    pub fn over(base: Base) -> Layers {
        Layers {
            recent: Recent::default(),
            keys_made: 0,
            active: Changed::new(),
            fresh: HashSet::new(),
            sealed: VecDeque::new(),
            base: Arc::new(base),
            freezes: Vec::new(),
            entry_cache: EntryCache::new(ENTRY_CACHE_BYTES),
            sections: SectionCache::new(SECTION_CACHE_BYTES),
        }
    }

    /// Calls `read` with the current state.
    pub fn view<R>(&self, read: impl FnOnce(&StateView<'_>) -> R) -> R {
        self.keys(|kv| {
            let records = Records::with_cache(kv, &self.entry_cache);
            read(&StateView { recent: &self.recent, records, sections: &self.sections })
        })
    }

    pub fn checkpoint(&self) -> Result<Option<Bytes>, Fault> {
        match self.recent.checkpoint() {
            Some(checkpoint) => Ok(Some(checkpoint.clone())),
            None => self.keys(|kv| kv.get(&checkpoint::key())),
        }
    }

    /// What a commit reads before it changes anything.
    pub fn prepare(&self, changes: &Encoded<'_>) -> Result<Commit, Fault> {
        self.keys(|kv| {
            if changes.changes().iter().all(is_plain)
                && let Some(prepared) = self.recent.prepare(kv, changes.changes())?
            {
                return Ok(Commit::Recent(prepared));
            }
            Ok(Commit::Keys(write(kv, changes)?))
        })
    }

    /// Makes a prepared commit. Returns by how many bytes the layer grew.
    pub fn commit(&mut self, commit: Commit, changes: &Encoded<'_>, checkpoint: Bytes) -> isize {
        self.sections.forget(changes.changes());
        let before = self.recent.bytes() as isize;
        let grown = match commit {
            Commit::Recent(prepared) => {
                let Layers { recent, active, entry_cache, .. } = self;
                let mut grown = 0;
                let keys = recent.take(prepared, changes, checkpoint, |key, value, entry| {
                    entry_cache.replace(&key, entry);
                    grown += put_at(active.entry(key), Some(value));
                });
                grown + self.put(keys)
            }
            Commit::Keys(mut changed) => {
                self.recent.forget(changes.changes());
                changed.insert(checkpoint::key(), Some(checkpoint));
                self.put(changed)
            }
        };
        grown + self.recent.bytes() as isize - before
    }

    /// Makes the keys of the newest commits. Returns by how many bytes the layer grew.
    pub fn make_keys(&mut self) -> isize {
        let before = self.recent.bytes() as isize;
        self.keys_made += 1;
        let keys = self.recent.make_keys();
        self.put(keys) - before
    }

    /// Calls `read` with the layers of keys over the base. The newest commits may have no keys yet.
    pub fn keys<R>(&self, read: impl FnOnce(&dyn Kv) -> R) -> R {
        let mut read = Some(read);
        let mut result = None;
        let sealed = self.sealed.iter().map(|sealed| &*sealed.changed);
        let older: Vec<&Changed> = sealed.collect();
        with_layers(&older, &*self.base, &mut |below| {
            result = read.take().map(|read| read(&Layer { over: &self.active, base: below }));
        });
        result.expect("with_layers calls its closure exactly once")
    }

    /// Makes the active layer immutable and starts an empty one.
    pub fn seal(&mut self, control: &mut Control) {
        control.active_bytes = control.active_bytes.saturating_add_signed(self.make_keys());
        if self.active.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut control.active_bytes);
        self.fresh.clear();
        control.sealed_bytes += bytes;
        self.sealed.push_back(Sealed { changed: Arc::new(std::mem::take(&mut self.active)), bytes });
    }

    /// Adds changed keys to the active layer. Returns by how many bytes it grew.
    fn put(&mut self, changed: Changed) -> isize {
        let mut grown = 0;
        for (key, value) in changed {
            if Family::Entry.owns(&key) {
                self.entry_cache.remove(&key);
            }
            if value.is_none() && self.fresh.remove(&key) {
                let gone = self.active.remove(&key).flatten();
                grown -= key_cost(&key) + gone.map_or(0, |gone| gone.len()) as isize;
                continue;
            }
            let place = self.active.entry(key);
            // An index key is only put if the state does not have it. So the base does not have it either, unless a
            // sealed layer deletes it.
            if let Entry::Vacant(absent) = &place {
                let known = |sealed: &Sealed| sealed.changed.contains_key(absent.key());
                if value.is_some() && Family::List.owns(absent.key()) && !self.sealed.iter().any(known) {
                    self.fresh.insert(absent.key().clone());
                }
            }
            grown += put_at(place, value);
        }
        grown
    }
}

fn key_cost(key: &[u8]) -> isize {
    (key.len() + KEY_OVERHEAD_BYTES) as isize
}

/// Puts a value. Returns by how many bytes the layer grew.
fn put_at(place: Entry<'_, Vec<u8>, Option<Bytes>>, value: Option<Bytes>) -> isize {
    let length = value.as_ref().map_or(0, Bytes::len) as isize;
    match place {
        Entry::Occupied(mut present) => length - present.insert(value).map_or(0, |old| old.len()) as isize,
        Entry::Vacant(absent) => {
            let cost = key_cost(absent.key());
            absent.insert(value);
            length + cost
        }
    }
}

/// Calls `read` once with the layers (oldest first) over the base.
fn with_layers(layers: &[&Changed], base: &dyn Kv, read: &mut dyn FnMut(&dyn Kv)) {
    match layers.split_last() {
        None => read(base),
        Some((newest, older)) => with_layers(older, base, &mut |below| read(&Layer { over: newest, base: below })),
    }
}
