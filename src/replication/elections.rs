//! Owns: when this node asks to be elected. openraft runs the election itself; its own timers are turned off, because
//! they are constants and a vote takes as long as the disks need to make it durable.
//! Reads: how long the log's disk takes to sync. Never: a vote, a term or a log entry.
//!
//! A follower waits for the leader in two steps. After `lease` without a request from the leader it gives up the lease
//! inside openraft, so that it may grant its vote to others. After a further pause, which differs from node to node, it
//! asks for votes itself. A round that brings no leader is followed by another one that waits twice as long, up to
//! `ROUND_MAX`: on any disk a round becomes long enough in the end. A node that granted a vote leaves the candidate the
//! time that this node's own disk would need.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};
use xxhash_rust::xxh3::xxh3_64;

use super::replica::Raft;
use super::types::Vote;
use crate::planted::{self, Bug};
use crate::storage::log::Log;

/// openraft abandons a vote request after this time, and a leader that a quorum answered within one and a half times of
/// it rejects other candidates. It must cover two syncs of the slowest disk that is to elect a leader at all.
pub const VOTE_REQUEST_MAX: Duration = Duration::from_secs(4);

/// The longest round. A round needs six syncs, so this serves disks of up to one second per sync.
const ROUND_MAX: Duration = Duration::from_secs(8);

/// Syncs that one round may have to wait for: the candidate's vote and the voter's vote take two each, and each may have
/// to wait for a sync that is under way.
const SYNCS_PER_ROUND: u32 = 6;

/// A vote request is not abandoned earlier than after so many times the election time-out. The first round after a loss
/// knows nothing of a disk that has become slow meanwhile, and a vote that comes late still counts.
const VOTE_REQUEST_TIMEOUTS: u32 = 6;

/// No node has this id: a transfer of leadership to it does nothing but end the lease.
const NO_NODE: u64 = 0;

/// A slow disk is reported at most this often, and only if it stays slow for a while.
const REPORT_EVERY: Duration = Duration::from_secs(60);
const SLOW_FOR: Duration = Duration::from_secs(5);

/// The times of a cluster without load on fast disks.
#[derive(Debug, Clone, Copy)]
pub struct ElectionTimes {
    /// How long a leader may be silent before this node grants votes to others.
    pub lease: Duration,
    /// The configured election time-out: the shortest pause before a node asks for votes.
    pub timeout: Duration,
}

impl ElectionTimes {
    /// A disk whose syncs take longer than this makes an election longer than configured.
    pub fn sync_max(self) -> Duration {
        self.timeout / SYNCS_PER_ROUND
    }

    /// A pause between one and one and a half times the time-out. It differs between nodes and rounds, and is the same
    /// in every run of a simulation.
    fn pause(self, node: u64, term: u64, round: u32) -> Duration {
        let mut seed = [0u8; 20];
        seed[..8].copy_from_slice(&node.to_le_bytes());
        seed[8..16].copy_from_slice(&term.to_le_bytes());
        seed[16..].copy_from_slice(&round.to_le_bytes());
        let share = xxh3_64(&seed) % 1000;
        self.timeout + self.timeout * share as u32 / 2000
    }

    /// How long the given round may take before the next one begins.
    fn round(self, node: u64, term: u64, round: u32, sync: Duration) -> Duration {
        if planted::has(Bug::ConstantElectionTimes) {
            return self.pause(node, term, round) * 3 / 4;
        }
        let doubled = self.pause(node, term, round) * (1 << round.min(16));
        (doubled + sync * SYNCS_PER_ROUND).min(ROUND_MAX)
    }
}

/// The last sign that somebody leads, or may soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// A request from a leader.
    Leader,
    /// This node supports a candidate, which needs time to win.
    Candidate,
}

/// What the peer service reports and the election timer reads.
#[derive(Debug)]
pub struct Signs {
    last: Mutex<(Sign, Instant)>,
    /// How long a vote request of this node may take: at least as long as the round it belongs to.
    round: Mutex<Duration>,
    pub times: ElectionTimes,
    /// The longest wait for a peer's answer to entries.
    pub peer_timeout: Duration,
}

impl Signs {
    pub fn new(times: ElectionTimes, peer_timeout: Duration) -> Signs {
        let last = Mutex::new((Sign::Leader, Instant::now()));
        Signs { last, round: Mutex::new(times.timeout), times, peer_timeout }
    }

    /// A leader sent a request. One of an earlier term, which was replaced, does not count.
    pub fn request_from(&self, leader: Vote, raft: &Raft) {
        if leader.leader_id.term >= raft.server_metrics().borrow_watched().vote.leader_id.term {
            self.note(Sign::Leader);
        }
    }

    /// A candidate asks for the vote. To make it durable may take long, and the candidate has its time from now on. That a
    /// quorum would vote for it is known from its pre-votes.
    pub fn request_of_candidate(&self, candidate: Vote, raft: &Raft) {
        if candidate.leader_id.term > raft.server_metrics().borrow_watched().vote.leader_id.term {
            self.note(Sign::Candidate);
        }
    }

    /// This node supports a candidate.
    pub fn supports_candidate(&self) {
        self.note(Sign::Candidate);
    }

    pub fn vote_request_max(&self) -> Duration {
        *lock(&self.round)
    }

    fn note(&self, sign: Sign) {
        *lock(&self.last) = (sign, Instant::now());
    }

    /// How long no leader or candidate was heard of.
    pub fn silence(&self) -> Duration {
        self.last().1.elapsed()
    }

    fn last(&self) -> (Sign, Instant) {
        *lock(&self.last)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The election timer of one node.
pub struct Elections {
    pub raft: Raft,
    pub node: u64,
    pub times: ElectionTimes,
    pub signs: Arc<Signs>,
    pub log: Log,
}

impl Elections {
    /// Runs until consensus stops.
    pub async fn run(self) {
        let mut rounds = 0;
        let mut disk = SlowDisk::default();
        while let Some((state, vote)) = self.state() {
            let (sign, at) = self.signs.last();
            disk.report(self.log.sync_time(), self.times);
            let sync = self.log.sync_time_so_far();
            let until =
                at + self.times.lease + if sign == Sign::Candidate { sync * SYNCS_PER_ROUND } else { Duration::ZERO };
            if state != ServerState::Follower && state != ServerState::Candidate {
                // A leader needs no other, and a learner does not vote.
                rounds = 0;
                self.signs.note(Sign::Leader);
                sleep(self.times.timeout / 2).await;
                continue;
            }
            if Instant::now() < until {
                if sign == Sign::Leader {
                    rounds = 0;
                }
                sleep_until(until).await;
                continue;
            }
            self.give_up_lease(vote).await;
            let term = vote.leader_id.term;
            let pause = match rounds {
                0 => self.times.pause(self.node, term, 0),
                _ => self.times.round(self.node, term, rounds, sync),
            };
            if self.stays_silent(at, pause).await {
                debug!(node = self.node, term, rounds, ?pause, "no leader: asking for votes");
                let patience = self.times.timeout * VOTE_REQUEST_TIMEOUTS;
                *lock(&self.signs.round) = self.times.round(self.node, term, rounds + 1, sync).max(patience);
                if self.raft.trigger().elect(true).await.is_err() {
                    return;
                }
                rounds = rounds.saturating_add(1);
            }
        }
    }

    /// `None` once consensus has stopped.
    fn state(&self) -> Option<(ServerState, Vote)> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.running_state.is_ok().then_some((metrics.state, metrics.vote))
    }

    /// Lets openraft grant votes to others although the leader's lease has time left by its own, longer count.
    async fn give_up_lease(&self, vote: Vote) {
        if vote.committed {
            // An error means that consensus has stopped, which the caller finds out by itself.
            let _ = self.raft.handle_transfer_leader(TransferLeaderRequest::new(vote, NO_NODE, None)).await;
        }
    }

    /// Waits, and returns false as soon as there is a new sign of a leader or a candidate.
    async fn stays_silent(&self, since: Instant, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let step = self.times.timeout / 8;
        while Instant::now() < until {
            sleep(step.min(until - Instant::now())).await;
            if self.signs.last().1 != since {
                return false;
            }
        }
        true
    }
}

/// Whether the disk is too slow for the configured times, and since when.
#[derive(Debug, Default)]
struct SlowDisk {
    since: Option<Instant>,
    reported: Option<Instant>,
}

impl SlowDisk {
    fn report(&mut self, sync: Duration, times: ElectionTimes) {
        if sync <= times.sync_max() {
            self.since = None;
            return;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= SLOW_FOR && self.reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
            self.reported = Some(Instant::now());
            warn!(
                sync_ms = sync.as_millis() as u64,
                sync_ms_max = times.sync_max().as_millis() as u64,
                election_timeout_ms = times.timeout.as_millis() as u64,
                "the disk is slow: a lost leader is replaced later than configured; use a faster disk, or raise \
                 election_timeout_ms and leader_lease_ms"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: ElectionTimes =
        ElectionTimes { lease: Duration::from_millis(150), timeout: Duration::from_millis(100) };

    #[test]
    fn nodes_pause_differently_and_always_within_bounds() {
        let mut pauses: Vec<Duration> = (1..=20).map(|node| TIMES.pause(node, 7, 0)).collect();
        assert!(pauses.iter().all(|pause| (100..=150).contains(&pause.as_millis())), "{pauses:?}");
        pauses.sort();
        pauses.dedup();
        assert!(pauses.len() >= 15, "{pauses:?}");
    }

    #[test]
    fn a_round_grows_until_any_disk_can_finish_it() {
        let rounds: Vec<Duration> = (0..12).map(|round| TIMES.round(1, 7, round, Duration::ZERO)).collect();
        assert!(rounds.is_sorted(), "{rounds:?}");
        assert_eq!(rounds.last(), Some(&ROUND_MAX));
        assert!(TIMES.round(1, 7, 0, Duration::from_millis(200)) >= Duration::from_millis(1200));
        assert!(ROUND_MAX >= Duration::from_secs(1) * SYNCS_PER_ROUND);
    }
}
