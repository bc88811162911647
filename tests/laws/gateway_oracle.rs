//! The oracle of the gateway on histories that are built by hand: a correct one, and for each law one that breaks it.

use serde_json::{Value, json};

use crate::fake_run::{FakeRun, assert_fails, failing_oracles};
use crate::history::GatewayFrame;

/// A turn of seven events, of which the fifth and the sixth are not kept, and what two front-ends on two nodes heard of it:
/// one from the beginning, the other after it was over.
fn followed() -> FakeRun {
    let mut run = FakeRun::new();
    run.call("session::ensure", json!({"session_id": "s", "title": "s"}));
    let created = run.call("session::create", json!({"title": "t"}));
    let session = run.answer(created)["session_id"].clone();
    let asked = run.call("session::turn::ask", json!({"session_id": session, "text": "hi"}));
    let turn_id = run.answer(asked)["turn_id"].clone();
    run.call("session::turn::claim", json!({"turn_id": turn_id, "driver_id": "one"}));
    let events = json!([{"type": "text_delta", "text": "a"}, {"type": "text_delta", "text": "b"}]);
    let batch = json!({"turn_id": turn_id, "driver_id": "one", "n": 1, "events": events});
    let emitted = run.call("session::turn::emit", batch);
    let seqs = run.answer(emitted)["seqs"].clone();
    let end = json!([{"type": "turn_complete", "finalText": "ab"}]);
    run.call("session::turn::emit", json!({"turn_id": turn_id, "driver_id": "one", "n": 2, "events": end}));
    let stream = run.stream(session.as_str().unwrap());
    assert_eq!(stream.len(), 8);
    let join = json!({"type": "join_session", "sessionId": session, "afterSeq": 0});
    let snapshot = |head: u64, turn: Value| json!({"type": "state_snapshot", "sessionId": session, "headSeq": head, "currentTurn": turn});
    let gap = json!({"type": "gap", "sessionId": session, "fromSeq": 4, "toSeq": 6});
    let complete = |last: u64| json!({"type": "replay_complete", "sessionId": session, "lastSeq": last});
    let running = json!({"turnId": turn_id, "textSoFar": "a", "asOfSeq": 5});
    run.hears(0, 1, join.clone());
    run.hears(0, 1, snapshot(5, running));
    stream[..4].iter().for_each(|event| run.hears(0, 1, event.clone()));
    run.hears(0, 1, json!({"type": "gap", "sessionId": session, "fromSeq": 4, "toSeq": 5}));
    run.hears(0, 1, complete(4));
    stream[5..].iter().for_each(|event| run.hears(0, 1, event.clone()));
    run.hears(1, 2, join);
    run.hears(1, 2, snapshot(8, Value::Null));
    stream[..4].iter().for_each(|event| run.hears(1, 2, event.clone()));
    run.hears(1, 2, gap);
    stream[6..].iter().for_each(|event| run.hears(1, 2, event.clone()));
    run.hears(1, 2, complete(8));
    run.hears(2, 3, json!({"type": "emitted", "turn_id": turn_id, "next_n": 2, "seqs": seqs, "events": events}));
    run
}

/// The history after one frame was changed, replaced or dropped.
fn broken(change: impl Fn(&mut Vec<GatewayFrame>)) -> crate::history::History {
    let mut history = followed().end();
    change(&mut history.gateway);
    history
}

fn position(frames: &[GatewayFrame], client: usize, kind: &str) -> usize {
    frames.iter().position(|heard| heard.client == client && heard.frame["type"] == kind).expect("such a frame")
}

#[test]
fn followers_that_miss_nothing_satisfy_every_oracle() {
    assert_eq!(failing_oracles(&followed().end()), [""; 0]);
}

#[test]
fn gateway_sees_a_number_that_is_missing_or_comes_twice() {
    assert_fails("gateway", &broken(|frames| drop(frames.remove(position(frames, 0, "turn_started")))));
    let twice = broken(|frames| {
        let at = position(frames, 0, "turn_started");
        frames.insert(at, frames[at].clone());
    });
    assert_fails("gateway", &twice);
}

#[test]
fn gateway_sees_one_number_with_two_events() {
    let other = broken(|frames| {
        let at = position(frames, 1, "turn_complete");
        frames[at].frame["finalText"] = json!("another text");
    });
    assert_fails("gateway", &other);
}

#[test]
fn gateway_sees_a_gap_over_what_is_kept_and_one_that_does_not_fit() {
    let over_kept = broken(|frames| {
        let at = position(frames, 1, "gap");
        frames[at].frame["toSeq"] = json!(7);
        frames.remove(at + 1);
    });
    assert_fails("gateway", &over_kept);
    for (field, value) in [("fromSeq", 3), ("toSeq", 4), ("toSeq", 99)] {
        let shifted = broken(|frames| {
            let at = position(frames, 1, "gap");
            frames[at].frame[field] = json!(value);
        });
        assert_fails("gateway", &shifted);
    }
}

#[test]
fn gateway_sees_a_node_that_knows_less_than_another_delivered() {
    let behind = broken(|frames| {
        let at = position(frames, 1, "state_snapshot");
        frames[at].frame["headSeq"] = json!(7);
    });
    assert_fails("gateway", &behind);
}

#[test]
fn gateway_sees_a_text_so_far_that_is_not_what_was_said() {
    let early = broken(|frames| {
        let at = position(frames, 0, "state_snapshot");
        frames[at].frame["currentTurn"]["textSoFar"] = json!("ab");
    });
    assert_fails("gateway", &early);
}

#[test]
fn gateway_sees_a_follower_that_does_not_hear_the_end() {
    assert_fails("gateway", &broken(|frames| frames.retain(|heard| heard.frame["seq"] != 8)));
    // One that lost its connection hears it when it is back.
    let lost = broken(|frames| {
        frames.retain(|heard| heard.frame["seq"] != 8 && heard.frame["type"] != "replay_complete");
        for client in 0..2 {
            let last = frames.iter().rfind(|heard| heard.client == client).expect("a frame").clone();
            frames.push(GatewayFrame { frame: json!({"type": "(lost)", "why": "cut"}), ..last });
        }
    });
    assert_eq!(failing_oracles(&lost), [""; 0]);
}

#[test]
fn gateway_sees_a_replay_that_ends_with_the_wrong_number_and_one_that_begins_elsewhere() {
    let ends = broken(|frames| {
        let at = position(frames, 1, "replay_complete");
        frames[at].frame["lastSeq"] = json!(7);
    });
    assert_fails("gateway", &ends);
    let begins = broken(|frames| {
        let at = position(frames, 1, "join_session");
        frames[at].frame["afterSeq"] = json!(1);
    });
    assert_fails("gateway", &begins);
}

#[test]
fn gateway_sees_a_batch_under_other_numbers() {
    let swapped = broken(|frames| {
        let at = position(frames, 2, "emitted");
        frames[at].frame["seqs"] = json!([6, 5]);
    });
    assert_fails("gateway", &swapped);
}
