//! Owns: the way of events to the engine: a bounded queue, batches, and a fence after each, since a void call is never
//! acknowledged. What lies before an answered fence was read by the engine.
//! Never: which events, or who wants them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::ledger::Reached;
use super::sdk::{Connection, Handler};
use crate::events::bindings::Binding;
use crate::events::deliver::{AttachPoint, Delivery, Handed};

/// What may wait for a slow engine. Beyond it events wait in the kept feed.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// What may be on its way without the engine having said that it has read it.
const BATCH_BYTES_MAX: usize = 4 << 20;
const BATCH_EVENTS_MAX: usize = 512;
/// What an event costs besides its texts.
const FIXED_BYTES: usize = 256;
/// An engine that does not answer for so long is asked again.
const FENCE_MAX: Duration = Duration::from_secs(20);
/// How long what is on its way may take to arrive once this replica no longer serves. What has not is delivered again by
/// whoever comes next, although it may have arrived: so an engine that is only busy is waited for.
const LAST_BATCH_MAX: Duration = Duration::from_secs(10);
/// How long one that is gone may take to come back then.
const GONE_MAX: Duration = Duration::from_secs(1);

/// How often it is looked how far the feed has come while nothing is on its way: what nobody wanted counts as delivered.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The function that tells that a worker is there, and that the engine has read what it sent before.
pub fn fence_of(worker: &str) -> String {
    format!("session-manager::fence::{worker}")
}

/// Tells how far the feed has handed out what goes through a pump.
pub trait Progress: Send + Sync + 'static {
    fn reached(&self) -> Option<Reached>;
}

/// An event on its way to one function.
struct Item {
    function_id: Arc<str>,
    namespace: Option<Arc<str>>,
    data: String,
    sidecar: String,
}

impl Item {
    fn bytes(&self) -> usize {
        FIXED_BYTES + self.data.len() + self.sidecar.len()
    }
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    bytes: usize,
    /// How many items were ever put in.
    put_in: u64,
}

/// The events of this node on their way to one engine.
pub struct Pump {
    connection: Arc<Connection>,
    fence: String,
    queue: Mutex<Queue>,
    wake: Notify,
    /// Told when something left the queue.
    emptied: Notify,
}

impl Pump {
    pub fn new(connection: Arc<Connection>) -> Arc<Pump> {
        let fence = fence_of(connection.name());
        let nothing: Handler = Arc::new(|_, _| Box::pin(std::future::ready(Ok(Value::Null))));
        connection.listen(&fence, "Internal: answers its own worker, to know what the engine has read.", nothing);
        Arc::new(Pump { connection, fence, queue: Mutex::default(), wake: Notify::new(), emptied: Notify::new() })
    }

    /// Where one binding's deliveries go in.
    pub fn outlet(self: &Arc<Pump>, namespace: Option<&str>) -> Arc<dyn AttachPoint> {
        Arc::new(Outlet { pump: self.clone(), namespace: namespace.map(Arc::from) })
    }

    /// Sends until told to stop, then what is left, within bounds. True: everything that was ever put in has arrived.
    pub async fn run(self: Arc<Pump>, progress: Arc<dyn Progress>, stop: CancellationToken) -> bool {
        // What arrives when the item of this number has.
        let mut marks: VecDeque<(u64, Reached)> = VecDeque::new();
        let mut arrived = 0;
        loop {
            // Asked first: what was handed out up to there lies in the queue by now, or has left it.
            let reached = progress.reached();
            let (put_in, batch) = self.take();
            marks.extend(reached.map(|reached| (put_in, reached)));
            if batch.is_empty() {
                confirm(&mut marks, arrived, 0);
                tokio::select! {
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                    () = stop.cancelled() => return true,
                }
                continue;
            }
            tokio::select! {
                () = self.carry(&batch) => {}
                () = self.stopped_for_long(&stop) => return false,
            }
            arrived += batch.len() as u64;
            confirm(&mut marks, arrived, batch.len() as u64);
        }
    }

    /// Sends a batch until the engine has read it. A batch that was on its way when a connection broke is sent again: what
    /// arrives twice carries the same position. Silence alone is no reason: what a connection was given arrives in order,
    /// so once a later fence is answered, the batch was read.
    async fn carry(&self, batch: &[Item]) {
        loop {
            self.connection.connected().await;
            for item in batch {
                self.send(item);
            }
            tokio::select! {
                () = self.fenced() => return,
                () = self.connection.lost() => {
                    tracing::warn!(events = batch.len(), "the engine was lost before it confirmed events: sending them again");
                }
            }
        }
    }

    /// Returns when the engine has read everything that was sent before.
    async fn fenced(&self) {
        while let Err(error) = self.connection.call(&self.fence, json!({}), FENCE_MAX).await {
            if !error.is_silence() {
                return;
            }
            tracing::warn!(%error, "the engine does not confirm events: asking again");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Resolves some time after the stop, so that a batch under way may arrive; sooner where the engine is gone.
    async fn stopped_for_long(&self, stop: &CancellationToken) {
        stop.cancelled().await;
        let gone = async {
            self.connection.lost().await;
            tokio::time::sleep(GONE_MAX).await;
        };
        let _ = tokio::time::timeout(LAST_BATCH_MAX, gone).await;
    }

    fn send(&self, item: &Item) {
        let (data, sidecar) = (serde_json::from_str(&item.data), serde_json::from_str(&item.sidecar));
        let (Ok(data), Ok(sidecar)) = (data, sidecar) else {
            tracing::error!(function_id = %item.function_id, "an event is no JSON and was not sent");
            return;
        };
        if let Err(why) = self.connection.fire(&item.function_id, data, sidecar, item.namespace.as_deref()) {
            tracing::error!(function_id = %item.function_id, why, "an event was not sent");
        }
    }

    /// False: there is no room, and nothing was taken. It stays in the kept feed.
    fn push(&self, item: Item) -> bool {
        let mut queue = self.queue();
        if queue.bytes > QUEUE_BYTES_MAX {
            return false;
        }
        queue.bytes += item.bytes();
        queue.put_in += 1;
        queue.items.push_back(item);
        drop(queue);
        self.wake.notify_one();
        true
    }

    /// The next items, and how many were ever put in.
    fn take(&self) -> (u64, Vec<Item>) {
        let mut queue = self.queue();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_EVENTS_MAX
            && bytes < BATCH_BYTES_MAX
            && let Some(item) = queue.items.pop_front()
        {
            bytes += item.bytes();
            batch.push(item);
        }
        queue.bytes -= bytes;
        let put_in = queue.put_in;
        drop(queue);
        self.emptied.notify_waiters();
        (put_in, batch)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Never left half changed by a panic, so a poisoned lock is still good.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Confirms what lies before the items that have arrived; the last of them says it all.
fn confirm(marks: &mut VecDeque<(u64, Reached)>, arrived: u64, deliveries: u64) {
    let through = marks.iter().take_while(|(put_in, _)| *put_in <= arrived).count();
    if let Some((_, reached)) = marks.drain(..through).next_back() {
        reached.confirmed(deliveries);
    }
}

/// One binding's way into the pump.
struct Outlet {
    pump: Arc<Pump>,
    namespace: Option<Arc<str>>,
}

impl AttachPoint for Outlet {
    fn deliver(&self, delivery: Delivery<'_>) -> Handed {
        let taken = self.pump.push(Item {
            function_id: delivery.binding.function_id.clone(),
            namespace: self.namespace.clone(),
            data: delivery.data.to_owned(),
            sidecar: delivery.sidecar(),
        });
        if taken { Handed::Taken } else { Handed::Full }
    }

    fn room(&self, _: &Binding) -> BoxFuture<'static, ()> {
        let pump = self.pump.clone();
        async move {
            loop {
                let emptied = pump.emptied.notified();
                tokio::pin!(emptied);
                emptied.as_mut().enable();
                if pump.queue().bytes <= QUEUE_BYTES_MAX / 2 {
                    return;
                }
                emptied.await;
            }
        }
        .boxed()
    }
}
