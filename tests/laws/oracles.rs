//! The oracles on histories that are built by hand (`fake_run`): a correct one that satisfies all of them, and for each law
//! at least one that breaks it. The tests are here because the simulation has its own runner.

use serde_json::json;
use session_manager::machine::Stamped;
use session_manager::machine::ids::RequestId;
use session_manager::machine::stamp::Stamp;
use session_manager::storage::log::command::Order;
use session_manager::storage::log::record::Payload;

use crate::fake_run::{FakeRun, NODES, assert_fails, correct, failing_oracles, message};
use crate::history::{DiskSpeed, History, Life, LifeEvent, Moment, Outcome, Subscription};
use crate::oracle::check_all;

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
