//! Owns: the history of a session as front-ends show it: what users and assistants said, without tools.
//! Never: the events of a stream.

use serde_json::{Value, json};

use super::errors::GatewayError;
use super::sessions::Speaker;
use super::{Gateway, Reads};

/// Entries of a transcript that are read at a time.
const PAGE: u64 = 200;
/// A transcript may have thousands of tool results between two messages: the search ends after so many pages.
const PAGES_MAX: usize = 20;

impl Gateway {
    /// The last messages with text before an entry, or of the whole session, oldest first.
    pub(super) async fn history(
        &self,
        speaker: &Speaker,
        session: &str,
        before_id: Option<&str>,
        limit: u64,
    ) -> Result<Vec<Value>, GatewayError> {
        let mut items: Vec<Value> = Vec::new();
        let mut window = self.window(speaker, session, before_id, None, PAGE).await?;
        for _ in 0..PAGES_MAX {
            let is_before = |entry: &&Value| before_id.is_none() || entry["id"].as_str() != before_id;
            items.extend(window.entries.iter().rev().filter(is_before).filter_map(item));
            if window.first == 0 || items.len() as u64 >= limit {
                break;
            }
            let wanted = window.first.min(PAGE);
            window = self.window(speaker, session, before_id, Some(window.first - wanted), wanted).await?;
        }
        items.truncate(limit as usize);
        items.reverse();
        Ok(items)
    }

    /// Entries of the path by depth; by default its end. Large entries come in several answers.
    async fn window(
        &self,
        speaker: &Speaker,
        session: &str,
        to: Option<&str>,
        first: Option<u64>,
        wanted: u64,
    ) -> Result<Window, GatewayError> {
        let mut window = Window { entries: Vec::new(), first: 0 };
        let mut next = first;
        loop {
            let left = wanted - window.entries.len() as u64;
            let ask = json!({ "session_id": session, "from_entry_id": to, "first": next, "limit": left });
            let mut page = self.call(&speaker.person.caller, "session::path", ask, Reads::Fresh).await?;
            let (begun, length) = (page["first"].as_u64().unwrap_or(0), page["length"].as_u64().unwrap_or(0));
            if window.entries.is_empty() {
                window.first = begun;
            }
            let Value::Array(entries) = page["entries"].take() else { return Err(GatewayError::Internal) };
            let (read, end) = (entries.len() as u64, length.min(window.first + wanted));
            window.entries.extend(entries);
            if read == 0 || begun + read >= end {
                return Ok(window);
            }
            next = Some(begun + read);
        }
    }
}

struct Window {
    entries: Vec<Value>,
    /// The depth of the first entry.
    first: u64,
}

/// A message of a user or an assistant that has text.
fn item(entry: &Value) -> Option<Value> {
    let message = &entry["message"];
    let role = message["role"].as_str().filter(|role| ["user", "assistant"].contains(role))?;
    let text = match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts = blocks.iter().filter(|block| block["type"] == "text");
            texts.filter_map(|block| block["text"].as_str()).collect::<String>()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    };
    if text.is_empty() {
        return None;
    }
    Some(json!({ "id": entry["id"], "role": role, "content": text, "createdAt": entry["timestamp"] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_people_and_assistants_said_is_history() {
        let entry = |role: &str, content: Value| json!({"kind": "message", "id": "e", "timestamp": 7, "message": {"role": role, "content": content}});
        let said = item(&entry(
            "assistant",
            json!([{"type": "text", "text": "a"}, {"type": "function_call", "id": "f"},
            {"type": "text", "text": "b"}]),
        ));
        assert_eq!(said, Some(json!({"id": "e", "role": "assistant", "content": "ab", "createdAt": 7})));
        assert_eq!(item(&entry("assistant", json!([{"type": "function_call", "id": "f"}]))), None);
        assert_eq!(item(&entry("function_result", json!([{"type": "text", "text": "a"}]))), None);
        assert_eq!(item(&json!({"kind": "custom", "id": "c"})), None);
    }
}
