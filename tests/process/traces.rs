//! Traces: one call through a follower of a real cluster, in an OTLP collector of the test, with every hop; what a span
//! never holds; and a collector that is not there.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::client::user_message;
use crate::exposition::Exposition;
use crate::node::NodeProcess;
use crate::plain_http::{get, request, until};
use crate::three_nodes::ThreeNodes;

const SETTLE_MAX: Duration = Duration::from_secs(30);
const CALLERS_SPAN: &str = "00f067aa0ba902b7";

fn traceparent(trace: &str) -> String {
    format!("00-{trace}-{CALLERS_SPAN}-01")
}

/// Takes what nodes export: OTLP over HTTP in its JSON encoding.
struct Collector {
    address: SocketAddr,
    /// The bodies of all requests.
    bodies: Arc<Mutex<Vec<String>>>,
}

/// A span with the node that it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    node: String,
    name: String,
    id: String,
    parent: String,
    kind: u64,
    failed: String,
    values: HashMap<String, String>,
}

impl Collector {
    async fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bodies: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = bodies.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(take(stream, kept.clone()));
            }
        });
        Collector { address, bodies }
    }

    fn text(&self) -> String {
        self.bodies.lock().unwrap().join("\n")
    }

    /// The spans of one trace so far.
    fn spans(&self, trace: &str) -> Vec<Seen> {
        let mut seen = Vec::new();
        for body in self.bodies.lock().unwrap().iter() {
            let body: Value = serde_json::from_str(body).expect("JSON");
            for resource in body["resourceSpans"].as_array().expect("resources") {
                let node = values(&resource["resource"])["service.instance.id"].clone();
                for span in resource["scopeSpans"][0]["spans"].as_array().expect("spans") {
                    if span["traceId"] == trace {
                        seen.push(read(&node, span));
                    }
                }
            }
        }
        seen
    }

    /// The spans of one trace, when they are as wanted.
    async fn until(&self, trace: &str, complete: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
        let begun = tokio::time::Instant::now();
        loop {
            let spans = self.spans(trace);
            if complete(&spans) {
                return spans;
            }
            assert!(begun.elapsed() < SETTLE_MAX, "the trace is not complete: {spans:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn take(stream: TcpStream, kept: Arc<Mutex<Vec<String>>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
        assert!(head.to_lowercase().contains("content-type: application/json"), "{head}");
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.expect("a whole body");
        kept.lock().unwrap().push(String::from_utf8(body).expect("text"));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
    }
}

fn values(holder: &Value) -> HashMap<String, String> {
    let text = |value: &Value| {
        let text = value["stringValue"].as_str().or_else(|| value["intValue"].as_str());
        text.expect("a text or a number").to_owned()
    };
    let attributes = holder["attributes"].as_array().expect("attributes");
    attributes.iter().map(|row| (row["key"].as_str().unwrap().to_owned(), text(&row["value"]))).collect()
}

fn read(node: &str, span: &Value) -> Seen {
    let text = |key: &str| span[key].as_str().unwrap_or_default().to_owned();
    let nanos = |key: &str| text(key).parse::<u64>().expect("nanoseconds");
    assert!(nanos("startTimeUnixNano") > 0 && nanos("endTimeUnixNano") >= nanos("startTimeUnixNano"), "{span}");
    Seen {
        node: node.to_owned(),
        name: text("name"),
        id: text("spanId"),
        parent: text("parentSpanId"),
        kind: span["kind"].as_u64().expect("a kind"),
        failed: span["status"]["message"].as_str().unwrap_or_default().to_owned(),
        values: values(span),
    }
}

/// The only span with this name that is a child of `parent`.
fn child<'a>(spans: &'a [Seen], parent: &str, name: &str) -> &'a Seen {
    let found: Vec<&Seen> = spans.iter().filter(|span| span.name == name && span.parent == parent).collect();
    let [one] = found[..] else { panic!("one {name} below {parent}: {spans:#?}") };
    one
}

async fn cluster(dir: &std::path::Path, collector: &Collector) -> (ThreeNodes, usize) {
    let config = dir.join("settings.yaml");
    let settings = format!("otlp_endpoint: http://{}\notlp_sample_percent: 0\n", collector.address);
    std::fs::write(&config, settings).unwrap();
    let nodes = ThreeNodes::start_with(dir, &["--config", config.to_str().unwrap()]).await;
    let mut leader = None;
    while leader.is_none() {
        for (rank, address) in nodes.addresses().into_iter().enumerate() {
            let (_, page) = get(address, "/metrics").await;
            if Exposition::read(&page).sum("session_manager_is_leader", &[]) == 1.0 {
                leader = Some(rank);
            }
        }
    }
    (nodes, leader.unwrap())
}

struct RawBus(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl RawBus {
    async fn connect(node: &NodeProcess) -> RawBus {
        RawBus(connect_async(node.url()).await.expect("the bus accepts").0)
    }

    async fn send(&mut self, frame: Value) {
        self.0.send(Message::text(frame.to_string())).await.expect("the frame is sent");
    }

    async fn next(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        let reading = async {
            loop {
                let message = self.0.next().await.expect("a frame").expect("a whole frame");
                if let Message::Text(text) = message {
                    let frame: Value = serde_json::from_str(&text).expect("JSON");
                    if wanted(&frame) {
                        return frame;
                    }
                }
            }
        };
        tokio::time::timeout(SETTLE_MAX, reading).await.expect("the frame in time")
    }

    /// The answer of a call with a `traceparent`.
    async fn call(&mut self, function: &str, data: Value, trace: &str) -> Value {
        let id = uuid::Uuid::new_v4().to_string();
        let frame = json!({ "type": "invokefunction", "invocation_id": id, "function_id": function, "data": data,
                            "traceparent": traceparent(trace) });
        self.send(frame).await;
        let answer = self.next(|frame| frame["invocation_id"] == json!(id)).await;
        assert!(answer["error"].is_null(), "{answer}");
        answer["result"].clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_through_a_follower_is_one_trace_with_every_hop() {
    let collector = Collector::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (nodes, leader) = cluster(dir.path(), &collector).await;
    let (follower, third) = ((leader + 1) % 3, (leader + 2) % 3);
    let named = |rank: usize| format!("node-{}", rank + 1);

    // A subscriber at the third node: the trace goes on to it.
    let mut subscriber = RawBus::connect(&nodes.0[third]).await;
    subscriber.send(json!({ "type": "registerfunction", "id": "test::heard" })).await;
    let binding = json!({ "type": "registertrigger", "id": "b", "trigger_type": "session::message-added",
                          "function_id": "test::heard", "config": {} });
    subscriber.send(binding).await;
    let ready = "11111111111111111111111111111111";
    subscriber.call("session::get", json!({ "session_id": "nobody" }), ready).await;

    // Over HTTP.
    let created = "22222222222222222222222222222222";
    let header = format!("traceparent: {}", traceparent(created));
    let body = json!({ "title": "a-secret-title", "metadata": { "owner": "a-secret-owner" } }).to_string();
    let address = nodes.0[follower].address;
    let answer = request(address, "POST", "/v1/call/session::create", &[&header], &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let session: Value = serde_json::from_str(&answer.body).unwrap();
    let session = session["session_id"].as_str().unwrap().to_owned();
    let hops = ["session::create", "forward", "propose", "commit", "replicate", "append", "apply", "deliver"];
    let has_all = |spans: &[Seen]| {
        let count = |name: &str| spans.iter().filter(|span| span.name == name).count();
        hops.iter().all(|hop| count(hop) > 0) && count("apply") == 3 && count("append") == 2 && count("replicate") == 2
    };
    collector.until(created, has_all).await;

    // Over the bus.
    let appended = "33333333333333333333333333333333";
    let mut caller = RawBus::connect(&nodes.0[follower]).await;
    let append = json!({ "session_id": session, "message": user_message("a-secret-text") });
    caller.call("session::append", append, appended).await;
    let heard = subscriber.next(|frame| frame["function_id"] == "test::heard").await;
    let whole = |spans: &[Seen]| {
        let of = |name: &str| spans.iter().filter(|span| span.name == name).count();
        (of("replicate"), of("append"), of("apply"), of("deliver")) == (2, 2, 3, 3) && of("session::append") == 1
    };
    let spans = collector.until(appended, whole).await;

    let call = child(&spans, CALLERS_SPAN, "session::append");
    assert_eq!((&call.node, call.kind, &*call.failed), (&named(follower), 2, ""), "{call:?}");
    assert_eq!(call.values["door"], "bus");
    let forward = child(&spans, &call.id, "forward");
    assert_eq!((&forward.node, forward.kind), (&named(follower), 3));
    let propose = child(&spans, &forward.id, "propose");
    assert_eq!((&propose.node, propose.kind), (&named(leader), 2));
    let commit = child(&spans, &propose.id, "commit");
    assert_eq!(commit.node, named(leader));
    let on_leader = child(&spans, &commit.id, "apply");
    assert_eq!(on_leader.node, named(leader));
    assert_eq!(child(&spans, &on_leader.id, "deliver").node, named(leader));
    for rank in [follower, third] {
        let to = (rank + 1).to_string();
        let sent = |span: &&Seen| span.name == "replicate" && span.values["to_node"] == to;
        let replicate = spans.iter().find(sent).expect("one request for each follower");
        assert_eq!((&replicate.parent, &replicate.node, &*replicate.failed), (&commit.id, &named(leader), ""));
        let append = child(&spans, &replicate.id, "append");
        let apply = child(&spans, &append.id, "apply");
        let deliver = child(&spans, &apply.id, "deliver");
        assert_eq!([&append.node, &apply.node, &deliver.node], [&named(rank); 3]);
        assert_eq!(append.values["log_index"], on_leader.values["log_index"]);
        assert_eq!(deliver.values["subscribers"], if rank == third { "1" } else { "0" });
        if rank == third {
            let told = heard["traceparent"].as_str().expect("the subscriber is told").to_owned();
            assert_eq!(told, format!("00-{appended}-{}-01", deliver.id));
        }
    }

    // A read through a follower: what it waited for.
    let listed = "44444444444444444444444444444444";
    caller.call("session::messages", json!({ "session_id": session }), listed).await;
    let done = |spans: &[Seen]| spans.iter().any(|span| span.name == "session::messages");
    let spans = collector.until(listed, done).await;
    let read = child(&spans, CALLERS_SPAN, "session::messages");
    assert_eq!(child(&spans, &read.id, "read index").node, named(follower));
    assert_eq!(child(&spans, &read.id, "query").node, named(follower));

    // A call that fails says how, and a name that its caller made up is not repeated.
    let failed = "55555555555555555555555555555555";
    let header = format!("traceparent: {}", traceparent(failed));
    request(address, "POST", "/v1/call/made::up-secret", &[&header], "{}").await;
    let spans = collector.until(failed, |spans| !spans.is_empty()).await;
    assert_eq!((&*spans[0].name, &*spans[0].failed), ("unknown", "function_not_found"), "{spans:?}");

    // Not followed: the caller says no, or says nothing while none of a hundred is taken.
    let silent = "66666666666666666666666666666666";
    let header = format!("traceparent: 00-{silent}-{CALLERS_SPAN}-00");
    let get_it = json!({ "session_id": session }).to_string();
    assert_eq!(request(address, "POST", "/v1/call/session::get", &[&header], &get_it).await.status, 200);
    assert_eq!(request(address, "POST", "/v1/call/session::get", &[], &get_it).await.status, 200);
    let last = "77777777777777777777777777777777";
    caller.call("session::get", json!({ "session_id": session }), last).await;
    collector.until(last, |spans| !spans.is_empty()).await;
    assert!(collector.spans(silent).is_empty());
    let text = collector.text();
    for secret in ["secret", session.as_str(), "127.0.0.1"] {
        assert!(!text.contains(secret), "spans hold {secret:?}");
    }
    assert_eq!(text.matches("\"name\":\"session::get\"").count(), 2, "only the two calls that were to be followed");
    for address in nodes.addresses() {
        let (_, page) = get(address, "/metrics").await;
        let page = Exposition::read(&page);
        assert!(page.sum("session_manager_spans_exported_total", &[]) > 0.0);
        assert_eq!(page.sum("session_manager_spans_dropped_total", &[]), 0.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_not_there_costs_spans_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    // A port that nobody listens on.
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let config = dir.path().join("settings.yaml");
    std::fs::write(&config, format!("otlp_endpoint: http://{nobody}\notlp_sample_percent: 100\n")).unwrap();
    let node = NodeProcess::start(&dir.path().join("data"), &["--config", config.to_str().unwrap()]);
    for _ in 0..20 {
        let answer = request(node.address, "POST", "/v1/call/session::create", &[], "{}").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    until(node.address, "/metrics", |_, page| {
        Exposition::read(page).sum("session_manager_spans_dropped_total", &[]) >= 20.0
    })
    .await;
    assert!(node.log().contains("a collector did not take spans"), "{}", node.log());
    node.signal("TERM");
    assert!(node.wait().success());
}
