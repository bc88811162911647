//! The oracles on histories made by hand: an honest one that satisfies all of them, and for each law at least one that does
//! not. They stand here because the simulation brings its own runner.

use serde_json::{Value, json};
use session_manager::machine::ids::RequestId;
use session_manager::machine::stamp::Stamp;
use session_manager::machine::{Command, Stamped};
use session_manager::replication::chain;
use session_manager::requests::Done;
use session_manager::storage::log::command::Order;
use session_manager::storage::log::record::{Entry, LogId, Payload};

use crate::history::{
    Applied, Delivery, History, Life, LifeEvent, Moment, Operation, Outcome, Place, Sample, Subscription,
};
use crate::oracle::judge;
use crate::oracle::replay::{Asked, State, asked, response};

const NODES: [u64; 3] = [1, 2, 3];

/// A cluster that does everything right, one call after the other.
struct Story {
    history: History,
    state: State,
    hash: u128,
    order: u64,
}

impl Story {
    fn new() -> Story {
        let history = History { voters: NODES.into(), ..History::default() };
        let mut story = Story { history, state: State::default(), hash: 0, order: 0 };
        for node in NODES {
            let at = story.moment();
            story.history.lives.push(Life { at, node, boot: 1, what: LifeEvent::Started });
        }
        let bound = story.moment();
        let subscription = Subscription { id: 0, subscriber: 0, node: 1, after: None, bound, ended: None };
        story.history.subscriptions.push(subscription);
        story.commit(Payload::Blank);
        story
    }

    fn moment(&mut self) -> Moment {
        self.order += 1;
        Moment { order: self.order, at_ms: self.order }
    }

    /// Puts an entry into the log of every node, and its events before the subscriber.
    fn commit(&mut self, payload: Payload) -> Option<session_manager::machine::Outcome> {
        let index = self.history.log().len() as u64;
        let outcome = match &payload {
            Payload::Command(order) => Some(self.state.commit(index, order.stamped()).unwrap().0),
            Payload::Blank | Payload::Membership(_) => None,
        };
        let changes = outcome.as_ref().map_or(&[][..], |outcome| &outcome.changes);
        self.hash = chain::link(self.hash, index, changes, &mut Vec::new());
        let contents = Some(self.state.contents());
        let (entry, hash) = (Entry { id: LogId { term: 1, leader: 1, index }, payload }, self.hash);
        for node in NODES {
            let noticed = self.moment();
            self.history.applied.push(Applied { node, boot: 1, noticed, entry: entry.clone() });
            let at = self.moment();
            self.history.samples.push(Sample { node, boot: 1, at, applied: entry.id, state_hash: hash, contents });
        }
        for (ordinal, event) in (0..).zip(outcome.iter().flat_map(|outcome| &outcome.events)) {
            let heard = self.moment();
            self.history.deliveries.push(Delivery {
                subscription: 0,
                heard,
                kind: event.kind().trigger_type().to_owned(),
                session_id: event.session_id.as_str().to_owned(),
                seq: event.seq,
                place: Place { index, ordinal },
                payload: event.payload().parse().unwrap(),
            });
        }
        outcome
    }

    fn order(&self, command: Command, request: u128, repeated: bool) -> Payload {
        let at_ms = self.order as i64;
        let stamp = Stamp { at_ms, seed: u128::from(self.order) << 8 | 1 };
        let request_id = RequestId::new(at_ms, request);
        Payload::Command(Order::new(Stamped { stamp, request_id, repeated, command }))
    }

    /// A call that is answered honestly. Returns its id.
    fn call(&mut self, function: &'static str, request: Value) -> usize {
        let (id, called) = (self.history.operations.len(), self.moment());
        let outcome = Outcome::Unknown(String::new());
        let (client, node) = (id % 4, NODES[id % 3]);
        let mut operation =
            Operation { id, client, node, function, request, repeats: None, called, returned: None, outcome };
        let (asked, function) = asked(&operation);
        let answer = match asked {
            Asked::Mutation(command) => {
                let order = self.order(command, id as u128 + 1, false);
                self.commit(order).expect("a command").answer.map(Done::Answered)
            }
            Asked::Question(question) => self.state.ask(&question).unwrap().map(Done::Found),
            Asked::Malformed | Asked::Operational => unreachable!("not in these stories"),
        };
        operation.outcome = match answer {
            Ok(done) => Outcome::Answered(response(function, done)),
            Err(refusal) => Outcome::Refused { code: refusal.code().to_owned(), message: refusal.to_string() },
        };
        operation.returned = Some(self.moment());
        self.history.operations.push(operation);
        id
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

    /// The same call again, word for word, with whatever outcome.
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

    fn answer(&mut self, id: usize) -> &mut Value {
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

    fn end(mut self) -> History {
        self.history.healed = Some(self.moment());
        for _ in NODES {
            self.call("session::get", json!({"session_id": "s"}));
        }
        self.history.rested = Some(self.moment());
        for node in NODES {
            let id = self.call("session::store::list-entries", json!({"session_id": "s"}));
            self.operation(id).node = node;
            let metas = self.call("session::store::list-metas", json!({}));
            self.operation(metas).node = node;
        }
        self.history
    }
}

fn message(words: &str) -> Value {
    json!({"role": "user", "timestamp": 1, "content": [{"type": "text", "text": words}]})
}

/// A session with the message `e`, some updates, a fork, a second session that comes and goes.
fn honest() -> Story {
    let mut story = Story::new();
    story.call("session::ensure", json!({"session_id": "s"}));
    story.call("session::append", json!({"session_id": "s", "entry_id": "e", "message": message("first")}));
    story.read();
    story.append("second");
    story.update("one");
    story.read();
    story.update(&"two ".repeat(30));
    story.call("session::create", json!({"title": "other"}));
    story.call("session::fork", json!({"session_id": "s", "entry_id": "e"}));
    story.call("session::set-status", json!({"session_id": "s", "status": "done"}));
    story.call("session::set-status", json!({"session_id": "s", "status": "done"}));
    story.call("session::ensure", json!({"session_id": "t"}));
    story.call("session::delete", json!({"session_id": "t"}));
    story.call("session::ensure", json!({"session_id": "t"}));
    story.call("session::append", json!({"session_id": "nowhere", "message": message("lost")}));
    story.call("session::messages", json!({"session_id": "s"}));
    story
}

/// The oracles that found something wrong, in the order in which they are asked.
fn accusers(history: &History) -> Vec<&'static str> {
    let mut names: Vec<&str> = judge(history).into_iter().map(|broken| broken.oracle).collect();
    names.dedup();
    names
}

#[track_caller]
fn accused_by(oracle: &str, history: &History) {
    let broken = judge(history);
    assert!(broken.iter().any(|broken| broken.oracle == oracle), "{oracle} found nothing; {broken:#?}");
}

#[test]
fn an_honest_history_satisfies_every_oracle() {
    assert_eq!(judge(&honest().end()), []);
}

#[test]
fn unknown_outcomes_may_have_happened_or_not() {
    let mut story = honest();
    let happened = story.append("told to nobody");
    story.operation(happened).outcome = Outcome::Unknown("no answer".to_owned());
    story.read();
    // Not in the log: it never happened.
    story.again(happened, Outcome::Unknown("no answer".to_owned()));
    let refused = story.append("not even sent");
    story
        .history
        .applied
        .retain(|applied| applied.entry.index() != story.history.samples.last().unwrap().applied.index);
    let last = story.history.samples.last().unwrap().applied.index;
    story.history.samples.retain(|sample| sample.applied.index != last);
    story.history.deliveries.retain(|delivery| delivery.place.index != last);
    story.operation(refused).outcome = Outcome::Unavailable("nobody listened".to_owned());
    assert_eq!(accusers(&story.history), Vec::<&str>::new());
}

#[test]
fn agreement_sees_two_states_and_two_entries_at_one_index() {
    let mut history = honest().end();
    history.samples[10].state_hash ^= 1;
    assert_eq!(accusers(&history), ["agreement"]);
    // The hash comes with a snapshot; what else comes with it is another matter.
    let mut history = honest().end();
    let contents = history.samples[10].contents.as_mut().unwrap();
    *contents ^= 1;
    assert_eq!(accusers(&history), ["agreement"]);
    let mut history = honest().end();
    history.applied[10].entry.id.term += 1;
    accused_by("agreement", &history);
}

#[test]
fn a_gap_in_the_log_is_seen() {
    let mut history = honest().end();
    history.applied.retain(|applied| applied.entry.index() != 3);
    assert_eq!(accusers(&history), ["replay"]);
}

#[test]
fn once_sees_an_acknowledged_write_that_is_not_there() {
    let mut story = honest();
    let answer = json!({"entry_id": "ghost", "parent_id": "e", "timestamp": 99});
    let lost = story.append("there");
    story.operation(lost).request["message"] = message("elsewhere");
    *story.answer(lost) = answer;
    accused_by("once", &story.end());
}

#[test]
fn once_sees_a_write_that_happened_twice_or_against_its_word() {
    let mut story = honest();
    let append = story.append("twice");
    let command = story.command_of(append);
    let order = story.order(command, 77, false);
    story.commit(order);
    accused_by("once", &story.end());

    let mut story = honest();
    let append = story.append("it is said that this did not happen");
    story.operation(append).outcome = Outcome::Unavailable("no leader".to_owned());
    accused_by("once", &story.end());
}

#[test]
fn once_sees_what_nobody_asked_for() {
    let mut story = honest();
    let append = story.append("asked for");
    story.operation(append).request["message"] = message("in other words");
    accused_by("once", &story.end());
}

#[test]
fn dedup_sees_one_proposal_carried_out_twice() {
    let mut story = honest();
    let append = story.append("once");
    let command = story.command_of(append);
    for _ in 0..2 {
        let at_ms = 50;
        let stamp = Stamp { at_ms, seed: u128::from(story.order) << 8 | 1 };
        let request_id = RequestId::new(at_ms, 1);
        let stamped = Stamped { stamp, request_id, repeated: false, command: command.clone() };
        story.commit(Payload::Command(Order::new(stamped)));
    }
    accused_by("dedup", &story.end());
}

#[test]
fn dedup_sees_two_answers_to_one_id() {
    let mut story = honest();
    let append = story.call("session::append", json!({"session_id": "s", "entry_id": "x", "message": message("x")}));
    let mut answer = story.answer(append).clone();
    answer["timestamp"] = json!(12_345);
    story.again(append, Outcome::Answered(answer));
    accused_by("dedup", &story.end());
}

#[test]
fn minted_sees_one_id_given_twice() {
    let mut story = honest();
    let (first, second) = (story.append("one"), story.append("two"));
    let id = story.answer(first)["entry_id"].clone();
    story.answer(second)["entry_id"] = id;
    accused_by("minted", &story.end());
}

#[test]
fn a_repeated_append_with_an_id_of_its_own_is_no_crime() {
    let mut story = honest();
    let request = json!({"session_id": "s", "entry_id": "x", "message": message("x")});
    story.call("session::append", request.clone());
    story.call("session::append", request);
    assert_eq!(judge(&story.end()), []);
}

#[test]
fn revisions_sees_one_told_twice_and_one_that_nobody_made() {
    let mut story = honest();
    let update = story.update("three");
    let second = story.update("four");
    *story.answer(second) = story.answer(update).clone();
    accused_by("revisions", &story.end());

    let mut story = honest();
    let read = story.read();
    story.answer(read)["entry"]["revision"] = json!(9);
    accused_by("revisions", &story.end());
}

#[test]
fn chains_sees_a_missing_parent_and_a_circle() {
    for parent in ["nowhere", "e"] {
        let mut history = honest().end();
        let listed = history.operations.iter_mut().rfind(|o| o.function == "session::store::list-entries").unwrap();
        let Outcome::Answered(answer) = &mut listed.outcome else { panic!() };
        answer["entries"][0]["parent_id"] = json!(parent);
        accused_by("chains", &history);
    }
}

#[test]
fn time_sees_a_clock_that_runs_backwards() {
    let mut story = honest();
    let append = story.append("late");
    story.answer(append)["timestamp"] = json!(1);
    accused_by("time", &story.end());
}

/// A reader that is told the state of the past.
fn stale() -> Story {
    let mut story = honest();
    let before = story.read();
    story.update("new");
    let after = story.read();
    *story.answer(after) = story.answer(before).clone();
    story
}

#[test]
fn fresh_and_linear_see_a_read_of_the_past() {
    let history = stale().end();
    accused_by("fresh", &history);
    accused_by("linear", &history);
}

#[test]
fn a_read_that_began_before_the_write_was_acknowledged_may_see_either() {
    let mut story = honest();
    let before = story.read();
    let update = story.update("new");
    let read = story.read();
    *story.answer(read) = story.answer(before).clone();
    story.operation(read).called = story.operation(update).called;
    assert_eq!(judge(&story.end()), []);
}

#[test]
fn fresh_sees_a_read_of_what_never_was() {
    let mut story = honest();
    let read = story.read();
    story.answer(read)["entry"]["message"]["content"][0]["text"] = json!("invented");
    accused_by("fresh", &story.end());
}

#[test]
fn linear_sees_two_readers_that_disagree_on_the_order() {
    // The write is never acknowledged: one reader sees it, a later one does not.
    let mut story = honest();
    let before = story.read();
    let update = story.update("perhaps");
    story.operation(update).outcome = Outcome::Unknown("no answer".to_owned());
    story.read();
    let second = story.read();
    *story.answer(second) = story.answer(before).clone();
    accused_by("linear", &story.history);
}

#[test]
fn rest_sees_a_node_that_tells_another_end() {
    let mut history = honest().end();
    let last = history.operations.last_mut().unwrap();
    let Outcome::Answered(answer) = &mut last.outcome else { panic!() };
    answer["metas"].as_array_mut().unwrap().pop();
    assert_eq!(accusers(&history), ["rest"]);
}

#[test]
fn delivery_sees_what_was_never_committed() {
    let mut history = honest().end();
    let mut ghost = history.deliveries[3].clone();
    ghost.place.index = 1000;
    history.deliveries.push(ghost);
    accused_by("delivery", &history);
}

#[test]
fn delivery_sees_gaps_disorder_and_other_words() {
    let mut history = honest().end();
    history.deliveries.remove(2);
    assert_eq!(accusers(&history), ["delivery"]);
    let mut history = honest().end();
    history.deliveries.swap(1, 2);
    assert_eq!(accusers(&history), ["delivery"]);
    let mut history = honest().end();
    history.deliveries[1].payload["x"] = json!(1);
    assert_eq!(accusers(&history), ["delivery"]);
    let mut history = honest().end();
    history.deliveries.pop();
    assert_eq!(accusers(&history), ["delivery"], "a subscriber that lived to the end heard everything");
}

#[test]
fn delivery_forgives_a_subscriber_that_left_and_one_that_resumed() {
    let mut history = honest().end();
    history.deliveries.truncate(4);
    let at = history.deliveries[3].heard;
    history.subscriptions[0].ended = Some(at);
    assert_eq!(accusers(&history), Vec::<&str>::new());
    let after = Some(history.deliveries[1].place);
    let again = Subscription { id: 1, subscriber: 0, node: 2, after, bound: at, ended: Some(at) };
    history.subscriptions.push(again);
    let mut second = history.deliveries[2].clone();
    second.subscription = 1;
    history.deliveries.push(second);
    assert_eq!(accusers(&history), Vec::<&str>::new());
    history.subscriptions[1].after = Some(history.deliveries[0].place);
    assert_eq!(accusers(&history), ["delivery"], "it asked for one event more than it heard");
}

#[test]
fn progress_sees_a_node_that_is_down_silent_or_behind() {
    let mut history = honest().end();
    let at = history.rested.unwrap();
    history.lives.push(Life { at, node: 2, boot: 1, what: LifeEvent::Crashed });
    assert_eq!(accusers(&history), ["progress"]);

    let mut history = honest().end();
    let healed = history.healed.unwrap();
    history.operations.iter_mut().filter(|o| o.called > healed && o.node == 3).for_each(|o| o.node = 1);
    assert_eq!(accusers(&history), ["progress"]);

    let mut history = honest().end();
    let (mut behind, mut ahead) = (history.samples[0], *history.samples.last().unwrap());
    let rested = history.rested.unwrap();
    behind.at = Moment { order: rested.order + 1, ..rested };
    ahead.at = behind.at;
    history.samples.extend([behind, ahead]);
    assert_eq!(accusers(&history), ["progress"]);
}
