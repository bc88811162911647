//! Owns: blocks. For families that grow at their end, sled holds many adjacent pairs in one value, called a block.
//!
//! The cost of a key in sled hardly depends on its size, and every entry comes with a feed record and a recorded
//! answer. So the pairs of one run (the entries of a session, all feed records, all answers) are packed and compressed:
//!
//! ```text
//! sled key    a lower bound of the block's keys: its first key when it was created; the next block ends it
//! sled value  01 pairs, or 02 | length of the pairs u32 | the pairs as LZ4
//! pair        length of the rest of the key u32 | length of the value u32 | the key without the run's prefix | value
//! ```
//!
//! A split moves pairs only to later blocks, and all blocks of one split are written to sled in one batch. So a reader
//! that scans forward during a split misses no pair.
//! Never: reads or writes sled itself (`base.rs`).

use std::iter::Peekable;

use bytes::{BufMut, Bytes};

use super::base::Put;
use crate::machine::refusal::Fault;
use crate::storage::state::key;

/// A larger block is split. Appended pairs fill the next one.
const BLOCK_BYTES: usize = 8 << 10;

/// Smaller blocks are not compressed: it would save too little.
const COMPRESS_BYTES: usize = 256;

const PLAIN: u8 = 1;
const LZ4: u8 = 2;
const PAIR_HEAD_BYTES: usize = 8;

/// The lookups in sled that blocks need.
pub trait Blocks {
    /// The last pair in sled at or before `key`.
    fn at_or_before(&self, key: &[u8]) -> Result<Option<(Bytes, Bytes)>, Fault>;

    /// The first key in sled after `key`.
    fn key_after(&self, key: &[u8]) -> Result<Option<Bytes>, Fault>;
}

/// The block that a key belongs to, with the block's key in sled.
pub fn block_of(blocks: &(impl Blocks + ?Sized), run: &[u8], key: &[u8]) -> Result<Option<(Bytes, Bytes)>, Fault> {
    Ok(blocks.at_or_before(key)?.filter(|(start, _)| start.starts_with(run)))
}

/// Takes the next changes from the sorted `changes` and returns the writes to sled that they need: one pair, or all
/// blocks that one block becomes. The writes of one group must reach sled in one batch. Calls `gone` with the old pairs
/// of blocks that are replaced or deleted.
pub fn next_group(
    blocks: &(impl Blocks + ?Sized),
    changes: &mut Peekable<impl Iterator<Item = Result<Put, Fault>>>,
    gone: &mut impl FnMut(&[u8], &Bytes),
) -> Result<Option<Vec<Put>>, Fault> {
    let Some((key, value)) = changes.next().transpose()? else { return Ok(None) };
    let Some(run) = key::run_prefix(&key).map(<[u8]>::to_vec) else { return Ok(Some(vec![(key, value)])) };
    let home = block_of(blocks, &run, &key)?;
    let end = blocks.key_after(&key)?.filter(|next| next.starts_with(&run));
    let belongs = |next: &Put| next.0.starts_with(&run) && end.as_ref().is_none_or(|end| next.0[..] < end[..]);
    let mut changed = vec![(key, value)];
    // An error stays in the iterator: the next call returns it.
    while let Some(next) = changes.next_if(|next| next.as_ref().is_ok_and(&belongs)) {
        changed.push(next?);
    }
    let (start, old) = match home {
        Some((start, block)) => (Some(start), read(&run, &block)?),
        None => (None, Vec::new()),
    };
    let appends = old.last().is_none_or(|(last, _)| *last < changed[0].0);
    let pairs = merge(old, changed, gone);
    Ok(Some(encode_all(&run, start, &pairs, appends)))
}

/// The next pair, or the next full block, of a sorted state that goes into an empty sled. It looks nothing up and holds
/// one block at a time, however long a run is.
pub fn next_fresh(pairs: &mut Peekable<impl Iterator<Item = Result<Put, Fault>>>) -> Result<Option<Vec<Put>>, Fault> {
    let Some((key, value)) = pairs.next().transpose()? else { return Ok(None) };
    let (Some(run), Some(first)) = (key::run_prefix(&key).map(<[u8]>::to_vec), &value) else {
        return Ok(Some(vec![(key, value)]));
    };
    let mut bytes = weight(&run, &key, first);
    let mut block = vec![(key.clone(), first.clone())];
    let mut fits = |next: &Put| {
        let (key, Some(value)) = next else { return false };
        let weight = weight(&run, key, value);
        let fits = key.starts_with(&run) && bytes + weight <= BLOCK_BYTES;
        bytes += weight;
        fits
    };
    while let Some(next) = pairs.next_if(|next| next.as_ref().is_ok_and(&mut fits)) {
        let (key, value) = next?;
        block.extend(value.map(|value| (key, value)));
    }
    Ok(Some(vec![(key, Some(encode(&run, &block)))]))
}

/// The size of a pair in a block.
fn weight(run: &[u8], key: &[u8], value: &[u8]) -> usize {
    PAIR_HEAD_BYTES + key.len().saturating_sub(run.len()) + value.len()
}

/// Applies sorted changes to sorted pairs.
fn merge(old: Vec<(Vec<u8>, Bytes)>, changed: Vec<Put>, gone: &mut impl FnMut(&[u8], &Bytes)) -> Vec<(Vec<u8>, Bytes)> {
    let mut merged = Vec::with_capacity(old.len() + changed.len());
    let mut old = old.into_iter().peekable();
    for (key, value) in changed {
        while let Some(before) = old.next_if(|(old_key, _)| *old_key < key) {
            merged.push(before);
        }
        if let Some((old_key, old_value)) = old.next_if(|(old_key, _)| *old_key == key) {
            gone(&old_key, &old_value);
        }
        merged.extend(value.map(|value| (key, value)));
    }
    merged.extend(old);
    merged
}

/// The blocks that hold `pairs`. The first one keeps its key `start` if it exists already.
fn encode_all(run: &[u8], start: Option<Bytes>, pairs: &[(Vec<u8>, Bytes)], appends: bool) -> Vec<Put> {
    if pairs.is_empty() {
        return start.into_iter().map(|start| (start.to_vec(), None)).collect();
    }
    let weight = |(key, value): &(Vec<u8>, Bytes)| weight(run, key, value);
    let total: usize = pairs.iter().map(weight).sum();
    // Blocks that grow at their end are filled. Others are split evenly, which leaves room for inserts.
    let full = if appends { BLOCK_BYTES } else { total.div_ceil(total.div_ceil(BLOCK_BYTES)) };
    let mut puts = Vec::new();
    let mut rest = pairs;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |pair: &&(Vec<u8>, Bytes)| {
            bytes += weight(pair);
            bytes <= full
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (block, later) = rest.split_at(count);
        let key = match &start {
            Some(start) if puts.is_empty() => start.to_vec(),
            Some(_) | None => block[0].0.clone(),
        };
        puts.push((key, Some(encode(run, block))));
        rest = later;
    }
    puts
}

fn encode(run: &[u8], pairs: &[(Vec<u8>, Bytes)]) -> Bytes {
    let mut plain = vec![PLAIN];
    for (key, value) in pairs {
        let rest = &key[run.len()..];
        // The lengths fit: the size of a request bounds every value far below 4 GiB.
        plain.put_u32(rest.len() as u32);
        plain.put_u32(value.len() as u32);
        plain.extend_from_slice(rest);
        plain.extend_from_slice(value);
    }
    let body = &plain[1..];
    if body.len() < COMPRESS_BYTES {
        return plain.into();
    }
    let mut packed = vec![0; 5 + lz4_flex::block::get_maximum_output_size(body.len())];
    packed[0] = LZ4;
    packed[1..5].copy_from_slice(&(body.len() as u32).to_be_bytes());
    match lz4_flex::block::compress_into(body, &mut packed[5..]) {
        Ok(length) if 5 + length < plain.len() => Bytes::copy_from_slice(&packed[..5 + length]),
        // Incompressible pairs are stored as they are.
        Ok(_) | Err(_) => plain.into(),
    }
}

/// The pairs of a block, in key order.
pub fn read(run: &[u8], block: &Bytes) -> Result<Vec<(Vec<u8>, Bytes)>, Fault> {
    let full_key = |rest: Bytes| [run, &rest].concat();
    Pairs { at: unpack(block)? }.map(|pair| pair.map(|(rest, value)| (full_key(rest), value))).collect()
}

/// The value of one key in a block. `unpacked` comes from `unpack`.
pub fn find(unpacked: Bytes, run: &[u8], key: &[u8]) -> Result<Option<Bytes>, Fault> {
    let wanted = &key[run.len()..];
    for pair in (Pairs { at: unpacked }) {
        let (rest, value) = pair?;
        if rest == wanted {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// The pairs of a block as bytes.
pub fn unpack(block: &Bytes) -> Result<Bytes, Fault> {
    match block.split_first() {
        Some((&PLAIN, _)) => Ok(block.slice(1..)),
        Some((&LZ4, packed)) => {
            let (length, packed) = packed.split_first_chunk::<4>().ok_or_else(|| damaged("cut short"))?;
            let length = u32::from_be_bytes(*length) as usize;
            // LZ4 compresses at most 255 to 1: a larger length is damage.
            if length / 256 > packed.len() {
                return Err(damaged("of an impossible length"));
            }
            let unpacked = lz4_flex::block::decompress(packed, length).map_err(damaged)?;
            if unpacked.len() == length { Ok(unpacked.into()) } else { Err(damaged("shorter than it says")) }
        }
        Some(_) | None => Err(damaged("of a layout this build does not know")),
    }
}

/// The pairs of an unpacked block. Keys are without the prefix of the run.
struct Pairs {
    at: Bytes,
}

impl Iterator for Pairs {
    type Item = Result<(Bytes, Bytes), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at.is_empty() {
            return None;
        }
        let lengths = self.at.split_first_chunk::<PAIR_HEAD_BYTES>().map(|(head, _)| {
            let [k0, k1, k2, k3, v0, v1, v2, v3] = *head;
            (u32::from_be_bytes([k0, k1, k2, k3]) as usize, u32::from_be_bytes([v0, v1, v2, v3]) as usize)
        });
        let left = self.at.len().saturating_sub(PAIR_HEAD_BYTES);
        let Some((key, value)) = lengths.filter(|(key, value)| key.saturating_add(*value) <= left) else {
            self.at = Bytes::new();
            return Some(Err(damaged("cut short")));
        };
        let mut pair = self.at.split_to(PAIR_HEAD_BYTES + key + value);
        let value = pair.split_off(PAIR_HEAD_BYTES + key);
        Some(Ok((pair.split_off(PAIR_HEAD_BYTES), value)))
    }
}

fn damaged(how: impl std::fmt::Display) -> Fault {
    Fault(format!("damaged block of the state: {how}"))
}

#[cfg(test)]
#[path = "blocks_test.rs"]
mod tests;
