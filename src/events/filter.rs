//! Owns: which events a binding matches, parsed from the config of its registration. Pure.
//! Never: the table of bindings, delivery.

use std::sync::Arc;

use serde_json::Value;

use super::errors::FilterError;
use crate::machine::event::{Event, EventKind};
use crate::machine::ids::SessionId;
use crate::machine::json::Object;
use crate::machine::message::Role;
use crate::machine::scope::Scope;
use crate::machine::session::metadata_matches;

/// The internal trigger type that carries every event, for bridges.
pub const STORE_EVENTS: &str = "session::store::events";

/// The kinds of event that a trigger type stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Kind(EventKind),
    /// Several kinds, for streams that carry the type with each event.
    Kinds(Kinds),
    /// `session::store::events`: every kind, wrapped in envelopes.
    Everything,
}

impl Wanted {
    /// `None` when this node does not serve the trigger type.
    pub fn from_trigger_type(name: &str) -> Option<Wanted> {
        if name == STORE_EVENTS {
            return Some(Wanted::Everything);
        }
        EventKind::from_trigger_type(name).map(Wanted::Kind)
    }
}

/// A set of event kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    pub const ALL: Kinds = Kinds((1 << EventKind::ALL.len()) - 1);

    pub fn of(kinds: impl IntoIterator<Item = EventKind>) -> Kinds {
        Kinds(kinds.into_iter().fold(0, |set, kind| set | 1 << kind as u8))
    }

    pub fn contains(self, kind: EventKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    pub fn iter(self) -> impl Iterator<Item = EventKind> {
        EventKind::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }
}

/// The conditions an event must meet to reach a binding. All given conditions must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    pub wanted: Wanted,
    pub session_id: Option<SessionId>,
    roles: Option<Vec<Role>>,
    metadata: Object,
    /// The subscriber sees only sessions with this metadata.
    scope: Option<Arc<Scope>>,
}

impl Filter {
    /// Parses a binding's config.
    pub fn parse(trigger_type: &str, config: &Value) -> Result<Filter, FilterError> {
        let wanted = Wanted::from_trigger_type(trigger_type)
            .ok_or_else(|| FilterError::UnknownTriggerType { trigger_type: trigger_type.to_owned() })?;
        let mut filter = Filter { wanted, session_id: None, roles: None, metadata: Object::new(), scope: None };
        let fields = match config {
            Value::Null => return Ok(filter),
            Value::Object(fields) => fields,
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                let (trigger_type, found) = (trigger_type.to_owned(), kind_of(config));
                return Err(FilterError::NotAnObject { trigger_type, found });
            }
        };
        let allowed = allowed_fields(wanted);
        let unknown = |field: &str| FilterError::UnknownField {
            trigger_type: trigger_type.to_owned(),
            field: field.to_owned(),
            allowed,
        };
        for (name, value) in fields {
            if !allowed.contains(&name.as_str()) {
                return Err(unknown(name));
            }
            if value.is_null() {
                continue;
            }
            match name.as_str() {
                "session_id" => filter.session_id = Some(session_id(trigger_type, value)?),
                "roles" => filter.roles = Some(roles(trigger_type, value)?),
                "metadata" => filter.metadata = metadata(trigger_type, value)?,
                other => return Err(unknown(other)),
            }
        }
        Ok(filter)
    }

    /// The filter of a stream. A role filter matches message events only, because no other event has a role.
    pub fn of_stream(
        kinds: Kinds,
        session_id: Option<SessionId>,
        roles: Option<Vec<Role>>,
        metadata: Object,
    ) -> Filter {
        Filter { wanted: Wanted::Kinds(kinds), session_id, roles, metadata, scope: None }
    }

    /// The filter in words, for an operator.
    pub fn describe(&self) -> String {
        let mut words = match self.wanted {
            Wanted::Everything => vec![STORE_EVENTS.to_owned()],
            Wanted::Kind(kind) => vec![kind.trigger_type().to_owned()],
            Wanted::Kinds(Kinds::ALL) => vec!["all events".to_owned()],
            Wanted::Kinds(kinds) => vec![kinds.iter().map(EventKind::trigger_type).collect::<Vec<_>>().join(" ")],
        };
        words.extend(self.session_id.as_ref().map(|session_id| format!("session {}", session_id.as_str())));
        if self.roles.is_some() || !self.metadata.is_empty() || self.scope.is_some() {
            words.push("filtered".to_owned());
        }
        words.join(", ")
    }

    /// The same filter for a subscriber that sees only the sessions of its scope.
    pub fn within(self, scope: Option<Arc<Scope>>) -> Filter {
        Filter { scope, ..self }
    }

    /// False when no event of this kind and session can match.
    pub fn may_match(&self, kind: EventKind, session_id: &SessionId) -> bool {
        let of_kind = match self.wanted {
            Wanted::Everything => true,
            Wanted::Kind(wanted) => wanted == kind,
            Wanted::Kinds(kinds) => kinds.contains(kind),
        };
        of_kind && self.session_id.as_ref().is_none_or(|wanted| wanted == session_id)
    }

    pub fn matches(&self, event: &Event) -> bool {
        self.may_match(event.kind(), &event.session_id)
            && self.roles.as_ref().is_none_or(|roles| event.role().is_some_and(|role| roles.contains(&role)))
            && metadata_matches(&self.metadata, event.metadata.as_ref())
            && self.scope.as_ref().is_none_or(|scope| scope.includes(event.metadata.as_ref()))
    }
}

/// `session::created` takes no session id: a subscriber cannot know the id before the session exists. Only message
/// events have a role.
fn allowed_fields(wanted: Wanted) -> &'static [&'static str] {
    match wanted {
        Wanted::Everything => &[],
        Wanted::Kinds(_) => &["session_id", "roles", "metadata"],
        Wanted::Kind(EventKind::Created) => &["metadata"],
        Wanted::Kind(EventKind::MessageAdded | EventKind::MessageUpdated) => &["session_id", "roles", "metadata"],
        Wanted::Kind(EventKind::StatusChanged | EventKind::MetaUpdated | EventKind::Deleted) => {
            &["session_id", "metadata"]
        }
    }
}

fn wrong_type(trigger_type: &str, field: &'static str, expected: &'static str, value: &Value) -> FilterError {
    FilterError::WrongType { trigger_type: trigger_type.to_owned(), field, expected, found: kind_of(value) }
}

fn session_id(trigger_type: &str, value: &Value) -> Result<SessionId, FilterError> {
    let text = value.as_str().ok_or_else(|| wrong_type(trigger_type, "session_id", "a string", value))?;
    Ok(SessionId::from(text))
}

fn roles(trigger_type: &str, value: &Value) -> Result<Vec<Role>, FilterError> {
    let items = value.as_array().ok_or_else(|| wrong_type(trigger_type, "roles", "an array", value))?;
    let role = |item: &Value| {
        let unknown = |_| FilterError::UnknownRole { trigger_type: trigger_type.to_owned(), role: item.to_string() };
        serde_json::from_value(item.clone()).map_err(unknown)
    };
    items.iter().map(role).collect()
}

fn metadata(trigger_type: &str, value: &Value) -> Result<Object, FilterError> {
    let fields = value.as_object().ok_or_else(|| wrong_type(trigger_type, "metadata", "an object", value))?;
    Ok(fields.clone())
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::machine::event::Happened;
    use crate::machine::json::Json;

    fn event(kind: EventKind, session: &str, role: Option<Role>, metadata: Value) -> Event {
        Event {
            session_id: session.into(),
            seq: 1,
            happened: Happened::Published { kind, role, payload: Json::adopt("{}") },
            metadata: metadata.as_object().cloned(),
        }
    }

    fn parse(trigger_type: &str, config: Value) -> Result<Filter, FilterError> {
        Filter::parse(trigger_type, &config)
    }

    #[test]
    fn a_malformed_config_is_refused_with_the_name_of_the_field() {
        for (trigger_type, config, field) in [
            ("session::created", json!({"session_id": "s"}), "`session_id`"),
            ("session::status-changed", json!({"roles": ["user"]}), "`roles`"),
            ("session::message-added", json!({"role": "user"}), "`role`"),
            ("session::message-added", json!({"roles": ["robot"]}), "\"robot\""),
            ("session::message-added", json!({"roles": "user"}), "`roles`"),
            ("session::message-added", json!({"session_id": 7}), "`session_id`"),
            ("session::deleted", json!({"metadata": []}), "`metadata`"),
            ("session::store::events", json!({"metadata": {}}), "`metadata`"),
            ("session::created", json!("all"), "must be an object"),
            ("session::vanished", json!({}), "`session::vanished`"),
        ] {
            let error = parse(trigger_type, config).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn null_and_absent_filters_match_every_event_of_the_kind() {
        for config in [json!(null), json!({}), json!({"metadata": {}}), json!({"session_id": null, "roles": null})] {
            let filter = parse("session::message-added", config).unwrap();
            assert!(filter.matches(&event(EventKind::MessageAdded, "s", None, json!(null))));
            assert!(!filter.matches(&event(EventKind::Deleted, "s", None, json!(null))));
        }
    }

    #[test]
    fn all_given_filters_must_hold() {
        let config = json!({"session_id": "s", "roles": ["user"], "metadata": {"tenant": "a"}});
        let filter = parse("session::message-added", config).unwrap();
        let kind = EventKind::MessageAdded;
        let tenant = json!({"tenant": "a", "more": 1});
        assert!(filter.matches(&event(kind, "s", Some(Role::User), tenant.clone())));
        assert!(!filter.matches(&event(kind, "t", Some(Role::User), tenant.clone())));
        assert!(!filter.matches(&event(kind, "s", Some(Role::Assistant), tenant)));
        assert!(!filter.matches(&event(kind, "s", Some(Role::User), json!({"tenant": "b"}))));
        assert!(!filter.matches(&event(kind, "s", Some(Role::User), json!(null))));
    }

    #[test]
    fn a_custom_entry_never_matches_a_roles_filter() {
        let filter = parse("session::message-added", json!({"roles": ["custom"]})).unwrap();
        assert!(!filter.matches(&event(EventKind::MessageAdded, "s", None, json!(null))));
        assert!(filter.matches(&event(EventKind::MessageAdded, "s", Some(Role::Custom), json!(null))));
    }

    #[test]
    fn store_events_match_every_kind() {
        let filter = parse(STORE_EVENTS, json!(null)).unwrap();
        for kind in EventKind::ALL {
            assert!(filter.matches(&event(kind, "s", None, json!(null))));
        }
    }
}
