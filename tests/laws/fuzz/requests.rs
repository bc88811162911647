//! The laws of requests: each of the 28 functions refuses what makes no sense, in bounded words and without a trace; what
//! it accepts survives the log's bytes, is carried out, and answers in JSON.

use std::sync::Arc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};
use session_manager::machine;
use session_manager::machine::{Command, Stamped};
use session_manager::requests::config_status::ReloadStatus;
use session_manager::requests::{Decision, Done, Function, Limits, functions};
use session_manager::storage::log::command::Order;
use session_manager::storage::look;
use session_manager::storage::memory::MemoryStore;

use super::inputs;
use super::memory::peak;
use super::spoil::{Harm, Twist, any_json, harms, spoil, twist, twist_value};
use crate::workshop::{Run, stamped};

/// Longer words than these would let a client fill our logs with its own input.
const WORDS_MAX: usize = 8 << 10;
/// Parsed JSON is larger than its text: a number of one digit becomes a value of 32 bytes, and a parse that fails is
/// tried again for its words.
const MEMORY_FACTOR: usize = 160;
const MEMORY_SLACK: usize = 256 << 10;

const LIMITS: Limits = Limits { default_list_limit: 50, max_list_limit: 500 };

/// A request of each function that would be carried out in the state of `begun`.
pub fn good(id: &str) -> Value {
    let message = json!({"role": "assistant", "timestamp": 1, "model": "m", "provider": "p", "stop_reason": "end",
        "content": [{"type": "text", "text": "hello"}, {"type": "function_result", "function_call_id": "c",
        "content": [{"type": "image", "data": "aGk=", "mime": "image/png"}], "is_error": false}]});
    let user = json!({"role": "user", "timestamp": 2, "content": [{"type": "text", "text": "hi"}]});
    let meta = json!({"session_id": "s", "title": "t", "description": "d", "status": "idle", "message_count": 1,
        "metadata": {"k": [1, {"x": null}]}, "created_at": 1, "updated_at": 2});
    match id.strip_prefix("session::").unwrap_or(id) {
        "create" => json!({"title": "t", "description": "d", "metadata": {"k": 1}}),
        "ensure" => json!({"session_id": "s2", "title": "t", "metadata": {"k": "v"}}),
        "list" => json!({"status": "idle", "metadata": {"k": 1}, "order": "created_asc", "limit": 3,
            "cursor": "l.created_asc.5.61"}),
        "set-meta" => json!({"session_id": "s", "title": "new", "description": "d", "metadata": {"k": 2.5}}),
        "set-status" => json!({"session_id": "s", "status": "error", "reason": "why"}),
        "append" => json!({"session_id": "s", "message": message, "entry_id": "e9", "parent_id": "e1",
            "origin": {"o": 1}}),
        "append-many" => json!({"session_id": "s", "messages": [user, message], "parent_id": "e1", "origin": {}}),
        "update-message" => json!({"session_id": "s", "entry_id": "e1", "expected_revision": 0, "origin": {"o": 1},
            "content": [{"type": "text", "text": "new"}]}),
        "messages" => json!({"session_id": "s", "from_entry_id": "e1", "roles": ["user", "assistant"],
            "include_custom": true, "limit": 2, "cursor": "m.6531"}),
        "get-message" | "set-active-leaf" | "fork" | "store::get-entry" | "store::set-active-leaf" => {
            json!({"session_id": "s", "entry_id": "e1", "title": "copy"})
        }
        "store::put-meta" => json!({"meta": meta}),
        "store::put-entry" => json!({"session_id": "s", "entry": {"kind": "message", "id": "e7",
            "parent_id": "e1", "timestamp": 5, "revision": 2, "message": user}}),
        "store::publish-events" => json!({"events": [{"trigger_type": "session::message-added",
            "payload": {"session_id": "s", "message": user}, "session_metadata": {"k": 1}}]}),
        "config-status" | "on-config-change" | "store::list-metas" => json!({}),
        // get, delete and what the store offers for one session.
        _other => json!({"session_id": "s"}),
    }
}

/// A state with one session `s` and its entry `e1`.
pub fn begun() -> Run {
    let mut run = Run::new(Arc::new(MemoryStore::new()));
    let first = |id: &str, body: Value| match decide(find(id), &body.to_string()) {
        Ok(Decision::Propose(command)) => command,
        other => panic!("{id}: {other:?}"),
    };
    let appended = json!({"session_id": "s", "entry_id": "e1",
        "message": {"role": "user", "timestamp": 1, "content": [{"type": "text", "text": "one"}]}});
    for (at, (id, body)) in
        [("session::ensure", json!({"session_id": "s"})), ("session::append", appended)].into_iter().enumerate()
    {
        let outcome = run.apply(&stamped(at as u64 + 1, 10, first(id, body)));
        assert!(outcome.answer.is_ok(), "{outcome:?}");
    }
    run
}

fn find(id: &str) -> &'static Function {
    functions().iter().find(|function| function.id == id).expect("a function")
}

fn decide(function: &Function, body: &str) -> Result<Decision, machine::refusal::Refusal> {
    (function.decide)(body, &LIMITS)
}

fn contents(run: &Run) -> Vec<(Vec<u8>, Bytes)> {
    run.store.freeze().expect("it freezes").pairs.map(|pair| pair.expect("a pair")).collect()
}

/// The laws, for one body sent to one function.
fn take(run: &mut Run, function: &Function, body: &str) -> Result<(), TestCaseError> {
    let (decided, bytes) = peak(|| decide(function, body));
    prop_assert!(bytes <= MEMORY_FACTOR * body.len() + MEMORY_SLACK, "{bytes} bytes for a body of {}", body.len());
    let done = match decided {
        Err(refusal) => {
            let words = refusal.to_string();
            prop_assert!(!words.is_empty() && words.len() <= WORDS_MAX, "{} bytes of words: {words}", words.len());
            return Ok(());
        }
        Ok(Decision::Propose(command)) => match propose(run, command)? {
            Some(answer) => Done::Answered(answer),
            None => return Ok(()),
        },
        Ok(Decision::Ask(question)) => {
            let found = look(&*run.store, |view| machine::query(view, &question)).expect("the state can be read");
            let Ok(found) = found else { return Ok(()) };
            Done::Found(found)
        }
        // Printed by the function that was called through it.
        Ok(Decision::ProposeOnce { command, .. }) => return propose(run, command).map(|_| ()),
        Ok(Decision::Introduce { .. }) => return Ok(()),
        Ok(Decision::ConfigStatus) => Done::Status(ReloadStatus::AT_BOOT),
        Ok(Decision::ReloadConfig) => Done::Reloaded { ok: true },
    };
    let printed = (function.respond)(done);
    let Some(printed) = printed else { return Err(TestCaseError::fail("no response to what was done")) };
    prop_assert!(serde_json::from_str::<Value>(&printed).is_ok(), "not JSON: {printed}");
    Ok(())
}

/// Through the bytes of the log, then carried out.
fn propose(run: &mut Run, command: Command) -> Result<Option<machine::Answer>, TestCaseError> {
    let order = Order::new(stamped(run.index + 1, 20, command));
    let read = Order::read(order.encoded().clone()).map_err(|why| TestCaseError::fail(why.to_string()))?;
    let (sent, read): (&Stamped, &Stamped) = (order.stamped(), read.stamped());
    prop_assert_eq!(sent, read);
    let before = contents(run);
    let outcome = run.apply(read);
    match outcome.answer {
        Ok(answer) => Ok(Some(answer)),
        Err(_) => {
            prop_assert!(outcome.changes.is_empty() && outcome.events.is_empty());
            // The mark moves with every entry of the log; `freeze` tells it apart from the state.
            prop_assert!(contents(run) == before, "a refusal left a trace");
            Ok(None)
        }
    }
}

/// The name of a function, which is what a failure prints.
fn any_function() -> impl Strategy<Value = &'static str> {
    any::<Index>().prop_map(|at| functions()[at.index(functions().len())].id)
}

#[test]
fn the_good_requests_are_good() {
    for function in functions() {
        let mut run = begun();
        let body = good(function.id).to_string();
        assert!(decide(function, &body).is_ok(), "{}: {:?}", function.id, decide(function, &body));
        take(&mut run, function, &body).unwrap();
    }
}

#[test]
fn bodies_of_megabytes_of_anything_are_refused_in_proportion() {
    let mut run = begun();
    let deep = |open: &str, shut: &str| format!("{{\"x\":{}{}}}", open.repeat(200_000), shut.repeat(200_000));
    let wide =
        format!("{{\"metadata\":{{{}\"z\":1}}}}", (0..50_000).map(|n| format!("\"k{n}\":{n},")).collect::<String>());
    let bodies = [
        deep("[", "]"),
        deep("{\"a\":", "}"),
        "[".repeat(1 << 20),
        "{".repeat(1 << 20),
        format!("{{\"session_id\":\"{}\"}}", "\\u0000".repeat(100_000)),
        format!("{{\"session_id\":\"s\",\"limit\":{}}}", "9".repeat(100_000)),
        format!("{{\"session_id\":\"s\",\"entry_id\":\"e1\",\"content\":[{}]}}", "1,".repeat(200_000)),
        wide,
    ];
    for function in functions() {
        for body in &bodies {
            take(&mut run, function, body).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(inputs(1))]

    #[test]
    fn arbitrary_text_is_refused(function in any_function(), body in ".{0,200}", object: bool) {
        let body = if object { format!("{{{body}}}") } else { body };
        take(&mut begun(), find(function), &body)?;
    }

    #[test]
    fn arbitrary_json_is_carried_out_or_refused(function in any_function(), value in any_json()) {
        take(&mut begun(), find(function), &value.to_string())?;
    }

    #[test]
    fn twisted_requests_are_carried_out_or_refused(
        sent in vec((any_function(), vec(twist(), 0..4)), 1..6)
    ) {
        // Several on one state, so that what was accepted once is met again by the next.
        let mut run = begun();
        for (function, twists) in sent {
            let twists: Vec<Twist> = twists;
            let mut value = good(function);
            twist_value(&mut value, &twists);
            take(&mut run, find(function), &value.to_string())?;
        }
    }

    #[test]
    fn spoiled_bytes_of_requests_are_carried_out_or_refused(function in any_function(), harms in harms()) {
        let harms: Vec<Harm> = harms;
        let mut bytes = good(function).to_string().into_bytes();
        spoil(&mut bytes, &harms);
        // The doors refuse what is no UTF-8 before it comes here.
        take(&mut begun(), find(function), &String::from_utf8_lossy(&bytes))?;
    }
}
