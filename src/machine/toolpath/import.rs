//! Owns: the steps of a document as entries of a session.
//!
//! A step with a lossless copy that still tells what the step shows becomes that copy. From any other step the visible
//! fields become an entry, and what the entry cannot hold is kept as a difference in `origin.toolpath`, from which export
//! makes the same step again.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::answers::Verdict;
use super::outline::Outline;
use super::step::{self, APPEND, CUSTOM_ROLE, EVENT, EVENT_KEYS, FOREIGN_ROLE, FUNCTION_RESULT, Shown};
use super::{BARE_STEP_TYPE, EXTRAS, PATH_ENTRY, PATH_ENTRY_TYPE, SOURCE, actor, difference, export, time};
use crate::machine::entry::{Body, Entry, SessionEntry};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::{Json, List, Object};
use crate::machine::message::{AgentMessage, ContentBlock, Message, StopReason, Usage};
use crate::machine::session::{SessionMeta, SessionStatus};

/// What was made of a path's steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub steps: u64,
    pub messages: u64,
    pub custom_entries: u64,
    /// Steps whose lossless copy was used.
    pub copied: u64,
    /// Function results made from the results of tool uses.
    pub results: u64,
}

/// What is written last: with it the session comes to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    pub meta: SessionMeta,
    pub leaf: Option<EntryId>,
    /// The entry that keeps what the document says about its path beyond the session's own fields.
    pub document: Option<Entry>,
}

/// Turns the steps of one path into entries, in the order of `Outline::step`.
pub struct Importer<'a> {
    outline: &'a Outline,
    session_id: SessionId,
    /// Steps with results: their children hang below the last result.
    below: BTreeMap<String, EntryId>,
    /// Words of edited tool uses, by the function result that is to say them.
    edited: BTreeMap<u32, Value>,
    first_ms: Option<i64>,
    last_ms: Option<i64>,
    pub tally: Tally,
}

impl<'a> Importer<'a> {
    /// `session_id`: the session's id, where it is not to be the path's.
    pub fn new(outline: &'a Outline, session_id: Option<SessionId>) -> Importer<'a> {
        let session_id = session_id.unwrap_or_else(|| SessionId::from(outline.id()));
        let (below, edited, tally) = (BTreeMap::new(), BTreeMap::new(), Tally::default());
        Importer { outline, session_id, below, edited, first_ms: None, last_ms: None, tally }
    }

    pub fn session_id(&self) -> &SessionId {
        &self.session_id
    }

    /// The entries of a step: its own, then those made from the results it shows.
    pub fn step(&mut self, step: Value) -> Vec<Entry> {
        let index = self.outline.index(self.tally.steps as usize);
        let verdicts = self.outline.verdicts(index);
        let (visible, extras) = step::normalised(step);
        let visible = self.settled(visible, index, verdicts);
        let parent = visible.pointer("/step/parents/0").and_then(Value::as_str).map(EntryId::from);
        let (entry, results) = match self.copied(extras, &visible, parent.as_ref(), verdicts) {
            Some(copied) => {
                self.tally.copied += 1;
                copied
            }
            None => self.made(visible, parent.as_ref(), verdicts),
        };
        if let Some(last) = results.last() {
            self.below.insert(entry.id.to_string(), last.id.clone());
        }
        self.tally.steps += 1;
        self.tally.results += results.len() as u64;
        self.first_ms = Some(self.first_ms.map_or(entry.timestamp, |first| first.min(entry.timestamp)));
        self.last_ms = self.last_ms.max(Some(entry.timestamp));
        let entries: Vec<Entry> = std::iter::once(entry).chain(results).collect();
        let messages = entries.iter().filter(|entry| entry.is_message()).count() as u64;
        self.tally.messages += messages;
        self.tally.custom_entries += entries.len() as u64 - messages;
        entries
    }

    /// A step as it shows itself, without the results that function results tell, and with the words of a tool use
    /// that was edited in their place.
    fn settled(&mut self, mut visible: Value, index: u32, verdicts: &[Option<Verdict>]) -> Value {
        for (nth, verdict) in verdicts.iter().enumerate() {
            let shown = || visible.pointer(&format!("/structural/tool_uses/{nth}/result"));
            if let (Some(Verdict::Replaces(answer)), Some(words)) = (verdict, shown()) {
                self.edited.insert(*answer, words.clone());
            }
        }
        if let (Some(words), Some(structural)) = (self.edited.remove(&index), visible.get_mut("structural")) {
            structural["content"] = words["content"].clone();
            structural["is_error"] = words["is_error"].clone();
        }
        without_told(visible, verdicts)
    }

    /// The lossless copy of a step, if `extras` hold one that tells what the step shows.
    fn copied(
        &self,
        extras: Option<Value>,
        visible: &Value,
        parent: Option<&EntryId>,
        verdicts: &[Option<Verdict>],
    ) -> Option<(Entry, Vec<Entry>)> {
        let extras = extras?;
        let entry = entry_of(extras.get("entry")?)?;
        let copies = extras.get("results").and_then(Value::as_array).into_iter().flatten();
        let results: Vec<Entry> = copies.map(entry_of).collect::<Option<_>>()?;
        let mut above = &entry.id;
        for result in &results {
            let is_own = step::synthetic_owner(result).as_deref() == Some(entry.id.as_str());
            if !is_own || result.parent_id.as_ref() != Some(above) {
                return None;
            }
            above = &result.id;
        }
        // The entry may hang below any of the results of the step it follows.
        let hangs_well = match (&entry.parent_id, parent) {
            (None, None) => true,
            (Some(entry_parent), Some(parent)) => {
                entry_parent == parent || step::is_result_of(entry_parent.as_str(), parent.as_str())
            }
            (None, Some(_)) | (Some(_), None) => false,
        };
        let shown = Shown { entry: &entry, parent, results: &results };
        let told = without_told(step::normal(self.outline.id(), &shown), verdicts);
        let tells_the_same = hangs_well && told == *visible;
        tells_the_same.then_some((entry, results))
    }

    /// An entry made from what a step shows.
    fn made(&self, visible: Value, parent: Option<&EntryId>, verdicts: &[Option<Verdict>]) -> (Entry, Vec<Entry>) {
        let id = visible.pointer("/step/id").and_then(Value::as_str).unwrap_or_default();
        let spelled = visible.pointer("/step/timestamp").and_then(Value::as_str);
        let timestamp = spelled.and_then(time::parse).unwrap_or_default();
        let hung = parent.map(|parent| self.below.get(parent.as_str()).unwrap_or(parent).clone());
        let body = self.body(&visible, timestamp);
        let id = EntryId::from(id);
        let mut entry = Entry { id, parent_id: hung, timestamp, revision: 0, origin: None, body, place: None };
        let results = results(&entry, &visible, verdicts);
        let mut derived = step::derived(self.session_id.as_str(), &Shown { entry: &entry, parent, results: &results });
        for (nth, _) in verdicts.iter().enumerate().filter(|(_, verdict)| **verdict == Some(Verdict::Hidden)) {
            // Export will show the function result here. The difference says that the step does not.
            if let Some(used) = derived.pointer_mut(&format!("/structural/tool_uses/{nth}")) {
                used["result"] = Value::Null;
            }
        }
        let beyond = difference::between(&derived, &visible);
        if beyond.is_some() || !results.is_empty() {
            let beyond = beyond.unwrap_or_else(|| json!({}));
            entry.origin = Some(Json::print(&json!({ "toolpath": beyond })));
        }
        (entry, results)
    }

    fn body(&self, visible: &Value, timestamp: i64) -> Body {
        let Some(structural) = visible.get("structural").and_then(Value::as_object) else {
            return Body::Custom { custom_type: BARE_STEP_TYPE.to_owned(), data: Json::print(&Value::Null) };
        };
        let field = |key: &str| structural.get(key).and_then(Value::as_str);
        if structural.get("type").and_then(Value::as_str) == Some(APPEND) {
            let actor = visible.pointer("/step/actor").and_then(Value::as_str).unwrap_or_default();
            return Body::Message(Message::new(self.turn(structural, actor, timestamp)));
        }
        debug_assert_eq!(field("type"), Some(EVENT));
        if let (Some(FUNCTION_RESULT), Some(call), Some(function), Some(content), Some(is_error)) = (
            field("entry_type"),
            field("function_call_id"),
            field("function_id"),
            field("content"),
            structural.get("is_error").and_then(Value::as_bool),
        ) {
            return Body::Message(Message::new(result(call, function, content, is_error, timestamp)));
        }
        let custom_type = field("entry_type").unwrap_or_default().to_owned();
        Body::Custom { custom_type, data: Json::print(&event_data(structural)) }
    }

    fn turn(&self, turn: &Map<String, Value>, actor: &str, timestamp: i64) -> AgentMessage {
        let blocks = blocks(turn);
        let content = List::of(&blocks);
        match turn.get("role").and_then(Value::as_str).unwrap_or_default() {
            "user" => AgentMessage::User { content, timestamp },
            "assistant" => {
                let meta = &self.outline.meta;
                let actors = meta.get("actors").and_then(Value::as_object);
                let source = meta.get("source").and_then(Value::as_str);
                let (model, provider) = actor::model_and_provider(actor, actors, source);
                let calls = blocks.iter().any(|block| matches!(block, ContentBlock::FunctionCall { .. }));
                let (stop_reason, native_stop_reason) =
                    stop_reason(turn.get("stop_reason").and_then(Value::as_str), calls);
                AgentMessage::Assistant {
                    content,
                    stop_reason,
                    native_stop_reason,
                    error_message: None,
                    error_kind: None,
                    usage: turn.get("token_usage").and_then(usage),
                    warnings: None,
                    model,
                    provider,
                    timestamp,
                }
            }
            role => {
                let custom_type = match role.strip_prefix(CUSTOM_ROLE) {
                    Some(custom_type) => custom_type.to_owned(),
                    None => format!("{FOREIGN_ROLE}{role}"),
                };
                AgentMessage::Custom { custom_type, content, display: None, details: None, timestamp }
            }
        }
    }

    /// The session's record, its leaf, and what is left to keep of the path. `now_ms` dates a path without steps;
    /// `metadata` tells where a session comes from that brings no metadata of its own.
    pub fn finish(self, now_ms: i64, metadata: Object) -> Finish {
        let extras = self.outline.meta.get(EXTRAS);
        let meta = self.meta(extras, now_ms, metadata);
        let head = Some(self.outline.head()).filter(|head| !head.is_empty()).map(EntryId::from);
        let told_leaf = extras.and_then(|extras| extras.get("leaf")).and_then(Value::as_str);
        let leaf = head.as_ref().map(|head| match told_leaf {
            Some(leaf) if leaf == head.as_str() || step::is_result_of(leaf, head.as_str()) => EntryId::from(leaf),
            Some(_) | None => self.below.get(head.as_str()).unwrap_or(head).clone(),
        });
        let document = self.document(extras, &meta, head.as_ref());
        Finish { meta, leaf, document }
    }

    fn meta(&self, extras: Option<&Value>, now_ms: i64, metadata: Object) -> SessionMeta {
        let told = |key: &str| self.outline.meta.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let copy = extras.and_then(|extras| extras.get("meta"));
        let copy: Option<SessionMeta> = copy.and_then(|copy| serde_json::from_value(copy.clone()).ok());
        let meta = copy.unwrap_or_else(|| {
            let source = Some(told("source")).filter(|source| !source.is_empty());
            let mut from: Object = Map::new();
            from.insert("source".to_owned(), Value::from(source.unwrap_or_else(|| "toolpath".to_owned())));
            from.extend(metadata);
            SessionMeta {
                session_id: self.session_id.clone(),
                title: String::new(),
                description: String::new(),
                status: SessionStatus::Idle,
                status_reason: None,
                message_count: 0,
                metadata: Some(from),
                forked_from: None,
                created_at: self.first_ms.unwrap_or(now_ms),
                updated_at: self.last_ms.unwrap_or(now_ms),
            }
        });
        SessionMeta {
            session_id: self.session_id.clone(),
            title: told("title"),
            description: told("description"),
            message_count: self.tally.messages,
            ..meta
        }
    }

    /// What the document says about its path, where the session does not say the same.
    fn document(&self, extras: Option<&Value>, meta: &SessionMeta, head: Option<&EntryId>) -> Option<Entry> {
        let outline = self.outline;
        let told_graph = extras.and_then(|extras| extras.get("graph")).or(outline.graph.as_ref());
        let mut graph = told_graph.cloned().unwrap_or_else(|| json!({ "id": outline.id() }));
        if graph["id"] == outline.id() {
            graph["id"] = json!(self.session_id);
        }
        let mut path = outline.path.clone();
        path["id"] = json!(self.session_id);
        let mut told = outline.meta.clone();
        let is_ours = told.get("source").and_then(Value::as_str) == Some(SOURCE);
        told.as_object_mut().map(|told| told.remove(EXTRAS));
        let mut visible = json!({ "graph": graph, "path": path, "meta": told });
        let mut derived = export::path(meta, head);
        let copy = extras.and_then(|extras| extras.get("document")).and_then(entry_of);
        if let Some(copy) = copy {
            let kept = export::kept(&copy).map(|kept| difference::apply(derived.clone(), &kept));
            let known = kept.as_ref().and_then(|kept| kept.pointer("/meta/actors")).cloned();
            // Actors that the path did not name itself were derived from its entries.
            let mut shown = visible.clone();
            match known {
                Some(known) => shown["meta"]["actors"] = known,
                None => drop(shown["meta"].as_object_mut().and_then(|meta| meta.remove("actors"))),
            }
            if kept == Some(shown) {
                return Some(copy);
            }
        }
        if is_ours {
            // Who wrote the document and who acts in it follow from the session.
            for said in [&mut visible, &mut derived] {
                for key in ["producer", "actors"] {
                    said["meta"].as_object_mut().map(|meta| meta.remove(key));
                }
            }
        }
        let kept = difference::between(&derived, &visible)?;
        Some(Entry {
            id: EntryId::from(PATH_ENTRY),
            parent_id: None,
            timestamp: meta.created_at,
            revision: 0,
            origin: None,
            body: Body::Custom { custom_type: PATH_ENTRY_TYPE.to_owned(), data: Json::print(&kept) },
            place: None,
        })
    }
}

/// A step without the results that function results tell.
fn without_told(mut step: Value, verdicts: &[Option<Verdict>]) -> Value {
    let uses = step.pointer_mut("/structural/tool_uses").and_then(Value::as_array_mut);
    for (used, verdict) in uses.into_iter().flatten().zip(verdicts) {
        if let (Some(Verdict::Told | Verdict::Replaces(_)), Some(used)) = (verdict, used.as_object_mut()) {
            used.remove("result");
        }
    }
    step
}

/// The entry of a lossless copy. An object has the spelling of this project; a string has the entry's own text.
pub(super) fn entry_of(copy: &Value) -> Option<Entry> {
    match copy {
        Value::String(text) => Entry::parse(text).ok(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            serde_json::from_str::<SessionEntry>(&copy.to_string()).ok().map(Entry::from)
        }
    }
}

/// Entries for the results that a step shows and that no function result tells, one below the other.
fn results(entry: &Entry, visible: &Value, verdicts: &[Option<Verdict>]) -> Vec<Entry> {
    let mut made: Vec<Entry> = Vec::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let uses = visible.pointer("/structural/tool_uses").and_then(Value::as_array);
    for (at, used) in uses.into_iter().flatten().enumerate() {
        let (Some(id), Some(name)) = (used["id"].as_str(), used["name"].as_str()) else { continue };
        let nth = seen.entry(id).or_default();
        let result_id = step::result_id(entry.id.as_str(), id, *nth);
        *nth += 1;
        let is_answered = verdicts.get(at).is_some_and(Option::is_some);
        let Some(shown) = used.get("result").filter(|_| !is_answered) else { continue };
        let (content, is_error) = (shown["content"].as_str(), shown["is_error"].as_bool());
        let message = result(id, name, content.unwrap_or_default(), is_error.unwrap_or_default(), entry.timestamp);
        let above = made.last().map_or(&entry.id, |last| &last.id).clone();
        made.push(Entry {
            id: EntryId::from(result_id),
            parent_id: Some(above),
            timestamp: entry.timestamp,
            revision: 0,
            origin: Some(Json::print(&json!({ "toolpath": { "synthetic": entry.id } }))),
            body: Body::Message(Message::new(message)),
            place: None,
        });
    }
    made
}

fn result(call: &str, function: &str, content: &str, is_error: bool, timestamp: i64) -> AgentMessage {
    let text = ContentBlock::Text { text: content.to_owned() };
    AgentMessage::FunctionResult {
        function_call_id: call.to_owned(),
        function_id: function.to_owned(),
        content: if content.is_empty() { List::of(&[]) } else { List::of(&[text]) },
        details: Json::default(),
        is_error,
        timestamp,
    }
}

/// Thinking, then text, then calls: a turn does not tell in which order they came.
fn blocks(turn: &Map<String, Value>) -> Vec<ContentBlock> {
    let field = |key: &str| turn.get(key).and_then(Value::as_str).map(str::to_owned);
    let mut content = Vec::new();
    content.extend(field("thinking").map(|text| ContentBlock::Thinking { text, signature: None }));
    content.extend(field("text").filter(|text| !text.is_empty()).map(|text| ContentBlock::Text { text }));
    for used in turn.get("tool_uses").and_then(Value::as_array).into_iter().flatten() {
        let word = |key: &str| used[key].as_str().unwrap_or_default().to_owned();
        let arguments = used.get("input").map(Json::print).unwrap_or_default();
        content.push(ContentBlock::FunctionCall { id: word("id"), function_id: word("name"), arguments });
    }
    content
}

/// Our reason nearest to a provider's, and the provider's own word where it differs.
fn stop_reason(native: Option<&str>, calls: bool) -> (StopReason, Option<String>) {
    let Some(native) = native else {
        return (if calls { StopReason::FunctionCall } else { StopReason::End }, None);
    };
    let reason = match native {
        "length" | "max_tokens" | "max_output_tokens" | "model_length" | "MAX_TOKENS" => StopReason::Length,
        "function_call" | "tool_use" | "tool_calls" | "toolUse" => StopReason::FunctionCall,
        "aborted" | "cancelled" | "canceled" | "interrupted" => StopReason::Aborted,
        "error" | "failed" => StopReason::Error,
        _ => StopReason::End,
    };
    (reason, Some(native.to_owned()).filter(|native| native != reason.name()))
}

fn usage(tokens: &Value) -> Option<Usage> {
    let count = |pointer: &str| tokens.pointer(pointer).and_then(Value::as_u64);
    tokens.is_object().then(|| Usage {
        input: count("/input_tokens"),
        output: count("/output_tokens"),
        cache_read: count("/cache_read_tokens"),
        cache_write: count("/cache_write_tokens"),
        reasoning: count("/breakdowns/output/reasoning"),
        cost_usd: None,
    })
}

/// The data of an event: what stands beside its own keys.
fn event_data(event: &Map<String, Value>) -> Value {
    let beside: Map<String, Value> = event
        .iter()
        .filter(|(key, _)| !EVENT_KEYS.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    match (event.get("data"), beside.is_empty()) {
        (Some(data), true) => data.clone(),
        (None, true) => Value::Null,
        (Some(_) | None, false) => Value::Object(beside),
    }
}
