//! Owns: the order of effects of one entry: apply → commit → reply → publish. The only writer of the state.
//! Never: decide anything (the machine does), wait for a subscriber.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::info;

use super::chain;
use super::mark::Mark;
use super::types::Reply;
use crate::events::{Committed, EventSink};
use crate::machine;
use crate::machine::ids::{FeedPlace, Position};
use crate::machine::refusal::Fault;
use crate::planted::{self, Bug};
use crate::storage::log::record::{Entry, Payload};
use crate::storage::{Store, look};

/// Carries out entries, one after the other.
pub struct Applier {
    store: Arc<dyn Store>,
    sink: Arc<dyn EventSink>,
    mark: Mark,
    /// How many entries are applied: the index after the last one.
    applied: watch::Sender<u64>,
    catching_up: Option<CatchingUp>,
    scratch: Vec<u8>,
    /// Only openraft's own tests of a state machine leave entries out.
    gapless: bool,
    /// Nothing was applied yet on top of what was there at the start; only a planted bug looks at it.
    restarted: bool,
}

/// A long replay says how far it is.
struct CatchingUp {
    from: u64,
    until: u64,
    said: Instant,
}

const SAY_EVERY: Duration = Duration::from_secs(1);

impl Applier {
    pub fn new(store: Arc<dyn Store>, sink: Arc<dyn EventSink>, group: u32) -> Result<Applier, Fault> {
        let mark = Mark::of(store.mark()?, group)?;
        let applied = watch::Sender::new(next_index(&mark));
        let restarted = mark.applied.is_some();
        Ok(Applier { store, sink, mark, applied, catching_up: None, scratch: Vec::new(), gapless: true, restarted })
    }

    #[cfg(test)]
    pub fn with_gaps(self) -> Applier {
        Applier { gapless: false, ..self }
    }

    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Tells how many entries are applied.
    pub fn progress(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    /// Reports how far the replay of the entries below `until` is.
    pub fn catch_up(&mut self, until: u64) {
        let from = next_index(&self.mark);
        if until > from {
            info!(entries = until - from, "replaying the log into the state");
            self.catching_up = Some(CatchingUp { from, until, said: Instant::now() });
        }
    }

    /// The state was replaced from outside: go on from its mark.
    pub fn resume(&mut self) -> Result<(), Fault> {
        self.mark = Mark::of(self.store.mark()?, self.mark.group)?;
        self.applied.send_replace(next_index(&self.mark));
        // What happened between is in the new state's feed, and was never published here.
        let newest = look(&*self.store, |view| view.feed_edge())?.newest;
        let newest = newest.unwrap_or(FeedPlace { index: 0, ordinal: 0 });
        self.sink.jumped(newest.in_group(self.mark.group));
        Ok(())
    }

    /// Carries out one entry. `reply` is called as soon as it counts, before anyone else learns of it.
    pub fn carry_out(&mut self, entry: &Entry, reply: impl FnOnce(Reply)) -> Result<(), Fault> {
        let index = entry.index();
        if self.gapless && index != next_index(&self.mark) {
            let next = next_index(&self.mark);
            return Err(Fault(format!("entry {index} was to be applied where entry {next} is next")));
        }
        // 1. Apply: the machine decides. Consensus' own entries change nothing but the mark.
        let (answer, changes, events) = match &entry.payload {
            Payload::Command(order) => {
                let mut outcome = look(&*self.store, |view| machine::apply(view, order.stamped()))?;
                machine::feed::record(index, &mut outcome);
                if planted::has(Bug::ApplyTwiceAfterRestart) && std::mem::take(&mut self.restarted) {
                    self.store.commit(&outcome.changes, self.mark.print())?;
                    outcome = look(&*self.store, |view| machine::apply(view, order.stamped()))?;
                    machine::feed::record(index, &mut outcome);
                }
                (Reply::Answered(outcome.answer), outcome.changes, outcome.events)
            }
            Payload::Blank => (Reply::Nothing, Vec::new(), Vec::new()),
            Payload::Membership(membership) => {
                self.mark.membership = membership.clone();
                self.mark.membership_at = Some(entry.id);
                (Reply::Nothing, Vec::new(), Vec::new())
            }
        };
        // 2. Commit: changes and mark together.
        self.mark.applied = Some(entry.id);
        self.mark.state_hash = chain::link(self.mark.state_hash, index, &changes, &mut self.scratch);
        self.store.commit(&changes, self.mark.print())?;
        self.applied.send_replace(index + 1);
        // 3. Reply.
        reply(answer);
        // 4. Publish.
        if !events.is_empty() {
            let group = self.mark.group;
            let place = |ordinal| Position { group, index, ordinal };
            let committed = (0..).zip(events).map(|(ordinal, event)| Arc::new(Committed::new(place(ordinal), event)));
            self.sink.publish(committed.collect());
        }
        self.say(index);
        Ok(())
    }

    fn say(&mut self, index: u64) {
        let Some(CatchingUp { from, until, said }) = &mut self.catching_up else { return };
        if index + 1 >= *until {
            info!(entries = *until - *from, "the state is replayed");
            self.catching_up = None;
        } else if said.elapsed() >= SAY_EVERY {
            info!(done = index + 1 - *from, of = *until - *from, "replaying the log into the state");
            *said = Instant::now();
        }
    }
}

fn next_index(mark: &Mark) -> u64 {
    mark.applied.map_or(0, |applied| applied.index + 1)
}
