//! Owns: a ring buffer of the most recent events, bounded by bytes, for subscribers that resume; the memory cost of an
//! event.
//! Never: dispatch.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;

use super::Committed;
use super::errors::ResumeError;
use super::position::ClusterTag;
use crate::machine::entry::Body;
use crate::machine::event::{Event, Happened};
use crate::machine::ids::Position;

/// Recent events, oldest first.
#[derive(Default)]
pub struct Ring {
    pub events: VecDeque<Arc<Committed>>,
    bytes: usize,
    /// The ring holds every kept event after this position. `None` as long as it holds all that were published. An event
    /// that is not kept stays in the ring like others, and when it leaves the ring it is gone: no subscriber is told.
    pub complete_after: Option<Position>,
}

impl Ring {
    pub fn starting_after(position: Position) -> Ring {
        Ring { complete_after: Some(position), ..Ring::default() }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn push(&mut self, committed: Arc<Committed>, bytes_max: usize) {
        self.bytes += weight(&committed.event);
        self.events.push_back(committed);
        while self.bytes > bytes_max
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= weight(&oldest.event);
            if oldest.event.is_kept() {
                self.complete_after = Some(oldest.position);
            }
        }
    }

    /// Whether the ring holds every event after this position. Only for feeds whose events arrive in order.
    pub fn covers(&self, after: Position) -> bool {
        self.events.front().is_some_and(|first| after >= just_before(first.position))
    }

    /// The place before the first event here: what comes earlier must be read from the stored feed.
    pub fn begins_after(&self) -> Option<Position> {
        self.events.front().map(|first| just_before(first.position))
    }

    /// At most `most` events after a position. Only for feeds whose events arrive in order.
    pub fn next_after(&self, position: Position, most: usize) -> Vec<Arc<Committed>> {
        let first = self.events.partition_point(|committed| committed.position <= position);
        self.events.range(first..).take(most).cloned().collect()
    }

    /// The events after a position.
    pub fn after(&self, position: Position) -> Vec<Arc<Committed>> {
        // A bridge may receive events out of order, so the ring is not sorted by position.
        self.events.iter().filter(|committed| committed.position > position).cloned().collect()
    }

    /// Fails when events after this position are no longer in the ring.
    pub fn check_reaches(&self, after: Position, cluster: &ClusterTag) -> Result<(), ResumeError> {
        let asked = || cluster.print(after);
        match self.complete_after {
            Some(oldest) if after < oldest => {
                Err(ResumeError::Compacted { after: asked(), oldest: cluster.print(oldest) })
            }
            None if self.events.is_empty() && after.index > 0 => Err(ResumeError::NothingStored { after: asked() }),
            Some(_) | None => Ok(()),
        }
    }
}

fn just_before(position: Position) -> Position {
    match position.ordinal.checked_sub(1) {
        Some(ordinal) => Position { ordinal, ..position },
        None => Position { index: position.index.saturating_sub(1), ordinal: u32::MAX, ..position },
    }
}

/// The approximate memory cost of an event: its texts and a constant for the rest. Does not print the payload.
pub fn weight(event: &Event) -> usize {
    const FIXED: usize = 512;
    let body = match &event.happened {
        Happened::MessageAdded(entry) => match &entry.body {
            Body::Message(message) => message.body.text().len(),
            Body::Custom { custom_type, data } => custom_type.len() + data.text().len(),
        },
        Happened::MessageUpdated { message, .. } => message.body.text().len(),
        Happened::Published { payload, .. } | Happened::Noted { payload, .. } => payload.text().len(),
        Happened::Created { title, description, .. } | Happened::MetaUpdated { title, description, .. } => {
            title.len() + description.len()
        }
        Happened::StatusChanged { .. } | Happened::Deleted { .. } => 0,
    };
    let metadata = event.metadata.iter().flatten().map(|(key, value)| key.len() + value_weight(value)).sum::<usize>();
    // Twice, because the printed payload repeats the body.
    FIXED + 2 * body + metadata + event.session_id.as_str().len()
}

fn value_weight(value: &Value) -> usize {
    const NODE: usize = 32;
    NODE + match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(value_weight).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + value_weight(value)).sum(),
    }
}
