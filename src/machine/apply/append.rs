//! `session::append`: adds one entry as a child of the active leaf (or of a given parent) and makes it the leaf.

use super::{Draft, known, touched};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::entry::{Body, Entry};
use crate::machine::event::Happened;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::model::follow;
use crate::machine::path::{Chain, Parent};
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::session::SessionMeta;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub struct AppendEntry {
    pub session_id: SessionId,
    /// With an id chosen by the caller the append is idempotent. Without one the entry gets an id from the stamp.
    pub entry_id: Option<EntryId>,
    /// The active leaf when `None`.
    pub parent_id: Option<EntryId>,
    pub origin: Option<Json>,
    pub body: Body,
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &AppendEntry) -> Result<Outcome, Failure> {
    let session_id = &command.session_id;
    let meta = known(view, session_id)?;
    let entry_id = match &command.entry_id {
        // An id from the stamp is new. Do not look it up: a read of a missing key is the most expensive kind.
        None => stamp.entry_id(0),
        // An id that exists already makes the append a no-op, whatever the other fields say.
        Some(entry_id) => match view.entry(session_id, entry_id)? {
            Some(existing) => return Ok(Outcome::unchanged(appended(&existing))),
            None => entry_id.clone(),
        },
    };
    let parent = parent(view, session_id, command.parent_id.as_ref())?;
    let mut chain = Chain::under(view, session_id, parent);
    chain.push(entry_id, stamp.at_ms, command.origin.clone(), command.body.clone())?;
    store_chain(view, stamp, meta, chain.finish(), |entries| match entries.last() {
        Some(entry) => appended(entry),
        None => Answer::AppendedMany { entry_ids: Vec::new() },
    })
}

fn appended(entry: &Entry) -> Answer {
    Answer::Appended { entry_id: entry.id.clone(), parent_id: entry.parent_id.clone(), timestamp: entry.timestamp }
}

/// The parent of a new entry: the one named, else the active leaf, else none (a new root).
pub(in crate::machine) fn parent(
    view: &dyn View,
    session_id: &SessionId,
    named: Option<&EntryId>,
) -> Result<Option<Parent>, Failure> {
    if let Some(parent_id) = named {
        let place = view.place(session_id, parent_id)?;
        let unknown = || Refusal::ParentUnknown { session_id: session_id.clone(), parent_id: parent_id.clone() };
        return Ok(Some(Parent { id: parent_id.clone(), place: place.ok_or_else(unknown)? }));
    }
    let Some(id) = view.leaf(session_id)? else { return Ok(None) };
    Ok(view.place(session_id, &id)?.map(|place| Parent { id, place }))
}

/// Stores a chain of new entries, makes the last one the leaf, counts the messages and reports each entry.
pub(super) fn store_chain(
    view: &dyn View,
    stamp: &Stamp,
    meta: SessionMeta,
    entries: Vec<Entry>,
    answer: impl FnOnce(&[Entry]) -> Answer,
) -> Result<Outcome, Failure> {
    let session_id = meta.session_id.clone();
    let messages = entries.iter().filter(|entry| entry.is_message()).count() as u64;
    let mut draft = Draft::new(view, &session_id)?;
    for entry in &entries {
        draft.change(Change::put_entry(&session_id, entry.clone()));
        draft.report(Happened::MessageAdded(entry.clone()), meta.metadata.as_ref());
    }
    follow::appended(view, stamp, &mut draft, meta.metadata.as_ref(), &entries)?;
    let leaf = entries.last().ok_or(Refusal::EmptyBatch)?;
    draft.change(Change::set_leaf(&session_id, leaf.id.clone()));
    // A raw write may have set any count, also the largest number.
    let message_count = meta.message_count.saturating_add(messages);
    draft.change(Change::put_meta(SessionMeta { message_count, ..touched(meta, stamp) }));
    Ok(draft.answer(stamp, answer(&entries)))
}
