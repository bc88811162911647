//! The law of fresh reads: a read returns the session as it was at some entry of the log, and that entry is not older
//! than the last one that was acknowledged or read by any client before this read began.

use std::collections::BTreeMap;

use serde_json::Value;
use session_manager::machine::Query;
use session_manager::machine::ids::SessionId;
use session_manager::requests::{Done, Function};

use super::Findings;
use super::groups::Groups;
use super::replay::{Asked, Replay, State, response};
use super::versions::Versions;
use crate::history::{History, Moment, Operation, Outcome};

/// By session: when an entry became known, its index, and the operation that showed it.
type Floors = BTreeMap<SessionId, Vec<(Moment, u64, usize)>>;

pub fn check(history: &History, replay: &Replay, versions: &Versions, groups: &Groups<'_>) -> Findings {
    let mut findings = Findings::of("fresh");
    let mut floors = acknowledged(replay, groups);
    let mut reads: Vec<&Operation> = history.operations.iter().collect();
    reads.sort_by_key(|operation| operation.returned);
    for operation in reads {
        let (Asked::Question(question), function) = replay.asked(operation) else { continue };
        let Some(session_id) = session_of(question) else { continue };
        let seen = match &operation.outcome {
            Outcome::Answered(answer) => Ok(answer),
            Outcome::Refused { code, .. } => Err(code.as_str()),
            Outcome::Unavailable(_) | Outcome::Unknown(_) => continue,
        };
        let known = floors.entry(session_id.clone()).or_default();
        let floor = known.iter().filter(|(since, ..)| *since < operation.called).max_by_key(|(_, index, _)| *index);
        let at_least = floor.map_or(0, |(_, index, _)| *index);
        let tells = |(_, state): &&(u64, State)| answers(state, question, function, seen);
        match (versions.since(session_id, at_least).iter().find(tells), floor) {
            // Every later read must return at least this version. Of several versions with this answer the first
            // counts.
            (Some((shown, _)), _) => {
                if let Some(returned) = operation.returned {
                    known.push((returned, *shown, operation.id));
                }
            }
            (None, floor) => {
                let name = format!(
                    "#{} {} {} on node {}",
                    operation.id, operation.function, operation.request, operation.node
                );
                findings.add(
                    operation.returned,
                    match (versions.all(session_id).iter().rfind(tells), floor) {
                        (Some((from, _)), Some((_, index, by))) => format!(
                            "{name} returns the state of entry {from}, but #{by} knew entry {index} before: {seen:?}"
                        ),
                        (_, _) => format!("{name} returns a state that never existed: {seen:?}"),
                    },
                );
            }
        }
    }
    findings
}

/// The session that a query is about, if it is about one.
pub fn session_of(question: &Query) -> Option<&SessionId> {
    match question {
        Query::Meta(session_id)
        | Query::Entry(session_id, _)
        | Query::Leaf(session_id)
        | Query::Entries(session_id)
        | Query::EntriesAfter(session_id, _) => Some(session_id),
        Query::Messages(query) => Some(&query.session_id),
        Query::Export(query) => Some(&query.session_id),
        Query::Window(query) => Some(&query.session_id),
        Query::Tree(query) => Some(&query.session_id),
        Query::Within { query, .. } => session_of(query),
        Query::List(_)
        | Query::Metas
        | Query::MetasFrom(_)
        | Query::Cursor(_)
        | Query::Cursors(_)
        | Query::Beside(_) => None,
    }
}

/// Whether a state gives the answer that the client got.
pub fn answers(state: &State, question: &Query, function: &Function, seen: Result<&Value, &str>) -> bool {
    match (state.ask(question), seen) {
        (Ok(Ok(found)), Ok(answer)) => response(function, Done::Found(found)) == *answer,
        (Ok(Err(refusal)), Err(code)) => refusal.code() == code,
        (Ok(Ok(_)), Err(_)) | (Ok(Err(_)), Ok(_)) | (Err(_), _) => false,
    }
}

/// Acknowledged entries, where it is certain which entry an acknowledgement was for.
fn acknowledged(replay: &Replay, groups: &Groups<'_>) -> Floors {
    let mut floors = Floors::new();
    for group in groups.groups.values() {
        let ([step], true) = (&group.effects[..], group.possible().count() == 1) else { continue };
        let step = &replay.steps[*step];
        let (Some(operation), Some(session_id)) = (group.possible().next(), step.session_id()) else { continue };
        if let (Outcome::Answered(_), Some(returned)) = (&operation.outcome, operation.returned) {
            floors.entry(session_id.clone()).or_default().push((returned, step.index, operation.id));
            if let Some(forked) = step.forked() {
                floors.entry(forked.clone()).or_default().push((returned, step.index, operation.id));
            }
        }
    }
    floors
}
