//! The laws of turns: no turn is claimed by two drivers; no batch counts twice and none is lost once it is acknowledged;
//! the numbers of a stream are dense and never given twice; the reply of a turn is what its deltas said; and what
//! is due fires exactly once, unless it was renewed.

use std::collections::BTreeMap;

use serde_json::Value;
use session_manager::machine::apply::beside::Beside;
use session_manager::machine::beside::{RecordKey, Space};
use session_manager::machine::event::{EventKind, Happened};
use session_manager::machine::turn::driver::GONE_AFTER_MS;
use session_manager::machine::turn::due::DueKind;
use session_manager::machine::turn::{TurnCommand, reply};
use session_manager::machine::view::View;
use session_manager::machine::{Answer, Command};
use session_manager::storage::state::beside;

use super::replay::Replay;
use super::{Broken, Findings};
use crate::history::{History, Outcome};

/// The events of the streams, by session, how often it was deleted before, and number.
type Streams = BTreeMap<(String, u64, u64), Value>;

pub(super) fn check(history: &History, replay: &Replay) -> Findings {
    let mut findings = Findings::of("turns");
    let streams = streams(replay, &mut findings);
    check_claims(history, &mut findings);
    check_batches(history, &streams, &mut findings);
    check_replies(replay, &mut findings);
    findings.broken.extend(due(replay));
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

/// The laws of due times alone.
pub fn due(replay: &Replay) -> Vec<Broken> {
    let mut findings = Findings::of("turns");
    check_fired(replay, &mut findings);
    check_drivers(replay, &mut findings);
    check_forgotten(replay, &mut findings);
    findings.broken
}

/// Nothing fires twice.
fn check_fired(replay: &Replay, findings: &mut Findings) {
    let mut fired: BTreeMap<String, u64> = BTreeMap::new();
    for step in replay.steps.iter().filter(|step| step.effective) {
        let Some(due) = &step.fired else { continue };
        // It takes one entry for each session of the driver: see `check_drivers`.
        if due.kind == DueKind::Driver {
            continue;
        }
        let first = *fired.entry(format!("{due:?}")).or_insert(step.index);
        findings.check(first == step.index, None, || {
            format!("{due:?} fired at entry {first} and again at entry {}", step.index)
        });
    }
}

/// A driver that the cluster knows.
struct Known {
    /// It is gone after this time, unless it is seen again.
    seen_until: i64,
    /// The due time that stands.
    due_at: i64,
}

/// A driver that was seen in time is not given up: its due time moves. One that was not is given up once: each entry ends
/// what it had in one session, the last one forgets it.
fn check_drivers(replay: &Replay, findings: &mut Findings) {
    let mut known: BTreeMap<&str, Known> = BTreeMap::new();
    for step in replay.steps.iter().filter(|step| step.effective) {
        let (index, now) = (step.index, step.stamp.at_ms);
        let seen_until = now + GONE_AFTER_MS;
        match &step.command {
            Some(Command::Beside(Beside::Turn(TurnCommand::Attach(attach)))) => {
                let driver = known.entry(&attach.driver_id).or_insert(Known { seen_until, due_at: seen_until });
                driver.seen_until = seen_until;
            }
            Some(Command::Beside(Beside::Turn(TurnCommand::Detach { driver_id, .. }))) => {
                if let Some(driver) = known.get_mut(driver_id.as_str()) {
                    driver.seen_until = seen_until;
                }
            }
            _other => {}
        }
        let Some(due) = step.fired.as_ref().filter(|due| due.kind == DueKind::Driver) else { continue };
        let Some(driver) = known.get_mut(due.id.as_str()) else {
            findings.add(None, format!("entry {index}: {due:?} fired, but the driver is given up already"));
            continue;
        };
        findings.check(driver.due_at == due.at_ms, None, || {
            format!("entry {index}: {due:?} fired, but {} stands", driver.due_at)
        });
        let is_renewed = driver.seen_until > now;
        let gave_up = matches!(&step.answer, Ok(Answer::Value(answer)) if answer.value()["fired"] == true);
        findings.check(gave_up != is_renewed, None, || {
            let (until, how) = (driver.seen_until, if gave_up { "given up" } else { "kept" });
            format!("entry {index}, at {now}: driver {:?} was seen until {until}, and is {how}", due.id)
        });
        let stands = step.changed.get(&beside::key(&due.key(), 0)) != Some(&None);
        match (is_renewed, stands) {
            (true, true) => findings.add(None, format!("entry {index}: {due:?} was renewed and stands")),
            (true, false) => driver.due_at = driver.seen_until,
            (false, true) => {}
            (false, false) => drop(known.remove(due.id.as_str())),
        }
    }
}

/// A leader looks for what is due twice a second. What still stands after the log has moved for so long is forgotten.
const FORGOTTEN_AFTER_MS: i64 = 10_000;
/// A longer pause of the log is time without a leader.
const PAUSE_MS: i64 = 1_000;
/// More than a run leaves.
const STANDING_MAX: usize = 10_000;

/// What stands and is over fires.
fn check_forgotten(replay: &Replay, findings: &mut Findings) {
    let standing = match replay.state.view().records(&RecordKey::of_cluster(Space::Due), None, STANDING_MAX) {
        Ok(standing) => standing,
        Err(fault) => return findings.add(None, format!("the due times cannot be read: {fault}")),
    };
    for (key, _) in standing {
        let due_at = key.number(0).and_then(|at| i64::try_from(at).ok()).unwrap_or(i64::MAX);
        let (mut moved, mut last) = (0, due_at);
        for now in replay.steps.iter().map(|step| step.stamp.at_ms).filter(|now| *now > due_at) {
            moved += (now - last).clamp(0, PAUSE_MS);
            last = last.max(now);
        }
        findings.check(moved < FORGOTTEN_AFTER_MS, None, || {
            format!("{key:?} was due at {due_at} and stands, although the log moved for {moved} ms since")
        });
    }
}
