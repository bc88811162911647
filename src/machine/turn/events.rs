//! Owns: the table of all event names of the stream: how long each is kept, who may emit it, and its fields.
//! Never: what an event does (`emit.rs`).

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use crate::machine::json::Json;
use Class::{Ephemeral, Kept, Unnumbered};
use Kind::{Any, Bool, Int, IntOrNull, List, Object, OneOf, State as StateName, Text, TextOrNull};
use Origin::{Both, Driver, DriverAnswer, DriverPush, Store};
use Scope::{Other, Session, Turn};

/// The top-level fields of an event. Their values stay text.
pub type Fields = BTreeMap<String, Json>;

/// What becomes of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It has a number and stays in the journal.
    Kept,
    /// It has a number and reaches those who listen now.
    Ephemeral,
    /// It is no part of a stream: a reply, or a push to one connection or to a tenant.
    Unnumbered,
}

/// Who creates an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Driver,
    Store,
    Both,
    /// The driver's answer to a request that is no part of the log.
    DriverAnswer,
    /// A driver tells all connections of a tenant.
    DriverPush,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Turn,
    Session,
    Other,
}

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    TextOrNull,
    Int,
    IntOrNull,
    Bool,
    Object,
    List,
    Any,
    State,
    OneOf(&'static [&'static str]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    pub required: bool,
}

/// One name. The fields `type`, `sessionId`, `turnId`, `seq` and `ts` are the store's and are not listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventName {
    pub name: &'static str,
    pub class: Class,
    pub origin: Origin,
    pub scope: Scope,
    pub fields: &'static [Field],
}

const fn must(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, required: true }
}

const fn may(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, required: false }
}

const fn event(name: &'static str, class: Class, origin: Origin, scope: Scope, fields: &'static [Field]) -> EventName {
    EventName { name, class, origin, scope, fields }
}

// The fields of events that have two spellings of their name.
const PLAN_CREATED: &[Field] = &[must("planId", Text), must("title", Text), must("steps", List)];
const STEP_STARTED: &[Field] =
    &[must("planId", Text), must("stepId", Text), must("title", Text), must("status", OneOf(&["in_progress"]))];
const STEP_COMPLETED: &[Field] =
    &[must("status", OneOf(&["completed", "skipped"])), may("planId", Text), may("stepId", Text), may("title", Text)];
const PLAN_REVISED: &[Field] =
    &[must("reason", TextOrNull), may("planId", Text), may("title", Text), may("steps", List)];

/// All names of the gateway's protocol.
pub static EVENTS: &[EventName] = &[
    event("welcome", Unnumbered, Store, Other, &[must("protocolVersion", Int), must("requiresAuth", Bool)]),
    event("connected", Unnumbered, Store, Other, &[must("clientId", Text), must("heartbeatIntervalMs", Int)]),
    event("authenticated", Unnumbered, Store, Other, &[must("identity", Object)]),
    event("heartbeat", Unnumbered, Store, Session, &[]),
    event("session_list", Unnumbered, Store, Other, &[must("sessions", List)]),
    event("session_created", Unnumbered, Store, Other, &[must("session", Object)]),
    event("session_updated", Unnumbered, Store, Other, &[must("session", Object)]),
    event("session_archived", Unnumbered, Store, Other, &[must("session", Object)]),
    event("session_unarchived", Unnumbered, Store, Other, &[must("session", Object)]),
    event("session_deleted", Unnumbered, Store, Other, &[]),
    event("session_state", Kept, Both, Session, &[must("state", StateName), may("reason", Text)]),
    event("turn_started", Kept, Both, Turn, &[]),
    event("text_delta", Ephemeral, Driver, Turn, &[must("text", Text)]),
    event("turn_complete", Kept, Driver, Turn, &[must("finalText", Text)]),
    event("turn_error", Kept, Both, Turn, &[must("message", Text), must("code", Text)]),
    event("message.delta", Ephemeral, Driver, Turn, &[must("text", Text)]),
    event("message.complete", Kept, Driver, Turn, &[must("text", Text)]),
    event("tool_call", Kept, Driver, Turn, &[must("toolCallId", Text), must("toolName", Text), must("args", Any)]),
    event("tool_result", Kept, Driver, Turn, &[must("toolCallId", Text), must("status", Text), may("output", Text)]),
    event("tool_call_start", Ephemeral, Driver, Turn, &[must("toolCallId", Text), must("toolName", Text)]),
    event("tool_call_delta", Ephemeral, Driver, Turn, &[must("toolCallId", Text), must("delta", Text)]),
    event("tool_error", Kept, Driver, Turn, &[must("toolCallId", Text), must("error", Text)]),
    event(
        "question_requested",
        Kept,
        Driver,
        Session,
        &[must("requestId", Text), must("questions", List), may("context", Text)],
    ),
    event(
        "permission_requested",
        Kept,
        Driver,
        Session,
        &[must("requestId", Text), must("toolName", Text), must("description", Text)],
    ),
    event("approval_resolved", Kept, Both, Session, &[must("requestId", Text), must("approved", Bool)]),
    event("thinking_start", Kept, Driver, Turn, &[]),
    event("thinking_progress", Ephemeral, Driver, Turn, &[must("text", Text)]),
    event("thinking_complete", Kept, Driver, Turn, &[]),
    event("terminal_stream", Ephemeral, Driver, Turn, &[must("data", Text)]),
    event("terminal_complete", Kept, Driver, Turn, &[must("exitCode", Int)]),
    event("sandbox_init", Kept, Driver, Session, &[must("provider", Text)]),
    event("sandbox_provisioning", Ephemeral, Driver, Session, &[must("phase", Text), may("message", Text)]),
    event("sandbox_ready", Kept, Driver, Session, &[]),
    event("sandbox_removed", Kept, Driver, Session, &[must("reason", Text), may("message", Text)]),
    event(
        "state_snapshot",
        Unnumbered,
        Store,
        Other,
        &[
            must("session", Object),
            must("currentTurn", Any),
            must("recentHistory", List),
            must("subscriberCount", Int),
            must("sandbox", Any),
        ],
    ),
    event(
        "stream_snapshot",
        Unnumbered,
        Store,
        Other,
        &[must("textSoFar", Text), must("thinkingSoFar", Text), must("toolCalls", List)],
    ),
    event(
        "usage_update",
        Ephemeral,
        Driver,
        Turn,
        &[
            must("model", TextOrNull),
            must("provider", TextOrNull),
            must("inputTokens", IntOrNull),
            must("outputTokens", IntOrNull),
            must("cachedTokens", IntOrNull),
            must("costMicroDollars", IntOrNull),
        ],
    ),
    event("usage_context", Ephemeral, Driver, Turn, &[must("contextTokens", Int), must("maxContextTokens", Int)]),
    event("gap", Unnumbered, Store, Other, &[must("fromSeq", Int), must("toSeq", Int)]),
    event("replay_complete", Unnumbered, Store, Other, &[must("lastSeq", Int)]),
    event("file_list", Unnumbered, DriverAnswer, Other, &[must("files", List)]),
    event(
        "file_content",
        Unnumbered,
        DriverAnswer,
        Other,
        &[must("path", Text), must("content", Text), must("encoding", OneOf(&["utf-8", "base64"])), must("size", Int)],
    ),
    event("file_history_result", Unnumbered, DriverAnswer, Other, &[must("path", Text), must("iterations", List)]),
    event("file_changed", Kept, Driver, Session, &[must("path", Text), must("iteration", Int), must("size", Int)]),
    event("steer_sent", Unnumbered, Store, Session, &[must("steerId", Text), must("content", Text)]),
    event("stop_acknowledged", Unnumbered, Store, Session, &[]),
    event("server_shutdown", Unnumbered, Store, Other, &[must("reason", Text)]),
    event("ui.spec_start", Ephemeral, Driver, Turn, &[must("uiId", Text), must("catalogId", Text)]),
    event("ui.spec_delta", Ephemeral, Driver, Turn, &[must("uiId", Text), must("patch", Object)]),
    event("ui.spec_complete", Kept, Driver, Turn, &[must("uiId", Text), must("spec", Object)]),
    event("ui.spec_error", Ephemeral, Driver, Turn, &[must("uiId", Text), must("message", Text)]),
    event("history", Unnumbered, Store, Other, &[must("items", List)]),
    event("events", Unnumbered, Store, Other, &[must("events", List)]),
    event("member_list", Unnumbered, Store, Other, &[must("members", List)]),
    event("member_updated", Unnumbered, Store, Other, &[must("userId", Text), must("role", Text)]),
    event("member_removed", Unnumbered, Store, Other, &[must("userId", Text)]),
    event("error", Unnumbered, Store, Other, &[must("code", Text), must("message", Text)]),
    event("pong", Unnumbered, Store, Other, &[must("clientTs", Int), must("serverTs", Int)]),
    event("automation_list", Unnumbered, DriverAnswer, Other, &[]),
    event("automation_created", Unnumbered, DriverAnswer, Other, &[]),
    event("automation_updated", Unnumbered, DriverAnswer, Other, &[]),
    event("automation_deleted", Unnumbered, DriverAnswer, Other, &[]),
    event("automation_toggled", Unnumbered, DriverAnswer, Other, &[]),
    event("automation_run_started", Unnumbered, DriverPush, Other, &[]),
    event("automation_run_completed", Unnumbered, DriverPush, Other, &[]),
    event("automation_run_blocked", Unnumbered, DriverPush, Other, &[]),
    event("template_list", Unnumbered, DriverAnswer, Other, &[]),
    event("inbox_list", Unnumbered, DriverAnswer, Other, &[]),
    event("inbox_item_updated", Unnumbered, DriverAnswer, Other, &[]),
    event("inbox_delivery", Unnumbered, DriverPush, Other, &[]),
    event("github.create_repo_request", Kept, Driver, Session, &[]),
    event("github.create_repo_answer", Kept, Store, Session, &[]),
    event("github.create_pr_request", Kept, Driver, Session, &[]),
    event("github.create_pr_answer", Kept, Store, Session, &[]),
    event("github.add_comment_request", Kept, Driver, Session, &[]),
    event("github.add_comment_answer", Kept, Store, Session, &[]),
    event("github.add_review_request", Kept, Driver, Session, &[]),
    event("github.add_review_answer", Kept, Store, Session, &[]),
    event("github.update_pr_request", Kept, Driver, Session, &[]),
    event("github.update_pr_answer", Kept, Store, Session, &[]),
    event("github.add_reviewers_request", Kept, Driver, Session, &[]),
    event("github.add_reviewers_answer", Kept, Store, Session, &[]),
    event("github.fork_repo_request", Kept, Driver, Session, &[]),
    event("github.fork_repo_answer", Kept, Store, Session, &[]),
    event("github.create_issue_request", Kept, Driver, Session, &[]),
    event("github.create_issue_answer", Kept, Store, Session, &[]),
    event("github.update_issue_request", Kept, Driver, Session, &[]),
    event("github.update_issue_answer", Kept, Store, Session, &[]),
    event("mode_switched", Kept, Store, Session, &[]),
    event("autonomy_profile_updated", Kept, Store, Session, &[]),
    event("session_settings_updated", Kept, Store, Session, &[]),
    event("thread.name_delta", Ephemeral, Driver, Session, &[]),
    event("thread.name_complete", Kept, Driver, Session, &[]),
    event("project_list", Unnumbered, DriverAnswer, Other, &[]),
    event("project_created", Unnumbered, DriverAnswer, Other, &[]),
    event("project_updated", Unnumbered, DriverAnswer, Other, &[]),
    event("project_archived", Unnumbered, DriverAnswer, Other, &[]),
    event("project_unarchived", Unnumbered, DriverAnswer, Other, &[]),
    event("project_deleted", Unnumbered, DriverAnswer, Other, &[]),
    event("project_detail", Unnumbered, DriverAnswer, Other, &[]),
    event("plan_created", Kept, Driver, Session, PLAN_CREATED),
    event("plan.created", Kept, Driver, Session, PLAN_CREATED),
    event("plan_step_started", Ephemeral, Driver, Session, STEP_STARTED),
    event("plan.step_started", Ephemeral, Driver, Session, STEP_STARTED),
    event("plan_step_completed", Ephemeral, Driver, Session, STEP_COMPLETED),
    event("plan.step_completed", Ephemeral, Driver, Session, STEP_COMPLETED),
    event("plan_revised", Kept, Driver, Session, PLAN_REVISED),
    event("plan.revised", Kept, Driver, Session, PLAN_REVISED),
    event("memory_extracted", Kept, Driver, Session, &[must("memories", List)]),
    event("memory.extracted", Kept, Driver, Session, &[must("memories", List)]),
    event("memory_recalled", Kept, Driver, Session, &[must("memories", List)]),
    event("memory.recalled", Kept, Driver, Session, &[must("memories", List)]),
    event("memory_forgotten", Kept, Driver, Session, &[must("memoryId", Text)]),
    event("memory.forgotten", Kept, Driver, Session, &[must("memoryId", Text)]),
];

/// Events that only the session model shows.
pub static MODEL_EVENTS: &[EventName] = &[
    event("channel_message_sent", Kept, Driver, Turn, &[must("channel", Text), must("to", Text), must("text", Text)]),
    event("introspection_start", Kept, Driver, Session, &[may("reason", Text)]),
    event("introspection_end", Kept, Driver, Session, &[may("reason", Text), may("summary", Text)]),
    event("introspection_tool", Kept, Driver, Session, &[must("tool", Text)]),
];

impl EventName {
    pub fn find(name: &str) -> Option<&'static EventName> {
        EVENTS.iter().chain(MODEL_EVENTS).find(|event| event.name == name)
    }

    /// Whether it carries a number.
    pub fn is_numbered(&self) -> bool {
        self.class != Class::Unnumbered
    }

    /// Whether a driver may emit it.
    pub fn is_a_drivers(&self) -> bool {
        matches!(self.origin, Origin::Driver | Origin::Both | Origin::DriverPush)
    }

    /// Checks the fields. The error names the field and what it must be.
    pub fn check(&self, fields: &Fields) -> Result<(), EventError> {
        for field in self.fields {
            let found = fields.get(field.name).filter(|value| value.text() != "null" || !field.is_text_like());
            match found {
                None if field.required => {
                    return Err(EventError::FieldMissing { event: self.name, field: *field });
                }
                Some(value) if !field.kind.accepts(value.text()) => {
                    return Err(EventError::FieldWrong { event: self.name, field: *field });
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }
}

/// Why an event of a driver is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventError {
    TypeMissing,
    TypeUnknown(String),
    /// Only the store creates events of this name.
    OfTheStore(&'static str),
    /// The name belongs to a reply.
    NotOfAStream(&'static str),
    FieldMissing {
        event: &'static str,
        field: Field,
    },
    FieldWrong {
        event: &'static str,
        field: Field,
    },
}

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EventError::TypeMissing => f.write_str("the field \"type\" is missing: give the name of an event"),
            EventError::TypeUnknown(name) => write!(f, "type: no event is called {name:?}"),
            EventError::OfTheStore(name) => {
                write!(f, "type: {name:?} is the store's own event; a driver does not emit it")
            }
            EventError::NotOfAStream(name) => {
                write!(f, "type: {name:?} is a reply, not an event of a stream; a driver does not emit it")
            }
            EventError::FieldMissing { event, field } => {
                write!(f, "{event}: the field {:?} is missing: give {}", field.name, field.words())
            }
            EventError::FieldWrong { event, field } => {
                write!(f, "{event}: the field {:?} must be {}", field.name, field.words())
            }
        }
    }
}

impl std::error::Error for EventError {}

impl Field {
    /// Whether null counts as missing.
    fn is_text_like(&self) -> bool {
        !self.required
    }

    fn words(&self) -> String {
        match self.kind {
            Kind::Text => "a string".to_owned(),
            Kind::TextOrNull => "a string or null".to_owned(),
            Kind::Int => "an integer".to_owned(),
            Kind::IntOrNull => "an integer or null".to_owned(),
            Kind::Bool => "true or false".to_owned(),
            Kind::Object => "an object".to_owned(),
            Kind::List => "an array".to_owned(),
            Kind::Any => "any value".to_owned(),
            Kind::State => "the name of a state".to_owned(),
            Kind::OneOf(words) => format!("one of {}", words.join(", ")),
        }
    }
}

impl Kind {
    fn accepts(self, text: &str) -> bool {
        let is_text = text.starts_with('"');
        let is_int = || text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
        match self {
            Kind::Text => is_text,
            Kind::TextOrNull => is_text || text == "null",
            Kind::Int => is_int(),
            Kind::IntOrNull => is_int() || text == "null",
            Kind::Bool => text == "true" || text == "false",
            Kind::Object => text.starts_with('{'),
            Kind::List => text.starts_with('['),
            Kind::Any => true,
            Kind::State => is_text,
            Kind::OneOf(words) => serde_json::from_str::<String>(text).is_ok_and(|word| words.contains(&word.as_str())),
        }
    }
}

/// A field as a Rust value; `None` if it is missing, null or of another type.
pub fn get<T: for<'de> Deserialize<'de>>(fields: &Fields, name: &str) -> Option<T> {
    let text = fields.get(name)?;
    if text.text() == "null" {
        return None;
    }
    serde_json::from_str(text.text()).ok()
}

/// A text field; empty if it is missing.
pub fn text(fields: &Fields, name: &str) -> String {
    get(fields, name).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;

    fn fields(value: Value) -> Fields {
        serde_json::from_value::<serde_json::Map<String, Value>>(value)
            .unwrap()
            .into_iter()
            .map(|(name, value)| (name, Json::print(&value)))
            .collect()
    }

    #[test]
    fn there_are_114_names_and_each_once() {
        let names: BTreeSet<&str> = EVENTS.iter().map(|event| event.name).collect();
        assert_eq!((EVENTS.len(), names.len()), (114, 114));
        let of = |class: Class| EVENTS.iter().filter(|event| event.class == class).count();
        assert_eq!((of(Kept), of(Ephemeral), of(Unnumbered)), (51, 17, 46));
        let by = |origin: Origin, class: Class| {
            EVENTS.iter().filter(|event| event.origin == origin && event.class == class).count()
        };
        assert_eq!((by(Driver, Kept), by(Driver, Ephemeral), by(Store, Kept), by(Both, Kept)), (35, 17, 12, 4));
        assert_eq!((by(DriverAnswer, Unnumbered), by(DriverPush, Unnumbered), by(Store, Unnumbered)), (18, 4, 24));
    }

    #[test]
    fn a_wrong_shape_is_refused_with_the_name_of_the_field() {
        for (name, given, field) in [
            ("text_delta", json!({}), "text"),
            ("text_delta", json!({"text": 1}), "text"),
            ("tool_call", json!({"toolCallId": "c", "toolName": "t"}), "args"),
            ("terminal_complete", json!({"exitCode": 1.5}), "exitCode"),
            ("approval_resolved", json!({"requestId": "r", "approved": "yes"}), "approved"),
            ("plan_step_completed", json!({"status": "begun"}), "status"),
            ("usage_context", json!({"contextTokens": null, "maxContextTokens": 1}), "contextTokens"),
            ("tool_result", json!({"toolCallId": "c", "status": "success", "output": 5}), "output"),
        ] {
            let why = EventName::find(name).unwrap().check(&fields(given)).unwrap_err().to_string();
            assert!(why.contains(name) && why.contains(field), "{why}");
        }
    }

    #[test]
    fn a_right_shape_passes_with_and_without_what_is_optional() {
        for (name, given) in [
            ("text_delta", json!({"text": "a", "more": [1]})),
            ("tool_result", json!({"toolCallId": "c", "status": "success"})),
            ("tool_result", json!({"toolCallId": "c", "status": "success", "output": null})),
            (
                "usage_update",
                json!({"model": null, "provider": "p", "inputTokens": 1, "outputTokens": null, "cachedTokens": null,
                    "costMicroDollars": -1}),
            ),
            ("thread.name_complete", json!({})),
        ] {
            assert_eq!(EventName::find(name).unwrap().check(&fields(given)), Ok(()), "{name}");
        }
    }
}
