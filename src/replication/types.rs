//! Owns: openraft's type parameters. Our own log record (`storage/log/record.rs`) is openraft's entry, so an entry
//! is never translated between the log, the wire and apply. Ids, votes and memberships that openraft keeps in its own
//! structs are translated here.

use std::fmt;

use openraft::entry::{RaftEntry, RaftPayload};
use openraft::vote::RaftLeaderId;

use crate::machine::Answer;
use crate::machine::refusal::Refusal;
use crate::storage::log::command::Order;
use crate::storage::log::record::{self, LeaderId, Payload, Peer, Unreadable};

/// The result of applying one entry, returned to the caller that proposed it.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The answer or refusal of the state machine.
    Answered(Result<Answer, Refusal>),
    /// The entry was a blank or membership entry, which has no caller.
    Nothing,
}

openraft::declare_raft_types!(
    /// The types of this cluster.
    pub Types:
        D = Order,
        R = Reply,
        NodeId = u64,
        Node = Peer,
        Term = u64,
        LeaderId = LeaderId,
        Payload = Payload,
        Entry = Entry,
);

pub use crate::storage::log::record::Entry;
pub type LogId = openraft::type_config::alias::LogIdOf<Types>;
pub type Vote = openraft::type_config::alias::VoteOf<Types>;
pub type Membership = openraft::Membership<u64, Peer>;
pub type StoredMembership = openraft::type_config::alias::StoredMembershipOf<Types>;
pub type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<Types>;

impl RaftLeaderId for LeaderId {
    type Term = u64;
    type NodeId = u64;
    type Committed = LeaderId;

    fn new(term: u64, node: u64) -> LeaderId {
        LeaderId { term, node }
    }

    fn term(&self) -> u64 {
        self.term
    }

    fn node_id(&self) -> &u64 {
        &self.node
    }

    fn to_committed(&self) -> LeaderId {
        *self
    }
}

impl RaftPayload for Payload {
    type D = Order;
    type NodeId = u64;
    type Node = Peer;

    fn blank() -> Payload {
        Payload::Blank
    }

    fn with_normal(self, order: Order) -> Payload {
        Payload::Command(order)
    }

    fn with_membership(self, membership: Membership) -> Payload {
        Payload::Membership(our_membership(&membership))
    }

    fn get_membership(&self) -> Option<Membership> {
        match self {
            Payload::Membership(ours) => Some(membership(ours).expect("`check` accepted every entry openraft sees")),
            Payload::Blank | Payload::Command(_) => None,
        }
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Payload::Blank => f.write_str("blank"),
            Payload::Command(order) => write!(f, "{order}"),
            Payload::Membership(membership) => write!(f, "membership {:?}", membership.configs),
        }
    }
}

impl RaftEntry for Entry {
    type CommittedLeaderId = LeaderId;
    type Payload = Payload;

    fn new(id: LogId, payload: Payload) -> Entry {
        Entry { id: our_log_id(&id), payload }
    }

    fn log_id_parts(&self) -> (&LeaderId, u64) {
        (&self.id.leader, self.id.index)
    }

    fn set_log_id(&mut self, id: LogId) {
        self.id = our_log_id(&id);
    }

    fn get_membership(&self) -> Option<Membership> {
        self.payload.get_membership()
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.payload)
    }
}

/// Refuses an entry whose membership openraft does not accept. Called wherever entries are decoded.
pub fn check(entry: &Entry) -> Result<(), Unreadable> {
    match &entry.payload {
        Payload::Membership(ours) => membership(ours).map(drop),
        Payload::Blank | Payload::Command(_) => Ok(()),
    }
}

pub fn log_id(ours: record::LogId) -> LogId {
    LogId::new(ours.leader, ours.index)
}

pub fn our_log_id(theirs: &LogId) -> record::LogId {
    record::LogId { leader: theirs.leader_id, index: theirs.index }
}

pub fn vote(ours: record::Vote) -> Vote {
    Vote { leader_id: LeaderId { term: ours.term, node: ours.node }, committed: ours.committed }
}

pub fn our_vote(theirs: &Vote) -> record::Vote {
    record::Vote { term: theirs.leader_id.term, node: theirs.leader_id.node, committed: theirs.committed }
}

pub fn membership(ours: &record::Membership) -> Result<Membership, Unreadable> {
    Membership::new(ours.configs.clone(), ours.members.clone()).map_err(|error| Unreadable(error.to_string()))
}

pub fn our_membership(theirs: &Membership) -> record::Membership {
    let members = theirs.nodes().map(|(node, peer)| (*node, peer.clone())).collect();
    record::Membership { configs: theirs.get_joint_config().clone(), members }
}
