//! Owns: a store in memory behind the functions of the API, and both ways between sessions and documents through it.

use std::io::Cursor;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use session_manager::machine::entry::Entry;
use session_manager::machine::ids::{EntryId, RequestId, SessionId};
use session_manager::machine::json::Object;
use session_manager::machine::model::profile::Terms;
use session_manager::machine::session::SessionMeta;
use session_manager::machine::stamp::Stamp;
use session_manager::machine::toolpath::import::Importer;
use session_manager::machine::toolpath::outline::Outline;
use session_manager::machine::toolpath::write::{Form, Writer};
use session_manager::machine::{self, Found, Query, Stamped};
use session_manager::requests::{self, Decision, Done, Limits};
use session_manager::storage::state::memory::MemoryStore;
use session_manager::storage::{Store, with_view};

const LIMITS: Limits = Limits { default_list_limit: 7, max_list_limit: 1000, model: Terms::DEFAULT };

pub struct Node {
    store: Arc<dyn Store>,
    index: u64,
}

/// A session with all it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    pub meta: SessionMeta,
    pub leaf: Option<EntryId>,
    pub entries: Vec<Entry>,
}

impl Node {
    pub fn new() -> Node {
        Node { store: Arc::new(MemoryStore::new()), index: 0 }
    }

    /// One call; an error is `code: message`.
    pub fn call(&mut self, function: &str, body: &Value) -> Result<Value, String> {
        self.call_text(function, &body.to_string())
    }

    /// A call whose body is spelled by its caller.
    pub fn call_text(&mut self, function: &str, body: &str) -> Result<Value, String> {
        let function = requests::find(function, false).expect("a function");
        let refused = |refusal: machine::refusal::Refusal| format!("{}: {refusal}", refusal.code());
        let done = match (function.decide)(body, &LIMITS).map_err(refused)? {
            Decision::Propose(command) => {
                self.index += 1;
                let stamp = Stamp { at_ms: 1_000_000 + self.index as i64, seed: u128::from(self.index) };
                let request_id = RequestId::NONE;
                let stamped = Stamped { stamp, request_id, is_retry: false, scope: None, command };
                let outcome = with_view(&*self.store, |view| machine::apply(view, &stamped)).expect("a readable store");
                let mark = Bytes::copy_from_slice(&self.index.to_be_bytes());
                self.store.commit(&outcome.changes, mark).expect("a writable store");
                Done::Answered(outcome.answer.map_err(refused)?)
            }
            Decision::Ask(query) => Done::Found(self.ask(&query).map_err(refused)?),
            other => panic!("not a call of the store: {other:?}"),
        };
        let response = (function.respond)(done).expect("a response");
        Ok(serde_json::from_str(&response.into_text()).expect("a response is JSON"))
    }

    fn ask(&self, query: &Query) -> Result<Found, machine::refusal::Refusal> {
        with_view(&*self.store, |view| machine::query(view, query)).expect("a readable store")
    }

    pub fn session(&self, id: &str) -> Option<Session> {
        let id = SessionId::from(id);
        let Ok(Found::Meta(meta)) = self.ask(&Query::Meta(id.clone())) else { panic!("no answer") };
        let Ok(Found::Leaf(leaf)) = self.ask(&Query::Leaf(id.clone())) else { panic!("no answer") };
        let Ok(Found::Entries(mut entries)) = self.ask(&Query::Entries(id)) else { panic!("no answer") };
        entries.sort_by(|a, b| a.id.cmp(&b.id));
        Some(Session { meta: meta?, leaf, entries })
    }

    /// Every page of an export.
    pub fn export_lines(&mut self, id: &str, options: &Value, limit: usize) -> Vec<Value> {
        let mut request = json!({ "session_id": id, "limit": limit });
        request.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let mut lines = Vec::new();
        loop {
            let page = self.call("session::export", &request).expect("an export");
            assert!(page["lines"].as_array().unwrap().len() <= 2 * limit + 64, "a page is bounded");
            lines.extend(page["lines"].as_array().unwrap().clone());
            match page.get("next_cursor") {
                Some(cursor) => request["cursor"] = cursor.clone(),
                None => return lines,
            }
        }
    }

    pub fn export(&mut self, id: &str, form: Form, options: &Value, limit: usize) -> String {
        let mut writer = Writer::new(Vec::new(), form, None);
        for line in self.export_lines(id, options, limit) {
            writer.line(&line).unwrap();
        }
        String::from_utf8(writer.finish().unwrap()).unwrap()
    }

    /// Imports a document in batches, as a client does.
    pub fn import(&mut self, text: &str, batch: usize, request: &Value) -> Result<Vec<String>, String> {
        let outlines = Outline::read(text.as_bytes()).map_err(|error| error.to_string())?;
        let mut ids = Vec::new();
        for outline in &outlines {
            let mut importer = Importer::new(outline, request["as"].as_str().map(SessionId::from));
            let mut reader = Cursor::new(text.as_bytes());
            let mut entries = Vec::new();
            for nth in 0..outline.len() {
                entries.extend(importer.step(outline.step(&mut reader, nth).map_err(|error| error.to_string())?));
            }
            let id = importer.session_id().to_string();
            let finish = importer.finish(5, Object::new());
            entries.extend(finish.document);
            let is_seen = self.session(&id).is_some() && request["if_exists"] != "replace";
            let mut batches: Vec<&[Entry]> = entries.chunks(batch).collect();
            if batches.is_empty() {
                batches.push(&[]);
            }
            for (at, entries) in batches.iter().enumerate() {
                let entries: Vec<String> = entries.iter().map(Entry::json_text).collect();
                let mut call = json!({ "session_id": id, "entries": entries, "first": at == 0 });
                if let Some(mode) = request.get("if_exists") {
                    call["if_exists"] = mode.clone();
                }
                if at + 1 == batches.len() {
                    call["finish"] = json!({ "meta": finish.meta, "active_leaf": finish.leaf });
                } else {
                    assert_eq!(
                        self.session(&id).is_some(),
                        is_seen || at == 0 && self.session(&id).is_some(),
                        "seen half imported"
                    );
                }
                self.call("session::import", &call)?;
            }
            ids.push(id);
        }
        Ok(ids)
    }
}
