//! Owns: which members have little space left on their disk. Every node measures its own; the leader asks the others.
//! While one has little, the leader accepts no command that grows the state ([`Command::grows`]), so that no log fills
//! its disk to the last byte. Deletes, reads, elections and changes of the membership go on.
//! Never: whether a node is healthy. A member that does not answer has no part in it.
//!
//! [`Command::grows`]: crate::machine::Command::grows

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use openraft::async_runtime::WatchReceiver;
use tokio::time::timeout;
use tracing::{info, warn};

use super::network::Peers;
use super::replica::Raft;
use super::state_machine::off_runtime;
use crate::proto::admin::{Call, StatusRequest};
use crate::storage::log::record::Peer;

/// How often the disks are looked at. A fast disk takes 500 MB in this time, which is about the default of the bound.
const EVERY: Duration = Duration::from_secs(1);
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A snapshot is begun only if this much would stay free beside one like the last.
const BESIDE_SNAPSHOT_BYTES: u64 = 16 << 20;

/// A snapshot that is being written leaves this much to the log.
const LEFT_FOR_LOG_BYTES: u64 = 8 << 20;

/// A snapshot that did not fit is tried again when this much more is free.
const MORE_ROOM_BYTES: u64 = 8 << 20;

/// It is tried again after this time in any case: deletes make the state smaller and free nothing by themselves.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The bytes that the file system of the data directory has left; `None` if nobody knows.
pub type FreeBytes = Arc<dyn Fn() -> Option<u64> + Send + Sync>;

pub struct DiskSpace {
    free: FreeBytes,
    /// Below this a disk is nearly full; 0 for never.
    min_free: u64,
    node: u64,
    own_low: AtomicBool,
    /// Other members with little space, as this node knows it while it leads.
    others: Mutex<BTreeSet<u64>>,
}

impl DiskSpace {
    pub fn new(node: u64, free: FreeBytes, min_free: u64) -> DiskSpace {
        DiskSpace { free, min_free, node, own_low: AtomicBool::new(false), others: Mutex::default() }
    }

    /// A member with little space, for the leader.
    pub fn nearly_full(&self) -> Option<u64> {
        if self.own_is_low() {
            return Some(self.node);
        }
        self.others.lock().unwrap_or_else(PoisonError::into_inner).first().copied()
    }

    pub fn own_is_low(&self) -> bool {
        self.own_low.load(Ordering::Relaxed)
    }

    pub fn min_free(&self) -> u64 {
        self.min_free
    }

    /// Whether a snapshot of about this size fits beside everything else.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        (self.free)().is_none_or(|free| free > bytes + bytes / 4 + BESIDE_SNAPSHOT_BYTES)
    }

    /// Whether a snapshot may go on to be written.
    pub fn leaves_room_for_log(&self) -> bool {
        (self.free)().is_none_or(|free| free > LEFT_FOR_LOG_BYTES)
    }

    /// Waits until the disk has more space than now, or some time has passed. False if nobody knows how much it has, or
    /// when `closed`.
    pub async fn grows(&self, closed: impl Fn() -> bool) -> bool {
        let Some(before) = (self.free)() else { return false };
        let until = tokio::time::Instant::now() + RETRY_AFTER;
        while !closed() {
            tokio::time::sleep(EVERY).await;
            let is_late = tokio::time::Instant::now() >= until;
            if is_late || (self.free)().is_none_or(|free| free >= before + MORE_ROOM_BYTES) {
                return true;
            }
        }
        false
    }

    /// A disk is nearly full below the bound, and has space again a tenth above it: otherwise every write at the edge
    /// would change it.
    fn measure(&self) {
        let Some(free) = (self.free)() else { return };
        let was_low = self.own_is_low();
        let low = free < if was_low { self.min_free.saturating_add(self.min_free / 10) } else { self.min_free };
        self.own_low.store(low, Ordering::Relaxed);
        match (was_low, low) {
            (false, true) => {
                warn!(free, min_free = self.min_free, "the disk is nearly full: the cluster accepts no writes");
            }
            (true, false) => info!(free, "the disk has space again"),
            (true, true) | (false, false) => {}
        }
    }

    /// Looks at the disks for as long as this node is a member.
    pub async fn run(self: Arc<DiskSpace>, raft: Raft, peers: Peers) {
        if (self.free)().is_none() {
            // Nobody knows the free space here, as in a simulation.
            return;
        }
        loop {
            let own = self.clone();
            if let Err(error) = off_runtime(move || own.measure()).await {
                warn!(%error, "the free space of the disk cannot be measured");
            }
            let others = if raft.is_leader() { ask_all(&raft, &peers).await } else { BTreeSet::new() };
            let before = {
                let mut known = self.others.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::replace(&mut *known, others.clone())
            };
            for node in others.difference(&before) {
                warn!(node, "the disk of a member is nearly full: the cluster accepts no writes");
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

/// The other members that say that their disk is nearly full.
async fn ask_all(raft: &Raft, peers: &Peers) -> BTreeSet<u64> {
    let others: Vec<(u64, Peer)> = {
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        let members = metrics.membership_config.membership().nodes();
        members.filter(|(node, _)| **node != peers.local.node).map(|(node, peer)| (*node, peer.clone())).collect()
    };
    let answers = join_all(others.iter().map(|(node, peer)| is_low(peers, *node, peer))).await;
    others.iter().zip(answers).filter(|(_, low)| *low).map(|((node, _), _)| *node).collect()
}

async fn is_low(peers: &Peers, node: u64, peer: &Peer) -> bool {
    let Ok(mut client) = peers.channels.admin(&peer.address) else { return false };
    let cluster_id = peers.local.data_dir.identity().cluster_id;
    let call = Call { protocol: 1, cluster_id, group: peers.local.group, node, forwarded: false };
    let answered = timeout(ANSWER_MAX, client.status(StatusRequest { call: Some(call) })).await;
    answered.ok().and_then(Result::ok).is_some_and(|status| status.into_inner().disk_low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_disk_is_nearly_full_below_the_bound_and_has_space_a_tenth_above_it() {
        let free = Arc::new(AtomicU64::new(2000));
        let measured = free.clone();
        let space = DiskSpace::new(3, Arc::new(move || Some(measured.load(Ordering::Relaxed))), 1000);
        let at = |bytes| {
            free.store(bytes, Ordering::Relaxed);
            space.measure();
            space.nearly_full()
        };
        assert_eq!(
            [at(2000), at(1000), at(999), at(1000), at(1099), at(1100), at(1000)],
            [None, None, Some(3), Some(3), Some(3), None, None]
        );
        assert!(!space.has_room_for(1 << 20));
    }

    #[test]
    fn a_disk_of_unknown_size_is_never_full() {
        let space = DiskSpace::new(1, Arc::new(|| None), 1000);
        space.measure();
        assert_eq!(space.nearly_full(), None);
        assert!(space.has_room_for(u64::MAX / 2));
    }
}
