//! Owns: `Record`, what the feed keeps of one event, and `record_events`, which adds the records to a commit.
//! A record is small: a message or a title is read from the state later, and is not stored a second time.
//! Never: the group or the cluster of a position. Those belong to the log, not to the state.

use super::change::{Change, FeedChange};
use super::command::Outcome;
use super::event::{Event, EventKind, Happened};
use super::ids::{EntryId, FeedPlace, SessionId};
use super::json::{Json, Object};
use super::message::Role;
use super::session::SessionStatus;

/// One event, as the feed stores it.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub session_id: SessionId,
    pub seq: u64,
    /// The time of the commit in milliseconds, for retention by age.
    pub at_ms: i64,
    pub what: Recorded,
}

/// The part of an event that cannot be read from the state later.
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
    /// With the metadata at the time of the deletion, which the state no longer has.
    Deleted {
        metadata: Option<Object>,
    },
    /// Created by another instance. The state may know nothing about it, so the record holds the whole event.
    Published {
        kind: EventKind,
        role: Option<Role>,
        payload: Json,
        metadata: Option<Object>,
    },
    /// An event beside the published ones.
    Noted {
        kind: EventKind,
        payload: Json,
    },
}

/// The extent of the feed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FeedEdge {
    /// Every event after this place is kept; `None` until the first event.
    pub trimmed: Option<FeedPlace>,
    /// The last event.
    pub newest: Option<FeedPlace>,
    /// The size of the stored records, keys included.
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
            Recorded::Published { kind, .. } | Recorded::Noted { kind, .. } => *kind,
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
            Happened::Noted { kind, payload, kept: _ } => Recorded::Noted { kind: *kind, payload: payload.clone() },
        };
        Record { session_id: event.session_id.clone(), seq: event.seq, at_ms, what }
    }
}

/// Adds the feed records of a command's events to its changes, so that one commit stores both or neither. `index` is
/// the index of the command's log entry, which the machine does not know.
pub fn record_events(index: u64, outcome: &mut Outcome) {
    if outcome.events.is_empty() {
        return;
    }
    // Every outcome with events sets the clock.
    let mut at_ms = 0;
    for change in &outcome.changes {
        if let Change::Clock(clock_ms) = change {
            at_ms = *clock_ms;
        }
    }
    let kept = (0..).zip(&outcome.events).filter(|(_, event)| event.is_kept());
    let records: Vec<(u32, Record)> = kept.map(|(ordinal, event)| (ordinal, Record::of(event, at_ms))).collect();
    if records.is_empty() {
        return;
    }
    outcome.changes.push(Change::Feed(FeedChange::Append { index, records }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::command::Answer;

    fn noted(kept: bool) -> Event {
        let happened = Happened::Noted { kind: EventKind::StreamEvent, payload: Json::adopt("{}"), kept };
        Event { session_id: "s".into(), seq: 0, happened, metadata: None }
    }

    #[test]
    fn events_that_are_not_kept_have_a_position_and_no_record() {
        let events = vec![noted(false), noted(true), noted(false), noted(true)];
        let mut outcome = Outcome { answer: Ok(Answer::Stored), changes: vec![Change::Clock(5)], events };
        record_events(9, &mut outcome);
        let Some(Change::Feed(FeedChange::Append { index: 9, records })) = outcome.changes.pop() else {
            panic!("no record")
        };
        assert_eq!(records.iter().map(|(ordinal, _)| *ordinal).collect::<Vec<_>>(), [1, 3]);
        assert!(records.iter().all(|(_, record)| record.at_ms == 5 && record.seq == 0));
        let mut outcome = Outcome { answer: Ok(Answer::Stored), changes: Vec::new(), events: vec![noted(false)] };
        record_events(9, &mut outcome);
        assert!(outcome.changes.is_empty());
    }
}
