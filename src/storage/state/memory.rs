//! Owns: the state in memory, for the local adapter (which persists to JSONL files) and for tests.
//! Never: a disk.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;

use super::kv::{Changed, Kv, Visit, scan_map};
use super::{Encoded, Records, checkpoint, write};
use crate::machine::refusal::Fault;
use crate::machine::view::View;
use crate::storage::{Frozen, Pairs, Store};

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
        scan_map(&self.pairs, from, to, visit)
    }
}

/// A `Store` without persistence.
#[derive(Debug, Default)]
pub struct MemoryStore {
    tree: RwLock<Tree>,
}

impl MemoryStore {
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// Read access to the keys. Nothing is merged while the guard exists.
    pub fn tree(&self) -> RwLockReadGuard<'_, Tree> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes changed keys visible atomically.
    pub fn merge(&self, changed: Changed) {
        self.tree_mut().merge(changed);
    }

    fn tree_mut(&self) -> RwLockWriteGuard<'_, Tree> {
        self.tree.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn read(&self, read: &mut dyn FnMut(&dyn View)) {
        read(&Records::new(&*self.tree()));
    }

    fn commit_encoded(&self, changes: &Encoded<'_>, checkpoint: Bytes) -> Result<(), Fault> {
        let mut tree = self.tree_mut();
        let mut changed = write(&*tree, changes)?;
        changed.insert(checkpoint::key(), Some(checkpoint));
        tree.merge(changed);
        Ok(())
    }

    fn checkpoint(&self) -> Result<Option<Bytes>, Fault> {
        self.tree().get(&checkpoint::key())
    }

    fn freeze(&self) -> Result<Frozen, Fault> {
        let mut pairs = self.tree().pairs.clone();
        let checkpoint = pairs.remove(&checkpoint::key());
        Ok(Frozen { checkpoint, pairs: Box::new(pairs.into_iter().map(Ok)), apart: None })
    }

    fn replace(&self, pairs: Pairs<'_>, checkpoint: Bytes) -> Result<(), Fault> {
        let mut pairs = pairs.collect::<Result<BTreeMap<_, _>, Fault>>()?;
        pairs.insert(checkpoint::key(), checkpoint);
        *self.tree_mut() = Tree { pairs };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::change::Change;
    use crate::storage::state::clock;
    use crate::storage::with_view;

    #[test]
    fn a_freeze_stays_the_same_while_the_state_changes() {
        let store = MemoryStore::new();
        store.commit(&[Change::Clock(1)], Bytes::from_static(b"one")).unwrap();
        let frozen = store.freeze().unwrap();
        store.commit(&[Change::Clock(2)], Bytes::from_static(b"two")).unwrap();
        assert_eq!(frozen.checkpoint.as_deref(), Some(&b"one"[..]));

        let copy = MemoryStore::new();
        copy.replace(frozen.pairs, Bytes::from_static(b"copied")).unwrap();
        assert_eq!(with_view(&copy, |view| view.clock_ms()), Ok(1));
        assert_eq!(copy.checkpoint().unwrap().as_deref(), Some(&b"copied"[..]));
        assert_eq!(with_view(&store, |view| view.clock_ms()), Ok(2));
    }

    #[test]
    fn a_replacement_that_breaks_off_leaves_the_old_state() {
        let store = MemoryStore::new();
        store.commit(&[Change::Clock(1)], Bytes::from_static(b"one")).unwrap();
        let broken = vec![Ok((clock::key(), Bytes::from_static(b"x"))), Err(Fault("cut".to_owned()))];
        assert!(store.replace(Box::new(broken.into_iter()), Bytes::new()).is_err());
        assert_eq!(with_view(&store, |view| view.clock_ms()), Ok(1));
    }
}
