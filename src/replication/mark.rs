//! Owns: the mark, which says how far a state is applied. It lies in the state and moves with every commit, and it is
//! all a snapshot says about itself.

use bytes::Bytes;
use prost::Message as _;

use super::types::{self, LogId, SnapshotMeta, StoredMembership};
use crate::machine::refusal::Fault;
use crate::proto::log as proto;
use crate::storage::log::record;

const VERSION: u32 = 1;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mark {
    pub group: u32,
    pub applied: Option<record::LogId>,
    /// The entry that brought the membership in force.
    pub membership_at: Option<record::LogId>,
    pub membership: record::Membership,
    /// The chained hash of everything applied: equal on all replicas at the same index.
    pub state_hash: u128,
}

impl Mark {
    pub fn new(group: u32) -> Mark {
        Mark { group, ..Mark::default() }
    }

    pub fn print(&self) -> Bytes {
        let mark = proto::Mark {
            version: VERSION,
            group: self.group,
            applied: self.applied.map(record::LogId::spell),
            membership_at: self.membership_at.map(record::LogId::spell),
            membership: Some(self.membership.spell()),
            state_hash: Bytes::copy_from_slice(&self.state_hash.to_be_bytes()),
        };
        mark.encode_to_vec().into()
    }

    pub fn parse(bytes: &[u8], group: u32) -> Result<Mark, Fault> {
        let wrong = |why: String| Fault(format!("the mark of the state cannot be read: {why}"));
        let mark = proto::Mark::decode(bytes).map_err(|error| wrong(error.to_string()))?;
        if mark.version != VERSION {
            return Err(wrong(format!("layout {}; this build reads {VERSION}", mark.version)));
        }
        if mark.group != group {
            return Err(wrong(format!("it belongs to group {}, not {group}", mark.group)));
        }
        let state_hash = mark.state_hash.as_ref().try_into();
        let membership = record::Membership::understand(mark.membership.unwrap_or_default());
        Ok(Mark {
            group,
            applied: mark.applied.map(record::LogId::understand),
            membership_at: mark.membership_at.map(record::LogId::understand),
            membership: membership.map_err(|error| wrong(error.0))?,
            state_hash: state_hash.map(u128::from_be_bytes).map_err(|_| wrong("its hash is cut short".to_owned()))?,
        })
    }

    /// The mark of a store; that of an empty state where there is none.
    pub fn of(bytes: Option<Bytes>, group: u32) -> Result<Mark, Fault> {
        bytes.map_or_else(|| Ok(Mark::new(group)), |bytes| Mark::parse(&bytes, group))
    }

    pub fn applied_id(&self) -> Option<LogId> {
        self.applied.map(types::log_id)
    }

    pub fn stored_membership(&self) -> Result<StoredMembership, Fault> {
        let membership = types::membership(&self.membership).map_err(|error| Fault(error.0))?;
        Ok(StoredMembership::new(self.membership_at.map(types::log_id), membership))
    }

    pub fn snapshot_meta(&self) -> Result<SnapshotMeta, Fault> {
        Ok(SnapshotMeta { last_log_id: self.applied_id(), last_membership: self.stored_membership()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::log::record::Peer;
    use proptest::prelude::*;

    fn mark() -> Mark {
        let id = |index| record::LogId { term: 2, leader: 1, index };
        let members = [(1, Peer { address: "a:1".to_owned(), ..Peer::default() })].into();
        Mark {
            group: 0,
            applied: Some(id(9)),
            membership_at: Some(id(3)),
            membership: record::Membership { configs: vec![[1].into()], members },
            state_hash: 0x0102,
        }
    }

    #[test]
    fn the_bytes_of_a_mark_stay_as_they_are() {
        let hex: String = mark().print().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "08011a0608021001180922060802100118032a0e0a030a0101120708011203613a31321000000000000000000000000000000102"
        );
    }

    #[test]
    fn a_mark_reads_back_and_another_group_is_refused() {
        assert_eq!(Mark::parse(&mark().print(), 0), Ok(mark()));
        assert!(Mark::parse(&mark().print(), 1).unwrap_err().0.contains("group 0, not 1"));
        assert_eq!(Mark::of(None, 4), Ok(Mark::new(4)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Mark::parse(&bytes, 0);
        }
    }
}
