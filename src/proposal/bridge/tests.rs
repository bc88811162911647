//! The laws of a bridge before mains that are lost, foreign, refusing or half way through, without a socket.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::line::{CallFailure, Hear, Line};
use super::*;
use crate::events::Committed;
use crate::machine::apply::append::AppendEntry;
use crate::machine::entry::Body;
use crate::machine::json::Json;
use crate::proposal::mint::SystemMint;

type Answers = Box<dyn Fn(&str, &Value) -> Result<Value, CallFailure> + Send + Sync>;

/// Buses by url, and what was asked of them.
#[derive(Clone, Default)]
struct Town {
    houses: Arc<BTreeMap<String, House>>,
    asked: Arc<Mutex<Vec<(String, String, Value)>>>,
    heard: Arc<Mutex<Vec<Hear>>>,
}

struct House {
    answers: Answers,
    /// Whoever answers so is gone afterwards.
    gone_after: Option<&'static str>,
    gone: CancellationToken,
}

struct Wire {
    url: String,
    town: Town,
}

impl House {
    /// A main of this project.
    fn whole(instance: &'static str, cluster: &'static str) -> House {
        House::new(move |function, _| match function {
            "session::store::about" => Ok(json!({
                "instance": instance, "cluster": cluster, "position": format!("{cluster}.0.7.0"), "now_ms": 5_000,
            })),
            _ => Ok(json!({ "by": instance })),
        })
    }

    fn new(answers: impl Fn(&str, &Value) -> Result<Value, CallFailure> + Send + Sync + 'static) -> House {
        House { answers: Box::new(answers), gone_after: None, gone: CancellationToken::new() }
    }
}

impl Town {
    fn of(houses: impl IntoIterator<Item = (&'static str, House)>) -> Town {
        let houses = houses.into_iter().map(|(url, house)| (url.to_owned(), house)).collect();
        Town { houses: Arc::new(houses), ..Town::default() }
    }

    fn bodies(&self, function: &str) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(_, asked, _)| asked == function).map(|(_, _, body)| body.clone()).collect()
    }

    async fn bridge(&self, urls: &[&str]) -> Result<BridgeAdapter, String> {
        let address = |url: &&str| Address { key: format!("urls.{url}"), url: url.to_string(), shown: url.to_string() };
        let settings = BridgeSettings {
            mains: urls.iter().map(address).collect(),
            timeout: Duration::from_millis(400),
            instance: "me".to_owned(),
        };
        let mint = Arc::new(SystemMint::default());
        BridgeAdapter::open(settings, Arc::new(self.clone()), mint, Arc::new(Nobody), None).await
    }
}

struct Nobody;

impl EventSink for Nobody {
    fn publish(&self, _events: Vec<Arc<Committed>>) {}
}

impl Dial for Town {
    fn dial<'a>(&'a self, url: &'a str, _within: Duration) -> BoxFuture<'a, Result<Arc<dyn Line>, String>> {
        let there = self.houses.get(url).is_some_and(|house| !house.gone.is_cancelled());
        let line: Arc<dyn Line> = Arc::new(Wire { url: url.to_owned(), town: self.clone() });
        std::future::ready(there.then_some(line).ok_or("it cannot be reached".to_owned())).boxed()
    }
}

impl Line for Wire {
    fn call<'a>(
        &'a self,
        function_id: &'a str,
        body: Value,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Value, CallFailure>> {
        let house = &self.town.houses[&self.url];
        let answer = match house.gone.is_cancelled() {
            true => Err(CallFailure::NotSent("gone".to_owned())),
            false => (house.answers)(function_id, &body),
        };
        if house.gone_after == Some(function_id) {
            house.gone.cancel();
        }
        self.town.asked.lock().unwrap().push((self.url.clone(), function_id.to_owned(), body));
        std::future::ready(answer).boxed()
    }

    fn follow(&self, _after: Option<&str>, hear: Hear) -> Result<(), String> {
        self.town.heard.lock().unwrap().push(hear);
        Ok(())
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        self.town.houses[&self.url].gone.cancelled().boxed()
    }

    fn hang_up(&self) {}
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

async fn relay(bridge: &BridgeAdapter, function_id: &str, intent: Intent) -> Result<Value, Undone> {
    let call = Relayed { function_id, body: r#"{"session_id":"s"}"#, intent };
    let answer = bridge.relay(call, soon()).expect("the main decides").await?;
    Ok(serde_json::from_str(&answer).expect("an answer is JSON"))
}

#[tokio::test]
async fn a_mutation_whose_main_is_lost_is_sent_to_the_next_one_under_the_same_name() {
    let first = House { gone_after: Some("session::store::propose"), ..House::whole("one", "c") };
    let lost = House::new(move |function, body| match function {
        "session::store::propose" => Err(CallFailure::Unanswered("lost".to_owned())),
        _ => (first.answers)(function, body),
    });
    let lost = House { gone_after: Some("session::store::propose"), ..lost };
    let town = Town::of([("a", lost), ("b", House::whole("two", "c"))]);
    let bridge = town.bridge(&["a", "b"]).await.unwrap();
    let answer = relay(&bridge, "session::append", Intent::Change).await.unwrap();
    assert_eq!(answer, json!({ "by": "two" }));
    let sent = town.bodies("session::store::propose");
    assert_eq!((sent.len(), &sent[0]), (2, &sent[1]));
    assert_eq!(sent[0]["function"], "session::append");
    assert_eq!(sent[0]["request"], json!({ "session_id": "s" }));
    // Named by the main's clock.
    let born = u64::from_str_radix(&sent[0]["request_id"].as_str().unwrap()[..12], 16).unwrap();
    assert!((5_000..60_000).contains(&born), "{born}");
}

#[tokio::test]
async fn a_refusal_is_final_and_a_failure_of_the_main_is_tried_again() {
    let turn = Mutex::new(0);
    let main = House::new(move |function, _| match function {
        "session::store::about" => Ok(json!({ "instance": "one", "cluster": "c", "now_ms": 1 })),
        "session::get" => {
            *turn.lock().unwrap() += 1;
            match *turn.lock().unwrap() {
                1 => Err(CallFailure::Answered("session/storage: no leader".to_owned())),
                _ => Ok(json!("at last")),
            }
        }
        _ => Err(CallFailure::Answered("session/not_found: no session \"s\"".to_owned())),
    });
    let bridge = Town::of([("a", main)]).bridge(&["a"]).await.unwrap();
    let read = Intent::Read { page: None };
    assert_eq!(relay(&bridge, "session::get", read).await, Ok(json!("at last")));
    let refused = relay(&bridge, "session::append", Intent::Change).await.unwrap_err();
    assert_eq!(refused.to_string(), "session/not_found: no session \"s\"");
}

#[tokio::test]
async fn silence_leaves_a_doubt_about_a_mutation_and_none_about_a_read() {
    let main = House::new(|function, _| match function {
        "session::store::about" => Ok(json!({ "instance": "one", "cluster": "c", "now_ms": 1 })),
        _ => Err(CallFailure::Unanswered("no answer".to_owned())),
    });
    let bridge = Town::of([("a", main)]).bridge(&["a"]).await.unwrap();
    let changed = relay(&bridge, "session::append", Intent::Change).await.unwrap_err();
    assert!(matches!(changed, Undone::OutcomeUnknown(_)), "{changed}");
    let read = relay(&bridge, "session::list", Intent::Read { page: Some(5) }).await.unwrap_err();
    assert!(matches!(read, Undone::Unavailable(_)), "{read}");
}

#[tokio::test]
async fn a_bridge_refuses_itself_and_whoever_is_no_main() {
    let nobody = || House::new(|_, _| Err(CallFailure::NoSuchFunction));
    let edge = House::new(|_, _| {
        let words = "session/invalid_request: it is served only where the data lives: call the main of this bridge";
        Err(CallFailure::Answered(words.to_owned()))
    });
    let town = Town::of([("self", House::whole("me", "c")), ("nobody", nobody()), ("edge", edge)]);
    let why = town.bridge(&["self"]).await.err().unwrap();
    assert_eq!(why, "urls.self: self: this very instance answers there: name the bus of its main");
    let why = town.bridge(&["nobody", "edge", "dead"]).await.err().unwrap();
    assert_eq!(
        why,
        "urls.nobody: nobody: no session-manager serves session::store::* there; \
         urls.edge: edge: a bridge answers there: name the main it is attached to; \
         urls.dead: dead: it cannot be reached"
    );
}

#[tokio::test]
async fn a_main_of_another_cluster_is_not_taken_for_the_lost_one() {
    let lost = House { gone_after: Some("session::get"), ..House::whole("one", "c") };
    let town = Town::of([("a", lost), ("b", House::whole("two", "other"))]);
    let bridge = town.bridge(&["a", "b"]).await.unwrap();
    relay(&bridge, "session::get", Intent::Read { page: None }).await.unwrap();
    let why = relay(&bridge, "session::append", Intent::Change).await.unwrap_err();
    assert!(matches!(why, Undone::Unavailable(_)), "{why}");
    let asked = town.asked.lock().unwrap();
    assert!(asked.iter().all(|(url, function, _)| url == "a" || function == "session::store::about"), "{asked:?}");
}

/// A main that keeps one session, and refuses one function.
fn records(broken: &'static str) -> House {
    House::new(move |function, _| match function.strip_prefix("session::store::") {
        Some("about" | "propose") => Err(CallFailure::NoSuchFunction),
        Some(name) if name == broken => Err(CallFailure::Answered("session/storage: disk full".to_owned())),
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
async fn at_a_main_of_records_the_session_is_written_last_and_its_events_are_published() {
    let town = Town::of([("a", records("nothing"))]);
    let bridge = town.bridge(&["a"]).await.unwrap();
    assert!(bridge.relay(Relayed { function_id: "x", body: "", intent: Intent::Change }, soon()).is_none());
    bridge.propose(append(), soon()).await.unwrap();
    let written: Vec<String> = town.asked.lock().unwrap().iter().map(|(_, function, _)| function.clone()).collect();
    let writes = ["put-entry", "set-active-leaf", "put-meta", "publish-events"];
    let last: Vec<&str> = written[written.len() - 4..].iter().map(|id| &id["session::store::".len()..]).collect();
    assert_eq!(last, writes);
    let event = &town.bodies("session::store::publish-events")[0]["events"][0];
    assert_eq!(event["trigger_type"], "session::message-added");
    // Never before what the main has seen.
    assert_eq!(event["payload"]["timestamp"], i64::MAX - 5);
}

#[tokio::test]
async fn a_mutation_written_in_part_is_neither_done_nor_undone() {
    for (broken, unknown) in [("put-entry", false), ("set-active-leaf", true), ("put-meta", true)] {
        let bridge = Town::of([("a", records(broken))]).bridge(&["a"]).await.unwrap();
        let undone = bridge.propose(append(), soon()).await.unwrap_err();
        assert_eq!(matches!(undone, Undone::OutcomeUnknown(_)), unknown, "{broken}: {undone}");
        assert!(undone.to_string().contains("disk full"), "{undone}");
    }
    // The mutation stands, whatever becomes of its events.
    let bridge = Town::of([("a", records("publish-events"))]).bridge(&["a"]).await.unwrap();
    bridge.propose(append(), soon()).await.unwrap();
}
