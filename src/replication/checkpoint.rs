//! Owns: the checkpoint of a state: the applied log id, the membership and the state hash. It is stored in the state,
//! changes with every commit, and describes a snapshot.

use bytes::Bytes;
use prost::Message as _;

use super::types::{self, LogId, SnapshotMeta, StoredMembership};
use crate::machine::refusal::Fault;
use crate::proto::log as proto;
use crate::storage::log::record;

const VERSION: u32 = 1;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    pub group: u32,
    pub applied: Option<record::LogId>,
    /// The log id of the membership in force.
    membership_at: Option<record::LogId>,
    membership: record::Membership,
    /// The membership, encoded: it rarely changes, and every commit has a checkpoint.
    encoded_membership: Bytes,
    /// The hash chain over everything applied (`chain.rs`): equal on all replicas at the same index.
    pub state_hash: u128,
}

impl Checkpoint {
    pub fn new(group: u32) -> Checkpoint {
        Checkpoint { group, ..Checkpoint::default() }
    }

    /// Enters the membership of a log entry.
    pub fn set_membership(&mut self, membership: record::Membership, at: record::LogId) {
        self.encoded_membership = membership.to_proto().encode_to_vec().into();
        (self.membership, self.membership_at) = (membership, Some(at));
    }

    pub fn encode(&self) -> Bytes {
        let spelled = proto::Mark {
            version: VERSION,
            group: self.group,
            applied: self.applied.map(record::LogId::to_proto),
            membership_at: self.membership_at.map(record::LogId::to_proto),
            membership: Some(self.encoded_membership.clone()),
            state_hash: Bytes::copy_from_slice(&self.state_hash.to_be_bytes()),
        };
        spelled.encode_to_vec().into()
    }

    pub fn decode(bytes: &[u8], group: u32) -> Result<Checkpoint, Fault> {
        let wrong = |why: String| Fault(format!("the checkpoint of the state cannot be read: {why}"));
        let spelled = proto::Mark::decode(bytes).map_err(|error| wrong(error.to_string()))?;
        if spelled.version != VERSION {
            return Err(wrong(format!("layout {}; this build reads {VERSION}", spelled.version)));
        }
        if spelled.group != group {
            return Err(wrong(format!("it belongs to group {}, not {group}", spelled.group)));
        }
        let state_hash = spelled.state_hash.as_ref().try_into();
        let encoded_membership = spelled.membership.unwrap_or_default();
        let membership = proto::Membership::decode(encoded_membership.clone());
        let membership = record::Membership::from_proto(membership.map_err(|error| wrong(error.to_string()))?);
        Ok(Checkpoint {
            group,
            applied: spelled.applied.map(record::LogId::from_proto),
            membership_at: spelled.membership_at.map(record::LogId::from_proto),
            membership: membership.map_err(|error| wrong(error.0))?,
            encoded_membership,
            state_hash: state_hash.map(u128::from_be_bytes).map_err(|_| wrong("its hash is cut short".to_owned()))?,
        })
    }

    /// Decodes the checkpoint of a store. An empty store has none and gets that of an empty state.
    pub fn of(bytes: Option<Bytes>, group: u32) -> Result<Checkpoint, Fault> {
        bytes.map_or_else(|| Ok(Checkpoint::new(group)), |bytes| Checkpoint::decode(&bytes, group))
    }

    /// The index of the entry to apply next.
    pub fn next_index(&self) -> u64 {
        self.applied.map_or(0, |applied| applied.index + 1)
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

    fn checkpoint() -> Checkpoint {
        let id = |index| record::LogId::new(2, 1, index);
        let members = [(1, Peer { address: "a:1".to_owned(), ..Peer::default() })].into();
        let membership = record::Membership { configs: vec![[1].into()], members };
        let mut checkpoint = Checkpoint { applied: Some(id(9)), state_hash: 0x0102, ..Checkpoint::new(0) };
        checkpoint.set_membership(membership, id(3));
        checkpoint
    }

    #[test]
    fn the_bytes_of_a_checkpoint_stay_as_they_are() {
        let hex: String = checkpoint().encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "08011a0608021001180922060802100118032a0e0a030a0101120708011203613a31321000000000000000000000000000000102"
        );
    }

    #[test]
    fn a_checkpoint_reads_back_and_another_group_is_refused() {
        assert_eq!(Checkpoint::decode(&checkpoint().encode(), 0), Ok(checkpoint()));
        assert!(Checkpoint::decode(&checkpoint().encode(), 1).unwrap_err().0.contains("group 0, not 1"));
        assert_eq!(Checkpoint::of(None, 4), Ok(Checkpoint::new(4)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Checkpoint::decode(&bytes, 0);
        }
    }
}
