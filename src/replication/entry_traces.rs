//! Owns: the spans of entries on their way from the leader to a follower, both ends, and the contexts that travel along.
//! Never: the entries themselves: a trace is not stored, and no answer depends on it.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use openraft::raft::AppendEntriesRequest;

use super::types::Types;
use crate::metrics::trace::{Span, SpanKind, Tracer, Value};
use crate::proto::peer::EntryTrace;
use crate::storage::log::record::Payload;

/// What a request that was never answered ends with.
const UNANSWERED: &str = "unanswered";

/// The spans of the entries that are sent to a node, and what the node is told of them. Empty for entries that belong to
/// no traced call, which is the usual case.
pub fn sent(node: u64, request: &AppendEntriesRequest<Types>) -> (Vec<Span>, Vec<EntryTrace>) {
    let (mut spans, mut traces) = (Vec::new(), Vec::new());
    for entry in &request.entries {
        let Payload::Command(order) = &entry.payload else { continue };
        let Some(trace) = order.trace() else { continue };
        let mut span = trace.child("replicate", SpanKind::Client).with("to_node", Value::Number(node));
        span.note("log_index", Value::Number(entry.index()));
        span.ends_with(Some(UNANSWERED));
        traces.push(EntryTrace { index: entry.index(), context: Bytes::copy_from_slice(&span.context().to_bytes()) });
        spans.push(span);
    }
    (spans, traces)
}

/// The node has answered.
pub fn answered(spans: Vec<Span>) {
    for mut span in spans {
        span.ends_with(None);
    }
}

/// The spans of the entries that arrived. What this node does with an entry later belongs to its span.
pub fn received(tracer: &Arc<Tracer>, traces: Vec<EntryTrace>, request: &mut AppendEntriesRequest<Types>) -> Vec<Span> {
    if traces.is_empty() {
        return Vec::new();
    }
    let contexts: HashMap<u64, Bytes> = traces.into_iter().map(|trace| (trace.index, trace.context)).collect();
    let mut spans = Vec::new();
    for entry in &mut request.entries {
        let index = entry.index();
        let Payload::Command(order) = &mut entry.payload else { continue };
        let Some(span) = contexts.get(&index).and_then(|context| tracer.remote(context, "append")) else { continue };
        order.belongs_to(Some(span.context()));
        spans.push(span.with("log_index", Value::Number(index)));
    }
    spans
}
