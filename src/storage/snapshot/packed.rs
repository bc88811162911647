//! Owns: the blocks of format 3: how pairs are packed, and unpacked without trust in what the file says.
//!
//! ```text
//! block   length of the packed pairs u32 | length of the pairs u32 | CRC-32 of both lengths and the packed pairs
//!         | the pairs, as LZ4 if that is shorter                       (little-endian)
//! ```
//! Blocks are cut by length: a pair may begin in one block and end in another. So no block is long, however long a pair
//! is. A block has a checksum of its own, so that the length of a value is right before memory is reserved for it.
//! Never: what a pair is (`read.rs`, `write.rs`).

use super::error::Damage;

/// A block holds at most this much of the pairs. LZ4 finds nothing that is further away, and the reader of a damaged
/// block reserves no more.
pub(super) const BLOCK_BYTES: usize = 64 << 10;

pub(super) const BLOCK_HEAD_BYTES: usize = 12;

/// Puts a block into `block`. There are at most `BLOCK_BYTES` of pairs.
pub(super) fn pack(pairs: &[u8], block: &mut Vec<u8>) {
    block.clear();
    block.resize(BLOCK_HEAD_BYTES + lz4_flex::block::get_maximum_output_size(pairs.len()), 0);
    match lz4_flex::block::compress_into(pairs, &mut block[BLOCK_HEAD_BYTES..]) {
        Ok(length) if length < pairs.len() => block.truncate(BLOCK_HEAD_BYTES + length),
        // Incompressible pairs are stored as they are.
        Ok(_) | Err(_) => {
            block.truncate(BLOCK_HEAD_BYTES);
            block.extend_from_slice(pairs);
        }
    }
    let packed_bytes = (block.len() - BLOCK_HEAD_BYTES) as u32;
    block[..4].copy_from_slice(&packed_bytes.to_le_bytes());
    block[4..8].copy_from_slice(&(pairs.len() as u32).to_le_bytes());
    let sum = checksum(&block[..8], &block[BLOCK_HEAD_BYTES..]);
    block[8..BLOCK_HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
}

/// What stands before the packed pairs.
pub(super) struct BlockHead {
    bytes: [u8; BLOCK_HEAD_BYTES],
}

impl BlockHead {
    /// Refuses lengths that no block has.
    pub fn parse(bytes: [u8; BLOCK_HEAD_BYTES]) -> Result<BlockHead, Damage> {
        let head = BlockHead { bytes };
        let (packed, pairs) = (head.number(0), head.number(4));
        match packed > 0 && packed <= pairs && pairs as usize <= BLOCK_BYTES {
            true => Ok(head),
            false => Err(Damage::BlockLengths { packed, pairs }),
        }
    }

    pub fn packed_bytes(&self) -> usize {
        self.number(0) as usize
    }

    /// The pairs of the block.
    pub fn unpack(&self, packed: Vec<u8>) -> Result<Vec<u8>, Damage> {
        let pairs_bytes = self.number(4) as usize;
        if checksum(&self.bytes[..8], &packed) != self.number(8) {
            return Err(Damage::Block);
        }
        if packed.len() == pairs_bytes {
            return Ok(packed);
        }
        let pairs = lz4_flex::block::decompress(&packed, pairs_bytes).map_err(|_| Damage::Block)?;
        if pairs.len() == pairs_bytes { Ok(pairs) } else { Err(Damage::Block) }
    }

    fn number(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]])
    }
}

fn checksum(lengths: &[u8], packed: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(lengths);
    sum.update(packed);
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpack(block: &[u8]) -> Result<Vec<u8>, Damage> {
        let (head, packed) = block.split_first_chunk().unwrap();
        let head = BlockHead::parse(*head)?;
        assert_eq!(head.packed_bytes(), packed.len());
        head.unpack(packed.to_vec())
    }

    #[test]
    fn pairs_of_any_kind_read_back() {
        let noise: Vec<u8> = (0..4000u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
        let mut block = Vec::new();
        for pairs in [vec![7; 1], vec![0; BLOCK_BYTES], noise[..5].to_vec(), noise] {
            pack(&pairs, &mut block);
            assert!(block.len() <= BLOCK_HEAD_BYTES + pairs.len());
            assert_eq!(unpack(&block), Ok(pairs));
        }
    }

    #[test]
    fn lengths_that_no_block_has_are_refused_before_anything_is_read() {
        for (packed, pairs) in [(0, 0), (0, 5), (6, 5), (5, BLOCK_BYTES as u32 + 1), (u32::MAX - 1, u32::MAX)] {
            let mut head = [0; BLOCK_HEAD_BYTES];
            head[..4].copy_from_slice(&packed.to_le_bytes());
            head[4..8].copy_from_slice(&pairs.to_le_bytes());
            assert_eq!(BlockHead::parse(head).err(), Some(Damage::BlockLengths { packed, pairs }));
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_in_a_block_is_found() {
        let mut block = Vec::new();
        pack(&b"session".repeat(20), &mut block);
        for bit in 0..block.len() * 8 {
            let mut bad = block.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let (head, packed) = bad.split_first_chunk().unwrap();
            assert!(BlockHead::parse(*head).and_then(|head| head.unpack(packed.to_vec())).is_err(), "bit {bit}");
        }
    }
}
