//! The law of revisions: each update of a message raises its revision by one, no revision is acknowledged to two
//! updates, and no reader sees a revision that does not exist.

use std::collections::BTreeMap;

use session_manager::machine::Answer;
use session_manager::machine::Command;
use session_manager::machine::ids::{EntryId, SessionId};

use super::Findings;
use super::replay::Replay;
use crate::history::{History, Outcome};

/// The revisions that the log made of each entry. They start over when a session is deleted and created again.
type Made = BTreeMap<(SessionId, EntryId), Vec<u64>>;

pub fn check(history: &History, replay: &Replay) -> Findings {
    let mut findings = Findings::of("revisions");
    let made = made(replay, &mut findings);
    let mut told: BTreeMap<(SessionId, EntryId, u64), Vec<usize>> = BTreeMap::new();
    for operation in &history.operations {
        let Outcome::Answered(answer) = &operation.outcome else { continue };
        let (Some(session_id), Some(entry_id)) =
            (operation.request["session_id"].as_str(), operation.request["entry_id"].as_str())
        else {
            continue;
        };
        let key = (SessionId::from(session_id), EntryId::from(entry_id));
        let is_update = operation.function == "session::update-message" && answer["updated"] == true;
        let revision = match operation.function {
            "session::update-message" => answer["revision"].as_u64(),
            "session::get-message" => answer["entry"]["revision"].as_u64(),
            _other => None,
        };
        let Some(revision) = revision else { continue };
        let known = revision == 0 || made.get(&key).is_some_and(|made| made.contains(&revision));
        findings.check(known, operation.returned, || {
            format!("#{} got revision {revision} of {entry_id:?}, which does not exist", operation.id)
        });
        if is_update {
            told.entry((key.0, key.1, revision)).or_default().push(operation.id);
        }
    }
    for ((session_id, entry_id, revision), operations) in told {
        let times = made.get(&(session_id, entry_id.clone())).into_iter().flatten();
        let times = times.filter(|made| **made == revision).count();
        findings.check(operations.len() <= times.max(1), None, || {
            format!("revision {revision} of {:?} was acknowledged to the calls {operations:?}", entry_id.as_str())
        });
    }
    findings
}

/// The revisions that the log makes, in its order.
fn made(replay: &Replay, findings: &mut Findings) -> Made {
    let mut made = Made::new();
    let mut last: BTreeMap<(SessionId, EntryId), u64> = BTreeMap::new();
    for step in replay.steps.iter().filter(|step| step.effective) {
        match (&step.command, &step.answer) {
            (Some(Command::UpdateMessage(update)), Ok(Answer::Updated { revision, updated: true })) => {
                let key = (update.session_id.clone(), update.entry_id.clone());
                let before = last.insert(key.clone(), *revision).unwrap_or(0);
                findings.check(*revision == before + 1, None, || {
                    format!(
                        "entry {} makes revision {revision} of {:?} after revision {before}",
                        step.index,
                        key.1.as_str()
                    )
                });
                made.entry(key).or_default().push(*revision);
            }
            (Some(Command::Delete(delete)), Ok(_)) => last.retain(|(session, _), _| *session != delete.session_id),
            // Raw writes may set any revision.
            (Some(Command::Store(_)), _) | (Some(_) | None, Ok(_) | Err(_)) => {}
        }
    }
    made
}
