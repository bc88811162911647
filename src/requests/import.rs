//! `session::import`: a session from a Toolpath document, or from batches of entries that were made of a longer one.

use std::fmt;
use std::io::Cursor;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::body::{Batch, is_deeper_than, parse_within};
use super::limits::{BODY_BYTES_MAX, DEPTH_MAX};
use super::table::schema;
use super::{Decision, Done, Function, Limits, Printed, checks, explain};
use crate::machine::apply::import::{FinishImport, IfExists, ImportEntries, Imported};
use crate::machine::entry::{Entry, SessionEntry};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::{Json, Object};
use crate::machine::refusal::Refusal;
use crate::machine::session::SessionMeta;
use crate::machine::toolpath::import::Importer;
use crate::machine::toolpath::outline::Outline;
use crate::machine::{Answer, Command};

/// One of `document`, `lines` and `entries`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ImportRequest {
    /// A whole Toolpath document with one path: a graph.
    pub document: Option<Json>,
    /// The same as the lines of its `.path.jsonl` form, as `session::export` gives them.
    #[schemars(with = "Option<Vec<Value>>")]
    pub lines: Option<Lines>,
    /// One batch of entries of a longer document, parents before their children. They are written as they are given. An
    /// entry is an object, or its JSON text in a string: clients that reorder keys keep its spelling so.
    #[schemars(with = "Option<Vec<GivenEntry>>")]
    pub entries: Option<Batch<GivenEntry>>,
    /// The session to write. With `document` and `lines` the path's id when it is left out.
    pub session_id: Option<SessionId>,
    /// Whether this is the first batch of entries.
    pub first: Option<bool>,
    /// On the last batch of entries: the session's record, with which it comes to be.
    pub finish: Option<ImportFinish>,
    /// What to do when the session exists: refuse (the default), skip, replace or merge.
    pub if_exists: Option<IfExists>,
}

/// An entry as an object or, in a string, as JSON text.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum GivenEntry {
    Object(#[schemars(with = "SessionEntry")] Entry),
    Text(#[schemars(with = "String")] Entry),
}

impl<'de> Deserialize<'de> for GivenEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GivenEntry, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

impl From<GivenEntry> for Entry {
    fn from(given: GivenEntry) -> Entry {
        let (GivenEntry::Object(entry) | GivenEntry::Text(entry)) = given;
        entry
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = GivenEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry, or its JSON text in a string")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<GivenEntry, A::Error> {
        let entry = SessionEntry::deserialize(MapAccessDeserializer::new(map))?;
        Ok(GivenEntry::Object(Entry::from(entry)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<GivenEntry, E> {
        // The depth of the body was checked without looking into its strings.
        if is_deeper_than(text, DEPTH_MAX) {
            return Err(E::custom(format!("nested deeper than {DEPTH_MAX} levels")));
        }
        let entry = Entry::parse(text).map_err(|_| E::custom(explain::reason::<SessionEntry>(text)))?;
        Ok(GivenEntry::Text(entry))
    }
}

/// The values of an array, each on a line.
#[derive(Debug)]
pub struct Lines(String);

impl<'de> Deserialize<'de> for Lines {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Lines, D::Error> {
        deserializer.deserialize_seq(LinesVisitor)
    }
}

struct LinesVisitor;

impl<'de> Visitor<'de> for LinesVisitor {
    type Value = Lines;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut lines: A) -> Result<Lines, A::Error> {
        let mut text = String::new();
        while let Some(line) = lines.next_element::<Json>()? {
            text.push_str(line.text());
            text.push('\n');
        }
        Ok(Lines(text))
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ImportFinish {
    pub meta: SessionMeta,
    /// Where the transcript ends.
    pub active_leaf: Option<EntryId>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ImportResponse {
    pub outcome: Imported,
    /// How many entries this call added.
    pub added: u64,
}

pub const FUNCTION: Function = Function {
    id: "session::import",
    description: "Import a session from a Toolpath document (agent-coding-session), checked as a whole before anything is \
                  written; long ones as batches of entries. Fires created, or message-added for each merged entry.",
    internal: false,
    writes: true,
    request_schema: schema::<ImportRequest>,
    response_schema: schema::<ImportResponse>,
    decide,
    respond,
};

fn decide(body: &str, _limits: &Limits) -> Result<Decision, Refusal> {
    // An entry stands two levels deeper here than where it was appended.
    let request: ImportRequest = parse_within(body, DEPTH_MAX + 2)?;
    Ok(Decision::Propose(Command::Import(request.command()?)))
}

fn respond(done: Done) -> Option<Printed> {
    let Done::Answered(Answer::Imported { added, imported }) = done else { return None };
    serde_json::to_string(&ImportResponse { outcome: imported, added }).ok().map(Printed::from)
}

impl ImportRequest {
    fn command(self) -> Result<ImportEntries, Refusal> {
        let ImportRequest { document, lines, entries, session_id, first, finish, if_exists } = self;
        let if_exists = if_exists.unwrap_or_default();
        let text = match (document, lines, entries) {
            (Some(document), None, None) => document.text().to_owned(),
            (None, Some(Lines(text)), None) => text,
            (None, None, Some(entries)) => {
                let session_id = session_id.ok_or_else(|| checks::invalid("session_id must be given with entries"))?;
                let entries = entries.items("entries")?.into_iter().map(Entry::from).collect();
                let finish = finish.map(|finish| FinishImport { meta: finish.meta, leaf: finish.active_leaf });
                let first = first.unwrap_or(false);
                return checked(ImportEntries { session_id, if_exists, first, entries, finish });
            }
            (_, _, _) => return Err(checks::invalid("give exactly one of document, lines and entries")),
        };
        if finish.is_some() || first.is_some() {
            return Err(checks::invalid("first and finish belong to entries: a document is imported whole"));
        }
        converted(&text, session_id, if_exists)
    }
}

/// A whole document as one batch.
fn converted(text: &str, session_id: Option<SessionId>, if_exists: IfExists) -> Result<ImportEntries, Refusal> {
    let refused = |error| checks::invalid(checks::shortened(&format!("{error}")));
    let outlines = Outline::read(text.as_bytes()).map_err(refused)?;
    let [outline] = outlines.as_slice() else {
        return Err(checks::invalid(format!("document: has {} paths, import them one by one", outlines.len())));
    };
    checks::batch("document: the path", outline.len())?;
    let mut importer = Importer::new(outline, session_id);
    let mut entries = Vec::with_capacity(outline.len());
    let mut reader = Cursor::new(text.as_bytes());
    for nth in 0..outline.len() {
        entries.extend(importer.step(outline.step(&mut reader, nth).map_err(refused)?));
    }
    let session_id = importer.session_id().clone();
    // A path without steps carries no date, and no clock is read here.
    let finish = importer.finish(0, Object::new());
    entries.extend(finish.document);
    let finish = Some(FinishImport { meta: finish.meta, leaf: finish.leaf });
    checked(ImportEntries { session_id, if_exists, first: true, entries, finish })
}

fn checked(import: ImportEntries) -> Result<ImportEntries, Refusal> {
    checks::new_id("session_id", import.session_id.as_str())?;
    checks::batch("entries", import.entries.len())?;
    let mut bytes = 0;
    for (at, entry) in import.entries.iter().enumerate() {
        let field = format!("entries[{at}]");
        checks::new_id(&format!("{field}.id"), entry.id.as_str())?;
        checks::optional_id(&format!("{field}.parent_id"), entry.parent_id.as_ref())?;
        // What a foreign step says beyond its entry lies in the origin, and may be as long as the entry.
        let size = entry.body.bytes() + entry.origin.as_ref().map_or(0, |origin| origin.text().len());
        if size > BODY_BYTES_MAX {
            return Err(checks::invalid(format!(
                "{field} ({:?}) has {size} bytes, at most {BODY_BYTES_MAX} are allowed",
                entry.id.as_str()
            )));
        }
        bytes += size;
        checks::batch_bytes("entries", bytes)?;
    }
    if let Some(finish) = &import.finish {
        checks::meta("finish.meta", &finish.meta)?;
        // The log stores the record under the session's id: another one in it would be lost there.
        if finish.meta.session_id != import.session_id {
            return Err(checks::invalid("finish.meta.session_id: must be the session_id of the import"));
        }
        checks::optional_id("finish.active_leaf", finish.leaf.as_ref())?;
    }
    Ok(import)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::machine::entry::Body;

    const LIMITS: Limits = Limits::DEFAULT;

    fn refused(request: Value) -> String {
        decide(&request.to_string(), &LIMITS).unwrap_err().to_string()
    }

    fn document() -> Value {
        json!({
            "graph": {"id": "g"},
            "paths": [{
                "path": {"id": "p", "head": "a"},
                "steps": [{
                    "step": {"id": "a", "actor": "human:alex", "timestamp": "2026-01-01T00:00:00Z"},
                    "change": {"x://p": {"structural": {"type": "conversation.append", "role": "user", "text": "hi"}}},
                }],
                "meta": {"kind": crate::machine::toolpath::KIND, "source": "x"},
            }],
        })
    }

    #[test]
    fn a_document_becomes_one_batch() {
        let decided = decide(&json!({ "document": document() }).to_string(), &LIMITS).unwrap();
        let Decision::Propose(Command::Import(import)) = decided else { panic!("not an import") };
        assert_eq!((import.session_id.as_str(), import.entries.len()), ("p", 2));
        assert_eq!(import.finish.unwrap().leaf.unwrap().as_str(), "a");
    }

    #[test]
    fn a_request_names_one_source() {
        let both = json!({ "document": document(), "entries": [] });
        assert_eq!(refused(both), "give exactly one of document, lines and entries");
        assert_eq!(refused(json!({})), "give exactly one of document, lines and entries");
        assert_eq!(refused(json!({ "entries": [] })), "session_id must be given with entries");
    }

    #[test]
    fn an_entry_in_a_string_keeps_its_spelling() {
        let text =
            r#"{"kind":"custom","id":"e","timestamp":1,"origin":{"z":1,"a":1.50},"custom_type":"x","data":"\u00e9"}"#;
        let request = json!({ "session_id": "s", "entries": [text] });
        let Ok(Decision::Propose(Command::Import(import))) = decide(&request.to_string(), &LIMITS) else {
            panic!("not an import")
        };
        let [entry] = import.entries.as_slice() else { panic!("not one entry") };
        assert_eq!(entry.origin.as_ref().unwrap().text(), r#"{"z":1,"a":1.50}"#);
        let Body::Custom { data, .. } = &entry.body else { panic!("not a custom entry") };
        assert_eq!(data.text(), r#""\u00e9""#);
    }

    #[test]
    fn a_bad_entry_in_a_string_is_refused_with_its_place() {
        let refused_entry = |text: &str| refused(json!({ "session_id": "s", "entries": [text] }));
        assert_eq!(
            refused_entry(r#"{"kind":"message","id":"e","timestamp":1,"message":{"role":"robot"}}"#),
            "invalid request: entries[0]: message.role: unknown variant `robot`, expected one of `user`, `assistant`, \
             `function_result`, `custom`"
        );
        assert_eq!(refused_entry("{}"), "invalid request: entries[0]: missing field `kind`");
        assert_eq!(refused_entry("{\"kind\""), "invalid request: entries[0]: EOF while parsing an object");
        let deep = format!(
            r#"{{"kind":"custom","id":"e","timestamp":1,"custom_type":"x","data":{}1{}}}"#,
            "[".repeat(5000),
            "]".repeat(5000)
        );
        assert_eq!(refused_entry(&deep), "invalid request: entries[0]: nested deeper than 120 levels");
        assert_eq!(
            refused(json!({ "session_id": "s", "entries": [1] })),
            "invalid request: entries[0]: invalid type: integer `1`, expected an entry, or its JSON text in a string"
        );
    }

    #[test]
    fn a_bad_document_is_refused_with_its_step() {
        let mut bad = document();
        bad["paths"][0]["steps"][0]["step"]["timestamp"] = json!("yesterday");
        assert_eq!(
            refused(json!({ "document": bad })),
            "step \"a\": `timestamp` \"yesterday\" is no RFC 3339 date and time"
        );
    }
}
