//! The laws of a bridge when its main is lost, refuses, fails halfway or is not a main. Without sockets.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::connection::{CallFailure, CallFuture, ConnectFuture, Connection, OnEvent};
use super::*;
use crate::events::Committed;
use crate::machine::Command;
use crate::machine::apply::append::AppendEntry;
use crate::machine::entry::Body;
use crate::machine::json::Json;
use crate::mint::SystemMint;

type Answers = Box<dyn Fn(&str, &Value) -> Result<Value, CallFailure> + Send + Sync>;

/// Buses by url, and the calls they received: url, function, body.
#[derive(Clone, Default)]
struct Network {
    buses: Arc<BTreeMap<String, FakeBus>>,
    calls: Arc<Mutex<Vec<(String, String, Value)>>>,
    subscribers: Arc<Mutex<Vec<OnEvent>>>,
}

struct FakeBus {
    answers: Answers,
    /// The bus is lost after it has answered this function.
    lost_after: Option<&'static str>,
    lost: CancellationToken,
}

struct FakeConnection {
    url: String,
    network: Network,
}

/// An error as a bus sends it.
fn error(text: &str) -> CallFailure {
    CallFailure::from_bus("invocation_failed", text)
}

impl FakeBus {
    /// A main of this project.
    fn deciding(instance: &'static str, cluster: &'static str) -> FakeBus {
        FakeBus::new(move |function, _| match function {
            "session::store::about" => Ok(json!({
                "instance": instance, "cluster": cluster, "position": format!("{cluster}.0.7.0"), "now_ms": 5_000,
            })),
            _ => Ok(json!({ "by": instance })),
        })
    }

    fn new(answers: impl Fn(&str, &Value) -> Result<Value, CallFailure> + Send + Sync + 'static) -> FakeBus {
        FakeBus { answers: Box::new(answers), lost_after: None, lost: CancellationToken::new() }
    }
}

impl Network {
    fn of(buses: impl IntoIterator<Item = (&'static str, FakeBus)>) -> Network {
        let buses = buses.into_iter().map(|(url, bus)| (url.to_owned(), bus)).collect();
        Network { buses: Arc::new(buses), ..Network::default() }
    }

    fn bodies(&self, function: &str) -> Vec<Value> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|(_, called, _)| called == function).map(|(_, _, body)| body.clone()).collect()
    }

    async fn bridge(&self, urls: &[&str]) -> Result<BridgeAdapter, BridgeError> {
        let address = |url: &&str| Address { key: format!("urls.{url}"), url: url.to_string(), shown: url.to_string() };
        let settings = BridgeSettings {
            mains: urls.iter().map(address).collect(),
            timeout: Duration::from_millis(400),
            instance: "me".to_owned(),
        };
        let mint = Arc::new(SystemMint::default());
        BridgeAdapter::open(settings, Arc::new(self.clone()), mint, Arc::new(NoSubscribers), None).await
    }
}

struct NoSubscribers;

impl EventSink for NoSubscribers {
    fn publish(&self, _events: Vec<Arc<Committed>>) {}
}

impl Connector for Network {
    fn connect<'a>(&'a self, url: &'a str, _within: Duration) -> ConnectFuture<'a> {
        let reachable = self.buses.get(url).is_some_and(|bus| !bus.lost.is_cancelled());
        let connection: Arc<dyn Connection> = Arc::new(FakeConnection { url: url.to_owned(), network: self.clone() });
        let refused = BridgeError::Unreachable("connection refused".to_owned());
        std::future::ready(reachable.then_some(connection).ok_or(refused)).boxed()
    }
}

impl Connection for FakeConnection {
    fn call<'a>(&'a self, function_id: &'a str, body: Value, _within: Duration) -> CallFuture<'a> {
        let bus = &self.network.buses[&self.url];
        let answer = match bus.lost.is_cancelled() {
            true => Err(CallFailure::NotSent("gone".to_owned())),
            false => (bus.answers)(function_id, &body),
        };
        if bus.lost_after == Some(function_id) {
            bus.lost.cancel();
        }
        self.network.calls.lock().unwrap().push((self.url.clone(), function_id.to_owned(), body));
        std::future::ready(answer).boxed()
    }

    fn subscribe(&self, _after: Option<&str>, on_event: OnEvent) -> Result<(), BridgeError> {
        self.network.subscribers.lock().unwrap().push(on_event);
        Ok(())
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        self.network.buses[&self.url].lost.cancelled().boxed()
    }

    fn close(&self) {}
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

async fn relay(bridge: &BridgeAdapter, function_id: &str, intent: Intent) -> Result<Value, AdapterError> {
    let call = Relayed { function_id, body: r#"{"session_id":"s"}"#, intent };
    let answer = bridge.relay(call, soon()).expect("the main decides").await?;
    Ok(serde_json::from_str(&answer).expect("an answer is JSON"))
}

#[tokio::test]
async fn a_mutation_whose_main_is_lost_is_retried_at_the_next_one_with_the_same_request_id() {
    let first = FakeBus { lost_after: Some("session::store::propose"), ..FakeBus::deciding("one", "c") };
    let lost = FakeBus::new(move |function, body| match function {
        "session::store::propose" => Err(CallFailure::OutcomeUnknown("lost".to_owned())),
        _ => (first.answers)(function, body),
    });
    let lost = FakeBus { lost_after: Some("session::store::propose"), ..lost };
    let network = Network::of([("a", lost), ("b", FakeBus::deciding("two", "c"))]);
    let bridge = network.bridge(&["a", "b"]).await.unwrap();
    let answer = relay(&bridge, "session::append", Intent::Change).await.unwrap();
    assert_eq!(answer, json!({ "by": "two" }));
    let sent = network.bodies("session::store::propose");
    assert_eq!((sent.len(), &sent[0]), (2, &sent[1]));
    assert_eq!(sent[0]["function"], "session::append");
    assert_eq!(sent[0]["request"], json!({ "session_id": "s" }));
    // The request id carries the main's time.
    let at_ms = u64::from_str_radix(&sent[0]["request_id"].as_str().unwrap()[..12], 16).unwrap();
    assert!((5_000..60_000).contains(&at_ms), "{at_ms}");
}

#[tokio::test]
async fn a_refusal_is_final_and_a_failure_of_the_main_is_tried_again() {
    let turn = Mutex::new(0);
    let main = FakeBus::new(move |function, _| match function {
        "session::store::about" => Ok(json!({ "instance": "one", "cluster": "c", "now_ms": 1 })),
        "session::get" => {
            *turn.lock().unwrap() += 1;
            match *turn.lock().unwrap() {
                1 => Err(error("session/storage: no leader")),
                _ => Ok(json!("at last")),
            }
        }
        _ => Err(error("session/not_found: no session \"s\"")),
    });
    let bridge = Network::of([("a", main)]).bridge(&["a"]).await.unwrap();
    let read = Intent::Read { page: None };
    assert_eq!(relay(&bridge, "session::get", read).await, Ok(json!("at last")));
    let refused = relay(&bridge, "session::append", Intent::Change).await.unwrap_err();
    assert_eq!(refused.to_string(), "session/not_found: no session \"s\"");
}

#[tokio::test]
async fn a_missing_answer_makes_the_outcome_of_a_mutation_unknown_but_not_of_a_read() {
    let main = FakeBus::new(|function, _| match function {
        "session::store::about" => Ok(json!({ "instance": "one", "cluster": "c", "now_ms": 1 })),
        _ => Err(CallFailure::OutcomeUnknown("no answer".to_owned())),
    });
    let bridge = Network::of([("a", main)]).bridge(&["a"]).await.unwrap();
    let changed = relay(&bridge, "session::append", Intent::Change).await.unwrap_err();
    assert!(matches!(changed, AdapterError::OutcomeUnknown(_)), "{changed}");
    let read = relay(&bridge, "session::list", Intent::Read { page: Some(5) }).await.unwrap_err();
    assert!(matches!(read, AdapterError::Unavailable(_)), "{read}");
}

#[tokio::test]
async fn a_bridge_refuses_itself_and_everything_that_is_not_a_main() {
    let empty = || FakeBus::new(|_, _| Err(CallFailure::NoSuchFunction));
    let edge = FakeBus::new(|_, _| {
        let words = "session/invalid_request: it is served only where the data lives: call the main of this bridge";
        Err(error(words))
    });
    let network = Network::of([("self", FakeBus::deciding("me", "c")), ("empty", empty()), ("edge", edge)]);
    let why = network.bridge(&["self"]).await.err().unwrap();
    assert_eq!(why.to_string(), "urls.self: self: this very instance answers there: name the bus of its main");
    let why = network.bridge(&["empty", "edge", "dead"]).await.err().unwrap();
    assert_eq!(
        why.to_string(),
        "urls.empty: empty: no session-manager serves session::store::* there; \
         urls.edge: edge: a bridge answers there: name the main it is connected to; \
         urls.dead: dead: it cannot be reached: connection refused"
    );
}

#[tokio::test]
async fn a_main_of_another_cluster_does_not_replace_the_lost_one() {
    let lost = FakeBus { lost_after: Some("session::get"), ..FakeBus::deciding("one", "c") };
    let network = Network::of([("a", lost), ("b", FakeBus::deciding("two", "other"))]);
    let bridge = network.bridge(&["a", "b"]).await.unwrap();
    relay(&bridge, "session::get", Intent::Read { page: None }).await.unwrap();
    let why = relay(&bridge, "session::append", Intent::Change).await.unwrap_err();
    assert!(matches!(why, AdapterError::Unavailable(_)), "{why}");
    let calls = network.calls.lock().unwrap();
    assert!(calls.iter().all(|(url, function, _)| url == "a" || function == "session::store::about"), "{calls:?}");
}

/// A main that only stores records. It has one session, and one of its functions fails.
fn records(broken: &'static str) -> FakeBus {
    FakeBus::new(move |function, _| match function.strip_prefix("session::store::") {
        Some("about" | "propose") => Err(CallFailure::NoSuchFunction),
        Some(name) if name == broken => Err(error("session/storage: disk full")),
        Some("get-meta") => Ok(json!({
            "session_id": "s", "title": "", "description": "", "status": "idle", "message_count": 0,
            "created_at": 1, "updated_at": i64::MAX - 5,
        })),
        Some("get-active-leaf") => Ok(json!({ "entry_id": null })),
        Some("get-entry") => Ok(Value::Null),
        Some(_) => Ok(json!({ "ok": true })),
        None => Err(CallFailure::NoSuchFunction),
    })
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_mains_clock_reaches_the_request_ids_of_a_bridge_within_a_second() {
    const HOUR_MS: i64 = 3_600_000;
    let now_ms = Arc::new(std::sync::atomic::AtomicI64::new(HOUR_MS));
    let told = now_ms.clone();
    let main = FakeBus::new(move |function, _| match function {
        "session::store::about" => {
            let now_ms = told.load(std::sync::atomic::Ordering::SeqCst);
            Ok(json!({ "instance": "one", "cluster": "c", "now_ms": now_ms }))
        }
        _ => Ok(json!({})),
    });
    let network = Network::of([("a", main)]);
    let bridge = network.bridge(&["a"]).await.unwrap();
    let write = async || {
        let call = Relayed { function_id: "session::set-status", body: "{}", intent: Intent::Change };
        bridge.relay(call, Instant::now() + Duration::from_secs(60)).unwrap().await.unwrap();
        let proposals = network.bodies("session::store::propose");
        let id = proposals.last().unwrap()["request_id"].as_str().unwrap().to_owned();
        RequestId(u128::from_str_radix(&id, 16).unwrap()).issued_ms()
    };
    assert!((HOUR_MS..HOUR_MS + 1_000).contains(&write().await));
    // Forwards, as after a suspend, and back again.
    for step_ms in [48 * HOUR_MS, 2 * HOUR_MS] {
        now_ms.store(step_ms, std::sync::atomic::Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let issued_ms = write().await;
        assert!((step_ms..step_ms + 2_000).contains(&issued_ms), "{issued_ms}");
    }
}

fn append() -> Command {
    let body = Body::Custom { custom_type: "x".to_owned(), data: Json::adopt("1") };
    Command::Append(AppendEntry {
        session_id: "s".into(),
        entry_id: Some("e".into()),
        parent_id: None,
        origin: None,
        body,
    })
}

#[tokio::test]
async fn at_a_main_of_records_the_meta_is_written_last_and_the_events_are_published() {
    let network = Network::of([("a", records("nothing"))]);
    let bridge = network.bridge(&["a"]).await.unwrap();
    assert!(bridge.relay(Relayed { function_id: "x", body: "", intent: Intent::Change }, soon()).is_none());
    bridge.propose(Proposal::new(append(), soon())).await.unwrap();
    let written: Vec<String> = network.calls.lock().unwrap().iter().map(|(_, function, _)| function.clone()).collect();
    let writes = ["put-entry", "set-active-leaf", "put-meta", "publish-events"];
    let last: Vec<&str> = written[written.len() - 4..].iter().map(|id| &id["session::store::".len()..]).collect();
    assert_eq!(last, writes);
    let event = &network.bodies("session::store::publish-events")[0]["events"][0];
    assert_eq!(event["trigger_type"], "session::message-added");
    // Time never goes back behind the records of the main.
    assert_eq!(event["payload"]["timestamp"], i64::MAX - 5);
}

#[tokio::test]
async fn a_mutation_that_was_written_in_part_has_an_unknown_outcome() {
    for (broken, unknown) in [("put-entry", false), ("set-active-leaf", true), ("put-meta", true)] {
        let bridge = Network::of([("a", records(broken))]).bridge(&["a"]).await.unwrap();
        let undone = bridge.propose(Proposal::new(append(), soon())).await.unwrap_err();
        assert_eq!(matches!(undone, AdapterError::OutcomeUnknown(_)), unknown, "{broken}: {undone}");
        assert!(undone.to_string().contains("disk full"), "{undone}");
    }
    // A mutation succeeds even if its events cannot be published.
    let bridge = Network::of([("a", records("publish-events"))]).bridge(&["a"]).await.unwrap();
    bridge.propose(Proposal::new(append(), soon())).await.unwrap();
}

/// A main that names another node of its cluster.
fn naming(instance: &'static str, url: &'static str) -> FakeBus {
    let main = FakeBus::deciding(instance, "c");
    FakeBus::new(move |function, body| {
        let mut answer = (main.answers)(function, body)?;
        if function == "session::store::about" {
            answer["urls"] = json!([url]);
        }
        Ok(answer)
    })
}

#[tokio::test]
async fn a_lost_main_is_replaced_by_a_node_that_it_named() {
    let first = FakeBus { lost_after: Some("session::get"), ..naming("one", "ws://two") };
    let network = Network::of([("ws://one", first), ("ws://two", FakeBus::deciding("two", "c"))]);
    let bridge = network.bridge(&["ws://one"]).await.unwrap();
    let read = Intent::Read { page: None };
    assert_eq!(relay(&bridge, "session::get", read).await.unwrap(), json!({ "by": "one" }));
    assert_eq!(relay(&bridge, "session::list", read).await.unwrap(), json!({ "by": "two" }));
}

#[tokio::test]
async fn a_main_behind_tls_names_no_node_without() {
    let first = FakeBus { lost_after: Some("session::get"), ..naming("one", "ws://two") };
    let network = Network::of([("wss://one", first), ("ws://two", FakeBus::deciding("two", "c"))]);
    let bridge = network.bridge(&["wss://one"]).await.unwrap();
    let read = Intent::Read { page: None };
    relay(&bridge, "session::get", read).await.unwrap();
    assert!(relay(&bridge, "session::list", read).await.is_err());
    assert!(network.calls.lock().unwrap().iter().all(|(url, ..)| url == "wss://one"), "a token went over a plain wire");
}
