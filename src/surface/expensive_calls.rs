//! Owns: one queue for expensive reads and one for large bodies. A read of a session that was expensive lately waits for
//! the others of its kind, and so does a call with a large body. So a thousand of them at once delay other calls by one of
//! them and not by all. While one computes, its thread serves other calls; and if other calls came meanwhile, the next
//! one begins only after a rest.
//! Never: what a call asks for.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::locked;
use crate::blocking::block;
use crate::machine::Query;
use crate::machine::ids::SessionId;

/// A read that computes longer is expensive. A page of a hundred short messages takes a tenth of it.
const EXPENSIVE: Duration = Duration::from_millis(4);

/// A body that is longer takes milliseconds to read.
const LARGE_BODY_BYTES: usize = 256 << 10;

/// After an expensive call, the next one begins after this many times its own time, if others call: they have most of the
/// processors then.
const REST_TIMES: u32 = 2;
/// The longest rest. A call that computed for so long was held up by something else.
const REST_MAX: Duration = Duration::from_millis(200);

/// Sessions that are remembered. Past it, all are forgotten: each is found again by its next expensive read.
const SESSIONS_MAX: usize = 1024;

#[derive(Debug)]
pub struct ExpensiveCalls {
    turn: Arc<Semaphore>,
    /// Bodies have turns of their own: no read waits for them.
    body_turn: Arc<Semaphore>,
    expensive: Mutex<BTreeSet<SessionId>>,
    /// Calls that have begun, of any kind.
    begun: Arc<AtomicU64>,
}

impl Default for ExpensiveCalls {
    /// Half of the processors stay for other calls.
    fn default() -> ExpensiveCalls {
        ExpensiveCalls::new(std::thread::available_parallelism().map_or(1, |processors| processors.get() / 2))
    }
}

/// The deadline of a call passed before its turn came.
#[derive(Debug, PartialEq, Eq)]
pub struct NoTurn;

/// The turn of an expensive call.
#[derive(Debug)]
pub struct Turn {
    permit: Option<OwnedSemaphorePermit>,
    begun: Arc<AtomicU64>,
    /// The calls that had begun when the turn came.
    before: u64,
}

impl Turn {
    /// The call is over. If others called meanwhile, the next turn comes after a rest.
    pub fn end(mut self, computed: Duration) {
        let others_call = self.begun.load(Ordering::Relaxed) > self.before;
        if let (Some(permit), true, Ok(runtime)) = (self.permit.take(), others_call, Handle::try_current()) {
            runtime.spawn(async move {
                tokio::time::sleep((computed * REST_TIMES).min(REST_MAX)).await;
                drop(permit);
            });
        }
    }
}

impl ExpensiveCalls {
    pub fn new(at_once: usize) -> ExpensiveCalls {
        let turns = || Arc::new(Semaphore::new(at_once.max(1)));
        let (turn, body_turn) = (turns(), turns());
        ExpensiveCalls { turn, body_turn, expensive: Mutex::default(), begun: Arc::default() }
    }

    /// A call of any kind begins.
    pub fn begins(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    async fn take(&self, turns: &Arc<Semaphore>, deadline: Instant) -> Result<Turn, NoTurn> {
        let permit = tokio::time::timeout_at(deadline.into(), turns.clone().acquire_owned()).await;
        // The semaphores are never closed.
        let permit = permit.map_err(|_| NoTurn)?.ok();
        Ok(Turn { permit, begun: self.begun.clone(), before: self.begun.load(Ordering::Relaxed) })
    }

    /// Reads a body. A large one waits for its turn, and other calls go on while it is read.
    pub async fn read_body<R>(&self, body: &str, deadline: Instant, read: impl FnOnce(&str) -> R) -> Result<R, NoTurn> {
        if body.len() <= LARGE_BODY_BYTES {
            return Ok(read(body));
        }
        let turn = self.take(&self.body_turn, deadline).await?;
        let reading = Instant::now();
        let read = block(|| read(body));
        turn.end(reading.elapsed());
        Ok(read)
    }

    /// Whether a read of this session is probably expensive.
    pub fn is_expensive(&self, session: Option<&SessionId>) -> bool {
        session.is_some_and(|session| locked(&self.expensive).contains(session))
    }

    /// Waits for the turn of a read that is probably expensive. Others need none.
    pub async fn wait(&self, session: Option<&SessionId>, deadline: Instant) -> Result<Option<Turn>, NoTurn> {
        match self.is_expensive(session) {
            true => self.take(&self.turn, deadline).await.map(Some),
            false => Ok(None),
        }
    }

    /// Remembers how expensive a read was.
    pub fn note(&self, session: Option<&SessionId>, computed: Duration) {
        let Some(session) = session else { return };
        let mut expensive = locked(&self.expensive);
        if computed < EXPENSIVE {
            expensive.remove(session);
        } else if !expensive.contains(session) {
            if expensive.len() >= SESSIONS_MAX {
                expensive.clear();
            }
            expensive.insert(session.clone());
        }
    }
}

/// The session whose entries a query reads.
pub fn session_of(query: &Query) -> Option<&SessionId> {
    match query {
        Query::Messages(query) => Some(&query.session_id),
        Query::Export(query) => Some(&query.session_id),
        Query::Window(query) => Some(&query.session_id),
        Query::Tree(query) => Some(&query.session_id),
        Query::Entry(session_id, _) | Query::Entries(session_id) | Query::EntriesAfter(session_id, _) => {
            Some(session_id)
        }
        Query::Within { query, .. } => session_of(query),
        Query::Meta(_)
        | Query::List(_)
        | Query::Leaf(_)
        | Query::Metas
        | Query::MetasFrom(_)
        | Query::Cursor(_)
        | Query::Cursors(_)
        | Query::Beside(_) => None,
    }
}

/// A future that counts how long it computes, without the time it waits.
pub struct Computing<F> {
    work: Pin<Box<F>>,
    computed: Duration,
    /// Whether its thread serves others while it computes.
    blocks: bool,
}

impl<F: Future> Computing<F> {
    /// An expensive one lets its thread serve others while it computes.
    pub fn new(work: F, is_expensive: bool) -> Computing<F> {
        Computing { work: Box::pin(work), computed: Duration::ZERO, blocks: is_expensive }
    }
}

impl<F: Future> Future for Computing<F> {
    type Output = (F::Output, Duration);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let begun = Instant::now();
        let blocks = self.blocks;
        let work = self.work.as_mut();
        let polled = if blocks { block(|| work.poll(cx)) } else { work.poll(cx) };
        self.computed += begun.elapsed();
        let computed = self.computed;
        polled.map(|output| (output, computed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn expensive_reads_take_turns_and_others_need_none() {
        let (turns, large, small) = (ExpensiveCalls::new(1), SessionId::from("large"), SessionId::from("small"));
        let soon = || Instant::now() + Duration::from_secs(1);
        assert!(turns.wait(Some(&large), soon()).await.unwrap().is_none(), "nothing is known of it yet");
        turns.note(Some(&large), EXPENSIVE);
        turns.note(Some(&small), EXPENSIVE / 2);
        let turn = turns.wait(Some(&large), soon()).await.unwrap();
        assert!(turn.is_some());
        assert!(turns.wait(Some(&small), soon()).await.unwrap().is_none());
        assert!(turns.wait(None, soon()).await.unwrap().is_none());
        assert_eq!(turns.wait(Some(&large), soon()).await.err(), Some(NoTurn));
        drop(turn);
        assert!(turns.wait(Some(&large), soon()).await.unwrap().is_some());
        turns.note(Some(&large), Duration::ZERO);
        assert!(turns.wait(Some(&large), soon()).await.unwrap().is_none(), "it is cheap again");
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_take_turns_and_small_ones_and_reads_need_none() {
        let (turns, large) = (ExpensiveCalls::new(1), "x".repeat(LARGE_BODY_BYTES + 1));
        let soon = || Instant::now() + Duration::from_secs(1);
        assert_eq!(turns.read_body(&large, soon(), str::len).await, Ok(LARGE_BODY_BYTES + 1));
        let turn = turns.body_turn.clone().acquire_owned().await.unwrap();
        assert_eq!(turns.read_body(&large, soon(), str::len).await, Err(NoTurn));
        assert_eq!(turns.read_body("{}", soon(), str::len).await, Ok(2));
        turns.note(Some(&SessionId::from("large")), EXPENSIVE);
        assert!(turns.wait(Some(&SessionId::from("large")), soon()).await.unwrap().is_some());
        drop(turn);
        assert_eq!(turns.read_body(&large, soon(), str::len).await, Ok(LARGE_BODY_BYTES + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_expensive_call_waits_for_a_rest_only_if_others_called_meanwhile() {
        let (turns, large) = (ExpensiveCalls::new(1), SessionId::from("large"));
        let soon = || Instant::now() + Duration::from_secs(1);
        turns.note(Some(&large), EXPENSIVE);
        let (computed, begun) = (Duration::from_millis(20), tokio::time::Instant::now());
        turns.wait(Some(&large), soon()).await.unwrap().unwrap().end(computed);
        let turn = turns.wait(Some(&large), soon()).await.unwrap().unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO, "nobody else called");
        turns.begins();
        turn.end(computed);
        let turn = turns.wait(Some(&large), soon()).await.unwrap().unwrap();
        assert!(begun.elapsed() >= computed * REST_TIMES, "{:?}", begun.elapsed());
        // One that gives up takes its turn with it, without a rest.
        drop(turn);
        let before = begun.elapsed();
        turns.wait(Some(&large), soon()).await.unwrap();
        assert_eq!(begun.elapsed(), before);
    }

    /// One worker, as a node on two cores has.
    #[test]
    fn other_calls_are_served_while_an_expensive_read_computes() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (served, is_served) = std::sync::mpsc::channel();
        let reading = runtime.spawn(async move {
            let other = tokio::spawn(async move { served.send(()).unwrap() });
            let until_served = async move { is_served.recv_timeout(Duration::from_secs(20)).is_ok() };
            let (read, _) = Computing::new(until_served, true).await;
            other.await.unwrap();
            read
        });
        assert!(runtime.block_on(reading).unwrap());
    }

    /// One worker, as a node on two cores has.
    #[test]
    fn other_calls_are_served_while_a_large_body_is_read() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (turns, large) = (std::sync::Arc::new(ExpensiveCalls::new(1)), "x".repeat(LARGE_BODY_BYTES + 1));
        let (served, is_served) = std::sync::mpsc::channel();
        let reading = runtime.spawn(async move {
            let other = tokio::spawn(async move { served.send(()).unwrap() });
            let until_served = move |_: &str| is_served.recv_timeout(Duration::from_secs(20)).is_ok();
            let read = turns.read_body(&large, Instant::now() + Duration::from_secs(60), until_served).await;
            other.await.unwrap();
            read
        });
        assert_eq!(runtime.block_on(reading).unwrap(), Ok(true));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let turns = ExpensiveCalls::default();
        for nth in 0..3 * SESSIONS_MAX {
            turns.note(Some(&SessionId::from(nth.to_string().as_str())), EXPENSIVE);
        }
        assert!(locked(&turns.expensive).len() <= SESSIONS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_not_computing() {
        let ((), computed) = Computing::new(tokio::time::sleep(Duration::from_secs(3600)), false).await;
        assert!(computed < Duration::from_secs(3600));
    }
}
