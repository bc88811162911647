//! Owns: the line that the feed keeps of every event, and how a commit gets its lines. Small: what the state can tell
//! later (a message, a title) is not kept a second time.
//! Never: a position's group or cluster; those belong to the log, not to the state.

use super::command::Outcome;
use super::event::{Event, EventKind, Happened};
use super::ids::{EntryId, FeedPlace, SessionId};
use super::json::{Json, Object};
use super::message::Role;
use super::session::SessionStatus;
use super::view::Change;

/// One event, as the feed keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub session_id: SessionId,
    pub seq: u64,
    /// When it was committed, in milliseconds; retention by age looks at this.
    pub at_ms: i64,
    pub what: Recorded,
}

/// What an event cannot get from the state later.
#[derive(Debug, Clone, PartialEq)]
pub enum Recorded {
    Created,
    MessageAdded(EntryId),
    MessageUpdated {
        entry_id: EntryId,
        revision: u64,
        origin: Option<Json>,
    },
    StatusChanged {
        status: SessionStatus,
        previous: SessionStatus,
        reason: Option<String>,
    },
    MetaUpdated,
    /// With the metadata as of the deletion, which is gone from the state.
    Deleted {
        metadata: Option<Object>,
    },
    /// Minted by another instance: the state need not know anything of it, so it is kept whole.
    Published {
        kind: EventKind,
        role: Option<Role>,
        payload: Json,
        metadata: Option<Object>,
    },
}

/// What the feed holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FeedEdge {
    /// Every event after this place is kept; `None` while there never was an event.
    pub trimmed: Option<FeedPlace>,
    /// The last event.
    pub newest: Option<FeedPlace>,
    /// What the kept lines take, keys included.
    pub bytes: u64,
}

impl Record {
    pub fn kind(&self) -> EventKind {
        match &self.what {
            Recorded::Created => EventKind::Created,
            Recorded::MessageAdded(_) => EventKind::MessageAdded,
            Recorded::MessageUpdated { .. } => EventKind::MessageUpdated,
            Recorded::StatusChanged { .. } => EventKind::StatusChanged,
            Recorded::MetaUpdated => EventKind::MetaUpdated,
            Recorded::Deleted { .. } => EventKind::Deleted,
            Recorded::Published { kind, .. } => *kind,
        }
    }

    fn of(event: &Event, at_ms: i64) -> Record {
        let what = match &event.happened {
            Happened::Created { .. } => Recorded::Created,
            Happened::MessageAdded(entry) => Recorded::MessageAdded(entry.id.clone()),
            Happened::MessageUpdated { entry_id, revision, origin, .. } => {
                Recorded::MessageUpdated { entry_id: entry_id.clone(), revision: *revision, origin: origin.clone() }
            }
            Happened::StatusChanged { status, previous, reason, .. } => {
                Recorded::StatusChanged { status: *status, previous: *previous, reason: reason.clone() }
            }
            Happened::MetaUpdated { .. } => Recorded::MetaUpdated,
            Happened::Deleted { .. } => Recorded::Deleted { metadata: event.metadata.clone() },
            Happened::Published { kind, role, payload } => Recorded::Published {
                kind: *kind,
                role: *role,
                payload: payload.clone(),
                metadata: event.metadata.clone(),
            },
        };
        Record { session_id: event.session_id.clone(), seq: event.seq, at_ms, what }
    }
}

/// Adds the lines of a command's events to its changes, so that one commit keeps both or neither. `index` is the
/// command's place in the log, which only its carrier knows.
pub fn record(index: u64, outcome: &mut Outcome) {
    if outcome.events.is_empty() {
        return;
    }
    // Whatever reports something moves the clock.
    let mut at_ms = 0;
    for change in &outcome.changes {
        if let Change::SetClock(clock_ms) = change {
            at_ms = *clock_ms;
        }
    }
    let records = outcome.events.iter().map(|event| Record::of(event, at_ms)).collect();
    outcome.changes.push(Change::Record { index, records });
}
