//! Owns: `Kv`, the ordered key-value interface of every state, and `Layer`, changed keys over an unchanged base.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use bytes::Bytes;

use super::key;
use crate::machine::refusal::Fault;

/// An ordered map of bytes.
pub trait Kv {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault>;

    /// Visits the pairs with `from <= key < to` in key order until the visitor breaks. Without `to`: to the end.
    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: Visit<'_>) -> Result<(), Fault>;
}

pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &Bytes) -> ControlFlow<()>;

/// Values that are read to free them in one command: a deletion reads them too.
const FREE_BYTES_MAX: usize = 4 << 20;

/// Up to `limit` keys under a prefix, fewer if their values are large, and whether there are more.
pub fn some_keys<K: Kv + ?Sized>(kv: &K, prefix: &[u8], limit: usize) -> Result<(Vec<Vec<u8>>, bool), Fault> {
    let (mut found, mut bytes, mut more) = (Vec::new(), 0, false);
    kv.scan(prefix, key::after(prefix).as_deref(), &mut |key, value| {
        more = found.len() == limit || bytes > FREE_BYTES_MAX;
        if more {
            return ControlFlow::Break(());
        }
        found.push(key.to_vec());
        bytes += value.len();
        ControlFlow::Continue(())
    })?;
    Ok((found, more))
}

/// New values by key; `None` deletes the key.
pub type Changed = BTreeMap<Vec<u8>, Option<Bytes>>;

/// Changed keys over a base: the state with changes that are not in the base yet.
pub struct Layer<'a, K: Kv + ?Sized> {
    pub over: &'a Changed,
    pub base: &'a K,
}

impl<K: Kv + ?Sized> Kv for Layer<'_, K> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        match self.over.get(key) {
            Some(changed) => Ok(changed.clone()),
            None => self.base.get(key),
        }
    }

    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: Visit<'_>) -> Result<(), Fault> {
        let upper = to.map_or(Bound::Unbounded, Bound::Excluded);
        if to.is_some_and(|to| to <= from) {
            return Ok(());
        }
        let mut over = self.over.range::<[u8], _>((Bound::Included(from), upper)).peekable();
        let mut stopped = false;
        self.base.scan(from, to, &mut |key, value| {
            // Changed keys before this one come first. A change of this key replaces its value.
            while let Some((changed_key, changed)) = over.next_if(|(changed_key, _)| changed_key.as_slice() < key) {
                if let Some(changed) = changed
                    && visit(changed_key, changed).is_break()
                {
                    stopped = true;
                    return ControlFlow::Break(());
                }
            }
            let step = match over.next_if(|(changed_key, _)| changed_key.as_slice() == key) {
                Some((_, Some(changed))) => visit(key, changed),
                Some((_, None)) => ControlFlow::Continue(()),
                None => visit(key, value),
            };
            stopped = step.is_break();
            step
        })?;
        if stopped {
            return Ok(());
        }
        for (changed_key, changed) in over {
            if let Some(changed) = changed
                && visit(changed_key, changed).is_break()
            {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// `Kv::scan` for an ordered map in memory.
pub fn scan_map<K: Borrow<[u8]> + Ord>(
    pairs: &BTreeMap<K, Bytes>,
    from: &[u8],
    to: Option<&[u8]>,
    visit: Visit<'_>,
) -> Result<(), Fault> {
    if to.is_some_and(|to| to <= from) {
        return Ok(());
    }
    let upper = to.map_or(Bound::Unbounded, Bound::Excluded);
    for (key, value) in pairs.range::<[u8], _>((Bound::Included(from), upper)) {
        if visit(key.borrow(), value).is_break() {
            break;
        }
    }
    Ok(())
}

/// The empty base. A layer over it is a state in memory.
pub struct Nothing;

impl Kv for Nothing {
    fn get(&self, _key: &[u8]) -> Result<Option<Bytes>, Fault> {
        Ok(None)
    }

    fn scan(&self, _from: &[u8], _to: Option<&[u8]>, _visit: Visit<'_>) -> Result<(), Fault> {
        Ok(())
    }
}
