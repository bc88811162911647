//! The law of once: an acknowledged mutation is in the log, with the answer that its client was told; none is there more
//! often than it was asked for; what was said not to have happened did not; and nothing is there that nobody asked for.

use serde_json::Value;
use session_manager::machine::Command;
use session_manager::requests::{Done, find};

use super::Findings;
use super::groups::{Group, Groups};
use super::replay::{Replay, response};
use crate::history::{History, Operation, Outcome};

pub fn check(history: &History, replay: &Replay) -> Findings {
    let mut findings = Findings::of("once");
    let Groups { groups, strangers } = Groups::of(history, replay);
    for step in strangers {
        let step = &replay.steps[step];
        findings.add(None, format!("entry {} was asked for by nobody: {:?}", step.index, step.command));
    }
    for group in groups.values() {
        check_group(group, replay, &mut findings);
    }
    findings
}

fn check_group(group: &Group, replay: &Replay, findings: &mut Findings) {
    let possible = group.possible().count();
    let first = group.operations[0];
    findings.check(group.effects.len() <= possible, Some(first.called), || {
        let indexes: Vec<u64> = group.effects.iter().map(|step| replay.steps[*step].index).collect();
        let ids: Vec<usize> = group.operations.iter().map(|operation| operation.id).collect();
        format!(
            "{} happened {} times (entries {indexes:?}), but of the calls {ids:?} at most {possible} can have: {}",
            first.function,
            group.effects.len(),
            first.request
        )
    });
    // Every step tells one answer; every acknowledgement of something that always has an effect needs a step of its own.
    let mut untold: Vec<Value> = group.effects.iter().map(|step| told(first, replay, *step)).collect();
    for operation in &group.operations {
        let Outcome::Answered(answer) = &operation.outcome else { continue };
        let place = untold.iter().position(|told| told == answer);
        match place {
            Some(place) => drop(untold.swap_remove(place)),
            // The answer was another step's, or says that nothing was to be done.
            None if !says_that_it_happened(&group.command, answer) => {}
            None => findings.add(
                operation.returned,
                format!(
                    "#{} {} was acknowledged with {answer}, but no entry of the log gives that answer: {}",
                    operation.id, operation.function, operation.request
                ),
            ),
        }
    }
}

fn told(operation: &Operation, replay: &Replay, step: usize) -> Value {
    let function = find(operation.function, true).expect("a function");
    match &replay.steps[step].answer {
        Ok(answer) => response(function, Done::Answered(answer.clone())),
        Err(_) => Value::Null,
    }
}

/// Whether an acknowledgement means that something was written. Repeated appends, stale revisions and the like are
/// acknowledged without.
fn says_that_it_happened(command: &Command, answer: &Value) -> bool {
    match command {
        Command::Create(_) | Command::AppendMany(_) | Command::Fork(_) | Command::Store(_) => true,
        Command::Append(append) => append.entry_id.is_none(),
        Command::UpdateMessage(_) => answer["updated"] == true,
        Command::Ensure(_) => answer["created"] == true,
        Command::Delete(_) => answer["deleted"] == true,
        Command::SetMeta(_) | Command::SetStatus(_) | Command::SetActiveLeaf(_) | Command::Feed(_) => false,
    }
}
