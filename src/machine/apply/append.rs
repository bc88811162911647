//! `session::append`: hangs one entry below the active leaf (or a given parent) and moves the leaf to it.

use super::{Draft, known, touched};
use crate::machine::command::{Answer, Outcome};
use crate::machine::entry::{Body, Entry};
use crate::machine::event::Happened;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::path::Chain;
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::session::SessionMeta;
use crate::machine::stamp::Stamp;
use crate::machine::view::{Change, View};

#[derive(Debug, Clone, PartialEq)]
pub struct AppendEntry {
    pub session_id: SessionId,
    /// The caller's id makes the append repeatable; without one the entry gets a minted id.
    pub entry_id: Option<EntryId>,
    /// The active leaf when `None`.
    pub parent_id: Option<EntryId>,
    pub origin: Option<Json>,
    pub body: Body,
}

pub fn apply<V: View + ?Sized>(view: &V, stamp: &Stamp, command: &AppendEntry) -> Result<Outcome, Failure> {
    let session_id = &command.session_id;
    let meta = known(view, session_id)?;
    let entry_id = match &command.entry_id {
        // A minted id is new: looking for it would be the dearest read of all, that of a key which is nowhere.
        None => stamp.entry_id(0),
        // A repeated id is a complete no-op, whatever else the repeat says.
        Some(entry_id) => match view.entry(session_id, entry_id)? {
            Some(existing) => return Ok(Outcome::unchanged(appended(&existing))),
            None => entry_id.clone(),
        },
    };
    let parent = parent(view, session_id, command.parent_id.as_ref())?;
    let mut chain = Chain::under(view, session_id, parent);
    chain.push(entry_id, stamp.at_ms, command.origin.clone(), command.body.clone())?;
    hang(view, stamp, meta, chain.finish(), |entries| match entries.last() {
        Some(entry) => appended(entry),
        None => Answer::AppendedMany { entry_ids: Vec::new() },
    })
}

fn appended(entry: &Entry) -> Answer {
    Answer::Appended { entry_id: entry.id.clone(), parent_id: entry.parent_id.clone(), timestamp: entry.timestamp }
}

/// The entry to hang below: the one named, else the active leaf, else none (a new root).
pub(super) fn parent<V: View + ?Sized>(
    view: &V,
    session_id: &SessionId,
    named: Option<&EntryId>,
) -> Result<Option<Entry>, Failure> {
    if let Some(parent_id) = named {
        let parent = view.entry(session_id, parent_id)?;
        let unknown = || Refusal::ParentUnknown { session_id: session_id.clone(), parent_id: parent_id.clone() };
        return Ok(Some(parent.ok_or_else(unknown)?));
    }
    match view.leaf(session_id)? {
        Some(leaf) => Ok(view.entry(session_id, &leaf)?),
        None => Ok(None),
    }
}

/// Stores a chain of new entries, moves the leaf to its end, counts its messages and reports each entry.
pub(super) fn hang<V: View + ?Sized>(
    view: &V,
    stamp: &Stamp,
    meta: SessionMeta,
    entries: Vec<Entry>,
    answer: impl FnOnce(&[Entry]) -> Answer,
) -> Result<Outcome, Failure> {
    let session_id = meta.session_id.clone();
    let messages = entries.iter().filter(|entry| entry.is_message()).count() as u64;
    let mut draft = Draft::new(view, &session_id)?;
    for entry in &entries {
        draft.change(Change::PutEntry(session_id.clone(), entry.clone()));
        draft.report(Happened::MessageAdded(entry.clone()), meta.metadata.as_ref());
    }
    let leaf = entries.last().ok_or(Refusal::EmptyBatch)?;
    draft.change(Change::SetLeaf(session_id.clone(), leaf.id.clone()));
    // A raw write may have set any count; a count at its end stays there.
    let message_count = meta.message_count.saturating_add(messages);
    draft.change(Change::PutMeta(SessionMeta { message_count, ..touched(meta, stamp) }));
    Ok(draft.answer(stamp, answer(&entries)))
}
