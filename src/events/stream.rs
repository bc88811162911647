//! Owns: a subscription that is taken event by event: what waits for its taker, within bounds. Server-sent events, the
//! gRPC watch and whoever sits in this process use it.
//! Never: a wire.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Notify;

use super::Committed;
use super::bindings::{Binding, BindingKey};
use super::current::CurrentFeed;
use super::deliver::{AttachPoint, Delivery, Feed, Handed, locked};
use super::filter::Filter;
use super::position::ClusterTag;
use super::ring::weight;
use crate::machine::ids::Position;

/// What may wait for one taker. Small: past it the kept feed is read for it, at its pace.
const WAITING_MAX: usize = 256;
const WAITING_BYTES_MAX: usize = 512 << 10;
/// While all streams together hold more than this, each may only hold its fair share. An event that many hold counts once.
const CROWDED_BYTES: usize = 32 << 20;
const FAIR_SHARE_BYTES: usize = 32 << 10;

/// Streams are numbered apart from the workers of the bus, and in all feeds of this process alike: the data under them
/// may be swapped.
const FIRST_OWNER: u64 = 1 << 63;
static OPENED: AtomicU64 = AtomicU64::new(0);
/// What waits in all streams of this process together.
static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

/// What a taker gets.
#[derive(Debug, Clone)]
pub enum Item {
    Event(Arc<Committed>, ClusterTag),
    /// It was too slow: what follows is read from the kept feed, without updates that were replaced meanwhile.
    Lagged,
    /// It was so slow that events are lost to it; what follows comes after this position.
    Compacted(Position, ClusterTag),
}

/// A live subscription; ends when dropped.
pub struct Stream {
    feed: Arc<CurrentFeed>,
    owner: u64,
    /// Where it began: everything after this position comes.
    pub begun: Position,
    pub cluster: ClusterTag,
    waiting: Arc<Waiting>,
}

#[derive(Default)]
struct Waiting {
    items: Mutex<Items>,
    filled: Notify,
    emptied: Arc<Notify>,
}

#[derive(Default)]
struct Items {
    items: VecDeque<Item>,
    bytes: usize,
}

impl Stream {
    /// Subscribes to what comes after a position, or from now on. `None`: another feed is served by now.
    pub fn open_on(
        current: &Arc<CurrentFeed>,
        feed: &Arc<Feed>,
        filter: Filter,
        after: Option<Position>,
    ) -> Option<Result<Stream, String>> {
        current.read(|now| Arc::ptr_eq(now, feed).then(|| Stream::begin(feed, current, filter, after)))
    }

    fn begin(
        feed: &Feed,
        current: &Arc<CurrentFeed>,
        filter: Filter,
        after: Option<Position>,
    ) -> Result<Stream, String> {
        let owner = FIRST_OWNER + OPENED.fetch_add(1, Ordering::Relaxed);
        let waiting = Arc::new(Waiting::default());
        let begun = after.unwrap_or_else(|| feed.now());
        let key = BindingKey { owner, id: "stream".into() };
        feed.bind(Binding {
            key,
            function_id: "".into(),
            filter,
            sidecar_fields: String::new(),
            after: Some(begun),
            to: waiting.clone(),
        })?;
        Ok(Stream { feed: current.clone(), owner, begun, cluster: feed.cluster().clone(), waiting })
    }

    #[cfg(test)]
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// What waits for the taker, and whether more may.
    #[cfg(test)]
    pub fn holds(&self) -> (usize, bool) {
        let items = locked(&self.waiting.items);
        (items.bytes, items.is_full())
    }

    /// Waits for the next item.
    pub async fn next(&self) -> Item {
        loop {
            if let Some(item) = self.waiting.take() {
                return item;
            }
            self.waiting.filled.notified().await;
        }
    }

    /// The next item, if one is there.
    pub fn try_next(&self) -> Option<Item> {
        self.waiting.take()
    }

    /// Where the taker stands once it has taken everything that waits; `None` when something waits.
    pub fn stands(&self) -> Option<(Position, ClusterTag)> {
        // In this order: what is handed over after the first look is not counted.
        let stands = self.feed.read(|feed| Some((feed.stands(self.owner)?, feed.cluster().clone())));
        stands.filter(|_| locked(&self.waiting.items).items.is_empty())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.feed.read(|feed| feed.unbind_owner(self.owner));
        // Whoever waits for room here finds that nobody wants it.
        self.waiting.emptied.notify_waiters();
    }
}

impl Waiting {
    fn take(&self) -> Option<Item> {
        let mut items = locked(&self.items);
        let item = items.pop()?;
        // Half empty, so that a slow taker is not read for event by event.
        let room = items.items.len() <= WAITING_MAX / 2 && items.bytes <= bytes_max() / 2;
        drop(items);
        if room {
            self.emptied.notify_waiters();
        }
        Some(item)
    }
}

/// What may wait in one stream now.
fn bytes_max() -> usize {
    if HELD_BYTES.load(Ordering::Relaxed) > CROWDED_BYTES { FAIR_SHARE_BYTES } else { WAITING_BYTES_MAX }
}

impl Items {
    fn push(&mut self, item: Item) {
        self.bytes += cost(&item);
        if let Item::Event(committed, _) = &item
            && committed.held_by.fetch_add(1, Ordering::Relaxed) == 0
        {
            HELD_BYTES.fetch_add(cost(&item), Ordering::Relaxed);
        }
        self.items.push_back(item);
    }

    fn pop(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        self.bytes -= cost(&item);
        if let Item::Event(committed, _) = &item
            && committed.held_by.fetch_sub(1, Ordering::Relaxed) == 1
        {
            HELD_BYTES.fetch_sub(cost(&item), Ordering::Relaxed);
        }
        Some(item)
    }

    fn is_full(&self) -> bool {
        self.items.len() >= WAITING_MAX || self.bytes >= bytes_max()
    }
}

impl Drop for Items {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

impl AttachPoint for Waiting {
    fn deliver(&self, delivery: Delivery<'_>) -> Handed {
        let mut items = locked(&self.items);
        if items.is_full() {
            return Handed::Full;
        }
        if let Some(oldest) = delivery.notice.compacted {
            items.push(Item::Compacted(oldest, delivery.cluster().clone()));
        } else if delivery.notice.lagged {
            items.push(Item::Lagged);
        }
        items.push(Item::Event(delivery.committed.clone(), delivery.cluster().clone()));
        drop(items);
        self.filled.notify_one();
        Handed::Taken
    }

    fn prints_itself(&self) -> bool {
        true
    }

    fn room(&self, _: &Binding) -> BoxFuture<'static, ()> {
        let emptied = self.emptied.clone();
        let mut notified = Box::pin(emptied.clone().notified_owned());
        notified.as_mut().enable();
        // It may have been emptied before anybody waited.
        let full = locked(&self.items).is_full();
        async move {
            if full {
                notified.await;
            }
        }
        .boxed()
    }
}

fn cost(item: &Item) -> usize {
    match item {
        Item::Event(committed, _) => weight(&committed.event),
        Item::Lagged | Item::Compacted(..) => 0,
    }
}
