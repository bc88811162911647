//! Owns: the state hash, a chain over everything applied. Two replicas with the same hash at the same index went
//! through the same changes; the first difference stays visible for ever after.

use xxhash_rust::xxh3::xxh3_128;

use crate::machine::ids::{EntryId, SessionId};
use crate::machine::view::Change;
use crate::storage::{answers, feed, records};

/// The next link: the previous hash, the index, and every change in order.
/// `scratch` is room that is used again from call to call.
pub fn link(previous: u128, index: u64, changes: &[Change], scratch: &mut Vec<u8>) -> u128 {
    scratch.clear();
    scratch.extend_from_slice(&previous.to_be_bytes());
    scratch.extend_from_slice(&index.to_be_bytes());
    for change in changes {
        print(change, scratch);
    }
    xxh3_128(scratch)
}

/// Spells a change so that different changes differ: a kind, then each field behind its length.
fn print(change: &Change, out: &mut Vec<u8>) {
    match change {
        Change::PutMeta(meta) => {
            kind(1, &meta.session_id, out);
            field(&records::print_meta(meta), out);
        }
        Change::DeleteMeta(id) => kind(2, id, out),
        Change::PutEntry(id, entry) => {
            kind(3, id, out);
            name(&entry.id, out);
            field(&records::print_entry(entry), out);
        }
        Change::DeleteEntries(id) => kind(4, id, out),
        Change::SetLeaf(id, entry_id) => {
            kind(5, id, out);
            name(entry_id, out);
        }
        Change::DeleteLeaf(id) => kind(6, id, out),
        Change::SetSeq(id, seq) => {
            kind(7, id, out);
            out.extend_from_slice(&seq.to_be_bytes());
        }
        Change::DeleteSeq(id) => kind(8, id, out),
        Change::SetClock(at_ms) => {
            out.push(9);
            out.extend_from_slice(&at_ms.to_be_bytes());
        }
        Change::Remember(request_id, answer) => {
            out.push(10);
            out.extend_from_slice(&request_id.0.to_be_bytes());
            field(&answers::print(answer), out);
        }
        Change::Forget(born_ms) => {
            out.push(11);
            out.extend_from_slice(&born_ms.to_be_bytes());
        }
        Change::Record { index, records } => {
            out.push(12);
            out.extend_from_slice(&index.to_be_bytes());
            for record in records {
                field(&feed::print_record(record), out);
            }
        }
        Change::TrimFeed { upto } => {
            out.push(13);
            out.extend_from_slice(&upto.index.to_be_bytes());
            out.extend_from_slice(&upto.ordinal.to_be_bytes());
        }
        Change::SetCursor(attach, position) => {
            out.push(14);
            field(attach.as_bytes(), out);
            field(&position.map(feed::print_cursor).unwrap_or_default(), out);
        }
    }
}

fn kind(kind: u8, session_id: &SessionId, out: &mut Vec<u8>) {
    out.push(kind);
    field(session_id.as_str().as_bytes(), out);
}

fn name(entry_id: &EntryId, out: &mut Vec<u8>) {
    field(entry_id.as_str().as_bytes(), out);
}

fn field(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_tells_order_index_and_content_apart() {
        let mut scratch = Vec::new();
        let one = Change::DeleteMeta("a".into());
        let two = Change::DeleteLeaf("a".into());
        let mut hash = |previous, index, changes: &[Change]| link(previous, index, changes, &mut scratch);
        let base = hash(0, 1, &[one.clone(), two.clone()]);
        assert_eq!(base, hash(0, 1, &[one.clone(), two.clone()]));
        for other in [
            hash(0, 1, &[two.clone(), one.clone()]),
            hash(0, 2, &[one.clone(), two.clone()]),
            hash(1, 1, &[one.clone(), two.clone()]),
            hash(0, 1, &[Change::DeleteMeta("b".into()), two]),
            hash(0, 1, &[one]),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn the_hash_stays_what_it_was() {
        let changes = [Change::SetLeaf("s".into(), "e".into()), Change::SetClock(7)];
        assert_eq!(format!("{:032x}", link(1, 2, &changes, &mut Vec::new())), "5f22f2545e8faea44c521be1a267b694");
    }
}
