//! The laws of turns: no turn is claimed by two drivers; no batch counts twice and none is lost once it is acknowledged;
//! the numbers of a stream are dense and never given twice; the reply of a turn is what its deltas said; and nothing that
//! is due fires twice.

use std::collections::BTreeMap;

use serde_json::Value;
use session_manager::machine::event::{EventKind, Happened};
use session_manager::machine::turn::reply;

use super::Findings;
use super::replay::Replay;
use crate::history::{History, Outcome};

/// The events of the streams, by session, how often it was deleted before, and number.
type Streams = BTreeMap<(String, u64, u64), Value>;

pub fn check(history: &History, replay: &Replay) -> Findings {
    let mut findings = Findings::of("turns");
    let streams = streams(replay, &mut findings);
    check_claims(history, &mut findings);
    check_batches(history, &streams, &mut findings);
    check_replies(replay, &mut findings);
    check_due(replay, &mut findings);
    findings
}

/// The numbers are dense. They start over with a session that is made anew.
fn streams(replay: &Replay, findings: &mut Findings) -> Streams {
    let (mut last, mut deleted): (BTreeMap<String, u64>, BTreeMap<String, u64>) = Default::default();
    let mut streams = Streams::new();
    for step in &replay.steps {
        for event in &step.events {
            let session_id = event.session_id.as_str().to_owned();
            match event.kind() {
                EventKind::Deleted => {
                    last.remove(&session_id);
                    *deleted.entry(session_id).or_default() += 1;
                }
                EventKind::StreamEvent => {
                    let payload = event.payload().value();
                    let Some(seq) = payload["seq"].as_u64() else { continue };
                    let before = last.insert(session_id.clone(), seq).unwrap_or(0);
                    findings.check(seq == before + 1, None, || {
                        format!("entry {}: event {seq} of {session_id:?} follows {before}", step.index)
                    });
                    let life = deleted.get(&session_id).copied().unwrap_or(0);
                    streams.insert((session_id, life, seq), payload["event"].clone());
                }
                _other => {}
            }
        }
    }
    streams
}

fn check_claims(history: &History, findings: &mut Findings) {
    let mut winners: BTreeMap<&str, &str> = BTreeMap::new();
    for operation in history.operations.iter().filter(|operation| operation.function == "session::turn::claim") {
        let Outcome::Answered(answer) = &operation.outcome else { continue };
        if answer["claimed"] != true {
            continue;
        }
        let text = |field: &str| operation.request[field].as_str().unwrap_or_default();
        let winner = *winners.entry(text("turn_id")).or_insert(text("driver_id"));
        findings.check(winner == text("driver_id"), operation.returned, || {
            format!("turn {:?} was claimed by {winner:?} and by {:?}", text("turn_id"), text("driver_id"))
        });
    }
}

/// An acknowledged batch is in the stream, under the numbers that its driver was told, once.
fn check_batches(history: &History, streams: &Streams, findings: &mut Findings) {
    let mut told: BTreeMap<(&str, u64), &Value> = BTreeMap::new();
    let mut by_turn: BTreeMap<(String, u64, u64), (&str, u64)> = BTreeMap::new();
    for operation in history.operations.iter().filter(|operation| operation.function == "session::turn::emit") {
        let Outcome::Answered(answer) = &operation.outcome else { continue };
        let turn_id = operation.request["turn_id"].as_str().unwrap_or_default();
        let n = operation.request["n"].as_u64().unwrap_or_default();
        let first = *told.entry((turn_id, n)).or_insert(&answer["seqs"]);
        findings.check(*first == answer["seqs"], operation.returned, || {
            format!("batch {n} of {turn_id:?} got the numbers {first} and {}", answer["seqs"])
        });
        let events = operation.request["events"].as_array().into_iter().flatten();
        for (event, seq) in events.zip(answer["seqs"].as_array().into_iter().flatten()) {
            let Some(seq) = seq.as_u64() else { continue };
            let stored = streams.iter().find(|((_, _, number), stored)| *number == seq && stored["turnId"] == turn_id);
            let same =
                stored.is_some_and(|(_, stored)| stored["type"] == event["type"] && stored["text"] == event["text"]);
            findings.check(same, operation.returned, || {
                format!("#{}: event {seq} of {turn_id:?} is {event}, the stream has {stored:?}", operation.id)
            });
            if let Some((place, _)) = stored {
                let owner = *by_turn.entry(place.clone()).or_insert((turn_id, n));
                findings.check(owner == (turn_id, n), operation.returned, || {
                    format!("the number {seq} of {:?} was given to {owner:?} and to {:?}", place.0, (turn_id, n))
                });
            }
        }
    }
}

/// After every entry of the log, the replies of a turn have the text of its deltas so far. A tool call ends a reply, and
/// later text begins another one: `<turn>.a`, `<turn>.a.2`, ….
fn check_replies(replay: &Replay, findings: &mut Findings) {
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    let mut replies: BTreeMap<String, BTreeMap<u64, String>> = BTreeMap::new();
    for step in &replay.steps {
        for event in step.events.iter().filter(|event| event.kind() == EventKind::StreamEvent) {
            let stored = event.payload().value()["event"].clone();
            if let ("text_delta", Some(turn_id), Some(text)) =
                (stored["type"].as_str().unwrap_or_default(), stored["turnId"].as_str(), stored["text"].as_str())
            {
                said.entry(turn_id.to_owned()).or_default().push_str(text);
            }
        }
        let mut changed: Vec<String> = Vec::new();
        for event in &step.events {
            let (entry_id, body) = match &event.happened {
                Happened::MessageAdded(entry) => (&entry.id, entry.body.clone()),
                Happened::MessageUpdated { entry_id, message, .. } => {
                    (entry_id, session_manager::machine::entry::Body::Message(message.clone()))
                }
                _other => continue,
            };
            let Some((turn_id, rank)) = reply_of(entry_id.as_str()) else { continue };
            replies.entry(turn_id.to_owned()).or_default().insert(rank, reply::texts(&body).text);
            changed.push(turn_id.to_owned());
        }
        for turn_id in changed {
            let Some(said) = said.get(&turn_id) else { continue };
            let text: String = replies[&turn_id].values().map(String::as_str).collect();
            findings.check(text == *said, None, || {
                format!("entry {}: the reply of {turn_id:?} is {text:?}, its deltas said {said:?}", step.index)
            });
        }
    }
}

/// The turn of a reply, and the how manieth of the turn it is.
fn reply_of(entry_id: &str) -> Option<(&str, u64)> {
    if let Some(turn_id) = entry_id.strip_suffix(".a") {
        return Some((turn_id, 1));
    }
    let (turn_id, rank) = entry_id.rsplit_once(".a.")?;
    Some((turn_id, rank.parse().ok()?))
}

fn check_due(replay: &Replay, findings: &mut Findings) {
    let mut fired: BTreeMap<&str, u64> = BTreeMap::new();
    for step in replay.steps.iter().filter(|step| step.effective) {
        let Some(due) = &step.fired else { continue };
        // That of a driver stays until each of its sessions is done with, one entry for each.
        if due.contains("kind: Driver") {
            continue;
        }
        let first = *fired.entry(due.as_str()).or_insert(step.index);
        findings.check(first == step.index, None, || {
            format!("{due} fired at entry {first} and again at entry {}", step.index)
        });
    }
}
