//! Turns and drivers: what the functions of `session::turn` do to sessions, streams and journals.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use session_manager::machine::apply::beside::Beside;
use session_manager::machine::apply::long;
use session_manager::machine::event::{Event, EventKind};
use session_manager::machine::ids::SessionId;
use session_manager::machine::long::Steps;
use session_manager::machine::scope::Scope;
use session_manager::machine::turn::driver::AttachDriver;
use session_manager::machine::turn::work::JOURNAL_BYTES_MAX;
use session_manager::machine::turn::{TurnCommand, due};
use session_manager::machine::{Command, Query, Stamped, law};
use session_manager::requests::{self, Decision, Done, Limits};
use session_manager::storage::Store;
use session_manager::storage::sled::SledStore;
use session_manager::storage::state::kv::Kv;
use session_manager::storage::state::memory::MemoryStore;

use crate::applied_log::{Run, stamped};

const LIMITS: Limits = Limits::DEFAULT;

/// A node without a network: calls are decided, applied and answered as in the product.
pub struct World {
    pub run: Run,
    n: u64,
    pub now: i64,
    pub events: Vec<Event>,
    pub scope: Option<Arc<Scope>>,
}

impl World {
    pub fn over(store: Arc<dyn Store>) -> World {
        World { run: Run::new(store), n: 0, now: 1_000_000, events: Vec::new(), scope: None }
    }

    pub fn new() -> World {
        let mut world = World::over(Arc::new(MemoryStore::new()));
        world.session("s");
        world
    }

    pub fn session(&mut self, id: &str) {
        self.call("session::ensure", json!({"session_id": id, "metadata": {"owner": "a"}}));
    }

    pub fn try_call(&mut self, function: &str, body: Value) -> Result<Value, String> {
        let function = requests::find(function, false).expect("a function");
        let done = match (function.decide)(&body.to_string(), &LIMITS).map_err(|refusal| refusal.to_string())? {
            Decision::Propose(command) => Done::Answered(self.propose(command).map_err(|why| why.to_string())?),
            Decision::Ask(query) => {
                let query = match &self.scope {
                    Some(scope) => Query::Within { scope: scope.clone(), query: Box::new(query) },
                    None => query,
                };
                Done::Found(self.run.ask(&query).map_err(|refusal| refusal.to_string())?)
            }
            other => panic!("{other:?}"),
        };
        Ok(serde_json::from_str(&(function.respond)(done).expect("a response").into_text()).unwrap())
    }

    pub fn call(&mut self, function: &str, body: Value) -> Value {
        self.try_call(function, body.clone()).unwrap_or_else(|why| panic!("{function} {body}: {why}"))
    }

    pub fn propose(
        &mut self,
        command: Command,
    ) -> Result<session_manager::machine::Answer, session_manager::machine::refusal::Refusal> {
        self.n += 1;
        self.now += 1;
        let stamped = Stamped { scope: self.scope.clone(), ..stamped(self.n, self.now, command) };
        let outcome = self.run.apply(&stamped);
        self.events.extend(outcome.events);
        outcome.answer
    }

    /// Lets time pass and fires what is due meanwhile, as the leader does. Returns how many times something fired.
    pub fn wait(&mut self, ms: i64) -> usize {
        self.now += ms;
        let mut fired = 0;
        while let Some(command) = self.run.look(|view| due::next(view, self.now)).unwrap() {
            let answer = self.propose(command).unwrap();
            fired += usize::from(format!("{answer:?}").contains("true"));
            assert!(fired < 1000, "something fires for ever");
        }
        fired
    }

    fn ask(&mut self, text: &str) -> String {
        let asked = self.call("session::turn::ask", json!({"session_id": "s", "text": text}));
        asked["turn_id"].as_str().unwrap_or_else(|| panic!("{asked}")).to_owned()
    }

    pub fn claim(&mut self, turn_id: &str, driver_id: &str) -> Value {
        self.call("session::turn::claim", json!({"turn_id": turn_id, "driver_id": driver_id}))
    }

    fn try_emit(&mut self, turn_id: &str, n: u64, events: Value) -> Result<Value, String> {
        let body = json!({"turn_id": turn_id, "driver_id": "d", "n": n, "events": events});
        self.try_call("session::turn::emit", body)
    }

    fn emit(&mut self, turn_id: &str, n: u64, events: Value) -> Value {
        self.try_emit(turn_id, n, events.clone()).unwrap_or_else(|why| panic!("{events}: {why}"))
    }

    fn state(&mut self) -> Value {
        self.call("session::turn::state", json!({"session_id": "s"}))
    }

    fn journal(&mut self, after: u64) -> Vec<(u64, String)> {
        let page = self.call("session::turn::events", json!({"session_id": "s", "after_seq": after, "limit": 500}));
        let named = |event: &Value| (event["seq"].as_u64().unwrap(), event["type"].as_str().unwrap().to_owned());
        page["events"].as_array().unwrap().iter().map(named).collect()
    }

    /// The transcript, as `role text` or `role call`.
    fn transcript(&mut self) -> Vec<String> {
        let page = self.call("session::messages", json!({"session_id": "s"}));
        let line = |item: &Value| {
            let message = &item["message"];
            let blocks = message["content"].as_array().unwrap().iter().map(|block| match block["type"].as_str() {
                Some("function_call") => format!("call {}", block["function_id"].as_str().unwrap()),
                Some("thinking") => format!("({})", block["text"].as_str().unwrap()),
                _text => block["text"].as_str().unwrap_or_default().to_owned(),
            });
            let blocks: Vec<String> = blocks.collect();
            format!("{} {}", message["role"].as_str().unwrap(), blocks.join("|"))
        };
        page["messages"].as_array().unwrap().iter().map(line).collect()
    }

    pub fn count(&self, kind: EventKind) -> usize {
        self.events.iter().filter(|event| event.kind() == kind).count()
    }

    /// All keys of the records beside sessions.
    pub fn records(store: &MemoryStore) -> usize {
        let mut found = 0;
        store
            .tree()
            .scan(&[0x60], Some(&[0x64]), &mut |_, _| {
                found += 1;
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        found
    }

    fn check_laws(&self) {
        self.run.look(|view| {
            law::leaf_reaches_root(view, &"s".into()).unwrap();
            law::message_count_counts_messages(view, &"s".into()).unwrap();
        });
        // The numbers of the stream are dense, and those of the published events too.
        let (mut stream, mut published) = (0, 0);
        for event in self.events.iter().filter(|event| event.session_id.as_str() == "s") {
            if event.kind() == EventKind::StreamEvent {
                if let Some(seq) = event.payload().value()["seq"].as_u64() {
                    assert_eq!(seq, stream + 1);
                    stream = seq;
                }
            } else if event.kind().is_published() {
                assert_eq!(event.seq, published + 1);
                published = event.seq;
            }
        }
    }
}

fn deltas(texts: &[&str]) -> Value {
    texts.iter().map(|text| json!({"type": "text_delta", "text": text})).collect()
}

fn whole_turn(world: &mut World) {
    let turn = world.ask("hello");
    assert_eq!(world.claim(&turn, "d")["claimed"], true);
    world.emit(&turn, 1, json!([{"type": "thinking_start"}, {"type": "thinking_progress", "text": "hm"}]));
    let answer = world.emit(&turn, 2, deltas(&["Let", " me"]));
    assert_eq!(answer["seqs"], json!([7, 8]));
    world.emit(&turn, 3, json!([{"type": "tool_call", "toolCallId": "c", "toolName": "look", "args": {"at": 2}}]));
    world.emit(&turn, 4, json!([{"type": "tool_result", "toolCallId": "c", "status": "success", "output": "seen"}]));
    world.emit(&turn, 5, deltas(&["Done", "."]));
    let state = world.state();
    assert_eq!(state["current_turn"]["text_so_far"], "Let meDone.");
    assert_eq!(state["current_turn"]["thinking_so_far"], "hm");
    assert_eq!(state["current_turn"]["as_of_seq"], state["head_seq"]);
    assert_eq!((&state["state"], &state["session"]["status"]), (&json!("running"), &json!("working")));
    world.emit(&turn, 6, json!([{"type": "turn_complete", "finalText": "Let meDone."}]));
    assert_eq!(
        world.transcript(),
        ["user hello", "assistant (hm)|Let me", "assistant call look", "function_result seen", "assistant Done."]
    );
    let state = world.state();
    assert_eq!((&state["state"], &state["session"]["status"]), (&json!("ready"), &json!("idle")));
    let kept: Vec<String> = world.journal(0).into_iter().map(|(seq, name)| format!("{seq} {name}")).collect();
    assert_eq!(
        kept.join(", "),
        "1 session_state, 2 session_state, 3 session_state, 4 turn_started, 5 thinking_start, 9 tool_call, \
         10 tool_result, 13 turn_complete, 14 session_state"
    );
    world.check_laws();
}

#[test]
fn a_turn_writes_its_transcript_journal_and_states_on_both_stores() {
    whole_turn(&mut World::new());
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::over(Arc::new(SledStore::open(dir.path()).unwrap()));
    world.session("s");
    whole_turn(&mut world);
}

#[test]
fn a_repeated_batch_changes_nothing_and_a_gap_is_refused() {
    let mut world = World::new();
    let turn = world.ask("hello");
    world.claim(&turn, "d");
    let first = world.emit(&turn, 1, deltas(&["a", "b"]));
    let (events, transcript) = (world.events.len(), world.transcript());
    assert_eq!(world.emit(&turn, 1, deltas(&["a", "b"]))["seqs"], first["seqs"]);
    assert_eq!((world.events.len(), world.transcript()), (events, transcript.clone()));
    let why = world.try_emit(&turn, 3, deltas(&["d"])).unwrap_err();
    assert!(why.contains("gap") && why.contains('2'), "{why}");
    for (wrong, named) in [
        (json!([{"type": "no_such"}]), "no_such"),
        (json!([{"type": "text_delta", "text": "x"}, {"type": "text_delta"}]), "events[1]"),
        (json!([{"type": "mode_switched"}]), "mode_switched"),
        (json!([{"text": "x"}]), "type"),
        (json!([]), "events"),
        (json!(["x"]), "events[0]"),
    ] {
        let why = world.try_emit(&turn, 2, wrong.clone()).unwrap_err();
        assert!(why.contains(named), "{wrong}: {why}");
    }
    let other = json!({"turn_id": turn, "driver_id": "e", "n": 2, "events": deltas(&["x"])});
    assert!(world.try_call("session::turn::emit", other).unwrap_err().contains("has not claimed"));
    assert_eq!((world.events.len(), world.transcript()), (events, transcript));
    world.check_laws();
}

#[test]
fn one_driver_wins_and_renews_and_the_others_are_told() {
    let mut world = World::new();
    let turn = world.ask("hello");
    assert_eq!(world.call("session::turn::pending", json!({}))["turns"][0]["turn_id"], turn.as_str());
    let first = world.claim(&turn, "d");
    assert_eq!(world.claim(&turn, "e")["claimed"], false);
    assert!(world.call("session::turn::pending", json!({}))["turns"].as_array().unwrap().is_empty());
    world.now += 30_000;
    let again = world.claim(&turn, "d");
    assert!(again["lease_until"].as_i64() > first["lease_until"].as_i64());
    assert!(world.try_call("session::turn::claim", json!({"turn_id": "t_x", "driver_id": "d"})).is_err());
    assert!(world.try_call("session::turn::claim", json!({"turn_id": turn, "driver_id": ""})).is_err());
}

#[test]
fn further_turns_queue_or_are_refused_and_run_in_order() {
    let mut world = World::new();
    let first = world.ask("one");
    let busy = json!({"session_id": "s", "text": "two", "refuse_if_busy": true});
    assert_eq!(world.call("session::turn::ask", busy)["refused"], "TurnInProgress");
    let asked = json!({"session_id": "s", "text": "two", "client_turn_id": "k"});
    let second = world.call("session::turn::ask", asked.clone());
    assert_eq!((&second["queued"], world.count(EventKind::TurnRequested)), (&json!(true), 1));
    let again = world.call("session::turn::ask", asked);
    assert_eq!((&again["turn_id"], &again["repeated"]), (&second["turn_id"], &json!(true)));
    let second = second["turn_id"].as_str().unwrap();
    assert_eq!(world.claim(second, "d")["claimed"], false);
    world.claim(&first, "d");
    world.emit(&first, 1, json!([{"type": "turn_complete", "finalText": "1"}]));
    assert_eq!(world.count(EventKind::TurnRequested), 2);
    assert_eq!(world.claim(second, "d")["claimed"], true);
    world.emit(second, 1, json!([{"type": "agent_end", "text": "2"}]));
    assert_eq!(world.transcript(), ["user one", "user two", "assistant 1", "assistant 2"]);
    world.check_laws();
}

#[test]
fn a_turn_waits_for_a_person_without_losing_its_lease_and_the_first_decision_wins() {
    let mut world = World::new();
    let turn = world.ask("do it");
    world.claim(&turn, "d");
    let asks = json!([{"type": "permission_requested", "requestId": "r", "toolName": "rm", "description": "all"}]);
    let emitted = world.emit(&turn, 1, asks);
    assert_eq!((&emitted["state"], &emitted["lease_until"]), (&json!("waiting"), &Value::Null));
    assert_eq!(world.state()["state"], "waiting");
    assert_eq!(world.state()["pending_requests"][0]["requestId"], "r");
    assert_eq!(world.wait(3_600_000), 0);
    let approve = json!({"session_id": "s", "command": "approve", "request_id": "r", "approved": true});
    let answer = world.call("session::turn::send-command", approve.clone());
    assert!(answer["command_id"].is_string(), "{answer}");
    assert_eq!(world.call("session::turn::send-command", approve)["refused"], "RequestNotFound");
    assert_eq!((world.state()["state"].clone(), world.count(EventKind::TurnCommand)), (json!("running"), 1));
    // Not acknowledged: told again. Acknowledged: not any more.
    assert_eq!((world.wait(6_000), world.count(EventKind::TurnCommand)), (1, 2));
    let ack = json!({"command_id": answer["command_id"], "driver_id": "d", "accepted": true});
    assert_eq!(world.call("session::turn::ack", ack.clone())["acknowledged"], true);
    assert_eq!(world.call("session::turn::ack", ack)["acknowledged"], false);
    assert_eq!((world.wait(6_000), world.count(EventKind::TurnCommand)), (0, 2));
    // The lease counts again.
    assert_eq!(world.wait(120_000), 1);
    assert_eq!(world.state()["state"], "error");
    world.check_laws();
}

#[test]
fn a_stopped_turn_keeps_its_text_and_hears_nothing_more() {
    for acknowledged in [true, false] {
        let mut world = World::new();
        let turn = world.ask("tell");
        world.claim(&turn, "d");
        world.emit(&turn, 1, deltas(&["once ", "upon"]));
        let stop = world.call("session::turn::send-command", json!({"session_id": "s", "command": "stop"}));
        if acknowledged {
            world.call("session::turn::ack", json!({"command_id": stop["command_id"]}));
        } else {
            assert_eq!(world.wait(4_000), 0);
            assert!(world.wait(1_100) >= 1);
        }
        let why = world.try_emit(&turn, 2, deltas(&["later"])).unwrap_err();
        assert!(why.contains("stopped"), "{why}");
        world.emit(&turn, 2, json!([{"type": "usage_context", "contextTokens": 1, "maxContextTokens": 2}]));
        assert_eq!(
            (world.state()["state"].clone(), world.state()["reason"].clone()),
            (json!("ready"), json!("user_stopped"))
        );
        let page = world.call("session::messages", json!({"session_id": "s"}));
        assert_eq!(page["messages"][1]["message"]["stop_reason"], "aborted");
        assert_eq!(world.transcript(), ["user tell", "assistant once upon"]);
        let none = world.call("session::turn::send-command", json!({"session_id": "s", "command": "stop"}));
        assert_eq!(none["refused"], "NoActiveTurn");
        assert_eq!(world.wait(600_000), 0);
        world.check_laws();
    }
}

#[test]
fn each_timer_fires_once_and_only_if_it_still_stands() {
    // Nobody claims.
    let mut world = World::new();
    let turn = world.ask("anyone?");
    assert_eq!((world.wait(599_000), world.wait(2_000), world.wait(10_000_000)), (0, 1, 0));
    assert_eq!(world.state()["state"], "error");
    assert_eq!(world.claim(&turn, "d")["claimed"], false);
    // The driver falls silent.
    let turn = world.ask("again");
    world.claim(&turn, "d");
    assert_eq!(world.wait(59_000), 0);
    world.emit(&turn, 1, deltas(&["a"]));
    assert_eq!((world.wait(59_000), world.wait(2_000), world.wait(10_000_000)), (0, 1, 0));
    assert_eq!(world.journal(0).iter().filter(|(_, name)| name == "turn_error").count(), 2);
    // A turn that ends in time is left alone.
    let turn = world.ask("third");
    world.claim(&turn, "d");
    world.emit(&turn, 1, json!([{"type": "turn_complete", "finalText": "ok"}]));
    assert_eq!(world.wait(10_000_000), 0);
    assert_eq!(world.state()["state"], "ready");
    world.check_laws();
}

#[test]
fn a_driver_that_is_gone_fails_its_turn_and_one_that_is_back_goes_on() {
    let mut world = World::new();
    world.session("idle");
    let attach = json!({"driver_id": "d", "agent_types": ["coder"]});
    world.call("session::turn::attach", attach.clone());
    assert_eq!(world.call("session::turn::drivers", json!({}))[0]["driver"]["driver_id"], "d");
    let idle = world.call("session::turn::ask", json!({"session_id": "idle", "text": "x"}));
    let idle = idle["turn_id"].as_str().unwrap().to_owned();
    world.claim(&idle, "d");
    world.emit(&idle, 1, json!([{"type": "turn_complete", "finalText": "y"}]));
    let turn = world.ask("hello");
    world.claim(&turn, "d");
    world.wait(8_000);
    world.call("session::turn::detach", json!({"driver_id": "d"}));
    world.call("session::turn::attach", attach);
    world.wait(8_000);
    assert_eq!(world.state()["state"], "running");
    world.wait(3_000);
    let state = world.state();
    assert_eq!((&state["state"], &state["reason"]), (&json!("error"), &json!("the driver of the turn is gone")));
    let idle = world.call("session::turn::state", json!({"session_id": "idle"}));
    assert_eq!((&idle["state"], &idle["reason"]), (&json!("inactive"), &json!("agent_disconnected")));
    assert_eq!(world.call("session::turn::drivers", json!({})), json!([]));
    assert_eq!(world.wait(10_000_000), 0);
    world.check_laws();
}

#[test]
fn a_session_whose_driver_was_lost_with_its_node_becomes_inactive_and_one_whose_driver_left_stays_in_error() {
    let driver = |node: &str| AttachDriver {
        driver_id: "d".to_owned(),
        agent_ids: None,
        agent_types: None,
        tenants: None,
        session_id: None,
        metadata: Default::default(),
        families: Default::default(),
        node: Some(node.to_owned()),
    };
    let command = |command: TurnCommand| Command::Beside(Beside::Turn(command));
    let lost = (json!("inactive"), json!("recovered"));
    let left = (json!("error"), json!("the driver of the turn is gone"));
    // Word of a node that the driver has left for another one does not count.
    for (detached_by, expected) in [(None, &lost), (Some("first"), &lost), (Some("second"), &left)] {
        let mut world = World::new();
        for node in ["first", "second"] {
            world.propose(command(TurnCommand::Attach(driver(node)))).unwrap();
        }
        let turn = world.ask("hello");
        world.claim(&turn, "d");
        if let Some(node) = detached_by {
            let (driver_id, node) = ("d".to_owned(), Some(node.to_owned()));
            world.propose(command(TurnCommand::Detach { driver_id, node })).unwrap();
        }
        world.wait(11_000);
        let state = world.state();
        assert_eq!((&state["state"], &state["reason"]), (&expected.0, &expected.1), "{detached_by:?}");
        // A driver that is gone for good leaves nothing behind.
        assert_eq!(world.call("session::turn::drivers", json!({})), json!([]));
        assert_eq!(world.wait(10_000_000), 0);
        world.check_laws();
    }
}

#[test]
fn an_offered_turn_leaves_nothing_unless_it_is_claimed() {
    use session_manager::machine::apply::beside::Beside;
    use session_manager::machine::turn::TurnCommand;
    use session_manager::machine::turn::ask::AskTurn;
    use session_manager::machine::turn::record::Unclaimed;
    let offer = |world: &mut World| {
        let function = requests::find("session::turn::ask", false).unwrap();
        let decided = (function.decide)(&json!({"session_id": "s", "text": "hi"}).to_string(), &LIMITS).unwrap();
        let Decision::Propose(Command::Beside(Beside::Turn(TurnCommand::Ask(ask)))) = decided else { panic!() };
        let ask = AskTurn { unclaimed: Unclaimed::Withdraw, claim_within_ms: None, queue: false, ..*ask };
        let answer = world.propose(Command::Beside(Beside::Turn(TurnCommand::Ask(Box::new(ask))))).unwrap();
        let session_manager::machine::Answer::Value(value) = answer else { panic!() };
        value.value()
    };
    let store = Arc::new(MemoryStore::new());
    let mut world = World::over(store.clone());
    world.session("s");
    let asked = offer(&mut world);
    assert_eq!(asked["offered"], true);
    assert!(world.transcript().is_empty());
    assert_eq!(world.state()["state"], "inactive");
    assert_eq!((world.wait(4_000), world.wait(2_000)), (0, 1));
    // Only the stream's own record is left.
    assert_eq!(World::records(&store), 1);
    let asked = offer(&mut world);
    let claimed = world.claim(asked["turn_id"].as_str().unwrap(), "d");
    assert_eq!((claimed["claimed"].clone(), world.transcript()), (json!(true), vec!["user hi".to_owned()]));
    assert_eq!(world.wait(6_000), 0);
    // With a driver that could take it, everything shows at once.
    let mut world = World::new();
    world.call("session::turn::attach", json!({"driver_id": "d"}));
    assert_eq!(offer(&mut world)["offered"], false);
    assert_eq!((world.transcript().len(), world.state()["state"].clone()), (1, json!("activating")));
    world.check_laws();
}

#[test]
fn a_deleted_session_leaves_no_record_however_many_it_had() {
    let store = Arc::new(MemoryStore::new());
    let mut world = World::over(store.clone());
    world.session("s");
    for round in 0..3 {
        let turn = world.ask("go");
        world.claim(&turn, "d");
        for n in 1..=6 {
            let calls = (0..100).map(|at| {
                json!({"type": "tool_call", "toolCallId": format!("{round}.{n}.{at}"), "toolName": "t", "args": {}})
            });
            world.emit(&turn, n, calls.collect());
        }
        world.emit(&turn, 7, json!([{"type": "turn_complete", "finalText": "x"}]));
    }
    world.ask("waits");
    assert!(World::records(&store) > 3_000);
    world.call("session::delete", json!({"session_id": "s"}));
    // The same id again starts empty, while the old records are freed in steps.
    world.session("s");
    assert_eq!((world.journal(0).len(), world.state()["head_seq"].clone()), (0, json!(0)));
    let mut steps = 0;
    while let Some(command) = world.run.look(|view| long::due(view, world.now, Steps::default())).unwrap() {
        world.propose(command).unwrap();
        steps += 1;
    }
    assert!(steps > 10, "{steps}");
    world.wait(10_000_000);
    assert_eq!(World::records(&store), 0);
}

#[test]
fn the_journal_is_bounded_and_says_how_far_back_it_reaches() {
    let mut world = World::new();
    let turn = world.ask("go");
    world.claim(&turn, "d");
    let title = "x".repeat(7 << 20);
    let rounds = JOURNAL_BYTES_MAX / title.len() as u64 + 2;
    for n in 1..=rounds {
        world.emit(&turn, n, json!([{"type": "plan_created", "planId": "p", "title": title, "steps": []}]));
        world.events.clear();
    }
    let page = world.call("session::turn::events", json!({"session_id": "s", "limit": 1}));
    let oldest = page["oldest_seq"].as_u64().unwrap();
    assert!(oldest > 4, "{oldest}");
    assert_eq!(page["seqs"], json!([oldest]));
    let kept: BTreeSet<u64> = world.journal(0).into_iter().map(|(seq, _)| seq).collect();
    assert_eq!(kept.first(), Some(&oldest));
}

#[test]
fn a_caller_with_a_scope_sees_the_turns_of_its_sessions_only() {
    let mut world = World::new();
    let turn = world.ask("hello");
    world.scope = Some(Arc::new(Scope::parse(r#"{"owner":"b"}"#).unwrap()));
    let unknown = world.try_call("session::turn::claim", json!({"turn_id": "t_none", "driver_id": "e"})).unwrap_err();
    let hidden = world.try_call("session::turn::claim", json!({"turn_id": turn, "driver_id": "e"})).unwrap_err();
    assert_eq!(hidden.replace(&turn, "t_none"), unknown);
    assert_eq!(world.call("session::turn::pending", json!({}))["turns"], json!([]));
    for (function, body) in [
        ("session::turn::state", json!({"session_id": "s"})),
        ("session::turn::events", json!({"session_id": "s"})),
        ("session::turn::ask", json!({"session_id": "s", "text": "x"})),
        ("session::turn::send-command", json!({"session_id": "s", "command": "stop"})),
    ] {
        assert!(world.try_call(function, body).unwrap_err().contains("no session"), "{function}");
    }
    world.scope = Some(Arc::new(Scope::parse(r#"{"owner":"a"}"#).unwrap()));
    assert_eq!(world.claim(&turn, "d")["claimed"], true);
    world.emit(&turn, 1, deltas(&["x"]));
}

#[test]
fn a_session_without_turns_has_no_records_and_a_fork_copies_none() {
    let store = Arc::new(MemoryStore::new());
    let mut world = World::over(store.clone());
    world.session("s");
    world.call(
        "session::append",
        json!({"session_id": "s", "message":
        {"role": "user", "timestamp": 1, "content": [{"type": "text", "text": "a"}]}}),
    );
    assert_eq!(World::records(&store), 0);
    let turn = world.ask("go");
    let before = World::records(&store);
    let entry = format!("{turn}.u");
    world.call("session::fork", json!({"session_id": "s", "entry_id": entry}));
    assert_eq!(World::records(&store), before);
}

#[derive(Debug, Clone)]
enum Step {
    Deltas(Vec<String>),
    Thinking(String),
    Tool,
    Repeat,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec("\\PC{0,6}", 1..4).prop_map(Step::Deltas),
        2 => "\\PC{0,6}".prop_map(Step::Thinking),
        2 => Just(Step::Tool),
        2 => Just(Step::Repeat),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// At every number the text so far is what the deltas said, on both stores.
    #[test]
    fn the_text_equals_the_deltas_at_every_number(steps in prop::collection::vec(step(), 1..20)) {
        let dir = tempfile::tempdir().unwrap();
        let sled = World::over(Arc::new(SledStore::open(dir.path()).unwrap()));
        for mut world in [World::over(Arc::new(MemoryStore::new())), sled] {
            world.session("s");
            let turn = world.ask("go");
            world.claim(&turn, "d");
            let (mut n, mut said, mut thought, mut last) = (1, String::new(), String::new(), None);
            for step in &steps {
                let events = match step {
                    Step::Deltas(texts) => {
                        said.push_str(&texts.concat());
                        deltas(&texts.iter().map(String::as_str).collect::<Vec<_>>())
                    }
                    Step::Thinking(text) => {
                        thought.push_str(text);
                        json!([{"type": "thinking_progress", "text": text}])
                    }
                    Step::Tool => json!([
                        {"type": "tool_call", "toolCallId": n.to_string(), "toolName": "t", "args": null},
                        {"type": "tool_result", "toolCallId": n.to_string(), "status": "success", "output": "o"},
                    ]),
                    Step::Repeat => {
                        if let Some((n, events, answer)) = &last {
                            let again: Value = world.emit(&turn, *n, Value::clone(events));
                            let seqs: &Value = answer;
                            prop_assert_eq!(&again["seqs"], seqs);
                        }
                        continue;
                    }
                };
                let answer = world.emit(&turn, n, events.clone());
                last = Some((n, events, answer["seqs"].clone()));
                n += 1;
                let state = world.state();
                prop_assert_eq!(state["current_turn"]["text_so_far"].as_str(), Some(said.as_str()));
                prop_assert_eq!(state["current_turn"]["thinking_so_far"].as_str(), Some(thought.as_str()));
            }
            world.emit(&turn, n, json!([{"type": "turn_complete", "finalText": said}]));
            world.check_laws();
        }
    }
}

#[test]
fn raw_writes_under_a_running_turn_do_not_break_it() {
    let mut world = World::new();
    let turn = world.ask("go");
    world.claim(&turn, "d");
    world.emit(&turn, 1, deltas(&["gone"]));
    world.call("session::store::delete-entries", json!({"session_id": "s"}));
    world.call("session::store::delete-active-leaf", json!({"session_id": "s"}));
    world.emit(&turn, 2, deltas(&["here"]));
    world.emit(&turn, 3, json!([{"type": "turn_complete", "finalText": "here"}]));
    assert_eq!(world.state()["state"], "ready");
    let id: SessionId = "s".into();
    assert!(world.run.look(|view| view.leaf(&id)).unwrap().is_some());
}

#[test]
fn settings_are_changed_one_by_one() {
    let mut world = World::new();
    let set = |settings: Value| json!({"session_id": "s", "command": "set_settings", "settings": settings});
    world.call("session::turn::send-command", set(json!({"coalesceMs": 50, "tone": {"a": 1}})));
    world.call("session::turn::send-command", set(json!({"tone": {"b": 2}, "coalesceMs": null, "more": true})));
    let settings = json!({"tone": {"b": 2}, "more": true});
    assert_eq!(world.state()["settings"], settings);
    let told = world.events.iter().rfind(|event| event.kind() == EventKind::StreamEvent).expect("an event");
    assert_eq!(told.payload().value()["event"]["settings"], settings, "all of them are told");
    // However often they are changed, they stay small.
    let large = |name: &str| set(json!({ name: "x".repeat(40 << 10) }));
    world.call("session::turn::send-command", large("one"));
    let refused = world.try_call("session::turn::send-command", large("two")).unwrap_err();
    assert!(refused.contains("settings:") && refused.contains("at most"), "{refused}");
    assert_eq!(world.state()["settings"].as_object().unwrap().len(), 3);
    world.check_laws();
}
