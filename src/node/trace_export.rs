//! Owns: sending the spans of this node to an OpenTelemetry collector: OTLP over HTTP, in its JSON encoding.
//! Never: delay a call. Spans wait in a bounded queue (`metrics/trace.rs`). What a collector does not take is dropped,
//! counted and not sent again.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::{CONTENT_TYPE, HOST};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use crate::access::tls::{ClientTls, TlsError};
use crate::config::{Collector, Config};
use crate::metrics::trace::{Finished, SpanKind, Tracer, Value};
use crate::sockets::{Sockets, Stream};

/// Spans of one request: about 200 KiB.
const BATCH_SPANS: usize = 512;
/// How long the first span of a request waits for more.
const BATCH_WAIT: Duration = Duration::from_millis(500);
/// A collector that takes longer has lost the request.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// How long a node that stops waits for its last spans.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// A collector that is away is reported this often.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// The answer of a collector is not read beyond this.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The tracer of a node, and the task that exports its spans.
pub struct TraceExport {
    pub tracer: Arc<Tracer>,
    closing: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl TraceExport {
    /// `None` if the configuration names no collector. A collector that does not answer is no reason not to start.
    pub fn start(config: &Config, sockets: Arc<dyn Sockets>) -> Result<Option<TraceExport>, TlsError> {
        let Some(collector) = config.otlp_collector() else { return Ok(None) };
        let tls = collector.has_tls.then(|| ClientTls::load(None).map(ClientTls::http1_only)).transpose()?;
        let (tracer, spans) = Tracer::new(config.otlp_sample_percent);
        let closing = CancellationToken::new();
        let resource = json!({ "attributes": [
            attribute("service.name", json!({ "stringValue": "session-manager" })),
            attribute("service.version", json!({ "stringValue": env!("CARGO_PKG_VERSION") })),
            attribute("service.instance.id", json!({ "stringValue": format!("node-{}", config.node_id) })),
        ] });
        info!(collector = collector.address, "spans are sent to a collector");
        let exporter =
            Exporter { tracer: tracer.clone(), collector, tls, sockets, resource, open: None, reported: None };
        let task = AbortOnDropHandle::new(tokio::spawn(exporter.run(spans, closing.clone())));
        Ok(Some(TraceExport { tracer, closing, task }))
    }

    /// Sends what waits, within a bound.
    pub async fn stop(self) {
        self.closing.cancel();
        // Spans that are not taken by then are lost with the process.
        let _ = timeout(FLUSH_MAX, self.task).await;
    }
}

struct Exporter {
    tracer: Arc<Tracer>,
    collector: Collector,
    tls: Option<ClientTls>,
    sockets: Arc<dyn Sockets>,
    /// What all spans have in common.
    resource: Json,
    /// Kept from one request to the next.
    open: Option<SendRequest<Body>>,
    /// When a failure was logged last.
    reported: Option<Instant>,
}

impl Exporter {
    async fn run(mut self, mut spans: mpsc::Receiver<Finished>, closing: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH_SPANS);
        loop {
            tokio::select! {
                taken = spans.recv_many(&mut batch, BATCH_SPANS) => if taken == 0 { return },
                () = closing.cancelled() => spans.close(),
            }
            let more = async {
                loop {
                    let room = BATCH_SPANS - batch.len();
                    if room == 0 || spans.recv_many(&mut batch, room).await == 0 {
                        break;
                    }
                }
            };
            tokio::select! {
                _ = timeout(BATCH_WAIT, more) => {}
                () = closing.cancelled() => {}
            }
            if !batch.is_empty() {
                self.export(std::mem::take(&mut batch)).await;
            }
        }
    }

    async fn export(&mut self, batch: Vec<Finished>) {
        let count = batch.len();
        match timeout(REQUEST_MAX, self.send(print(&self.resource, &batch))).await {
            Ok(Ok(())) => return self.tracer.count_exported(count),
            Ok(Err(error)) => self.report(count, &error.to_string()),
            Err(_) => self.report(count, "it does not answer"),
        }
        // A connection that failed is in an unknown state.
        self.open = None;
        self.tracer.count_dropped(count);
    }

    fn report(&mut self, spans: usize, why: &str) {
        if self.reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
            self.reported = Some(Instant::now());
            warn!(collector = self.collector.address, why, spans, "a collector did not take spans; they are dropped");
        }
    }

    /// One request. If the collector closed the connection meanwhile, a new one is tried.
    async fn send(&mut self, body: String) -> io::Result<()> {
        let mut connection = match self.open.take() {
            Some(open) if !open.is_closed() => open,
            Some(_) | None => self.connect().await?,
        };
        let request = Request::post(&self.collector.path)
            .header(HOST, &self.collector.address)
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(io::Error::other)?;
        connection.ready().await.map_err(io::Error::other)?;
        let answer = connection.send_request(request).await.map_err(io::Error::other)?;
        let status = answer.status();
        to_bytes(Body::new(answer.into_body()), ANSWER_BYTES_MAX).await.map_err(io::Error::other)?;
        if !status.is_success() {
            return Err(io::Error::other(format!("it answers {status}")));
        }
        self.open = Some(connection);
        Ok(())
    }

    async fn connect(&self) -> io::Result<SendRequest<Body>> {
        let plain = self.sockets.connect(self.collector.address.clone()).await?;
        let stream: Stream = match &self.tls {
            Some(tls) => Box::new(tls.connect(&self.collector.host, plain).await?),
            None => plain,
        };
        let (connection, driver) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        // Ends with the connection. Its errors appear in the request that they break.
        tokio::spawn(driver);
        Ok(connection)
    }
}

/// One request of OTLP in its JSON encoding. Ids are hex and 64-bit numbers are texts there.
fn print(resource: &Json, batch: &[Finished]) -> String {
    let spans: Vec<Json> = batch.iter().map(span).collect();
    let scope = json!({ "name": "session-manager", "version": env!("CARGO_PKG_VERSION") });
    let of_scope = json!([{ "scope": scope, "spans": spans }]);
    json!({ "resourceSpans": [{ "resource": resource, "scopeSpans": of_scope }] }).to_string()
}

fn span(span: &Finished) -> Json {
    let began = span.began.duration_since(UNIX_EPOCH).unwrap_or_default();
    let kind = match span.kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
    };
    let status = match span.failed {
        Some(code) => json!({ "code": 2, "message": code }),
        None => json!({}),
    };
    json!({
        "traceId": hex(&span.trace_id),
        "spanId": hex(&span.span_id),
        "parentSpanId": span.parent.map_or_else(String::new, |parent| hex(&parent)),
        "name": span.name,
        "kind": kind,
        "startTimeUnixNano": began.as_nanos().to_string(),
        "endTimeUnixNano": (began + span.took).as_nanos().to_string(),
        "attributes": span.values.iter().map(|(name, value)| attribute(name, printed(*value))).collect::<Vec<_>>(),
        "status": status,
    })
}

fn printed(value: Value) -> Json {
    match value {
        Value::Text(text) => json!({ "stringValue": text }),
        Value::Number(number) => json!({ "intValue": number.to_string() }),
    }
}

fn attribute(name: &str, value: Json) -> Json {
    json!({ "key": name, "value": value })
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_printed_as_otlp_json() {
        let ended = Finished {
            trace_id: [0xab; 16],
            span_id: [1; 8],
            parent: Some([2; 8]),
            name: "forward",
            kind: SpanKind::Client,
            began: UNIX_EPOCH + Duration::from_secs(5),
            took: Duration::from_millis(3),
            values: vec![("to_node", Value::Number(2)), ("door", Value::Text("bus"))],
            failed: Some("session/storage"),
        };
        let printed: Json = serde_json::from_str(&print(&json!({}), &[ended])).unwrap();
        assert_eq!(
            printed["resourceSpans"][0]["scopeSpans"][0]["spans"][0],
            json!({
                "traceId": "abababababababababababababababab",
                "spanId": "0101010101010101",
                "parentSpanId": "0202020202020202",
                "name": "forward",
                "kind": 3,
                "startTimeUnixNano": "5000000000",
                "endTimeUnixNano": "5003000000",
                "attributes": [
                    { "key": "to_node", "value": { "intValue": "2" } },
                    { "key": "door", "value": { "stringValue": "bus" } },
                ],
                "status": { "code": 2, "message": "session/storage" },
            })
        );
    }
}
