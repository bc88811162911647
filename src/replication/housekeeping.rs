//! Owns: when a snapshot is built and verified, and how much of the log is kept behind it. openraft could only count
//! entries; entries may be large, and a snapshot costs as much as the whole state. Also completes a change of voters that
//! was interrupted.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use tokio::time::Instant;
use tracing::{info, warn};

use super::disk_space::DiskSpace;
use super::membership::{InterruptedChange, MembershipChanges};
use super::replica::Raft;
use super::state_machine::off_runtime;
use crate::storage::log::Log;
use crate::storage::snapshot::Snapshots;

const EVERY: Duration = Duration::from_millis(500);

/// How often the newest snapshot is read and verified.
const SCRUB_EVERY: Duration = Duration::from_secs(60 * 60);

/// This fraction of the log's bound is kept behind the snapshot, for followers that lag a little.
const KEPT_PART: u64 = 4;

/// Entries kept behind the snapshot however large they are: a purge must never reach entries that are being applied.
const KEEP_FEW: u64 = 1000;

/// On a disk that is nearly full, a snapshot is due after this many entries: deletes free space in the state, and the
/// log and the old snapshot hold theirs until there is a new snapshot. Nothing else would bring one, without writes.
const ENTRIES_WHEN_LOW: u64 = 50;
/// The pause between two such snapshots.
const LOW_EVERY: Duration = Duration::from_secs(10);
/// After fewer entries, even after one, a snapshot is due as well, because the deletes may be among them. The pause is
/// longer then: on average such snapshots write this many bytes per second, however large the state is.
const LOW_BYTES_PER_SECOND: u64 = 4 << 20;

/// The bounds of the log.
#[derive(Debug, Clone, Copy)]
pub struct Cadence {
    /// A snapshot is due after this many entries.
    pub entries: u64,
    /// A snapshot is also due after this many bytes of entries.
    pub bytes: u64,
    /// Entries kept behind the snapshot.
    pub keep_entries: u64,
}

/// Applied since the newest snapshot.
#[derive(Debug, Clone, Copy)]
struct Since {
    entries: u64,
    bytes: u64,
    snapshot_bytes: u64,
}

impl Cadence {
    fn due(&self, since: Since) -> bool {
        let enough = since.entries >= self.entries || since.bytes >= self.bytes;
        // Not before the log has grown by the size of the previous snapshot. So a growing state is written about twice
        // in all snapshots together, and the log stays smaller than the state.
        since.entries > 0 && enough && since.bytes >= since.snapshot_bytes
    }

    /// Whether a disk that is nearly full needs a snapshot, so that the space of what was deleted comes back. `waited` is
    /// the time since the last one of this kind.
    fn frees(since: Since, waited: Option<Duration>) -> bool {
        let longer = match since.entries < ENTRIES_WHEN_LOW {
            true => Duration::from_secs(since.snapshot_bytes / LOW_BYTES_PER_SECOND),
            false => Duration::ZERO,
        };
        since.entries > 0 && waited.is_none_or(|waited| waited >= LOW_EVERY + longer)
    }

    /// The last entry that may be purged if the snapshot covers all entries up to `covered`. A disk that is nearly full
    /// keeps none: the newest file of the log goes only with all of its entries, and it may be as large as the others.
    /// openraft keeps what it is sending to followers.
    fn purgeable(&self, log: &Log, covered: u64, low: bool) -> u64 {
        if low {
            return covered;
        }
        let by_bytes = log.index_before(covered, self.bytes / KEPT_PART).unwrap_or(0);
        let by_count = covered.saturating_sub(self.keep_entries);
        by_bytes.max(by_count).min(covered.saturating_sub(KEEP_FEW.min(self.keep_entries)))
    }
}

/// Builds a snapshot whenever one is due, purges the log behind it, and verifies it from time to time.
pub async fn run(
    raft: Raft,
    changes: Arc<MembershipChanges>,
    log: Log,
    snapshots: Arc<Snapshots>,
    cadence: Cadence,
    disk_space: Arc<DiskSpace>,
) {
    let mut scrub = tokio::time::interval(SCRUB_EVERY);
    let mut change = InterruptedChange::default();
    let mut freed = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            _ = scrub.tick() => {
                let snapshots = snapshots.clone();
                if let Err(error) = off_runtime(move || snapshots.scrub()).await {
                    warn!(%error, "the snapshot cannot be verified");
                }
            }
        }
        change.finish(&changes).await;
        if !step(&raft, &log, &snapshots, &cadence, &disk_space, &mut freed).await {
            return;
        }
    }
}

/// Returns false after consensus has stopped.
async fn step(
    raft: &Raft,
    log: &Log,
    snapshots: &Snapshots,
    cadence: &Cadence,
    disk_space: &DiskSpace,
    freed: &mut Option<Instant>,
) -> bool {
    let applied = raft.metrics().borrow_watched().last_applied.map_or(0, |applied| applied.index);
    let (covered, snapshot_bytes) = snapshots.newest().map_or((0, 0), |newest| (newest.index, newest.bytes));
    let purged = log.edges().purged.map_or(0, |purged| purged.index);
    let low = disk_space.own_is_low();
    let purgeable = cadence.purgeable(log, covered, low);
    let mut done = Ok(());
    if purgeable > purged {
        info!(bytes = log.bytes(), upto = purgeable, "purging the log behind the snapshot");
        done = raft.trigger().purge_log(purgeable).await;
    }
    let since = Since {
        entries: applied.saturating_sub(covered),
        bytes: log.bytes_after(covered).saturating_sub(log.bytes_after(applied)),
        snapshot_bytes,
    };
    // A snapshot that does not fit would fail, and take the last space from the log meanwhile.
    let frees = low && Cadence::frees(since, freed.map(|freed| freed.elapsed()));
    let due = cadence.due(since) || snapshots.is_damaged() || frees;
    // After deletes the next one is smaller than the last. One that does not fit after all is given up in time.
    let has_room = if frees { disk_space.leaves_room_for_log() } else { disk_space.has_room_for(snapshot_bytes) };
    if done.is_ok() && due && has_room {
        *freed = Some(Instant::now());
        // Has no effect while one is being built.
        done = raft.trigger().snapshot().await;
    }
    done.inspect_err(|fatal| warn!(why = %fatal, "housekeeping of the log has ended")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CADENCE: Cadence = Cadence { entries: 100, bytes: 1000, keep_entries: 10 };

    #[test]
    fn a_snapshot_is_due_after_many_entries_or_many_bytes_but_not_without_any() {
        let due = |entries, bytes, snapshot_bytes| CADENCE.due(Since { entries, bytes, snapshot_bytes });
        assert!(!due(0, 0, 0));
        assert!(!due(99, 999, 0));
        assert!(due(100, 10, 0));
        assert!(due(1, 1000, 0));
        assert!(!due(100, 900, 1000), "a large state is not written for a few changes");
        assert!(due(100, 1000, 1000));
    }

    #[test]
    fn a_nearly_full_disk_gets_a_snapshot_after_any_entry_and_a_large_one_less_often() {
        let frees = |entries, snapshot_bytes, waited| {
            Cadence::frees(Since { entries, bytes: 1, snapshot_bytes }, Some(Duration::from_secs(waited)))
        };
        assert!(!frees(0, 0, 1000), "nothing was deleted");
        assert!(!frees(ENTRIES_WHEN_LOW, 1 << 40, 9));
        assert!(frees(ENTRIES_WHEN_LOW, 1 << 40, 10));
        assert!(!frees(1, 40 << 20, 19));
        assert!(frees(1, 40 << 20, 20), "the snapshot before may have come in the middle of the deletes");
        assert!(Cadence::frees(Since { entries: 1, bytes: 1, snapshot_bytes: 1 << 40 }, None));
    }

    #[test]
    fn all_snapshots_of_a_growing_state_cost_a_constant_for_each_logged_byte() {
        for kept_bytes in [0, 10, 20] {
            let (mut logged, mut state, mut written) = (0u64, 0u64, 0u64);
            let mut since = Since { entries: 0, bytes: 0, snapshot_bytes: 0 };
            for _ in 0..1_000_000 {
                logged += 20;
                state += kept_bytes;
                since = Since { entries: since.entries + 1, bytes: since.bytes + 20, ..since };
                if CADENCE.due(since) {
                    written += state;
                    since = Since { entries: 0, bytes: 0, snapshot_bytes: state };
                }
                assert!(since.bytes <= 2000.max(state + 20));
            }
            assert!(written <= 2 * logged, "{written} bytes of snapshots for {logged} of log");
        }
    }
}
