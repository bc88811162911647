//! Owns: the bindings that an engine sent to this node. Adds them to the feed, and removes those that no longer exist.
//! Never: delivery (`delivery_queue`), filters (`events`), positions (`delivery_cursors`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::delivery_cursors::{Checkpoint, DeliveryCursors};
use super::delivery_queue::DeliveryQueue;
use super::error::EngineError;
use super::sdk::EngineBinding;
use crate::events::bindings::{Binding, BindingKey};
use crate::events::current::CurrentFeed;
use crate::events::feed::{Feed, Released};
use crate::machine::ids::Position;
use crate::surface::subscription::Subscription;

/// The owner number of the engine's bindings in the feed. Clients of the embedded bus count from one.
pub const ENGINE: u64 = 0;

/// The most bindings of one engine.
const BINDINGS_MAX: usize = 64 << 10;

/// The bindings of one engine.
pub struct Subscribers {
    feed: Arc<CurrentFeed>,
    queue: Arc<DeliveryQueue>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Each binding with the number of the connection over which the engine sent it last.
    bindings: BTreeMap<String, u64>,
    /// Incremented when the connection is lost. The engine sends all bindings again over the next one.
    connection: u64,
    /// `None` if the data has no place to store cursors.
    cursors: Option<Arc<DeliveryCursors>>,
    /// Set when this replica stops serving. Bindings that still arrive are only recorded, for the next replica.
    released: bool,
}

impl Subscribers {
    pub fn new(
        feed: Arc<CurrentFeed>,
        queue: Arc<DeliveryQueue>,
        cursors: Option<Arc<DeliveryCursors>>,
    ) -> Arc<Subscribers> {
        Arc::new(Subscribers { feed, queue, state: Mutex::new(State { cursors, ..State::default() }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a binding that the engine sent. The error is for the subscriber.
    pub fn bind(&self, trigger_type: &'static str, asked: EngineBinding) -> Result<(), EngineError> {
        let mut state = self.state();
        if state.bindings.len() >= BINDINGS_MAX && !state.bindings.contains_key(&asked.id) {
            return Err(EngineError::TooManyBindings { max: BINDINGS_MAX });
        }
        if let Err(error) = self.add(&state, trigger_type, &asked) {
            tracing::debug!(id = asked.id, function_id = asked.function_id, %error, "a binding was refused");
            return Err(error);
        }
        let connection = state.connection;
        state.bindings.insert(asked.id, connection);
        Ok(())
    }

    fn add(&self, state: &State, trigger_type: &'static str, asked: &EngineBinding) -> Result<(), EngineError> {
        self.feed.read(|feed| {
            // While the data is being swapped, the cursors may still be those of the old data.
            let cursors = state.cursors.as_ref().filter(|cursors| cursors.belong_to(feed));
            let now = feed.now();
            let metadata = asked.metadata.clone().filter(|metadata| !metadata.is_null());
            let subscription = Subscription::read(feed, trigger_type, &asked.function_id, &asked.config, metadata)
                .map_err(|why| EngineError::InvalidBinding(why.to_string()))?;
            let named = subscription.after;
            if !state.released {
                let resume = cursors.and_then(|cursors| cursors.resume_position(&asked.id));
                self.add_to_feed(feed, asked, subscription, resume)?;
            }
            if let Some(cursors) = cursors {
                cursors.binding_added(&asked.id, named, now);
            }
            Ok(())
        })
    }

    fn add_to_feed(
        &self,
        feed: &Feed,
        asked: &EngineBinding,
        subscription: Subscription,
        resume: Option<Position>,
    ) -> Result<(), EngineError> {
        let binding = Binding {
            key: key(&asked.id),
            function_id: asked.function_id.as_str().into(),
            filter: subscription.filter,
            sidecar_fields: subscription.sidecar_fields,
            after: resume.or(subscription.after),
            to: self.queue.input(asked.namespace.as_deref()),
        };
        match resume {
            Some(_) => feed.resume(binding),
            None => feed.bind(binding).map_err(|why| EngineError::InvalidBinding(why.to_string()))?,
        }
        Ok(())
    }

    /// Removes a binding that its subscriber unregistered.
    pub fn unbind(&self, id: &str) {
        self.remove(&mut self.state(), id);
    }

    fn remove(&self, state: &mut State, id: &str) {
        state.bindings.remove(id);
        self.feed.read(|feed| feed.unbind(&key(id)));
        if let Some(cursors) = &state.cursors {
            cursors.binding_removed(id);
        }
    }

    /// From now on bindings are stale until the engine sends them again.
    pub fn connection_lost(&self) {
        self.state().connection += 1;
    }

    /// Removes bindings that the engine did not send again after the connection was lost, and records of bindings that
    /// the engine does not know any more.
    pub fn remove_stale(&self) {
        let mut state = self.state();
        let current = state.connection;
        let stale = state.bindings.iter().filter(|(_, connection)| **connection < current).map(|(id, _)| id.clone());
        for id in stale.collect::<Vec<_>>() {
            self.remove(&mut state, &id);
            tracing::debug!(id, "a binding ended while the engine was disconnected");
        }
        if let Some(cursors) = &state.cursors {
            cursors.forget_missing();
        }
    }

    /// The data was swapped: stores the positions in the new data from now on. Returns the cursors of the old data.
    pub fn switch_cursors(&self, cursors: Option<Arc<DeliveryCursors>>) -> Option<Arc<DeliveryCursors>> {
        let mut state = self.state();
        if let Some(cursors) = &cursors {
            let now = self.feed.read(|feed| feed.now());
            state.bindings.keys().for_each(|id| cursors.binding_added(id, None, now));
        }
        std::mem::replace(&mut state.cursors, cursors)
    }

    pub fn cursors(&self) -> Option<Arc<DeliveryCursors>> {
        self.state().cursors.clone()
    }

    pub fn checkpoint(&self) -> Option<Checkpoint> {
        self.cursors()?.checkpoint()
    }

    /// Removes all bindings from the feed, because another replica will serve them. Returns where they stood.
    pub fn release(&self) -> Option<Released> {
        let mut state = self.state();
        state.bindings.clear();
        state.released = true;
        self.feed.read(|feed| feed.release(ENGINE))
    }
}

fn key(id: &str) -> BindingKey {
    BindingKey { owner: ENGINE, id: id.into() }
}
