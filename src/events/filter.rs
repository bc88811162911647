//! Owns: which events a binding matches, parsed from the config of its registration. Pure.
//! Never: the table of bindings, delivery.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::errors::FilterError;
use crate::machine::event::{Event, EventKind};
use crate::machine::ids::SessionId;
use crate::machine::json::{Object, kind_of};
use crate::machine::message::Role;
use crate::machine::scope::Scope;
use crate::machine::session::metadata_matches;
use crate::machine::turn::choose;
use crate::machine::turn::driver::AttachDriver;

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
pub struct Kinds(u16);

impl Kinds {
    /// Those of the published API, which come first in `EventKind`.
    pub const PUBLISHED: Kinds = Kinds((1 << EventKind::PUBLISHED.len()) - 1);

    pub fn of(kinds: impl IntoIterator<Item = EventKind>) -> Kinds {
        Kinds(kinds.into_iter().fold(0, |set, kind| set | 1 << kind as u16))
    }

    pub fn contains(self, kind: EventKind) -> bool {
        self.0 & 1 << kind as u16 != 0
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
    /// Which agents a driver serves.
    agents: Agents,
    /// What a driver said about itself when it bound.
    pub driver: DriverTerms,
    /// The subscriber sees only sessions with this metadata.
    scope: Option<Arc<Scope>>,
}

impl Filter {
    /// Parses a binding's config.
    pub fn parse(trigger_type: &str, config: &Value) -> Result<Filter, FilterError> {
        let wanted = Wanted::from_trigger_type(trigger_type)
            .ok_or_else(|| FilterError::UnknownTriggerType { trigger_type: trigger_type.to_owned() })?;
        let mut filter = Filter::of_stream(Kinds::PUBLISHED, None, None, Object::new());
        filter.wanted = wanted;
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
                "agent_ids" => filter.agents.ids = Some(texts(trigger_type, "agent_ids", value)?),
                "agent_types" => filter.agents.types = Some(texts(trigger_type, "agent_types", value)?),
                "tenants" => filter.agents.tenants = Some(texts(trigger_type, "tenants", value)?),
                "driver_id" => filter.driver.driver_id = Some(driver_id(trigger_type, value)?),
                "families" => filter.driver.families = families(trigger_type, value)?,
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
        let (agents, driver) = (Agents::default(), DriverTerms::default());
        Filter { wanted: Wanted::Kinds(kinds), session_id, roles, metadata, agents, driver, scope: None }
    }

    /// The filter in words, for an operator.
    pub fn describe(&self) -> String {
        let mut words = match self.wanted {
            Wanted::Everything => vec![STORE_EVENTS.to_owned()],
            Wanted::Kind(kind) => vec![kind.trigger_type().to_owned()],
            Wanted::Kinds(Kinds::PUBLISHED) => vec!["all events".to_owned()],
            Wanted::Kinds(kinds) => vec![kinds.iter().map(EventKind::trigger_type).collect::<Vec<_>>().join(" ")],
        };
        words.extend(self.session_id.as_ref().map(|session_id| format!("session {}", session_id.as_str())));
        let of_agents = self.agents != Agents::default();
        if self.roles.is_some() || !self.metadata.is_empty() || self.scope.is_some() || of_agents {
            words.push("filtered".to_owned());
        }
        words.join(", ")
    }

    /// The same filter for a subscriber that sees only the sessions of its scope.
    pub fn within(self, scope: Option<Arc<Scope>>) -> Filter {
        Filter { scope, ..self }
    }

    /// The scope of the subscriber.
    pub fn scope(&self) -> Option<&Arc<Scope>> {
        self.scope.as_ref()
    }

    /// Whether it belongs to a driver that says who it is.
    pub fn names_driver(&self) -> bool {
        self.wanted == Wanted::Kind(EventKind::TurnRequested) && self.driver.driver_id.is_some()
    }

    /// The driver that bound it, if it waits for turns and says who it is.
    pub fn driver(&self) -> Option<AttachDriver> {
        if !self.names_driver() {
            return None;
        }
        Some(AttachDriver {
            driver_id: self.driver.driver_id.clone()?,
            agent_ids: self.agents.ids.clone(),
            agent_types: self.agents.types.clone(),
            tenants: self.agents.tenants.clone(),
            session_id: self.session_id.clone(),
            metadata: self.metadata.clone(),
            families: self.driver.families.clone(),
            node: None,
        })
    }

    /// False when no event of this kind and session can match.
    pub fn may_match(&self, kind: EventKind, session_id: &SessionId) -> bool {
        let of_kind = match self.wanted {
            // Bridges of the published API know no other kinds.
            Wanted::Everything => kind.is_published(),
            Wanted::Kind(wanted) => wanted == kind,
            Wanted::Kinds(kinds) => kinds.contains(kind),
        };
        of_kind && self.session_id.as_ref().is_none_or(|wanted| wanted == session_id)
    }

    /// Whether a driver is told about a turn: first the one that is asked first, then the others, so that each hears of it
    /// once. A driver without a name cannot be asked first, and hears of every turn at once.
    fn is_asked(&self, event: &Event) -> bool {
        if self.wanted != Wanted::Kind(EventKind::TurnRequested) {
            return true;
        }
        let payload = event.payload();
        let named = |field: &str| payload.field(field).and_then(|text| serde_json::from_str::<String>(text).ok());
        let own = self.driver.driver_id.as_ref();
        named(choose::ASKED).is_none_or(|asked| own.is_none_or(|own| *own == asked))
            && named(choose::NOT_TAKEN_BY).is_none_or(|asked| own.is_some_and(|own| *own != asked))
    }

    pub fn matches(&self, event: &Event) -> bool {
        self.may_match(event.kind(), &event.session_id)
            && self.roles.as_ref().is_none_or(|roles| event.role().is_some_and(|role| roles.contains(&role)))
            && metadata_matches(&self.metadata, event.metadata.as_ref())
            && self.agents.include(event)
            && self.is_asked(event)
            && self.scope.as_ref().is_none_or(|scope| scope.includes(event.metadata.as_ref()))
    }
}

/// The agents that a driver serves. What is `None` is not asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Agents {
    pub ids: Option<Vec<String>>,
    pub types: Option<Vec<String>>,
    pub tenants: Option<Vec<String>>,
}

impl Agents {
    fn include(&self, event: &Event) -> bool {
        if *self == Agents::default() {
            return true;
        }
        let payload = event.payload();
        let named = |field: &str| payload.field(field).and_then(|text| serde_json::from_str::<String>(text).ok());
        let has = |wanted: &Option<Vec<String>>, field: &str| {
            wanted.as_ref().is_none_or(|wanted| named(field).is_some_and(|name| wanted.contains(&name)))
        };
        has(&self.ids, "agent_id") && has(&self.types, "agent_type") && has(&self.tenants, "tenant")
    }
}

/// How a driver wants to be known and called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverTerms {
    /// The name it claims turns with.
    pub driver_id: Option<String>,
    /// The function that answers each family of requests, such as `files`.
    pub families: BTreeMap<String, String>,
}

/// `session::created` takes no session id: a subscriber cannot know the id before the session exists. Only message
/// events have a role.
fn allowed_fields(wanted: Wanted) -> &'static [&'static str] {
    match wanted {
        Wanted::Everything => &[],
        Wanted::Kinds(_) => &["session_id", "roles", "metadata"],
        Wanted::Kind(EventKind::Created) => &["metadata"],
        Wanted::Kind(EventKind::MessageAdded | EventKind::MessageUpdated) => &["session_id", "roles", "metadata"],
        Wanted::Kind(
            EventKind::StatusChanged
            | EventKind::MetaUpdated
            | EventKind::Deleted
            | EventKind::StreamEvent
            | EventKind::ProfileEvent,
        ) => &["session_id", "metadata"],
        Wanted::Kind(EventKind::TurnRequested | EventKind::TurnCommand | EventKind::CheckpointRequested) => {
            &["session_id", "metadata", "agent_ids", "agent_types", "tenants", "driver_id", "families"]
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

fn texts(trigger_type: &str, field: &'static str, value: &Value) -> Result<Vec<String>, FilterError> {
    let wrong = || wrong_type(trigger_type, field, "an array of strings", value);
    let items = value.as_array().ok_or_else(wrong)?;
    items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
}

fn driver_id(trigger_type: &str, value: &Value) -> Result<String, FilterError> {
    let wrong = || wrong_type(trigger_type, "driver_id", "a string of 1 to 256 bytes", value);
    value.as_str().filter(|id| (1..=256).contains(&id.len())).map(str::to_owned).ok_or_else(wrong)
}

fn families(trigger_type: &str, value: &Value) -> Result<BTreeMap<String, String>, FilterError> {
    let wrong = || wrong_type(trigger_type, "families", "an object of function ids", value);
    let fields = value.as_object().ok_or_else(wrong)?;
    let function = |(name, id): (&String, &Value)| Some((name.clone(), id.as_str()?.to_owned()));
    fields.iter().map(|field| function(field).ok_or_else(wrong)).collect()
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
            let matched = filter.matches(&event(kind, "s", None, json!(null)));
            assert_eq!(matched, kind.is_published(), "{kind:?}");
        }
    }

    #[test]
    fn a_stream_that_names_no_kind_gets_the_published_ones() {
        assert_eq!(Kinds::PUBLISHED.iter().collect::<Vec<_>>(), EventKind::PUBLISHED);
        for kind in EventKind::ALL {
            assert_eq!(Kinds::of([kind]).iter().collect::<Vec<_>>(), [kind]);
        }
    }

    #[test]
    fn a_driver_gets_the_turns_of_its_agents() {
        let turn = |payload: Value| Event {
            session_id: "s".into(),
            seq: 0,
            happened: Happened::Noted { kind: EventKind::TurnRequested, payload: Json::print(&payload), kept: true },
            metadata: None,
        };
        let config = json!({"agent_types": ["coder", "writer"], "tenants": ["a"], "driver_id": "d"});
        let filter = parse("session::turn::requested", config).unwrap();
        assert!(filter.matches(&turn(json!({"agent_type": "coder", "tenant": "a"}))));
        assert!(!filter.matches(&turn(json!({"agent_type": "coder", "tenant": "b"}))));
        assert!(!filter.matches(&turn(json!({"tenant": "a"}))));
        assert!(parse("session::turn::requested", json!({})).unwrap().matches(&turn(json!({}))));
        // The driver that is asked first hears of a turn first, and the others of one that it has not taken.
        let asked = json!({"agent_type": "coder", "tenant": "a", "driver_id": "d"});
        let not_taken = json!({"agent_type": "coder", "tenant": "a", "not_taken_by": "d"});
        let named = |driver_id: &str| parse("session::turn::requested", json!({"driver_id": driver_id})).unwrap();
        let hears = |filter: &Filter| (filter.matches(&turn(asked.clone())), filter.matches(&turn(not_taken.clone())));
        assert_eq!((hears(&filter), hears(&named("e"))), ((true, false), (false, true)));
        assert_eq!(hears(&parse("session::turn::requested", json!({})).unwrap()), (true, false));
        let driver = filter.driver().unwrap();
        assert_eq!((driver.driver_id.as_str(), driver.tenants), ("d", Some(vec!["a".to_owned()])));
        assert!(parse("session::turn::requested", json!({})).unwrap().driver().is_none());
        assert!(parse("session::turn::command", json!({"driver_id": "d"})).unwrap().driver().is_none());
        for (config, field) in [
            (json!({"agent_ids": "x"}), "`agent_ids`"),
            (json!({"tenants": [1]}), "`tenants`"),
            (json!({"driver_id": ""}), "`driver_id`"),
            (json!({"families": {"files": 1}}), "`families`"),
            (json!({"roles": ["user"]}), "`roles`"),
        ] {
            let error = parse("session::turn::requested", config).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
