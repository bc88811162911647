//! `session::store::*`: raw writes for bridges. They bypass idempotency and counting by design, but they are
//! replicated like any mutation, and an entry still never moves in the tree.

use super::Draft;
use crate::machine::command::{Answer, Outcome};
use crate::machine::entry::Entry;
use crate::machine::event::{Event, EventKind, Happened};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::{Json, Object};
use crate::machine::message::Role;
use crate::machine::path;
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::session::SessionMeta;
use crate::machine::stamp::Stamp;
use crate::machine::view::{Change, View};

#[derive(Debug, Clone, PartialEq)]
pub enum StoreWrite {
    PutMeta(SessionMeta),
    DeleteMeta(SessionId),
    PutEntry(SessionId, Entry),
    DeleteEntries(SessionId),
    SetLeaf(SessionId, EntryId),
    DeleteLeaf(SessionId),
    PublishEvents(Vec<Envelope>),
}

/// An event another instance minted.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    pub kind: EventKind,
    pub session_id: SessionId,
    pub role: Option<Role>,
    pub payload: Json,
    pub metadata: Option<Object>,
}

impl StoreWrite {
    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            StoreWrite::PutMeta(meta) => Some(&meta.session_id),
            StoreWrite::DeleteMeta(id)
            | StoreWrite::PutEntry(id, _)
            | StoreWrite::DeleteEntries(id)
            | StoreWrite::SetLeaf(id, _)
            | StoreWrite::DeleteLeaf(id) => Some(id),
            StoreWrite::PublishEvents(_) => None,
        }
    }
}

pub fn apply<V: View + ?Sized>(view: &V, stamp: &Stamp, command: &StoreWrite) -> Result<Outcome, Failure> {
    let change = match command {
        StoreWrite::PutMeta(meta) => Change::PutMeta(meta.clone()),
        StoreWrite::DeleteMeta(id) => Change::DeleteMeta(id.clone()),
        StoreWrite::PutEntry(id, entry) => Change::PutEntry(id.clone(), placed(view, id, entry)?),
        StoreWrite::DeleteEntries(id) => Change::DeleteEntries(id.clone()),
        StoreWrite::SetLeaf(id, entry_id) => Change::SetLeaf(id.clone(), entry_id.clone()),
        StoreWrite::DeleteLeaf(id) => Change::DeleteLeaf(id.clone()),
        StoreWrite::PublishEvents(envelopes) => return publish(view, stamp, envelopes),
    };
    let changes = vec![change, Change::SetClock(stamp.at_ms)];
    Ok(Outcome { answer: Ok(Answer::Stored), changes, events: Vec::new() })
}

/// The raw entry with its place. A write that would move an entry in the tree is refused: every path through it
/// would change behind its readers.
fn placed<V: View + ?Sized>(view: &V, session_id: &SessionId, entry: &Entry) -> Result<Entry, Failure> {
    let refuse = |why: &str| Refusal::RequestInvalid(format!("entry {:?}: {why}", entry.id.as_str()));
    if entry.parent_id.as_ref() == Some(&entry.id) {
        return Err(refuse("parent_id names the entry itself").into());
    }
    let place = match view.entry(session_id, &entry.id)? {
        Some(old) if old.parent_id != entry.parent_id => {
            return Err(refuse("parent_id of a stored entry never changes").into());
        }
        Some(old) => old.place,
        None => path::place_of(view, session_id, entry)?,
    };
    Ok(Entry { place, ..entry.clone() })
}

fn publish<V: View + ?Sized>(view: &V, stamp: &Stamp, envelopes: &[Envelope]) -> Result<Outcome, Failure> {
    let mut changes = Vec::new();
    let mut events: Vec<Event> = Vec::new();
    for envelope in envelopes {
        let mut draft = Draft::new(view, &envelope.session_id)?;
        // Earlier envelopes of this batch may have moved the sequence already.
        if let Some(last) = events.iter().rev().find(|event| event.session_id == envelope.session_id) {
            draft.seq = if last.kind() == EventKind::Deleted { 0 } else { last.seq };
        }
        let published =
            Happened::Published { kind: envelope.kind, role: envelope.role, payload: envelope.payload.clone() };
        draft.report(published, envelope.metadata.as_ref());
        changes.push(match envelope.kind {
            EventKind::Deleted => Change::DeleteSeq(envelope.session_id.clone()),
            EventKind::Created
            | EventKind::MessageAdded
            | EventKind::MessageUpdated
            | EventKind::StatusChanged
            | EventKind::MetaUpdated => Change::SetSeq(envelope.session_id.clone(), draft.seq),
        });
        events.append(&mut draft.events);
    }
    changes.push(Change::SetClock(stamp.at_ms));
    let published = events.len() as u64;
    Ok(Outcome { answer: Ok(Answer::Published { published }), changes, events })
}
