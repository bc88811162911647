//! Owns: the path of events to the engine: a bounded queue, sent in batches. The engine does not acknowledge void
//! calls, so each batch is followed by an ack probe: a call of a function of our own. Messages of a connection are read
//! in order, so an answered probe proves that the engine has read the batch.
//! Never: which events are delivered, or to whom.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::delivery_cursors::Checkpoint;
use super::error::EngineError;
use super::sdk::{Connection, Handler};
use crate::events::bindings::Binding;
use crate::events::delivery::{AttachPoint, Delivery, Handed};

/// The most bytes that may wait for a slow engine. Further events stay in the stored feed.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// The most that may be sent without a confirmation of the engine.
const BATCH_BYTES_MAX: usize = 4 << 20;
const BATCH_EVENTS_MAX: usize = 512;
/// The memory of a queued event besides its texts.
const FIXED_BYTES: usize = 256;
/// A probe that is not answered within this time is sent again, after a pause.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
const PROBE_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How long the last batch may take once this replica stops serving. The next replica delivers unconfirmed events
/// again, so a slow engine gets some time to confirm them.
const LAST_BATCH_MAX: Duration = Duration::from_secs(10);
/// How long a lost engine may take to come back in that case.
const LAST_RECONNECT_MAX: Duration = Duration::from_secs(1);
/// How often an idle queue takes a checkpoint. Events that match no binding move the cursor too.
const IDLE_CHECKPOINT_EVERY: Duration = Duration::from_secs(1);

/// The id of a worker's ack probe. It also shows that the worker is alive.
pub fn probe_id(worker: &str) -> String {
    format!("session-manager::fence::{worker}")
}

/// An event for one function.
struct Item {
    function_id: Arc<str>,
    namespace: Option<Arc<str>>,
    data: String,
    metadata: String,
}

impl Item {
    fn bytes(&self) -> usize {
        FIXED_BYTES + self.data.len() + self.metadata.len()
    }
}

#[derive(Default)]
struct Items {
    items: VecDeque<Item>,
    bytes: usize,
    /// How many items were ever queued.
    queued: u64,
}

/// The events of this node that are on their way to one engine.
pub struct DeliveryQueue {
    connection: Arc<Connection>,
    probe_id: String,
    items: Mutex<Items>,
    item_added: Notify,
    items_removed: Notify,
}

impl DeliveryQueue {
    pub fn new(connection: Arc<Connection>) -> Arc<DeliveryQueue> {
        let probe_id = probe_id(connection.name());
        let answer: Handler = Arc::new(|_, _| Box::pin(std::future::ready(Ok(Value::Null))));
        connection.register_internal(
            &probe_id,
            "Internal: confirms to its own worker what the engine has read.",
            answer,
        );
        Arc::new(DeliveryQueue {
            connection,
            probe_id,
            items: Mutex::default(),
            item_added: Notify::new(),
            items_removed: Notify::new(),
        })
    }

    /// Where the feed puts the deliveries of one binding.
    pub fn input(self: &Arc<Self>, namespace: Option<&str>) -> Arc<dyn AttachPoint> {
        Arc::new(Input { queue: self.clone(), namespace: namespace.map(Arc::from) })
    }

    /// Sends events until `stop`, then the rest of the queue within a time limit. True: the engine has confirmed
    /// everything that was ever queued.
    pub async fn run(self: Arc<Self>, checkpoint: impl Fn() -> Option<Checkpoint>, stop: CancellationToken) -> bool {
        // Each checkpoint with the number of items that must be confirmed for it.
        let mut checkpoints: VecDeque<(u64, Checkpoint)> = VecDeque::new();
        let mut confirmed = 0;
        loop {
            // The checkpoint must be taken before the queue is read.
            let checkpoint = checkpoint();
            let (queued, batch) = self.take_batch();
            checkpoints.extend(checkpoint.map(|checkpoint| (queued, checkpoint)));
            if batch.is_empty() {
                confirm(&mut checkpoints, confirmed, 0);
                tokio::select! {
                    () = self.item_added.notified() => {}
                    () = tokio::time::sleep(IDLE_CHECKPOINT_EVERY) => {}
                    () = stop.cancelled() => return true,
                }
                continue;
            }
            tokio::select! {
                () = self.send_until_confirmed(&batch) => {}
                () = self.gave_up_after(&stop) => return false,
            }
            confirmed += batch.len() as u64;
            confirm(&mut checkpoints, confirmed, batch.len() as u64);
        }
    }

    /// Sends a batch until the engine has read it. It is sent again only if the connection broke before the
    /// confirmation; duplicates carry the same position. A slow answer is no reason to send it again: a later probe
    /// confirms it too.
    async fn send_until_confirmed(&self, batch: &[Item]) {
        loop {
            self.connection.connected().await;
            for item in batch {
                self.send(item);
            }
            tokio::select! {
                () = self.confirmed() => return,
                () = self.connection.lost() => {
                    tracing::warn!(events = batch.len(), "the engine was lost before it confirmed: sending again");
                }
            }
        }
    }

    /// Returns when the engine has read everything that was sent before.
    async fn confirmed(&self) {
        // An error answer is a confirmation as well: the engine has read the probe.
        while let Err(error @ EngineError::NoAnswer(_)) =
            self.connection.call(&self.probe_id, json!({}), PROBE_TIMEOUT).await
        {
            tracing::warn!(%error, "the engine does not confirm events: sending another probe");
            tokio::time::sleep(PROBE_AGAIN_AFTER).await;
        }
    }

    /// Resolves some time after `stop`, so that the batch in flight can be confirmed; sooner if the engine is lost.
    async fn gave_up_after(&self, stop: &CancellationToken) {
        stop.cancelled().await;
        let engine_lost = async {
            self.connection.lost().await;
            tokio::time::sleep(LAST_RECONNECT_MAX).await;
        };
        let _ = tokio::time::timeout(LAST_BATCH_MAX, engine_lost).await;
    }

    fn send(&self, item: &Item) {
        let (data, metadata) = (serde_json::from_str(&item.data), serde_json::from_str(&item.metadata));
        let (Ok(data), Ok(metadata)) = (data, metadata) else {
            tracing::error!(function_id = %item.function_id, "an event is not valid JSON and was not sent");
            return;
        };
        if let Err(error) = self.connection.send_event(&item.function_id, data, metadata, item.namespace.as_deref()) {
            tracing::error!(function_id = %item.function_id, %error, "an event was not sent");
        }
    }

    /// False: the queue is full. The event stays in the stored feed.
    fn push(&self, item: Item) -> bool {
        let mut items = self.items();
        if items.bytes > QUEUE_BYTES_MAX {
            return false;
        }
        items.bytes += item.bytes();
        items.queued += 1;
        items.items.push_back(item);
        drop(items);
        self.item_added.notify_one();
        true
    }

    /// The next items, and how many items were ever queued.
    fn take_batch(&self) -> (u64, Vec<Item>) {
        let mut items = self.items();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_EVENTS_MAX
            && bytes < BATCH_BYTES_MAX
            && let Some(item) = items.items.pop_front()
        {
            bytes += item.bytes();
            batch.push(item);
        }
        items.bytes -= bytes;
        let queued = items.queued;
        drop(items);
        self.items_removed.notify_waiters();
        (queued, batch)
    }

    fn items(&self) -> MutexGuard<'_, Items> {
        // A panic cannot leave the queue half changed, so a poisoned lock is still usable.
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Confirms the newest checkpoint whose items are all confirmed; it includes the older ones.
fn confirm(checkpoints: &mut VecDeque<(u64, Checkpoint)>, confirmed: u64, deliveries: u64) {
    let reached = checkpoints.iter().take_while(|(queued, _)| *queued <= confirmed).count();
    if let Some((_, checkpoint)) = checkpoints.drain(..reached).next_back() {
        checkpoint.confirm(deliveries);
    }
}

/// Puts the deliveries of one binding into the queue.
struct Input {
    queue: Arc<DeliveryQueue>,
    namespace: Option<Arc<str>>,
}

impl AttachPoint for Input {
    fn deliver(&self, delivery: Delivery<'_>) -> Handed {
        let taken = self.queue.push(Item {
            function_id: delivery.binding.function_id.clone(),
            namespace: self.namespace.clone(),
            data: delivery.data.to_owned(),
            metadata: delivery.sidecar(),
        });
        if taken { Handed::Taken } else { Handed::Full }
    }

    fn room(&self, _: &Binding) -> BoxFuture<'static, ()> {
        let queue = self.queue.clone();
        async move {
            loop {
                let removed = queue.items_removed.notified();
                tokio::pin!(removed);
                removed.as_mut().enable();
                if queue.items().bytes <= QUEUE_BYTES_MAX / 2 {
                    return;
                }
                removed.await;
            }
        }
        .boxed()
    }
}
