//! Owns: which operations requested which entries of the log. Equal requests cannot be distinguished, so they form a
//! group.
//! Never: checks.

use std::collections::BTreeMap;
use std::sync::Arc;

use session_manager::machine::Command;
use session_manager::machine::scope::Scope;

use super::replay::{Asked, CommandKey, Replay};
use crate::history::{History, Operation, Outcome};

/// All operations with the same command under the same scope, and the steps of the log that executed it.
pub struct Group<'a> {
    pub command: Command,
    pub scope: Option<Arc<Scope>>,
    /// In the order of their calls.
    pub operations: Vec<&'a Operation>,
    /// Steps that took effect, in log order, as indexes of `Replay::steps`.
    pub effects: Vec<usize>,
}

impl Group<'_> {
    /// The operations that may have been executed.
    pub fn possible(&self) -> impl Iterator<Item = &Operation> {
        let possible = |operation: &&Operation| match operation.outcome {
            Outcome::Answered(_) | Outcome::Unknown(_) => true,
            Outcome::Refused { .. } | Outcome::Unavailable(_) => false,
        };
        self.operations.iter().copied().filter(possible)
    }
}

pub struct Groups<'a> {
    pub groups: BTreeMap<CommandKey, Group<'a>>,
    /// Steps that no operation requested.
    pub unrequested: Vec<usize>,
}

impl<'a> Groups<'a> {
    pub fn of(history: &'a History, replay: &Replay) -> Groups<'a> {
        let mut groups: BTreeMap<CommandKey, Group> = BTreeMap::new();
        for operation in history.operations.iter().filter(|operation| operation.mutates()) {
            let (Asked::Mutation(command), _) = replay.asked(operation) else { continue };
            let key = CommandKey::of(command, operation.scope.as_ref());
            let effects = || replay.effects.get(&key).cloned().unwrap_or_default();
            let group = groups.entry(key.clone()).or_insert_with(|| Group {
                command: command.clone(),
                scope: operation.scope.clone(),
                operations: Vec::new(),
                effects: effects(),
            });
            group.operations.push(operation);
        }
        let unasked = replay.effects.iter().filter(|(key, _)| !groups.contains_key(key));
        let unrequested = unasked.flat_map(|(_, steps)| steps.iter().copied()).collect();
        Groups { groups, unrequested }
    }
}
