//! Owns: how many calls of one caller run at the same time. A caller that is alone may have many. While others call too,
//! each has a share of fewer, so that a caller with a thousand calls in flight delays the others by its share and not by
//! all of them. A call with a large body counts as many. Calls past the share wait in order, and calls past the queue are
//! refused at once.
//! Never: which call is more important, or how long one takes.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::locked;
use crate::access::identity::{Identity, Proof};

/// Calls that run at the same time. More make nothing faster: the log takes what waits in one write.
const CALLS_MAX: usize = 2048;
/// Calls that run at the same time while several callers call, shared by them. Enough to keep the log busy.
const SHARED_CALLS_MAX: usize = 256;
/// The least share of a caller.
const SHARE_MIN: usize = 16;
/// Calls of one caller that wait. More are refused at once: they would wait longer than a caller does.
const WAITING_MAX: usize = 1024;
/// A call counts as one, and as one more for each of these bytes of its body: a log that is busy with large calls delays
/// small ones by their bytes, not by their number.
const BYTES_PER_CALL: usize = 16 << 10;
/// A caller counts for so long after its last call.
const CALLS_FOR: Duration = Duration::from_secs(1);
/// How often callers that have left are forgotten.
const FORGET_EVERY: Duration = Duration::from_millis(100);

/// Whose calls are counted together: those of one name, or of one connection where nobody needs credentials.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallerKey {
    Name(Arc<str>),
    Connection(SocketAddr),
    /// A client of the bus, by its number.
    Client(u64),
}

impl CallerKey {
    /// The name of a caller, or its connection if nobody needs credentials.
    pub fn of(identity: &Identity, connection: CallerKey) -> CallerKey {
        match identity.proof {
            Proof::Nothing => connection,
            Proof::Token(_) | Proof::Until(_) | Proof::Configured => CallerKey::Name(identity.name.clone()),
        }
    }
}

/// So many calls of the caller wait already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} calls of this caller wait already")]
pub struct Busy(pub usize);

#[derive(Clone, Default)]
pub struct FairShare(Arc<Mutex<State>>);

struct State {
    running: usize,
    callers: BTreeMap<CallerKey, Account>,
    /// The caller that was admitted last from the queue. The next one follows it.
    last: Option<CallerKey>,
    forgotten: Instant,
}

impl Default for State {
    fn default() -> State {
        State { running: 0, callers: BTreeMap::new(), last: None, forgotten: Instant::now() }
    }
}

struct Account {
    /// What its calls that run count as.
    running: usize,
    waiting: VecDeque<Waiting>,
    called: Instant,
}

struct Waiting {
    counts: usize,
    admit: oneshot::Sender<Slot>,
}

impl Account {
    /// A call that counts more than the share runs alone.
    fn has_room(&self, counts: usize, share: usize) -> bool {
        self.running == 0 || self.running + counts <= share
    }

    fn check_queue(&mut self) -> Result<(), Busy> {
        if self.waiting.len() >= WAITING_MAX {
            // Those that have stopped waiting do not count.
            self.waiting.retain(|waiting| !waiting.admit.is_closed());
        }
        if self.waiting.len() < WAITING_MAX { Ok(()) } else { Err(Busy(WAITING_MAX)) }
    }
}

/// A call that runs. Dropping it lets the next one run.
pub struct Slot {
    share: FairShare,
    caller: CallerKey,
    counts: usize,
}

impl FairShare {
    /// Waits until a call of this caller may run. A caller that stops waiting gives its place to the next.
    pub async fn take(&self, caller: CallerKey, body_bytes: usize) -> Result<Slot, Busy> {
        let counts = 1 + body_bytes / BYTES_PER_CALL;
        let admitted = {
            let mut state = locked(&self.0);
            state.forget_callers();
            let now = Instant::now();
            let fresh = || Account { running: 0, waiting: VecDeque::new(), called: now };
            state.callers.entry(caller.clone()).or_insert_with(fresh).called = now;
            let share = state.share();
            let may_run = state.running < CALLS_MAX;
            let Some(account) = state.callers.get_mut(&caller) else { return Err(Busy(0)) };
            if may_run && account.waiting.is_empty() && account.has_room(counts, share) {
                account.running += counts;
                state.running += counts;
                return Ok(Slot { share: self.clone(), caller, counts });
            }
            account.check_queue()?;
            let (admit, admitted) = oneshot::channel();
            account.waiting.push_back(Waiting { counts, admit });
            admitted
        };
        // The sender is dropped only with the whole queue.
        admitted.await.map_err(|_| Busy(0))
    }

    /// Fails if a further call of this caller would be refused now.
    pub fn check_queue(&self, caller: &CallerKey) -> Result<(), Busy> {
        locked(&self.0).callers.get_mut(caller).map_or(Ok(()), Account::check_queue)
    }

    /// Calls that wait for their turn.
    pub fn waiting(&self) -> usize {
        locked(&self.0).callers.values().map(|account| account.waiting.len()).sum()
    }

    fn give_back(&self, caller: &CallerKey, counts: usize) {
        let mut gone = Vec::new();
        {
            let mut state = locked(&self.0);
            state.running -= counts;
            if let Some(account) = state.callers.get_mut(caller) {
                account.running -= counts;
            }
            while state.running < CALLS_MAX
                && let Some((next, Waiting { counts, admit })) = state.next()
            {
                state.running += counts;
                // A caller that has stopped waiting gives its slot back, after the lock is released.
                gone.extend(admit.send(Slot { share: self.clone(), caller: next, counts }).err());
            }
        }
        drop(gone);
    }
}

impl State {
    /// What one caller may have running.
    fn share(&self) -> usize {
        match self.callers.len() {
            0 | 1 => CALLS_MAX,
            callers => (SHARED_CALLS_MAX / callers).max(SHARE_MIN),
        }
    }

    /// The first call that waits of the next caller that has some of its share left.
    fn next(&mut self) -> Option<(CallerKey, Waiting)> {
        let share = self.share();
        let may_run =
            |account: &Account| account.waiting.front().is_some_and(|waiting| account.has_room(waiting.counts, share));
        let after = self.last.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.callers.range((after, Bound::Unbounded)).find(|(_, account)| may_run(account));
        let found = later.or_else(|| self.callers.iter().find(|(_, account)| may_run(account)));
        let key = found.map(|(key, _)| key.clone())?;
        let account = self.callers.get_mut(&key)?;
        let waiting = account.waiting.pop_front()?;
        account.running += waiting.counts;
        self.last = Some(key.clone());
        Some((key, waiting))
    }

    fn forget_callers(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.forgotten) < FORGET_EVERY {
            return;
        }
        self.forgotten = now;
        let counts = |account: &Account| {
            account.running > 0 || !account.waiting.is_empty() || now.duration_since(account.called) < CALLS_FOR
        };
        self.callers.retain(|_, account| counts(account));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.share.give_back(&self.caller, self.counts);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn key(name: &str) -> CallerKey {
        CallerKey::Name(name.into())
    }

    async fn many(share: &FairShare, name: &str, calls: usize) -> Vec<Slot> {
        let mut slots = Vec::new();
        for _ in 0..calls {
            slots.push(share.take(key(name), 0).await.expect("a slot"));
        }
        slots
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_alone_has_everything_and_a_share_beside_others() {
        let share = FairShare::default();
        let all = many(&share, "greedy", CALLS_MAX).await;
        let mut waiting = Box::pin(share.take(key("greedy"), 0));
        assert!(waiting.as_mut().now_or_never().is_none(), "the node is full");
        drop(all);
        assert!(waiting.now_or_never().is_some());

        let modest = many(&share, "modest", 1).await;
        let held = many(&share, "greedy", SHARED_CALLS_MAX / 2).await;
        let mut next = Box::pin(share.take(key("greedy"), 0));
        assert!(next.as_mut().now_or_never().is_none(), "half of what is shared is its share");
        assert!(share.take(key("modest"), 0).now_or_never().is_some(), "the other one does not wait");
        drop(held);
        assert!(next.now_or_never().is_some());
        drop(modest);
        // The other one has left, so the share is everything again.
        tokio::time::advance(CALLS_FOR * 2).await;
        many(&share, "greedy", CALLS_MAX).await;
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_wait_are_admitted_in_turn_and_each_in_order() {
        let share = FairShare::default();
        let mut all = many(&share, "a", CALLS_MAX).await;
        let mut waiting = Vec::new();
        for name in ["b", "b", "b", "c", "d"] {
            let mut call = Box::pin(share.take(key(name), 0));
            assert!(call.as_mut().now_or_never().is_none());
            waiting.push((name, call));
        }
        assert_eq!(share.waiting(), 5);
        let mut order = Vec::new();
        let mut slots = Vec::new();
        while !waiting.is_empty() {
            all.pop();
            let at = waiting.iter_mut().position(|(_, call)| match call.as_mut().now_or_never() {
                Some(slot) => {
                    slots.push(slot);
                    true
                }
                None => false,
            });
            order.push(waiting.remove(at.expect("one is admitted")).0);
        }
        assert_eq!(order, ["b", "c", "d", "b", "b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_is_bounded_and_those_that_leave_it_lose_no_slot() {
        let share = FairShare::default();
        let mut all = many(&share, "a", CALLS_MAX).await;
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(share.take(key("a"), 0))).collect();
        waiting.iter_mut().for_each(|call| assert!(call.as_mut().now_or_never().is_none()));
        assert_eq!(share.take(key("a"), 0).await.err(), Some(Busy(WAITING_MAX)));
        assert_eq!((share.check_queue(&key("a")), share.check_queue(&key("b"))), (Err(Busy(WAITING_MAX)), Ok(())));
        let last = waiting.pop();
        drop(waiting);
        all.pop();
        assert!(last.expect("a call").now_or_never().is_some(), "those before it have left");
        drop(all);
        many(&share, "a", CALLS_MAX).await;
        assert_eq!(locked(&share.0).running, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_call_counts_as_many_and_one_larger_than_a_share_runs_alone() {
        let share = FairShare::default();
        let _modest = many(&share, "modest", 1).await;
        let large = share.take(key("greedy"), SHARED_CALLS_MAX * BYTES_PER_CALL).now_or_never();
        assert!(large.is_some(), "it runs although it counts as more than the share");
        let mut second = Box::pin(share.take(key("greedy"), 0));
        assert!(second.as_mut().now_or_never().is_none(), "nothing of its caller runs beside it");
        assert!(share.take(key("modest"), 0).now_or_never().is_some(), "the other one does not wait");
        drop(large);
        assert!(second.now_or_never().is_some());
        // Three callers have a third each, which has room for two eighths.
        let eighth = (SHARED_CALLS_MAX / 8 - 1) * BYTES_PER_CALL;
        let mut running = Vec::new();
        while let Some(slot) = share.take(key("other"), eighth).now_or_never() {
            running.push(slot);
        }
        assert_eq!(running.len(), 2);
        drop(running);
        assert_eq!(locked(&share.0).callers[&key("other")].running, 0);
    }
}
