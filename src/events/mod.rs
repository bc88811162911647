//! From commits to subscribers.
//!
//! Owns: the feed by position, binding filters (pure), the table of bindings, and delivery to attach points.
//! May touch: the machine's events. Never: mint an event, or hold up apply for a slow subscriber.

pub mod filter;
pub mod bindings;
pub mod position;
pub mod history;
pub mod ring;
pub mod deliver;
pub mod current;
mod resume;
pub mod stream;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use crate::machine::event::Event;
use crate::machine::ids::Position;
use crate::machine::json::Json;

/// An event with the place its commit gave it.
#[derive(Debug)]
pub struct Committed {
    pub position: Position,
    pub event: Event,
    payload: OnceLock<Json>,
    /// How many streams hold it, so that what many hold is counted once.
    held_by: AtomicUsize,
}

impl Committed {
    pub fn new(position: Position, event: Event) -> Committed {
        Committed { position, event, payload: OnceLock::new(), held_by: AtomicUsize::new(0) }
    }

    /// The payload text, printed once however many subscribers there are.
    pub fn payload(&self) -> &Json {
        self.payload.get_or_init(|| self.event.payload())
    }
}

/// Where commits hand their events. Called in log order, once per commit with events, after the commit.
pub trait EventSink: Send + Sync + 'static {
    /// Must not block on any subscriber.
    fn publish(&self, events: Vec<Arc<Committed>>);

    /// The state was replaced by a later one of the same history: the events up to here will not be published.
    fn jumped(&self, _to: Position) {}
}
