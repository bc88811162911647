//! `session::store::*`: raw writes for bridges. By design they skip idempotency and message counting. They are
//! replicated like any mutation, and they cannot move an entry in the tree.

use super::Draft;
use super::beside;
use super::long::{self, Removal};
use crate::machine::change::{Change, FeedChange, SessionChange};
use crate::machine::command::{Answer, Outcome};
use crate::machine::entry::Entry;
use crate::machine::event::{Event, EventKind, Happened};
use crate::machine::ids::SessionId;
use crate::machine::json::{Json, Object};
use crate::machine::message::Role;
use crate::machine::path;
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub enum StoreWrite {
    Session(SessionId, SessionChange),
    PublishEvents(Vec<Envelope>),
}

/// An event that another instance created.
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
            StoreWrite::Session(session_id, _) => Some(session_id),
            StoreWrite::PublishEvents(_) => None,
        }
    }
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &StoreWrite) -> Result<Outcome, Failure> {
    let changes = match command {
        StoreWrite::Session(id, SessionChange::PutEntry(entry)) => {
            let entry = placed(view, id, entry)?;
            let mut changes = long::fork::follow(view, id, &entry)?;
            changes.push(Change::put_entry(id, entry));
            changes
        }
        StoreWrite::Session(id, SessionChange::DeleteEntries) => {
            return delete_entries(view, stamp, id, Removal::Now);
        }
        // With its record a session is gone, and so are the records beside it.
        StoreWrite::Session(id, SessionChange::DeleteMeta) => {
            let mut changes = vec![Change::Session(id.clone(), SessionChange::DeleteMeta)];
            changes.extend(beside::drop_session(view, id)?);
            changes
        }
        StoreWrite::Session(id, write) => vec![Change::Session(id.clone(), write.clone())],
        StoreWrite::PublishEvents(envelopes) => return publish(view, stamp, envelopes),
    };
    Ok(stored(stamp, changes))
}

pub(super) fn delete_entries(
    view: &dyn View,
    stamp: &Stamp,
    session_id: &SessionId,
    removal: Removal,
) -> Result<Outcome, Failure> {
    Ok(stored(stamp, long::remove_entries(view, stamp, session_id, removal)?))
}

fn stored(stamp: &Stamp, mut changes: Vec<Change>) -> Outcome {
    changes.push(Change::Clock(stamp.at_ms));
    Outcome { answer: Ok(Answer::Stored), changes, events: Vec::new() }
}

/// The raw entry with its place. A write that would move an entry in the tree is refused: it would change every path
/// through that entry while readers page through them.
fn placed(view: &dyn View, session_id: &SessionId, entry: &Entry) -> Result<Entry, Failure> {
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

/// Nodes create these events themselves.
fn unpublished(kind: EventKind) -> Refusal {
    Refusal::RequestInvalid(format!("{} is not published through the raw store", kind.trigger_type()))
}

fn publish(view: &dyn View, stamp: &Stamp, envelopes: &[Envelope]) -> Result<Outcome, Failure> {
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
        let seq = match envelope.kind {
            EventKind::Deleted => None,
            EventKind::Created
            | EventKind::MessageAdded
            | EventKind::MessageUpdated
            | EventKind::StatusChanged
            | EventKind::MetaUpdated => Some(draft.seq),
            // Only published kinds are in an envelope.
            EventKind::TurnRequested
            | EventKind::TurnCommand
            | EventKind::CheckpointRequested
            | EventKind::StreamEvent
            | EventKind::ProfileEvent => return Err(unpublished(envelope.kind).into()),
        };
        changes.push(Change::Feed(FeedChange::SetSeq(envelope.session_id.clone(), seq)));
        events.append(&mut draft.events);
    }
    changes.push(Change::Clock(stamp.at_ms));
    let published = events.len() as u64;
    Ok(Outcome { answer: Ok(Answer::Published { published }), changes, events })
}
