//! The oracle of the session model on runs that are built by hand: a correct one, and for each law one that breaks it.

use serde_json::{Value, json};

use crate::fake_run::{FakeRun, assert_fails, failing_oracles};
use crate::oracle::model::{Change, Counts, Seen, broken};
use crate::oracle::replay::Replay;

fn at(mut body: Value) -> Value {
    body["agent_id"] = json!("main");
    body["session_id"] = json!("cli:a");
    body
}

/// Two messages, of which one is answered, a note, and a checkpoint. Returns the id of the first post.
fn with_a_session() -> (FakeRun, usize) {
    let mut run = FakeRun::new();
    run.call("session::ensure", json!({"session_id": "s", "title": "s"}));
    run.call("session::open", at(json!({"source": {"kind": "cli", "interactive": true}})));
    let post = |text: &str, id: &str| at(json!({"message": {"text": text, "messageId": id}}));
    let first = run.call("session::post", post("hi", "m1"));
    run.call("session::post", post("and", "m2"));
    let note = json!({"message": {"text": "note", "messageId": "m3", "appendAs": "assistant"}, "mode": "append"});
    run.call("session::post", at(note));
    let turn_id = run.answer(first)["turn_id"].clone();
    run.call("session::turn::claim", json!({"turn_id": turn_id, "driver_id": "one"}));
    let events = json!([{"type": "text_delta", "text": "a"}, {"type": "turn_complete", "finalText": "a"}]);
    run.call("session::turn::emit", json!({"turn_id": turn_id, "driver_id": "one", "n": 1, "events": events}));
    run.call("session::checkpoint", at(json!({})));
    (run, first)
}

fn seen() -> Seen {
    let (run, _) = with_a_session();
    let history = run.end();
    let replay = Replay::of(&history).expect("a log");
    let mut seen = Seen::of(&history, &replay).expect("readable records");
    seen.lives.retain(|life| life.session_id == "main/cli:a");
    seen
}

#[test]
fn a_correct_session_satisfies_every_oracle() {
    let (run, _) = with_a_session();
    assert_eq!(failing_oracles(&run.end()), [""; 0]);
    let seen = seen();
    let life = &seen.lives[0];
    assert_eq!((life.turns.len(), life.asked.len(), life.unfinished.len()), (2, 2, 1), "{life:?}");
    let counts = Counts { messages: 4, completed: 1, last_event_id: life.numbers.len() as u64 };
    assert_eq!((life.profile, seen.acknowledged.len()), (Some(counts), 3), "{life:?}");
    assert_eq!(broken(&seen), [""; 0]);
}

#[track_caller]
fn breaks(word: &str, change: impl FnOnce(&mut Seen)) {
    let mut seen = seen();
    change(&mut seen);
    let broken = broken(&seen);
    assert!(broken.iter().any(|words| words.contains(word)), "{word}: {broken:?}");
}

#[test]
fn model_sees_two_turns_at_once_and_one_that_runs_twice() {
    let other = || ("other".to_owned(), Change::Begins);
    breaks("begins while", |seen| seen.lives[0].turns.insert(1, other()));
    breaks("begins a second time", |seen| seen.lives[0].turns.extend_from_within(0..1));
    breaks("ends a second time", |seen| seen.lives[0].turns.extend_from_within(1..2));
}

#[test]
fn model_sees_a_message_that_is_lost() {
    let (mut run, first) = with_a_session();
    run.answer(first)["entry_id"] = json!("m:another");
    assert_fails("model", &run.end());
    breaks("the log gives None", |seen| drop(seen.logged.remove("m1")));
    breaks("which is lost", |seen| seen.lives[0].unfinished.clear());
    breaks("which is lost", |seen| seen.lives[0].turns.clear());
}

#[test]
fn model_sees_counts_and_numbers_that_the_log_does_not_give() {
    breaks("the log gives Counts", |seen| seen.lives[0].messages += 1);
    breaks("the log gives Counts", |seen| seen.lives[0].completed += 1);
    breaks("the log gives Counts", |seen| seen.lives[0].numbers.truncate(3));
    breaks("not dense", |seen| seen.lives[0].numbers.retain(|number| *number != 2));
    breaks("not dense", |seen| seen.lives[0].numbers.swap(0, 1));
}

#[test]
fn model_sees_what_is_due_and_does_not_fire() {
    let (mut run, _) = with_a_session();
    assert!(seen().late.is_empty());
    // The checkpoint waits for a worker until ten seconds after it was asked for.
    run.order += 60_000;
    run.call("session::ensure", json!({"session_id": "t", "title": "t"}));
    assert_fails("model", &run.end());
}
