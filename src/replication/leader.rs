//! Owns: the current leader as this node knows it, and waiting for a change of leader.

use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use tokio::time::timeout;

use super::replica::Raft;
use crate::storage::log::record::Peer;

/// The leader of a term. This node may not know yet that it was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    pub node: u64,
    pub term: u64,
    pub peer: Peer,
}

impl Leader {
    pub fn of(raft: &Raft) -> Option<Leader> {
        // Server metrics change with leader, vote and membership, not with every entry.
        let metrics = raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let node = metrics.current_leader?;
        let peer = metrics.membership_config.membership().get_node(&node).cloned().unwrap_or_default();
        Some(Leader { node, term: metrics.vote.leader_id.term, peer })
    }

    /// Waits until the address of the leader is known, at most this long. A node that has just joined hears from the leader
    /// before it has the list of members.
    pub async fn with_address(raft: &Raft, at_most: Duration) -> Option<Leader> {
        let mut metrics = raft.server_metrics();
        let waiting = async {
            loop {
                let leader = Leader::of(raft).filter(|leader| !leader.peer.address.is_empty());
                if leader.is_some() || metrics.changed().await.is_err() {
                    return leader;
                }
            }
        };
        timeout(at_most, waiting).await.ok().flatten()
    }

    /// Waits until there is another leader than `before`, at most this long.
    pub async fn changed(raft: &Raft, before: &Option<Leader>, at_most: Duration) {
        let mut metrics = raft.server_metrics();
        let waiting = async {
            while Leader::of(raft).is_none_or(|now| Some(now) == *before) {
                if metrics.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        // A time-out has the same effect as a change: the caller retries.
        let _ = timeout(at_most, waiting).await;
    }
}
