//! Owns: delivery cursors: how far an attach point has delivered, stored in the replicated state so that the next owner of
//! the attach point continues there. Only attach points that outlive a node need one (an engine and the bindings it keeps);
//! subscribers of a node name their position themselves.
//! Never: one write per event. Events delivered since the last write are delivered again after a crash, with the same
//! positions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Adapter, AdapterError, Freshness, Proposal};
use crate::machine::apply::feed_order::FeedOrder;
use crate::machine::ids::Position;
use crate::machine::{Command, Found, Query};

/// The time limit of one write. The next write covers a failed one.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two writes, unless there are many deliveries.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// How long the last write is retried, and the wait between retries.
const LAST_WRITE_MAX: Duration = Duration::from_secs(10);
const WRITE_RETRY: Duration = Duration::from_millis(50);
/// Deliveries that cause a write at once: the most events that a crash repeats.
const UNWRITTEN_MAX: u64 = 1024;

/// The replicated cursors of one store.
#[derive(Clone)]
pub struct Cursors {
    adapter: Arc<dyn Adapter>,
}

impl Cursors {
    pub fn new(adapter: Arc<dyn Adapter>) -> Cursors {
        Cursors { adapter }
    }

    /// The cursor of `attach`; `None` if nothing was delivered there yet.
    pub async fn cursor(&self, attach: &str) -> Result<Option<Position>, AdapterError> {
        match self.ask(Query::Cursor(attach.to_owned())).await? {
            Found::Cursor(position) => Ok(position),
            other => Err(AdapterError::Unavailable(format!("asked for a cursor, answered {other:?}"))),
        }
    }

    /// Records that everything up to `position` is delivered through `attach`. Never moves a cursor back.
    pub async fn advance(&self, attach: &str, position: Position) -> Result<(), AdapterError> {
        self.propose(FeedOrder::Delivered { attach: attach.to_owned(), position }).await
    }

    /// The cursors of all attach points whose name has this prefix.
    pub async fn starting(&self, name: &str) -> Result<Vec<(String, Position)>, AdapterError> {
        match self.ask(Query::Cursors(name.to_owned())).await? {
            Found::Cursors(cursors) => Ok(cursors),
            other => Err(AdapterError::Unavailable(format!("asked for cursors, answered {other:?}"))),
        }
    }

    /// Removes the cursor of an attach point that is gone.
    pub async fn forget(&self, attach: &str) -> Result<(), AdapterError> {
        self.propose(FeedOrder::Detached { attach: attach.to_owned() }).await
    }

    async fn ask(&self, query: Query) -> Result<Found, AdapterError> {
        self.adapter.ask(query, Freshness::Linearizable, Instant::now() + CALL_TIMEOUT).await
    }

    async fn propose(&self, order: FeedOrder) -> Result<(), AdapterError> {
        let proposal = Proposal::new(Command::Feed(order), Instant::now() + CALL_TIMEOUT);
        self.adapter.propose(proposal).await.map(|_| ())
    }

    /// A cursor that batches its writes.
    pub fn gather(&self, attach: &str) -> Arc<GatheredCursor> {
        Arc::new(GatheredCursor {
            cursors: self.clone(),
            attach: attach.to_owned(),
            unwritten: Mutex::default(),
            many: Notify::new(),
        })
    }
}

/// Writes the cursor once a second, or sooner after many deliveries.
pub struct GatheredCursor {
    cursors: Cursors,
    attach: String,
    unwritten: Mutex<Unwritten>,
    many: Notify,
}

#[derive(Default)]
struct Unwritten {
    position: Option<Position>,
    deliveries: u64,
}

impl GatheredCursor {
    /// Records deliveries, in order. Cheap: call it for every delivery.
    pub fn delivered(&self, position: Position, deliveries: u64) {
        let mut unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        unwritten.position = unwritten.position.max(Some(position));
        unwritten.deliveries += deliveries;
        if unwritten.deliveries >= UNWRITTEN_MAX {
            self.many.notify_one();
        }
    }

    /// Writes until shutdown, and then once more. The next write covers a failed one.
    pub async fn keep(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            let ends = tokio::select! {
                () = tokio::time::sleep(WRITE_EVERY) => false,
                () = self.many.notified() => false,
                () = shutdown.cancelled() => true,
            };
            self.write().await;
            if ends {
                return;
            }
        }
    }

    /// Retries the last write, since no later one covers it. Returns false if it is still not written after the time limit.
    pub async fn write_at_last(&self) -> bool {
        let until = Instant::now() + LAST_WRITE_MAX;
        while !self.write().await {
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(WRITE_RETRY).await;
        }
        true
    }

    /// Returns true if all deliveries are written.
    async fn write(&self) -> bool {
        let position = {
            let mut unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
            unwritten.deliveries = 0;
            unwritten.position.take()
        };
        let Some(position) = position else { return true };
        let Err(error) = self.cursors.advance(&self.attach, position).await else { return true };
        tracing::debug!(attach = self.attach, %error, "the delivery cursor was not written");
        let mut unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        unwritten.position = unwritten.position.max(Some(position));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Committed, EventSink};
    use crate::mint::SystemMint;
    use crate::proposal::local::LocalAdapter;

    struct NoSubscribers;

    impl EventSink for NoSubscribers {
        fn publish(&self, _: Vec<Arc<Committed>>) {}
    }

    #[tokio::test]
    async fn a_cursor_is_found_where_the_last_delivery_left_it() {
        let adapter = LocalAdapter::memory(Arc::new(SystemMint::default()), Arc::new(NoSubscribers));
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
