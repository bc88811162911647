//! The oracle of turns on histories that are built by hand: a correct one, and for each law one that breaks it.

use serde_json::{Value, json};

use crate::fake_run::{FakeRun, assert_fails, failing_oracles};

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
