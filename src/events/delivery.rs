//! Owns: one delivery of an event to a binding: what it carries, how its sidecar and envelope are printed, and the
//! trait of the places deliveries go to.
//! Never: which events are delivered (`feed`, `catch_up`), a wire.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use super::Committed;
use super::bindings::Binding;
use super::position::ClusterTag;
use crate::machine::ids::Position;
use crate::metrics::trace::Context;

/// A matched event for one binding.
pub struct Delivery<'a> {
    pub binding: &'a Binding,
    pub committed: &'a Arc<Committed>,
    /// The payload as JSON text. Empty when the attach point prints the payload itself.
    pub data: &'a str,
    pub notice: Notice,
    /// The span of the delivery, if the call that made the change is traced.
    pub trace: Option<&'a Context>,
    pub(super) cluster: &'a ClusterTag,
}

/// What a subscriber must learn with its next event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Notice {
    /// The subscriber was too slow and now catches up.
    pub lagged: bool,
    /// The subscriber was further behind than the events kept in full. These events of the same session were left out,
    /// because later ones replaced them.
    pub skipped: Option<SeqRange>,
    /// Events were dropped before the subscriber received them. It continues after this position.
    pub compacted: Option<Position>,
}

/// Sequence numbers of one session, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqRange {
    pub first: u64,
    pub last: u64,
}

impl SeqRange {
    pub fn json(self) -> String {
        format!("{{\"first\":{},\"last\":{}}}", self.first, self.last)
    }
}

impl Delivery<'_> {
    /// The cluster that the positions of this delivery belong to.
    pub fn cluster(&self) -> &ClusterTag {
        self.cluster
    }

    /// The metadata sidecar as JSON text: the binding's own fields and the event's position.
    pub fn sidecar(&self) -> String {
        let fields = &self.binding.sidecar_fields;
        let comma = if fields.is_empty() { "" } else { "," };
        let lagged = if self.notice.lagged { ",\"lagged\":true" } else { "" };
        let compacted = match self.notice.compacted {
            Some(oldest) => format!(",\"compacted\":\"{}\"", self.cluster.print(oldest)),
            None => String::new(),
        };
        let skipped = match self.notice.skipped {
            Some(range) => format!(",\"skipped\":{}", range.json()),
            None => String::new(),
        };
        let event = &self.committed.event;
        let seq = match event.kind().is_published() {
            true => format!(",\"seq\":{}", event.seq),
            false => String::new(),
        };
        format!(
            "{{{fields}{comma}\"session-manager\":{{\"position\":\"{}\"{seq}{lagged}{compacted}{skipped}}}}}",
            self.cluster.print(self.committed.position),
        )
    }
}

/// Result of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handed {
    Taken,
    /// The subscriber's queue is full and the event was not taken. The subscriber reads it from the stored feed later.
    Full,
}

/// Where deliveries leave the node: the embedded bus, an engine, a watch or an event stream.
pub trait AttachPoint: Send + Sync + 'static {
    /// Must not block.
    fn deliver(&self, delivery: Delivery<'_>) -> Handed;

    /// The subscriber was behind and has all that is kept now. It may have missed what is not kept. Must not block.
    fn caught_up(&self) {}

    /// True when the attach point prints payloads as they leave, so that queued events hold no text.
    fn prints_itself(&self) -> bool {
        false
    }

    /// Resolves when there may be room for this binding again, or when the binding is gone.
    fn room(&self, binding: &Binding) -> BoxFuture<'static, ()>;
}

/// The payload as subscribers of `session::store::events` receive it.
pub(super) fn print_envelope(committed: &Committed) -> String {
    let event = &committed.event;
    let metadata = match &event.metadata {
        Some(metadata) => format!(",\"session_metadata\":{}", Value::Object(metadata.clone())),
        None => String::new(),
    };
    format!(
        "{{\"trigger_type\":\"{}\",\"payload\":{}{metadata}}}",
        event.kind().trigger_type(),
        committed.payload().text()
    )
}
