//! Owns: who leads, as this node knows it, and waiting for that to change.

use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use tokio::time::timeout;

use super::replica::Raft;
use crate::storage::log::record::Peer;

/// The leader of a term. It may have been replaced without this node knowing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    pub node: u64,
    pub term: u64,
    pub peer: Peer,
}

impl Leader {
    pub fn of(raft: &Raft) -> Option<Leader> {
        // These change with leader, vote and membership only, not with every entry.
        let metrics = raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let node = metrics.current_leader?;
        let peer = metrics.membership_config.membership().get_node(&node).cloned().unwrap_or_default();
        Some(Leader { node, term: metrics.vote.leader_id.term, peer })
    }

    /// Waits until someone else leads than `before`, at most so long.
    pub async fn changed(raft: &Raft, before: &Option<Leader>, at_most: Duration) {
        let mut metrics = raft.server_metrics();
        let waiting = async {
            while Leader::of(raft).is_none_or(|now| Some(now) == *before) {
                if metrics.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        // Running out of time is as good as a change: the caller tries again.
        let _ = timeout(at_most, waiting).await;
    }
}
