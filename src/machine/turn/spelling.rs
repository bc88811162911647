//! Owns: the second spelling of events. The session model has names of its own for what the gateway calls otherwise; a
//! driver may use either, and the journal has the gateway's.

use super::events::{EVENTS, EventError, EventName, Fields, get, text};
use crate::machine::json::Json;

/// An event in the gateway's spelling, with its shape checked. The error says what is wrong with it.
pub fn checked(mut event: Fields) -> Result<Fields, EventError> {
    let Some(name) = get::<String>(&event, "type") else {
        return Err(EventError::TypeMissing);
    };
    // The store fills these in.
    for own in ["sessionId", "turnId", "seq", "ts"] {
        event.remove(own);
    }
    let event = normal(&name, event);
    let name = text(&event, "type");
    let known = EventName::find(&name).ok_or(EventError::TypeUnknown(name))?;
    if !known.is_a_drivers() {
        return Err(match known.is_numbered() {
            true => EventError::OfTheStore(known.name),
            false => EventError::NotOfAStream(known.name),
        });
    }
    known.check(&event)?;
    Ok(event)
}

fn normal(name: &str, mut event: Fields) -> Fields {
    let rename = |event: &mut Fields, to: &str| drop(event.insert("type".to_owned(), Json::print(&to)));
    let copy = |event: &mut Fields, from: &str, to: &str| {
        if let (Some(value), false) = (event.get(from).cloned(), event.contains_key(to)) {
            event.insert(to.to_owned(), value);
        }
    };
    match name {
        "thinking.progress" => rename(&mut event, "thinking_progress"),
        "terminal.stream" => rename(&mut event, "terminal_stream"),
        "agent_start" => rename(&mut event, "turn_started"),
        "thinking_delta" => rename(&mut event, "thinking_progress"),
        "thinking_final" => rename(&mut event, "thinking_complete"),
        "text_final" | "assistant_message" => {
            rename(&mut event, "message.complete");
            event.entry("text".to_owned()).or_insert_with(|| Json::adopt("\"\""));
        }
        "agent_end" => {
            let failed = get::<bool>(&event, "failed").unwrap_or(false);
            if failed {
                rename(&mut event, "turn_error");
                event.entry("message".to_owned()).or_insert_with(|| Json::adopt("\"the agent failed\""));
                event.entry("code".to_owned()).or_insert_with(|| Json::adopt("\"AGENT_ERROR\""));
            } else {
                rename(&mut event, "turn_complete");
                copy(&mut event, "text", "finalText");
                event.entry("finalText".to_owned()).or_insert_with(|| Json::adopt("\"\""));
            }
        }
        "error" => {
            rename(&mut event, "turn_error");
            event.entry("code".to_owned()).or_insert_with(|| Json::adopt("\"AGENT_ERROR\""));
        }
        "tool_call" => {
            copy(&mut event, "tool", "toolName");
            event.entry("args".to_owned()).or_insert_with(|| Json::adopt("{}"));
        }
        "tool_result" => {
            copy(&mut event, "text", "output");
            copy(&mut event, "tool", "toolName");
            let is_error = get::<bool>(&event, "isError").unwrap_or(false);
            let status = if is_error { "error" } else { "success" };
            event.entry("status".to_owned()).or_insert_with(|| Json::print(&status));
        }
        "tool_approval_required" | "approval_requested" => {
            rename(&mut event, "permission_requested");
            copy(&mut event, "toolCallId", "requestId");
            copy(&mut event, "resourceKey", "toolName");
            event.entry("description".to_owned()).or_insert_with(|| Json::adopt("\"\""));
        }
        "approval_resolved" => {
            copy(&mut event, "toolCallId", "requestId");
            if let (Some(decision), None) = (get::<String>(&event, "decision"), event.get("approved")) {
                event.insert("approved".to_owned(), Json::print(&(decision == "approved")));
            }
        }
        _other => {}
    }
    event
}

/// The names that a driver may emit, for messages and documentation.
pub fn drivers_names() -> impl Iterator<Item = &'static str> {
    EVENTS.iter().filter(|event| event.is_a_drivers()).map(|event| event.name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::machine::turn::events::{Class, Origin};

    fn fields(value: &Value) -> Fields {
        serde_json::from_str(&value.to_string()).unwrap()
    }

    #[test]
    fn the_names_of_the_session_model_mean_the_same_events() {
        for (given, name) in [
            (json!({"type": "agent_start"}), "turn_started"),
            (json!({"type": "text_delta", "text": "a"}), "text_delta"),
            (json!({"type": "thinking_delta", "text": "a"}), "thinking_progress"),
            (json!({"type": "thinking_final", "text": "a"}), "thinking_complete"),
            (json!({"type": "text_final", "text": "a"}), "message.complete"),
            (json!({"type": "agent_end"}), "turn_complete"),
            (json!({"type": "agent_end", "failed": true}), "turn_error"),
            (json!({"type": "error", "message": "m"}), "turn_error"),
            (json!({"type": "tool_call", "tool": "t", "toolCallId": "c"}), "tool_call"),
            (json!({"type": "tool_result", "tool": "t", "toolCallId": "c", "isError": true}), "tool_result"),
            (json!({"type": "tool_approval_required", "toolName": "t", "toolCallId": "c"}), "permission_requested"),
            (json!({"type": "approval_resolved", "toolCallId": "c", "decision": "rejected"}), "approval_resolved"),
            (json!({"type": "channel_message_sent", "channel": "c", "to": "x", "text": "t"}), "channel_message_sent"),
        ] {
            let event = checked(fields(&given)).unwrap();
            assert_eq!(text(&event, "type"), name, "{given}");
        }
        let result = checked(fields(&json!({"type": "tool_result", "toolCallId": "c", "isError": true}))).unwrap();
        assert_eq!(text(&result, "status"), "error");
    }

    /// Each name is accepted or refused as the specification says whose it is.
    #[test]
    fn of_all_names_a_driver_emits_only_its_own() {
        for event in EVENTS {
            let mut given = Fields::from([("type".to_owned(), Json::print(&event.name))]);
            for field in event.fields {
                let value = match field.kind {
                    super::super::events::Kind::Int | super::super::events::Kind::IntOrNull => "1",
                    super::super::events::Kind::Bool => "true",
                    super::super::events::Kind::Object => "{}",
                    super::super::events::Kind::List => "[]",
                    super::super::events::Kind::OneOf(words) => {
                        given.insert(field.name.to_owned(), Json::print(&words[0]));
                        continue;
                    }
                    super::super::events::Kind::Text
                    | super::super::events::Kind::TextOrNull
                    | super::super::events::Kind::Any
                    | super::super::events::Kind::State => "\"x\"",
                };
                given.insert(field.name.to_owned(), Json::adopt(value));
            }
            let result = checked(given);
            // `error` is also the session model's name of a failed turn.
            let expected = event.is_a_drivers() || event.name == "error";
            assert_eq!(result.is_ok(), expected, "{}: {result:?}", event.name);
            let is_a_drivers = match (event.class, event.origin) {
                (Class::Unnumbered, origin) => origin == Origin::DriverPush,
                (Class::Kept | Class::Ephemeral, origin) => origin != Origin::Store,
            };
            assert_eq!(event.is_a_drivers(), is_a_drivers, "{}", event.name);
        }
        assert_eq!(drivers_names().count(), 35 + 17 + 4 + 4);
        for wrong in [json!({}), json!({"type": 1}), json!({"type": "no_such"}), json!({"type": "text_delta"})] {
            assert!(checked(fields(&wrong)).is_err(), "{wrong}");
        }
    }
}
