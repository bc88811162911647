//! Owns: the key of the checkpoint, which says how far the log is applied. Every commit writes it.
//! Never: its value, which belongs to consensus.

use super::family::Family;

pub fn key() -> Vec<u8> {
    vec![Family::Checkpoint as u8]
}

#[cfg(test)]
#[test]
fn the_bytes_of_the_checkpoint_key_stay_as_they_are() {
    assert_eq!(key(), [0x01]);
}
