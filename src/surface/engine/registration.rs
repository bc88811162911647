//! Owns: what a serving replica has registered on the engine: a connection with our trigger types and functions, the
//! bindings the engine sent, and the delivery of their events. It lives as long as the replica serves.
//! Never: when a replica serves (`serving`).

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::control::{ControlConnection, FunctionOwner};
use super::delivery_cursors::{DeliveryCursors, UnwrittenCursors, cursor_key};
use super::delivery_queue::DeliveryQueue;
use super::error::EngineError;
use super::functions::Functions;
use super::sdk::Connection;
use super::serving::Served;
use super::subscribers::Subscribers;
use super::trigger_types::trigger_types;
use crate::proposal::AdapterError;

/// How long the engine may take to send all bindings over a new connection.
const ALL_BINDINGS_AFTER: Duration = Duration::from_secs(5);
/// How long calls in flight may take once this replica no longer serves.
const DRAIN_MAX: Duration = Duration::from_secs(5);

pub struct Registration {
    connection: Arc<Connection>,
    functions: Functions,
    subscribers: Arc<Subscribers>,
    /// Returns whether the engine has confirmed all events.
    delivery: JoinHandle<bool>,
    stop_delivery: CancellationToken,
    /// Since when the engine is sending its bindings: from the start, or after a reconnect. `None`: it has sent all.
    receiving_since: Option<Instant>,
    is_lost: bool,
    has_warned: bool,
}

impl Registration {
    /// Registers trigger types before functions, so that bindings are in place before the first mutation can arrive.
    pub fn open(control: &ControlConnection, served: &Served, cursors: Option<Arc<DeliveryCursors>>) -> Registration {
        let settings = &control.settings;
        let connection = Connection::open(&settings.url, &settings.name, settings.namespace.as_deref());
        let connection = Arc::new(connection);
        let queue = DeliveryQueue::new(connection.clone());
        let subscribers = Subscribers::new(served.feed.clone(), queue.clone(), cursors);
        for trigger_type in trigger_types() {
            connection.register_trigger_type(trigger_type, subscribers.clone());
        }
        let mut functions = Functions::new(connection.clone(), served.gate.clone());
        functions.refresh();
        let stop_delivery = CancellationToken::new();
        let checkpointed = subscribers.clone();
        let delivery = tokio::spawn(queue.run(move || checkpointed.checkpoint(), stop_delivery.clone()));
        Registration {
            connection,
            functions,
            subscribers,
            delivery,
            stop_delivery,
            receiving_since: Some(Instant::now()),
            is_lost: false,
            has_warned: false,
        }
    }

    pub fn worker_name(&self) -> &str {
        self.connection.name()
    }

    /// Why the engine will never accept this worker; `None` if it may.
    pub fn refused(&self) -> Option<EngineError> {
        self.connection.refused()
    }

    /// The set of functions may have changed, and the data may have been swapped.
    pub async fn refresh(&mut self, control: &ControlConnection, served: &Served) {
        self.functions.refresh();
        let feed = served.feed.read(Arc::clone);
        if self.subscribers.cursors().is_some_and(|cursors| cursors.belong_to(&feed)) {
            return;
        }
        let cursors = open_cursors(control, served, None).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "delivery cursors are not stored until a replica starts to serve anew");
            None
        });
        // The new data may have records of bindings that no longer exist. They are removed after the usual time.
        self.receiving_since.get_or_insert_with(Instant::now);
        if let Some(old) = self.subscribers.switch_cursors(cursors) {
            old.stop_writer().await;
        }
    }

    /// Compares the engine's view with ours: handles a lost connection and functions that another worker has taken.
    pub async fn check(&mut self, control: &ControlConnection) {
        if !self.connection.is_connected() {
            if !self.is_lost {
                self.is_lost = true;
                self.receiving_since = None;
                self.subscribers.connection_lost();
            }
            return;
        }
        if std::mem::take(&mut self.is_lost) {
            self.receiving_since = Some(Instant::now());
        }
        if self.receiving_since.is_some_and(|since| since.elapsed() > ALL_BINDINGS_AFTER) {
            self.receiving_since = None;
            self.subscribers.remove_stale();
        }
        self.keep_functions(control).await;
    }

    async fn keep_functions(&mut self, control: &ControlConnection) {
        let this = FunctionOwner::Worker(self.connection.name().to_owned());
        let mut owner = control.function_owner().await;
        if owner.as_ref().is_ok_and(|owner| *owner != this) {
            // Our registrations may still be in flight.
            self.connection.flush().await;
            owner = control.function_owner().await;
        }
        match owner {
            Ok(owner) if owner == this => self.has_warned = false,
            Ok(owner) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(?owner, "the engine does not route session::* to this replica; registering again");
                }
                self.functions.register_again();
            }
            Err(error) => tracing::debug!(%error, "the engine did not tell which worker serves"),
        }
    }

    /// Stops the delivery of events, writes the final cursors, then unregisters the functions: the next replica waits
    /// for that, and then reads the cursors. Returns the cursors that could not be written.
    pub async fn stop_serving(&mut self) -> Option<UnwrittenCursors> {
        let released = self.subscribers.release();
        self.stop_delivery.cancel();
        let all_confirmed = (&mut self.delivery).await.unwrap_or_else(|error| {
            tracing::error!(%error, "the task that delivers events to the engine failed");
            false
        });
        let unwritten = match self.subscribers.cursors() {
            Some(cursors) => cursors.close(released.as_ref().filter(|_| all_confirmed)).await,
            None => None,
        };
        self.functions.unregister_all();
        self.connection.flush().await;
        unwritten
    }

    /// Waits for the calls in flight, then closes the connection.
    pub async fn close(self) {
        self.functions.drained(DRAIN_MAX).await;
        self.connection.flush().await;
        self.connection.close().await;
    }
}

/// `None`: the data has no place to store cursors.
pub async fn open_cursors(
    control: &ControlConnection,
    served: &Served,
    unwritten: Option<&UnwrittenCursors>,
) -> Result<Option<Arc<DeliveryCursors>>, AdapterError> {
    let Some((feed, cursors)) = (served.cursors)() else { return Ok(None) };
    match DeliveryCursors::open(feed, cursors, cursor_key(&control.settings), unwritten).await {
        Ok(cursors) => Ok(Some(cursors)),
        Err(AdapterError::Refused(refusal)) => {
            tracing::warn!(%refusal, "delivery cursors of the engine are not stored");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
