//! The oracles on histories that are built by hand: a correct one that satisfies all of them, and for each law at least
//! one that breaks it. The tests are here because the simulation has its own runner.

use std::sync::Arc;

use serde_json::{Value, json};
use session_manager::machine::ids::RequestId;
use session_manager::machine::scope::Scope;
use session_manager::machine::stamp::Stamp;
use session_manager::machine::turn::due;
use session_manager::machine::{Command, Stamped};
use session_manager::replication::chain;
use session_manager::requests::Done;
use session_manager::storage::log::command::Order;
use session_manager::storage::log::record::{Entry, LogId, Payload};
use session_manager::storage::state::Encoded;

use crate::history::{
    Applied, Delivery, DiskSpeed, GatewayFrame, History, Life, LifeEvent, Moment, Operation, Outcome, Place, Sample,
    Subscription,
};
use crate::oracle::check_all;
use crate::oracle::replay::{Asked, Replay, State, asked, response};

const NODES: [u64; 3] = [1, 2, 3];

/// Builds the history of a correct cluster that executes one call at a time.
pub struct FakeRun {
    history: History,
    state: State,
    hash: u128,
    pub order: u64,
}

impl FakeRun {
    pub fn new() -> FakeRun {
        let history = History { voters: NODES.into(), ..History::default() };
        let mut run = FakeRun { history, state: State::default(), hash: 0, order: 0 };
        for node in NODES {
            let at = run.moment();
            run.history.lives.push(Life { at, node, boot: 1, what: LifeEvent::Started });
        }
        let bound = run.moment();
        let scopes = [None, Some(tenant("a"))];
        run.history.subscriptions.extend((0..).zip(scopes).map(|(id, scope)| Subscription {
            id,
            subscriber: id,
            scope,
            node: 1,
            after: None,
            bound,
            ended: None,
        }));
        run.commit(Payload::Blank);
        run
    }

    fn moment(&mut self) -> Moment {
        self.order += 1;
        Moment { order: self.order, at_ms: self.order }
    }

    /// Adds an entry to the log of every node, and delivers its events to the subscribers that may see them.
    fn commit(&mut self, payload: Payload) -> Option<session_manager::machine::Outcome> {
        let index = self.history.log().len() as u64;
        let outcome = match &payload {
            Payload::Command(order) => Some(self.state.commit(index, order.stamped()).unwrap().0),
            Payload::Blank | Payload::Membership(_) => None,
        };
        let changes = outcome.as_ref().map_or(&[][..], |outcome| &outcome.changes);
        self.hash = chain::link(self.hash, index, &Encoded::new(changes));
        let contents = Some(self.state.contents());
        let (entry, hash) = (Entry { id: LogId::new(1, 1, index), payload }, self.hash);
        for node in NODES {
            let noticed = self.moment();
            self.history.applied.push(Applied { node, boot: 1, noticed, entry: entry.clone() });
            let at = self.moment();
            self.history.samples.push(Sample { node, boot: 1, at, applied: entry.id, state_hash: hash, contents });
        }
        let events = (0..).zip(outcome.iter().flat_map(|outcome| &outcome.events));
        for (ordinal, event) in events.filter(|(_, event)| event.kind().is_published()) {
            for subscription in 0..self.history.subscriptions.len() {
                let scope = &self.history.subscriptions[subscription].scope;
                if scope.as_ref().is_some_and(|scope| !scope.includes(event.metadata.as_ref())) {
                    continue;
                }
                let heard = self.moment();
                self.history.deliveries.push(Delivery {
                    subscription,
                    heard,
                    kind: event.kind().trigger_type().to_owned(),
                    session_id: event.session_id.as_str().to_owned(),
                    seq: event.seq,
                    skipped: None,
                    place: Place { index, ordinal },
                    payload: event.payload().parse().unwrap(),
                });
            }
        }
        outcome
    }

    fn order(&self, command: Command, scope: Option<Arc<Scope>>, request: u128) -> Payload {
        let at_ms = self.order as i64;
        let stamp = Stamp { at_ms, seed: u128::from(self.order) << 8 | 1 };
        let request_id = RequestId::new(at_ms, request);
        Payload::Command(Order::new(Stamped { stamp, request_id, is_retry: false, scope, command }))
    }

    /// A call with its correct answer. Returns its id.
    pub fn call(&mut self, function: &'static str, request: Value) -> usize {
        self.call_within(None, function, request)
    }

    /// The same for a caller with a scope.
    fn call_within(&mut self, scope: Option<Arc<Scope>>, function: &'static str, request: Value) -> usize {
        let (id, called) = (self.history.operations.len(), self.moment());
        let outcome = Outcome::Unknown(String::new());
        let (client, node) = (id % 4, NODES[id % 3]);
        let mut operation =
            Operation { id, client, scope, node, function, request, repeats: None, called, returned: None, outcome };
        let (asked, function) = asked(&operation);
        let answer = match asked {
            Asked::Mutation(command) => {
                let order = self.order(command, operation.scope.clone(), id as u128 + 1);
                self.commit(order).expect("a command").answer.map(Done::Answered)
            }
            Asked::Question(question) => self.state.ask(&question).unwrap().map(Done::Found),
            Asked::Malformed | Asked::Operational => unreachable!("these runs do not use them"),
        };
        operation.outcome = match answer {
            Ok(done) => Outcome::Answered(response(function, done)),
            Err(refusal) => Outcome::Refused { code: refusal.code().to_owned(), message: refusal.to_string() },
        };
        operation.returned = Some(self.moment());
        self.history.operations.push(operation);
        id
    }

    /// The leader fires the first of what is due now. Returns whether there was something.
    pub fn fire(&mut self) -> bool {
        let Some(command) = due::next(&self.state.view(), self.order as i64).unwrap() else { return false };
        self.moment();
        let order = self.order(command, None, u128::from(self.order) << 64);
        self.commit(order).expect("a command");
        true
    }

    /// What a client of the gateway heard, or sent.
    pub fn hears(&mut self, client: usize, node: u64, frame: Value) {
        let at = self.moment();
        self.history.gateway.push(GatewayFrame { client, node, at, frame });
    }

    /// The numbered events of a session's stream so far.
    pub fn stream(&self, session_id: &str) -> Vec<Value> {
        let replay = Replay::of(&self.history).expect("a whole log");
        let events = replay.steps.iter().flat_map(|step| &step.events);
        let of_stream = events.filter(|event| event.session_id.as_str() == session_id);
        let payloads = of_stream.map(|event| event.payload().value());
        payloads.filter(|payload| payload["seq"].is_u64()).map(|payload| payload["event"].clone()).collect()
    }

    fn append(&mut self, words: &str) -> usize {
        self.call("session::append", json!({"session_id": "s", "message": message(words)}))
    }

    fn update(&mut self, words: &str) -> usize {
        let content = json!([{"type": "text", "text": words}]);
        self.call("session::update-message", json!({"session_id": "s", "entry_id": "e", "content": content}))
    }

    fn read(&mut self) -> usize {
        self.call("session::get-message", json!({"session_id": "s", "entry_id": "e"}))
    }

    /// A retry of the same call, with the given outcome.
    fn again(&mut self, id: usize, outcome: Outcome) -> usize {
        let (called, returned) = (self.moment(), Some(self.moment()));
        let again =
            Operation { id: self.history.operations.len(), called, returned, outcome, ..self.operation(id).clone() };
        self.history.operations.push(again);
        self.history.operations.len() - 1
    }

    fn operation(&mut self, id: usize) -> &mut Operation {
        &mut self.history.operations[id]
    }

    pub fn answer(&mut self, id: usize) -> &mut Value {
        match &mut self.operation(id).outcome {
            Outcome::Answered(answer) => answer,
            other => panic!("not answered: {other:?}"),
        }
    }

    fn command_of(&mut self, id: usize) -> Command {
        match asked(self.operation(id)).0 {
            Asked::Mutation(command) => command,
            Asked::Question(_) | Asked::Malformed | Asked::Operational => panic!("no mutation"),
        }
    }

    pub fn end(mut self) -> History {
        self.history.healed = Some(self.moment());
        for _ in NODES {
            self.call("session::get", json!({"session_id": "s"}));
        }
        self.history.rested = Some(self.moment());
        for node in NODES {
            let id = self.call("session::store::list-entries", json!({"session_id": "s"}));
            self.operation(id).node = node;
            self.call_within(Some(tenant("a")), "session::list", json!({}));
            let metas = self.call("session::store::list-metas", json!({}));
            self.operation(metas).node = node;
        }
        self.history
    }
}

fn tenant(owner: &str) -> Arc<Scope> {
    Arc::new(Scope::new(json!({ "owner": owner })).unwrap())
}

fn message(words: &str) -> Value {
    json!({"role": "user", "timestamp": 1, "content": [{"type": "text", "text": words}]})
}

/// A session with the message `e`, some updates, a fork, and a second session that is deleted and created again.
fn correct() -> FakeRun {
    let mut run = FakeRun::new();
    run.call("session::ensure", json!({"session_id": "s"}));
    run.call("session::append", json!({"session_id": "s", "entry_id": "e", "message": message("first")}));
    run.read();
    run.append("second");
    run.update("one");
    run.read();
    run.update(&"two ".repeat(30));
    run.call("session::create", json!({"title": "other"}));
    run.call("session::fork", json!({"session_id": "s", "entry_id": "e"}));
    run.call("session::set-status", json!({"session_id": "s", "status": "done"}));
    run.call("session::set-status", json!({"session_id": "s", "status": "done"}));
    run.call("session::ensure", json!({"session_id": "t"}));
    run.call("session::delete", json!({"session_id": "t"}));
    run.call("session::ensure", json!({"session_id": "t"}));
    run.call("session::append", json!({"session_id": "nowhere", "message": message("lost")}));
    run.call("session::messages", json!({"session_id": "s"}));
    run
}

/// The oracles that found a violation, in the order in which they run.
pub fn failing_oracles(history: &History) -> Vec<&'static str> {
    let mut names: Vec<&str> = check_all(history).into_iter().map(|broken| broken.oracle).collect();
    names.dedup();
    names
}

#[track_caller]
pub fn assert_fails(oracle: &str, history: &History) {
    let broken = check_all(history);
    assert!(broken.iter().any(|broken| broken.oracle == oracle), "{oracle} found nothing; {broken:#?}");
}

#[test]
fn a_correct_history_satisfies_every_oracle() {
    assert_eq!(check_all(&correct().end()), []);
}

#[test]
fn unknown_outcomes_may_have_happened_or_not() {
    let mut run = correct();
    let happened = run.append("never answered");
    run.operation(happened).outcome = Outcome::Unknown("no answer".to_owned());
    run.read();
    // It is not in the log, so it was not executed.
    run.again(happened, Outcome::Unknown("no answer".to_owned()));
    let refused = run.append("never sent");
    run.history.applied.retain(|applied| applied.entry.index() != run.history.samples.last().unwrap().applied.index);
    let last = run.history.samples.last().unwrap().applied.index;
    run.history.samples.retain(|sample| sample.applied.index != last);
    run.history.deliveries.retain(|delivery| delivery.place.index != last);
    run.operation(refused).outcome = Outcome::Unavailable("no node listened".to_owned());
    assert_eq!(failing_oracles(&run.history), Vec::<&str>::new());
}

#[test]
fn agreement_sees_two_states_and_two_entries_at_one_index() {
    let mut history = correct().end();
    history.samples[10].state_hash ^= 1;
    assert_eq!(failing_oracles(&history), ["agreement"]);
    // A snapshot carries the hash beside the state, so the contents are checked separately.
    let mut history = correct().end();
    let contents = history.samples[10].contents.as_mut().unwrap();
    *contents ^= 1;
    assert_eq!(failing_oracles(&history), ["agreement"]);
    let mut history = correct().end();
    history.applied[10].entry.id.leader.term += 1;
    assert_fails("agreement", &history);
}

#[test]
fn a_gap_in_the_log_is_seen() {
    let mut history = correct().end();
    history.applied.retain(|applied| applied.entry.index() != 3);
    assert_eq!(failing_oracles(&history), ["replay"]);
}

#[test]
fn once_sees_an_acknowledged_write_that_is_lost() {
    let mut run = correct();
    let answer = json!({"entry_id": "ghost", "parent_id": "e", "timestamp": 99});
    let lost = run.append("there");
    run.operation(lost).request["message"] = message("elsewhere");
    *run.answer(lost) = answer;
    assert_fails("once", &run.end());
}

#[test]
fn once_sees_a_write_that_was_executed_twice_or_although_it_was_refused() {
    let mut run = correct();
    let append = run.append("twice");
    let command = run.command_of(append);
    let order = run.order(command, None, 77);
    run.commit(order);
    assert_fails("once", &run.end());

    let mut run = correct();
    let append = run.append("reported as not executed");
    run.operation(append).outcome = Outcome::Unavailable("no leader".to_owned());
    assert_fails("once", &run.end());
}

#[test]
fn once_sees_a_write_that_no_client_sent() {
    let mut run = correct();
    let append = run.append("asked for");
    run.operation(append).request["message"] = message("another text");
    assert_fails("once", &run.end());
}

#[test]
fn dedup_sees_one_proposal_executed_twice() {
    let mut run = correct();
    let append = run.append("once");
    let command = run.command_of(append);
    for _ in 0..2 {
        let at_ms = 50;
        let stamp = Stamp { at_ms, seed: u128::from(run.order) << 8 | 1 };
        let request_id = RequestId::new(at_ms, 1);
        let stamped = Stamped { stamp, request_id, is_retry: false, scope: None, command: command.clone() };
        run.commit(Payload::Command(Order::new(stamped)));
    }
    assert_fails("dedup", &run.end());
}

#[test]
fn dedup_sees_two_answers_to_one_id() {
    let mut run = correct();
    let append = run.call("session::append", json!({"session_id": "s", "entry_id": "x", "message": message("x")}));
    let mut answer = run.answer(append).clone();
    answer["timestamp"] = json!(12_345);
    run.again(append, Outcome::Answered(answer));
    assert_fails("dedup", &run.end());
}

#[test]
fn minted_sees_one_id_given_twice() {
    let mut run = correct();
    let (first, second) = (run.append("one"), run.append("two"));
    let id = run.answer(first)["entry_id"].clone();
    run.answer(second)["entry_id"] = id;
    assert_fails("minted", &run.end());
}

#[test]
fn a_retried_append_with_an_entry_id_is_correct() {
    let mut run = correct();
    let request = json!({"session_id": "s", "entry_id": "x", "message": message("x")});
    run.call("session::append", request.clone());
    run.call("session::append", request);
    assert_eq!(check_all(&run.end()), []);
}

#[test]
fn revisions_sees_one_acknowledged_twice_and_one_that_does_not_exist() {
    let mut run = correct();
    let update = run.update("three");
    let second = run.update("four");
    *run.answer(second) = run.answer(update).clone();
    assert_fails("revisions", &run.end());

    let mut run = correct();
    let read = run.read();
    run.answer(read)["entry"]["revision"] = json!(9);
    assert_fails("revisions", &run.end());
}

#[test]
fn chains_sees_a_missing_parent_and_a_cycle() {
    for parent in ["nowhere", "e"] {
        let mut history = correct().end();
        let listed = history.operations.iter_mut().rfind(|o| o.function == "session::store::list-entries").unwrap();
        let Outcome::Answered(answer) = &mut listed.outcome else { panic!() };
        answer["entries"][0]["parent_id"] = json!(parent);
        assert_fails("chains", &history);
    }
}

#[test]
fn time_sees_a_clock_that_runs_backwards() {
    let mut run = correct();
    let append = run.append("late");
    run.answer(append)["timestamp"] = json!(1);
    assert_fails("time", &run.end());
}

/// A reader that gets a stale state.
fn stale() -> FakeRun {
    let mut run = correct();
    let before = run.read();
    run.update("new");
    let after = run.read();
    *run.answer(after) = run.answer(before).clone();
    run
}

#[test]
fn fresh_and_linear_see_a_stale_read() {
    let history = stale().end();
    assert_fails("fresh", &history);
    assert_fails("linear", &history);
}

#[test]
fn a_read_that_began_before_the_write_was_acknowledged_may_see_either() {
    let mut run = correct();
    let before = run.read();
    let update = run.update("new");
    let read = run.read();
    *run.answer(read) = run.answer(before).clone();
    run.operation(read).called = run.operation(update).called;
    assert_eq!(check_all(&run.end()), []);
}

#[test]
fn fresh_sees_a_state_that_never_existed() {
    let mut run = correct();
    let read = run.read();
    run.answer(read)["entry"]["message"]["content"][0]["text"] = json!("invented");
    assert_fails("fresh", &run.end());
}

#[test]
fn linear_sees_two_readers_that_disagree_on_the_order() {
    // The write is not acknowledged. One reader sees it, a later one does not.
    let mut run = correct();
    let before = run.read();
    let update = run.update("perhaps");
    run.operation(update).outcome = Outcome::Unknown("no answer".to_owned());
    run.read();
    let second = run.read();
    *run.answer(second) = run.answer(before).clone();
    assert_fails("linear", &run.history);
}

#[test]
fn rest_sees_a_node_with_another_final_state() {
    let mut history = correct().end();
    let last = history.operations.last_mut().unwrap();
    let Outcome::Answered(answer) = &mut last.outcome else { panic!() };
    answer["metas"].as_array_mut().unwrap().pop();
    assert_eq!(failing_oracles(&history), ["rest"]);
}

#[test]
fn delivery_sees_an_event_that_was_never_committed() {
    let mut history = correct().end();
    let mut ghost = history.deliveries[3].clone();
    ghost.place.index = 1000;
    history.deliveries.push(ghost);
    assert_fails("delivery", &history);
}

#[test]
fn delivery_sees_gaps_disorder_and_changed_payloads() {
    let mut history = correct().end();
    history.deliveries.remove(2);
    assert_eq!(failing_oracles(&history), ["delivery"]);
    let mut history = correct().end();
    history.deliveries.swap(1, 2);
    assert_eq!(failing_oracles(&history), ["delivery"]);
    let mut history = correct().end();
    history.deliveries[1].payload["x"] = json!(1);
    assert_eq!(failing_oracles(&history), ["delivery"]);
    let mut history = correct().end();
    history.deliveries.pop();
    assert_eq!(
        failing_oracles(&history),
        ["delivery"],
        "a subscriber that was connected to the end must receive everything"
    );
}

#[test]
fn delivery_accepts_a_subscriber_that_left_and_one_that_resumed() {
    let mut history = correct().end();
    history.deliveries.truncate(4);
    let at = history.deliveries[3].heard;
    history.subscriptions[0].ended = Some(at);
    assert_eq!(failing_oracles(&history), Vec::<&str>::new());
    let after = Some(history.deliveries[1].place);
    let again = Subscription { id: 2, subscriber: 0, scope: None, node: 2, after, bound: at, ended: Some(at) };
    history.subscriptions.push(again);
    let mut second = history.deliveries[2].clone();
    second.subscription = 2;
    history.deliveries.push(second);
    assert_eq!(failing_oracles(&history), Vec::<&str>::new());
    history.subscriptions[2].after = Some(history.deliveries[0].place);
    assert_eq!(failing_oracles(&history), ["delivery"], "it must receive one more event than it did");
}

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

#[test]
fn progress_sees_a_node_that_is_down_silent_or_behind() {
    let mut history = correct().end();
    let at = history.rested.unwrap();
    history.lives.push(Life { at, node: 2, boot: 1, what: LifeEvent::Crashed });
    assert_eq!(failing_oracles(&history), ["progress"]);

    let mut history = correct().end();
    let healed = history.healed.unwrap();
    history.operations.iter_mut().filter(|o| o.called > healed && o.node == 3).for_each(|o| o.node = 1);
    assert_eq!(failing_oracles(&history), ["progress"]);

    let mut history = correct().end();
    let (mut behind, mut ahead) = (history.samples[0], *history.samples.last().unwrap());
    let rested = history.rested.unwrap();
    behind.at = Moment { order: rested.order + 1, ..rested };
    ahead.at = behind.at;
    history.samples.extend([behind, ahead]);
    assert_eq!(failing_oracles(&history), ["progress"]);
}

#[test]
fn elections_sees_one_without_a_cause_and_a_leader_that_is_not_replaced_in_time() {
    let begun = |keeps_leader: bool| {
        let mut history = correct().end();
        let first = Moment { order: 0, at_ms: 0 };
        (history.up, history.keeps_leader) = (Some(first), keeps_leader);
        let started = NODES.map(|node| Life { at: first, node, boot: 1, what: LifeEvent::Started });
        history.lives.splice(0..0, started);
        history
    };
    let at = |order: u64, at_ms: u64| Moment { order, at_ms };
    let life = |at: Moment, node: u64, what: LifeEvent| Life { at, node, boot: 1, what };
    let healed = |history: &mut History| history.healed = Some(at(1_000_000, 100_000));

    let mut history = begun(true);
    healed(&mut history);
    history.healed.iter_mut().for_each(|healed| healed.order = 40);
    history.lives.push(life(at(30, 5_000), 2, LifeEvent::Leads(7)));
    assert!(failing_oracles(&history).contains(&"elections"));

    // With syncs of 200 ms, three seconds are enough and four are too long.
    for (replaced_ms, in_time) in [(12_900, true), (13_100, false)] {
        let mut history = begun(false);
        let speeds = NODES.map(|node| DiskSpeed { at: at(20, 9_000), node, sync_ms: 200 });
        history.disk_speeds.extend(speeds);
        history.lives.push(life(at(19, 8_000), 1, LifeEvent::Leads(1)));
        history.lives.push(life(at(30, 10_000), 1, LifeEvent::Crashed));
        history.lives.push(life(at(31, replaced_ms), 2, LifeEvent::Leads(2)));
        history.lives.push(life(at(32, 14_000), 1, LifeEvent::Started));
        healed(&mut history);
        let found = failing_oracles(&history).contains(&"elections");
        assert_eq!(found, !in_time, "{replaced_ms}");
    }
}
