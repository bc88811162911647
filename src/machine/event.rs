//! Owns: what a commit reports. Events are data returned by apply, the same on every replica; delivery is elsewhere.

use serde_json::{Map, Value, json};

use super::entry::{Body, Entry};
use super::ids::{EntryId, SessionId};
use super::json::{Json, Object};
use super::message::{Message, Role};
use super::session::{SessionMeta, SessionStatus};

/// The trigger types, by their names on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventKind {
    Created,
    MessageAdded,
    MessageUpdated,
    StatusChanged,
    MetaUpdated,
    Deleted,
}

impl EventKind {
    pub const ALL: [EventKind; 6] = [
        EventKind::Created,
        EventKind::MessageAdded,
        EventKind::MessageUpdated,
        EventKind::StatusChanged,
        EventKind::MetaUpdated,
        EventKind::Deleted,
    ];

    pub fn trigger_type(self) -> &'static str {
        match self {
            EventKind::Created => "session::created",
            EventKind::MessageAdded => "session::message-added",
            EventKind::MessageUpdated => "session::message-updated",
            EventKind::StatusChanged => "session::status-changed",
            EventKind::MetaUpdated => "session::meta-updated",
            EventKind::Deleted => "session::deleted",
        }
    }

    pub fn from_trigger_type(name: &str) -> Option<EventKind> {
        EventKind::ALL.into_iter().find(|kind| kind.trigger_type() == name)
    }
}

/// What happened, with everything its payload needs.
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
    /// An event another instance minted and published through the raw store protocol; its payload is passed on.
    Published {
        kind: EventKind,
        role: Option<Role>,
        payload: Json,
    },
}

/// One event of one session.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub session_id: SessionId,
    /// Dense per session, from 1.
    pub seq: u64,
    pub happened: Happened,
    /// The session's metadata that filters look at: after the update for meta-updated, as of deletion for deleted.
    pub metadata: Option<Object>,
}

impl Event {
    pub fn kind(&self) -> EventKind {
        match &self.happened {
            Happened::Created { .. } => EventKind::Created,
            Happened::MessageAdded(_) => EventKind::MessageAdded,
            Happened::MessageUpdated { .. } => EventKind::MessageUpdated,
            Happened::StatusChanged { .. } => EventKind::StatusChanged,
            Happened::MetaUpdated { .. } => EventKind::MetaUpdated,
            Happened::Deleted { .. } => EventKind::Deleted,
            Happened::Published { kind, .. } => *kind,
        }
    }

    /// The role of the message this event is about; `None` for custom entries and for events about no message.
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
            | Happened::Deleted { .. } => None,
        }
    }

    /// The payload a handler receives, as JSON text.
    pub fn payload(&self) -> Json {
        let mut fields = Map::new();
        fields.insert("session_id".into(), Value::from(self.session_id.as_str()));
        let mut raw: Vec<(&str, &Json)> = Vec::new();
        match &self.happened {
            Happened::Published { payload, .. } => return payload.clone(),
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
                    Body::Message(message) => raw.push(("message", &message.body)),
                    Body::Custom { custom_type, data } => {
                        fields.insert("custom".into(), json!({ "custom_type": custom_type, "data": data.value() }));
                    }
                }
                raw.extend(entry.origin.as_ref().map(|origin| ("origin", origin)));
            }
            Happened::MessageUpdated { entry_id, message, revision, origin, timestamp } => {
                fields.insert("entry_id".into(), json!(entry_id));
                fields.insert("revision".into(), json!(revision));
                fields.insert("timestamp".into(), json!(timestamp));
                raw.push(("message", &message.body));
                raw.extend(origin.as_ref().map(|origin| ("origin", origin)));
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

/// Joins printed fields and bodies that are text already, so that a large message is copied, not parsed.
fn splice(fields: &Map<String, Value>, raw: &[(&str, &Json)]) -> Json {
    let mut text = Json::print(fields).text().to_owned();
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
