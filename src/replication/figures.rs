//! Owns: what a member counts about itself, and its figures on a page of metrics.
//! Never: a decision. Nothing reads these figures but a page.

use openraft::async_runtime::WatchReceiver;

use super::replica::Replica;
use crate::metrics::{Counter, Durations, Page, catalogue};

/// What a member records while it works.
#[derive(Debug, Default)]
pub struct Figures {
    pub leader_changes: Counter,
    /// Mutations that no leader executed in time, or whose outcome is unknown.
    pub proposals_failed: Counter,
    /// From the proposal on this leader until it is applied here.
    pub commit: Durations,
    pub apply: Durations,
    pub built: Snapshots,
    pub installed: Snapshots,
}

#[derive(Debug, Default)]
pub struct Snapshots {
    pub took: Durations,
    pub failed: Counter,
}

impl Replica {
    /// Adds the figures of this member to a page.
    pub fn measure(&self, page: &mut Page) {
        let (role, trouble) = self.condition();
        page.flag(catalogue::HAS_LEADER, trouble.is_none());
        page.flag(catalogue::IS_LEADER, role == "leader" && trouble.is_none());
        let (term, committed) = {
            let metrics = self.raft().metrics();
            let metrics = metrics.borrow_watched();
            (metrics.current_term, metrics.cluster_committed.as_ref().map_or(0, |committed| committed.index))
        };
        // Read after the commit, so that the lag is never larger than it was.
        let applied = self.applied();
        page.whole(catalogue::TERM, term);
        page.whole(catalogue::PROPOSALS_COMMITTED, committed.max(applied));
        page.whole(catalogue::PROPOSALS_APPLIED, applied);
        page.whole(catalogue::APPLY_LAG, committed.saturating_sub(applied));
        let figures = self.figures();
        page.whole(catalogue::LEADER_CHANGES, figures.leader_changes.value());
        page.whole(catalogue::PROPOSALS_FAILED, figures.proposals_failed.value());
        page.durations(catalogue::COMMIT, &[], &figures.commit);
        page.durations(catalogue::APPLY, &[], &figures.apply);
        for (kind, snapshots) in [("built", &figures.built), ("installed", &figures.installed)] {
            page.durations(catalogue::SNAPSHOT, &[("kind", kind)], &snapshots.took);
            page.whole_of(catalogue::SNAPSHOTS_FAILED, &[("kind", kind)], snapshots.failed.value());
        }
        page.flag(catalogue::DISK_LOW, self.disk_space().own_is_low());
        page.whole(catalogue::DISK_MIN_FREE, self.disk_space().min_free());
        self.log().measure(page);
        self.store().measure(page);
    }
}
