//! Owns: which operations asked for which entries of the log. Equal requests cannot be told apart, so they stand together.
//! Never: judge.

use std::collections::BTreeMap;

use session_manager::machine::Command;

use super::replay::{Asked, Deed, Replay, asked};
use crate::history::{History, Operation, Outcome};

/// Everybody who asked for the same deed, and the steps of the log that carried it out.
pub struct Group<'a> {
    pub command: Command,
    /// In the order of their calls.
    pub operations: Vec<&'a Operation>,
    /// Steps with an effect, in log order; places in `Replay::steps`.
    pub effects: Vec<usize>,
}

impl Group<'_> {
    /// Those that were not told that nothing happened.
    pub fn possible(&self) -> impl Iterator<Item = &Operation> {
        let possible = |operation: &&Operation| match operation.outcome {
            Outcome::Answered(_) | Outcome::Unknown(_) => true,
            Outcome::Refused { .. } | Outcome::Unavailable(_) => false,
        };
        self.operations.iter().copied().filter(possible)
    }
}

pub struct Groups<'a> {
    pub groups: BTreeMap<Deed, Group<'a>>,
    /// Effects that nobody asked for.
    pub strangers: Vec<usize>,
}

impl<'a> Groups<'a> {
    pub fn of(history: &'a History, replay: &Replay) -> Groups<'a> {
        let mut groups: BTreeMap<Deed, Group> = BTreeMap::new();
        for operation in history.operations.iter().filter(|operation| operation.mutates()) {
            let (Asked::Mutation(command), _) = asked(operation) else { continue };
            let deed = Deed::of(&command);
            let effects = || replay.effects.get(&deed).cloned().unwrap_or_default();
            let group = groups.entry(deed.clone()).or_insert_with(|| Group {
                command,
                operations: Vec::new(),
                effects: effects(),
            });
            group.operations.push(operation);
        }
        let unasked = replay.effects.iter().filter(|(deed, _)| !groups.contains_key(deed));
        let strangers = unasked.flat_map(|(_, steps)| steps.iter().copied()).collect();
        Groups { groups, strangers }
    }
}
