//! Owns: the law that a caller with a scope learns nothing of sessions outside it. The same calls of one tenant are made
//! in two worlds, one with another tenant and one without: every answer and every event must be the same, byte by byte.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use session_manager::events::filter::{Filter, Kinds};
use session_manager::machine::apply::fork::ForkSession;
use session_manager::machine::apply::long::LongWork;
use session_manager::machine::apply::set_meta::SetMeta;
use session_manager::machine::event::Event;
use session_manager::machine::json::Object;
use session_manager::machine::model::profile::Terms;
use session_manager::machine::refusal::Refusal;
use session_manager::machine::scope::Scope;
use session_manager::machine::{Answer, Command, Query, Stamped};
use session_manager::requests::{self, Decision, Done, Limits};
use session_manager::storage::state::memory::MemoryStore;

use crate::applied_log::{Run, event_json, stamped};

const LIMITS: Limits = Limits { default_list_limit: 3, max_list_limit: 5, model: Terms::DEFAULT };

/// The functions that a tenant calls. `import` is tried below; the rest is about the node.
const FUNCTIONS: [&str; 14] = [
    "session::create",
    "session::ensure",
    "session::get",
    "session::list",
    "session::set-meta",
    "session::set-status",
    "session::delete",
    "session::append",
    "session::append-many",
    "session::update-message",
    "session::messages",
    "session::get-message",
    "session::fork",
    "session::set-active-leaf",
];

/// One call. The numbers choose among the ids and cursors that any tenant has seen.
#[derive(Debug, Clone)]
struct Step {
    by_a: bool,
    function: usize,
    session: usize,
    entry: usize,
    cursor: usize,
    detail: u8,
}

fn step() -> impl Strategy<Value = Step> {
    (any::<bool>(), 0..FUNCTIONS.len() + 4, any::<usize>(), any::<usize>(), any::<usize>(), any::<u8>()).prop_map(
        |(by_a, function, session, entry, cursor, detail)| {
            // Creating and appending come more often, so that there is something to find.
            let function = [0, 7, 7, 8].get(function.wrapping_sub(FUNCTIONS.len())).copied().unwrap_or(function);
            Step { by_a, function, session, entry, cursor, detail }
        },
    )
}

fn tenant(name: &str) -> Arc<Scope> {
    Arc::new(Scope::new(json!({ "owner": name })).unwrap())
}

/// Everything that tenants have seen: the ids and cursors that they try on each other.
#[derive(Default)]
struct Seen {
    sessions: Vec<String>,
    entries: Vec<String>,
    cursors: Vec<String>,
}

impl Seen {
    fn learn(&mut self, answer: &Value) {
        match answer {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match (name.as_str(), value.as_str()) {
                        ("session_id", Some(id)) => self.sessions.push(id.to_owned()),
                        ("entry_id" | "parent_id" | "active_leaf", Some(id)) => self.entries.push(id.to_owned()),
                        ("next_cursor", Some(cursor)) => self.cursors.push(cursor.to_owned()),
                        ("entry_ids", _) => {
                            let ids = value.as_array().into_iter().flatten().filter_map(Value::as_str);
                            self.entries.extend(ids.map(str::to_owned));
                        }
                        _other => self.learn(value),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.learn(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

fn pick(from: &[String], number: usize) -> Value {
    from.get(number % (from.len() + 1)).map_or(json!("unknown"), |found| json!(found))
}

fn body(step: &Step, seen: &Seen) -> Value {
    let (session, entry) = (pick(&seen.sessions, step.session), pick(&seen.entries, step.entry));
    let cursor = seen.cursors.get(step.cursor % (2 * seen.cursors.len() + 1)).map_or(Value::Null, |text| json!(text));
    let own = if step.by_a { "a" } else { "b" };
    let metadata = match step.detail % 5 {
        0 => json!({}),
        1 => json!({ "owner": own }),
        2 => json!({ "owner": "a", "color": "red" }),
        3 => json!({ "owner": "b" }),
        _rest => json!({ "color": "red" }),
    };
    let message =
        json!({ "role": "user", "timestamp": 1, "content": [{ "type": "text", "text": format!("of {own}") }] });
    let optional = |value: &Value, bit: u8| if step.detail & bit != 0 { value.clone() } else { Value::Null };
    match FUNCTIONS[step.function] {
        "session::create" => json!({ "title": format!("of {own}"), "metadata": metadata }),
        // Ids that callers choose share one space: another tenant's id is refused as not found (see below).
        "session::ensure" => json!({ "session_id": format!("{own}-{}", step.detail % 4), "metadata": metadata }),
        "session::list" => json!({ "metadata": optional(&metadata, 16), "cursor": cursor, "limit": 2 }),
        "session::set-meta" => json!({ "session_id": session, "metadata": metadata, "title": format!("by {own}") }),
        "session::set-status" => json!({ "session_id": session, "status": "working" }),
        "session::append" => json!({
            "session_id": session, "message": message, "entry_id": optional(&entry, 1), "parent_id": optional(&entry, 2)
        }),
        "session::append-many" => {
            json!({ "session_id": session, "messages": [message, message], "parent_id": optional(&entry, 2) })
        }
        "session::update-message" => {
            json!({ "session_id": session, "entry_id": entry, "content": [{ "type": "text", "text": own }] })
        }
        "session::messages" => json!({
            "session_id": session, "from_entry_id": optional(&entry, 1), "cursor": cursor, "limit": 2
        }),
        "session::get-message" | "session::fork" | "session::set-active-leaf" => {
            json!({ "session_id": session, "entry_id": entry })
        }
        _with_a_session => json!({ "session_id": session }),
    }
}

/// Makes one call as its tenant, as the node does. Returns the answer as the caller reads it, and the events.
fn call(
    world: &mut Run,
    n: u64,
    function: &str,
    body: &Value,
    scope: &Arc<Scope>,
) -> (Result<String, String>, Vec<Event>) {
    let row = requests::find(function, false).expect("a function");
    let words = |refusal: Refusal| format!("{}: {refusal}", refusal.code());
    let decision = match (row.decide)(&body.to_string(), &LIMITS) {
        Ok(decision) => decision,
        Err(refusal) => return (Err(words(refusal)), Vec::new()),
    };
    let (done, events) = match decision {
        Decision::Propose(command) => {
            let command = Stamped { scope: Some(scope.clone()), ..stamped(n, n as i64 * 10, command) };
            let outcome = world.apply(&command);
            (outcome.answer.map(Done::Answered), outcome.events)
        }
        Decision::Ask(query) => {
            (world.ask(&Query::Within { scope: scope.clone(), query: Box::new(query) }).map(Done::Found), Vec::new())
        }
        other => panic!("{function} is no function about sessions: {other:?}"),
    };
    (done.map(|done| (row.respond)(done).expect("the right answer").into_text()).map_err(words), events)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 2_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_tenant_cannot_tell_whether_another_one_is_there(steps in proptest::collection::vec(step(), 1..60)) {
        let (a, b) = (tenant("a"), tenant("b"));
        let events_of_a = Filter::of_stream(Kinds::PUBLISHED, None, None, Object::new()).within(Some(a.clone()));
        let mut shared = Run::new(Arc::new(MemoryStore::new()));
        let mut alone = Run::new(Arc::new(MemoryStore::new()));
        let mut seen = Seen::default();
        for (n, step) in (1..).zip(&steps) {
            let (function, body) = (FUNCTIONS[step.function], body(step, &seen));
            let scope = if step.by_a { &a } else { &b };
            let (answer, events) = call(&mut shared, n, function, &body, scope);
            let shown: Vec<Value> = events.iter().filter(|event| events_of_a.matches(event)).map(event_json).collect();
            if step.by_a {
                let (expected, expected_events) = call(&mut alone, n, function, &body, scope);
                prop_assert_eq!(&answer, &expected, "{} {}", function, body);
                prop_assert_eq!(shown, expected_events.iter().map(event_json).collect::<Vec<_>>());
            } else {
                prop_assert!(shown.is_empty(), "{} {} is shown to the other tenant: {:?}", function, body, shown);
            }
            if let Ok(answer) = answer {
                seen.learn(&serde_json::from_str(&answer).unwrap());
            }
        }
    }
}

#[test]
fn an_id_of_another_tenant_is_not_found_by_any_function() {
    let (a, b) = (tenant("a"), tenant("b"));
    let mut world = Run::new(Arc::new(MemoryStore::new()));
    let (created, _) = call(&mut world, 1, "session::ensure", &json!({ "session_id": "s" }), &b);
    assert!(created.unwrap().contains(r#""owner":"b""#), "the scope is stamped into the metadata");
    for function in FUNCTIONS {
        let body = json!({
            "session_id": "s", "entry_id": "e", "status": "done", "title": "t", "content": [],
            "message": { "role": "user", "timestamp": 1, "content": [] },
            "messages": [{ "role": "user", "timestamp": 1, "content": [] }],
        });
        let (answer, events) = call(&mut world, 2, function, &body, &a);
        assert!(events.is_empty() || function == "session::create", "{function}");
        match function {
            "session::create" | "session::list" => {}
            "session::get" | "session::get-message" => assert_eq!(answer.unwrap(), "null", "{function}"),
            "session::delete" => assert_eq!(answer.unwrap(), r#"{"deleted":false}"#),
            _others => assert_eq!(answer.unwrap_err(), "session/not_found: no session \"s\"", "{function}"),
        }
    }
    let outside = json!({ "metadata": { "owner": "a" } });
    let (refused, _) = call(&mut world, 3, "session::create", &outside, &b);
    assert!(refused.unwrap_err().starts_with("session/invalid_request: metadata.owner: "));
    let leave = json!({ "session_id": "s", "metadata": { "owner": "a" } });
    let (refused, _) = call(&mut world, 4, "session::set-meta", &leave, &b);
    assert!(refused.unwrap_err().starts_with("session/invalid_request: metadata.owner: "));
    let (kept, _) = call(&mut world, 5, "session::set-meta", &json!({ "session_id": "s", "metadata": {} }), &b);
    assert!(kept.unwrap().contains(r#""owner":"b""#), "replacing the metadata keeps the scope");
}

#[test]
fn a_long_fork_ends_when_its_source_leaves_the_scope() {
    let (a, b) = (tenant("a"), tenant("b"));
    let fork = || ForkSession { session_id: "s".into(), entry_id: "e2".into(), title: None };
    for moved_to in [&a, &b] {
        let mut world = Run::new(Arc::new(MemoryStore::new()));
        call(&mut world, 1, "session::ensure", &json!({ "session_id": "s" }), &a).0.unwrap();
        for n in 0..3 {
            let message = json!({ "role": "user", "timestamp": 1, "content": [] });
            let append = json!({ "session_id": "s", "entry_id": format!("e{n}"), "message": message });
            call(&mut world, 2 + n, "session::append", &append, &a).0.unwrap();
        }
        let under_a = |n: u64, work: LongWork| Stamped {
            scope: Some(a.clone()),
            ..stamped(n, n as i64 * 10, Command::Long(work))
        };
        let begun = world.apply(&under_a(5, LongWork::BeginFork(fork()))).answer;
        let Ok(Answer::ForkBegun { source, fork }) = begun else { panic!("{begun:?}") };
        let metadata = Some(moved_to.fields().clone());
        let title = Some("a secret of b".to_owned());
        let moves = SetMeta { session_id: "s".into(), title, description: None, metadata };
        world.apply(&stamped(6, 60, Command::SetMeta(moves))).answer.unwrap();
        let go_on = |n| under_a(n, LongWork::ContinueFork { source: source.clone(), fork: fork.clone(), records: 2 });
        let (first, last) = (world.apply(&go_on(7)).answer, world.apply(&go_on(8)).answer);
        if moved_to == &a {
            assert!(matches!(first, Ok(Answer::ForkBegun { .. })), "{first:?}");
            assert!(matches!(last, Ok(Answer::Forked { .. })), "{last:?}");
            assert!(matches!(world.apply(&go_on(9)).answer, Ok(Answer::Forked { .. })), "a retry gets the same");
        } else {
            assert_eq!(first, Err(Refusal::SessionUnknown("s".into())));
            assert_eq!(last, first);
        }
    }
}
