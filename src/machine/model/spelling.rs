//! Owns: the names and fields that events of a turn have in the session model. One event of the journal may be two here.

use super::scene::Fields;
use crate::machine::json::Json;

/// An event of the model, without its number.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub kind: &'static str,
    pub fields: Fields,
}

/// What an event of the journal means for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    Started,
    /// A tool was called.
    Calls,
    AsksPerson,
    PersonAnswered,
    Completed,
    Failed,
    Stopped,
    /// An assistant message is complete.
    SaidAll,
    Nothing,
}

/// What an event of the journal means.
pub fn meaning(name: &str) -> Means {
    match name {
        "turn_started" => Means::Started,
        "tool_call" => Means::Calls,
        "permission_requested" => Means::AsksPerson,
        "approval_resolved" => Means::PersonAnswered,
        "turn_complete" => Means::Completed,
        "turn_error" => Means::Failed,
        "stop_acknowledged" => Means::Stopped,
        "message.complete" => Means::SaidAll,
        _other => Means::Nothing,
    }
}

/// Whether the model shows an event of the journal.
pub fn is_told(name: &str) -> bool {
    matches!(
        name,
        "turn_started"
            | "text_delta"
            | "message.delta"
            | "thinking_progress"
            | "thinking_complete"
            | "tool_call"
            | "tool_result"
            | "tool_error"
            | "permission_requested"
            | "approval_resolved"
            | "turn_complete"
            | "turn_error"
            | "stop_acknowledged"
            | "channel_message_sent"
    )
}

fn word(text: &str) -> Json {
    Json::print(&text)
}

/// Tells an event of the journal. Empty: the model does not show it.
pub fn tell(name: &str, event: &Fields) -> Vec<Told> {
    let told = |kind: &'static str, fields: &[(&str, Option<Json>)]| {
        let given = fields.iter().filter_map(|(name, value)| Some(((*name).to_owned(), value.clone()?)));
        Told { kind, fields: given.collect() }
    };
    let first =
        |names: &[&str]| names.iter().find_map(|name| event.get(*name).filter(|value| value.text() != "null").cloned());
    let text = |names: &[&str]| Some(first(names).unwrap_or_else(|| word("")));
    let tool = text(&["tool", "toolName"]);
    let call = text(&["toolCallId", "requestId"]);
    match name {
        "turn_started" => vec![told("agent_start", &[])],
        "text_delta" | "message.delta" => vec![told("text_delta", &[("text", text(&["text"]))])],
        "thinking_progress" => vec![told("thinking_delta", &[("text", text(&["text"]))])],
        "thinking_complete" => vec![told("thinking_final", &[("text", text(&["text"]))])],
        "tool_call" => {
            vec![told("tool_call", &[("tool", tool), ("toolCallId", call), ("args", first(&["args"]))])]
        }
        "tool_result" | "tool_error" => {
            let failed = name == "tool_error"
                || event.get("isError").is_some_and(|value| value.text() == "true")
                || event.get("status").is_some_and(|status| status.text() == "\"error\"");
            vec![told(
                "tool_result",
                &[
                    ("tool", tool),
                    ("toolCallId", call),
                    ("isError", Some(Json::print(&failed))),
                    ("text", first(&["text", "output", "error"])),
                    ("details", first(&["details"])),
                ],
            )]
        }
        "permission_requested" => {
            let args = first(&["args"]);
            vec![
                told(
                    "tool_approval_required",
                    &[("toolName", tool.clone()), ("toolCallId", call.clone()), ("args", args.clone())],
                ),
                told(
                    "approval_requested",
                    &[
                        ("resourceType", Some(word("tool"))),
                        ("resourceKey", tool),
                        ("toolCallId", call),
                        ("args", args),
                        ("mode", Some(word("realtime"))),
                    ],
                ),
            ]
        }
        "approval_resolved" => {
            let is_approved = event.get("approved").is_some_and(|value| value.text() == "true");
            let decision =
                first(&["decision"]).unwrap_or_else(|| word(if is_approved { "approved" } else { "rejected" }));
            vec![told(
                "approval_resolved",
                &[
                    ("resourceType", Some(word("tool"))),
                    ("resourceKey", first(&["tool", "toolName"])),
                    ("toolCallId", call),
                    ("decision", Some(decision)),
                ],
            )]
        }
        "turn_complete" => {
            vec![told("text_final", &[("text", text(&["finalText", "text"]))]), told("agent_end", &[])]
        }
        "turn_error" => {
            vec![told("error", &[("message", text(&["message"]))]), told("agent_end", &[])]
        }
        "stop_acknowledged" => vec![told("agent_end", &[])],
        "channel_message_sent" => {
            let fields = ["channel", "to", "text", "messageId"];
            let given: Vec<(&str, Option<Json>)> = fields.into_iter().map(|name| (name, first(&[name]))).collect();
            vec![told("channel_message_sent", &given)]
        }
        _unshown => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(name: &str, event: Value) -> Value {
        let told = tell(name, &serde_json::from_str(&event.to_string()).unwrap());
        assert_eq!(told.is_empty(), !is_told(name), "{name}");
        told.into_iter().map(|told| json!([told.kind, told.fields])).collect()
    }

    #[test]
    fn every_event_of_a_turn_has_its_words() {
        for (name, event, words) in [
            ("turn_started", json!({}), json!([["agent_start", {}]])),
            ("message.delta", json!({"text": "a"}), json!([["text_delta", {"text": "a"}]])),
            ("thinking_progress", json!({"text": "a"}), json!([["thinking_delta", {"text": "a"}]])),
            (
                "tool_call",
                json!({"toolCallId": "c", "toolName": "ls", "args": {"a": 1}}),
                json!([["tool_call", {"tool": "ls", "toolCallId": "c", "args": {"a": 1}}]]),
            ),
            (
                "tool_result",
                json!({"toolCallId": "c", "toolName": "ls", "status": "error", "output": "no"}),
                json!([["tool_result", {"tool": "ls", "toolCallId": "c", "isError": true, "text": "no"}]]),
            ),
            (
                "tool_result",
                json!({"toolCallId": "c", "tool": "ls", "isError": false, "text": "x", "details": [1]}),
                json!([["tool_result", {"tool": "ls", "toolCallId": "c", "isError": false, "text": "x", "details": [1]}]]),
            ),
            (
                "approval_resolved",
                json!({"requestId": "c", "approved": true}),
                json!([["approval_resolved", {"resourceType": "tool", "toolCallId": "c", "decision": "approved"}]]),
            ),
            ("turn_complete", json!({"finalText": "a"}), json!([["text_final", {"text": "a"}], ["agent_end", {}]])),
            ("turn_error", json!({"message": "no"}), json!([["error", {"message": "no"}], ["agent_end", {}]])),
            ("stop_acknowledged", json!({}), json!([["agent_end", {}]])),
            ("usage_update", json!({}), json!([])),
        ] {
            assert_eq!(told(name, event), words, "{name}");
        }
        let asked = told("permission_requested", json!({"requestId": "r", "toolName": "rm"}));
        assert_eq!(asked[0], json!(["tool_approval_required", {"toolName": "rm", "toolCallId": "r"}]));
        assert_eq!(asked[1][1]["resourceKey"], "rm");
    }
}
