//! Owns: bringing a subscriber that is behind up to the present: what is kept is read for it at its own pace, page by
//! page, and then it takes events as they happen again, without a gap and without one twice.
//! Never: hold up anybody else. A subscriber without room waits here, with nothing kept in memory for it.

use std::sync::Arc;
use std::time::Duration;

use super::Committed;
use super::bindings::{Bound, Owner};
use super::deliver::{Feed, Handed, State, locked};
use super::history::{self, PAGE_MAX, PAGE_MIN, Unread};
use crate::machine::feed::Record;
use crate::machine::ids::Position;
use crate::machine::query::feed::{FeedLimits, FeedPage};

/// Bindings that a client registers in one go are read for together, so that it gets their events in one order.
const GATHER: Duration = Duration::from_millis(10);
/// A state that cannot be read now is asked again after this.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Events that are handed over while everybody waits; a subscriber further behind reads on.
const LAST_STRETCH: usize = 64;

/// What a step of reading came to.
enum Step {
    /// There is more to read.
    On,
    /// A binding has no room.
    Blocked(futures::future::BoxFuture<'static, ()>),
    /// The state cannot be read at the moment.
    Unreadable(String),
    /// It is up to date, or gone.
    Done,
}

/// Where a subscriber that is behind stands, and what it wants.
struct Place {
    cursor: Position,
    turn: u64,
    bounds: Vec<Arc<Bound>>,
    /// What the ring had let go of before anything was read.
    let_go: Option<Position>,
}

impl Feed {
    /// Reads for one subscriber until it is up to date or gone.
    pub(super) async fn read_for(self: Arc<Self>, number: u64) {
        tokio::time::sleep(GATHER).await;
        let mut limits = PAGE_MAX;
        loop {
            match self.step(number, limits) {
                Step::On => {
                    limits = larger(limits);
                    tokio::task::yield_now().await;
                }
                Step::Blocked(room) => {
                    // What it had no room for was read in vain, and will be read again.
                    limits = PAGE_MIN;
                    room.await;
                }
                Step::Unreadable(why) => {
                    tracing::warn!(subscriber = number, why, "the feed cannot be read for a subscriber; trying again");
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
                Step::Done => return,
            }
        }
    }

    /// Reads for one subscriber as far as it goes without waiting.
    pub(super) fn read_at_once(&self, number: u64) {
        while matches!(self.step(number, PAGE_MAX), Step::On) {}
    }

    fn step(&self, number: u64, limits: FeedLimits) -> Step {
        let Some(Place { cursor, turn, bounds, let_go }) = self.place_of(number) else { return Step::Done };
        let Some(history) = self.history() else { return self.join(number, turn, let_go) };
        let wanted = |line: &Record| {
            let may_match = |bound: &Arc<Bound>| bound.binding.filter.may_match(line.kind(), &line.session_id);
            bounds.iter().any(may_match)
        };
        match history::page(&*history, cursor.place(), limits, &wanted) {
            Ok(page) => {
                let more = page.more;
                match self.hand_out(number, turn, cursor.group, page) {
                    Some(stopped) => stopped,
                    None if more => Step::On,
                    None => self.join(number, turn, let_go),
                }
            }
            Err(Unread::Compacted(oldest)) => {
                self.skip_to(number, turn, oldest.in_group(cursor.group));
                Step::On
            }
            Err(Unread::Fault(why)) => Step::Unreadable(why),
        }
    }

    fn place_of(&self, number: u64) -> Option<Place> {
        let mut state = locked(&self.state);
        let let_go = state.ring.complete_after;
        let owner = state.bindings.owner(number)?;
        let cursor = owner.cursor?;
        Some(Place { cursor, turn: owner.turn, bounds: owner.bounds.values().cloned().collect(), let_go })
    }

    /// Events were dropped before this subscriber got them.
    fn skip_to(&self, number: u64, turn: u64, oldest: Position) {
        let mut state = locked(&self.state);
        if let Some(owner) = state.bindings.owner(number).filter(|owner| owner.turn == turn) {
            owner.loses(oldest);
        }
    }

    /// Hands out a page; `Some` says why it went no further.
    fn hand_out(&self, number: u64, turn: u64, group: u32, page: FeedPage) -> Option<Step> {
        for (place, event) in page.events {
            let committed = Arc::new(Committed::new(place.in_group(group), event));
            let mut state = locked(&self.state);
            let Some(owner) = state.bindings.owner(number) else { return Some(Step::Done) };
            if owner.turn != turn {
                return Some(Step::On);
            }
            if let Some(blocked) = self.hand_to(owner, &committed) {
                return Some(blocked);
            }
        }
        if let Some(upto) = page.upto {
            let mut state = locked(&self.state);
            if let Some(owner) = state.bindings.owner(number).filter(|owner| owner.turn == turn) {
                owner.cursor = owner.cursor.max(Some(upto.in_group(group)));
            }
        }
        None
    }

    /// Hands one event to every binding of a subscriber that wants it and has not seen it.
    fn hand_to(&self, owner: &mut Owner, committed: &Arc<Committed>) -> Option<Step> {
        let mut envelope = None;
        for bound in owner.bounds.values() {
            if !bound.wants(&committed.event, committed.position) {
                continue;
            }
            match self.hand_over(bound, committed, &mut envelope, bound.notice()) {
                Handed::Full => return Some(Step::Blocked(bound.binding.to.room(&bound.binding))),
                Handed::Taken => bound.take(committed.position),
            }
        }
        owner.cursor = Some(committed.position);
        None
    }

    /// The last stretch, while nothing else is handed out: what was published since the page was read is in the ring.
    fn join(&self, number: u64, turn: u64, let_go: Option<Position>) -> Step {
        let mut state = locked(&self.state);
        let State { bindings, ring, .. } = &mut *state;
        let Some(owner) = bindings.owner(number) else { return Step::Done };
        let Some(cursor) = owner.cursor.filter(|_| owner.turn == turn) else { return Step::On };
        if let Some(lost) = ring.complete_after.filter(|complete_after| *complete_after > cursor) {
            // What the ring let go of while the page was read is on the next one. What it had let go of before, the state
            // has on this page, or lost.
            if self.history().is_none() || let_go == Some(lost) {
                owner.loses(lost);
            }
            return Step::On;
        }
        let rest = ring.after(cursor);
        if rest.len() > LAST_STRETCH && self.history().is_some() {
            return Step::On;
        }
        for committed in rest {
            if let Some(blocked) = self.hand_to(owner, &committed) {
                return blocked;
            }
        }
        owner.catch_up();
        Step::Done
    }
}

/// The page after one that found room.
fn larger(limits: FeedLimits) -> FeedLimits {
    FeedLimits {
        records: (2 * limits.records).min(PAGE_MAX.records),
        body_bytes: (2 * limits.body_bytes).min(PAGE_MAX.body_bytes),
    }
}
