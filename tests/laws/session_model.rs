//! The session model: its times, and laws of every sequence of its calls: numbers of the stream are dense, counts are what the
//! transcript says, every message that asked for a turn has one, and one turn runs at a time.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use session_manager::machine::event::EventKind;
use session_manager::storage::sled::SledStore;
use session_manager::storage::state::memory::MemoryStore;

use crate::turns::World;

const MINUTE: i64 = 60_000;
const DAY: i64 = 24 * 60 * MINUTE;

/// A session of the model in a world without a network.
struct Model(World);

impl Model {
    fn new() -> Model {
        Model::of(World::over(Arc::new(MemoryStore::new())), "direct")
    }

    fn of(world: World, session_type: &str) -> Model {
        let mut model = Model(world);
        let source = json!({ "kind": "cli", "interactive": true, "type": session_type });
        model.call("session::open", json!({ "source": source }));
        model
    }

    fn call(&mut self, function: &str, mut body: Value) -> Value {
        body["agent_id"] = json!("main");
        body["session_id"] = json!("s");
        self.0.call(function, body)
    }

    fn post(&mut self, message: Value) -> Value {
        self.call("session::post", json!({ "message": message }))
    }

    fn profile(&mut self) -> Value {
        self.call("session::profile::get", json!({}))
    }

    /// The turn that waits, taken by a driver.
    fn take(&mut self) -> Option<String> {
        let pending = self.0.call("session::turn::pending", json!({ "agent_id": "main" }));
        let turn_id = pending["turns"][0]["turn_id"].as_str()?.to_owned();
        let claimed = self.0.call("session::turn::claim", json!({ "turn_id": turn_id, "driver_id": "d" }));
        assert_eq!(claimed["claimed"], true, "{claimed}");
        Some(turn_id)
    }

    fn emit(&mut self, turn_id: &str, n: u64, events: Value) {
        let batch = json!({ "turn_id": turn_id, "driver_id": "d", "n": n, "events": events });
        self.0.call("session::turn::emit", batch);
    }

    /// One whole turn.
    fn turn(&mut self, text: &str) {
        self.post(json!({ "text": text }));
        let turn_id = self.take().expect("a turn");
        self.emit(&turn_id, 1, json!([{ "type": "turn_complete", "finalText": format!("re: {text}") }]));
    }

    fn requested(&self) -> usize {
        self.0.count(EventKind::CheckpointRequested)
    }

    /// A worker ends the checkpoint that is under way.
    fn look_back(&mut self, success: bool) {
        let id = self.profile()["checkpoint"]["underway"].as_str().expect("one is under way").to_owned();
        let claimed = self.0.call("session::checkpoint::claim", json!({ "checkpoint_id": id, "driver_id": "w" }));
        assert_eq!(claimed["claimed"], true);
        self.0.call("session::checkpoint::result", json!({ "checkpoint_id": id, "success": success }));
    }

    fn events(&mut self) -> Vec<Value> {
        let page = self.call("session::profile::events", json!({ "after": 0 }));
        page["events"].as_array().unwrap().clone()
    }
}

#[test]
fn five_turns_ask_for_one_checkpoint() {
    let mut model = Model::new();
    for n in 0..4 {
        model.turn(&format!("{n}"));
    }
    assert_eq!(model.requested(), 0);
    model.turn("fifth");
    assert_eq!(model.requested(), 1);
    let reason = model.0.events.iter().rev().find(|event| event.kind() == EventKind::CheckpointRequested).unwrap();
    assert_eq!(reason.payload().value()["reason"], "turn_limit");
    model.look_back(true);
    for n in 0..4 {
        model.turn(&format!("{n}"));
    }
    assert_eq!(model.requested(), 1, "the count begins anew at the cursor");
}

#[test]
fn twenty_messages_without_a_turn_ask_for_one_checkpoint() {
    let mut model = Model::of(World::over(Arc::new(MemoryStore::new())), "group");
    for n in 0..25 {
        let posted = model.post(json!({ "text": format!("{n}"), "mentioned": false }));
        assert_eq!(posted["triggered"], false);
        assert_eq!(model.requested(), usize::from(n >= 19), "after message {n}");
    }
}

#[test]
fn an_idle_session_is_looked_back_at_once_and_a_message_cancels_it() {
    let mut model = Model::new();
    model.turn("hi");
    assert_eq!(model.0.wait(9 * MINUTE), 0);
    model.post(json!({ "text": "wait" }));
    model.0.wait(2 * MINUTE);
    assert_eq!(model.requested(), 0, "the message has cancelled it");
    let turn_id = model.take().expect("a turn");
    model.emit(&turn_id, 1, json!([{ "type": "turn_complete", "finalText": "ok" }]));
    model.0.wait(11 * MINUTE);
    assert_eq!(model.requested(), 1);
    model.0.wait(60 * MINUTE);
    assert_eq!(model.requested(), 1, "it fires once");
}

#[test]
fn a_checkpoint_that_nobody_takes_has_failed_after_ten_seconds() {
    let mut model = Model::new();
    model.post(json!({ "text": "hi" }));
    let begun = model.call("session::checkpoint", json!({}));
    assert_eq!((begun["begun"].as_bool(), model.requested()), (Some(true), 0), "it waits for the turn");
    let turn_id = model.take().expect("a turn");
    model.emit(&turn_id, 1, json!([{ "type": "turn_complete", "finalText": "ok" }]));
    assert_eq!(model.requested(), 1);
    model.0.wait(11_000);
    let profile = model.profile();
    assert_eq!(profile["checkpoint"]["ended"], begun["checkpoint_id"]);
    assert_eq!((&profile["checkpoint"]["checkpointed"], &profile["cursor"]["eventId"]), (&json!(false), &json!(0)));
}

#[test]
fn a_session_without_activity_for_three_days_is_inactive() {
    let mut model = Model::new();
    model.turn("hi");
    model.0.wait(2 * DAY);
    model.turn("still here");
    model.0.wait(2 * DAY);
    assert_eq!(model.profile()["status"], "idle");
    model.0.wait(2 * DAY);
    assert_eq!(model.profile()["status"], "inactive");
    model.post(json!({ "text": "back" }));
    assert_eq!(model.profile()["status"], "running");
}

#[test]
fn nobody_decides_for_two_minutes_and_the_call_is_timed_out() {
    let mut model = Model::new();
    model.post(json!({ "text": "remove it" }));
    let turn_id = model.take().expect("a turn");
    let asks = json!([{ "type": "tool_approval_required", "toolName": "rm", "toolCallId": "c" }]);
    model.emit(&turn_id, 1, asks);
    assert_eq!(model.profile()["status"], "awaiting_approval");
    model.0.wait(110_000);
    assert_eq!(model.profile()["status"], "awaiting_approval", "the lease waits too");
    model.0.wait(11_000);
    assert_eq!(model.profile()["status"], "running");
    let decisions: Vec<Value> =
        model.events().into_iter().filter(|event| event["event"]["type"] == "approval_resolved").collect();
    assert_eq!(decisions.len(), 1);
    assert_eq!(decisions[0]["event"]["decision"], "timed_out");
    let late = model.call("session::approve", json!({ "tool_call_id": "c", "approved": true }));
    assert_eq!(late["resolved"], false);
}

#[test]
fn a_message_that_no_driver_takes_for_ten_minutes_has_a_failed_turn() {
    let mut model = Model::new();
    model.post(json!({ "text": "hello?", "messageId": "m" }));
    model.0.wait(9 * MINUTE);
    assert_eq!(model.profile()["status"], "running");
    model.0.wait(2 * MINUTE);
    let profile = model.profile();
    assert_eq!((&profile["status"], &profile["completedTurnCount"]), (&json!("idle"), &json!(0)));
    let kinds: Vec<String> =
        model.events().iter().map(|event| event["event"]["type"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["user_message", "error", "agent_end"]);
}

#[test]
fn a_long_stream_keeps_its_last_ten_thousand_events() {
    let mut model = Model::new();
    model.post(json!({ "text": "go" }));
    let turn_id = model.take().expect("a turn");
    let batch: Vec<Value> = (0..256).map(|_| json!({ "type": "text_delta", "text": "x" })).collect();
    for n in 1..=45 {
        model.emit(&turn_id, n, json!(batch));
    }
    let profile = model.profile();
    let (oldest, last) = (profile["oldestEventId"].as_u64().unwrap(), profile["lastEventId"].as_u64().unwrap());
    assert_eq!((last, last + 1 - oldest), (2 + 45 * 256, 10_000));
    let page = model.call("session::profile::events", json!({ "after": 0, "limit": 1 }));
    assert_eq!(page["events"][0]["event_id"].as_u64(), Some(oldest));
}

#[test]
fn merging_users_never_makes_a_circle() {
    let mut world = World::over(Arc::new(MemoryStore::new()));
    let ids: Vec<String> = (0..4)
        .map(|n| {
            let linked =
                world.call("session::identity::link", json!({ "channel": "web", "channel_user_id": n.to_string() }));
            linked["user_id"].as_str().unwrap().to_owned()
        })
        .collect();
    for (from, into) in [(0, 1), (1, 2), (2, 0), (3, 1), (0, 3)] {
        world.call("session::identity::merge", json!({ "user_id": ids[from], "into": ids[into] }));
    }
    for n in 0..4 {
        let found =
            world.call("session::identity::resolve", json!({ "channel": "web", "channel_user_id": n.to_string() }));
        assert_eq!(found["user_id"], ids[2].as_str());
    }
}

#[derive(Debug, Clone)]
enum Step {
    Post { id: u8 },
    Append { id: u8 },
    Take,
    Delta,
    Tool,
    Complete,
    Fail,
    Checkpoint,
    LookBack { success: bool },
    Reopen,
    Wait { seconds: u16 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u8>().prop_map(|id| Step::Post { id }),
        2 => any::<u8>().prop_map(|id| Step::Append { id }),
        4 => Just(Step::Take),
        4 => Just(Step::Delta),
        2 => Just(Step::Tool),
        4 => Just(Step::Complete),
        1 => Just(Step::Fail),
        1 => Just(Step::Checkpoint),
        1 => any::<bool>().prop_map(|success| Step::LookBack { success }),
        1 => Just(Step::Reopen),
        1 => (0..900u16).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

/// What a client of the model and a client of the store read must agree.
fn check(model: &mut Model, asked: usize, taken: usize) {
    let profile = model.profile();
    let events = model.events();
    let ids: Vec<u64> = events.iter().map(|event| event["event_id"].as_u64().unwrap()).collect();
    assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<u64>>(), "numbers are dense");
    assert_eq!(profile["lastEventId"].as_u64(), Some(ids.len() as u64));
    let page = model.0.call("session::messages", json!({ "session_id": "main/s", "limit": 500 }));
    let says = |item: &Value| {
        let message = &item["message"];
        let blocks = message["content"].as_array().unwrap();
        message["role"] == "user"
            || (message["role"] == "assistant" && blocks.iter().any(|block| block["type"] == "text"))
    };
    let said = page["messages"].as_array().unwrap().iter().filter(|item| says(item)).count();
    assert_eq!(profile["messageCount"].as_u64(), Some(said as u64), "{page}");
    let ends = events.iter().filter(|event| event["event"]["type"] == "agent_end").count();
    let starts = events.iter().filter(|event| event["event"]["type"] == "agent_start").count();
    assert_eq!(starts, taken, "every turn that was taken has begun once");
    assert!(ends <= asked && starts <= asked);
    let pending = model.0.call("session::turn::state", json!({ "session_id": "main/s" }));
    let queued = pending["queued"].as_u64().unwrap_or(0) as usize;
    let current = usize::from(pending["current_turn"].is_object());
    assert_eq!(ends + queued + current, asked, "every message that asked for a turn has one");
    let busy = profile["status"] == "running" || profile["status"] == "awaiting_approval";
    assert_eq!(busy, queued + current > 0, "{profile} {pending}");
}

fn run(mut model: Model, steps: &[Step]) {
    let (mut running, mut n): (Option<String>, u64) = (None, 1);
    let (mut asked, mut taken) = (0, 0);
    for step in steps {
        match step {
            Step::Post { id } => {
                let posted = model.post(json!({ "text": "hi", "messageId": format!("p{id}") }));
                asked += usize::from(posted["deduped"] == false);
            }
            Step::Append { id } => {
                let message = json!({ "text": "note", "messageId": format!("a{id}") });
                model.call("session::post", json!({ "message": message, "mode": "append" }));
            }
            Step::Take => {
                if running.is_none() {
                    running = model.take();
                    taken += usize::from(running.is_some());
                    n = 1;
                }
            }
            Step::Delta | Step::Tool | Step::Complete | Step::Fail => {
                let Some(turn_id) = running.clone() else { continue };
                let (events, ends) = match step {
                    Step::Delta => (json!([{ "type": "text_delta", "text": "word " }]), false),
                    Step::Tool => {
                        let id = format!("{n}");
                        let call = json!({ "type": "tool_call", "tool": "ls", "toolCallId": id });
                        let result = json!({ "type": "tool_result", "toolCallId": id, "isError": false, "text": "x" });
                        (json!([call, result]), false)
                    }
                    Step::Fail => (json!([{ "type": "error", "message": "no" }, { "type": "agent_end" }]), true),
                    _complete => (json!([{ "type": "agent_end" }]), true),
                };
                model.emit(&turn_id, n, events);
                n += 1;
                if ends {
                    running = None;
                }
            }
            Step::Checkpoint => {
                model.call("session::checkpoint", json!({}));
            }
            Step::LookBack { success } => {
                let state = model.profile();
                if let Some(id) = state["checkpoint"]["underway"].as_str() {
                    let claim = json!({ "checkpoint_id": id, "driver_id": "w" });
                    if model.0.call("session::checkpoint::claim", claim)["claimed"] == true {
                        let result = json!({ "checkpoint_id": id, "success": success });
                        model.0.call("session::checkpoint::result", result);
                    }
                }
            }
            Step::Reopen => {
                model.call("session::open", json!({ "source": { "kind": "api", "interactive": false } }));
            }
            Step::Wait { seconds } => {
                model.0.wait(i64::from(*seconds) * 1000);
                // A driver that said nothing for a minute has lost its turn.
                if let Some(turn_id) = &running {
                    let renewed = json!({ "turn_id": turn_id, "driver_id": "d" });
                    if model.0.call("session::turn::claim", renewed)["claimed"] == false {
                        running = None;
                    }
                }
            }
        }
        check(&mut model, asked, taken);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn numbers_counts_and_turns_agree_after_every_step(steps in prop::collection::vec(step(), 1..40)) {
        run(Model::new(), &steps);
    }
}

#[test]
fn the_same_holds_over_sled() {
    let dir = tempfile::tempdir().unwrap();
    let store = SledStore::open(dir.path()).expect("a store");
    let steps = [
        Step::Post { id: 1 },
        Step::Post { id: 2 },
        Step::Take,
        Step::Delta,
        Step::Tool,
        Step::Delta,
        Step::Checkpoint,
        Step::Complete,
        Step::Take,
        Step::Fail,
        Step::LookBack { success: true },
        Step::Reopen,
        Step::Append { id: 1 },
        Step::Wait { seconds: 800 },
    ];
    run(Model::of(World::over(Arc::new(store)), "direct"), &steps);
}
