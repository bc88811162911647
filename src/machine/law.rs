//! Owns: the invariants of the state, as functions. Debug builds, golden scripts, property tests and the simulation
//! call the same functions.

use std::fmt;

use super::change::{Change, SessionChange};
use super::command::Outcome;
use super::ids::SessionId;
use super::path;
use super::refusal::Fault;
use super::view::View;

/// A violated invariant, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn hold(law: bool, words: impl FnOnce() -> String) -> Result<(), Broken> {
    if law { Ok(()) } else { Err(Broken(words())) }
}

/// A refusal writes nothing and reports nothing.
pub fn refusal_changes_nothing(outcome: &Outcome) -> Result<(), Broken> {
    hold(outcome.answer.is_ok() || (!outcome.has_effect() && outcome.events.is_empty()), || {
        format!("a refused command changed or reported something: {outcome:?}")
    })
}

/// Events come with changes: a command that writes nothing reports nothing.
pub fn events_come_from_changes(outcome: &Outcome) -> Result<(), Broken> {
    hold(outcome.events.is_empty() || !outcome.changes.is_empty(), || {
        format!("events without a change: {:?}", outcome.events)
    })
}

/// `updated_at` moves with every change of a session, and never back. Raw writes of the store protocol are not checked: they may set any value.
pub fn updated_at_moves_with_every_change(before: &dyn View, outcome: &Outcome) -> Result<(), LawError> {
    for change in &outcome.changes {
        if let Change::Session(_, SessionChange::PutMeta(meta)) = change
            && let Some(old) = before.meta(&meta.session_id)?
        {
            hold(meta.updated_at > old.updated_at || old.updated_at == i64::MAX, || {
                format!("session {}: updated_at {} after {}", meta.session_id, meta.updated_at, old.updated_at)
            })?;
        }
    }
    Ok(())
}

/// An entry keeps its parent and its timestamp, and its revision only grows, by one.
pub fn entries_keep_their_place(before: &dyn View, outcome: &Outcome) -> Result<(), LawError> {
    for change in &outcome.changes {
        if let Change::Session(session_id, SessionChange::PutEntry(entry)) = change
            // The copies of a fork under way are no entries yet: they follow their source.
            && before.meta(session_id)?.is_some()
            && let Some(old) = before.entry(session_id, &entry.id)?
        {
            hold(entry.parent_id == old.parent_id && entry.timestamp == old.timestamp, || {
                format!("entry {} of {session_id} moved in the tree or in time", entry.id)
            })?;
            hold(entry.revision == old.revision + 1, || {
                format!("entry {} of {session_id}: revision {} after {}", entry.id, entry.revision, old.revision)
            })?;
        }
    }
    Ok(())
}

/// The active leaf exists, and the chain of its parents ends at a root.
pub fn leaf_reaches_root(view: &dyn View, session_id: &SessionId) -> Result<(), LawError> {
    let Some(leaf_id) = view.leaf(session_id)? else { return Ok(()) };
    let Some(leaf) = view.entry(session_id, &leaf_id)? else {
        return Err(Broken(format!("session {session_id}: active leaf {leaf_id} is no entry")).into());
    };
    let path = path::walk(view, session_id, &leaf)?;
    hold(path.first().is_some_and(|root| root.parent_id.is_none()), || {
        format!("session {session_id}: the path of leaf {leaf_id} does not reach a root")
    })?;
    if let Some(place) = &leaf.place {
        hold(place.depth + 1 == path.len() as u64, || {
            format!("session {session_id}: leaf {leaf_id} says depth {}, its path has {}", place.depth, path.len())
        })?;
    }
    Ok(())
}

/// `message_count` is the number of message entries.
pub fn message_count_counts_messages(view: &dyn View, session_id: &SessionId) -> Result<(), LawError> {
    let Some(meta) = view.meta(session_id)? else { return Ok(()) };
    let messages = view.entries(session_id)?.iter().filter(|entry| entry.is_message()).count() as u64;
    hold(meta.message_count == messages, || {
        format!("session {session_id}: message_count {} but {messages} messages", meta.message_count)
    })?;
    Ok(())
}

/// A violated invariant, or a state that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LawError {
    Broken(Broken),
    Fault(Fault),
}

impl From<Broken> for LawError {
    fn from(broken: Broken) -> LawError {
        LawError::Broken(broken)
    }
}

impl From<Fault> for LawError {
    fn from(fault: Fault) -> LawError {
        LawError::Fault(fault)
    }
}
