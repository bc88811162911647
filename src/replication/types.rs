//! Owns: openraft's type parameters, and the translation of its nouns into ours and back.

use openraft::EntryPayload;
use openraft::vote::RaftLeaderIdExt as _;

use crate::machine::Answer;
use crate::machine::refusal::Refusal;
use crate::storage::log::command::Order;
use crate::storage::log::record::{self, Payload, Peer, Unreadable};

/// What applying an entry gives back to the one who proposed it.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The machine answered, or said no.
    Answered(Result<Answer, Refusal>),
    /// The entry was consensus' own business.
    Nothing,
}

openraft::declare_raft_types!(
    /// The types this cluster is made of.
    pub Types:
        D = Order,
        R = Reply,
        NodeId = u64,
        Node = Peer,
        Term = u64,
);

pub type LogId = openraft::type_config::alias::LogIdOf<Types>;
pub type Vote = openraft::type_config::alias::VoteOf<Types>;
pub type Entry = openraft::type_config::alias::EntryOf<Types>;
pub type Membership = openraft::Membership<u64, Peer>;
pub type StoredMembership = openraft::type_config::alias::StoredMembershipOf<Types>;
pub type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<Types>;

type LeaderId = openraft::type_config::alias::LeaderIdOf<Types>;

pub fn log_id(ours: record::LogId) -> LogId {
    LogId::new(LeaderId::new_committed(ours.term, ours.leader), ours.index)
}

pub fn our_log_id(theirs: &LogId) -> record::LogId {
    record::LogId { term: theirs.leader_id.term, leader: theirs.leader_id.node_id, index: theirs.index }
}

pub fn vote(ours: record::Vote) -> Vote {
    Vote { leader_id: LeaderId { term: ours.term, node_id: ours.node }, committed: ours.committed }
}

pub fn our_vote(theirs: &Vote) -> record::Vote {
    record::Vote { term: theirs.leader_id.term, node: theirs.leader_id.node_id, committed: theirs.committed }
}

pub fn membership(ours: &record::Membership) -> Result<Membership, Unreadable> {
    if ours.configs.is_empty() && ours.members.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(ours.configs.clone(), ours.members.clone()).map_err(|error| Unreadable(error.to_string()))
}

pub fn our_membership(theirs: &Membership) -> record::Membership {
    let members = theirs.nodes().map(|(node, peer)| (*node, peer.clone())).collect();
    record::Membership { configs: theirs.get_joint_config().clone(), members }
}

pub fn entry(ours: record::Entry) -> Result<Entry, Unreadable> {
    let payload = match ours.payload {
        Payload::Blank => EntryPayload::Blank,
        Payload::Command(order) => EntryPayload::Normal(order),
        Payload::Membership(members) => EntryPayload::Membership(membership(&members)?),
    };
    Ok(Entry { log_id: log_id(ours.id), payload })
}

pub fn our_entry(theirs: Entry) -> record::Entry {
    let payload = match theirs.payload {
        EntryPayload::Blank => Payload::Blank,
        EntryPayload::Normal(order) => Payload::Command(order),
        EntryPayload::Membership(members) => Payload::Membership(our_membership(&members)),
    };
    record::Entry { id: our_log_id(&theirs.log_id), payload }
}
