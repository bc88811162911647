//! Owns: how far an attach point has delivered, kept in the replicated state so that whoever takes the attach point over
//! goes on from there. Only attach points that outlive a node need one (an engine and the bindings it keeps); subscribers
//! of a node's own doors name their position themselves.
//! Never: one write per event. What is delivered since the last write is delivered again after a crash, under the same
//! positions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Adapter, Undone};
use crate::machine::apply::feed::FeedOrder;
use crate::machine::ids::Position;
use crate::machine::{Command, Found, Query};

/// How long a write may take before it is given up; the next one says more.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long deliveries gather, unless there are many.
const GATHER: Duration = Duration::from_secs(1);
/// How long the last write may be repeated, and how soon each time.
const LAST_WORD_MAX: Duration = Duration::from_secs(10);
const WRITE_AGAIN: Duration = Duration::from_millis(50);
/// Deliveries that do not wait for the clock: what a crash may bring again.
const GATHER_MAX: u64 = 1024;

/// The replicated cursors of one store.
#[derive(Clone)]
pub struct Cursors {
    adapter: Arc<dyn Adapter>,
}

impl Cursors {
    pub fn new(adapter: Arc<dyn Adapter>) -> Cursors {
        Cursors { adapter }
    }

    /// How far `attach` has delivered, as any node last told; `None` when nobody delivered there yet.
    pub async fn cursor(&self, attach: &str) -> Result<Option<Position>, Undone> {
        let asked = self.adapter.ask(Query::Cursor(attach.to_owned()), Instant::now() + PATIENCE).await?;
        match asked {
            Found::Cursor(position) => Ok(position),
            other => Err(Undone::Unavailable(format!("asked for a cursor, answered {other:?}"))),
        }
    }

    /// Everything up to `position` is delivered through `attach`. Never moves a cursor back.
    pub async fn advance(&self, attach: &str, position: Position) -> Result<(), Undone> {
        let order = FeedOrder::Delivered { attach: attach.to_owned(), position };
        self.adapter.propose(Command::Feed(order), Instant::now() + PATIENCE).await.map(|_| ())
    }

    /// The cursors of every attach point whose name starts so.
    pub async fn starting(&self, name: &str) -> Result<Vec<(String, Position)>, Undone> {
        let asked = self.adapter.ask(Query::Cursors(name.to_owned()), Instant::now() + PATIENCE).await?;
        match asked {
            Found::Cursors(cursors) => Ok(cursors),
            other => Err(Undone::Unavailable(format!("asked for cursors, answered {other:?}"))),
        }
    }

    /// Nobody will go on from there.
    pub async fn forget(&self, attach: &str) -> Result<(), Undone> {
        let order = FeedOrder::Detached { attach: attach.to_owned() };
        self.adapter.propose(Command::Feed(order), Instant::now() + PATIENCE).await.map(|_| ())
    }

    /// A cursor that may be told of every delivery.
    pub fn gather(&self, attach: &str) -> Arc<GatheredCursor> {
        Arc::new(GatheredCursor {
            cursors: self.clone(),
            attach: attach.to_owned(),
            told: Mutex::default(),
            many: Notify::new(),
        })
    }
}

/// Writes the cursor once a second, or sooner when much was delivered.
pub struct GatheredCursor {
    cursors: Cursors,
    attach: String,
    told: Mutex<Told>,
    many: Notify,
}

#[derive(Default)]
struct Told {
    position: Option<Position>,
    deliveries: u64,
}

impl GatheredCursor {
    /// Costs nothing much: to be called as often as so many deliveries were made, in order.
    pub fn delivered(&self, position: Position, deliveries: u64) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.position = told.position.max(Some(position));
        told.deliveries += deliveries;
        if told.deliveries >= GATHER_MAX {
            self.many.notify_one();
        }
    }

    /// Writes until shutdown, and then once more. A write that fails is made up for by the next one.
    pub async fn keep(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            let ends = tokio::select! {
                () = tokio::time::sleep(GATHER) => false,
                () = self.many.notified() => false,
                () = shutdown.cancelled() => true,
            };
            self.write().await;
            if ends {
                return;
            }
        }
    }

    /// Writes what was told last until it is written, since nobody makes up for it. False: it is not, after all this time.
    pub async fn write_at_last(&self) -> bool {
        let until = Instant::now() + LAST_WORD_MAX;
        while !self.write().await {
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(WRITE_AGAIN).await;
        }
        true
    }

    /// True: all that was told is written.
    async fn write(&self) -> bool {
        let told = {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.deliveries = 0;
            told.position.take()
        };
        let Some(position) = told else { return true };
        let Err(error) = self.cursors.advance(&self.attach, position).await else { return true };
        tracing::debug!(attach = self.attach, %error, "the delivery cursor was not written");
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.position = told.position.max(Some(position));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Committed, EventSink};
    use crate::proposal::local::LocalAdapter;
    use crate::proposal::mint::SystemMint;

    struct Nobody;

    impl EventSink for Nobody {
        fn publish(&self, _: Vec<Arc<Committed>>) {}
    }

    #[tokio::test]
    async fn a_cursor_is_found_where_the_last_delivery_left_it() {
        let adapter = LocalAdapter::memory(Arc::new(SystemMint::default()), Arc::new(Nobody));
        let cursors = Cursors::new(Arc::new(adapter));
        let at = |index| Position { group: 0, index, ordinal: 1 };
        assert_eq!(cursors.cursor("engine").await, Ok(None));
        cursors.advance("engine", at(4)).await.unwrap();
        cursors.advance("engine", at(2)).await.unwrap();
        assert_eq!(cursors.cursor("engine").await, Ok(Some(at(4))));

        let gathered = cursors.gather("engine");
        let shutdown = CancellationToken::new();
        let keeping = tokio::spawn(gathered.clone().keep(shutdown.clone()));
        (5..=9).for_each(|index| gathered.delivered(at(index), 1));
        shutdown.cancel();
        keeping.await.unwrap();
        assert_eq!(cursors.cursor("engine").await, Ok(Some(at(9))));
        assert_eq!(cursors.cursor("other").await, Ok(None));

        cursors.advance("engine#b", at(6)).await.unwrap();
        let both = vec![("engine".to_owned(), at(9)), ("engine#b".to_owned(), at(6))];
        assert_eq!(cursors.starting("engine").await, Ok(both));
        cursors.forget("engine#b").await.unwrap();
        assert_eq!(cursors.cursor("engine#b").await, Ok(None));
    }
}
