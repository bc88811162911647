//! The law of the final state: after the clients have stopped, every node returns the state that the whole log gives,
//! including lists of all sessions.

use super::Findings;
use super::fresh::{answers, session_of};
use super::replay::{Asked, Replay};
use crate::history::{History, Outcome};

pub fn check(history: &History, replay: &Replay) -> Findings {
    let mut findings = Findings::of("rest");
    let Some(rested) = history.rested else { return findings };
    // A turn that nobody claims ends by itself, perhaps between two of the last reads. Such sessions are read in lists only.
    let later = |index: u64| {
        history.applied.iter().find(|applied| applied.entry.index() == index).is_none_or(|first| first.noticed > rested)
    };
    let changes_by_itself = replay.steps.iter().any(|step| step.fired.is_some() && step.effective && later(step.index));
    for operation in history.operations.iter().filter(|operation| operation.called > rested) {
        let (Asked::Question(question), function) = replay.asked(operation) else { continue };
        if changes_by_itself && session_of(question).is_none() {
            continue;
        }
        let seen = match &operation.outcome {
            Outcome::Answered(answer) => Ok(answer),
            Outcome::Refused { code, .. } => Err(code.as_str()),
            Outcome::Unavailable(_) | Outcome::Unknown(_) => continue,
        };
        findings.check(answers(&replay.state, question, function, seen), operation.returned, || {
            let should = replay.state.ask(question);
            format!(
                "node {} answers {} {} with {seen:?}; the log gives {should:?}",
                operation.node, operation.function, operation.request
            )
        });
    }
    findings
}
