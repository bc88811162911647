//! The laws of requests: each function refuses invalid bodies with a bounded message and without a change; what it
//! accepts survives encoding for the log, is executed, and is answered in JSON.

use std::sync::Arc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};
use session_manager::machine;
use session_manager::machine::{Command, Stamped};
use session_manager::requests::config_status::ReloadStatus;
use session_manager::requests::{Decision, Done, Function, Limits, Printed, functions};
use session_manager::storage::log::command::Order;
use session_manager::storage::state::memory::MemoryStore;
use session_manager::storage::with_view;

use super::corruption::{Corruption, JsonChange, any_json, change_json, corrupt, corruptions, json_change};
use super::inputs;
use super::memory::peak;
use crate::applied_log::{Run, stamped};

/// A longer message would let a client fill our logs with its own input.
const MESSAGE_BYTES_MAX: usize = 8 << 10;
/// Parsed JSON is larger than its text: a number of one digit becomes a value of 32 bytes. A parse that fails is
/// repeated to find the place of the error.
const MEMORY_FACTOR: usize = 160;
const MEMORY_SLACK: usize = 256 << 10;

const LIMITS: Limits = Limits::DEFAULT;

/// A valid request of each function, which succeeds in the state of `prepared`.
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
        // get, delete and the store functions for one session.
        _other => json!({"session_id": "s"}),
    }
}

/// A state with one session `s` and its entry `e1`.
pub fn prepared() -> Run {
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

/// Checks the laws for one body sent to one function.
fn check(run: &mut Run, function: &Function, body: &str) -> Result<(), TestCaseError> {
    let (decided, bytes) = peak(|| decide(function, body));
    prop_assert!(bytes <= MEMORY_FACTOR * body.len() + MEMORY_SLACK, "{bytes} bytes for a body of {}", body.len());
    let done = match decided {
        Err(refusal) => {
            let message = refusal.to_string();
            let length = message.len();
            prop_assert!(length > 0 && length <= MESSAGE_BYTES_MAX, "a message of {length} bytes: {message}");
            return Ok(());
        }
        Ok(Decision::Propose(command)) => match propose(run, command)? {
            Some(answer) => Done::Answered(answer),
            None => return Ok(()),
        },
        Ok(Decision::Ask(question)) => {
            let found = with_view(&*run.store, |view| machine::query(view, &question)).expect("the state can be read");
            let Ok(found) = found else { return Ok(()) };
            Done::Found(found)
        }
        // The function that is called through it prints the response.
        Ok(Decision::ProposeOnce { command, .. }) => return propose(run, command).map(|_| ()),
        Ok(Decision::Introduce { .. }) => return Ok(()),
        Ok(Decision::ConfigStatus) => Done::Status(ReloadStatus::AT_BOOT),
        Ok(Decision::ReloadConfig) => Done::Reloaded { ok: true },
    };
    let printed = (function.respond)(done);
    let Some(printed) = printed.map(Printed::into_text) else {
        return Err(TestCaseError::fail("there is no response"));
    };
    prop_assert!(serde_json::from_str::<Value>(&printed).is_ok(), "not JSON: {printed}");
    Ok(())
}

/// Encodes the command for the log, decodes it and executes it.
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
            // The applied index moves with every entry of the log, but `freeze` returns it apart from the state.
            prop_assert!(contents(run) == before, "a refusal changed the state");
            Ok(None)
        }
    }
}

/// The id of a function; a failure prints it.
fn any_function() -> impl Strategy<Value = &'static str> {
    any::<Index>().prop_map(|at| functions()[at.index(functions().len())].id)
}

#[test]
fn the_valid_requests_are_accepted() {
    for function in functions() {
        let mut run = prepared();
        let body = good(function.id).to_string();
        assert!(decide(function, &body).is_ok(), "{}: {:?}", function.id, decide(function, &body));
        check(&mut run, function, &body).unwrap();
    }
}

#[test]
fn huge_bodies_take_memory_in_proportion_to_their_size() {
    let mut run = prepared();
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
            check(&mut run, function, body).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(inputs(1))]

    #[test]
    fn arbitrary_text_is_refused(function in any_function(), body in ".{0,200}", object: bool) {
        let body = if object { format!("{{{body}}}") } else { body };
        check(&mut prepared(), find(function), &body)?;
    }

    #[test]
    fn arbitrary_json_is_executed_or_refused(function in any_function(), value in any_json()) {
        check(&mut prepared(), find(function), &value.to_string())?;
    }

    #[test]
    fn changed_requests_are_executed_or_refused(
        sent in vec((any_function(), vec(json_change(), 0..4)), 1..6)
    ) {
        // Several requests on one state, so that later ones meet what earlier ones wrote.
        let mut run = prepared();
        for (function, json_changes) in sent {
            let json_changes: Vec<JsonChange> = json_changes;
            let mut value = good(function);
            change_json(&mut value, &json_changes);
            check(&mut run, find(function), &value.to_string())?;
        }
    }

    #[test]
    fn corrupted_bytes_of_requests_are_executed_or_refused(function in any_function(), corruptions in corruptions()) {
        let corruptions: Vec<Corruption> = corruptions;
        let mut bytes = good(function).to_string().into_bytes();
        corrupt(&mut bytes, &corruptions);
        // Bytes that are not UTF-8 are refused before they reach a function.
        check(&mut prepared(), find(function), &String::from_utf8_lossy(&bytes))?;
    }
}
