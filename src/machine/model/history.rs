//! Owns: the rows of a session's history, made from the entries of its transcript.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::names;
use crate::machine::entry::{Body, Entry};
use crate::machine::json::Json;
use crate::machine::message::{AgentMessage, ContentBlock};
use crate::machine::toolpath::time;

/// Who a row is by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowRole {
    User,
    Assistant,
    Error,
    Tool,
    Introspection,
}

/// One row of a history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub ts: String,
    pub role: RowRole,
    pub content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachments: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// `call` or `result`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_phase: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_is_error: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_args: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub introspection: Option<bool>,
    /// `start` or `end`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub introspection_phase: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub introspection_summary: Option<String>,
}

impl Row {
    fn new(at_ms: i64, role: RowRole, content: String) -> Row {
        Row {
            ts: time::print(at_ms),
            role,
            content,
            name: None,
            message_id: None,
            attachments: None,
            provider: None,
            model: None,
            stop_reason: None,
            thinking: None,
            tool: None,
            tool_call_id: None,
            tool_phase: None,
            tool_is_error: None,
            tool_args: None,
            introspection: None,
            introspection_phase: None,
            introspection_summary: None,
        }
    }
}

/// The rows of one entry. Records of other applications have none.
pub fn rows(entry: &Entry) -> Vec<Row> {
    match &entry.body {
        Body::Message(message) => match message.body.parse::<AgentMessage>() {
            Ok(message) => message_rows(entry, message),
            Err(_) => Vec::new(),
        },
        Body::Custom { custom_type, data } => {
            record_row(entry.timestamp, custom_type, &data.value()).into_iter().collect()
        }
    }
}

fn message_rows(entry: &Entry, message: AgentMessage) -> Vec<Row> {
    match message {
        AgentMessage::User { content, timestamp } => {
            let origin = entry.origin.as_ref().map(Json::value).unwrap_or_default();
            let blocks = content.items();
            vec![Row {
                name: text_of(&origin, "name"),
                message_id: names::message_id(entry.id.as_str()).map(str::to_owned),
                attachments: attachments(&origin, &blocks),
                ..Row::new(timestamp, RowRole::User, text(&blocks))
            }]
        }
        AgentMessage::Assistant { content, stop_reason, error_message, model, provider, timestamp, .. } => {
            let blocks = content.items();
            let (said, thought) = (text(&blocks), thinking(&blocks));
            let mut rows = Vec::new();
            if !said.is_empty() || thought.is_some() {
                let named = |name: String| (!name.is_empty()).then_some(name);
                rows.push(Row {
                    provider: named(provider),
                    model: named(model),
                    stop_reason: Some(stop_reason.name().to_owned()),
                    thinking: thought,
                    ..Row::new(timestamp, RowRole::Assistant, said)
                });
            }
            rows.extend(blocks.into_iter().filter_map(|block| call_row(timestamp, block)));
            // The error of a turn has a record of its own.
            let of_turn = entry.origin.as_ref().is_some_and(|origin| origin.field("turn_id").is_some());
            let error = error_message.filter(|_| !of_turn);
            rows.extend(error.map(|error| Row::new(timestamp, RowRole::Error, error)));
            rows
        }
        AgentMessage::FunctionResult { function_call_id, function_id, content, is_error, timestamp, .. } => {
            vec![Row {
                tool: Some(function_id),
                tool_call_id: Some(function_call_id),
                tool_phase: Some("result".to_owned()),
                tool_is_error: Some(is_error),
                ..Row::new(timestamp, RowRole::Tool, text(&content.items()))
            }]
        }
        AgentMessage::Custom { .. } => Vec::new(),
    }
}

fn call_row(timestamp: i64, block: ContentBlock) -> Option<Row> {
    let ContentBlock::FunctionCall { id, function_id, arguments } = block else { return None };
    Some(Row {
        tool: Some(function_id),
        tool_call_id: Some(id),
        tool_phase: Some("call".to_owned()),
        tool_args: Some(arguments),
        ..Row::new(timestamp, RowRole::Tool, String::new())
    })
}

fn record_row(timestamp: i64, custom_type: &str, data: &Value) -> Option<Row> {
    match custom_type.strip_prefix("profile/")? {
        "error" => Some(Row::new(timestamp, RowRole::Error, text_of(data, "message").unwrap_or_default())),
        "introspection_start" => Some(Row {
            introspection: Some(true),
            introspection_phase: Some("start".to_owned()),
            ..Row::new(timestamp, RowRole::Introspection, text_of(data, "reason").unwrap_or_default())
        }),
        "introspection_end" => Some(Row {
            introspection: Some(true),
            introspection_phase: Some("end".to_owned()),
            introspection_summary: text_of(data, "summary"),
            ..Row::new(timestamp, RowRole::Introspection, text_of(data, "reason").unwrap_or_default())
        }),
        _unshown => None,
    }
}

fn text_of(value: &Value, field: &str) -> Option<String> {
    value.get(field)?.as_str().map(str::to_owned)
}

fn text(blocks: &[ContentBlock]) -> String {
    let texts = blocks.iter().filter_map(|block| match block {
        ContentBlock::Text { text } => Some(text.as_str()),
        ContentBlock::Image { .. }
        | ContentBlock::Thinking { .. }
        | ContentBlock::FunctionCall { .. }
        | ContentBlock::FunctionResult { .. } => None,
    });
    texts.collect()
}

fn thinking(blocks: &[ContentBlock]) -> Option<String> {
    let thoughts = blocks.iter().filter_map(|block| match block {
        ContentBlock::Thinking { text, .. } => Some(text.as_str()),
        ContentBlock::Text { .. }
        | ContentBlock::Image { .. }
        | ContentBlock::FunctionCall { .. }
        | ContentBlock::FunctionResult { .. } => None,
    });
    let thought: String = thoughts.collect();
    (!thought.is_empty()).then_some(thought)
}

/// Pictures are blocks of the message: their data comes back from there.
fn attachments(origin: &Value, blocks: &[ContentBlock]) -> Option<Vec<Value>> {
    let mut pictures = blocks.iter().filter_map(|block| match block {
        ContentBlock::Image { data, .. } => Some(data),
        ContentBlock::Text { .. }
        | ContentBlock::Thinking { .. }
        | ContentBlock::FunctionCall { .. }
        | ContentBlock::FunctionResult { .. } => None,
    });
    let mut attachments = origin.get("attachments")?.as_array()?.clone();
    for attachment in attachments.iter_mut().filter_map(Value::as_object_mut) {
        if attachment.remove("inline").is_some()
            && let Some(data) = pictures.next()
        {
            attachment.insert("data".to_owned(), Value::from(data.as_str()));
        }
    }
    Some(attachments)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(value: Value) -> Entry {
        Entry::parse(&value.to_string()).unwrap()
    }

    fn printed(value: Value) -> Value {
        json!(rows(&entry(value)))
    }

    #[test]
    fn a_message_comes_back_with_its_name_and_its_pictures() {
        let row = printed(json!({
            "kind": "message", "id": "m:1", "timestamp": 5, "revision": 0,
            "message": {"role": "user", "timestamp": 0,
                "content": [{"type": "text", "text": "hi"}, {"type": "image", "data": "AA==", "mime": "image/png"}]},
            "origin": {"name": "Ann", "attachments": [{"type": "file", "url": "u"}, {"type": "image", "inline": true}]},
        }));
        assert_eq!(
            row,
            json!([{"ts": "1970-01-01T00:00:00.000Z", "role": "user", "content": "hi", "name": "Ann",
                "messageId": "1",
                "attachments": [{"type": "file", "url": "u"}, {"type": "image", "data": "AA=="}]}])
        );
    }

    #[test]
    fn a_reply_with_a_call_has_two_rows_and_its_result_a_third() {
        let row = printed(json!({
            "kind": "message", "id": "e", "timestamp": 5, "revision": 0,
            "message": {"role": "assistant", "timestamp": 0, "stop_reason": "function_call", "model": "m",
                "provider": "", "content": [{"type": "thinking", "text": "t"}, {"type": "text", "text": "a"},
                {"type": "function_call", "id": "c1", "function_id": "ls", "arguments": {"p": 1}}]},
        }));
        assert_eq!(row[0]["thinking"], "t");
        assert_eq!((row[0]["model"].as_str(), row[0].get("provider")), (Some("m"), None));
        assert_eq!((row[1]["toolPhase"].as_str(), &row[1]["toolArgs"]), (Some("call"), &json!({"p": 1})));
        let result = printed(json!({
            "kind": "message", "id": "e", "timestamp": 5, "revision": 0,
            "message": {"role": "function_result", "timestamp": 0, "function_call_id": "c1", "function_id": "ls",
                "content": [{"type": "text", "text": "x"}], "is_error": true},
        }));
        assert_eq!((result[0]["toolIsError"].as_bool(), result[0]["content"].as_str()), (Some(true), Some("x")));
    }

    #[test]
    fn records_of_the_model_have_rows_and_others_none() {
        let record = |kind: &str, data: Value| {
            printed(
                json!({"kind": "custom", "id": "e", "timestamp": 0, "revision": 0, "custom_type": kind, "data": data}),
            )
        };
        assert_eq!(record("profile/error", json!({"message": "no"}))[0]["role"], "error");
        let end = record("profile/introspection_end", json!({"reason": "idle", "summary": "s"}));
        assert_eq!((end[0]["introspectionSummary"].as_str(), end[0]["content"].as_str()), (Some("s"), Some("idle")));
        assert_eq!(record("compaction", json!({})), json!([]));
        assert_eq!(record("profile/approval_resolved", json!({})), json!([]));
    }
}
