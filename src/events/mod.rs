//! From commits to subscribers.
//!
//! Owns: the feed (`feed`), what one delivery carries and where it goes (`delivery`), filters (`filter`, pure), the
//! table of bindings (`bindings`), recent events in memory (`ring`), reading stored events for slow subscribers
//! (`stored`, `catch_up`), subscriptions that are read event by event (`stream`), and the errors of all of them
//! (`errors`).
//! Reads: the machine's events. Never: create an event, or delay apply for a slow subscriber.

pub mod errors;
pub mod filter;
pub mod bindings;
pub mod position;
pub mod stored;
pub mod ring;
pub mod delivery;
pub mod feed;
pub mod current;
mod catch_up;
pub mod stream;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::machine::event::Event;
use crate::machine::ids::Position;
use crate::machine::json::Json;
use crate::metrics::trace::Context;

/// An event with the position its commit gave it.
#[derive(Debug)]
pub struct Committed {
    pub position: Position,
    pub event: Event,
    payload: OnceLock<Json>,
    /// The call that made the change, if that is traced.
    trace: Option<Box<Context>>,
    /// Number of streams that hold this event, so that an event held by many counts once towards the memory bound.
    held_by: AtomicUsize,
}

impl Committed {
    pub fn new(position: Position, event: Event) -> Committed {
        Committed { position, event, payload: OnceLock::new(), trace: None, held_by: AtomicUsize::new(0) }
    }

    /// Names the call that made the change.
    pub fn of_call(mut self, trace: Option<&Context>) -> Committed {
        self.trace = trace.cloned().map(Box::new);
        self
    }

    /// The payload as JSON text. It is printed once, no matter how many subscribers there are.
    pub fn payload(&self) -> &Json {
        self.payload.get_or_init(|| self.event.payload())
    }
}

/// Receives the events of commits: in log order, once per commit that has events, after the commit.
pub trait EventSink: Send + Sync + 'static {
    /// Must not block on any subscriber.
    fn publish(&self, events: Vec<Arc<Committed>>);

    /// The state was replaced by a later one of the same log (a snapshot). Events up to `_to` will not be published.
    fn jumped(&self, _to: Position) {}

    /// Whether somebody may be waiting for events. Must not block.
    fn is_heard(&self) -> bool {
        true
    }
}

/// No panic leaves the data behind these locks half changed, so a poisoned lock is still usable.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
