//! Owns: the pace of work that nobody needs at once: large messages that arrive, and registrations of clients that register
//! very many things. Its pieces pass one at a time, with room for other tasks between them. While several clients wait,
//! all of them together pass no faster than a fixed rate, and a crowd passes slower. So a thousand large messages delay a
//! small one by a piece of one of them, and leave most of a processor to others.
//! Never: what passes, or whose it is.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// A message passes in pieces of this size. Ordinary messages are smaller and do not pass here.
pub const PIECE_BYTES: usize = 64 << 10;
/// What clients that wait for each other pass in one tick, together: 64 MiB per second. Some large uploads at once are
/// served well by that.
const TICK_BYTES: usize = 64 << 10;
/// With each further group of so many clients that wait, all together pass slower,
const CROWD: usize = 16;
/// down to this part of the rate: 16 MiB per second. What a crowd sends is read, parsed, and mostly refused, which takes
/// some tenths of a processor at the full rate, on each node.
const CROWD_PART: u32 = 4;
/// Timers are not more precise.
const TICK: Duration = Duration::from_millis(1);

#[derive(Clone, Default)]
pub struct Turnstile(Arc<State>);

#[derive(Default)]
struct State {
    waiting: AtomicUsize,
    /// What has passed in this tick. The task that holds the lock may pass.
    passed: Mutex<usize>,
}

/// A client that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Turnstile {
    /// Waits for the turn of a piece of work.
    pub async fn pass(&self, bytes: usize) {
        let State { waiting, passed } = &*self.0;
        let place = Waiting(waiting);
        waiting.fetch_add(1, Ordering::Relaxed);
        let mut passed = passed.lock().await;
        drop(place);
        // Tasks that are ready come before the next piece.
        tokio::task::yield_now().await;
        let behind = waiting.load(Ordering::Relaxed);
        if behind == 0 {
            *passed = 0;
            return;
        }
        *passed += bytes;
        if *passed >= TICK_BYTES {
            let ticks = (*passed / TICK_BYTES) as u32;
            *passed %= TICK_BYTES;
            let slower = u32::try_from(1 + behind / CROWD).map_or(CROWD_PART, |slower| slower.min(CROWD_PART));
            tokio::time::sleep(TICK * ticks * slower).await;
        }
    }

    /// Nothing passes while the guard lives.
    #[cfg(test)]
    pub async fn hold(&self) -> tokio::sync::MutexGuard<'_, usize> {
        self.0.passed.lock().await
    }

    /// The same for a message that is read by polling.
    pub fn passage(&self) -> Passage {
        Passage { turnstile: self.clone(), bytes: 0, waits: None }
    }
}

/// The passage of one message after the other through one connection.
pub struct Passage {
    turnstile: Turnstile,
    /// Read since the last pass.
    bytes: usize,
    /// A task of its own: a reader that is not polled for a while must not hold up the others.
    waits: Option<JoinHandle<()>>,
}

impl Passage {
    /// So many bytes more of a large message have arrived.
    pub fn arrived(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Ready when the next piece may arrive.
    pub fn poll_pass(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.waits.is_none() && self.bytes >= PIECE_BYTES {
            let (turnstile, bytes) = (self.turnstile.clone(), std::mem::take(&mut self.bytes));
            self.waits = Some(tokio::spawn(async move { turnstile.pass(bytes).await }));
        }
        if let Some(waits) = &mut self.waits {
            // It fails only when the runtime ends.
            let _ = ready!(Pin::new(waits).poll(cx));
            self.waits = None;
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;

    use futures::FutureExt;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_alone_is_not_held_up_and_a_crowd_keeps_to_the_rate() {
        let (turnstile, begun) = (Turnstile::default(), Instant::now());
        for _ in 0..10_000 {
            turnstile.pass(PIECE_BYTES).await;
        }
        assert_eq!(begun.elapsed(), Duration::ZERO, "nobody waits for it");
        let mut crowd = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let turnstile = turnstile.clone();
            crowd.spawn(async move {
                for _ in 0..20 {
                    turnstile.pass(PIECE_BYTES).await;
                }
            });
        }
        while crowd.join_next().await.is_some() {}
        let least = TICK * (50 * 20 - 50);
        assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
        assert_eq!(turnstile.0.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_crowd_passes_slower_together_than_a_few() {
        let pieces_per_second = async |clients: usize| {
            let (turnstile, passed) = (Turnstile::default(), Arc::new(AtomicUsize::new(0)));
            let mut crowd = tokio::task::JoinSet::new();
            for _ in 0..clients {
                let (turnstile, passed) = (turnstile.clone(), passed.clone());
                crowd.spawn(async move {
                    loop {
                        turnstile.pass(PIECE_BYTES).await;
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            passed.load(Ordering::Relaxed)
        };
        let (few, many) = (pieces_per_second(CROWD).await, pieces_per_second(CROWD * 100).await);
        assert!((900..=1000).contains(&few) && (225..=250).contains(&many), "{few} {many}");
    }

    #[tokio::test(start_paused = true)]
    async fn others_run_between_two_pieces() {
        let (turnstile, order) = (Turnstile::default(), Arc::new(StdMutex::new(Vec::new())));
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let (turnstile, order) = (turnstile.clone(), order.clone());
            all.spawn(async move {
                turnstile.pass(1).await;
                order.lock().unwrap().push("piece");
            });
        }
        let other = order.clone();
        all.spawn(async move { other.lock().unwrap().push("other") });
        while all.join_next().await.is_some() {}
        assert_eq!(order.lock().unwrap()[0], "other");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_is_not_polled_holds_up_nobody() {
        let turnstile = Turnstile::default();
        let mut passage = turnstile.passage();
        passage.arrived(PIECE_BYTES);
        let held = turnstile.hold().await;
        assert!(std::future::poll_fn(|cx| passage.poll_pass(cx)).now_or_never().is_none());
        drop(held);
        turnstile.pass(PIECE_BYTES).await;
        std::future::poll_fn(|cx| passage.poll_pass(cx)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stops_waiting_holds_up_nobody() {
        let turnstile = Turnstile::default();
        let held = turnstile.hold().await;
        let (first, mut second) = (turnstile.pass(1), Box::pin(turnstile.pass(1)));
        assert!(tokio::time::timeout(TICK, first).await.is_err());
        assert!(tokio::time::timeout(TICK, &mut second).await.is_err());
        drop(held);
        second.await;
        assert_eq!(turnstile.0.waiting.load(Ordering::Relaxed), 0);
    }
}
