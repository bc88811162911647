//! Owns: the order of effects of one entry: apply → commit → reply → publish. The only writer of the state.
//! Never: decide anything (the machine does), or wait for a subscriber.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::info;

use super::chain;
use super::checkpoint::Checkpoint;
use super::cluster_clock::ClusterClock;
use super::types::Reply;
use crate::events::{Committed, EventSink};
use crate::machine::change::Change;
use crate::machine::event::Event;
use crate::machine::ids::{FeedPlace, Position};
use crate::machine::refusal::Fault;
use crate::machine::{self, Outcome};
use crate::metrics::trace::{Context, SpanKind, Value};
use crate::planted::{self, Bug};
use crate::storage::log::command::Order;
use crate::storage::log::record::{Entry, Payload};
use crate::storage::state::Encoded;
use crate::storage::{Store, with_view};

/// Applies entries in log order.
pub struct Applier {
    store: Arc<dyn Store>,
    sink: Arc<dyn EventSink>,
    checkpoint: Checkpoint,
    /// The index after the last applied entry.
    next_index: watch::Sender<u64>,
    clock: Arc<ClusterClock>,
    replay: Option<Replay>,
    /// False only in openraft's own test suite, which leaves out entries.
    gapless: bool,
    /// Nothing was applied since the start, on top of a state that was there. Read only by a planted bug.
    restarted: bool,
}

/// The replay of the log after a start, for its progress messages.
struct Replay {
    from: u64,
    until: u64,
    reported: Instant,
}

const REPORT_EVERY: Duration = Duration::from_secs(1);

impl Applier {
    pub fn new(store: Arc<dyn Store>, sink: Arc<dyn EventSink>, group: u32) -> Result<Applier, Fault> {
        let checkpoint = Checkpoint::of(store.checkpoint()?, group)?;
        let next_index = watch::Sender::new(checkpoint.next_index());
        let restarted = checkpoint.applied.is_some();
        let clock = Arc::new(ClusterClock::new(with_view(&*store, |view| view.clock_ms())?));
        Ok(Applier { store, sink, checkpoint, next_index, clock, replay: None, gapless: true, restarted })
    }

    #[cfg(test)]
    pub fn with_gaps(self) -> Applier {
        Applier { gapless: false, ..self }
    }

    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Watches the index after the last applied entry.
    pub fn watch_next_index(&self) -> watch::Receiver<u64> {
        self.next_index.subscribe()
    }

    /// The time of the cluster, by what is applied here.
    pub fn clock(&self) -> Arc<ClusterClock> {
        self.clock.clone()
    }

    /// Logs the progress of applying the entries below `until`.
    pub fn report_replay(&mut self, until: u64) {
        let from = self.checkpoint.next_index();
        if until > from {
            info!(entries = until - from, "replaying the log into the state");
            self.replay = Some(Replay { from, until, reported: Instant::now() });
        }
    }

    /// Continues from the checkpoint of a state that was replaced by a snapshot.
    pub fn resume(&mut self) -> Result<(), Fault> {
        self.checkpoint = Checkpoint::of(self.store.checkpoint()?, self.checkpoint.group)?;
        self.next_index.send_replace(self.checkpoint.next_index());
        // The events in between are in the feed of the new state. They were never published on this node.
        let newest = with_view(&*self.store, |view| view.feed_edge())?.newest;
        self.clock.applied(with_view(&*self.store, |view| view.clock_ms())?);
        let newest = newest.unwrap_or(FeedPlace { index: 0, ordinal: 0 });
        self.sink.jumped(newest.in_group(self.checkpoint.group));
        Ok(())
    }

    /// Applies one entry. Calls `reply` after the commit and before events are published.
    pub fn apply(&mut self, entry: &Entry, reply: impl FnOnce(Reply)) -> Result<(), Fault> {
        let index = entry.index();
        let next = self.checkpoint.next_index();
        if self.gapless && index != next {
            return Err(Fault(format!("entry {index} was to be applied where entry {next} is next")));
        }
        let span = entry.trace().map(|trace| trace.child("apply", SpanKind::Internal));
        let span = span.map(|span| span.with("log_index", Value::Number(index)));
        // 1. Apply: the machine decides. Blank and membership entries change only the checkpoint.
        let (answer, changes, events) = match &entry.payload {
            Payload::Command(order) => {
                if planted::has(Bug::ApplyTwiceAfterRestart) && std::mem::take(&mut self.restarted) {
                    self.store.commit(&self.decide(index, order)?.changes, self.checkpoint.encode())?;
                }
                let outcome = self.decide(index, order)?;
                (Reply::Answered(outcome.answer), outcome.changes, outcome.events)
            }
            Payload::Blank => (Reply::Nothing, Vec::new(), Vec::new()),
            Payload::Membership(membership) => {
                self.checkpoint.set_membership(membership.clone(), entry.id);
                (Reply::Nothing, Vec::new(), Vec::new())
            }
        };
        // 2. Commit: changes and checkpoint together.
        self.checkpoint.applied = Some(entry.id);
        let encoded = Encoded::new(&changes);
        self.checkpoint.state_hash = chain::link(self.checkpoint.state_hash, index, &encoded);
        self.store.commit_encoded(&encoded, self.checkpoint.encode())?;
        self.next_index.send_replace(index + 1);
        if let Some(clock_ms) = changes.iter().rev().find_map(Change::clock_ms) {
            self.clock.applied(clock_ms);
        }
        // 3. Reply.
        reply(answer);
        // 4. Publish.
        let trace = span.map(|span| span.context());
        if !events.is_empty() {
            self.sink.publish(committed(self.checkpoint.group, index, events, trace.as_ref()));
        }
        self.report(index);
        Ok(())
    }

    fn decide(&self, index: u64, order: &Order) -> Result<Outcome, Fault> {
        let mut outcome = with_view(&*self.store, |view| machine::apply(view, order.stamped()))?;
        machine::feed_record::record_events(index, &mut outcome);
        Ok(outcome)
    }

    fn report(&mut self, index: u64) {
        let Some(Replay { from, until, reported }) = &mut self.replay else { return };
        if index + 1 >= *until {
            info!(entries = *until - *from, "the log is replayed");
            self.replay = None;
        } else if reported.elapsed() >= REPORT_EVERY {
            info!(done = index + 1 - *from, of = *until - *from, "replaying the log into the state");
            *reported = Instant::now();
        }
    }
}

/// The events of one entry with their positions.
pub fn committed(group: u32, index: u64, events: Vec<Event>, trace: Option<&Context>) -> Vec<Arc<Committed>> {
    let position = |ordinal| Position { group, index, ordinal };
    let placed = |(ordinal, event)| Arc::new(Committed::new(position(ordinal), event).of_call(trace));
    (0..).zip(events).map(placed).collect()
}
