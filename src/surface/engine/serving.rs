//! Owns: when this replica serves on its engine. Runs the steps of `mod.rs` from the lock to its release.
//!
//! On a shared engine the first worker that registers a function keeps it, and the last one that registers a trigger
//! type gets every binding; the engine reports neither. So only the leader registers anything, over a connection that
//! it closes when it no longer leads.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;

use super::Sharing;
use super::control::ControlConnection;
use super::delivery_cursors::{DeliveryCursors, UnwrittenCursors};
use super::engine_lock::EngineLock;
use super::registration::{Registration, open_cursors};
use super::takeover::previous_replica_stopped;
use crate::events::current::CurrentFeed;
use crate::events::feed::Feed;
use crate::proposal::cursor::Cursors;
use crate::surface::gate::Gate;

/// How long a new leader waits for the previous one to stop, as long as that one answers: it waits for its last
/// confirmations, and may have to retry the write of its final cursor.
const TAKEOVER_MAX: Duration = Duration::from_secs(30);
/// How often the release of the lock is retried.
const RELEASE_AGAIN_AFTER: Duration = Duration::from_millis(25);
/// How often the registration is checked, besides whenever a worker comes or goes.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How often the read of the cursors is retried.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// When to try again after the engine refused this worker, because its name was taken.
const REFUSED_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// What a replica serves.
pub struct Served {
    pub gate: Arc<Gate>,
    pub feed: Arc<CurrentFeed>,
    /// Whether this replica leads its cluster.
    pub leads: watch::Receiver<bool>,
    /// Notified when the set of functions, or the data, may have changed.
    pub refresh: Arc<Notify>,
    pub cursors: CurrentCursors,
}

/// The cursors of the current data, with its feed; `None` if the data cannot store cursors.
pub type CurrentCursors = Arc<dyn Fn() -> Option<(Arc<Feed>, Cursors)> + Send + Sync>;

/// The task that serves this node on an engine.
pub struct EngineWorker {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl EngineWorker {
    pub fn start(control: Arc<ControlConnection>, served: Served) -> EngineWorker {
        let stop = CancellationToken::new();
        let replica = Replica { control, served, stop: stop.clone(), unwritten: None, lock: None };
        EngineWorker { stop, task: tokio::spawn(replica.run()) }
    }

    /// Stops serving: calls in flight are answered first.
    pub async fn shutdown(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the task that serves on the engine failed");
        }
    }
}

struct Replica {
    control: Arc<ControlConnection>,
    served: Served,
    stop: CancellationToken,
    /// Final cursors of the last time it served that could not be written then.
    unwritten: Option<UnwrittenCursors>,
    /// The lock, from its request until its entry is removed.
    lock: Option<EngineLock>,
}

impl Replica {
    async fn run(mut self) {
        while self.until_should_serve().await {
            if self.control.settings.sharing == Sharing::Shared {
                self.take_over().await;
            }
            let Some(cursors) = self.read_cursors().await else { continue };
            // The steps above may have taken long. A worker that registers trigger types without leading would take the
            // bindings away from the leader.
            if !self.should_serve() {
                continue;
            }
            self.unwritten = None;
            let registration = Registration::open(&self.control, &self.served, cursors);
            let is_refused = self.serve(registration).await;
            if is_refused {
                tokio::select! {
                    () = tokio::time::sleep(REFUSED_AGAIN_AFTER) => {}
                    () = self.stop.cancelled() => break,
                }
            }
        }
        self.release_lock().await;
        self.control.close().await;
    }

    fn should_serve(&self) -> bool {
        let may_serve = self.control.settings.sharing == Sharing::Own || *self.served.leads.borrow();
        may_serve && !self.stop.is_cancelled()
    }

    /// Waits until this replica should serve. False: the node is stopping.
    async fn until_should_serve(&mut self) -> bool {
        // The new leader waits for the lock of this replica.
        while self.lock.is_some() && !self.should_serve() && !self.stop.is_cancelled() {
            self.release_lock().await;
            tokio::time::sleep(RELEASE_AGAIN_AFTER).await;
        }
        let own = self.control.settings.sharing == Sharing::Own;
        tokio::select! {
            leads = self.served.leads.wait_for(|leads| own || *leads) => leads.is_ok(),
            () = self.stop.cancelled() => false,
        }
    }

    /// Resolves when this replica should no longer serve.
    async fn until_should_not_serve(&self) {
        let own = self.control.settings.sharing == Sharing::Own;
        let mut leads = self.served.leads.clone();
        tokio::select! {
            _ = leads.wait_for(|leads| !own && !*leads) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Waits until this replica holds the lock and the previous one has stopped, as long as this replica should serve.
    async fn take_over(&mut self) {
        self.lock = self.current_lock();
        tokio::select! {
            () = previous_replica_stopped(&self.control, self.lock.as_ref()) => {}
            () = self.until_should_not_serve() => {}
            () = tokio::time::sleep(TAKEOVER_MAX) => {
                tracing::warn!("the replica that served before does not stop; taking over");
            }
        }
    }

    fn current_lock(&self) -> Option<EngineLock> {
        let (feed, cursors) = (self.served.cursors)()?;
        EngineLock::new(&self.control.settings, feed, cursors)
    }

    /// Removes the lock entry, if there is one, after the final cursors are written: a replica that acquires the lock
    /// must find them. Never cancelled halfway, because a removal in flight could delete the entry of a later request.
    async fn release_lock(&mut self) {
        let Some(lock) = &self.lock else { return };
        let released = async {
            if let (Some(unwritten), Some((feed, cursors))) = (&self.unwritten, (self.served.cursors)()) {
                unwritten.write(&feed, &cursors).await?;
            }
            lock.release().await
        };
        match released.await {
            Ok(()) => (self.lock, self.unwritten) = (None, None),
            Err(error) => tracing::debug!(%error, "the lock of the engine is not released yet"),
        }
    }

    /// After a swap of the data, moves the lock entry from the old data to the new.
    async fn move_lock(&mut self) {
        let feed = self.served.feed.read(Arc::clone);
        if self.lock.as_ref().is_some_and(|lock| lock.is_stored_with(&feed)) {
            return;
        }
        if let Some(old) = self.lock.take()
            && let Err(error) = old.release().await
        {
            tracing::debug!(%error, "the lock entry was not removed from the old data");
        }
        self.lock = self.current_lock();
        if let Some(lock) = &self.lock
            && let Err(error) = lock.request().await
        {
            tracing::debug!(%error, "the lock entry was not written to the new data");
        }
    }

    /// Reads the cursors that the previous replica left, and retries until it succeeds. `None`: this replica should no
    /// longer serve. `Some(None)`: the data cannot store cursors.
    async fn read_cursors(&self) -> Option<Option<Arc<DeliveryCursors>>> {
        while self.should_serve() {
            let opened = tokio::select! {
                opened = open_cursors(&self.control, &self.served, self.unwritten.as_ref()) => opened,
                () = self.stop.cancelled() => return None,
            };
            match opened {
                Ok(cursors) => return Some(cursors),
                Err(error) => tracing::debug!(%error, "the delivery cursors cannot be read yet"),
            }
            tokio::select! {
                () = tokio::time::sleep(READ_AGAIN_AFTER) => {}
                () = self.stop.cancelled() => return None,
            }
        }
        None
    }

    /// Serves as long as this replica should. True: the engine refused this worker.
    async fn serve(&mut self, mut registration: Registration) -> bool {
        let sharing = self.control.settings.sharing;
        tracing::info!(name = registration.worker_name(), %sharing, "serving on the engine");
        let mut check = interval(CHECK_EVERY);
        let is_refused = loop {
            tokio::select! {
                _ = check.tick() => {}
                () = self.control.workers_changed() => {}
                () = self.served.refresh.notified() => {
                    registration.refresh(&self.control, &self.served).await;
                    self.move_lock().await;
                }
                changed = self.served.leads.changed() => if changed.is_err() { break false },
                () = self.stop.cancelled() => break false,
            }
            if !self.should_serve() {
                break false;
            }
            if let Some(error) = registration.refused() {
                tracing::error!(%error, "the engine refused this worker");
                break true;
            }
            // A slow engine must not delay the end of serving.
            tokio::select! {
                () = registration.check(&self.control) => {}
                () = self.until_should_not_serve() => {}
            }
        };
        self.unwritten = registration.stop_serving().await;
        self.release_lock().await;
        registration.close().await;
        tracing::info!("no longer serving on the engine");
        is_refused
    }
}
