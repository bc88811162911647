//! Owns: the state in memory. Serves the local adapter (whose truth is its JSONL files) and every test.
//! Never: a disk.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;

use super::kv::{Changed, Kv, Visit};
use super::view::{Records, write};
use super::{Frozen, Pairs, Store, keys};
use crate::machine::refusal::Fault;
use crate::machine::view::{Change, View};

/// An ordered map in memory.
#[derive(Debug, Default, Clone)]
pub struct Tree {
    pairs: BTreeMap<Vec<u8>, Bytes>,
}

impl Tree {
    pub fn merge(&mut self, changed: Changed) {
        for (key, value) in changed {
            match value {
                Some(value) => self.pairs.insert(key, value),
                None => self.pairs.remove(&key),
            };
        }
    }
}

impl Kv for Tree {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        Ok(self.pairs.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: Visit<'_>) -> Result<(), Fault> {
        if to.is_some_and(|to| to <= from) {
            return Ok(());
        }
        let upper = to.map_or(Bound::Unbounded, Bound::Excluded);
        for (key, value) in self.pairs.range::<[u8], _>((Bound::Included(from), upper)) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// A `Store` that lives as long as its process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    tree: RwLock<Tree>,
}

impl MemoryStore {
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// A consistent look at the keys: nothing is merged while the guard lives.
    pub fn tree(&self) -> RwLockReadGuard<'_, Tree> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes changed keys visible, all at once.
    pub fn merge(&self, changed: Changed) {
        self.tree_mut().merge(changed);
    }

    fn tree_mut(&self) -> RwLockWriteGuard<'_, Tree> {
        self.tree.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn look(&self, look: &mut dyn FnMut(&dyn View)) {
        look(&Records::new(&*self.tree()));
    }

    fn commit(&self, changes: &[Change], mark: Bytes) -> Result<(), Fault> {
        let mut tree = self.tree_mut();
        let mut changed = write(&*tree, changes)?;
        changed.insert(keys::mark(), Some(mark));
        tree.merge(changed);
        Ok(())
    }

    fn mark(&self) -> Result<Option<Bytes>, Fault> {
        self.tree().get(&keys::mark())
    }

    fn freeze(&self) -> Result<Frozen, Fault> {
        let mut pairs = self.tree().pairs.clone();
        let mark = pairs.remove(&keys::mark());
        Ok(Frozen { mark, pairs: Box::new(pairs.into_iter().map(Ok)) })
    }

    fn replace(&self, pairs: Pairs<'_>, mark: Bytes) -> Result<(), Fault> {
        let mut pairs = pairs.collect::<Result<BTreeMap<_, _>, Fault>>()?;
        pairs.insert(keys::mark(), mark);
        *self.tree_mut() = Tree { pairs };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::look;

    #[test]
    fn a_freeze_keeps_its_moment_while_the_state_moves_on() {
        let store = MemoryStore::new();
        store.commit(&[Change::SetClock(1)], Bytes::from_static(b"one")).unwrap();
        let frozen = store.freeze().unwrap();
        store.commit(&[Change::SetClock(2)], Bytes::from_static(b"two")).unwrap();
        assert_eq!(frozen.mark.as_deref(), Some(&b"one"[..]));

        let copy = MemoryStore::new();
        copy.replace(frozen.pairs, Bytes::from_static(b"copied")).unwrap();
        assert_eq!(look(&copy, |view| view.clock_ms()), Ok(1));
        assert_eq!(copy.mark().unwrap().as_deref(), Some(&b"copied"[..]));
        assert_eq!(look(&store, |view| view.clock_ms()), Ok(2));
    }

    #[test]
    fn a_replacement_that_breaks_off_leaves_the_old_state() {
        let store = MemoryStore::new();
        store.commit(&[Change::SetClock(1)], Bytes::from_static(b"one")).unwrap();
        let broken = vec![Ok((keys::clock(), Bytes::from_static(b"x"))), Err(Fault("cut".to_owned()))];
        assert!(store.replace(Box::new(broken.into_iter()), Bytes::new()).is_err());
        assert_eq!(look(&store, |view| view.clock_ms()), Ok(1));
    }
}
