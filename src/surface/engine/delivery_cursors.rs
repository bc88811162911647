//! Owns: the delivery cursors of one engine, in the replicated state. A replica reads them when it takes the engine
//! over and writes them as the engine confirms deliveries.
//!
//! One cursor stands for all bindings of the engine. In addition each binding has a record with its start position: a
//! binding that was made after the last cursor write must not get older events, and a binding that still catches up
//! must not be skipped by the common cursor. The engine keeps the bindings themselves.
//! Never: one write per event; positions of other data than the cursors were opened for.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_128;

use super::subscribers::ENGINE;
use super::{EngineSettings, Sharing};
use crate::events::feed::{Feed, Released};
use crate::machine::apply::feed_order::ATTACH_BYTES_MAX;
use crate::machine::ids::Position;
use crate::proposal::AdapterError;
use crate::proposal::cursor::{Cursors, GatheredCursor};

/// How many writes of binding records may be in flight. An engine may send thousands of bindings at once; their records
/// must not take all places in the proposal queue.
const RECORD_WRITES_MAX: usize = 256;

/// How long a replica that stops serving waits for its last binding records.
const LAST_RECORDS_MAX: Duration = Duration::from_secs(5);

/// The delivery cursors of one engine.
pub struct DeliveryCursors {
    feed: Arc<Feed>,
    cursors: Cursors,
    /// The name of the common cursor.
    key: String,
    /// The common cursor as the previous replica left it.
    previous_cursor: Position,
    state: Mutex<State>,
    /// Writes the common cursor in intervals.
    common: Arc<GatheredCursor>,
    writer: Mutex<Option<JoinHandle<()>>>,
    stop: CancellationToken,
    runtime: Handle,
    write_slots: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    bindings: BTreeMap<String, Progress>,
    /// Recorded bindings that the engine has not sent to this replica yet. The common cursor stands still until they
    /// are here: they may still need older events.
    missing: BTreeSet<String>,
    /// The last confirmed position for all bindings.
    confirmed: Option<Position>,
    /// Counts the bindings that started to catch up.
    catch_ups: u64,
}

/// How far one binding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Recorded: the next replica resumes it after the common cursor, but not before this position.
    Recorded(Position),
    /// It named a position to start from, and has events to catch up until `until`. It has no record yet: if this
    /// replica is lost, the next one starts it at the named position again. `number` is its place among all catch-ups.
    CatchingUp { until: Position, number: u64 },
}

/// A position up to which all events are in the delivery queue. The cursors move there once the engine has confirmed
/// everything that is in the queue now.
pub struct Checkpoint {
    cursors: Arc<DeliveryCursors>,
    position: Position,
    /// The number of catch-ups at that time. Bindings that started later are not part of the checkpoint.
    catch_ups: u64,
    /// No recorded binding was missing at that time.
    complete: bool,
}

impl Checkpoint {
    /// The engine has read all events of the checkpoint.
    pub fn confirm(&self, deliveries: u64) {
        self.cursors.confirm(self, deliveries);
    }
}

/// Final cursors that a replica could not write when it stopped serving. It writes them before it serves again.
pub struct UnwrittenCursors {
    feed: Arc<Feed>,
    cursors: Vec<(String, Position)>,
}

impl UnwrittenCursors {
    /// Does nothing if the data was swapped since: the positions belong to the old data.
    pub async fn write(&self, feed: &Arc<Feed>, cursors: &Cursors) -> Result<(), AdapterError> {
        if Arc::ptr_eq(&self.feed, feed) {
            for (name, position) in &self.cursors {
                cursors.advance(name, *position).await?;
            }
        }
        Ok(())
    }
}

/// The name of an engine's common cursor. Replicas that share an engine share the name.
pub fn cursor_key(settings: &EngineSettings) -> String {
    let namespace = settings.namespace.as_deref().unwrap_or("default");
    match settings.sharing {
        Sharing::Shared => format!("engine/shared/{namespace}"),
        Sharing::Own => format!("engine/own/{}/{namespace}", settings.node_id),
    }
}

impl DeliveryCursors {
    /// Reads the cursors that the previous replica left, after writing those that this replica could not write earlier.
    /// If there are none, delivery starts now.
    pub async fn open(
        feed: Arc<Feed>,
        cursors: Cursors,
        key: String,
        unwritten: Option<&UnwrittenCursors>,
    ) -> Result<Arc<DeliveryCursors>, AdapterError> {
        if let Some(unwritten) = unwritten {
            unwritten.write(&feed, &cursors).await?;
        }
        let stored = cursors.starting(&key).await?;
        let known = stored.iter().find(|(name, _)| *name == key).map(|(_, position)| *position);
        let previous_cursor = match known {
            Some(position) => position,
            None => {
                let now = feed.now();
                cursors.advance(&key, now).await?;
                now
            }
        };
        let bindings: BTreeMap<String, Progress> = stored
            .into_iter()
            .filter_map(|(name, start)| Some((binding_of(&key, &name)?.to_owned(), Progress::Recorded(start))))
            .collect();
        let missing = bindings.keys().cloned().collect();
        let common = cursors.gather(&key);
        let stop = CancellationToken::new();
        let writer = Mutex::new(Some(tokio::spawn(common.clone().keep(stop.clone()))));
        let state = Mutex::new(State { bindings, missing, confirmed: Some(previous_cursor), catch_ups: 0 });
        let (runtime, write_slots) = (Handle::current(), Arc::new(Semaphore::new(RECORD_WRITES_MAX)));
        Ok(Arc::new(DeliveryCursors {
            feed,
            cursors,
            key,
            previous_cursor,
            state,
            common,
            writer,
            stop,
            runtime,
            write_slots,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave the state half changed, so a poisoned lock is still usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether these are cursors of that feed's positions.
    pub fn belong_to(&self, feed: &Arc<Feed>) -> bool {
        Arc::ptr_eq(&self.feed, feed)
    }

    /// Where a recorded binding resumes; `None` for one that has no record.
    pub fn resume_position(&self, id: &str) -> Option<Position> {
        match self.state().bindings.get(&*self.record_key(id))? {
            Progress::Recorded(start) => Some(self.previous_cursor.max(*start)),
            Progress::CatchingUp { .. } => None,
        }
    }

    /// A binding was added to the feed. It starts at `now`, or catches up from a position it `named`.
    pub fn binding_added(self: &Arc<Self>, id: &str, named: Option<Position>, now: Position) {
        let id = &*self.record_key(id);
        let mut state = self.state();
        state.missing.remove(id);
        if state.bindings.contains_key(id) {
            return;
        }
        match named {
            Some(_) => {
                state.catch_ups += 1;
                let catching_up = Progress::CatchingUp { until: now, number: state.catch_ups };
                state.bindings.insert(id.to_owned(), catching_up);
            }
            None => {
                state.bindings.insert(id.to_owned(), Progress::Recorded(now));
                // The record is proposed before this returns, so it precedes every later mutation in the log. No event
                // for this binding can be committed without the record.
                self.write_record(id, now);
            }
        }
    }

    /// A subscriber removed its binding.
    pub fn binding_removed(self: &Arc<Self>, id: &str) {
        let id = &*self.record_key(id);
        let mut state = self.state();
        state.missing.remove(id);
        if let Some(Progress::Recorded(_)) = state.bindings.remove(id) {
            self.delete_record(id);
        }
    }

    /// The engine has sent all its bindings. Recorded ones that are still missing no longer exist.
    pub fn forget_missing(self: &Arc<Self>) {
        let mut state = self.state();
        for id in std::mem::take(&mut state.missing) {
            state.bindings.remove(&id);
            self.delete_record(&id);
        }
    }

    /// The position up to which the feed has handed its events to the delivery queue. Must be taken before the queue is
    /// read: then the queue contains, or contained, all events up to there.
    pub fn checkpoint(self: &Arc<Self>) -> Option<Checkpoint> {
        // In this order: a binding that is added in between must not be part of the checkpoint.
        let (catch_ups, complete) = {
            let state = self.state();
            (state.catch_ups, state.missing.is_empty())
        };
        let position = self.feed.stands(ENGINE)?;
        Some(Checkpoint { cursors: self.clone(), position, catch_ups, complete })
    }

    fn confirm(self: &Arc<Self>, checkpoint: &Checkpoint, deliveries: u64) {
        let position = checkpoint.position;
        let mut state = self.state();
        for (id, progress) in &mut state.bindings {
            if let Progress::CatchingUp { until, number } = *progress
                && until <= position
                && number <= checkpoint.catch_ups
            {
                *progress = Progress::Recorded(position);
                self.write_record(id, position);
            }
        }
        if checkpoint.complete && state.confirmed < Some(position) {
            state.confirmed = Some(position);
            self.common.delivered(position, deliveries);
        }
    }

    /// The key of a binding's record: its id, or a digest if the id is too long for the name of a cursor.
    fn record_key<'a>(&self, id: &'a str) -> Cow<'a, str> {
        if record_name(&self.key, id).len() <= ATTACH_BYTES_MAX {
            return id.into();
        }
        format!("~{:032x}", xxh3_128(id.as_bytes())).into()
    }

    fn write_record(self: &Arc<Self>, key: &str, start: Position) {
        let (name, cursors) = (record_name(&self.key, key), self.cursors.clone());
        self.propose_now(async move { cursors.advance(&name, start).await });
    }

    fn delete_record(self: &Arc<Self>, key: &str) {
        let (name, cursors) = (record_name(&self.key, key), self.cursors.clone());
        self.propose_now(async move { cursors.forget(&name).await });
    }

    /// Polls the write once, which proposes it if there is a free slot, and lets it finish in the background.
    fn propose_now(&self, write: impl Future<Output = Result<(), AdapterError>> + Send + 'static) {
        let write_slots = self.write_slots.clone();
        let mut write = async move {
            let _slot = write_slots.acquire().await;
            if let Err(error) = write.await {
                tracing::warn!(%error, "a binding record was not written: another replica may start the binding anew");
            }
        }
        .boxed();
        let _entered = self.runtime.enter();
        if (&mut write).now_or_never().is_none() {
            self.runtime.spawn(write);
        }
    }

    /// Writes the final cursors for the next replica. `released`: where the bindings stood when they were removed from
    /// the feed, given only if the engine has confirmed all events up to there. Returns what could not be written.
    pub async fn close(self: &Arc<Self>, released: Option<&Released>) -> Option<UnwrittenCursors> {
        if let Some(released) = released {
            self.confirm_released(released);
        }
        self.stop_writer().await;
        let cursor_written = self.common.write_at_last().await;
        let all_slots = self.write_slots.acquire_many(RECORD_WRITES_MAX as u32);
        let records_written = timeout(LAST_RECORDS_MAX, all_slots).await.is_ok();
        if cursor_written && records_written {
            return None;
        }
        tracing::warn!("the delivery cursor was not written: another replica may deliver some events again");
        Some(self.unwritten())
    }

    /// Stops the interval writer, which writes once more. Enough where the data is about to be closed.
    pub async fn stop_writer(&self) {
        self.stop.cancel();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            && let Err(error) = writer.await
        {
            tracing::error!(%error, "the task that writes the delivery cursor failed");
        }
    }

    /// No event is queued any more, and the engine has confirmed all that were.
    fn confirm_released(self: &Arc<Self>, released: &Released) {
        let mut state = self.state();
        if state.missing.is_empty() && state.confirmed < Some(released.stands) {
            state.confirmed = Some(released.stands);
            self.common.delivered(released.stands, 1);
        }
        // Bindings that are ahead of the common cursor, because it waits for missing ones, and those that caught up.
        let confirmed = state.confirmed;
        for (id, seen) in &released.seen {
            let key = self.record_key(id);
            let Some(progress) = state.bindings.get_mut(&*key) else { continue };
            let known = match progress {
                Progress::Recorded(start) => confirmed.max(Some(*start)),
                Progress::CatchingUp { .. } => None,
            };
            if known < Some(*seen) {
                *progress = Progress::Recorded(*seen);
                self.write_record(&key, *seen);
            }
        }
    }

    fn unwritten(&self) -> UnwrittenCursors {
        let state = self.state();
        let common = state.confirmed.into_iter().map(|confirmed| (self.key.clone(), confirmed));
        let ahead = state.bindings.iter().filter_map(|(key, progress)| match progress {
            Progress::Recorded(start) if state.confirmed < Some(*start) => Some((record_name(&self.key, key), *start)),
            Progress::Recorded(_) | Progress::CatchingUp { .. } => None,
        });
        UnwrittenCursors { feed: self.feed.clone(), cursors: common.chain(ahead).collect() }
    }
}

impl Drop for DeliveryCursors {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn record_name(key: &str, binding: &str) -> String {
    format!("{key}#{binding}")
}

fn binding_of<'a>(key: &str, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(key)?.strip_prefix('#')
}

#[cfg(test)]
#[path = "delivery_cursors_test.rs"]
mod tests;
