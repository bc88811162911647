//! Owns: one entry as one step: the fields other tools see, and the two shapes of a step.
//!
//! The normal shape is what steps are compared in: the conversation's change stands under `structural`, away from its
//! artifact key and from the other changes of the step.

use serde_json::{Map, Value, json};

use super::{BARE_STEP_TYPE, EXTRAS, PATH_ENTRY, PATH_ENTRY_TYPE, actor, check, difference, time};
use crate::machine::entry::{Body, Entry};
use crate::machine::ids::EntryId;
use crate::machine::json::Json;
use crate::machine::message::{AgentMessage, ContentBlock, Usage};

pub const APPEND: &str = "conversation.append";
pub const EVENT: &str = "conversation.event";
pub const FILE_WRITE: &str = "file.write";

/// The `entry_type` of function results: as turns, other tools would show them as words of the user.
pub const FUNCTION_RESULT: &str = "function_result";

/// The role of a custom message, `custom:<custom_type>`.
pub const CUSTOM_ROLE: &str = "custom:";

/// The custom type of a message whose role this project does not have, `toolpath:<role>`.
pub const FOREIGN_ROLE: &str = "toolpath:";

/// Keys of an event that are not its data.
pub const EVENT_KEYS: [&str; 5] = ["type", "entry_type", "event_source_id", "data", EXTRAS];

/// Stands between the id of a step and that of a tool in the id of a result.
const RESULT_MARK: &str = "#r:";

/// How many entries after a call are searched for its answer.
pub const ANSWERS_WITHIN: usize = 1000;

/// JSON readers stop at 128 levels, and a step stands eight levels deep in its document. A value nested deeper than
/// this is written as text.
const DEPTH_MAX: usize = 100;

/// An entry with what its step tells about its neighbours.
pub struct Shown<'a> {
    pub entry: &'a Entry,
    /// The step above it: the parent entry, or the step whose result the parent entry is.
    pub parent: Option<&'a EntryId>,
    /// The answers to its function calls, in order.
    pub results: &'a [Entry],
}

/// The step of an entry in its normal shape: what follows from the entry, with what a foreign document said beyond it.
pub fn normal(path_id: &str, shown: &Shown<'_>) -> Value {
    let derived = derived(path_id, shown);
    match foreign(shown.entry) {
        Some(origin) => {
            let told = assembled(difference::apply(derived.clone(), &Value::Object(origin)), None);
            // An origin is the caller's own: what is no difference of ours must not spoil the step.
            let is_step = told["step"]["id"] == derived["step"]["id"] && check::step(&told).is_ok();
            if is_step { normalised(told).0 } else { derived }
        }
        None => derived,
    }
}

/// `origin.toolpath`: what import stored of a foreign step.
pub fn foreign(entry: &Entry) -> Option<Map<String, Value>> {
    // Most origins hold nothing of this kind: the text is looked at before it is parsed.
    let origin = entry.origin.as_ref().filter(|origin| origin.text().contains("\"toolpath\""))?;
    match origin.value().get_mut("toolpath").map(Value::take) {
        Some(Value::Object(toolpath)) => Some(toolpath),
        Some(_) | None => None,
    }
}

/// The step whose tool result an entry was made from, if it was: it has no step of its own.
pub fn synthetic_owner(entry: &Entry) -> Option<String> {
    match foreign(entry)?.remove("synthetic") {
        Some(Value::String(owner)) => Some(owner).filter(|owner| is_result_of(entry.id.as_str(), owner)),
        Some(_) | None => None,
    }
}

/// Whether an id is one that import gives to the results of a step.
pub fn is_result_of(entry_id: &str, step_id: &str) -> bool {
    entry_id.strip_prefix(step_id).is_some_and(|rest| rest.starts_with(RESULT_MARK))
}

/// Whether an id could be one that import gives to the result of some step.
pub fn may_be_result(entry_id: &str) -> bool {
    entry_id.contains(RESULT_MARK)
}

/// Whether an entry keeps what a foreign document said about its path.
pub fn is_path_entry(entry: &Entry) -> bool {
    let is_type = matches!(&entry.body, Body::Custom { custom_type, .. } if custom_type == PATH_ENTRY_TYPE);
    is_type && entry.id.as_str() == PATH_ENTRY
}

/// The id of the entry made from a tool result; `nth` counts uses of the same tool id in one step.
pub fn result_id(step_id: &str, tool_id: &str, nth: usize) -> String {
    match nth {
        0 => format!("{step_id}{RESULT_MARK}{tool_id}"),
        nth => format!("{step_id}{RESULT_MARK}{tool_id}#{nth}"),
    }
}

/// The ids of the entries that could hold the results of an entry's function calls.
pub fn result_ids(entry: &Entry) -> Vec<EntryId> {
    let Some(message) = parsed(entry) else { return Vec::new() };
    let content = content(&message);
    let calls: Vec<&str> = calls(&content).map(|(id, _, _)| id).collect();
    let nth = |at: usize| calls[..at].iter().filter(|id| **id == calls[at]).count();
    (0..calls.len()).map(|at| EntryId::from(result_id(entry.id.as_str(), calls[at], nth(at)))).collect()
}

/// Whether a message calls functions; its step then shows their results.
pub fn has_calls(entry: &Entry) -> bool {
    // Most messages call nothing: the text is looked at before it is parsed. A client may have spelled it with escapes.
    let may_call = |text: &str| text.contains("\"function_call\"") || text.contains("\\u");
    if !matches!(&entry.body, Body::Message(message) if may_call(message.body.text())) {
        return false;
    }
    parsed(entry).is_some_and(|message| calls(&content(&message)).next().is_some())
}

fn parsed(entry: &Entry) -> Option<AgentMessage> {
    match &entry.body {
        Body::Message(message) => message.body.parse().ok(),
        Body::Custom { .. } => None,
    }
}

/// What follows from the entry alone.
pub fn derived(path_id: &str, shown: &Shown<'_>) -> Value {
    let entry = shown.entry;
    let message = parsed(entry);
    let actor = message.as_ref().map_or_else(|| actor::TOOL.to_owned(), actor::of_message);
    let mut step = json!({ "id": entry.id, "actor": actor, "timestamp": time::print(entry.timestamp) });
    if let Some(parent) = shown.parent {
        step["parents"] = json!([parent]);
    }
    let structural = match (&message, &entry.body) {
        (Some(message), _) => turn(entry, message, shown.results),
        (None, Body::Custom { custom_type, data }) => event(entry, custom_type, data.value()),
        (None, Body::Message(_)) => event(entry, BARE_STEP_TYPE, Value::Null),
    };
    json!({
        "step": step,
        "artifact": format!("session-manager://{path_id}"),
        "structural": structural,
        "change": {},
    })
}

fn turn(entry: &Entry, message: &AgentMessage, results: &[Entry]) -> Value {
    if let AgentMessage::FunctionResult { function_call_id, function_id, content, is_error, .. } = message {
        return json!({
            "type": EVENT,
            "entry_type": FUNCTION_RESULT,
            "event_source_id": entry.id,
            "function_call_id": function_call_id,
            "function_id": function_id,
            "content": text(&content.items()),
            "is_error": is_error,
        });
    }
    let content = content(message);
    let mut turn = json!({ "type": APPEND, "role": role(message), "text": text(&content) });
    if let Some(thinking) = thinking(&content) {
        turn["thinking"] = Value::from(thinking);
    }
    let uses = tool_uses(&content, results);
    if !uses.is_empty() {
        turn["tool_uses"] = Value::from(uses);
    }
    if let AgentMessage::Assistant { usage, stop_reason, native_stop_reason, .. } = message {
        if let Some(usage) = usage {
            turn["token_usage"] = token_usage(usage);
        }
        turn["stop_reason"] = match native_stop_reason {
            Some(native) => Value::from(native.as_str()),
            None => Value::from(stop_reason.name()),
        };
    }
    turn
}

fn role(message: &AgentMessage) -> String {
    match message {
        AgentMessage::User { .. } => "user".to_owned(),
        AgentMessage::Assistant { .. } => "assistant".to_owned(),
        AgentMessage::FunctionResult { .. } => FUNCTION_RESULT.to_owned(),
        AgentMessage::Custom { custom_type, .. } => match custom_type.strip_prefix(FOREIGN_ROLE) {
            Some(role) if is_foreign_role(role) => role.to_owned(),
            Some(_) | None => format!("{CUSTOM_ROLE}{custom_type}"),
        },
    }
}

/// Whether a role has no message of its own here.
pub fn is_foreign_role(role: &str) -> bool {
    !matches!(role, "user" | "assistant") && !role.starts_with(CUSTOM_ROLE)
}

fn content(message: &AgentMessage) -> Vec<ContentBlock> {
    let (AgentMessage::User { content, .. }
    | AgentMessage::Assistant { content, .. }
    | AgentMessage::FunctionResult { content, .. }
    | AgentMessage::Custom { content, .. }) = message;
    content.items()
}

fn text(content: &[ContentBlock]) -> String {
    let texts: Vec<&str> = content
        .iter()
        .filter_map(|block| match block {
            ContentBlock::Text { text } => Some(text.as_str()),
            ContentBlock::Image { .. }
            | ContentBlock::Thinking { .. }
            | ContentBlock::FunctionCall { .. }
            | ContentBlock::FunctionResult { .. } => None,
        })
        .collect();
    texts.join("\n")
}

fn thinking(content: &[ContentBlock]) -> Option<String> {
    let thoughts: Vec<&str> = content
        .iter()
        .filter_map(|block| match block {
            ContentBlock::Thinking { text, .. } => Some(text.as_str()),
            ContentBlock::Text { .. }
            | ContentBlock::Image { .. }
            | ContentBlock::FunctionCall { .. }
            | ContentBlock::FunctionResult { .. } => None,
        })
        .collect();
    (!thoughts.is_empty()).then(|| thoughts.join("\n"))
}

fn calls(content: &[ContentBlock]) -> impl Iterator<Item = (&str, &str, &Json)> {
    content.iter().filter_map(|block| match block {
        ContentBlock::FunctionCall { id, function_id, arguments } => {
            Some((id.as_str(), function_id.as_str(), arguments))
        }
        ContentBlock::Text { .. }
        | ContentBlock::Image { .. }
        | ContentBlock::Thinking { .. }
        | ContentBlock::FunctionResult { .. } => None,
    })
}

fn tool_uses(content: &[ContentBlock], results: &[Entry]) -> Vec<Value> {
    let mut answers: Vec<(String, Value)> = results.iter().filter_map(answer).collect();
    let uses = calls(content).map(|(id, name, input)| {
        let mut used = json!({ "id": id, "name": name, "input": shallow(input.value()), "category": category(name) });
        if let Some(at) = answers.iter().position(|(answered, _)| answered == id) {
            used["result"] = answers.remove(at).1;
        }
        used
    });
    uses.collect()
}

/// The call a function result answers, and the answer as a tool use shows it.
pub fn answer(entry: &Entry) -> Option<(String, Value)> {
    match parsed(entry)? {
        AgentMessage::FunctionResult { function_call_id, content, is_error, .. } => {
            Some((function_call_id, json!({ "content": text(&content.items()), "is_error": is_error })))
        }
        AgentMessage::User { .. } | AgentMessage::Assistant { .. } | AgentMessage::Custom { .. } => None,
    }
}

/// The kind of work a function does, by the last word of its id; null when that says nothing.
fn category(function_id: &str) -> Value {
    let name = function_id.rsplit([':', '.', '/']).next().unwrap_or(function_id).to_ascii_lowercase().replace('-', "_");
    match name.as_str() {
        "read" | "read_file" | "view" | "cat" | "open_file" | "list_directory" | "ls" => "file_read",
        "write" | "write_file" | "edit" | "edit_file" | "create_file" | "apply_patch" | "str_replace"
        | "multi_edit" | "multiedit" => "file_write",
        "grep" | "glob" | "find" | "search_files" | "file_search" | "ripgrep" => "file_search",
        "bash" | "shell" | "exec" | "run" | "run_command" | "terminal" | "execute" => "shell",
        "fetch" | "web_fetch" | "webfetch" | "web_search" | "websearch" | "http" | "curl" | "download" => "network",
        "task" | "agent" | "delegate" | "spawn_agent" | "subagent" => "delegation",
        _ => return Value::Null,
    }
    .into()
}

/// Input and output always stand there, the other counters where they are known.
fn token_usage(usage: &Usage) -> Value {
    let mut tokens = json!({ "input_tokens": usage.input, "output_tokens": usage.output });
    if let Some(read) = usage.cache_read {
        tokens["cache_read_tokens"] = Value::from(read);
    }
    if let Some(write) = usage.cache_write {
        tokens["cache_write_tokens"] = Value::from(write);
    }
    if let Some(reasoning) = usage.reasoning {
        tokens["breakdowns"] = json!({ "output": { "reasoning": reasoning } });
    }
    tokens
}

/// A custom entry. Data that is an object lies flat beside the event's own keys, where no key meets one of those.
fn event(entry: &Entry, custom_type: &str, data: Value) -> Value {
    let mut event = json!({ "type": EVENT, "entry_type": custom_type, "event_source_id": entry.id });
    match shallow(data) {
        Value::Null => {}
        Value::Object(fields) if !fields.keys().any(|key| EVENT_KEYS.contains(&key.as_str())) => {
            for (key, value) in fields {
                event[key] = value;
            }
        }
        data => event["data"] = data,
    }
    event
}

/// A value that readers of JSON can take where it will stand: its text, when it is nested too deep.
pub fn shallow(value: Value) -> Value {
    if depth(&value) > DEPTH_MAX { Value::from(value.to_string()) } else { value }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// The normal shape of a step of a document, and what this project added to it.
pub fn normalised(step: Value) -> (Value, Option<Value>) {
    let Value::Object(mut step) = step else { return (step, None) };
    let mut normal = Map::new();
    let mut extras = None;
    normal.insert("step".to_owned(), step.remove("step").unwrap_or(Value::Null));
    let mut change = match step.remove("change") {
        Some(Value::Object(change)) => change,
        Some(_) | None => Map::new(),
    };
    if let Some(artifact) = conversation(&change).cloned() {
        if let Some(Value::Object(mut talk)) = change.remove(&artifact) {
            if let Some(raw) = talk.remove("raw") {
                normal.insert("raw".to_owned(), raw);
            }
            if let Some(mut structural) = talk.remove("structural") {
                extras = structural.as_object_mut().and_then(|structural| structural.remove(EXTRAS));
                normal.insert("structural".to_owned(), structural);
            }
        }
        normal.insert("artifact".to_owned(), Value::from(artifact));
    }
    normal.insert("change".to_owned(), Value::Object(change));
    if let Some(mut meta) = step.remove("meta") {
        let in_meta = meta.as_object_mut().and_then(|meta| meta.remove(EXTRAS));
        if in_meta.is_none() || meta.as_object().is_none_or(|meta| !meta.is_empty()) {
            normal.insert("meta".to_owned(), meta);
        }
        extras = extras.or(in_meta);
    }
    (Value::Object(normal), extras)
}

/// The step of a document from its normal shape. `extras` is what this project adds.
pub fn assembled(normal: Value, extras: Option<Value>) -> Value {
    let Value::Object(mut normal) = normal else { return normal };
    let mut step = Map::new();
    step.insert("step".to_owned(), normal.remove("step").unwrap_or(Value::Null));
    let mut change = match normal.remove("change") {
        Some(Value::Object(change)) => change,
        Some(_) | None => Map::new(),
    };
    let mut meta = normal.remove("meta");
    let mut talk = Map::new();
    if let Some(raw) = normal.remove("raw") {
        talk.insert("raw".to_owned(), raw);
    }
    let mut structural = normal.remove("structural");
    match (extras, &mut structural) {
        (Some(extras), Some(structural @ Value::Object(_))) => structural[EXTRAS] = extras,
        (Some(extras), _) => {
            let meta = meta.get_or_insert_with(|| json!({}));
            if meta.is_object() {
                meta[EXTRAS] = extras;
            }
        }
        (None, _) => {}
    }
    if let Some(structural) = structural {
        talk.insert("structural".to_owned(), structural);
    }
    if let Some(Value::String(artifact)) = normal.remove("artifact") {
        change.insert(artifact, Value::Object(talk));
    }
    step.insert("change".to_owned(), Value::Object(change));
    if let Some(meta) = meta {
        step.insert("meta".to_owned(), meta);
    }
    Value::Object(step)
}

/// What this project added to a step.
pub fn extras(step: &Value) -> Option<&Value> {
    structural(step).and_then(|structural| structural.get(EXTRAS)).or_else(|| step.get("meta")?.get(EXTRAS))
}

/// What a step of a document says about the conversation.
pub fn structural(step: &Value) -> Option<&Value> {
    let change = step.get("change").and_then(Value::as_object)?;
    change.get(conversation(change)?)?.get("structural")
}

/// The artifact that holds the conversation: the first turn, else the first event.
fn conversation(change: &Map<String, Value>) -> Option<&String> {
    let of_type = |wanted: &str| {
        let structural = |change: &Value| change.get("structural")?.get("type")?.as_str().map(|kind| kind == wanted);
        change.iter().find(|(_, change)| structural(change) == Some(true)).map(|(artifact, _)| artifact)
    };
    of_type(APPEND).or_else(|| of_type(EVENT))
}
