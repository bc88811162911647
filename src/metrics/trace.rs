//! Owns: spans: which steps one call took, on which nodes, and how long each lasted, under the ids of the W3C trace
//! context. A span is recorded when it is dropped. Who exports them is no concern of this file (`node/trace_export.rs`).
//! Never: wait. A full queue drops the span and counts it. Never: a text of a caller. Names and values are of this
//! program, so no body, id, name or credential gets into a span.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rand::Rng;
use tokio::sync::mpsc;

use super::{Counter, Page, catalogue};

/// Spans that wait for the exporter: some seconds of a busy node.
const WAITING_MAX: usize = 8192;

type TraceId = [u8; 16];
type SpanId = [u8; 8];

/// The encoding of a context between nodes: the trace id, then the span id.
pub const CONTEXT_BYTES: usize = 24;

/// Records the spans of one node.
pub struct Tracer {
    queue: mpsc::Sender<Finished>,
    /// How many of a hundred calls are followed, of those whose callers say nothing.
    percent: u32,
    exported: Counter,
    dropped: Counter,
}

/// What a span does, as seen from this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    Internal,
    /// Answers a caller or another node.
    Server,
    /// Waits for another node.
    Client,
}

/// A value of a span. There is no variant for a text that was made at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    Text(&'static str),
    Number(u64),
}

/// A span that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub parent: Option<SpanId>,
    pub name: &'static str,
    pub kind: SpanKind,
    pub began: SystemTime,
    pub took: Duration,
    pub values: Vec<(&'static str, Value)>,
    /// The code of the error it ended with.
    pub failed: Option<&'static str>,
}

/// A place in a trace: new spans may be its children.
#[derive(Clone)]
pub struct Context {
    tracer: Arc<Tracer>,
    trace_id: TraceId,
    span_id: SpanId,
}

/// A step that is under way.
pub struct Span {
    context: Context,
    parent: Option<SpanId>,
    name: &'static str,
    kind: SpanKind,
    began: SystemTime,
    started: Instant,
    values: Vec<(&'static str, Value)>,
    failed: Option<&'static str>,
    is_discarded: bool,
}

tokio::task_local! {
    static CURRENT: Option<Context>;
}

impl Tracer {
    /// The other end of the queue is for the exporter.
    pub fn new(percent: u32) -> (Arc<Tracer>, mpsc::Receiver<Finished>) {
        let (queue, spans) = mpsc::channel(WAITING_MAX);
        let tracer = Tracer { queue, percent, exported: Counter::default(), dropped: Counter::default() };
        (Arc::new(tracer), spans)
    }

    /// The span of a call. The caller's `traceparent` decides whether the call is followed; without one, chance does.
    pub fn call(self: &Arc<Self>, name: &'static str, traceparent: Option<&str>) -> Option<Span> {
        let (trace_id, parent) = match traceparent {
            Some(given) => {
                let (trace_id, parent, is_sampled) = parse(given)?;
                if !is_sampled {
                    return None;
                }
                (trace_id, Some(parent))
            }
            None if rand::rng().random_range(0..100) < self.percent => (new_id(), None),
            None => return None,
        };
        Some(Span::new(self.clone(), trace_id, parent, name, SpanKind::Server))
    }

    /// A span whose parent is on another node. `None` if the bytes are no context.
    pub fn remote(self: &Arc<Self>, context: &[u8], name: &'static str) -> Option<Span> {
        let context: &[u8; CONTEXT_BYTES] = context.try_into().ok()?;
        let (trace_id, parent) = context.split_at(16);
        let (trace_id, parent) = (trace_id.try_into().ok()?, parent.try_into().ok()?);
        Some(Span::new(self.clone(), trace_id, Some(parent), name, SpanKind::Server))
    }

    pub fn count_exported(&self, spans: usize) {
        self.exported.add(spans as u64);
    }

    pub fn count_dropped(&self, spans: usize) {
        self.dropped.add(spans as u64);
    }

    pub fn measure(&self, page: &mut Page) {
        page.whole(catalogue::SPANS_EXPORTED, self.exported.value());
        page.whole(catalogue::SPANS_DROPPED, self.dropped.value());
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.traceparent())
    }
}

impl Context {
    pub fn child(&self, name: &'static str, kind: SpanKind) -> Span {
        Span::new(self.tracer.clone(), self.trace_id, Some(self.span_id), name, kind)
    }

    /// For another node of this cluster.
    pub fn to_bytes(&self) -> [u8; CONTEXT_BYTES] {
        let mut bytes = [0; CONTEXT_BYTES];
        bytes[..16].copy_from_slice(&self.trace_id);
        bytes[16..].copy_from_slice(&self.span_id);
        bytes
    }

    /// For other programs.
    pub fn traceparent(&self) -> String {
        format!("00-{:032x}-{:016x}-01", u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id))
    }
}

impl Span {
    fn new(tracer: Arc<Tracer>, trace_id: TraceId, parent: Option<SpanId>, name: &'static str, kind: SpanKind) -> Span {
        Span {
            context: Context { tracer, trace_id, span_id: new_id() },
            parent,
            name,
            kind,
            began: SystemTime::now(),
            started: Instant::now(),
            values: Vec::new(),
            failed: None,
            is_discarded: false,
        }
    }

    pub fn context(&self) -> Context {
        self.context.clone()
    }

    pub fn with(mut self, name: &'static str, value: Value) -> Span {
        self.note(name, value);
        self
    }

    pub fn note(&mut self, name: &'static str, value: Value) {
        self.values.push((name, value));
    }

    /// `None`: it ended well.
    pub fn ends_with(&mut self, failed: Option<&'static str>) {
        self.failed = failed;
    }

    /// Nothing happened that is worth a span.
    pub fn discard(mut self) {
        self.is_discarded = true;
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if self.is_discarded {
            return;
        }
        let finished = Finished {
            trace_id: self.context.trace_id,
            span_id: self.context.span_id,
            parent: self.parent,
            name: self.name,
            kind: self.kind,
            began: self.began,
            took: self.started.elapsed(),
            values: std::mem::take(&mut self.values),
            failed: self.failed,
        };
        if self.context.tracer.queue.try_send(finished).is_err() {
            self.context.tracer.dropped.count();
        }
    }
}

/// The place in a trace where the current task is, if its call is followed.
pub fn current() -> Option<Context> {
    CURRENT.try_with(Clone::clone).ok().flatten()
}

/// A step of the call of the current task, if the call is followed.
pub fn step(name: &'static str, kind: SpanKind) -> Option<Span> {
    CURRENT.try_with(|current| current.as_ref().map(|current| current.child(name, kind))).ok().flatten()
}

/// Runs a part of a call. The steps that it takes are children of the span.
///
/// Not an `async fn`: that would hold the work twice, and it is large.
pub fn within<F: Future>(span: Option<&Span>, work: F) -> impl Future<Output = F::Output> + use<F> {
    CURRENT.scope(span.map(Span::context), work)
}

/// Ids are random, and zero stands for none.
fn new_id<const BYTES: usize>() -> [u8; BYTES] {
    let mut id = [0; BYTES];
    rand::rng().fill(&mut id[..]);
    id[BYTES - 1] |= u8::from(id == [0; BYTES]);
    id
}

/// The trace id and the parent of a `traceparent`, and whether its trace is recorded.
fn parse(given: &str) -> Option<(TraceId, SpanId, bool)> {
    let mut parts = given.split('-').skip(1);
    let trace_id = u128::from_str_radix(parts.next()?, 16).ok().filter(|id| *id != 0)?;
    let parent = u64::from_str_radix(parts.next()?, 16).ok().filter(|id| *id != 0)?;
    let flags = u8::from_str_radix(parts.next()?, 16).ok()?;
    Some((trace_id.to_be_bytes(), parent.to_be_bytes(), flags & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[tokio::test]
    async fn the_steps_of_a_call_are_children_of_the_span_around_them() {
        let (tracer, mut spans) = Tracer::new(0);
        assert!(current().is_none() && step("alone", SpanKind::Internal).is_none());
        let call = tracer.call("session::append", Some(GIVEN)).unwrap();
        assert!(call.context().traceparent().starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"));
        within(Some(&call), async {
            let outer = step("forward", SpanKind::Client).unwrap().with("attempt", Value::Number(1));
            within(Some(&outer), async { drop(step("query", SpanKind::Internal)) }).await;
        })
        .await;
        drop(call);
        let ended: Vec<Finished> = std::iter::from_fn(|| spans.try_recv().ok()).collect();
        assert_eq!(ended.iter().map(|span| span.name).collect::<Vec<_>>(), ["query", "forward", "session::append"]);
        assert_eq!(ended[0].parent, Some(ended[1].span_id));
        assert_eq!(ended[1].parent, Some(ended[2].span_id));
        assert_eq!(ended[2].parent, Some(0x00f0_67aa_0ba9_02b7_u64.to_be_bytes()));
        assert_eq!(ended[1].values, [("attempt", Value::Number(1))]);
    }

    #[test]
    fn the_caller_decides_whether_its_call_is_followed() {
        let (never, _spans) = Tracer::new(0);
        let (always, _spans) = Tracer::new(100);
        assert!(never.call("f", None).is_none() && always.call("f", None).is_some());
        assert!(never.call("f", Some(GIVEN)).is_some());
        let not_sampled = format!("{}00", &GIVEN[..GIVEN.len() - 2]);
        assert!(always.call("f", Some(&not_sampled)).is_none());
        let without_id = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        assert!(always.call("f", Some(without_id)).is_none());
    }

    #[test]
    fn a_context_of_another_node_is_continued_and_other_bytes_are_not() {
        let (tracer, mut spans) = Tracer::new(100);
        let sent = tracer.call("f", None).unwrap();
        drop(tracer.remote(&sent.context().to_bytes(), "propose").unwrap());
        let received = spans.try_recv().unwrap();
        assert_eq!((received.parent, received.trace_id), (Some(sent.context.span_id), sent.context.trace_id));
        assert!(tracer.remote(b"", "propose").is_none() && tracer.remote(&[1; 25], "propose").is_none());
    }

    #[test]
    fn spans_past_the_queue_are_dropped_and_counted() {
        let (tracer, mut spans) = Tracer::new(100);
        for _ in 0..WAITING_MAX + 7 {
            drop(tracer.call("f", None));
        }
        assert_eq!(tracer.dropped.value(), 7);
        tracer.call("f", None).unwrap().discard();
        assert_eq!(tracer.dropped.value(), 7);
        assert_eq!(std::iter::from_fn(|| spans.try_recv().ok()).count(), WAITING_MAX);
    }
}
