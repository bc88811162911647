//! The laws of the session model: one turn of a session runs at a time, and each once; a message that was acknowledged is in
//! the log, and one that asked for a turn has it; the counts of a profile are what the log says; the numbers of the stream
//! are dense; and nothing that is due is forgotten. That nothing fires twice is a law of turns.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use session_manager::machine::Command;
use session_manager::machine::apply::beside::Beside;
use session_manager::machine::beside::{RecordKey, Space};
use session_manager::machine::entry::Body;
use session_manager::machine::event::{Event, EventKind, Happened};
use session_manager::machine::ids::SessionId;
use session_manager::machine::message::Role;
use session_manager::machine::model::{ModelCommand, records};
use session_manager::machine::turn::record::Turn;
use session_manager::machine::turn::reply;
use session_manager::machine::view::View;
use session_manager::requests::{Done, find};

use super::Findings;
use super::replay::{Replay, Step, response};
use crate::history::{History, Outcome};

/// A leader looks twice a second for what is due, and an election takes a second or two.
const LATE_MS: i64 = 3_000;
/// Due times that are looked at.
const DUE_MAX: usize = 1000;

/// What a run shows of the session model. `check` collects it from the log, and the tests break it.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub lives: Vec<Life>,
    /// By message: the answer that a client got, and those that the log gives. A session may be deleted and made anew.
    pub acknowledged: Vec<(String, Value)>,
    pub logged: BTreeMap<String, Vec<Value>>,
    /// What was due and did not fire, and by how much it is late.
    pub late: Vec<(String, i64)>,
}

/// A session from its first event until it is deleted, or until the end.
#[derive(Debug, Clone, Default)]
pub struct Life {
    pub session_id: String,
    /// Of its stream, in the order of the log.
    pub numbers: Vec<u64>,
    /// Begins and ends of turns, in the order of the log.
    pub turns: Vec<(String, Change)>,
    /// The turns that messages asked for, by message.
    pub asked: BTreeMap<String, String>,
    /// Those that are queued or run at the end.
    pub unfinished: BTreeSet<String>,
    pub messages: u64,
    pub completed: u64,
    /// What the profile says at the end; `None` for a session that is deleted or none of the model.
    pub profile: Option<Counts>,
    /// Replies that have a text.
    said: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Begins,
    Ends,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub messages: u64,
    pub completed: u64,
    pub last_event_id: u64,
}

pub(super) fn check(history: &History, replay: &Replay) -> Findings {
    let mut findings = Findings::of("model");
    match Seen::of(history, replay) {
        Ok(seen) => judge(&seen, &mut findings),
        Err(words) => findings.add(None, words),
    }
    findings
}

/// The violations of what a run shows, as words.
#[allow(dead_code, reason = "the tests of this oracle use it")]
pub fn broken(seen: &Seen) -> Vec<String> {
    let mut findings = Findings::of("model");
    judge(seen, &mut findings);
    findings.broken.into_iter().map(|broken| broken.words).collect()
}

fn judge(seen: &Seen, findings: &mut Findings) {
    for life in &seen.lives {
        judge_turns(life, findings);
        let dense = life.numbers.iter().zip(1..).all(|(number, place)| *number == place);
        findings
            .check(dense, None, || format!("the numbers of {:?} are not dense: {:?}", life.session_id, life.numbers));
        let Some(profile) = life.profile else { continue };
        let (messages, completed, last_event_id) = (life.messages, life.completed, life.numbers.len() as u64);
        let log = Counts { messages, completed, last_event_id };
        findings.check(profile == log, None, || {
            format!("the profile of {:?} says {profile:?}, the log gives {log:?}", life.session_id)
        });
    }
    for (message_id, answer) in &seen.acknowledged {
        let logged = seen.logged.get(message_id);
        let same = logged.into_iter().flatten().any(|logged| {
            ["entry_id", "turn_id", "triggered"].iter().all(|field| logged.get(field) == answer.get(field))
        });
        findings.check(same, None, || {
            format!("message {message_id:?} was acknowledged with {answer}, the log gives {logged:?}")
        });
    }
    for (due, late_ms) in &seen.late {
        findings.check(false, None, || format!("{due} is {late_ms} ms late and did not fire"));
    }
}

fn judge_turns(life: &Life, findings: &mut Findings) {
    let (mut running, mut begun, mut ended) = (None, BTreeSet::new(), BTreeSet::new());
    for (turn_id, change) in &life.turns {
        match change {
            Change::Begins => {
                findings.check(running.is_none(), None, || {
                    format!("turn {turn_id:?} of {:?} begins while {running:?} runs", life.session_id)
                });
                findings.check(begun.insert(turn_id) && !ended.contains(turn_id), None, || {
                    format!("turn {turn_id:?} of {:?} begins a second time", life.session_id)
                });
                running = Some(turn_id);
            }
            Change::Ends => {
                findings.check(ended.insert(turn_id), None, || {
                    format!("turn {turn_id:?} of {:?} ends a second time", life.session_id)
                });
                running = running.filter(|running| *running != turn_id);
            }
        }
    }
    for (message_id, turn_id) in &life.asked {
        findings.check(ended.contains(turn_id) || life.unfinished.contains(turn_id), None, || {
            format!("message {message_id:?} of {:?} asked for turn {turn_id:?}, which is lost", life.session_id)
        });
    }
}

impl Seen {
    /// Errors: a record that cannot be read.
    pub fn of(history: &History, replay: &Replay) -> Result<Seen, String> {
        let mut seen = Seen::default();
        let mut open: BTreeMap<String, Life> = BTreeMap::new();
        for step in &replay.steps {
            for event in &step.events {
                let session_id = event.session_id.as_str();
                let life = open
                    .entry(session_id.to_owned())
                    .or_insert_with(|| Life { session_id: session_id.to_owned(), ..Life::default() });
                life.follow(event);
                if event.kind() == EventKind::Deleted {
                    seen.lives.extend(open.remove(session_id));
                }
            }
            if let Some((message_id, answer, session_id)) = posted(step) {
                if let (Some(turn_id), Some(life)) = (answer["turn_id"].as_str(), open.get_mut(&session_id)) {
                    life.asked.insert(message_id.clone(), turn_id.to_owned());
                }
                seen.logged.entry(message_id).or_default().push(answer);
            }
        }
        let view = replay.state.view();
        for life in open.values_mut() {
            life.read(&view).map_err(|fault| fault.to_string())?;
        }
        seen.lives.extend(open.into_values());
        for operation in history.operations.iter().filter(|operation| operation.function == "session::post") {
            let Outcome::Answered(answer) = &operation.outcome else { continue };
            let message_id = operation.request["message"]["messageId"].as_str().unwrap_or_default();
            seen.acknowledged.push((message_id.to_owned(), answer.clone()));
        }
        let clock_ms = view.clock_ms().map_err(|fault| fault.to_string())?;
        let due = view.records(&RecordKey::of_cluster(Space::Due), None, DUE_MAX).map_err(|fault| fault.to_string())?;
        for (key, _) in due {
            let late_ms = clock_ms - key.number(0).map_or(i64::MAX, |at_ms| at_ms as i64);
            if late_ms > LATE_MS {
                seen.late.push((format!("{:?}", key.parts), late_ms));
            }
        }
        Ok(seen)
    }
}

/// The message that a command stored: its id, the answer, and its session in the store.
fn posted(step: &Step) -> Option<(String, Value, String)> {
    let Some(Command::Beside(Beside::Model(ModelCommand::Post { .. }))) = &step.command else { return None };
    let function = find("session::post", true)?;
    let answer = step.answer.as_ref().ok().filter(|_| step.effective)?;
    let answer = response(function, Done::Answered(answer.clone()));
    let message_id = answer["message_id"].as_str()?.to_owned();
    Some((message_id, answer, step.events.first()?.session_id.as_str().to_owned()))
}

impl Life {
    fn follow(&mut self, event: &Event) {
        match (&event.happened, event.kind()) {
            (Happened::MessageAdded(entry), _) => self.count(entry.id.as_str(), &entry.body),
            (Happened::MessageUpdated { entry_id, message, .. }, _) => {
                self.count(entry_id.as_str(), &Body::Message(message.clone()));
            }
            (_, EventKind::ProfileEvent) => self.numbers.extend(event.payload().value()["event_id"].as_u64()),
            (_, EventKind::StreamEvent) => {
                let stored = event.payload().value()["event"].clone();
                let Some(turn_id) = stored["turnId"].as_str().map(str::to_owned) else { return };
                match stored["type"].as_str().unwrap_or_default() {
                    "turn_started" => self.turns.push((turn_id, Change::Begins)),
                    name @ ("turn_complete" | "turn_error" | "stop_acknowledged") => {
                        self.completed += u64::from(name == "turn_complete");
                        self.turns.push((turn_id, Change::Ends));
                    }
                    _other => {}
                }
            }
            _other => {}
        }
    }

    /// Messages of people count when they are stored, replies when they say something.
    fn count(&mut self, entry_id: &str, body: &Body) {
        let Body::Message(message) = body else { return };
        let texts = reply::texts(body);
        let counts = match message.role {
            Role::User => true,
            Role::Assistant => !texts.text.is_empty() || !texts.thinking.is_empty(),
            Role::FunctionResult | Role::Custom => false,
        };
        if counts && self.said.insert(entry_id.to_owned()) {
            self.messages += 1;
        }
    }

    /// What the state says at the end.
    fn read(&mut self, view: &dyn View) -> Result<(), session_manager::machine::refusal::Fault> {
        let session_id = SessionId::from(self.session_id.as_str());
        if let Some(profile) = records::profile(view, &session_id)? {
            self.profile = Some(Counts {
                messages: profile.message_count,
                completed: profile.completed_turn_count,
                last_event_id: profile.counted.event_id,
            });
        }
        for turn_id in self.asked.values() {
            let key = RecordKey::of_session(&session_id, Space::Turn).with(turn_id.as_str());
            let turn: Option<Turn> = records::read(view, &key)?;
            if turn.is_some_and(|turn| !turn.state.is_over()) {
                self.unfinished.insert(turn_id.clone());
            }
        }
        Ok(())
    }
}
