//! Owns: executing commands and queries on a member of a replicated cluster. A mutation is admitted, attempted on this
//! node or forwarded to the leader, and retried under one request id until the deadline. A read waits for the read index.
//! Never: answer before the log is durable, or return what a quorum did not confirm.

mod open;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use super::long::complete_fork;
use super::{Adapter, AdapterError, Freshness, Proposal, answer, expired_retry};
use crate::events::errors::ResumeError;
use crate::events::stored::StoredFeed;
use crate::machine::ids::{FeedPlace, RequestId};
use crate::machine::long::Steps;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;
use crate::machine::{self, Answer, Command, Found, Query, Stamped};
use crate::metrics::timeline::{Step, timed};
use crate::metrics::trace::{self, SpanKind};
use crate::metrics::{Page, catalogue};
use crate::mint::Mint;
use crate::planted::{self, Bug};
use crate::replication::attempt::Attempt;
use crate::replication::forward_batch::{Forwarder, WAITING_MAX};
use crate::replication::leader::Leader;
use crate::replication::leader_write::LeaderWrite;
use crate::replication::listener::Listener;
use crate::replication::peer_service::PROPOSE;
use crate::replication::read_index::ReadIndexError;
use crate::replication::replica::Replica;
pub use crate::replication::replica::{RaftSettings, StartError};
use crate::storage::sled::SledStore;
use crate::storage::with_view;

/// Mutations in flight: one second's worth at peak load. Further ones are refused and told to retry.
const PROPOSALS_MAX: usize = WAITING_MAX;

/// The longest wait for a leader and a quorum. Much shorter than the time for which answers are remembered, so that
/// every retry finds the answer of its first attempt.
const TIMEOUT_MAX: Duration = Duration::from_secs(20);

/// The wait before a retry if the leader does not change.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// The leader replaces it by its own.
const NO_STAMP: Stamp = Stamp { at_ms: 0, seed: 0 };

/// The data of one member of a replicated cluster; a node without peers is a cluster of one.
pub struct RaftAdapter {
    replica: Arc<Replica>,
    leader_write: Arc<LeaderWrite>,
    forwarder: Forwarder,
    mint: Arc<dyn Mint>,
    in_flight: Semaphore,
    local_reads: AtomicBool,
    listener: Option<Listener>,
    peer_address: Option<SocketAddr>,
    /// The state, if this adapter opened it and must close it.
    opened: Option<Arc<SledStore>>,
}

impl RaftAdapter {
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// Sets whether linearizable reads are answered from the local state, however old it is.
    pub fn set_local_reads(&self, local: bool) {
        self.local_reads.store(local, Ordering::Relaxed);
    }

    /// Adds the figures of this member to a page.
    pub fn measure(&self, page: &mut Page) {
        let pending = PROPOSALS_MAX.saturating_sub(self.in_flight.available_permits());
        page.whole(catalogue::PROPOSALS_PENDING, pending as u64);
        self.replica.measure(page);
    }

    /// How much one command does to a long session.
    pub fn steps(&self) -> Steps {
        self.leader_write.steps
    }

    /// The address for peers.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.peer_address
    }

    /// A new request id. It carries the time of the cluster, because the state expires the answers it keeps by that.
    fn request_id(&self) -> RequestId {
        let minted = self.mint.request_id();
        RequestId::new(self.replica.clock().request_ms(minted.issued_ms()), minted.0)
    }

    /// Why the state executed nothing under this id.
    fn not_executed(&self, request_id: RequestId) -> AdapterError {
        match request_id.issued_ms() > self.replica.clock().now_ms(0) {
            true => AdapterError::Unavailable(
                "request_id: its time is more than a day ahead of this cluster; take the time of session::store::about"
                    .to_owned(),
            ),
            false => expired_retry(),
        }
    }

    /// Attempts a mutation until it is answered, the deadline passes or this node stops.
    async fn retry_on_leader(&self, mut stamped: Stamped, deadline: Instant) -> Result<Answer, AdapterError> {
        let raft = self.replica.raft();
        let mut outcome_unknown = false;
        loop {
            let leader = Leader::of(raft);
            let attempt = match &leader {
                Some(leader) if leader.node != *raft.node_id() => {
                    let scope = stamped.scope.clone().filter(|_| !planted::has(Bug::ForwardWithoutScope));
                    let stamped = Stamped { scope, ..stamped.clone() };
                    timed(Step::Forward, self.forwarder.attempt(leader.clone(), stamped, deadline)).await
                }
                Some(_) | None => {
                    let span = trace::step(PROPOSE, SpanKind::Internal);
                    let attempt = self.leader_write.attempt(stamped.clone(), deadline);
                    trace::within(span.as_ref(), attempt).await
                }
            };
            let why = match attempt {
                Attempt::Answered(Ok(Answer::Forgotten)) => return Err(self.not_executed(stamped.request_id)),
                Attempt::Answered(answer) => return answer.map_err(AdapterError::Refused),
                Attempt::NotLeader(Some(leader)) => {
                    format!("this node does not lead the cluster, node {leader} does; retry")
                }
                Attempt::NotLeader(None) => "the cluster has no leader at the moment; retry later".to_owned(),
                Attempt::Unavailable(why) => why,
                Attempt::Full(why) if outcome_unknown => return Err(AdapterError::OutcomeUnknown(why)),
                Attempt::Full(why) => return Err(AdapterError::Unavailable(why)),
                Attempt::Unknown(why) => {
                    stamped.is_retry = !planted::has(Bug::ForgetDedup);
                    outcome_unknown = true;
                    why
                }
            };
            if Instant::now() + RETRY_AFTER >= deadline || !self.replica.is_running() {
                // If any attempt may have been applied, the outcome is unknown, whatever the last attempt reported.
                return Err(match outcome_unknown {
                    true => AdapterError::OutcomeUnknown(why),
                    false => AdapterError::Unavailable(why),
                });
            }
            timed(Step::NoLeader, Leader::changed(raft, &leader, RETRY_AFTER)).await;
        }
    }

    /// Returns when the local state holds everything that was answered on any node before this call.
    async fn catch_up_by(&self, deadline: Instant) -> Result<(), AdapterError> {
        let deadline = deadline.min(Instant::now() + TIMEOUT_MAX);
        let late = |_| AdapterError::Unavailable("the deadline passed before the read was confirmed".to_owned());
        let caught_up = async {
            let raft = self.replica.raft();
            loop {
                let leader = Leader::of(raft);
                let error = match timed(Step::ReadIndex, self.replica.read_index().confirm()).await {
                    Ok(index) => {
                        let applied = timed(Step::CatchUp, self.replica.await_applied(index)).await;
                        return applied.map_err(|stopped| AdapterError::Unavailable(stopped.0));
                    }
                    Err(error) => error,
                };
                let retry = matches!(error, ReadIndexError::NotNow(_)) && Instant::now() + RETRY_AFTER < deadline;
                if !retry {
                    return Err(AdapterError::Unavailable(error.to_string()));
                }
                timed(Step::NoLeader, Leader::changed(raft, &leader, RETRY_AFTER)).await;
            }
        };
        timeout_at(deadline.into(), caught_up).await.map_err(late)?
    }
}

impl Adapter for RaftAdapter {
    fn propose(&self, proposal: Proposal) -> BoxFuture<'_, Result<Answer, AdapterError>> {
        async move {
            let full =
                |_| AdapterError::Unavailable(format!("{PROPOSALS_MAX} mutations are in flight already; retry later"));
            let failed = |_: &AdapterError| self.replica.figures().proposals_failed.count();
            let _permit = self.in_flight.try_acquire().map_err(full).inspect_err(failed)?;
            let Proposal { command, request_id, scope, deadline } = proposal;
            // The caller may have sent a mutation with an id of its own before, to any node.
            let is_retry = request_id.is_some();
            let request_id = request_id.unwrap_or_else(|| self.request_id());
            let is_fork = matches!(command, Command::Fork(_));
            let attempt = Stamped { stamp: NO_STAMP, request_id, is_retry, scope: scope.clone(), command };
            let first = self.retry_on_leader(attempt, deadline.min(Instant::now() + TIMEOUT_MAX)).await;
            if let Err(AdapterError::Unavailable(_) | AdapterError::OutcomeUnknown(_)) = &first {
                self.replica.figures().proposals_failed.count();
            }
            if !is_fork {
                return first;
            }
            // Beside this one.
            let others_write = || self.in_flight.available_permits() + 1 < PROPOSALS_MAX;
            let propose = |Proposal { command, scope, deadline, .. }| {
                let request_id = self.request_id();
                let attempt = Stamped { stamp: NO_STAMP, request_id, is_retry: false, scope, command };
                self.retry_on_leader(attempt, deadline.min(Instant::now() + TIMEOUT_MAX))
            };
            // On the heap: every mutation would carry its room.
            Box::pin(complete_fork(first, self.steps(), scope, deadline, others_write, propose)).await
        }
        .boxed()
    }

    fn catch_up(&self, freshness: Freshness, deadline: Instant) -> BoxFuture<'_, Result<Freshness, AdapterError>> {
        async move {
            let local = freshness == Freshness::Local || self.local_reads.load(Ordering::Relaxed);
            if !local && !planted::has(Bug::ReadWithoutBarrier) {
                self.catch_up_by(deadline).await?;
            }
            Ok(Freshness::Local)
        }
        .boxed()
    }

    fn ask(&self, query: Query, freshness: Freshness, deadline: Instant) -> BoxFuture<'_, Result<Found, AdapterError>> {
        async move {
            // Delivery that resumes from an old cursor repeats events, so cursors are never read from an old state.
            let is_cursor = matches!(query, Query::Cursor(_) | Query::Cursors(_));
            let local = freshness == Freshness::Local || self.local_reads.load(Ordering::Relaxed) && !is_cursor;
            if !local && !planted::has(Bug::ReadWithoutBarrier) {
                self.catch_up_by(deadline).await?;
            }
            let read = answer(&query, |query| with_view(&**self.replica.store(), |view| machine::query(view, query)));
            timed(Step::Query, read).await
        }
        .boxed()
    }
}

impl StoredFeed for RaftAdapter {
    fn read_view(&self, read: &mut dyn FnMut(&dyn View)) {
        self.replica.store().read(read);
    }

    fn applied(&self) -> FeedPlace {
        FeedPlace { index: self.replica.applied(), ordinal: u32::MAX }
    }

    fn catch_up(&self) -> BoxFuture<'_, Result<(), ResumeError>> {
        async {
            let caught_up = self.catch_up_by(Instant::now() + TIMEOUT_MAX).await;
            caught_up.map_err(|error| ResumeError::Unavailable(error.to_string()))
        }
        .boxed()
    }
}

#[cfg(test)]
#[path = "raft_test.rs"]
mod tests;

#[cfg(test)]
#[path = "damage_test.rs"]
mod damage_tests;

#[cfg(test)]
#[path = "cluster_test.rs"]
mod cluster_tests;

#[cfg(test)]
#[path = "garbage_test.rs"]
mod garbage_tests;
