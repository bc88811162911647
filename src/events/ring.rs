//! Owns: the most recent events, bounded by bytes, for subscribers that resume; and what an event costs in memory.
//! Never: dispatch.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;

use super::Committed;
use super::history::compacted;
use super::position::ClusterTag;
use crate::machine::entry::Body;
use crate::machine::event::{Event, Happened};
use crate::machine::ids::Position;

/// Recent events, oldest first.
#[derive(Default)]
pub struct Ring {
    pub events: VecDeque<Arc<Committed>>,
    bytes: usize,
    /// Nothing after this position is missing from the ring or from what is still to come; `None` while everything
    /// that was published is here.
    pub complete_after: Option<Position>,
}

impl Ring {
    pub fn starting_after(position: Position) -> Ring {
        Ring { complete_after: Some(position), ..Ring::default() }
    }

    pub fn push(&mut self, committed: Arc<Committed>, bytes_max: usize) {
        self.bytes += weight(&committed.event);
        self.events.push_back(committed);
        while self.bytes > bytes_max
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= weight(&oldest.event);
            self.complete_after = Some(oldest.position);
        }
    }

    /// The events after a position.
    pub fn after(&self, position: Position) -> Vec<Arc<Committed>> {
        // A bridge's events may come in another order than they happened in.
        self.events.iter().filter(|committed| committed.position > position).cloned().collect()
    }

    /// `Err` says how far back one may go.
    pub fn check_reaches(&self, after: Position, cluster: &ClusterTag) -> Result<(), String> {
        match self.complete_after {
            Some(oldest) if after < oldest => Err(compacted(cluster, after, oldest)),
            None if self.events.is_empty() && after.index > 0 => Err(format!(
                "compacted: cannot resume after {}, no event is kept yet; read the state and begin without a position",
                cluster.print(after)
            )),
            Some(_) | None => Ok(()),
        }
    }
}

/// What an event costs in memory, roughly: its texts, and a constant for the rest. Never prints the payload.
pub fn weight(event: &Event) -> usize {
    const FIXED: usize = 512;
    let body = match &event.happened {
        Happened::MessageAdded(entry) => match &entry.body {
            Body::Message(message) => message.body.text().len(),
            Body::Custom { custom_type, data } => custom_type.len() + data.text().len(),
        },
        Happened::MessageUpdated { message, .. } => message.body.text().len(),
        Happened::Published { payload, .. } => payload.text().len(),
        Happened::Created { title, description, .. } | Happened::MetaUpdated { title, description, .. } => {
            title.len() + description.len()
        }
        Happened::StatusChanged { .. } | Happened::Deleted { .. } => 0,
    };
    let metadata = event.metadata.iter().flatten().map(|(key, value)| key.len() + value_weight(value)).sum::<usize>();
    // The body is held twice once the payload is printed.
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
