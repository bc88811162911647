//! The oracle of turns on histories that are built by hand: a correct one, and for each law one that breaks it.

use serde_json::{Value, json};

use session_manager::machine::Command;
use session_manager::machine::apply::beside::Beside;
use session_manager::machine::turn::TurnCommand;
use session_manager::machine::turn::due::DueKind;

use crate::fake_run::{FakeRun, assert_fails, failing_oracles};
use crate::history::History;
use crate::oracle::replay::{Replay, Step};
use crate::oracle::turns;

/// A turn with two batches, claimed by one of two drivers. Returns the ids of the claims and of the batches.
fn with_a_turn() -> (FakeRun, [usize; 2], [usize; 2]) {
    let mut run = FakeRun::new();
    run.call("session::ensure", json!({"session_id": "s", "title": "s"}));
    let created = run.call("session::create", json!({"title": "t"}));
    let session_id = run.answer(created)["session_id"].clone();
    let asked = run.call("session::turn::ask", json!({"session_id": session_id, "text": "hi"}));
    let turn_id = run.answer(asked)["turn_id"].clone();
    let claim = |driver: &str| json!({"turn_id": turn_id, "driver_id": driver});
    let claims = [claim("one"), claim("two")].map(|claim| run.call("session::turn::claim", claim));
    let emit = |n: u64, events: Value| json!({"turn_id": turn_id, "driver_id": "one", "n": n, "events": events});
    let batches = [
        emit(1, json!([{"type": "text_delta", "text": "a"}, {"type": "text_delta", "text": "b"}])),
        emit(2, json!([{"type": "turn_complete", "finalText": "ab"}])),
    ];
    let batches = batches.map(|batch| run.call("session::turn::emit", batch));
    (run, claims, batches)
}

#[test]
fn a_correct_turn_satisfies_every_oracle() {
    let (run, _, _) = with_a_turn();
    assert_eq!(failing_oracles(&run.end()), [""; 0]);
}

#[test]
fn turns_sees_two_winners() {
    let (mut run, claims, _) = with_a_turn();
    assert_eq!(run.answer(claims[1])["claimed"], false);
    run.answer(claims[1])["claimed"] = json!(true);
    assert_fails("turns", &run.end());
}

#[test]
fn turns_sees_a_batch_under_other_numbers_and_one_that_is_lost() {
    let (mut run, _, batches) = with_a_turn();
    let seqs = run.answer(batches[0])["seqs"].clone();
    run.answer(batches[0])["seqs"] = json!([seqs[1], seqs[0]]);
    assert_fails("turns", &run.end());
    let (mut run, _, batches) = with_a_turn();
    run.answer(batches[1])["seqs"] = json!([99]);
    assert_fails("turns", &run.end());
}

/// A driver that is seen twice, takes a turn, and is not seen any more: its due time moves once and fires once.
fn with_a_lost_driver() -> History {
    let mut run = FakeRun::new();
    run.call("session::ensure", json!({"session_id": "s", "title": "s"}));
    run.call("session::turn::attach", json!({"driver_id": "d"}));
    run.order += 8_000;
    run.call("session::turn::attach", json!({"driver_id": "d"}));
    let created = run.call("session::create", json!({"title": "t"}));
    let session_id = run.answer(created)["session_id"].clone();
    let asked = run.call("session::turn::ask", json!({"session_id": session_id, "text": "hi"}));
    let claim = json!({"turn_id": run.answer(asked)["turn_id"], "driver_id": "d"});
    run.call("session::turn::claim", claim);
    for pause in [3_000, 8_000] {
        run.order += pause;
        while run.fire() {}
    }
    run.end()
}

fn is_attach(step: &Step) -> bool {
    matches!(step.command, Some(Command::Beside(Beside::Turn(TurnCommand::Attach(_)))))
}

fn of_driver(step: &Step) -> bool {
    step.fired.as_ref().is_some_and(|due| due.kind == DueKind::Driver)
}

#[test]
fn a_lost_driver_satisfies_every_oracle() {
    let history = with_a_lost_driver();
    assert_eq!(failing_oracles(&history), [""; 0]);
    // One that moves the due time, one that fails the turn, and one that forgets the driver.
    let replay = Replay::of(&history).unwrap();
    assert_eq!(replay.steps.iter().filter(|step| of_driver(step)).count(), 3);
}

#[test]
fn turns_sees_a_driver_that_is_given_up_twice() {
    let history = with_a_lost_driver();
    let mut replay = Replay::of(&history).unwrap();
    let last = replay.steps.iter().rposition(of_driver).unwrap();
    let again = Replay::of(&history).unwrap().steps.remove(last);
    replay.steps.push(again);
    let broken = turns::due(&replay);
    assert!(broken.len() == 1 && broken[0].words.contains("given up already"), "{broken:#?}");
}

#[test]
fn turns_sees_a_driver_that_is_given_up_although_it_was_seen_and_one_that_is_kept_although_it_was_not() {
    let history = with_a_lost_driver();
    for (moved, word) in [(5_000, "is given up"), (-9_000, "is kept")] {
        let mut replay = Replay::of(&history).unwrap();
        let last = replay.steps.iter().rposition(is_attach).unwrap();
        replay.steps[last].stamp.at_ms += moved;
        let broken = turns::due(&replay);
        assert!(broken.iter().any(|broken| broken.words.contains(word)), "{moved}: {broken:#?}");
    }
}

#[test]
fn turns_sees_what_is_due_and_never_fires() {
    let mut run = FakeRun::new();
    run.call("session::ensure", json!({"session_id": "s", "title": "s"}));
    run.call("session::turn::attach", json!({"driver_id": "d"}));
    // A cluster without a leader fires nothing, and writes nothing else either.
    run.order += 60_000;
    run.call("session::set-status", json!({"session_id": "s", "status": "working"}));
    for status in ["idle", "working", "idle", "working", "idle", "working", "idle", "working", "idle", "working"] {
        run.order += 1_000;
        run.call("session::set-status", json!({"session_id": "s", "status": status}));
    }
    let history = run.end();
    let broken = turns::due(&Replay::of(&history).unwrap());
    assert!(broken.len() == 1 && broken[0].words.contains("the log moved for"), "{broken:#?}");
    assert_fails("turns", &history);
}
