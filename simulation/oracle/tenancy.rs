//! The law of tenancy: a caller with a scope learns nothing of a session that was outside its scope during the whole call.
//!
//! - No answer, refusal or event contains a text or an id that only such sessions held. Every text of a client is unique,
//!   and so is every id that the cluster makes.
//! - A call about such a session is answered as if there were no sessions at all.
//! - No command changes such a session, or moves one out of the scope of its caller.
//! - The raw store and the bridge are forbidden to such a caller.
//! - In the end a caller lists its own sessions, all of them and no others.
//!
//! The machine hides sessions by `ScopedView`; this check does without it: it compares with who owned which session when.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use session_manager::machine::event::Happened;
use session_manager::machine::ids::{EntryId, RequestId, SessionId};
use session_manager::machine::json::Object;
use session_manager::machine::refusal::Refusal;
use session_manager::machine::scope::Scope;
use session_manager::machine::session::SessionMeta;
use session_manager::machine::stamp::Stamp;
use session_manager::machine::view::View;
use session_manager::machine::{Answer, Command, Stamped};
use session_manager::requests::Done;

use super::Findings;
use super::replay::{Asked, Replay, State, Step, asked, response};
use super::versions::Versions;
use crate::history::{Delivery, History, Moment, Operation, Outcome, Subscription};

/// An entry is noticed as applied at most so much later. A long command takes up to three seconds.
const NOTICED_MS: u64 = 4_000;

pub fn check(history: &History, replay: &Replay, versions: &Versions) -> Findings {
    let mut findings = Findings::of("tenancy");
    let known = Known { owners: Owners::of(replay, versions), marks: Marks::of(replay, versions) };
    let times = Times::of(history);
    for step in replay.steps.iter().filter(|step| step.effective) {
        known.check_step(step, &mut findings);
    }
    for operation in &history.operations {
        let Some(scope) = &operation.scope else { continue };
        let window = times.window(operation.called, operation.returned.unwrap_or(operation.called));
        known.check_call(history, operation, scope, window, &mut findings);
        if history.rested.is_some_and(|rested| operation.called > rested) {
            check_list(replay, operation, scope, &mut findings);
        }
    }
    for delivery in &history.deliveries {
        let subscription = &history.subscriptions[delivery.subscription];
        known.check_delivery(&times, subscription, delivery, &mut findings);
    }
    findings
}

/// The first and the last entry of the log whose state a caller may have seen.
type Window = (u64, u64);

/// When entries of the log were applied.
struct Times {
    /// By moment: the highest entry that any node was seen to have applied.
    applied: Vec<(Moment, u64)>,
}

impl Times {
    fn of(history: &History) -> Times {
        let mut applied: Vec<(Moment, u64)> = Vec::new();
        for one in &history.applied {
            let furthest = applied.last().map_or(0, |(_, furthest)| *furthest);
            applied.push((one.noticed, furthest.max(one.entry.index())));
        }
        Times { applied }
    }

    fn window(&self, called: Moment, returned: Moment) -> Window {
        let before = self.applied.partition_point(|(noticed, _)| *noticed < called);
        (before.checked_sub(1).map_or(0, |last| self.applied[last].1), self.latest(returned))
    }

    /// The last entry that a node may have applied by then.
    fn latest(&self, by: Moment) -> u64 {
        let later = self.applied.partition_point(|(noticed, _)| noticed.at_ms <= by.at_ms + NOTICED_MS);
        later.checked_sub(1).map_or(0, |last| self.applied[last].1)
    }
}

/// By session: from which entry on it had which metadata. `None`: there was no such session.
struct Owners(BTreeMap<SessionId, Vec<(u64, Option<Object>)>>);

impl Owners {
    fn of(replay: &Replay, versions: &Versions) -> Owners {
        let mut owners = BTreeMap::new();
        for session_id in sessions(replay) {
            let metadata = |state: &State| meta(state, session_id).map(|meta| meta.metadata.unwrap_or_default());
            let all = versions.all(session_id).iter().map(|(from, state)| (*from, metadata(state))).collect();
            owners.insert(session_id.clone(), all);
        }
        Owners(owners)
    }

    /// The metadata of a session after this entry.
    fn at(&self, session_id: &SessionId, index: u64) -> Option<&Object> {
        let all = self.0.get(session_id)?;
        let held = all.partition_point(|(from, _)| *from <= index).checked_sub(1)?;
        all[held].1.as_ref()
    }

    /// Whether the session was within the scope after some entry of the window.
    fn within(&self, session_id: &SessionId, scope: &Scope, (first, last): Window) -> bool {
        let Some(all) = self.0.get(session_id) else { return false };
        let begun = all.partition_point(|(from, _)| *from <= first).saturating_sub(1);
        let during = all[begun..].iter().take_while(|(from, _)| *from <= last);
        first <= last && during.filter_map(|(_, metadata)| metadata.as_ref()).any(|metadata| owns(scope, metadata))
    }
}

fn owns(scope: &Scope, metadata: &Object) -> bool {
    scope.fields().iter().all(|(key, value)| metadata.get(key) == Some(value))
}

fn sessions(replay: &Replay) -> BTreeSet<&SessionId> {
    let effective = replay.steps.iter().filter(|step| step.effective);
    effective.flat_map(|step| step.session_id().into_iter().chain(step.forked())).collect()
}

fn meta(state: &State, session_id: &SessionId) -> Option<SessionMeta> {
    state.view().meta(session_id).ok().flatten()
}

/// A session that holds a mark, from one entry of the log to another.
struct Held {
    session_id: SessionId,
    from: u64,
    until: u64,
}

/// Texts and ids by which data can be recognised, and the sessions that hold them.
struct Marks(BTreeMap<String, Vec<Held>>);

impl Marks {
    fn of(replay: &Replay, versions: &Versions) -> Marks {
        let mut marks = Marks(BTreeMap::new());
        // By session: the marks that it holds now.
        let mut open: BTreeMap<SessionId, BTreeMap<String, u64>> = BTreeMap::new();
        for step in replay.steps.iter().filter(|step| step.effective) {
            let Some(session_id) = step.forked().or(step.session_id()) else { continue };
            let state = versions.since(session_id, step.index).first().map(|(_, state)| state);
            let holds = open.entry(session_id.clone()).or_default();
            for mark in made(step, state, session_id) {
                holds.entry(mark).or_insert(step.index);
            }
            if state.is_none_or(|state| meta(state, session_id).is_none()) {
                let ended = std::mem::take(holds);
                marks.close(session_id, ended, step.index.saturating_sub(1));
            }
        }
        for (session_id, holds) in open {
            marks.close(&session_id, holds, u64::MAX);
        }
        marks
    }

    fn close(&mut self, session_id: &SessionId, holds: BTreeMap<String, u64>, until: u64) {
        for (mark, from) in holds {
            self.0.entry(mark).or_default().push(Held { session_id: session_id.clone(), from, until });
        }
    }
}

/// The marks that a step adds to a session.
fn made(step: &Step, state: Option<&State>, session_id: &SessionId) -> BTreeSet<String> {
    let mut marks = BTreeSet::from([session_id.as_str().to_owned()]);
    for value in step.changed.values().flatten() {
        marks.extend(written(&String::from_utf8_lossy(value)));
    }
    // A fork has the title of its source, which may be the id of a session.
    marks.extend(state.and_then(|state| meta(state, session_id)).map(|meta| meta.title));
    if let Some(state) = state.filter(|_| step.forked().is_some()) {
        let entries = state.view().entries(session_id).unwrap_or_default();
        marks.extend(entries.iter().map(|entry| entry.id.as_str().to_owned()));
        let source = meta(state, session_id).and_then(|meta| meta.forked_from);
        marks.extend(source.map(|source| source.as_str().to_owned()));
    }
    let added = step.events.iter().filter_map(|event| match &event.happened {
        Happened::MessageAdded(entry) => Some(&entry.id),
        Happened::Created { .. }
        | Happened::MessageUpdated { .. }
        | Happened::StatusChanged { .. }
        | Happened::MetaUpdated { .. }
        | Happened::Deleted { .. }
        | Happened::Noted { .. }
        | Happened::Published { .. } => None,
    });
    marks.extend(added.map(EntryId::as_str).map(str::to_owned));
    marks
}

/// The texts of clients within another text: `client 3 write 14`.
fn written(text: &str) -> Vec<String> {
    let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
    let mut found = Vec::new();
    for (at, begin) in text.match_indices("client ") {
        let client = number(&text[at + begin.len()..]);
        let Some(rest) = text[at + begin.len() + client.len()..].strip_prefix(" write ") else { continue };
        found.push(format!("client {client} write {}", number(rest)));
    }
    found
}

/// All strings in a value, and all texts of clients within them.
fn shown(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            found.extend(written(text));
            // An empty text says nothing about anybody.
            found.extend(Some(text.clone()).filter(|text| !text.is_empty()));
        }
        Value::Array(items) => items.iter().for_each(|item| shown(item, found)),
        Value::Object(fields) => fields.values().for_each(|value| shown(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The same of a sentence: what it quotes, and the texts of clients.
fn quoted(words: &str) -> BTreeSet<String> {
    words.split('"').skip(1).step_by(2).map(str::to_owned).chain(written(words)).collect()
}

/// What the log says about who owned what.
struct Known {
    owners: Owners,
    marks: Marks,
}

impl Known {
    /// A mark in this text that only sessions outside the scope held.
    fn foreign<'a>(&self, texts: &'a BTreeSet<String>, scope: &Scope, (first, last): Window) -> Option<&'a String> {
        let may_know = |held: &Held| {
            let window = (first.max(held.from), last.min(held.until));
            self.owners.within(&held.session_id, scope, window)
        };
        texts.iter().find(|text| self.marks.0.get(*text).is_some_and(|held| !held.iter().any(may_know)))
    }

    fn check_call(
        &self,
        history: &History,
        operation: &Operation,
        scope: &Scope,
        window: Window,
        findings: &mut Findings,
    ) {
        let Operation { id, function, request, outcome, .. } = operation;
        let name = || format!("#{id} {function} {request} within {}", scope.text());
        let is_raw = function.starts_with("session::store::");
        if is_raw || history.bridge == Some(operation.node) {
            let answers = matches!(outcome, Outcome::Answered(_) | Outcome::Refused { .. });
            findings.check(!answers || operation.is_forbidden(), operation.returned, || {
                format!("{} is forbidden, but got {outcome:?}", name())
            });
            return;
        }
        let (mut asked_for, mut told) = (BTreeSet::new(), BTreeSet::new());
        shown(request, &mut asked_for);
        match outcome {
            Outcome::Answered(answer) => shown(answer, &mut told),
            Outcome::Refused { message, .. } | Outcome::Unavailable(message) | Outcome::Unknown(message) => {
                told = quoted(message);
            }
        }
        told.retain(|text| !asked_for.contains(text));
        if let Some(foreign) = self.foreign(&told, scope, window) {
            let words = format!("{} shows {foreign:?}, which is outside its scope: {outcome:?}", name());
            findings.add(operation.returned, words);
        }
        let Some(session_id) = request["session_id"].as_str().map(SessionId::from) else { return };
        let is_final = matches!(outcome, Outcome::Answered(_) | Outcome::Refused { .. });
        if !is_final || self.owners.within(&session_id, scope, window) {
            return;
        }
        let expected = told_about_nothing(operation, &session_id);
        findings.check(expected.is_empty() || expected.contains(outcome), operation.returned, || {
            format!("{} tells that the session exists: {outcome:?} instead of {expected:?}", name())
        });
    }

    /// What a command of a scoped caller did.
    fn check_step(&self, step: &Step, findings: &mut Findings) {
        let Some(scope) = &step.scope else { return };
        for session_id in step.session_id().into_iter().chain(step.forked()) {
            for index in [step.index.saturating_sub(1), step.index] {
                let metadata = self.owners.at(session_id, index);
                findings.check(metadata.is_none_or(|metadata| owns(scope, metadata)), None, || {
                    format!(
                        "entry {} within {} changes {:?}, which has the metadata {metadata:?} at entry {index}",
                        step.index,
                        scope.text(),
                        session_id.as_str()
                    )
                });
            }
        }
    }

    fn check_delivery(&self, times: &Times, subscription: &Subscription, delivery: &Delivery, findings: &mut Findings) {
        let Some(scope) = &subscription.scope else { return };
        // An event may be completed from any later state. A deletion is about the state before it.
        let before = u64::from(delivery.kind == "session::deleted");
        let window = (delivery.place.index.saturating_sub(before), times.latest(delivery.heard));
        let mut told = BTreeSet::new();
        shown(&delivery.payload, &mut told);
        let session_id = SessionId::from(delivery.session_id.as_str());
        let is_within = self.owners.within(&session_id, scope, window);
        let foreign = self.foreign(&told, scope, window);
        // The numbers of a session start over when it is made anew, perhaps by another tenant.
        let same_life = delivery.skipped.is_none_or(|(first, last)| first <= last && last < delivery.seq);
        findings.check(is_within && foreign.is_none() && same_life, Some(delivery.heard), || {
            let (id, scope) = (subscription.id, scope.text());
            format!("subscription {id} within {scope} received {delivery:?}, which shows what is outside ({foreign:?})")
        });
    }
}

/// What a caller may be told about a session if there are no sessions at all. Nothing: the request says nothing about one.
fn told_about_nothing(operation: &Operation, session_id: &SessionId) -> Vec<Outcome> {
    let (asked, function) = asked(operation);
    let mut nothing = State::default();
    let answers = match asked {
        Asked::Mutation(command) => {
            let is_ensure = matches!(command, Command::Ensure(_));
            let answer = applied(operation, command, &mut nothing);
            // Ids that callers choose share one space: only another tenant's id is refused as unknown.
            let unknown = is_ensure.then(|| Err(Refusal::SessionUnknown(session_id.clone())));
            let answer = answer.filter(|answer| !is_ensure || answer.is_err());
            answer.into_iter().chain(unknown).map(|answer| answer.map(Done::Answered)).collect()
        }
        Asked::Question(question) => Vec::from_iter(nothing.ask(&question).ok().map(|found| found.map(Done::Found))),
        Asked::Malformed | Asked::Operational => Vec::new(),
    };
    let outcome = |answer| match answer {
        Ok(done) => Outcome::Answered(response(function, done)),
        Err(refusal) => refused(&refusal),
    };
    answers.into_iter().map(outcome).collect()
}

fn refused(refusal: &Refusal) -> Outcome {
    Outcome::Refused { code: refusal.code().to_owned(), message: refusal.to_string() }
}

fn applied(operation: &Operation, command: Command, state: &mut State) -> Option<Result<Answer, Refusal>> {
    let (stamp, request_id) = (Stamp { at_ms: 0, seed: 1 }, RequestId::NONE);
    let stamped = Stamped { stamp, request_id, is_retry: false, scope: operation.scope.clone(), command };
    Some(state.apply(&stamped).ok()?.answer)
}

/// The list of a caller after all writes: its sessions in the final state.
fn check_list(replay: &Replay, operation: &Operation, scope: &Scope, findings: &mut Findings) {
    let (Outcome::Answered(answer), "session::list") = (&operation.outcome, operation.function) else { return };
    if !operation.request["metadata"].is_null() || !operation.request["cursor"].is_null() {
        return;
    }
    let listed = answer["sessions"].as_array().into_iter().flatten();
    let listed: BTreeSet<&str> = listed.filter_map(|session| session["session_id"].as_str()).collect();
    let is_own = |session_id: &&SessionId| {
        meta(&replay.state, session_id).is_some_and(|meta| owns(scope, &meta.metadata.unwrap_or_default()))
    };
    let owned: BTreeSet<&str> = sessions(replay).into_iter().filter(is_own).map(SessionId::as_str).collect();
    findings.check(listed == owned, operation.returned, || {
        format!("#{} within {} lists {listed:?}, but owns {owned:?}", operation.id, scope.text())
    });
}
