//! Owns: what a log holds, in our own words, and its bytes: log ids, votes, memberships, entries.
//! Never: how they lie in a file (`segment.rs`), what a command says (`command.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;

use super::command::Order;
use crate::proto::log as proto;

/// Bytes that are not what they should be, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable(pub String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreadable {}

/// Where an entry stands: the leader that proposed it (term and node), and its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId {
    pub term: u64,
    pub leader: u64,
    pub index: u64,
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T{}-N{}.{}", self.term, self.leader, self.index)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vote {
    pub term: u64,
    pub node: u64,
    /// True once a quorum granted it.
    pub committed: bool,
}

/// How other nodes reach a member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peer {
    /// Empty for a node that never had peers.
    pub address: String,
    /// The data directory it had when it became a member; empty for one that never had peers.
    pub instance: String,
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

/// What an entry says.
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

    /// About how many bytes it takes, in memory and on disk.
    pub fn weight(&self) -> usize {
        // An entry without its payload takes some 64 bytes in the cache and some 20 on disk.
        const FRAME: usize = 64;
        FRAME
            + match &self.payload {
                Payload::Blank => 0,
                Payload::Command(order) => order.encoded().len(),
                Payload::Membership(membership) => {
                    membership.members.values().map(|peer| peer.address.len() + peer.instance.len() + 32).sum::<usize>()
                }
            }
    }

    pub fn spell(&self) -> proto::Entry {
        let payload = match &self.payload {
            Payload::Blank => proto::entry::Payload::Blank(proto::Blank {}),
            Payload::Command(order) => proto::entry::Payload::Command(order.encoded().clone()),
            Payload::Membership(membership) => proto::entry::Payload::Membership(membership.spell()),
        };
        let LogId { term, leader, index } = self.id;
        proto::Entry { term, leader, index, payload: Some(payload) }
    }

    pub fn understand(spelled: proto::Entry) -> Result<Entry, Unreadable> {
        let id = LogId { term: spelled.term, leader: spelled.leader, index: spelled.index };
        let at = |Unreadable(why): Unreadable| Unreadable(format!("entry {id}: {why}"));
        let payload = match spelled.payload {
            Some(proto::entry::Payload::Blank(proto::Blank {})) => Payload::Blank,
            Some(proto::entry::Payload::Command(encoded)) => Payload::Command(Order::read(encoded).map_err(at)?),
            Some(proto::entry::Payload::Membership(membership)) => {
                Payload::Membership(Membership::understand(membership).map_err(at)?)
            }
            None => return Err(at(Unreadable("no payload this version knows".to_owned()))),
        };
        Ok(Entry { id, payload })
    }
}

impl LogId {
    /// True for the one index that has no next: only damage or malice spells it.
    pub fn is_beyond_any_log(self) -> bool {
        self.index == u64::MAX
    }

    pub fn spell(self) -> proto::LogId {
        proto::LogId { term: self.term, leader: self.leader, index: self.index }
    }

    pub fn understand(spelled: proto::LogId) -> LogId {
        LogId { term: spelled.term, leader: spelled.leader, index: spelled.index }
    }
}

impl Vote {
    pub fn spell(self) -> proto::Vote {
        proto::Vote { term: self.term, node: self.node, committed: self.committed }
    }

    pub fn understand(spelled: proto::Vote) -> Vote {
        Vote { term: spelled.term, node: spelled.node, committed: spelled.committed }
    }
}

impl Membership {
    pub fn spell(&self) -> proto::Membership {
        let voters = |config: &BTreeSet<u64>| proto::Voters { nodes: config.iter().copied().collect() };
        let member = |(node, peer): (&u64, &Peer)| proto::Member {
            node: *node,
            address: peer.address.clone(),
            instance: peer.instance.clone(),
        };
        proto::Membership {
            configs: self.configs.iter().map(voters).collect(),
            members: self.members.iter().map(member).collect(),
        }
    }

    pub fn understand(spelled: proto::Membership) -> Result<Membership, Unreadable> {
        let configs: Vec<BTreeSet<u64>> =
            spelled.configs.into_iter().map(|voters| voters.nodes.into_iter().collect()).collect();
        let peer = |member: proto::Member| (member.node, Peer { address: member.address, instance: member.instance });
        let members: BTreeMap<u64, Peer> = spelled.members.into_iter().map(peer).collect();
        if let Some(stranger) = configs.iter().flatten().find(|node| !members.contains_key(node)) {
            return Err(Unreadable(format!("membership: voter {stranger} is no member")));
        }
        Ok(Membership { configs, members })
    }
}

/// A copy of an entry whose bytes share memory with nothing else, so that keeping it keeps only itself.
pub(super) fn detached(mut spelled: proto::Entry) -> proto::Entry {
    if let Some(proto::entry::Payload::Command(encoded)) = &mut spelled.payload {
        *encoded = Bytes::copy_from_slice(encoded);
    }
    spelled
}
