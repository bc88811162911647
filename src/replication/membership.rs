//! Owns: who belongs to the cluster, changed one step at a time: add, promote, remove, hand over leadership.
//! Never: move a member's address or disk silently. A node that comes back with another disk is a new node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{ChangeMembers, Instant as _};
use tokio::time::timeout;
use tonic::Status;
use tracing::info;

use super::channels::Purpose;
use super::hop::lost_disk;
use super::leader::Leader;
use super::network::Peers;
use super::replica::Raft;
use super::types::{Membership, Types};
use crate::proto::peer::InviteRequest;
use crate::storage::log::record::Peer;

/// A change waits for the quorum at most so long; it may still happen afterwards.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(20);
const INVITE_TIMEOUT: Duration = Duration::from_secs(2);
/// A learner may become a voter when it lacks no more than this: what a moment of load brings.
const PROMOTE_LAG_MAX: u64 = 1000;
const PROMOTE_PATIENCE: Duration = Duration::from_secs(10);
/// A voter counts as reachable when it was heard of so recently.
const HEARD_RECENTLY: Duration = Duration::from_secs(2);
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// The voter that is to take over may lack an entry that is under way: it is asked again after this.
const TRANSFER_AGAIN: Duration = Duration::from_millis(100);

/// Changes the membership. Only the leader can.
#[derive(Clone)]
pub struct Council {
    pub raft: Raft,
    pub peers: Peers,
}

type Metrics = openraft::RaftMetrics<Types>;

impl Council {
    pub fn metrics(&self) -> Metrics {
        self.raft.metrics().borrow_watched().clone()
    }

    fn membership(&self) -> Membership {
        self.metrics().membership_config.membership().clone()
    }

    /// Invites a node and makes it a learner. A known member may only come back with the disk it had.
    pub async fn add_learner(&self, node: u64, address: &str) -> Result<(), Status> {
        if node == 0 {
            return Err(Status::invalid_argument("node: 0 is no node id, ids begin at 1"));
        }
        if address.is_empty() {
            return Err(Status::invalid_argument("address: empty, give host:port of the node's peer listener"));
        }
        let membership = self.membership();
        let elsewhere = membership.nodes().find(|(other, peer)| **other != node && peer.address == address);
        if let Some((other, _)) = elsewhere {
            return Err(Status::failed_precondition(format!("address: node {other} is a member under {address}")));
        }
        let instance = self.invite(node, address).await?;
        let peer = Peer { address: address.to_owned(), instance };
        let change = match membership.get_node(&node) {
            None => ChangeMembers::AddNodes(BTreeMap::from([(node, peer)])),
            Some(known) if known.instance != peer.instance => {
                return Err(Status::failed_precondition(lost_disk(node)));
            }
            Some(known) if known.address == peer.address => return Ok(()),
            // The same disk at another address.
            Some(_) => ChangeMembers::SetNodes(BTreeMap::from([(node, peer)])),
        };
        self.change(change, true).await?;
        info!(node, address, "a node is a member now");
        Ok(())
    }

    async fn invite(&self, node: u64, address: &str) -> Result<String, Status> {
        let unreached = |why: &str| Status::unavailable(format!("node {node} at {address} cannot be invited: {why}"));
        let client = self.peers.channels.peer(address, Purpose::Call);
        let mut client = client.map_err(Status::invalid_argument)?;
        let request = InviteRequest { hop: Some(self.peers.me.hop(node, &Peer::default())) };
        match timeout(INVITE_TIMEOUT, client.invite(request)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner().instance),
            Ok(Err(status)) if status.code() == tonic::Code::FailedPrecondition => Err(status),
            Ok(Err(status)) => Err(unreached(status.message())),
            Err(_) => Err(unreached("it does not answer")),
        }
    }

    pub async fn promote(&self, node: u64) -> Result<(), Status> {
        let membership = self.membership();
        self.member(&membership, node)?;
        // A change that broke off between its two steps leaves two sets of voters that must both agree, and a set that lacks
        // this node may lose its quorum without it. The same order once more ends it.
        let settled = membership.get_joint_config().len() == 1;
        if settled && membership.voter_ids().any(|voter| voter == node) {
            return Ok(());
        }
        let near = |metrics: &Metrics| lag(metrics, node).is_some_and(|lag| lag <= PROMOTE_LAG_MAX);
        let caught_up = self.raft.wait(Some(PROMOTE_PATIENCE)).metrics(near, "the learner catches up").await;
        if caught_up.is_err() {
            let behind = lag(&self.metrics(), node).map_or("an unknown number of".to_owned(), |lag| lag.to_string());
            return Err(Status::failed_precondition(format!(
                "node {node} is {behind} entries behind: promote it when it has caught up"
            )));
        }
        self.change(ChangeMembers::AddVoterIds(BTreeSet::from([node])), true).await?;
        info!(node, "a node votes now");
        Ok(())
    }

    pub async fn remove(&self, node: u64, force: bool) -> Result<(), Status> {
        let membership = self.membership();
        self.member(&membership, node)?;
        if node == self.peers.me.node {
            return Err(Status::failed_precondition(format!(
                "node {node} leads: transfer leadership to another node first, then remove it"
            )));
        }
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let change = if voters.contains(&node) {
            let left: BTreeSet<u64> = voters.into_iter().filter(|voter| *voter != node).collect();
            self.check_quorum(&left, node, force)?;
            ChangeMembers::RemoveVoters(BTreeSet::from([node]))
        } else {
            ChangeMembers::RemoveNodes(BTreeSet::from([node]))
        };
        self.change(change, false).await?;
        info!(node, "a node is no member any more");
        Ok(())
    }

    fn check_quorum(&self, left: &BTreeSet<u64>, node: u64, force: bool) -> Result<(), Status> {
        let metrics = self.metrics();
        let reachable = left
            .iter()
            .filter(|voter| **voter == metrics.id || heard(&metrics, **voter).is_some_and(|ago| ago <= HEARD_RECENTLY));
        let (reachable, quorum) = (reachable.count(), left.len() / 2 + 1);
        if reachable >= quorum || force {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "without node {node} there are {} voters, of which {reachable} can be reached and {quorum} are needed: bring \
             the others back first, or use force",
            left.len()
        )))
    }

    /// Hands leadership to a voter (0: the one that is furthest) and returns when it leads.
    pub async fn transfer(&self, to: u64) -> Result<u64, Status> {
        let metrics = self.metrics();
        let membership = metrics.membership_config.membership();
        let to = match to {
            0 => furthest_voter(&metrics)
                .ok_or_else(|| Status::failed_precondition("there is no other voter that could lead"))?,
            to => to,
        };
        self.member(membership, to)?;
        if !membership.voter_ids().any(|voter| voter == to) {
            return Err(Status::failed_precondition(format!("node {to} is a learner: promote it first")));
        }
        let took_over = timeout(TRANSFER_TIMEOUT, self.hand_over(to)).await;
        took_over
            .map_err(|_| Status::unavailable(format!("node {to} did not take over within {TRANSFER_TIMEOUT:?}")))?;
        Ok(to)
    }

    async fn hand_over(&self, to: u64) {
        loop {
            let leader = Leader::of(&self.raft);
            if leader.as_ref().is_some_and(|leader| leader.node == to) {
                return;
            }
            if leader.as_ref().is_some_and(|leader| leader.node == self.peers.me.node)
                && self.raft.trigger().transfer_leader(to).await.is_err()
            {
                return;
            }
            Leader::changed(&self.raft, &leader, TRANSFER_AGAIN).await;
        }
    }

    /// Before this node stops: someone else leads, so that nobody has to wait for an election.
    pub async fn step_aside(&self, within: Duration) {
        let metrics = self.metrics();
        if metrics.current_leader == Some(metrics.id)
            && let Some(to) = furthest_voter(&metrics)
        {
            info!(to, "handing over leadership");
            // Without it the others notice by themselves, a little later.
            let _ = timeout(within, self.hand_over(to)).await;
        }
    }

    /// Makes this node known under the address and disk it has now. Only for a node that leads.
    pub async fn introduce(&self, me: Peer) -> Result<(), Status> {
        let node = self.peers.me.node;
        if self.membership().get_node(&node) == Some(&me) {
            return Ok(());
        }
        self.change(ChangeMembers::SetNodes(BTreeMap::from([(node, me)])), true).await
    }

    fn member(&self, membership: &Membership, node: u64) -> Result<(), Status> {
        match membership.get_node(&node) {
            Some(_) => Ok(()),
            None => Err(Status::not_found(format!("node {node} is no member of this cluster"))),
        }
    }

    async fn change(&self, change: ChangeMembers<u64, Peer>, retain: bool) -> Result<(), Status> {
        match timeout(CHANGE_TIMEOUT, self.raft.change_membership(change, retain)).await {
            Ok(Ok(done)) => {
                // Whoever asks next must find what was just answered; without a leader here that is another's to show.
                let index = done.log_id.index;
                let shows = move |metrics: &Metrics| {
                    let at = metrics.membership_config.log_id().as_ref().map(|at| at.index);
                    at >= Some(index) || metrics.current_leader != Some(metrics.id)
                };
                let _ = self.raft.wait(Some(CHANGE_TIMEOUT)).metrics(shows, "the change shows").await;
                Ok(())
            }
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => {
                Err(Status::unavailable("leadership moved while the membership was to be changed; retry"))
            }
            Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error)))) => {
                Err(Status::failed_precondition(error.to_string()))
            }
            Ok(Err(error)) => Err(Status::unavailable(error.to_string())),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "no quorum agreed within {CHANGE_TIMEOUT:?}; it may still happen: look at the status"
            ))),
        }
    }
}

/// Entries a member lacks, as the leader knows it.
pub fn lag(metrics: &Metrics, node: u64) -> Option<u64> {
    let last = metrics.last_log_index.map_or(0, |last| last + 1);
    if node == metrics.id {
        return metrics.replication.as_ref().map(|_| 0);
    }
    let matched = metrics.replication.as_ref()?.get(&node)?;
    Some(last.saturating_sub(matched.as_ref().map_or(0, |matched| matched.index + 1)))
}

/// How long ago the leader heard of a member.
pub fn heard(metrics: &Metrics, node: u64) -> Option<Duration> {
    Some(metrics.heartbeat.as_ref()?.get(&node)?.as_ref()?.elapsed())
}

fn furthest_voter(metrics: &Metrics) -> Option<u64> {
    let replication = metrics.replication.as_ref()?;
    let voters: BTreeSet<u64> = metrics.membership_config.membership().voter_ids().collect();
    let others = replication.iter().filter(|(node, _)| **node != metrics.id && voters.contains(node));
    others.max_by_key(|(_, matched)| **matched).map(|(node, _)| *node)
}
