//! Owns: events, the data that apply returns about a commit. They are the same on every replica.
//! Never: delivery.

use serde_json::{Map, Value, json};

use super::entry::{Body, Entry};
use super::ids::{EntryId, SessionId};
use super::json::{Json, Object};
use super::message::{Message, Role};
use super::session::{SessionMeta, SessionStatus};

/// The kinds of events. Each has a trigger type on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventKind {
    Created,
    MessageAdded,
    MessageUpdated,
    StatusChanged,
    MetaUpdated,
    Deleted,
    /// A turn waits for a driver.
    TurnRequested,
    /// A command to the driver of a turn.
    TurnCommand,
    /// A checkpoint waits for a driver.
    CheckpointRequested,
    /// An event of a session's stream, for the doors that show turns live.
    StreamEvent,
    /// An event of the session model.
    ProfileEvent,
}

impl EventKind {
    pub const ALL: [EventKind; 11] = [
        EventKind::Created,
        EventKind::MessageAdded,
        EventKind::MessageUpdated,
        EventKind::StatusChanged,
        EventKind::MetaUpdated,
        EventKind::Deleted,
        EventKind::TurnRequested,
        EventKind::TurnCommand,
        EventKind::CheckpointRequested,
        EventKind::StreamEvent,
        EventKind::ProfileEvent,
    ];

    /// The kinds of the published API: the first six. They count in a session's sequence, and a subscriber that names no
    /// kind gets these and no others.
    pub const PUBLISHED: &[EventKind] = EventKind::ALL.split_at(6).0;

    pub fn trigger_type(self) -> &'static str {
        match self {
            EventKind::Created => "session::created",
            EventKind::MessageAdded => "session::message-added",
            EventKind::MessageUpdated => "session::message-updated",
            EventKind::StatusChanged => "session::status-changed",
            EventKind::MetaUpdated => "session::meta-updated",
            EventKind::Deleted => "session::deleted",
            EventKind::TurnRequested => "session::turn::requested",
            EventKind::TurnCommand => "session::turn::command",
            EventKind::CheckpointRequested => "session::checkpoint::requested",
            EventKind::StreamEvent => "session::stream::event",
            EventKind::ProfileEvent => "session::profile::event",
        }
    }

    pub fn is_published(self) -> bool {
        EventKind::PUBLISHED.contains(&self)
    }

    /// Whether its payload names the agent it is for (`agent_id`, `agent_type`, `tenant`), so that drivers filter by it.
    pub fn is_for_drivers(self) -> bool {
        matches!(self, EventKind::TurnRequested | EventKind::TurnCommand | EventKind::CheckpointRequested)
    }

    pub fn from_trigger_type(name: &str) -> Option<EventKind> {
        EventKind::ALL.into_iter().find(|kind| kind.trigger_type() == name)
    }
}

/// What happened, with all data of the event's payload.
#[derive(Debug, Clone, PartialEq)]
pub enum Happened {
    Created {
        title: String,
        description: String,
        status: SessionStatus,
        forked_from: Option<SessionId>,
        created_at: i64,
    },
    MessageAdded(Entry),
    MessageUpdated {
        entry_id: EntryId,
        message: Message,
        revision: u64,
        origin: Option<Json>,
        timestamp: i64,
    },
    StatusChanged {
        status: SessionStatus,
        previous: SessionStatus,
        reason: Option<String>,
        timestamp: i64,
    },
    MetaUpdated {
        title: String,
        description: String,
        metadata: Option<Object>,
        timestamp: i64,
    },
    Deleted {
        timestamp: i64,
    },
    /// An event that another instance created and published through the raw store protocol. Its payload is forwarded.
    Published {
        kind: EventKind,
        role: Option<Role>,
        payload: Json,
    },
    /// An event beside the published ones. If it is not `kept`, no feed stores it: it reaches those who listen now.
    Noted {
        kind: EventKind,
        payload: Json,
        kept: bool,
    },
}

/// One event of one session.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub session_id: SessionId,
    /// Counts the session's published events from 1, without gaps; 0 for the others.
    pub seq: u64,
    pub happened: Happened,
    /// The session's metadata, for filters: after the update for meta-updated, before the deletion for deleted.
    pub metadata: Option<Object>,
}

impl Event {
    /// Whether the feed stores it.
    pub fn is_kept(&self) -> bool {
        !matches!(self.happened, Happened::Noted { kept: false, .. })
    }

    pub fn kind(&self) -> EventKind {
        match &self.happened {
            Happened::Created { .. } => EventKind::Created,
            Happened::MessageAdded(_) => EventKind::MessageAdded,
            Happened::MessageUpdated { .. } => EventKind::MessageUpdated,
            Happened::StatusChanged { .. } => EventKind::StatusChanged,
            Happened::MetaUpdated { .. } => EventKind::MetaUpdated,
            Happened::Deleted { .. } => EventKind::Deleted,
            Happened::Published { kind, .. } | Happened::Noted { kind, .. } => *kind,
        }
    }

    /// The role of the message that this event is about; `None` for custom entries and other events.
    pub fn role(&self) -> Option<Role> {
        match &self.happened {
            Happened::MessageAdded(entry) => match &entry.body {
                Body::Message(message) => Some(message.role),
                Body::Custom { .. } => None,
            },
            Happened::MessageUpdated { message, .. } => Some(message.role),
            Happened::Published { role, .. } => *role,
            Happened::Created { .. }
            | Happened::StatusChanged { .. }
            | Happened::MetaUpdated { .. }
            | Happened::Noted { .. }
            | Happened::Deleted { .. } => None,
        }
    }

    /// The payload that subscribers receive, as JSON text.
    pub fn payload(&self) -> Json {
        let mut fields = Map::new();
        fields.insert("session_id".into(), Value::from(self.session_id.as_str()));
        let mut raw: Vec<(&str, Json)> = Vec::new();
        match &self.happened {
            Happened::Published { payload, .. } | Happened::Noted { payload, .. } => return payload.clone(),
            Happened::Created { title, description, status, forked_from, created_at } => {
                fields.insert("title".into(), json!(title));
                fields.insert("description".into(), json!(description));
                fields.insert("status".into(), json!(status));
                if let Some(source) = forked_from {
                    fields.insert("forked_from".into(), json!(source));
                }
                fields.insert("created_at".into(), json!(created_at));
            }
            Happened::MessageAdded(entry) => {
                fields.insert("entry_id".into(), json!(entry.id));
                fields.insert("parent_id".into(), json!(entry.parent_id));
                fields.insert("timestamp".into(), json!(entry.timestamp));
                match &entry.body {
                    Body::Message(message) => raw.push(("message", message.body.clone())),
                    Body::Custom { custom_type, data } => {
                        let kind = Map::from_iter([("custom_type".to_owned(), json!(custom_type))]);
                        raw.push(("custom", splice(&kind, &[("data", data.clone())])));
                    }
                }
                raw.extend(entry.origin.clone().map(|origin| ("origin", origin)));
            }
            Happened::MessageUpdated { entry_id, message, revision, origin, timestamp } => {
                fields.insert("entry_id".into(), json!(entry_id));
                fields.insert("revision".into(), json!(revision));
                fields.insert("timestamp".into(), json!(timestamp));
                raw.push(("message", message.body.clone()));
                raw.extend(origin.clone().map(|origin| ("origin", origin)));
            }
            Happened::StatusChanged { status, previous, reason, timestamp } => {
                fields.insert("status".into(), json!(status));
                fields.insert("previous_status".into(), json!(previous));
                if let Some(reason) = reason {
                    fields.insert("status_reason".into(), json!(reason));
                }
                fields.insert("timestamp".into(), json!(timestamp));
            }
            Happened::MetaUpdated { title, description, metadata, timestamp } => {
                fields.insert("title".into(), json!(title));
                fields.insert("description".into(), json!(description));
                if let Some(metadata) = metadata {
                    fields.insert("metadata".into(), Value::Object(metadata.clone()));
                }
                fields.insert("timestamp".into(), json!(timestamp));
            }
            Happened::Deleted { timestamp } => {
                fields.insert("timestamp".into(), json!(timestamp));
            }
        }
        splice(&fields, &raw)
    }
}

/// Joins fields and bodies that are JSON text already, so that a large message is copied and not parsed.
fn splice(fields: &Map<String, Value>, raw: &[(&str, Json)]) -> Json {
    let fields = Json::print(fields);
    let bodies: usize = raw.iter().map(|(name, body)| name.len() + body.text().len() + 4).sum();
    let mut text = String::with_capacity(fields.text().len() + bodies);
    text.push_str(fields.text());
    text.pop();
    for (name, body) in raw {
        text.push_str(",\"");
        text.push_str(name);
        text.push_str("\":");
        text.push_str(body.text());
    }
    text.push('}');
    Json::adopt(&text)
}

impl Happened {
    pub fn created(meta: &SessionMeta) -> Happened {
        Happened::Created {
            title: meta.title.clone(),
            description: meta.description.clone(),
            status: meta.status,
            forked_from: meta.forked_from.clone(),
            created_at: meta.created_at,
        }
    }
}
