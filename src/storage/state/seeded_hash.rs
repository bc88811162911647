//! Owns: a fast hash for maps in memory whose keys clients can choose. The random seed prevents chosen keys from filling
//! one bucket.
//! Never: a hash that is stored, or that must be equal on two nodes.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use xxhash_rust::xxh3::xxh3_64_with_seed;

#[derive(Debug, Clone, Copy)]
pub struct Seed(u64);

impl Default for Seed {
    fn default() -> Seed {
        Seed(RandomState::new().hash_one(0))
    }
}

pub struct KeyHasher(u64);

impl BuildHasher for Seed {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.0)
    }
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    /// The end of a text. The hash of its bytes depends on their length already.
    fn write_u8(&mut self, _end: u8) {}

    /// The length of a list of bytes.
    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
