//! Owns: changes of the cluster's membership, one step at a time: add, promote, remove, transfer leadership.
//! Never: change a member's address or disk silently. A node that returns with another disk is a new node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{ChangeMembers, Instant as _};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tonic::Status;
use tracing::{info, warn};

use super::channels::Purpose;
use super::leader::Leader;
use super::local_node::lost_disk;
use super::network::Peers;
use super::replica::Raft;
use super::types::{LogId, Membership, Types};
use crate::proto::peer::InviteRequest;
use crate::storage::Store;
use crate::storage::log::record::Peer;

/// The longest wait of a change for the quorum. The change may still happen afterwards.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest wait for the quorum while an interrupted change is completed. It is tried again afterwards.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
const INVITE_TIMEOUT: Duration = Duration::from_secs(2);
/// A learner may become a voter if it lags by at most this many entries: a moment of load.
pub(super) const PROMOTE_LAG_MAX: u64 = 1000;
const PROMOTE_TIMEOUT: Duration = Duration::from_secs(10);
/// A voter counts as reachable if the leader heard from it within this time.
pub(super) const HEARD_RECENTLY: Duration = Duration::from_secs(2);
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// The next leader may lack an entry that is in flight, so the transfer is retried after this time.
const TRANSFER_RETRY: Duration = Duration::from_millis(100);

/// Changes the membership. Only the leader can.
pub struct MembershipChanges {
    pub raft: Raft,
    pub peers: Peers,
    /// Held during a change: they happen one after the other.
    changing: Mutex<()>,
    /// Held while a node is taken in: two of them never get the same id.
    pub(super) taking_in: Mutex<()>,
    /// The state of this node, which knows the level of the cluster.
    pub(super) store: Arc<dyn Store>,
}

type Metrics = openraft::RaftMetrics<Types>;

impl MembershipChanges {
    pub fn new(raft: Raft, peers: Peers, store: Arc<dyn Store>) -> MembershipChanges {
        MembershipChanges { raft, peers, changing: Mutex::default(), taking_in: Mutex::default(), store }
    }

    pub fn metrics(&self) -> Metrics {
        self.raft.metrics().borrow_watched().clone()
    }

    pub(super) fn membership(&self) -> Membership {
        self.metrics().membership_config.membership().clone()
    }

    /// Invites a node and makes it a learner. A known member may only return with the disk it had.
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
        let _one_at_a_time = self.taking_in.lock().await;
        self.check_knows_level(node, address).await?;
        let instance = self.invite(node, address).await?;
        let name = membership.get_node(&node).map(|known| known.name.clone()).unwrap_or_default();
        let peer = Peer { address: address.to_owned(), instance, name };
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
        info!(node, address, "a node became a member");
        Ok(())
    }

    /// Records another address of a member. It must answer there with the disk it had.
    pub async fn update_member(&self, node: u64, address: &str) -> Result<(), Status> {
        self.member(&self.membership(), node)?;
        self.add_learner(node, address).await
    }

    async fn invite(&self, node: u64, address: &str) -> Result<String, Status> {
        let unreached = |why: &str| Status::unavailable(format!("node {node} at {address} cannot be invited: {why}"));
        let client = self.peers.channels.peer(address, Purpose::Call);
        let mut client = client.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let request = InviteRequest { hop: Some(self.peers.local.hop_to(node, &Peer::default())) };
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
        // A change that was interrupted between its two steps leaves two sets of voters that must both agree. Promoting the
        // node again completes such a change.
        let settled = membership.get_joint_config().len() == 1;
        if settled && membership.voter_ids().any(|voter| voter == node) {
            return Ok(());
        }
        let near = |metrics: &Metrics| lag(metrics, node).is_some_and(|lag| lag <= PROMOTE_LAG_MAX);
        let caught_up = self.raft.wait(Some(PROMOTE_TIMEOUT)).metrics(near, "the learner catches up").await;
        if caught_up.is_err() {
            let behind = lag(&self.metrics(), node).map_or("an unknown number of".to_owned(), |lag| lag.to_string());
            return Err(Status::failed_precondition(format!(
                "node {node} is {behind} entries behind: promote it when it has caught up"
            )));
        }
        self.change(ChangeMembers::AddVoterIds(BTreeSet::from([node])), true).await?;
        info!(node, "a node became a voter");
        Ok(())
    }

    pub async fn remove(&self, node: u64, force: bool) -> Result<(), Status> {
        let membership = self.membership();
        self.member(&membership, node)?;
        if node == self.peers.local.node {
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
        info!(node, "a node was removed");
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

    /// Transfers leadership to a voter and returns when it is the leader. 0: to the most up-to-date voter; it does not
    /// matter if another one was elected meanwhile.
    pub async fn transfer(&self, to: u64) -> Result<u64, Status> {
        let metrics = self.metrics();
        let membership = metrics.membership_config.membership();
        let any = to == 0;
        let to = match to {
            0 => most_recent_voter(&metrics)
                .ok_or_else(|| Status::failed_precondition("there is no other voter that could lead"))?,
            to => to,
        };
        self.member(membership, to)?;
        if !membership.voter_ids().any(|voter| voter == to) {
            return Err(Status::failed_precondition(format!("node {to} is a learner: promote it first")));
        }
        let took_over = timeout(TRANSFER_TIMEOUT, self.transfer_until_done(to, any)).await;
        took_over.map_err(|_| Status::unavailable(format!("node {to} did not take over within {TRANSFER_TIMEOUT:?}")))
    }

    /// Returns the new leader: node `to`, or with `any` every node but this one.
    async fn transfer_until_done(&self, to: u64, any: bool) -> u64 {
        let own = self.peers.local.node;
        loop {
            let leader = Leader::of(&self.raft);
            match leader.as_ref().map(|leader| leader.node) {
                Some(node) if node == to || any && node != own => return node,
                Some(node) if node == own && self.raft.trigger().transfer_leader(to).await.is_err() => return to,
                Some(_) | None => {}
            }
            Leader::changed(&self.raft, &leader, TRANSFER_RETRY).await;
        }
    }

    /// Transfers leadership before this node stops, so that clients need not wait for an election.
    pub async fn step_down(&self, within: Duration) {
        let metrics = self.metrics();
        if metrics.current_leader == Some(metrics.id)
            && let Some(to) = most_recent_voter(&metrics)
        {
            info!(to, "transferring leadership");
            // If it fails, the others elect a leader a little later.
            let _ = timeout(within, self.transfer_until_done(to, true)).await;
        }
    }

    /// Records the current address and instance of this node. Only the leader can.
    pub async fn record_own_address(&self, own: Peer) -> Result<(), Status> {
        let node = self.peers.local.node;
        if self.membership().get_node(&node) == Some(&own) {
            return Ok(());
        }
        self.change(ChangeMembers::SetNodes(BTreeMap::from([(node, own)])), true).await
    }

    fn member(&self, membership: &Membership, node: u64) -> Result<(), Status> {
        match membership.get_node(&node) {
            Some(_) => Ok(()),
            None => Err(Status::not_found(format!("node {node} is no member of this cluster"))),
        }
    }

    pub(super) async fn change(&self, change: ChangeMembers<u64, Peer>, retain: bool) -> Result<(), Status> {
        let _changing = self.changing.lock().await;
        match timeout(CHANGE_TIMEOUT, self.raft.change_membership(change, retain)).await {
            Ok(Ok(done)) => {
                // The next status of this node must show the change, unless it is no longer the leader.
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
                "no quorum agreed within {CHANGE_TIMEOUT:?}; it may still happen: check the status"
            ))),
        }
    }
}

/// A change of voters takes two entries: after the first, the old and the new voters must both agree. If the leader is lost
/// in between, the next one writes the second entry. Until then a majority of the old voters is needed as well, of which
/// some may be gone for good.
#[derive(Default)]
pub struct InterruptedChange {
    /// The first entry of an unfinished change, as it was at the previous check.
    joint_since: Option<LogId>,
}

impl InterruptedChange {
    /// Called from time to time. A change that is unfinished at two calls in a row, although this node makes none, has
    /// lost its leader.
    pub async fn finish(&mut self, changes: &MembershipChanges) {
        // Otherwise the change that this node makes right now would find its own second entry written by another hand.
        let Ok(_changing) = changes.changing.try_lock() else { return self.joint_since = None };
        let raft = &changes.raft;
        let metrics = changes.metrics();
        let change = metrics.membership_config.membership().get_joint_config().clone();
        let leads = metrics.state.is_leader();
        let at = (*metrics.membership_config.log_id()).filter(|_| leads && change.len() > 1);
        let again = at.is_some() && at == self.joint_since;
        self.joint_since = at;
        let Some(voters) = change.last().filter(|_| again) else { return };
        info!(?voters, "completing a change of voters that was interrupted");
        // Only the removal of a node takes a vote away, and a removed node does not stay a learner.
        let finished = raft.change_membership(ChangeMembers::ReplaceAllVoters(voters.clone()), false);
        match timeout(FINISH_TIMEOUT, finished).await {
            Ok(Ok(_)) => info!("the change of voters is complete"),
            Ok(Err(error)) => warn!(%error, "the change of voters cannot be completed yet"),
            Err(_) => warn!("no quorum agrees to complete the change of voters"),
        }
    }
}

/// The entries a member lacks, as far as the leader knows.
pub fn lag(metrics: &Metrics, node: u64) -> Option<u64> {
    let last = metrics.last_log_index.map_or(0, |last| last + 1);
    if node == metrics.id {
        return metrics.replication.as_ref().map(|_| 0);
    }
    let matched = metrics.replication.as_ref()?.get(&node)?;
    Some(last.saturating_sub(matched.as_ref().map_or(0, |matched| matched.index + 1)))
}

/// The time since the leader heard from a member.
pub fn heard(metrics: &Metrics, node: u64) -> Option<Duration> {
    Some(metrics.heartbeat.as_ref()?.get(&node)?.as_ref()?.elapsed())
}

fn most_recent_voter(metrics: &Metrics) -> Option<u64> {
    let replication = metrics.replication.as_ref()?;
    let voters: BTreeSet<u64> = metrics.membership_config.membership().voter_ids().collect();
    let others = replication.iter().filter(|(node, _)| **node != metrics.id && voters.contains(node));
    others.max_by_key(|(_, matched)| **matched).map(|(node, _)| *node)
}
