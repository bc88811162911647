//! Owns: the conversations of `session-manager demo`, and how their short form becomes requests.

use serde::Deserialize;
use serde_json::{Value, json};

/// A conversation in its short form.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Story {
    pub session_id: String,
    pub title: String,
    #[serde(default)]
    pub description: String,
    #[serde(default = "done")]
    pub status: String,
    pub status_reason: Option<String>,
    #[serde(default)]
    metadata: serde_json::Map<String, Value>,
    /// The end of the active branch; by default the last entry.
    pub active: Option<String>,
    pub fork: Option<Fork>,
    pub entries: Vec<StoryEntry>,
}

/// A fork of the conversation.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    /// The last entry that the fork copies.
    pub at: String,
    pub title: String,
}

/// An entry in its short form. A user or an assistant speaks, or a function answers.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoryEntry {
    pub id: String,
    /// By default the entry before.
    pub parent: Option<String>,
    pub role: String,
    text: Option<String>,
    thinking: Option<String>,
    /// The base64 form of a PNG image.
    image: Option<String>,
    #[serde(default)]
    calls: Vec<StoryCall>,
    /// The call that a function answers.
    call: Option<String>,
    function: Option<String>,
    #[serde(default)]
    is_error: bool,
    error: Option<String>,
    error_kind: Option<String>,
    custom_type: Option<String>,
    data: Option<Value>,
    /// Tokens in, tokens out, and the cost in dollars.
    usage: Option<(u64, u64, f64)>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoryCall {
    id: String,
    function: String,
    arguments: Value,
}

fn done() -> String {
    "done".to_owned()
}

/// The long conversations.
pub fn all() -> Vec<Story> {
    serde_json::from_str(include_str!("stories.json")).expect("the stories are read by a test")
}

const QUESTIONS: [(&str, &str); 6] = [
    (
        "What does a leader lease protect?",
        "It protects reads. While the lease holds, no other node can have become leader, so the leader may answer from \
         its own state without asking a **majority** first. The price is a bound on clock drift.",
    ),
    (
        "Why are appends idempotent?",
        "Because a client cannot know whether a lost answer means a lost request. With an `entry_id` of its own it sends \
         the same append again:\n\n- the first one is stored,\n- every later one *changes nothing* and answers alike.",
    ),
    (
        "How do I page through a long list?",
        "Pass the cursor back until there is none:\n\n```python\ncursor = None\nwhile True:\n    page = \
         call(\"session::list\", {\"cursor\": cursor})\n    yield from page[\"sessions\"]\n    cursor = \
         page.get(\"next_cursor\")\n    if cursor is None:\n        break\n```\n\nEvery page costs the same.",
    ),
    (
        "What happens when a follower falls behind?",
        "The leader keeps some entries behind its newest snapshot. A follower that is a little late gets those. One that \
         is very late gets the snapshot first, and then the entries after it.",
    ),
    (
        "Can two writers stream into one message?",
        "They can, and one of them loses politely. An update with `expected_revision` is written only if nobody else was \
         faster. The answer names the current revision, so the slower writer can merge and try again.",
    ),
    (
        "When is a write durable?",
        "When it is acknowledged:\n\n1. the leader appends it to its log,\n2. a majority has it **on disk**,\n3. it is \
         applied,\n4. you get the answer.\n\nA power cut after step four loses nothing.",
    ),
];

/// A question and its answer, for the endless conversation.
pub fn exchange(turn: usize) -> (&'static str, &'static str) {
    QUESTIONS[turn % QUESTIONS.len()]
}

/// One of many small conversations.
pub fn small(number: usize) -> Story {
    const TENANTS: [&str; 4] = ["acme", "globex", "initech", "umbrella"];
    const STATUS: [&str; 5] = ["done", "done", "idle", "working", "done"];
    let (question, answer) = exchange(number);
    let speak = |id: &str, role: &str, text: &str, usage| StoryEntry {
        id: id.to_owned(),
        role: role.to_owned(),
        text: Some(text.to_owned()),
        usage,
        ..StoryEntry::default()
    };
    let metadata = json!({ "tenant": TENANTS[number % TENANTS.len()], "channel": if number.is_multiple_of(2) { "web" } else { "api" } });
    Story {
        session_id: format!("demo-question-{}", number + 1),
        title: question.to_owned(),
        description: String::new(),
        status: STATUS[number % STATUS.len()].to_owned(),
        status_reason: None,
        metadata: metadata.as_object().cloned().unwrap_or_default(),
        active: None,
        fork: None,
        entries: vec![
            speak("q", "user", question, None),
            speak("a", "assistant", answer, Some((180 + number as u64 * 7, 64 + number as u64, 0.0014))),
        ],
    }
}

impl Story {
    /// The request that creates the session.
    pub fn ensure(&self) -> Value {
        let mut metadata = self.metadata.clone();
        metadata.insert("demo".to_owned(), json!(true));
        let Story { session_id, title, description, .. } = self;
        json!({ "session_id": session_id, "title": title, "description": description, "metadata": metadata })
    }
}

impl StoryEntry {
    /// The request that appends the entry.
    pub fn append(&self, session_id: &str, at_ms: i64) -> Value {
        match &self.custom_type {
            Some(custom_type) => {
                json!({ "session_id": session_id, "custom": { "custom_type": custom_type, "data": self.data } })
            }
            None => json!({ "session_id": session_id, "message": self.message(at_ms) }),
        }
    }

    fn message(&self, at_ms: i64) -> Value {
        let mut message = json!({ "role": self.role, "timestamp": at_ms, "content": self.content() });
        match self.role.as_str() {
            "assistant" => {
                let stop = match (&self.error, self.calls.is_empty()) {
                    (Some(_), _) => "error",
                    (None, false) => "function_call",
                    (None, true) => "end",
                };
                message["stop_reason"] = json!(stop);
                message["model"] = json!("demo-large");
                message["provider"] = json!("demo");
                if let Some((input, output, cost_usd)) = self.usage {
                    message["usage"] = json!({ "input": input, "output": output, "cost_usd": cost_usd });
                }
                if let Some(error) = &self.error {
                    message["error_message"] = json!(error);
                    message["error_kind"] = json!(self.error_kind);
                }
            }
            "function_result" => {
                message["function_call_id"] = json!(self.call);
                message["function_id"] = json!(self.function);
                message["is_error"] = json!(self.is_error);
            }
            _user => {}
        }
        message
    }

    fn content(&self) -> Vec<Value> {
        let mut content = Vec::new();
        content.extend(self.thinking.iter().map(|text| json!({ "type": "thinking", "text": text })));
        content.extend(self.text.iter().map(|text| json!({ "type": "text", "text": text })));
        content.extend(self.image.iter().map(|data| json!({ "type": "image", "data": data, "mime": "image/png" })));
        let call = |call: &StoryCall| {
            json!({
                "type": "function_call", "id": call.id, "function_id": call.function, "arguments": call.arguments,
            })
        };
        content.extend(self.calls.iter().map(call));
        content
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{Limits, find};

    #[test]
    fn every_entry_of_every_story_is_a_valid_append() {
        let limits = Limits {
            default_list_limit: 50,
            max_list_limit: 500,
            model: crate::machine::model::profile::Terms::DEFAULT,
        };
        let append = find("session::append", false).unwrap();
        for story in all().into_iter().chain((0..10).map(small)) {
            assert!(story.session_id.starts_with("demo-"), "{}", story.session_id);
            for entry in &story.entries {
                let body = entry.append(&story.session_id, 1).to_string();
                let decided = (append.decide)(&body, &limits);
                assert!(decided.is_ok(), "{} {}: {decided:?}", story.session_id, entry.id);
            }
        }
    }
}
