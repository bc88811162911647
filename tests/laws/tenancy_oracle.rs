//! The oracle `tenancy`, and `delivery` to a tenant, on histories with two tenants.

use serde_json::{Value, json};

use crate::fake_run::{FakeRun, assert_fails, correct, failing_oracles, message, tenant};
use crate::history::{Delivery, Outcome};
use crate::oracle::check_all;

/// Two tenants, and a session that an unscoped client gives from one to the other.
fn tenants() -> FakeRun {
    let (a, b) = (Some(tenant("a")), Some(tenant("b")));
    let mut run = correct();
    for (scope, session_id, n) in [(&a, "of a", 1), (&b, "of b", 2), (&a, "moves", 3)] {
        run.call_within(scope.clone(), "session::ensure", json!({"session_id": session_id}));
        let message = message(&format!("client {n} write {n}"));
        let append = json!({"session_id": session_id, "entry_id": format!("e{n}"), "message": message});
        run.call_within(scope.clone(), "session::append", append);
    }
    // They probe each other, and the session of a client without a scope.
    for (scope, session_id, entry_id) in [(&a, "of b", "e2"), (&b, "of a", "e1"), (&b, "moves", "e3"), (&a, "s", "e")] {
        run.call_within(scope.clone(), "session::get", json!({"session_id": session_id}));
        run.call_within(scope.clone(), "session::messages", json!({"session_id": session_id}));
        let both = json!({"session_id": session_id, "entry_id": entry_id});
        run.call_within(scope.clone(), "session::fork", both.clone());
        run.call_within(scope.clone(), "session::get-message", both);
        run.call_within(scope.clone(), "session::delete", json!({"session_id": session_id}));
        run.call_within(scope.clone(), "session::ensure", json!({"session_id": session_id}));
    }
    let give = json!({"session_id": "moves", "metadata": {"owner": "b"}, "title": "client 4 write 4"});
    run.call("session::set-meta", give);
    run.call_within(b.clone(), "session::messages", json!({"session_id": "moves"}));
    run.call_within(a.clone(), "session::messages", json!({"session_id": "moves"}));
    run.call_within(a, "session::fork", json!({"session_id": "of a", "entry_id": "e1"}));
    run.call_within(b, "session::list", json!({}));
    run
}

/// A call of tenant a.
fn by_a(run: &mut FakeRun, function: &'static str, request: Value) -> usize {
    run.call_within(Some(tenant("a")), function, request)
}

#[test]
fn tenants_that_probe_each_other_satisfy_every_oracle() {
    assert_eq!(check_all(&tenants().end()), []);
}

#[test]
fn tenancy_sees_an_answer_with_data_of_another_tenant() {
    for (function, request) in [
        ("session::messages", json!({"session_id": "of b"})),
        ("session::get", json!({"session_id": "moves"})),
        ("session::get-message", json!({"session_id": "of b", "entry_id": "e2"})),
        ("session::list", json!({})),
    ] {
        let mut run = tenants();
        let answer = run.call(function, request);
        run.operation(answer).scope = Some(tenant("a"));
        assert_fails("tenancy", &run.history);
    }
}

#[test]
fn tenancy_sees_a_text_that_was_replaced_before_the_session_came_into_the_scope() {
    let mut run = tenants();
    run.call("session::set-meta", json!({"session_id": "s", "title": "client 9 write 9"}));
    run.call("session::delete", json!({"session_id": "s"}));
    let ensured = by_a(&mut run, "session::ensure", json!({"session_id": "s"}));
    run.answer(ensured)["title"] = json!("client 9 write 9 of an earlier session of this id");
    assert_fails("tenancy", &run.history);
}

#[test]
fn tenancy_sees_a_refusal_that_tells_that_the_session_exists() {
    for (code, message) in [
        ("session/entry_not_found", "no entry \"e9\" in session \"of b\""),
        ("session/not_found", "session \"of b\" belongs to somebody else"),
        ("session/invalid_request", "owner: this session belongs to another caller"),
    ] {
        let mut run = tenants();
        let fork = by_a(&mut run, "session::fork", json!({"session_id": "of b", "entry_id": "e9"}));
        run.operation(fork).outcome = Outcome::Refused { code: code.to_owned(), message: message.to_owned() };
        assert_fails("tenancy", &run.history);
    }
    let mut run = tenants();
    let delete = by_a(&mut run, "session::delete", json!({"session_id": "of b"}));
    run.answer(delete)["deleted"] = json!(true);
    assert_fails("tenancy", &run.history);
    // A refusal may be about a session of the caller and still quote an id of another.
    let mut run = tenants();
    let append = json!({"session_id": "of a", "parent_id": "none", "message": message("x")});
    let append = by_a(&mut run, "session::append", append);
    let message = "parent_id: did you mean \"e2\"?".to_owned();
    run.operation(append).outcome = Outcome::Refused { code: "session/parent_not_found".to_owned(), message };
    assert_fails("tenancy", &run.history);
}

#[test]
fn tenancy_sees_a_command_that_changes_what_is_outside_or_moves_it_there() {
    // The log of a machine that lost the scope: it has the command of a, executed without it.
    for (function, request) in [
        ("session::set-status", json!({"session_id": "of b", "status": "done"})),
        ("session::append", json!({"session_id": "of b", "message": message("x")})),
        ("session::delete", json!({"session_id": "moves"})),
    ] {
        let mut run = tenants();
        let call = run.call(function, request);
        run.operation(call).scope = Some(tenant("a"));
        assert_fails("tenancy", &run.history);
    }
}

#[test]
fn tenancy_sees_an_event_of_another_tenant_and_a_count_of_an_earlier_session() {
    let mut run = tenants();
    let foreign = run.history.deliveries.iter().find(|delivery| delivery.session_id == "of b").unwrap().clone();
    run.history.deliveries.push(Delivery { subscription: 1, ..foreign });
    assert_fails("tenancy", &run.history);

    for (skipped, fails) in [((1, 1), false), ((1, 5), true)] {
        let mut run = tenants();
        let own = |delivery: &&mut Delivery| delivery.subscription == 1 && delivery.seq == 2;
        run.history.deliveries.iter_mut().find(own).unwrap().skipped = Some(skipped);
        assert_eq!(failing_oracles(&run.history).contains(&"tenancy"), fails, "{skipped:?}");
    }
}

#[test]
fn tenancy_sees_a_raw_store_that_is_open_and_a_list_that_is_not_complete() {
    let mut run = tenants();
    let raw = run.call("session::store::get-meta", json!({"session_id": "of a"}));
    run.operation(raw).scope = Some(tenant("a"));
    assert_fails("tenancy", &run.history);
    let outcome = Outcome::Refused { code: "forbidden".to_owned(), message: "a has no raw store".to_owned() };
    run.operation(raw).outcome = outcome;
    assert_eq!(check_all(&run.history), []);

    let mut history = tenants().end();
    let list = history.operations.iter_mut().rfind(|operation| operation.function == "session::list").unwrap();
    let Outcome::Answered(answer) = &mut list.outcome else { panic!() };
    answer["sessions"].as_array_mut().unwrap().pop();
    assert_fails("tenancy", &history);
}

#[test]
fn delivery_sees_an_event_that_a_tenant_missed() {
    let own = |delivery: &Delivery| delivery.subscription == 1;
    let count = tenants().end().deliveries.iter().filter(|delivery| own(delivery)).count();
    // One in the middle, which others follow, and the last one.
    for missed in [1, count - 1] {
        let mut history = tenants().end();
        let places = (0..).zip(&history.deliveries).filter(|(_, delivery)| own(delivery)).map(|(at, _)| at);
        let missed = places.collect::<Vec<usize>>()[missed];
        history.deliveries.remove(missed);
        assert_eq!(failing_oracles(&history), ["delivery"]);
    }
}
