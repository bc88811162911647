//! Owns: how the leader takes in a node that asks to join by itself: its id, its predecessor under the same name, and its
//! address if it moved. The node becomes a learner; `autopilot.rs` promotes it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use openraft::{ChangeMembers, Instant as _};
use tokio::time::timeout;
use tonic::Status;
use tracing::info;

use super::formation::meeting::Meeting;
use super::formation::record::Who;
use super::membership::{HEARD_RECENTLY, MembershipChanges, heard};
use super::raise::too_old;
use crate::proto::formation::ProbeRequest;
use crate::storage::log::record::Peer;

/// A leader that did not hear from a quorum for this long does not say that a node was removed.
const QUORUM_HEARD_MAX: Duration = Duration::from_secs(1);
const PROBE_MAX: Duration = Duration::from_secs(3);

impl MembershipChanges {
    /// Makes a node a learner, unless it is a member, and returns its id. Returns 0 if its data directory is that of a
    /// member that was removed. `claimed` is the id it had.
    pub async fn take_in(&self, who: &Who, claimed: u64, meeting: &Meeting) -> Result<u64, Status> {
        let _one_at_a_time = self.taking_in.lock().await;
        check(who)?;
        let metrics = self.metrics();
        let acked = metrics.last_quorum_acked.as_ref().map(|acked| acked.elapsed());
        let alone = metrics.membership_config.membership().voter_ids().count() <= 1;
        if !alone && acked.is_none_or(|ago| ago > QUORUM_HEARD_MAX) {
            return Err(Status::unavailable("no quorum answers this leader; retry"));
        }
        let membership = self.membership();
        let own = Peer { address: who.address.clone(), instance: who.instance.clone(), name: who.name.clone() };
        let known = membership.nodes().find(|(_, peer)| peer.instance == who.instance);
        if let Some((node, peer)) = known {
            if *peer != own {
                self.answers_there(who, meeting).await?;
                self.change(ChangeMembers::SetNodes(BTreeMap::from([(*node, own)])), true).await?;
                info!(node, name = who.name, address = who.address, "a member has moved");
            }
            return Ok(*node);
        }
        if claimed != 0 {
            return Ok(0);
        }
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        for (node, peer) in membership.nodes().filter(|(_, peer)| peer.name == who.name) {
            self.is_gone(*node, peer, &voters, meeting).await?;
            if !voters.contains(node) {
                self.change(ChangeMembers::RemoveNodes(BTreeSet::from([*node])), false).await?;
                info!(node, name = peer.name, "a learner that lost its disk was removed");
            }
        }
        self.answers_there(who, meeting).await?;
        let node = membership.nodes().map(|(node, _)| *node).max().unwrap_or(0) + 1;
        self.change(ChangeMembers::AddNodes(BTreeMap::from([(node, own)])), true).await?;
        info!(node, name = who.name, address = who.address, "a node joined as a learner");
        Ok(node)
    }

    /// A node that others cannot reach must not become a member.
    async fn answers_there(&self, who: &Who, meeting: &Meeting) -> Result<(), Status> {
        match meeting.one(&who.address).await {
            Some(answer) if answer.met.who.instance == who.instance => {
                let level = self.level().map_err(|fault| Status::unavailable(fault.0))?;
                match answer.knows_level >= level {
                    true => Ok(()),
                    false => {
                        let why = too_old(&who.name, &answer.version, answer.knows_level, level);
                        Err(Status::failed_precondition(why))
                    }
                }
            }
            Some(answer) => Err(Status::failed_precondition(format!(
                "peer_advertise: at {} answers {:?}, not {:?}: give each node its own address",
                who.address, answer.met.who.name, who.name
            ))),
            None => Err(Status::unavailable(format!(
                "peer_advertise: the leader cannot reach {:?} at {}",
                who.name, who.address
            ))),
        }
    }

    /// Succeeds if a quorum of the voters agrees that the data directory of a member does not answer any more.
    async fn is_gone(&self, node: u64, peer: &Peer, voters: &BTreeSet<u64>, meeting: &Meeting) -> Result<(), Status> {
        let alive = |by: String| {
            Status::failed_precondition(format!(
                "name: {:?} is the name of node {node}, which answers {by}: give this node another name (--name)",
                peer.name
            ))
        };
        if node == self.peers.local.node
            || heard(&self.metrics(), node).is_some_and(|ago| ago <= HEARD_RECENTLY)
            || meeting.one(&peer.address).await.is_some_and(|answer| answer.met.who.instance == peer.instance)
        {
            return Err(alive("the leader".to_owned()));
        }
        let membership = self.membership();
        let others = voters.iter().filter(|voter| **voter != node && **voter != self.peers.local.node);
        let asked = others.filter_map(|voter| membership.get_node(voter).map(|asked| (*voter, asked.address.clone())));
        let asked = asked.map(|(voter, address)| async move { (voter, self.probe(&address, peer).await) });
        let mut agree = 1;
        for (voter, answers) in join_all(asked).await {
            match answers {
                Some(true) => return Err(alive(format!("node {voter}"))),
                Some(false) => agree += 1,
                None => {}
            }
        }
        let quorum = voters.len() / 2 + 1;
        if agree < quorum {
            return Err(Status::unavailable(format!(
                "{agree} of {quorum} voters that are needed agree that node {node} ({:?}) is gone; retry",
                peer.name
            )));
        }
        Ok(())
    }

    /// Whether a member answers, as another member sees it; `None` if that one does not answer itself.
    async fn probe(&self, asked: &str, peer: &Peer) -> Option<bool> {
        let mut client = self.peers.channels.formation(asked).ok()?;
        let request = ProbeRequest { address: peer.address.clone(), instance: peer.instance.clone() };
        let answered = timeout(PROBE_MAX, client.probe(request)).await;
        Some(answered.ok()?.ok()?.into_inner().answers)
    }
}

fn check(who: &Who) -> Result<(), Status> {
    for (field, value) in [("name", &who.name), ("instance", &who.instance), ("address", &who.address)] {
        if value.is_empty() || value.len() > 255 {
            return Err(Status::invalid_argument(format!("who.{field}: give 1 to 255 bytes")));
        }
    }
    Ok(())
}
