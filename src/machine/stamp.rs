//! Owns: `Stamp`, the time and randomness that a proposal gets before it enters the log, and the ids derived from it.
//! Never: a clock or a random source. Apply derives every id from the stamp.

use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ids::{EntryId, SessionId};

/// The time and randomness that the leader adds to a command, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Milliseconds since the epoch by the leader's clock. Apply raises it to the latest stamp applied so far.
    pub at_ms: i64,
    /// 128 random bits from which every id of this command is derived. A seed, and not a list of ids, because only
    /// apply knows how many entries a fork copies.
    pub seed: u128,
}

impl Stamp {
    pub fn session_id(&self) -> SessionId {
        SessionId::from(format!("s_{}", self.uuid(0)))
    }

    /// The id of the `ordinal`-th entry this command creates.
    pub fn entry_id(&self, ordinal: u64) -> EntryId {
        EntryId::from(format!("e_{}", self.uuid(ordinal + 1)))
    }

    /// The id of a turn that this command creates. The high ordinal is that of no entry.
    pub fn turn_id(&self) -> String {
        format!("t_{}", self.uuid(u64::MAX))
    }

    /// The layout of UUID version 7: time first, then the ordinal, so that ids of one transcript are adjacent in the
    /// key order of the store. The remaining 62 bits come from the seed.
    fn uuid(&self, ordinal: u64) -> Uuid {
        let time = (self.at_ms.max(0) as u128 & 0xffff_ffff_ffff) << 80;
        let rank = (ordinal as u128 & 0xfff) << 64;
        let mut input = [0u8; 24];
        input[..16].copy_from_slice(&self.seed.to_be_bytes());
        input[16..].copy_from_slice(&ordinal.to_be_bytes());
        let random = u128::from(xxh3_64_with_seed(&input, self.seed as u64) & 0x3fff_ffff_ffff_ffff);
        Uuid::from_u128(time | (0x7 << 76) | rank | (0b10 << 62) | random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_one_stamp_are_distinct_and_sorted() {
        let stamp = Stamp { at_ms: 1_700_000_000_000, seed: 7 };
        let ids: Vec<EntryId> = (0..1000).map(|n| stamp.entry_id(n)).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn ids_are_well_formed_version_7_uuids() {
        let stamp = Stamp { at_ms: 1_700_000_000_000, seed: u128::MAX };
        let id = stamp.session_id();
        let uuid = Uuid::parse_str(id.as_str().strip_prefix("s_").unwrap()).unwrap();
        assert_eq!(uuid.get_version_num(), 7);
        assert_eq!(uuid.get_variant(), uuid::Variant::RFC4122);
    }

    #[test]
    fn the_same_stamp_derives_the_same_ids() {
        let stamp = Stamp { at_ms: 5, seed: 9 };
        assert_eq!(stamp.entry_id(3), Stamp { at_ms: 5, seed: 9 }.entry_id(3));
        assert_ne!(stamp.entry_id(3), Stamp { at_ms: 5, seed: 10 }.entry_id(3));
    }
}
