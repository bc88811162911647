//! Owns: a subscription whose events are read one by one from a bounded queue. Server-sent events and the gRPC watch
//! use it.
//! Never: a wire.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Notify;

use super::bindings::{Binding, BindingKey};
use super::current::CurrentFeed;
use super::delivery::{AttachPoint, Delivery, Handed, SeqRange};
use super::errors::ResumeError;
use super::feed::Feed;
use super::filter::Filter;
use super::position::ClusterTag;
use super::ring::weight;
use super::{Committed, locked};
use crate::machine::ids::{Position, SessionId};

/// Bounds of one queue. Small: a reader that exceeds them reads the stored feed at its own pace.
const QUEUED_MAX: usize = 256;
const QUEUED_BYTES_MAX: usize = 512 << 10;
/// While all streams together hold more than this, each may hold only its fair share. An event in many queues counts
/// once.
const CROWDED_BYTES: usize = 32 << 20;
const FAIR_SHARE_BYTES: usize = 32 << 10;

/// Streams have subscriber numbers above those of bus clients. The counter is global, because a stream keeps its number
/// when the feed is replaced.
const FIRST_OWNER: u64 = 1 << 63;
static OPENED: AtomicU64 = AtomicU64::new(0);
/// Bytes queued in all streams of this process.
static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Streams that are open in this process.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// How many streams are open.
pub fn open_streams() -> usize {
    OPEN.load(Ordering::Relaxed)
}

/// What a reader of a stream gets.
#[derive(Debug, Clone)]
pub enum Item {
    Event(Arc<Committed>, ClusterTag),
    /// The reader was too slow and now catches up.
    Lagged,
    /// The reader was further behind than the events kept in full. These events of a session are left out, because later
    /// ones replaced them.
    Skipped(SessionId, SeqRange),
    /// Events were lost. What follows comes after this position.
    Compacted(Position, ClusterTag),
}

/// A subscription. It ends when dropped.
pub struct Stream {
    feed: Arc<CurrentFeed>,
    owner: u64,
    /// The stream starts after this position.
    pub begun: Position,
    pub cluster: ClusterTag,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    items: Mutex<Items>,
    filled: Notify,
    emptied: Arc<Notify>,
}

#[derive(Default)]
struct Items {
    items: VecDeque<Item>,
    bytes: usize,
    /// The reader was behind, is not any more, and was not told.
    caught_up: bool,
}

impl Stream {
    /// Subscribes to events after a position, or to live events. `None` when `feed` is no longer the current one.
    pub fn open_on(
        current: &Arc<CurrentFeed>,
        feed: &Arc<Feed>,
        filter: Filter,
        after: Option<Position>,
    ) -> Option<Result<Stream, ResumeError>> {
        current.read(|now| Arc::ptr_eq(now, feed).then(|| Stream::begin(feed, current, filter, after)))
    }

    fn begin(
        feed: &Feed,
        current: &Arc<CurrentFeed>,
        filter: Filter,
        after: Option<Position>,
    ) -> Result<Stream, ResumeError> {
        let owner = FIRST_OWNER + OPENED.fetch_add(1, Ordering::Relaxed);
        let queue = Arc::new(Queue::default());
        let begun = after.unwrap_or_else(|| feed.now());
        let key = BindingKey { owner, id: "stream".into() };
        feed.bind(Binding {
            key,
            function_id: "".into(),
            filter,
            sidecar_fields: String::new(),
            after: Some(begun),
            to: queue.clone(),
        })?;
        OPEN.fetch_add(1, Ordering::Relaxed);
        Ok(Stream { feed: current.clone(), owner, begun, cluster: feed.cluster().clone(), queue })
    }

    #[cfg(test)]
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// The queued bytes, and whether the queue is full.
    #[cfg(test)]
    pub fn holds(&self) -> (usize, bool) {
        let items = locked(&self.queue.items);
        (items.bytes, items.is_full())
    }

    /// Waits for the next item.
    pub async fn next(&self) -> Item {
        loop {
            if let Some(item) = self.queue.take() {
                return item;
            }
            self.queue.filled.notified().await;
        }
    }

    /// Waits for the next item. `None`: the reader was behind and has read all that is kept. What is not kept may be
    /// missing, even if nothing comes any more.
    pub async fn follow(&self) -> Option<Item> {
        loop {
            if let Some(item) = self.queue.take() {
                return Some(item);
            }
            if std::mem::take(&mut locked(&self.queue.items).caught_up) {
                return None;
            }
            self.queue.filled.notified().await;
        }
    }

    /// The next item, if one is queued.
    pub fn try_next(&self) -> Option<Item> {
        self.queue.take()
    }

    /// The position up to which the reader has everything. `None` while items are queued.
    pub fn stands(&self) -> Option<(Position, ClusterTag)> {
        // Read the position before the queue: an event delivered in between is not counted as read.
        let stands = self.feed.read(|feed| Some((feed.stands(self.owner)?, feed.cluster().clone())));
        stands.filter(|_| locked(&self.queue.items).items.is_empty())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
        self.feed.read(|feed| feed.unbind_owner(self.owner));
        // A task that waits for room finds that the binding is gone.
        self.queue.emptied.notify_waiters();
    }
}

impl Queue {
    fn take(&self) -> Option<Item> {
        let mut items = locked(&self.items);
        let item = items.pop()?;
        // Only when half empty, so that catch-up does not run once per event for a slow reader.
        let room = items.items.len() <= QUEUED_MAX / 2 && items.bytes <= bytes_max() / 2;
        drop(items);
        if room {
            self.emptied.notify_waiters();
        }
        Some(item)
    }
}

/// How many bytes one stream may queue now.
fn bytes_max() -> usize {
    if HELD_BYTES.load(Ordering::Relaxed) > CROWDED_BYTES { FAIR_SHARE_BYTES } else { QUEUED_BYTES_MAX }
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
        self.items.len() >= QUEUED_MAX || self.bytes >= bytes_max()
    }
}

impl Drop for Items {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

impl AttachPoint for Queue {
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
        if let Some(range) = delivery.notice.skipped {
            items.push(Item::Skipped(delivery.committed.event.session_id.clone(), range));
        }
        items.push(Item::Event(delivery.committed.clone(), delivery.cluster().clone()));
        drop(items);
        self.filled.notify_one();
        Handed::Taken
    }

    fn caught_up(&self) {
        locked(&self.items).caught_up = true;
        self.filled.notify_one();
    }

    fn prints_itself(&self) -> bool {
        true
    }

    fn room(&self, _: &Binding) -> BoxFuture<'static, ()> {
        let emptied = self.emptied.clone();
        let mut notified = Box::pin(emptied.clone().notified_owned());
        notified.as_mut().enable();
        // The queue may have been drained before this call.
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
        Item::Lagged | Item::Skipped(..) | Item::Compacted(..) => 0,
    }
}
