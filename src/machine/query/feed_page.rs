//! Owns: reading a page of the event feed. Records of old events are completed from the current state.
//!
//! So an old event shows the current state: message-added carries the current content of the message, meta-updated the
//! current title. A message-updated is skipped if a later one replaced it; the last one is always delivered. Of a
//! deleted session only the deletion remains. Filters see the session's current metadata.

use crate::machine::entry::{Body, Entry};
use crate::machine::event::{Event, EventKind, Happened};
use crate::machine::feed_record::{Record, Recorded};
use crate::machine::ids::{EntryId, FeedPlace, SessionId};
use crate::machine::json::Object;
use crate::machine::refusal::Fault;
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::machine::view::View;

/// A page of the feed.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedPage {
    pub events: Vec<(FeedPlace, Event)>,
    /// Wanted events that are left out because later ones replace them: their places, sessions and sequence numbers.
    pub skipped: Vec<(FeedPlace, SessionId, u64)>,
    /// The last place that this page covers; `None` if there was no event after the requested place.
    pub upto: Option<FeedPlace>,
    /// True if there may be more events after `upto`.
    pub more: bool,
}

/// The size of one page.
#[derive(Debug, Clone, Copy)]
pub struct FeedLimits {
    pub records: usize,
    /// The page ends after the event that exceeds this.
    pub body_bytes: usize,
}

/// The events after a place, oldest first. Only records that pass `wanted` are completed: most readers want few.
pub fn page(
    view: &dyn View,
    after: Option<FeedPlace>,
    limits: FeedLimits,
    wanted: &dyn Fn(&Record) -> bool,
) -> Result<FeedPage, Fault> {
    let records = view.feed_records(after, limits.records)?;
    let full = records.len() == limits.records;
    let mut page = FeedPage { events: Vec::new(), skipped: Vec::new(), upto: None, more: full };
    let mut recent = Recent::default();
    let mut bytes = 0;
    let last = records.len().saturating_sub(1);
    for (rank, (place, record)) in records.into_iter().enumerate() {
        page.upto = Some(place);
        if !wanted(&record) {
            continue;
        }
        let (session_id, seq) = (record.session_id.clone(), record.seq);
        match recent.resolve(view, place, record)? {
            Some(event) => {
                bytes += body_bytes(&event);
                page.events.push((place, event));
            }
            None => page.skipped.push((place, session_id, seq)),
        }
        if bytes >= limits.body_bytes {
            page.more |= rank < last;
            break;
        }
    }
    Ok(page)
}

/// The session and the entry that were read last: adjacent records are often about the same ones.
#[derive(Default)]
struct Recent {
    session: Option<(SessionId, Option<SessionMeta>, Option<FeedPlace>)>,
    entry: Option<(SessionId, EntryId, Option<Entry>)>,
}

impl Recent {
    /// The event of a record; `None` if later events replace it.
    fn resolve(&mut self, view: &dyn View, place: FeedPlace, record: Record) -> Result<Option<Event>, Fault> {
        let kind = record.kind();
        let Record { session_id, seq, at_ms, what } = record;
        let (meta, deleted_at) = self.session(view, &session_id)?;
        if kind != EventKind::Deleted && deleted_at.is_some_and(|deleted| place < deleted) {
            return Ok(None);
        }
        let (happened, metadata) = match what {
            Recorded::Published { kind, role, payload, metadata } => {
                (Happened::Published { kind, role, payload }, metadata)
            }
            // Filters see the session's current metadata, as those of other events do.
            Recorded::Noted { kind, payload } => match meta {
                Some(meta) => (Happened::Noted { kind, payload, kept: true }, meta.metadata),
                None => return Ok(None),
            },
            Recorded::Deleted { metadata } => (Happened::Deleted { timestamp: at_ms }, metadata),
            Recorded::Created
            | Recorded::MessageAdded(_)
            | Recorded::MessageUpdated { .. }
            | Recorded::StatusChanged { .. }
            | Recorded::MetaUpdated => {
                // Raw writes may remove a session without an event.
                let Some(meta) = meta else { return Ok(None) };
                match self.of_session(view, &meta, at_ms, what)? {
                    Some(happened) => (happened, meta.metadata),
                    None => return Ok(None),
                }
            }
        };
        Ok(Some(Event { session_id, seq, happened, metadata }))
    }

    fn of_session(
        &mut self,
        view: &dyn View,
        meta: &SessionMeta,
        at_ms: i64,
        what: Recorded,
    ) -> Result<Option<Happened>, Fault> {
        Ok(match what {
            Recorded::Created => {
                // Every session starts idle.
                Some(Happened::created(&SessionMeta { status: SessionStatus::Idle, ..meta.clone() }))
            }
            Recorded::MetaUpdated => Some(Happened::MetaUpdated {
                title: meta.title.clone(),
                description: meta.description.clone(),
                metadata: meta.metadata.clone(),
                timestamp: at_ms,
            }),
            Recorded::StatusChanged { status, previous, reason } => {
                Some(Happened::StatusChanged { status, previous, reason, timestamp: at_ms })
            }
            Recorded::MessageAdded(entry_id) => {
                self.entry(view, &meta.session_id, &entry_id)?.map(Happened::MessageAdded)
            }
            Recorded::MessageUpdated { entry_id, revision, origin } => {
                let entry = self.entry(view, &meta.session_id, &entry_id)?;
                entry.filter(|entry| entry.revision == revision).and_then(|entry| match entry.body {
                    Body::Message(message) => {
                        Some(Happened::MessageUpdated { entry_id, message, revision, origin, timestamp: at_ms })
                    }
                    Body::Custom { .. } => None,
                })
            }
            // `resolve` completes these without the state.
            Recorded::Deleted { .. } | Recorded::Published { .. } | Recorded::Noted { .. } => None,
        })
    }

    fn session(
        &mut self,
        view: &dyn View,
        session_id: &SessionId,
    ) -> Result<(Option<SessionMeta>, Option<FeedPlace>), Fault> {
        if let Some((known, meta, deleted_at)) = &self.session
            && known == session_id
        {
            return Ok((meta.clone(), *deleted_at));
        }
        let (meta, deleted_at) = (view.meta(session_id)?, view.deleted_at(session_id)?);
        self.session = Some((session_id.clone(), meta.clone(), deleted_at));
        Ok((meta, deleted_at))
    }

    fn entry(&mut self, view: &dyn View, session_id: &SessionId, entry_id: &EntryId) -> Result<Option<Entry>, Fault> {
        if let Some((session, known, entry)) = &self.entry
            && (session, known) == (session_id, entry_id)
        {
            return Ok(entry.clone());
        }
        let entry = view.entry(session_id, entry_id)?;
        self.entry = Some((session_id.clone(), entry_id.clone(), entry.clone()));
        Ok(entry)
    }
}

fn body_bytes(event: &Event) -> usize {
    let metadata = |metadata: &Option<Object>| metadata.as_ref().map_or(0, |object| 64 * object.len());
    metadata(&event.metadata)
        + match &event.happened {
            Happened::MessageAdded(entry) => entry.body.bytes(),
            Happened::MessageUpdated { message, .. } => message.body.text().len(),
            Happened::Published { payload, .. } | Happened::Noted { payload, .. } => payload.text().len(),
            Happened::Created { title, description, .. } | Happened::MetaUpdated { title, description, .. } => {
                title.len() + description.len()
            }
            Happened::StatusChanged { .. } | Happened::Deleted { .. } => 0,
        }
}
