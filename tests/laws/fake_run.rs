//! Owns: histories of a correct cluster, built by hand, and what the oracles find in a history.

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
    Applied, Delivery, GatewayFrame, History, Life, LifeEvent, Moment, Operation, Outcome, Place, Sample, Subscription,
};
use crate::oracle::check_all;
use crate::oracle::replay::{Asked, Replay, State, asked, response};

pub const NODES: [u64; 3] = [1, 2, 3];

/// Builds the history of a correct cluster that executes one call at a time.
pub struct FakeRun {
    pub history: History,
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

    pub fn moment(&mut self) -> Moment {
        self.order += 1;
        Moment { order: self.order, at_ms: self.order }
    }

    /// Adds an entry to the log of every node, and delivers its events to the subscribers that may see them.
    pub fn commit(&mut self, payload: Payload) -> Option<session_manager::machine::Outcome> {
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

    pub fn order(&self, command: Command, scope: Option<Arc<Scope>>, request: u128) -> Payload {
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
    pub fn call_within(&mut self, scope: Option<Arc<Scope>>, function: &'static str, request: Value) -> usize {
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

    pub fn append(&mut self, words: &str) -> usize {
        self.call("session::append", json!({"session_id": "s", "message": message(words)}))
    }

    pub fn update(&mut self, words: &str) -> usize {
        let content = json!([{"type": "text", "text": words}]);
        self.call("session::update-message", json!({"session_id": "s", "entry_id": "e", "content": content}))
    }

    pub fn read(&mut self) -> usize {
        self.call("session::get-message", json!({"session_id": "s", "entry_id": "e"}))
    }

    /// A retry of the same call, with the given outcome.
    pub fn again(&mut self, id: usize, outcome: Outcome) -> usize {
        let (called, returned) = (self.moment(), Some(self.moment()));
        let again =
            Operation { id: self.history.operations.len(), called, returned, outcome, ..self.operation(id).clone() };
        self.history.operations.push(again);
        self.history.operations.len() - 1
    }

    pub fn operation(&mut self, id: usize) -> &mut Operation {
        &mut self.history.operations[id]
    }

    pub fn answer(&mut self, id: usize) -> &mut Value {
        match &mut self.operation(id).outcome {
            Outcome::Answered(answer) => answer,
            other => panic!("not answered: {other:?}"),
        }
    }

    pub fn command_of(&mut self, id: usize) -> Command {
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

pub fn tenant(owner: &str) -> Arc<Scope> {
    Arc::new(Scope::new(json!({ "owner": owner })).unwrap())
}

pub fn message(words: &str) -> Value {
    json!({"role": "user", "timestamp": 1, "content": [{"type": "text", "text": words}]})
}

/// A session with the message `e`, some updates, a fork, and a second session that is deleted and created again.
pub fn correct() -> FakeRun {
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
