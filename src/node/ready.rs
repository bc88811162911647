//! Owns: when the data of a node can be served, for each adapter: the checks behind `GET /readyz`.
//! Never: an id or an address in the reason: probes need no credentials.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::timeout;

use crate::proposal::bridge::BridgeAdapter;
use crate::proposal::local::LocalAdapter;
use crate::proposal::raft::RaftAdapter;
use crate::surface::probes::{Check, CheckData};

/// The longest wait for the leader and its quorum: shorter than the usual patience of a probe, which is a second.
const LEADER_WAIT_MAX: Duration = Duration::from_millis(700);

/// A node that is further behind the leader's commit is not ready: about a second of work at peak load. Until it has
/// caught up, its reads would wait.
const BEHIND_ENTRIES_MAX: u64 = 4096;

/// Reads go on, so it is no reason to send clients elsewhere: the others refuse writes too.
const NEARLY_FULL: &str = "nearly full: the cluster accepts reads and deletes only";

const CLOSED: &str = "the store has failed or is closed";

/// The member of a cluster.
pub fn of_member(member: &Arc<RaftAdapter>) -> CheckData {
    let member = Arc::downgrade(member);
    Arc::new(move || {
        let member = member.upgrade();
        async move {
            let Some(member) = member else { return vec![Check::require("store", false, CLOSED)] };
            let replica = member.replica();
            // The leader answers after it has heard from a quorum.
            let confirmed = timeout(LEADER_WAIT_MAX, replica.read_index().confirm()).await;
            let committed = confirmed.ok().and_then(Result::ok);
            let no_leader = match replica.identity().cluster_id.is_empty() {
                true => "this node waits for the invitation of a cluster",
                false => "no leader with a quorum answers",
            };
            vec![
                Check::require("store", replica.is_running(), CLOSED),
                Check::require("leader", committed.is_some(), no_leader),
                Check::new("applied", behind(committed, replica.applied())),
                Check::note("disk", replica.disk_space().own_is_low().then(|| NEARLY_FULL.to_owned())),
            ]
        }
        .boxed()
    })
}

/// Why a state is too old.
fn behind(committed: Option<u64>, applied: u64) -> Option<String> {
    let Some(committed) = committed else { return Some("how far the cluster is, only its leader knows".to_owned()) };
    let entries = committed.saturating_sub(applied);
    let late = || format!("{entries} entries behind the leader, at most {BEHIND_ENTRIES_MAX} are allowed");
    (entries > BEHIND_ENTRIES_MAX).then(late)
}

/// Files of this node.
pub fn of_files(adapter: &Arc<LocalAdapter>) -> CheckData {
    let adapter = Arc::downgrade(adapter);
    Arc::new(move || {
        let open = adapter.upgrade().is_some_and(|adapter| adapter.is_open());
        std::future::ready(vec![Check::require("store", open, CLOSED)]).boxed()
    })
}

/// Data at a main.
pub fn of_bridge(adapter: &Arc<BridgeAdapter>) -> CheckData {
    let adapter = Arc::downgrade(adapter);
    Arc::new(move || {
        let connected = adapter.upgrade().is_some_and(|adapter| adapter.trouble().is_none());
        std::future::ready(vec![Check::require("main", connected, "no main that can be used is connected")]).boxed()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_be_a_little_behind_its_leader_and_never_ahead() {
        assert_eq!(behind(Some(10), 10), None);
        assert_eq!(behind(Some(10), 12), None);
        assert_eq!(behind(Some(BEHIND_ENTRIES_MAX + 5), 5), None);
        assert!(behind(Some(BEHIND_ENTRIES_MAX + 6), 5).unwrap().starts_with("4097 entries behind"));
        assert!(behind(None, 5).is_some());
    }
}
