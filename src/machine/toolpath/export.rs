//! Owns: a session as the lines of a `.path.jsonl` document. `write.rs` makes the JSON form from the same lines.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::import::entry_of;
use super::redact::{self, Field};
use super::step::{self, Shown};
use super::{EXTRAS, KIND, SOURCE, actor, check, difference};
use crate::machine::entry::{Body, Entry};
use crate::machine::ids::EntryId;
use crate::machine::message::AgentMessage;
use crate::machine::session::SessionMeta;

/// How much of a session a document tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Leave the lossless copy out: a redactor that scrubs only the visible text would leak through it.
    pub redactable: bool,
    /// Fields to black out. A document that is redacted at all carries no lossless copy.
    pub redact: Vec<Field>,
}

impl Options {
    fn lossless(&self) -> bool {
        !self.redactable && self.redact.is_empty()
    }
}

/// What the head of a document is made from.
pub struct Head<'a> {
    pub meta: &'a SessionMeta,
    pub leaf: Option<&'a EntryId>,
    /// The step the path ends at: the leaf, or the step whose result the leaf is.
    pub head: Option<&'a EntryId>,
    /// The entry that keeps what a foreign document said about its path.
    pub document: Option<&'a Entry>,
}

/// The first lines: what the path is, who acts in it as far as known already, and where it ends.
pub fn open(head: &Head<'_>, options: &Options) -> Vec<Value> {
    let mut normal = path(head.meta, head.head);
    if let Some(kept) = head.document.and_then(kept) {
        let told = difference::apply(normal.clone(), &kept);
        let is_path = check::path_identity(&told["path"]).and_then(|()| check::path_meta(&told["meta"])).is_ok();
        normal = if is_path { told } else { normal };
    }
    let mut meta = normal.get_mut("meta").map(Value::take).unwrap_or_else(|| json!({}));
    redact::head(&mut meta, &options.redact);
    let (actors, signatures) = match meta.as_object_mut() {
        Some(meta) => (meta.remove("actors"), meta.remove("signatures")),
        None => (None, None),
    };
    let mut extras = Map::new();
    if options.lossless() {
        extras.insert("meta".to_owned(), serde_json::to_value(head.meta).unwrap_or(Value::Null));
        extras.insert("leaf".to_owned(), json!(head.leaf));
        if let Some(document) = head.document {
            extras.insert("document".to_owned(), copy(document));
        }
    }
    // The line form has no graph around its path.
    if let Some(graph) = normal.get("graph").filter(|graph| **graph != json!({ "id": normal["path"]["id"] })) {
        extras.insert("graph".to_owned(), graph.clone());
    }
    if !extras.is_empty() {
        meta[EXTRAS] = Value::Object(extras);
    }
    let mut opening = json!({ "version": "1", "id": normal["path"]["id"], "meta": meta });
    for key in ["base", "graph_ref"] {
        if let Some(value) = normal["path"].get(key) {
            opening[key] = value.clone();
        }
    }
    let mut lines = vec![json!({ "PathOpen": opening })];
    for (actor, definition) in actors.as_ref().and_then(Value::as_object).into_iter().flatten() {
        lines.push(json!({ "ActorDef": { "actor": actor, "definition": definition } }));
    }
    for signature in signatures.as_ref().and_then(Value::as_array).into_iter().flatten() {
        lines.push(json!({ "Signature": { "target": "path", "signature": signature } }));
    }
    lines.push(json!({ "Head": { "step_id": normal["path"]["head"] } }));
    lines
}

/// The last line.
pub fn close() -> Value {
    json!({ "PathClose": {} })
}

/// What a session says about its path, in the shape import compares: `{graph, path, meta}`.
pub fn path(meta: &SessionMeta, head: Option<&EntryId>) -> Value {
    let mut told = json!({
        "kind": KIND,
        "source": SOURCE,
        "producer": { "name": SOURCE, "version": env!("CARGO_PKG_VERSION") },
    });
    for (key, text) in [("title", &meta.title), ("description", &meta.description)] {
        if !text.is_empty() {
            told[key] = Value::from(text.as_str());
        }
    }
    if let Some(source) = &meta.forked_from {
        told["refs"] = json!([{ "rel": "forked_from", "href": format!("session-manager://{source}") }]);
    }
    let id = &meta.session_id;
    json!({ "graph": { "id": id }, "path": { "id": id, "head": head.map_or("", EntryId::as_str) }, "meta": told })
}

/// What the document entry keeps: the difference between a foreign path and the one its session tells.
pub fn kept(document: &Entry) -> Option<Value> {
    match &document.body {
        Body::Custom { data, .. } => Some(data.value()),
        Body::Message(_) => None,
    }
}

/// The actors that the path names itself.
pub fn actors(document: &Entry) -> BTreeSet<String> {
    let actors = kept(document).and_then(|kept| kept.pointer("/meta/actors").cloned());
    // The difference holds them as a whole: a session names none.
    let named = actors.as_ref().map(|actors| actors.get("$is").unwrap_or(actors));
    named.and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned().collect()
}

/// The step of an entry.
pub fn step(path_id: &str, shown: &Shown<'_>, options: &Options) -> Value {
    let mut normal = step::normal(path_id, shown);
    redact::step(&mut normal, &options.redact);
    let extras = options.lossless().then(|| extras(shown));
    json!({ "Step": step::assembled(normal, extras) })
}

fn extras(shown: &Shown<'_>) -> Value {
    let mut extras = json!({ "entry": copy(shown.entry) });
    let synthetic: Vec<Value> =
        shown.results.iter().filter(|result| step::synthetic_owner(result).is_some()).map(copy).collect();
    if !synthetic.is_empty() {
        extras["results"] = Value::from(synthetic);
    }
    extras
}

/// The lossless copy of an entry: its JSON, or its text in a string where the JSON would be read as another text. Every
/// program that reads and writes a document may reorder keys and print numbers anew; none changes a string.
fn copy(entry: &Entry) -> Value {
    let text = entry.json_text();
    let tree = serde_json::from_str(&text).ok();
    let tree = tree.filter(|tree| entry_of(tree).is_some_and(|read| is_same_text(&read, entry)));
    match tree.map(step::shallow) {
        // A tree that is nested too deep.
        Some(Value::String(_)) | None => Value::from(text),
        Some(tree) => tree,
    }
}

/// Whether two entries have the same stored texts. The other fields have one spelling.
fn is_same_text(a: &Entry, b: &Entry) -> bool {
    (&a.origin, &a.body) == (&b.origin, &b.body)
}

/// The line that defines the actor of an entry, the first time the actor occurs. Foreign steps name their own actors.
pub fn actor_line(entry: &Entry, known: &mut BTreeSet<String>) -> Option<Value> {
    if step::foreign(entry).is_some() {
        return None;
    }
    let (actor, definition) = match &entry.body {
        Body::Message(message) => {
            let message: AgentMessage = message.body.parse().ok()?;
            (actor::of_message(&message), actor::definition(&message))
        }
        Body::Custom { .. } => (actor::TOOL.to_owned(), json!({ "name": SOURCE })),
    };
    known.insert(actor.clone()).then(|| json!({ "ActorDef": { "actor": actor, "definition": definition } }))
}
