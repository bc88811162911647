//! Owns: one attempt at a mutation on the leader: answered without the log if nothing would change, otherwise reduced
//! to what changes, stamped and replicated.
//! Never: retry, or ask another node.

use std::sync::Arc;
use std::time::Instant;

use openraft::errors::{ClientWriteError, RaftError};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout_at;

use super::attempt::{Attempt, NotProposed, encode};
use super::before_commit;
use super::leader::Leader;
use super::replica::Replica;
use super::types::{Reply, Types};
use crate::events::EventSink;
use crate::machine::apply::long::{bounded, may_be_long};
use crate::machine::level::FIRST;
use crate::machine::long::Steps;
use crate::machine::refusal::Fault;
use crate::machine::stamp::Stamp;
use crate::machine::{self, Answer, Command, Stamped};
use crate::metrics::timeline::{Step, timed};
use crate::metrics::trace;
use crate::mint::Mint;
use crate::planted::{self, Bug};
use crate::storage::log::command::Order;
use crate::storage::with_view;

pub struct LeaderWrite {
    pub replica: Arc<Replica>,
    /// Only the leader's stamp enters the log.
    pub mint: Arc<dyn Mint>,
    /// Receives events after their commit.
    pub sink: Arc<dyn EventSink>,
    pub steps: Steps,
    /// The turn of large commands.
    large: Semaphore,
}

/// Commands with more bytes than this take turns.
const LARGE_COMMAND_BYTES: usize = 1 << 20;

impl LeaderWrite {
    pub fn new(replica: Arc<Replica>, mint: Arc<dyn Mint>, sink: Arc<dyn EventSink>, steps: Steps) -> LeaderWrite {
        LeaderWrite { replica, mint, sink, steps, large: Semaphore::new(1) }
    }

    /// Whether an attempt at this command reads nothing before it is in the log, so that it may begin on the thread of
    /// consensus: an append without an id, which most forwarded commands are.
    pub fn reads_nothing(stamped: &Stamped) -> bool {
        match &stamped.command {
            Command::Append(append) => append.entry_id.is_none() && stamped.command.level() == FIRST,
            Command::Create(_)
            | Command::Ensure(_)
            | Command::SetMeta(_)
            | Command::SetStatus(_)
            | Command::Delete(_)
            | Command::AppendMany(_)
            | Command::UpdateMessage(_)
            | Command::Fork(_)
            | Command::SetActiveLeaf(_)
            | Command::Import(_)
            | Command::Store(_)
            | Command::Feed(_)
            | Command::Beside(_)
            | Command::Long(_) => false,
        }
    }

    /// Makes one attempt. The stamp in `stamped` is replaced by this node's. What most mutations do not need is on the heap,
    /// so that the future of the others is small.
    pub async fn attempt(&self, stamped: Stamped, deadline: Instant) -> Attempt {
        let raft = self.replica.raft();
        if !raft.is_leader() {
            let leader = Leader::of(raft).map(|leader| leader.node).filter(|node| node != raft.node_id());
            // A node whose consensus has stopped must not answer `NotLeader`: the write below reports the failure.
            if leader.is_some() || self.replica.is_running() {
                return Attempt::NotLeader(leader);
            }
        }
        if let Err(why) = self.reach_level(stamped.command.level(), deadline).await {
            return why.into();
        }
        // An earlier attempt may be in the log and not applied yet. Its retry must be ordered after it.
        if !stamped.is_retry
            && self.would_change_nothing(&stamped.command)
            && let Some(answered) = Box::pin(self.answer_without_log(&stamped, deadline)).await
        {
            return answered;
        }
        if stamped.command.grows()
            && let Some(node) = self.replica.disk_space().nearly_full()
        {
            return Attempt::Full(format!("disk nearly full on node {node}"));
        }
        // An update is replicated as a patch, if the state here has the revision it is based on.
        if let Command::UpdateMessage(update) = &stamped.command {
            match with_view(&**self.replica.store(), |view| update.shrunk(view)) {
                Err(fault) => return Attempt::Unavailable(fault.0),
                Ok(None) => {}
                Ok(Some(patch)) => {
                    let patch = Stamped { command: Command::UpdateMessage(patch), ..stamped.clone() };
                    match Box::pin(self.write(patch, deadline)).await {
                        // Another update was committed in between, so the patch does not fit: write the full content.
                        Attempt::Answered(Ok(Answer::BaseMoved)) => {}
                        attempt => return attempt,
                    }
                }
            }
        }
        if !may_be_long(&stamped.command) {
            return self.write(stamped, deadline).await;
        }
        // A long session is deleted and forked in many small commands.
        match with_view(&**self.replica.store(), |view| bounded(view, &stamped.command, self.steps)) {
            Err(fault) => Attempt::Unavailable(fault.0),
            Ok(None) => self.write(stamped, deadline).await,
            Ok(Some(command)) => Box::pin(self.write(Stamped { command, ..stamped }, deadline)).await,
        }
    }

    /// Answers a mutation that would change nothing, such as an append under an id that exists. `None`: the log is needed.
    ///
    /// The state here may be old, so it only shows that trying is worthwhile. The answer counts after this node has
    /// confirmed that it is the leader and has applied everything acknowledged before.
    async fn answer_without_log(&self, stamped: &Stamped, deadline: Instant) -> Option<Attempt> {
        let index = timeout_at(deadline.into(), self.replica.read_index().confirm()).await.ok()?.ok()?;
        timeout_at(deadline.into(), self.replica.await_applied(index)).await.ok()?.ok()?;
        let stamped = Stamped { stamp: self.stamp(), ..stamped.clone() };
        let outcome = with_view(&**self.replica.store(), |view| machine::apply(view, &stamped)).ok()?;
        let unchanged = outcome.changes.is_empty() && outcome.events.is_empty();
        unchanged.then_some(Attempt::Answered(outcome.answer))
    }

    /// A guess from the state here, at the cost of one read. Only commands that name what they expect are looked up.
    fn would_change_nothing(&self, command: &Command) -> bool {
        let found = match command {
            Command::Append(append) => {
                let Some(entry_id) = &append.entry_id else { return false };
                with_view(&**self.replica.store(), |view| {
                    Ok::<_, Fault>(view.entry(&append.session_id, entry_id)?.is_some())
                })
            }
            Command::UpdateMessage(update) => {
                let Some(expected) = update.expected_revision else { return false };
                with_view(&**self.replica.store(), |view| {
                    let entry = view.entry(&update.session_id, &update.entry_id)?;
                    Ok::<_, Fault>(entry.is_some_and(|entry| entry.revision != expected))
                })
            }
            Command::Create(_)
            | Command::Ensure(_)
            | Command::SetMeta(_)
            | Command::SetStatus(_)
            | Command::Delete(_)
            | Command::AppendMany(_)
            | Command::Fork(_)
            | Command::SetActiveLeaf(_)
            | Command::Import(_)
            | Command::Store(_)
            | Command::Feed(_)
            | Command::Beside(_)
            | Command::Long(_) => return false,
        };
        // If the state cannot be read, the write below reports it.
        found.unwrap_or(false)
    }

    fn stamp(&self) -> Stamp {
        let stamp = self.mint.stamp();
        // The time of the log would make the ids of two leaders differ.
        if planted::has(Bug::ReuseIdsAfterFailover) {
            return stamp;
        }
        Stamp { at_ms: self.replica.clock().stamp_ms(stamp.at_ms), ..stamp }
    }

    /// Stamps and encodes a command. A large one waits for its turn, which lasts until it is applied: everything behind it
    /// in the log waits for it on every node. Between two turns small commands get into the log.
    async fn order(
        &self,
        stamped: Stamped,
        deadline: Instant,
    ) -> Result<(Order, Option<SemaphorePermit<'_>>), NotProposed> {
        let order = encode(Stamped { stamp: self.stamp(), ..stamped }, deadline)?;
        if order.encoded().len() <= LARGE_COMMAND_BYTES {
            return Ok((order, None));
        }
        if let Ok(turn) = self.large.try_acquire() {
            return Ok((order, Some(turn)));
        }
        let stamped = order.into_stamped();
        let turn = match timeout_at(deadline.into(), self.large.acquire()).await {
            Ok(Ok(turn)) => turn,
            // Nothing closes the semaphore.
            Ok(Err(_)) | Err(_) => return Err(NotProposed::DeadlinePassed),
        };
        let order = encode(Stamped { stamp: self.stamp(), ..stamped }, deadline)?;
        Ok((order, Some(turn)))
    }

    /// Stamps a command, replicates it and waits until it is applied here.
    pub(super) async fn write(&self, stamped: Stamped, deadline: Instant) -> Attempt {
        let (mut order, _turn) = match timed(Step::Turn, self.order(stamped, deadline)).await {
            Ok(ordered) => ordered,
            Err(error) => return error.into(),
        };
        if planted::has(Bug::PublishBeforeCommit) {
            before_commit::publish(self, &order);
        }
        if planted::has(Bug::AnswerBeforeCommit) {
            // Time passes all the same, or a proposer that continues long work would never see its deadline.
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            return before_commit::answer(self, order);
        }
        let began = Instant::now();
        let written = async {
            // The members that get the entry continue from this step.
            order.belongs_to(trace::current());
            timeout_at(deadline.into(), self.replica.raft().client_write(order)).await
        };
        match timed(Step::Commit, written).await {
            Ok(Ok(written)) => match written.data {
                Reply::Answered(answer) => {
                    self.replica.figures().commit.observe(began.elapsed());
                    Attempt::Answered(answer)
                }
                Reply::Nothing => Attempt::Unknown("a command was applied without an answer".to_owned()),
            },
            Ok(Err(error)) => not_written(error),
            Err(_) => Attempt::Unknown("the deadline passed while the mutation was being replicated".to_owned()),
        }
    }
}

fn not_written(error: RaftError<Types, ClientWriteError<Types>>) -> Attempt {
    match error {
        // Refused before it reached the log: nothing was written.
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => Attempt::NotLeader(to.leader_id),
        RaftError::APIError(
            error @ (ClientWriteError::ChangeMembershipError(_) | ClientWriteError::PreconditionFailed(_)),
        ) => Attempt::Unavailable(error.to_string()),
        // Another leader took over during replication. The entry may have been committed nevertheless.
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => {
            Attempt::Unknown("another node took over while the mutation was being replicated".to_owned())
        }
        RaftError::Fatal(fatal) => Attempt::Unknown(format!("this node has stopped: {fatal}")),
    }
}
