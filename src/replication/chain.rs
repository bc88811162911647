//! Owns: the state hash, a hash chain over all applied changes. Two replicas with the same hash at the same index applied
//! the same changes. Once two chains differ, they differ at every later index.

use xxhash_rust::xxh3::Xxh3;

use crate::storage::state::Encoded;

/// The next link: the previous hash, the index, and every change in order.
pub fn link(previous: u128, index: u64, changes: &Encoded<'_>) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&previous.to_be_bytes());
    hash.update(&index.to_be_bytes());
    hash.update(changes.bytes());
    hash.digest128()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::change::{Change, SessionChange};

    #[test]
    fn the_chain_tells_order_index_and_content_apart() {
        let one = Change::Session("a".into(), SessionChange::DeleteMeta);
        let two = Change::Session("a".into(), SessionChange::DeleteLeaf);
        let hash = |previous, index, changes: &[Change]| link(previous, index, &Encoded::new(changes));
        let base = hash(0, 1, &[one.clone(), two.clone()]);
        assert_eq!(base, hash(0, 1, &[one.clone(), two.clone()]));
        for other in [
            hash(0, 1, &[two.clone(), one.clone()]),
            hash(0, 2, &[one.clone(), two.clone()]),
            hash(1, 1, &[one.clone(), two.clone()]),
            hash(0, 1, &[Change::Session("b".into(), SessionChange::DeleteMeta), two]),
            hash(0, 1, &[one]),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn the_hash_stays_what_it_was() {
        let changes = [Change::set_leaf(&"s".into(), "e".into()), Change::Clock(7)];
        assert_eq!(format!("{:032x}", link(1, 2, &Encoded::new(&changes))), "5f22f2545e8faea44c521be1a267b694");
    }
}
