//! Owns: the descriptions and filter schemas of our trigger types, as they are registered at an engine.
//! Never: what a filter matches; that is `events/filter.rs`.

use schemars::JsonSchema;
use serde::Serialize;

use crate::events::filter::STORE_EVENTS;
use crate::machine::event::EventKind;

/// A trigger type that this node registers.
pub struct TriggerType {
    pub id: &'static str,
    pub description: &'static str,
    pub fields: FilterFields,
}

/// The filters that a trigger type accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterFields {
    Metadata,
    Session,
    Message,
    Driver,
    Nothing,
}

/// Filters of session::created.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct MetadataFilter {
    /// Every given key must equal the session's metadata; an empty object matches every session.
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Filters of session::status-changed, session::meta-updated and session::deleted.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SessionFilter {
    /// Only events of this session.
    session_id: Option<String>,
    /// Every given key must equal the session's metadata; an empty object matches every session.
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Filters of session::message-added and session::message-updated.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct MessageFilter {
    /// Only events of this session.
    session_id: Option<String>,
    /// Only messages of these roles; custom entries have none.
    roles: Option<Vec<FilterRole>>,
    /// Every given key must equal the session's metadata; an empty object matches every session.
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Filters of session::turn::requested, session::turn::command and session::checkpoint::requested.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct DriverFilter {
    /// Only events of this session.
    session_id: Option<String>,
    /// Every given key must equal the session's metadata; an empty object matches every session.
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// Only turns of these agents.
    agent_ids: Option<Vec<String>>,
    /// Only turns of agents of these types.
    agent_types: Option<Vec<String>>,
    /// Only turns of these tenants.
    tenants: Option<Vec<String>>,
    /// The name that the driver claims turns with. A driver that gives it is known to be attached.
    driver_id: Option<String>,
    /// The function that answers each family of requests, such as `{"files": "my::files"}`.
    families: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "only its schema is used")]
enum FilterRole {
    User,
    Assistant,
    FunctionResult,
    Custom,
}

/// All trigger types of this node. The internal feed for bridges is the last one.
pub fn trigger_types() -> Vec<TriggerType> {
    let public = EventKind::ALL.map(|kind| {
        let (description, fields) = match kind {
            EventKind::Created => ("A session was created, ensured into being or forked.", FilterFields::Metadata),
            EventKind::MessageAdded => ("An entry was appended to a session.", FilterFields::Message),
            EventKind::MessageUpdated => {
                ("A message changed; the payload is the whole message.", FilterFields::Message)
            }
            EventKind::StatusChanged => ("A session's status changed.", FilterFields::Session),
            EventKind::MetaUpdated => ("A session's title, description or metadata changed.", FilterFields::Session),
            EventKind::Deleted => ("A session and its entries were removed.", FilterFields::Session),
            EventKind::TurnRequested => ("A turn waits for a driver: claim it.", FilterFields::Driver),
            EventKind::TurnCommand => ("A command to the driver of a turn: acknowledge it.", FilterFields::Driver),
            EventKind::CheckpointRequested => ("A checkpoint waits for a driver: claim it.", FilterFields::Driver),
            EventKind::StreamEvent => ("An event of a session's stream, numbered.", FilterFields::Session),
            EventKind::ProfileEvent => ("An event of the session model, numbered.", FilterFields::Session),
        };
        TriggerType { id: kind.trigger_type(), description, fields }
    });
    let feed = TriggerType {
        id: STORE_EVENTS,
        description: "Internal: every event in an envelope, for bridges. Bind the six public types instead.",
        fields: FilterFields::Nothing,
    };
    public.into_iter().chain([feed]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::filter::Filter;

    #[test]
    fn every_field_of_a_schema_is_accepted_by_the_filter() {
        for trigger_type in trigger_types() {
            let schema = match trigger_type.fields {
                FilterFields::Metadata => schemars::schema_for!(MetadataFilter),
                FilterFields::Session => schemars::schema_for!(SessionFilter),
                FilterFields::Message => schemars::schema_for!(MessageFilter),
                FilterFields::Driver => schemars::schema_for!(DriverFilter),
                FilterFields::Nothing => continue,
            };
            let fields = schema.schema.object.expect("an object").properties;
            for name in fields.keys() {
                let value = match name.as_str() {
                    "session_id" => serde_json::json!("s"),
                    "roles" => serde_json::json!(["user", "assistant", "function_result", "custom"]),
                    "agent_ids" | "agent_types" | "tenants" => serde_json::json!(["a"]),
                    "driver_id" => serde_json::json!("d"),
                    _ => serde_json::json!({}),
                };
                let config = serde_json::json!({ name.as_str(): value });
                Filter::parse(trigger_type.id, &config).expect("the filter accepts it");
            }
        }
    }
}
