//! Owns: the records of a log in our own types, and their encoding: log ids, votes, memberships, entries.
//! Never: the layout of files (`segment.rs`), the encoding of commands (`command.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;

use super::command::Order;
use crate::metrics::trace::Context;
use crate::proto::log as proto;

/// Bytes that cannot be decoded: what is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable(pub String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreadable {}

/// The leader that proposed an entry: its term first, so that a later leader is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaderId {
    pub term: u64,
    pub node: u64,
}

impl fmt::Display for LeaderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T{}-N{}", self.term, self.node)
    }
}

/// The position of an entry: the leader that proposed it, and its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId {
    pub leader: LeaderId,
    pub index: u64,
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.leader, self.index)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vote {
    pub term: u64,
    pub node: u64,
    /// True once a quorum granted it.
    pub committed: bool,
}

/// The address and the data directory of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peer {
    /// Empty for a node that never had peers.
    pub address: String,
    /// The id of its data directory when it became a member; empty for a node that never had peers.
    pub instance: String,
    /// The name that people know it by; empty for a node that was added by hand.
    pub name: String,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Membership {
    /// One set of voters, or two while the membership changes.
    pub configs: Vec<BTreeSet<u64>>,
    /// Voters and learners.
    pub members: BTreeMap<u64, Peer>,
}

/// The content of an entry.
#[derive(Debug, Clone, PartialEq)]
pub enum Payload {
    /// The first entry of a leader.
    Blank,
    Command(Order),
    Membership(Membership),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub id: LogId,
    pub payload: Payload,
}

impl Entry {
    pub fn index(&self) -> u64 {
        self.id.index
    }

    /// Where the call of its command is in its trace, if that call is traced.
    pub fn trace(&self) -> Option<&Context> {
        match &self.payload {
            Payload::Command(order) => order.trace(),
            Payload::Blank | Payload::Membership(_) => None,
        }
    }

    /// About how many bytes the entry takes, in memory and on disk.
    pub fn weight(&self) -> usize {
        // Without its payload an entry takes about 64 bytes in the cache and about 20 on disk.
        const FRAME: usize = 64;
        FRAME
            + match &self.payload {
                Payload::Blank => 0,
                Payload::Command(order) => order.encoded().len(),
                Payload::Membership(membership) => membership
                    .members
                    .values()
                    .map(|peer| peer.address.len() + peer.instance.len() + peer.name.len() + 32)
                    .sum::<usize>(),
            }
    }

    pub fn to_proto(&self) -> proto::Entry {
        let payload = match &self.payload {
            Payload::Blank => proto::entry::Payload::Blank(proto::Blank {}),
            Payload::Command(order) => proto::entry::Payload::Command(order.encoded().clone()),
            Payload::Membership(membership) => proto::entry::Payload::Membership(membership.to_proto()),
        };
        let LogId { leader: LeaderId { term, node: leader }, index } = self.id;
        proto::Entry { term, leader, index, payload: Some(payload) }
    }

    pub fn from_proto(encoded: proto::Entry) -> Result<Entry, Unreadable> {
        let id = LogId::new(encoded.term, encoded.leader, encoded.index);
        let at = |Unreadable(why): Unreadable| Unreadable(format!("entry {id}: {why}"));
        let payload = match encoded.payload {
            Some(proto::entry::Payload::Blank(proto::Blank {})) => Payload::Blank,
            Some(proto::entry::Payload::Command(encoded)) => Payload::Command(Order::read(encoded).map_err(at)?),
            Some(proto::entry::Payload::Membership(membership)) => {
                Payload::Membership(Membership::from_proto(membership).map_err(at)?)
            }
            None => return Err(at(Unreadable("no payload that this version knows".to_owned()))),
        };
        Ok(Entry { id, payload })
    }
}

impl LogId {
    pub fn new(term: u64, leader: u64, index: u64) -> LogId {
        LogId { leader: LeaderId { term, node: leader }, index }
    }

    /// True for the largest index, which has no next one. Only damaged or forged bytes contain it.
    pub fn is_beyond_any_log(self) -> bool {
        self.index == u64::MAX
    }

    pub fn to_proto(self) -> proto::LogId {
        proto::LogId { term: self.leader.term, leader: self.leader.node, index: self.index }
    }

    pub fn from_proto(encoded: proto::LogId) -> LogId {
        LogId::new(encoded.term, encoded.leader, encoded.index)
    }
}

impl Vote {
    pub fn to_proto(self) -> proto::Vote {
        proto::Vote { term: self.term, node: self.node, committed: self.committed }
    }

    pub fn from_proto(encoded: proto::Vote) -> Vote {
        Vote { term: encoded.term, node: encoded.node, committed: encoded.committed }
    }
}

impl Membership {
    pub fn to_proto(&self) -> proto::Membership {
        let voters = |config: &BTreeSet<u64>| proto::Voters { nodes: config.iter().copied().collect() };
        let member = |(node, peer): (&u64, &Peer)| proto::Member {
            node: *node,
            address: peer.address.clone(),
            instance: peer.instance.clone(),
            name: peer.name.clone(),
        };
        proto::Membership {
            configs: self.configs.iter().map(voters).collect(),
            members: self.members.iter().map(member).collect(),
        }
    }

    pub fn from_proto(encoded: proto::Membership) -> Result<Membership, Unreadable> {
        let configs: Vec<BTreeSet<u64>> =
            encoded.configs.into_iter().map(|voters| voters.nodes.into_iter().collect()).collect();
        let peer = |proto::Member { node, address, instance, name }| (node, Peer { address, instance, name });
        let members: BTreeMap<u64, Peer> = encoded.members.into_iter().map(peer).collect();
        if let Some(stranger) = configs.iter().flatten().find(|node| !members.contains_key(node)) {
            return Err(Unreadable(format!("membership: voter {stranger} is no member")));
        }
        Ok(Membership { configs, members })
    }
}

/// A copy of an entry with its own memory. Otherwise keeping one entry would keep the whole buffer it was read from.
pub(super) fn detached(mut encoded: proto::Entry) -> proto::Entry {
    if let Some(proto::entry::Payload::Command(encoded)) = &mut encoded.payload {
        *encoded = Bytes::copy_from_slice(encoded);
    }
    encoded
}
