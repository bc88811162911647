//! Owns: how many calls of one caller run at the same time. A caller that is alone may have many. While others call too,
//! each has a share of fewer, so that a caller with a thousand calls in flight delays the others by its share and not by
//! all of them. A call with a large body or a large answer counts as many. A caller that asks for more than its share
//! while others ask for less has a smaller one, on average over time. Calls past the share wait in order, and calls that
//! would wait for too long are refused at once.
//! Never: which call is more important.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::locked;
use crate::access::identity::{Identity, Proof};

/// Calls of a caller that is alone which run at the same time. More make nothing faster: the log takes what waits in one
/// write.
const CALLS_MAX: usize = 1024;
/// What all callers together may have running while several call. Twice of what they share, because some of it waits
/// for a turn (`expensive_calls.rs`) or for a lost leader.
const SHARED_CALLS_MAX: usize = 512;
/// And at least, while tasks of the doors run late: what runs keeps the processors busy, and more of it only makes
/// everybody else wait for one, refused callers too.
const SHARED_CALLS_MIN: usize = 64;
/// Tasks run late if they wait for so long for a processor.
const LATE: Duration = Duration::from_millis(5);
/// By how much the bound grows again with each task that does not run late.
const SHARED_CALLS_STEP: usize = 16;
/// What several callers share. Enough to keep the log busy.
const SHARED_CALLS: usize = 256;
/// The least share of a caller.
const SHARE_MIN: usize = 16;
/// A caller that asks for more than its share while others ask for less has only this part of it. Then the processors
/// and the disk have time for the others.
const PRESSING_PART: usize = 6;
/// But at least so much. On a fast disk it is enough for some thousand small calls per second.
const PRESSING_SHARE_MIN: usize = 4;
/// Calls of one caller that wait. More are refused at once: they would wait longer than a caller does.
const WAITING_MAX: usize = 1024;
/// A call that would wait longer for its turn is refused at once. It is better served by another node, or later. Longer
/// than the cluster takes to replace a lost leader.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// A call counts as one, and as one more for each of these bytes of its body and its answer: what is busy with large
/// calls delays small ones by their bytes, not by their number.
const BYTES_PER_CALL: usize = 16 << 10;
/// A caller counts, and presses, for so long after its last call.
const CALLS_FOR: Duration = Duration::from_secs(1);
/// How often callers that have left are forgotten.
const FORGET_EVERY: Duration = Duration::from_millis(100);
/// A share stays taken for at most this long after a call. A call that lasted long waited for a disk or a leader.
const REST_MAX: Duration = Duration::from_millis(100);

/// Whose calls are counted together: those of one name, or of one connection where nobody needs credentials.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallerKey {
    Name(Arc<str>),
    Connection(SocketAddr),
    /// A client of the bus, by its number.
    Client(u64),
    /// Many callers, of whom this node knows only the door. They have one share, and no one of them presses.
    Door(&'static str),
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

/// Why a call is refused at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    #[error("{0} calls of this caller wait already")]
    Caller(usize),
    #[error("calls wait for more than {WAIT_MAX:?}")]
    Node,
    #[error("it is stopping")]
    Stopping,
}

#[derive(Clone, Default)]
pub struct FairShare(Arc<Mutex<State>>);

struct State {
    running: usize,
    /// What several callers may have running now.
    shared_max: usize,
    callers: BTreeMap<CallerKey, Account>,
    /// The callers whose first call waits for nothing but room for all. The one that has waited longest comes first.
    line: VecDeque<(CallerKey, Instant)>,
    /// How many of the callers press. Counted every now and then.
    pressing: usize,
    forgotten: Instant,
}

impl Default for State {
    fn default() -> State {
        let now = Instant::now();
        State {
            running: 0,
            shared_max: SHARED_CALLS_MAX,
            callers: BTreeMap::new(),
            line: VecDeque::new(),
            pressing: 0,
            forgotten: now,
        }
    }
}

struct Account {
    /// What its calls that run count as, and those whose share is still taken.
    running: usize,
    waiting: VecDeque<Waiting>,
    in_line: bool,
    called: Instant,
    /// When one of its calls last had to wait for its share.
    pressed: Option<Instant>,
    /// What an answer counts as, by its latest ones.
    answer_counts: usize,
}

struct Waiting {
    weight: Weight,
    admit: oneshot::Sender<Slot>,
}

/// What a call counts as.
#[derive(Debug, Clone, Copy)]
struct Weight {
    /// Itself and its body.
    asked: usize,
    /// With the answer that is expected.
    taken: usize,
}

/// How many callers there are, and how many of them press.
#[derive(Debug, Clone, Copy)]
struct Crowd {
    callers: usize,
    pressing: usize,
}

impl Account {
    fn new(called: Instant) -> Account {
        let waiting = VecDeque::new();
        Account { running: 0, waiting, in_line: false, called, pressed: None, answer_counts: 0 }
    }

    /// A call that counts more than the share runs alone.
    fn has_room(&self, weight: Weight, share: usize) -> bool {
        self.running == 0 || self.running + weight.taken <= share
    }

    fn presses(&self, now: Instant) -> bool {
        self.pressed.is_some_and(|pressed| now.duration_since(pressed) < CALLS_FOR)
    }

    /// Whether it presses while others do not.
    fn is_paced(&self, crowd: Crowd, now: Instant) -> bool {
        self.presses(now) && crowd.callers > crowd.pressing.max(1)
    }

    /// What it may have running.
    fn share(&self, crowd: Crowd, now: Instant) -> usize {
        match crowd.callers {
            0 | 1 => CALLS_MAX,
            callers => {
                let share = (SHARED_CALLS / callers).max(SHARE_MIN);
                if self.is_paced(crowd, now) { (share / PRESSING_PART).max(PRESSING_SHARE_MIN) } else { share }
            }
        }
    }

    fn may_run_next(&self, crowd: Crowd, now: Instant) -> bool {
        let share = self.share(crowd, now);
        self.waiting.front().is_some_and(|waiting| self.has_room(waiting.weight, share))
    }

    /// Whether one more call would wait too long if the first in line has waited for so long.
    fn check_queue(&mut self, first_in_line: Duration) -> Result<(), Busy> {
        if self.waiting.len() >= WAITING_MAX {
            // Those that have stopped waiting do not count.
            self.waiting.retain(|waiting| !waiting.admit.is_closed());
        }
        match self.waiting.len() {
            WAITING_MAX.. => Err(Busy::Caller(WAITING_MAX)),
            // Each of its calls waits once in the line.
            waiting if first_in_line.saturating_mul(waiting as u32 + 1) > WAIT_MAX => Err(Busy::Node),
            _fewer => Ok(()),
        }
    }
}

/// A call that runs. Dropping it lets the next one run.
pub struct Slot {
    share: FairShare,
    caller: CallerKey,
    weight: Weight,
    began: Instant,
    answer_bytes: usize,
}

impl Slot {
    /// The size of the answer: it counts like a body.
    pub fn answers(&mut self, bytes: usize) {
        self.answer_bytes = bytes;
    }
}

impl FairShare {
    /// Waits until a call of this caller may run. A caller that stops waiting gives its place to the next.
    pub async fn take(&self, caller: CallerKey, body_bytes: usize) -> Result<Slot, Busy> {
        let admitted = {
            let mut state = locked(&self.0);
            let now = Instant::now();
            state.forget_callers(now);
            state.callers.entry(caller.clone()).or_insert_with(|| Account::new(now)).called = now;
            let (crowd, limit) = (state.crowd(), state.limit());
            let (running, first_in_line) = (state.running, state.first_in_line(now));
            let Some(account) = state.callers.get_mut(&caller) else { return Err(Busy::Stopping) };
            let asked = 1 + body_bytes / BYTES_PER_CALL;
            let weight = Weight { asked, taken: asked + account.answer_counts };
            let has_room = account.has_room(weight, account.share(crowd, now));
            if running < limit && account.waiting.is_empty() && has_room {
                account.running += weight.taken;
                state.running += weight.taken;
                return Ok(self.slot(caller, weight, now));
            }
            account.check_queue(first_in_line)?;
            if !has_room && !matches!(caller, CallerKey::Door(_)) {
                account.pressed = Some(now);
            }
            let (admit, admitted) = oneshot::channel();
            account.waiting.push_back(Waiting { weight, admit });
            state.join_line(&caller, now);
            admitted
        };
        // The sender is dropped only with the whole queue.
        admitted.await.map_err(|_| Busy::Stopping)
    }

    /// Fails if a further call of this caller would be refused now.
    pub fn check_queue(&self, caller: &CallerKey) -> Result<(), Busy> {
        let mut state = locked(&self.0);
        let first_in_line = state.first_in_line(Instant::now());
        match state.callers.get_mut(caller) {
            Some(account) => account.check_queue(first_in_line),
            None if first_in_line > WAIT_MAX => Err(Busy::Node),
            None => Ok(()),
        }
    }

    /// A task of the doors has waited this long for a processor. While they wait for long, fewer calls run.
    pub fn ran_late(&self, lateness: Duration) {
        let mut state = locked(&self.0);
        state.shared_max = match lateness > LATE {
            true => (state.shared_max - state.shared_max / 4).max(SHARED_CALLS_MIN),
            false => (state.shared_max + SHARED_CALLS_STEP).min(SHARED_CALLS_MAX),
        };
        self.admit_next(state, Instant::now());
    }

    /// Calls that wait for their turn.
    pub fn waiting(&self) -> usize {
        locked(&self.0).callers.values().map(|account| account.waiting.len()).sum()
    }

    fn slot(&self, caller: CallerKey, weight: Weight, began: Instant) -> Slot {
        Slot { share: self.clone(), caller, weight, began, answer_bytes: 0 }
    }

    /// A call has ended. Its part of the caller's share may stay taken for a while.
    fn ended(&self, slot: &Slot) {
        let mut state = locked(&self.0);
        let now = Instant::now();
        state.running -= slot.weight.taken;
        match (state.rest(slot, now), Handle::try_current()) {
            (Some(rest), Ok(runtime)) => {
                let (share, caller, taken) = (self.clone(), slot.caller.clone(), slot.weight.taken);
                runtime.spawn(async move {
                    sleep(rest).await;
                    let mut state = locked(&share.0);
                    let now = Instant::now();
                    state.give_back(&caller, taken, now);
                    share.admit_next(state, now);
                });
            }
            (None, _) | (_, Err(_)) => state.give_back(&slot.caller, slot.weight.taken, now),
        }
        self.admit_next(state, now);
    }

    /// Admits calls from the line while there is room.
    fn admit_next(&self, mut state: MutexGuard<'_, State>, now: Instant) {
        let mut gone = Vec::new();
        while let Some((caller, Waiting { weight, admit })) = state.next(now) {
            // A caller that has stopped waiting gives its slot back, after the lock is released.
            gone.extend(admit.send(self.slot(caller, weight, now)).err());
        }
        drop(state);
        drop(gone);
    }
}

impl State {
    fn crowd(&self) -> Crowd {
        Crowd { callers: self.callers.len(), pressing: self.pressing }
    }

    fn limit(&self) -> usize {
        if self.callers.len() <= 1 { CALLS_MAX } else { self.shared_max }
    }

    /// How long the first in line has waited.
    fn first_in_line(&self, now: Instant) -> Duration {
        self.line.front().map_or(Duration::ZERO, |(_, since)| now.duration_since(*since))
    }

    /// Puts a caller into the line if its first call waits for nothing else.
    fn join_line(&mut self, caller: &CallerKey, now: Instant) {
        let crowd = self.crowd();
        let Some(account) = self.callers.get_mut(caller) else { return };
        if !account.in_line && account.may_run_next(crowd, now) {
            account.in_line = true;
            self.line.push_back((caller.clone(), now));
        }
    }

    /// The next call that may run.
    fn next(&mut self, now: Instant) -> Option<(CallerKey, Waiting)> {
        while self.running < self.limit() {
            let (caller, _) = self.line.pop_front()?;
            let crowd = self.crowd();
            let Some(account) = self.callers.get_mut(&caller) else { continue };
            account.in_line = false;
            while account.waiting.front().is_some_and(|waiting| waiting.admit.is_closed()) {
                account.waiting.pop_front();
            }
            // Its share may have become smaller. It joins again when a call of it ends.
            if !account.may_run_next(crowd, now) {
                continue;
            }
            let Some(waiting) = account.waiting.pop_front() else { continue };
            account.running += waiting.weight.taken;
            self.running += waiting.weight.taken;
            self.join_line(&caller, now);
            return Some((caller, waiting));
        }
        None
    }

    /// How long the share of a call that has ended stays taken. A caller that presses has its share on average: a call
    /// that counted more than the share, or more than was known when it began, took the time of several.
    fn rest(&mut self, slot: &Slot, now: Instant) -> Option<Duration> {
        let answer_counts = slot.answer_bytes / BYTES_PER_CALL;
        let crowd = self.crowd();
        let account = self.callers.get_mut(&slot.caller)?;
        account.answer_counts = (account.answer_counts * 3 + answer_counts) / 4;
        if !account.is_paced(crowd, now) {
            return None;
        }
        let (counted, taken) = (slot.weight.asked + answer_counts, slot.weight.taken.min(account.share(crowd, now)));
        let rest = now.duration_since(slot.began) * counted.saturating_sub(taken) as u32 / taken.max(1) as u32;
        (!rest.is_zero()).then_some(rest.min(REST_MAX))
    }

    fn give_back(&mut self, caller: &CallerKey, taken: usize, now: Instant) {
        let Some(account) = self.callers.get_mut(caller) else { return };
        account.running -= taken;
        if !account.waiting.is_empty() {
            self.join_line(caller, now);
        }
    }

    fn forget_callers(&mut self, now: Instant) {
        if now.duration_since(self.forgotten) < FORGET_EVERY {
            return;
        }
        self.forgotten = now;
        let counts = |account: &Account| {
            account.running > 0 || !account.waiting.is_empty() || now.duration_since(account.called) < CALLS_FOR
        };
        self.callers.retain(|_, account| counts(account));
        self.pressing = self.callers.values().filter(|account| account.presses(now)).count();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.share.ended(self);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn key(name: &str) -> CallerKey {
        CallerKey::Name(name.into())
    }

    /// The share of one that presses beside one that does not.
    const PRESSED: usize = SHARED_CALLS / 2 / PRESSING_PART;

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
        tokio::time::advance(CALLS_FOR * 2).await;

        let modest = many(&share, "modest", 1).await;
        let held = many(&share, "greedy", SHARED_CALLS / 2).await;
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
    async fn a_caller_that_presses_has_a_small_share_while_others_do_not_press() {
        let share = FairShare::default();
        let modest = many(&share, "modest", 1).await;
        let mut held = many(&share, "greedy", SHARED_CALLS / 2).await;
        let mut next = Box::pin(share.take(key("greedy"), 0));
        assert!(next.as_mut().now_or_never().is_none());
        held.truncate(PRESSED);
        assert!(next.as_mut().now_or_never().is_none(), "it presses, so its share is smaller now");
        held.pop();
        assert!(next.now_or_never().is_some());
        drop((held, modest));
        // If all press, nobody is protected from anybody, and each has an equal part.
        let mut all = many(&share, "greedy", PRESSED).await;
        all.extend(many(&share, "modest", SHARED_CALLS / 2).await);
        let names = ["greedy", "modest"].into_iter().cycle().take(2 * SHARED_CALLS);
        let mut waiting = Vec::from_iter(names.map(|name| Box::pin(share.take(key(name), 0))));
        waiting.iter_mut().for_each(|call| assert!(call.as_mut().now_or_never().is_none()));
        tokio::time::advance(FORGET_EVERY * 2).await;
        let _counts_again = share.take(key("modest"), 0).now_or_never();
        all.clear();
        let running = |name| locked(&share.0).callers[&key(name)].running;
        assert_eq!((running("greedy"), running("modest")), (SHARED_CALLS / 2, SHARED_CALLS / 2));
    }

    #[tokio::test(start_paused = true)]
    async fn many_callers_behind_one_door_are_not_one_that_presses() {
        let share = FairShare::default();
        let _modest = many(&share, "modest", 1).await;
        let behind_door = || share.take(CallerKey::Door("gateway"), 0).now_or_never();
        let fill = || Vec::from_iter(std::iter::from_fn(behind_door));
        assert_eq!(fill().len(), SHARED_CALLS / 2);
        assert_eq!(fill().len(), SHARED_CALLS / 2, "its share is the same although a call had to wait");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_presses_has_its_share_on_average_however_large_its_calls_are() {
        let share = FairShare::default();
        let modest = many(&share, "modest", 1).await;
        let four_shares = (4 * PRESSED - 1) * BYTES_PER_CALL;
        let large = share.take(key("greedy"), four_shares).await;
        let mut next = Box::pin(share.take(key("greedy"), SHARED_CALLS * BYTES_PER_CALL));
        assert!(next.as_mut().now_or_never().is_none());
        tokio::time::sleep(Duration::from_millis(10)).await;
        drop(large);
        let waited = Instant::now();
        let mut large = next.await.expect("its turn comes");
        assert_eq!(waited.elapsed(), Duration::from_millis(30), "three times as long as the call took");
        // A call that answers with so much has taken as long, although that was not known when it began.
        drop(large);
        tokio::time::sleep(REST_MAX).await;
        large = share.take(key("greedy"), 0).await.expect("a slot");
        let mut others = many(&share, "greedy", PRESSED - 1).await;
        let mut next = Box::pin(share.take(key("greedy"), 0));
        assert!(next.as_mut().now_or_never().is_none());
        tokio::time::sleep(Duration::from_millis(10)).await;
        large.answers(4 * BYTES_PER_CALL);
        drop(large);
        let waited = Instant::now();
        let next = next.await.expect("its turn comes");
        assert_eq!(waited.elapsed(), Duration::from_millis(40));
        // The next ones are expected to answer with as much. A call that took very long waited for something else.
        others.push(next);
        assert_eq!(locked(&share.0).callers[&key("greedy")].answer_counts, 1);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let more = share.take(key("modest"), 0).await;
        drop((others, more, modest));
        tokio::time::sleep(REST_MAX).await;
        assert_eq!(locked(&share.0).callers[&key("greedy")].running, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_would_wait_for_long_is_refused_at_once() {
        let share = FairShare::default();
        let mut running = Vec::new();
        for nth in 0..SHARED_CALLS_MAX {
            running.extend(many(&share, &format!("caller {nth}"), 1).await);
        }
        let waits = |name: &str| {
            let mut call = Box::pin(share.take(key(name), 0));
            assert!(call.as_mut().now_or_never().is_none(), "{name}");
            call
        };
        let first = waits("first");
        tokio::time::sleep(WAIT_MAX / 2).await;
        let second = waits("second");
        let third = waits("second");
        assert_eq!(share.take(key("second"), 0).await.err(), Some(Busy::Node), "its third call would wait too long");
        tokio::time::sleep(WAIT_MAX / 2 + Duration::from_millis(1)).await;
        assert_eq!(share.take(key("late"), 0).await.err(), Some(Busy::Node));
        assert_eq!(share.check_queue(&key("never seen")), Err(Busy::Node));
        running.pop();
        assert!(first.now_or_never().is_some(), "those that wait are served");
        assert_eq!(share.check_queue(&key("never seen")), Ok(()), "the next in line waits only for half as long");
        running.truncate(2);
        assert!(second.now_or_never().is_some() && third.now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn fewer_calls_of_several_callers_run_while_tasks_run_late() {
        let share = FairShare::default();
        let one_of_each = |range: std::ops::Range<usize>| {
            let name = |nth| key(&format!("caller {nth}"));
            Vec::from_iter(range.map_while(|nth| share.take(name(nth), 0).now_or_never()))
        };
        (0..20).for_each(|_| share.ran_late(LATE * 2));
        let few = one_of_each(0..SHARED_CALLS_MAX);
        assert_eq!(few.len(), SHARED_CALLS_MIN);
        let mut waiting = Box::pin(share.take(key("late"), 0));
        assert!(waiting.as_mut().now_or_never().is_none());
        share.ran_late(Duration::ZERO);
        assert!(waiting.now_or_never().is_some(), "a larger bound admits those that wait");
        (0..100).for_each(|_| share.ran_late(LATE));
        let more = one_of_each(SHARED_CALLS_MAX..3 * SHARED_CALLS_MAX);
        assert_eq!(few.len() + more.len(), SHARED_CALLS_MAX);
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
        all.truncate(SHARED_CALLS_MAX);
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
        assert_eq!(share.take(key("a"), 0).await.err(), Some(Busy::Caller(WAITING_MAX)));
        assert_eq!(
            (share.check_queue(&key("a")), share.check_queue(&key("b"))),
            (Err(Busy::Caller(WAITING_MAX)), Ok(()))
        );
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
        let large = share.take(key("greedy"), SHARED_CALLS * BYTES_PER_CALL).now_or_never();
        assert!(large.is_some(), "it runs although it counts as more than the share");
        let mut second = Box::pin(share.take(key("greedy"), 0));
        assert!(second.as_mut().now_or_never().is_none(), "nothing of its caller runs beside it");
        assert!(share.take(key("modest"), 0).now_or_never().is_some(), "the other one does not wait");
        drop(large);
        assert!(second.now_or_never().is_some());
        // Three callers have a third each, which has room for two eighths.
        let eighth = (SHARED_CALLS / 8 - 1) * BYTES_PER_CALL;
        let mut running = Vec::new();
        while let Some(slot) = share.take(key("other"), eighth).now_or_never() {
            running.push(slot);
        }
        assert_eq!(running.len(), 2);
        drop(running);
        assert_eq!(locked(&share.0).callers[&key("other")].running, 0);
    }
}
