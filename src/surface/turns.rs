//! Owns: the turns of expensive reads. A read of a session that was expensive lately waits for the others of its kind, so
//! a thousand of them at once delay other calls by one of them and not by all.
//! Never: what a read asks for.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::locked;
use crate::machine::Query;
use crate::machine::ids::SessionId;

/// A read that computes longer is expensive. A page of a hundred short messages takes a tenth of it.
const EXPENSIVE: Duration = Duration::from_millis(4);

/// Sessions that are remembered. Past it, all are forgotten: each is found again by its next expensive read.
const SESSIONS_MAX: usize = 1024;

#[derive(Debug)]
pub struct Turns {
    turn: Semaphore,
    expensive: Mutex<BTreeSet<SessionId>>,
}

impl Default for Turns {
    /// Half of the processors stay for other calls.
    fn default() -> Turns {
        Turns::new(std::thread::available_parallelism().map_or(1, |processors| processors.get() / 2))
    }
}

/// The deadline of a call passed before its turn came.
#[derive(Debug, PartialEq, Eq)]
pub struct NoTurn;

impl Turns {
    pub fn new(at_once: usize) -> Turns {
        Turns { turn: Semaphore::new(at_once.max(1)), expensive: Mutex::default() }
    }

    /// Waits for the turn of a read that is probably expensive. Others need none.
    pub async fn wait(
        &self,
        session: Option<&SessionId>,
        deadline: Instant,
    ) -> Result<Option<SemaphorePermit<'_>>, NoTurn> {
        if !session.is_some_and(|session| locked(&self.expensive).contains(session)) {
            return Ok(None);
        }
        match tokio::time::timeout_at(deadline.into(), self.turn.acquire()).await {
            Ok(turn) => Ok(turn.ok()),
            Err(_) => Err(NoTurn),
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
        | Query::Cursors(_) => None,
    }
}

/// A future that counts how long it computes, without the time it waits.
pub struct Computing<F> {
    work: Pin<Box<F>>,
    computed: Duration,
}

impl<F: Future> Computing<F> {
    pub fn new(work: F) -> Computing<F> {
        Computing { work: Box::pin(work), computed: Duration::ZERO }
    }
}

impl<F: Future> Future for Computing<F> {
    type Output = (F::Output, Duration);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let begun = Instant::now();
        let polled = self.work.as_mut().poll(cx);
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
        let (turns, large, small) = (Turns::new(1), SessionId::from("large"), SessionId::from("small"));
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

    #[test]
    fn what_is_remembered_is_bounded() {
        let turns = Turns::default();
        for nth in 0..3 * SESSIONS_MAX {
            turns.note(Some(&SessionId::from(nth.to_string().as_str())), EXPENSIVE);
        }
        assert!(locked(&turns.expensive).len() <= SESSIONS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_not_computing() {
        let ((), computed) = Computing::new(tokio::time::sleep(Duration::from_secs(3600))).await;
        assert!(computed < Duration::from_secs(3600));
    }
}
