//! Owns: which fields of a document are blacked out on request.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;
use thiserror::Error;

use super::step::{EVENT, FILE_WRITE, FUNCTION_RESULT};

/// Stands in place of what was taken out.
pub const REDACTED: &str = "[redacted]";

/// A field that can be taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// The words of every turn.
    Text,
    Thinking,
    /// What tools were called with.
    ToolInput,
    /// What tools answered.
    ToolResult,
    /// The data of events.
    EventData,
    /// Diffs and contents of files.
    Files,
    /// Directories, branches and revisions.
    Environment,
    /// Title and description of the session.
    Title,
}

impl Field {
    pub const ALL: [Field; 8] = [
        Field::Text,
        Field::Thinking,
        Field::ToolInput,
        Field::ToolResult,
        Field::EventData,
        Field::Files,
        Field::Environment,
        Field::Title,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Field::Text => "text",
            Field::Thinking => "thinking",
            Field::ToolInput => "tool_input",
            Field::ToolResult => "tool_result",
            Field::EventData => "event_data",
            Field::Files => "files",
            Field::Environment => "environment",
            Field::Title => "title",
        }
    }
}

/// A word that names no field.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no field that can be redacted; the fields are {names}", names = Field::ALL.map(Field::name).join(", "))]
pub struct UnknownField(pub String);

impl FromStr for Field {
    type Err = UnknownField;

    fn from_str(name: &str) -> Result<Field, UnknownField> {
        Field::ALL.into_iter().find(|field| field.name() == name).ok_or_else(|| UnknownField(name.to_owned()))
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Takes the fields out of a step in its normal shape.
pub fn step(normal: &mut Value, fields: &[Field]) {
    let has = |field| fields.contains(&field);
    if let Some(structural) = normal.get_mut("structural") {
        let is_event = structural["type"] == EVENT;
        let is_result = is_event && structural["entry_type"] == FUNCTION_RESULT;
        blacken(structural, "text", has(Field::Text));
        blacken(structural, "thinking", has(Field::Thinking));
        blacken(structural, "content", is_result && has(Field::ToolResult));
        for used in structural.get_mut("tool_uses").and_then(Value::as_array_mut).into_iter().flatten() {
            blacken(used, "input", has(Field::ToolInput));
            if let Some(result) = used.get_mut("result") {
                blacken(result, "content", has(Field::ToolResult));
            }
        }
        if is_event && !is_result && has(Field::EventData) {
            let own = ["type", "entry_type", "event_source_id"];
            if let Some(event) = structural.as_object_mut() {
                event.retain(|key, _| own.contains(&key.as_str()));
            }
        }
        remove(structural, "environment", has(Field::Environment));
        // Sub-agents' turns hold all of the above.
        remove(structural, "delegations", has(Field::Text) || has(Field::ToolInput) || has(Field::ToolResult));
    }
    blacken(normal, "raw", has(Field::Files));
    for change in normal.get_mut("change").and_then(Value::as_object_mut).into_iter().flat_map(|c| c.values_mut()) {
        blacken(change, "raw", has(Field::Files));
        if let Some(structural) = change.get_mut("structural").filter(|structural| structural["type"] == FILE_WRITE) {
            blacken(structural, "before", has(Field::Files));
            blacken(structural, "after", has(Field::Files));
        }
    }
}

/// Takes the fields out of the head of a document.
pub fn head(meta: &mut Value, fields: &[Field]) {
    for key in ["title", "description", "intent"] {
        blacken(meta, key, fields.contains(&Field::Title));
    }
    remove(meta, "files_changed", fields.contains(&Field::Files));
    remove(meta, "vcs_remote", fields.contains(&Field::Environment));
}

fn blacken(object: &mut Value, key: &str, wanted: bool) {
    if wanted && let Some(value) = object.get_mut(key) {
        *value = Value::from(REDACTED);
    }
}

fn remove(object: &mut Value, key: &str, wanted: bool) {
    if wanted && let Some(object) = object.as_object_mut() {
        object.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_of_a_redacted_step_is_left() {
        let mut normal = json!({
            "step": {"id": "a"}, "artifact": "x", "raw": "secret",
            "structural": {"type": "conversation.append", "role": "assistant", "text": "secret", "thinking": "secret",
                "tool_uses": [{"id": "t", "name": "bash", "input": {"cmd": "secret"}, "category": "shell",
                    "result": {"content": "secret", "is_error": false}}],
                "environment": {"working_dir": "/secret"}, "delegations": [{"prompt": "secret"}]},
            "change": {"a.rs": {"raw": "secret", "structural": {"type": "file.write", "after": "secret"}}},
        });
        step(&mut normal, &Field::ALL);
        assert!(!normal.to_string().contains("secret"), "{normal}");
        assert_eq!(normal["structural"]["tool_uses"][0]["result"], json!({"content": REDACTED, "is_error": false}));
    }

    #[test]
    fn a_field_is_known_by_its_name() {
        for field in Field::ALL {
            assert_eq!(field.name().parse(), Ok(field));
        }
        assert!("password".parse::<Field>().unwrap_err().to_string().contains("tool_result"));
    }
}
