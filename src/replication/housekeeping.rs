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
use crate::storage::Store;
use crate::storage::log::Log;
use crate::storage::snapshot::Snapshots;

const EVERY: Duration = Duration::from_millis(500);

/// How often the newest snapshot is read and verified.
const SCRUB_EVERY: Duration = Duration::from_secs(60 * 60);

/// This fraction of the log's bound is kept behind the snapshot, for followers that lag a little.
const KEPT_PART: u64 = 4;

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

/// Where a node stands among the voters, in the order of their ids. They apply the same entries, so without this all
/// of them would write their snapshots at the same time.
#[derive(Debug, Clone, Copy)]
struct Turn {
    place: u64,
    voters: u64,
}

impl Turn {
    /// A node that has no vote comes after the voters.
    fn of(node: u64, voters: impl Iterator<Item = u64>) -> Turn {
        let mut voters: Vec<u64> = voters.collect();
        voters.sort_unstable();
        let place = voters.binary_search(&node).unwrap_or(voters.len()) as u64;
        Turn { place, voters: voters.len().max(1) as u64 }
    }

    /// How much log this node waits for where the first one waits for `log`: up to half more.
    fn later(self, log: u64) -> u64 {
        log.saturating_add(log / (2 * self.voters) * self.place)
    }
}

/// Applied since the newest snapshot.
#[derive(Debug, Default, Clone, Copy)]
struct Since {
    entries: u64,
    bytes: u64,
    snapshot_bytes: u64,
    /// What entries take now, and by how much that is less than when the snapshot was built.
    entry_bytes: u64,
    freed_bytes: u64,
}

impl Cadence {
    fn due(&self, since: Since, turn: Turn) -> bool {
        let enough = since.entries >= turn.later(self.entries) || since.bytes >= turn.later(self.bytes);
        // Not before the log has grown by the size of the previous snapshot. So a growing state is written at most
        // about twice in all snapshots together, and the log stays smaller than the state, or one and a half of it.
        let grown = enough && since.bytes >= turn.later(since.snapshot_bytes);
        // Deleted entries stand in the log and in the snapshot until the next one. It frees at least what it writes, so
        // all of this kind together write less than was deleted.
        let shrunk = since.freed_bytes >= self.bytes / KEPT_PART && since.freed_bytes >= since.entry_bytes;
        since.entries > 0 && (grown || shrunk)
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
        by_bytes.max(covered.saturating_sub(self.keep_entries))
    }
}

/// How much the entries took at most since the newest snapshot was begun. After a start it is what they take then.
#[derive(Debug, Default)]
struct Peak {
    /// The newest snapshot, and the most since it was begun.
    covered: u64,
    bytes: u64,
    /// The most since the last one was asked for. It may still be built.
    asked_bytes: u64,
}

impl Peak {
    /// By how much the entries take less now than at the peak.
    fn freed(&mut self, covered: u64, entry_bytes: u64) -> u64 {
        self.asked_bytes = self.asked_bytes.max(entry_bytes);
        self.bytes = self.bytes.max(entry_bytes);
        if covered != self.covered {
            (self.covered, self.bytes) = (covered, self.asked_bytes);
        }
        self.bytes - entry_bytes
    }
}

/// What housekeeping looks at.
pub struct Kept {
    pub log: Log,
    pub snapshots: Arc<Snapshots>,
    pub store: Arc<dyn Store>,
    pub disk_space: Arc<DiskSpace>,
}

/// What it remembers between two steps.
#[derive(Default)]
struct Memory {
    /// The last snapshot on a disk that is nearly full.
    freed: Option<Instant>,
    peak: Peak,
}

/// Builds a snapshot whenever one is due, purges the log behind it, and verifies it from time to time.
pub async fn run(raft: Raft, changes: Arc<MembershipChanges>, kept: Kept, cadence: Cadence) {
    let mut scrub = tokio::time::interval(SCRUB_EVERY);
    let mut change = InterruptedChange::default();
    let mut memory = Memory::default();
    loop {
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            _ = scrub.tick() => {
                let snapshots = kept.snapshots.clone();
                if let Err(error) = off_runtime(move || snapshots.scrub()).await {
                    warn!(%error, "the snapshot cannot be verified");
                }
            }
        }
        change.finish(&changes).await;
        if !step(&raft, &kept, &cadence, &mut memory).await {
            return;
        }
    }
}

/// Returns false after consensus has stopped.
async fn step(raft: &Raft, kept: &Kept, cadence: &Cadence, memory: &mut Memory) -> bool {
    let Kept { log, snapshots, store, disk_space } = kept;
    let (applied, turn) = {
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        let turn = Turn::of(metrics.id, metrics.membership_config.membership().voter_ids());
        (metrics.last_applied.map_or(0, |applied| applied.index), turn)
    };
    let (covered, snapshot_bytes) = snapshots.newest().map_or((0, 0), |newest| (newest.index, newest.whole_bytes()));
    let purged = log.edges().purged.map_or(0, |purged| purged.index);
    let low = disk_space.own_is_low();
    let purgeable = cadence.purgeable(log, covered, low);
    let mut done = Ok(());
    if purgeable > purged {
        info!(bytes = log.bytes(), upto = purgeable, "purging the log behind the snapshot");
        done = raft.trigger().purge_log(purgeable).await;
    }
    let entry_bytes = store.entry_bytes();
    let since = Since {
        entries: applied.saturating_sub(covered),
        bytes: log.bytes_after(covered).saturating_sub(log.bytes_after(applied)),
        snapshot_bytes,
        entry_bytes,
        freed_bytes: memory.peak.freed(covered, entry_bytes),
    };
    // A snapshot that does not fit would fail, and take the last space from the log meanwhile.
    let frees = low && Cadence::frees(since, memory.freed.map(|freed| freed.elapsed()));
    let due = cadence.due(since, turn) || snapshots.is_damaged() || frees;
    // After deletes the next one is smaller than the last. One that does not fit after all is given up in time.
    let has_room = if frees { disk_space.leaves_room_for_log() } else { disk_space.has_room_for(snapshot_bytes) };
    if done.is_ok() && due && has_room {
        memory.freed = Some(Instant::now());
        memory.peak.asked_bytes = entry_bytes;
        // Has no effect while one is being built.
        done = raft.trigger().snapshot().await;
    }
    done.inspect_err(|fatal| warn!(why = %fatal, "housekeeping of the log has ended")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CADENCE: Cadence = Cadence { entries: 100, bytes: 1000, keep_entries: 10 };
    const ALONE: Turn = Turn { place: 0, voters: 1 };

    /// Of one node, of three and of five, and of learners beside them.
    fn all_turns() -> impl Iterator<Item = Turn> {
        [1, 3, 5].into_iter().flat_map(|voters| (0..=voters).map(move |place| Turn { place, voters }))
    }

    #[test]
    fn a_snapshot_is_due_after_many_entries_or_many_bytes_but_not_without_any() {
        let due = |entries, bytes, snapshot_bytes| {
            CADENCE.due(Since { entries, bytes, snapshot_bytes, ..Since::default() }, ALONE)
        };
        assert!(!due(0, 0, 0));
        assert!(!due(99, 999, 0));
        assert!(due(100, 10, 0));
        assert!(due(1, 1000, 0));
        assert!(!due(100, 900, 1000), "a large state is not written for a few changes");
        assert!(due(100, 1000, 1000));
    }

    #[test]
    fn the_voters_build_one_after_the_other() {
        let since = |entries, bytes, snapshot_bytes| Since { entries, bytes, snapshot_bytes, ..Since::default() };
        let first = |node: u64, due: &dyn Fn(u64) -> Since| {
            let turn = Turn::of(node, [2, 5, 9].into_iter());
            (0..10_000).find(|n| CADENCE.due(due(*n), turn))
        };
        let many = |entries| since(entries, 0, 0);
        assert_eq!([2, 5, 9, 7].map(|node| first(node, &many)), [Some(100), Some(116), Some(132), Some(148)]);
        let large = |bytes| since(1, bytes, 0);
        assert_eq!([2, 5, 9, 7].map(|node| first(node, &large)), [Some(1000), Some(1166), Some(1332), Some(1498)]);
        let behind_a_snapshot = |bytes| since(1000, bytes, 6000);
        assert_eq!(
            [2, 5, 9, 7].map(|node| first(node, &behind_a_snapshot)),
            [Some(6000), Some(7000), Some(8000), Some(9000)]
        );
        let huge = Cadence { entries: u64::MAX, bytes: u64::MAX, ..CADENCE };
        assert!(!huge.due(since(1 << 40, 1 << 40, 0), Turn { place: 2, voters: 3 }));
    }

    #[test]
    fn what_was_deleted_brings_a_snapshot_in_every_turn() {
        let shrunk = Since { entries: 1, snapshot_bytes: 1 << 40, freed_bytes: 250, ..Since::default() };
        for turn in all_turns() {
            assert!(CADENCE.due(shrunk, turn));
        }
    }

    #[test]
    fn a_nearly_full_disk_gets_a_snapshot_after_any_entry_and_a_large_one_less_often() {
        let frees = |entries, snapshot_bytes, waited| {
            let since = Since { entries, bytes: 1, snapshot_bytes, ..Since::default() };
            Cadence::frees(since, Some(Duration::from_secs(waited)))
        };
        assert!(!frees(0, 0, 1000), "nothing was deleted");
        assert!(!frees(ENTRIES_WHEN_LOW, 1 << 40, 9));
        assert!(frees(ENTRIES_WHEN_LOW, 1 << 40, 10));
        assert!(!frees(1, 40 << 20, 19));
        assert!(frees(1, 40 << 20, 20), "the snapshot before may have come in the middle of the deletes");
        let large = Since { entries: 1, bytes: 1, snapshot_bytes: 1 << 40, ..Since::default() };
        assert!(Cadence::frees(large, None));
    }

    #[test]
    fn a_snapshot_is_due_when_as_much_was_deleted_as_is_left() {
        let due = |entries, entry_bytes, freed_bytes| {
            CADENCE.due(Since { entries, snapshot_bytes: 1 << 40, entry_bytes, freed_bytes, ..Since::default() }, ALONE)
        };
        assert!(due(1, 0, 250));
        assert!(!due(1, 0, 249), "too little for a snapshot");
        assert!(due(1, 1000, 1000));
        assert!(!due(1, 1001, 1000), "it would write more than it frees");
        assert!(!due(0, 0, 1000));
    }

    #[test]
    fn what_was_deleted_is_counted_from_the_begin_of_the_newest_snapshot() {
        let mut peak = Peak::default();
        assert_eq!(peak.freed(1, 1000), 0);
        assert_eq!(peak.freed(1, 400), 600);
        // One is asked for and built while more is deleted.
        peak.asked_bytes = 400;
        assert_eq!(peak.freed(1, 300), 700);
        assert_eq!(peak.freed(2, 100), 300, "the new one holds what was there when it was begun");
        assert_eq!(peak.freed(2, 500), 0);
        assert_eq!(peak.freed(2, 100), 400);
    }

    #[test]
    fn all_snapshots_of_a_growing_state_cost_a_constant_for_each_logged_byte() {
        for (kept_bytes, turn) in [0, 10, 20].into_iter().flat_map(|kept| all_turns().map(move |turn| (kept, turn))) {
            let (mut logged, mut state, mut written) = (0u64, 0u64, 0u64);
            let mut since = Since::default();
            for _ in 0..1_000_000 {
                logged += 20;
                state += kept_bytes;
                since = Since { entries: since.entries + 1, bytes: since.bytes + 20, ..since };
                if CADENCE.due(since, turn) {
                    written += state;
                    since = Since { snapshot_bytes: state, ..Since::default() };
                }
                assert!(since.bytes <= turn.later(2000.max(state + 20)));
                assert!(since.bytes <= 3000.max(state + state / 2 + 30), "up to half more than a node alone");
            }
            assert!(written <= 2 * logged, "{written} bytes of snapshots for {logged} of log at {turn:?}");
        }
    }
}
