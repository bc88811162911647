//! Owns: catch-up of a subscriber that is behind: events are read for it from the ring, which has all of them in full, or
//! from the stored feed if it is further behind, page by page and at its own pace. Then it receives live events again,
//! without a gap and without duplicates.
//! Never: delay another subscriber. A subscriber whose queue is full waits here, and no events are held in memory for
//! it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::bindings::{Bound, Owner};
use super::delivery::{Handed, Notice, SeqRange};
use super::feed::{Feed, State};
use super::stored::{self, PAGE_MAX, PAGE_MIN, PageError};
use super::{Committed, locked};
use crate::machine::feed_record::Record;
use crate::machine::ids::{Position, SessionId};
use crate::machine::query::feed_page::{FeedLimits, FeedPage};

/// Wait this long before reading, so that bindings registered together are read together and deliver in one order.
const GATHER_FOR: Duration = Duration::from_millis(10);
/// Retry interval when the stored feed cannot be read.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Events that may be delivered while dispatch is locked.
const LOCKED_EVENTS_MAX: usize = 64;
/// Sessions of which skipped events are remembered until the next event of the session tells. It bounds the memory of a
/// subscriber that is far behind on very many sessions; beyond it, the gap in `seq` tells.
const SKIPPED_SESSIONS_MAX: usize = 4096;

/// The events left out for one subscriber that it was not told of yet.
#[derive(Default)]
pub(super) struct Skipped(BTreeMap<SessionId, SeqRange>);

impl Skipped {
    fn add(&mut self, session_id: &SessionId, seq: u64) {
        // Events beside the published ones have no number, and are complete or gone with their session.
        if seq == 0 {
            return;
        }
        if let Some(range) = self.0.get_mut(session_id) {
            *range = SeqRange { first: range.first.min(seq), last: range.last.max(seq) };
        } else if self.0.len() < SKIPPED_SESSIONS_MAX {
            self.0.insert(session_id.clone(), SeqRange { first: seq, last: seq });
        }
    }
}

/// Result of reading one page.
enum Step {
    /// There is more to read.
    More,
    /// A binding's queue is full.
    Blocked(futures::future::BoxFuture<'static, ()>),
    /// The stored feed cannot be read now.
    Unreadable(String),
    /// The subscriber is live again, or gone.
    Done,
}

/// The cursor and bindings of a subscriber that is behind.
struct Lagging {
    cursor: Position,
    turn: u64,
    bounds: Vec<Arc<Bound>>,
    /// Up to where the ring had dropped events before the page was read.
    dropped: Option<Position>,
    /// The ring has every event after this position, in full.
    ring_after: Option<Position>,
}

impl Feed {
    /// The reader task of one subscriber: runs until the subscriber is live again or gone.
    pub(super) async fn read_for(self: Arc<Self>, number: u64) {
        tokio::time::sleep(GATHER_FOR).await;
        let (mut limits, mut skipped) = (PAGE_MAX, Skipped::default());
        loop {
            match self.step(number, limits, &mut skipped) {
                Step::More => {
                    limits = larger(limits);
                    tokio::task::yield_now().await;
                }
                Step::Blocked(room) => {
                    // The rest of the page is discarded and read again, so read less.
                    limits = PAGE_MIN;
                    room.await;
                }
                Step::Unreadable(why) => {
                    tracing::warn!(
                        subscriber = number,
                        why,
                        "the stored feed cannot be read for a subscriber; retrying"
                    );
                    tokio::time::sleep(RETRY_AFTER).await;
                }
                Step::Done => return,
            }
        }
    }

    /// Reads for one subscriber as far as possible without waiting.
    pub(super) fn read_at_once(&self, number: u64) {
        let mut skipped = Skipped::default();
        while matches!(self.step(number, PAGE_MAX, &mut skipped), Step::More) {}
    }

    fn step(&self, number: u64, limits: FeedLimits, skipped: &mut Skipped) -> Step {
        let Some(Lagging { cursor, turn, bounds, dropped, ring_after }) = self.lagging(number) else {
            return Step::Done;
        };
        let Some(stored) = self.stored() else { return self.join(number, turn, dropped, skipped) };
        if let Some(step) = self.deliver_from_ring(number, turn, skipped) {
            return step;
        }
        let wanted = |record: &Record| {
            let may_match = |bound: &Arc<Bound>| bound.binding.filter.may_match(record.kind(), &record.session_id);
            bounds.iter().any(may_match)
        };
        match stored::page(&*stored, cursor.place(), limits, &wanted) {
            Ok(mut page) => {
                // What the ring has in full is left to it.
                let ring_after = ring_after.filter(|ring_after| page.upto >= Some(ring_after.place()));
                if let Some(ring_after) = ring_after.map(Position::place) {
                    page.events.retain(|(place, _)| *place <= ring_after);
                    page.skipped.retain(|(place, ..)| *place <= ring_after);
                    page.upto = Some(ring_after);
                }
                let more = page.more || ring_after.is_some();
                match self.deliver_page(number, turn, cursor.group, page, skipped) {
                    Some(stopped) => stopped,
                    None if more => Step::More,
                    None => self.join(number, turn, dropped, skipped),
                }
            }
            Err(PageError::Compacted(oldest)) => {
                self.skip_to(number, turn, oldest.in_group(cursor.group));
                Step::More
            }
            Err(PageError::Fault(fault)) => Step::Unreadable(fault.0),
        }
    }

    fn lagging(&self, number: u64) -> Option<Lagging> {
        let mut state = locked(&self.state);
        let dropped = state.ring.complete_after;
        let owner = state.bindings.owner(number)?;
        let cursor = owner.cursor?;
        let (turn, bounds) = (owner.turn, owner.bounds.values().cloned().collect());
        Some(Lagging { cursor, turn, bounds, dropped, ring_after: state.ring.begins_after() })
    }

    /// Delivers the next events from the ring. `None` if the ring does not reach back to the subscriber.
    fn deliver_from_ring(&self, number: u64, turn: u64, skipped: &mut Skipped) -> Option<Step> {
        let mut state = locked(&self.state);
        let State { bindings, ring, .. } = &mut *state;
        let Some(owner) = bindings.owner(number) else { return Some(Step::Done) };
        let Some(cursor) = owner.cursor.filter(|_| owner.turn == turn) else { return Some(Step::More) };
        if !ring.covers(cursor) {
            return None;
        }
        let events = ring.next_after(cursor, LOCKED_EVENTS_MAX);
        for committed in &events {
            if let Some(blocked) = self.deliver_to(owner, committed, skipped) {
                return Some(blocked);
            }
        }
        if events.len() == LOCKED_EVENTS_MAX {
            return Some(Step::More);
        }
        owner.go_live();
        Some(Step::Done)
    }

    /// Events were trimmed before this subscriber received them: continue after the oldest stored one.
    fn skip_to(&self, number: u64, turn: u64, oldest: Position) {
        let mut state = locked(&self.state);
        if let Some(owner) = state.bindings.owner(number).filter(|owner| owner.turn == turn) {
            owner.loses(oldest);
        }
    }

    /// Delivers a page. `Some` is the reason why it stopped early.
    fn deliver_page(&self, number: u64, turn: u64, group: u32, page: FeedPage, skipped: &mut Skipped) -> Option<Step> {
        let mut left_out = page.skipped.iter().peekable();
        for (place, event) in page.events {
            while let Some((_, session_id, seq)) = left_out.next_if(|(earlier, ..)| *earlier < place) {
                skipped.add(session_id, *seq);
            }
            let committed = Arc::new(Committed::new(place.in_group(group), event));
            let mut state = locked(&self.state);
            let Some(owner) = state.bindings.owner(number) else { return Some(Step::Done) };
            if owner.turn != turn {
                return Some(Step::More);
            }
            if let Some(blocked) = self.deliver_to(owner, &committed, skipped) {
                return Some(blocked);
            }
        }
        left_out.for_each(|(_, session_id, seq)| skipped.add(session_id, *seq));
        if let Some(upto) = page.upto {
            let mut state = locked(&self.state);
            if let Some(owner) = state.bindings.owner(number).filter(|owner| owner.turn == turn) {
                owner.cursor = owner.cursor.max(Some(upto.in_group(group)));
            }
        }
        None
    }

    /// Delivers one event to every binding of a subscriber that matches it and has not received it.
    fn deliver_to(&self, owner: &mut Owner, committed: &Arc<Committed>, skipped: &mut Skipped) -> Option<Step> {
        let mut envelope = None;
        let (session_id, mut told) = (&committed.event.session_id, false);
        let left_out = skipped.0.get(session_id).copied().filter(|_| committed.event.seq > 0);
        for bound in owner.bounds.values() {
            if !bound.wants(&committed.event, committed.position) {
                continue;
            }
            // The numbers start over when a session is made anew. Those of the one before, which may have belonged to
            // somebody else, are not told.
            let skipped = left_out.filter(|range| range.last < committed.event.seq);
            let notice = Notice { skipped, ..bound.notice() };
            match self.hand_over(bound, committed, &mut envelope, notice, None) {
                Handed::Full => return Some(Step::Blocked(bound.binding.to.room(&bound.binding))),
                Handed::Taken => bound.take(committed.position),
            }
            told = true;
        }
        if told && left_out.is_some() {
            skipped.0.remove(session_id);
        }
        owner.cursor = Some(committed.position);
        None
    }

    /// Delivers the events published since the last page, which are in the ring, while dispatch is locked. Then the
    /// subscriber is live.
    fn join(&self, number: u64, turn: u64, dropped: Option<Position>, skipped: &mut Skipped) -> Step {
        let mut state = locked(&self.state);
        let State { bindings, ring, .. } = &mut *state;
        let Some(owner) = bindings.owner(number) else { return Step::Done };
        let Some(cursor) = owner.cursor.filter(|_| owner.turn == turn) else { return Step::More };
        if let Some(lost) = ring.complete_after.filter(|complete_after| *complete_after > cursor) {
            // Events that the ring dropped while the page was read are on the next page. Events that it had dropped
            // before were on this page, or the state lost them.
            if self.stored().is_none() || dropped == Some(lost) {
                owner.loses(lost);
            }
            return Step::More;
        }
        let rest = ring.after(cursor);
        if rest.len() > LOCKED_EVENTS_MAX && self.stored().is_some() {
            return Step::More;
        }
        for committed in rest {
            if let Some(blocked) = self.deliver_to(owner, &committed, skipped) {
                return blocked;
            }
        }
        owner.go_live();
        Step::Done
    }
}

/// The limits of the page after one that was delivered whole.
fn larger(limits: FeedLimits) -> FeedLimits {
    FeedLimits {
        records: (2 * limits.records).min(PAGE_MAX.records),
        body_bytes: (2 * limits.body_bytes).min(PAGE_MAX.body_bytes),
    }
}
