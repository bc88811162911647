//! The law of once: an acknowledged mutation is in the log, with the answer that its client got; no mutation takes
//! effect more often than it was sent; a mutation that was refused has no effect; and every effect was requested.

use serde_json::Value;
use session_manager::machine::Command;
use session_manager::requests::{Done, find};

use super::Findings;
use super::gateway;
use super::groups::{Group, Groups};
use super::replay::{Replay, response};
use crate::history::{Operation, Outcome};

pub fn check(replay: &Replay, groups: &Groups<'_>) -> Findings {
    let mut findings = Findings::of("once");
    let Groups { groups, unrequested } = groups;
    for step in unrequested.iter().map(|step| &replay.steps[*step]).filter(|step| !gateway::asked_for(step)) {
        findings.add(None, format!("no client requested entry {}: {:?}", step.index, step.command));
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
            "{} took effect {} times (entries {indexes:?}), but at most {possible} of the calls {ids:?} can have: {}",
            first.function,
            group.effects.len(),
            first.request
        )
    });
    // Every step gives one answer. A command that always takes effect needs one step for each acknowledgement.
    let mut answers: Vec<Value> = group.effects.iter().map(|step| answer_of(first, replay, *step)).collect();
    for operation in &group.operations {
        let Outcome::Answered(answer) = &operation.outcome else { continue };
        let place = answers.iter().position(|given| given == answer);
        match place {
            Some(place) => drop(answers.swap_remove(place)),
            // The answer came from another step, or says that there was nothing to do.
            None if !implies_an_effect(&group.command, answer) => {}
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

fn answer_of(operation: &Operation, replay: &Replay, step: usize) -> Value {
    let function = find(operation.function, true).expect("a function");
    match &replay.steps[step].answer {
        Ok(answer) => response(function, Done::Answered(answer.clone())),
        Err(_) => Value::Null,
    }
}

/// Whether an acknowledgement means that something was written. Retried appends, stale revisions and the like are
/// acknowledged without a write.
fn implies_an_effect(command: &Command, answer: &Value) -> bool {
    match command {
        Command::Create(_) | Command::AppendMany(_) | Command::Fork(_) | Command::Store(_) => true,
        Command::Append(append) => append.entry_id.is_none(),
        Command::UpdateMessage(_) => answer["updated"] == true,
        Command::Ensure(_) => answer["created"] == true,
        Command::Delete(_) => answer["deleted"] == true,
        Command::SetMeta(_)
        | Command::SetStatus(_)
        | Command::SetActiveLeaf(_)
        | Command::Import(_)
        | Command::Feed(_)
        | Command::Beside(_)
        | Command::Long(_) => false,
    }
}
