//! Owns: a second, simple implementation of sessions, to compare the machine with. Everything is JSON in ordered maps,
//! and every read scans and sorts everything. It takes the machine's commands and queries as input and shares no logic
//! with it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use session_manager::machine::Command;
use session_manager::machine::apply::fork::ForkSession;
use session_manager::machine::apply::long::LongWork;
use session_manager::machine::apply::store::StoreWrite;
use session_manager::machine::apply::update_message::NewContent;
use session_manager::machine::change::SessionChange;
use session_manager::machine::entry::{Body, Entry};
use session_manager::machine::query::list::ListQuery;
use session_manager::machine::query::messages::MessagesQuery;
use session_manager::machine::view::ListOrder;

/// The outcome of one command. A refusal is its code.
#[derive(Debug, PartialEq)]
pub struct ModelOutcome {
    pub answer: Result<Value, String>,
    pub events: Vec<Value>,
}

/// Where the last page ended.
#[derive(Debug, Clone)]
pub enum After {
    Start,
    Entry(String),
    Session { time: i64, id: String },
}

#[derive(Debug, Default)]
pub struct Model {
    pub clock: i64,
    pub metas: BTreeMap<String, Value>,
    /// Per session, in the order they were written.
    pub entries: BTreeMap<String, Vec<Value>>,
    pub leaves: BTreeMap<String, String>,
    pub seqs: BTreeMap<String, u64>,
    /// Sessions with raw writes. Their message counts and leaves may be wrong, by design.
    pub tainted: BTreeSet<String>,
    /// Forks under way, by their id: what was asked for, and how many entries are copied.
    pub forks: BTreeMap<String, (ForkSession, usize)>,
}

type Refused = &'static str;

impl Model {
    /// `minted` holds the ids that the machine derived from the stamp: the session (create, fork), then the entries.
    pub fn apply(&mut self, at_ms: i64, command: &Command, minted: &[String]) -> ModelOutcome {
        let at = at_ms.max(self.clock);
        let mut events = Vec::new();
        let answer = self.decide(at, command, minted, &mut events);
        ModelOutcome { answer: answer.map_err(str::to_owned), events }
    }

    fn decide(
        &mut self,
        at: i64,
        command: &Command,
        minted: &[String],
        events: &mut Vec<Value>,
    ) -> Result<Value, Refused> {
        let id_of = |n: usize| minted.get(n).cloned().unwrap_or_else(|| "(nothing was minted)".to_owned());
        match command {
            Command::Create(c) => {
                let meta = new_meta(&id_of(0), &c.title, &c.description, c.metadata.as_ref(), at);
                Ok(self.create(at, meta, events))
            }
            Command::Ensure(c) => {
                let id = c.session_id.as_str();
                if let Some(meta) = self.metas.get(id) {
                    return Ok(json!({ "meta": meta, "created": false }));
                }
                let s = &c.session;
                let meta = self.create(at, new_meta(id, &s.title, &s.description, s.metadata.as_ref(), at), events);
                Ok(json!({ "meta": meta["meta"], "created": true }))
            }
            Command::SetMeta(c) => {
                let id = c.session_id.as_str();
                let mut meta = self.known(id)?;
                if c.title.is_none() && c.description.is_none() && c.metadata.is_none() {
                    return Ok(json!({ "meta": meta }));
                }
                if let Some(title) = &c.title {
                    meta["title"] = json!(title);
                }
                if let Some(description) = &c.description {
                    meta["description"] = json!(description);
                }
                if let Some(metadata) = &c.metadata {
                    meta["metadata"] = json!(metadata);
                }
                let meta = self.touch(at, meta);
                let mut payload =
                    json!({ "title": meta["title"], "description": meta["description"], "timestamp": at });
                copy_field(&meta, "metadata", &mut payload);
                self.report(id, "session::meta-updated", payload, events);
                Ok(json!({ "meta": meta }))
            }
            Command::SetStatus(c) => {
                let id = c.session_id.as_str();
                let mut meta = self.known(id)?;
                let (status, previous) = (json!(c.status), meta["status"].clone());
                if status == previous {
                    return Ok(json!({ "status": status, "previous_status": previous }));
                }
                meta["status"] = status.clone();
                let mut payload = json!({ "status": status, "previous_status": previous, "timestamp": at });
                meta.as_object_mut().unwrap().remove("status_reason");
                if status == "error"
                    && let Some(reason) = &c.reason
                {
                    meta["status_reason"] = json!(reason);
                    payload["status_reason"] = json!(reason);
                }
                self.touch(at, meta);
                self.report(id, "session::status-changed", payload, events);
                Ok(json!({ "status": status, "previous_status": previous }))
            }
            Command::Delete(c) => {
                let id = c.session_id.as_str();
                if !self.metas.contains_key(id) {
                    return Ok(json!({ "deleted": false }));
                }
                self.report(id, "session::deleted", json!({ "timestamp": at }), events);
                self.end_forks_of(id);
                self.metas.remove(id);
                self.entries.remove(id);
                self.leaves.remove(id);
                self.seqs.remove(id);
                self.tainted.remove(id);
                self.clock = at;
                Ok(json!({ "deleted": true }))
            }
            Command::Append(c) => {
                let id = c.session_id.as_str();
                self.known(id)?;
                let entry_id = c.entry_id.as_ref().map_or_else(|| id_of(0), |given| given.as_str().to_owned());
                if let Some(old) = self.entry(id, &entry_id) {
                    return Ok(appended(old));
                }
                let parent = self.parent(id, c.parent_id.as_ref().map(|parent| parent.as_str()))?;
                let origin = c.origin.as_ref().map(|origin| origin.value());
                let entry = entry_json(&entry_id, parent.as_deref(), at, origin.as_ref(), &c.body);
                self.append_entries(at, id, vec![entry.clone()], events);
                Ok(appended(&entry))
            }
            Command::AppendMany(c) => {
                let id = c.session_id.as_str();
                if c.messages.is_empty() {
                    return Err("session/empty_batch");
                }
                self.known(id)?;
                let mut parent = self.parent(id, c.parent_id.as_ref().map(|parent| parent.as_str()))?;
                let origin = c.origin.as_ref().map(|origin| origin.value());
                let mut entries = Vec::new();
                for (n, message) in c.messages.iter().enumerate() {
                    let body = Body::Message(message.clone());
                    entries.push(entry_json(&id_of(n), parent.as_deref(), at, origin.as_ref(), &body));
                    parent = Some(id_of(n));
                }
                let ids: Vec<Value> = entries.iter().map(|entry| entry["id"].clone()).collect();
                self.append_entries(at, id, entries, events);
                Ok(json!({ "entry_ids": ids }))
            }
            Command::UpdateMessage(c) => {
                let id = c.session_id.as_str();
                let meta = self.known(id)?;
                let mut entry = self.entry(id, c.entry_id.as_str()).ok_or("session/entry_not_found")?.clone();
                if entry["kind"] == "custom" {
                    return Err("session/invalid_entry_kind");
                }
                let may_have_details =
                    ["function_result", "custom"].contains(&entry["message"]["role"].as_str().unwrap());
                if c.details.is_some() && !may_have_details {
                    return Err("session/details_not_supported");
                }
                let revision = entry["revision"].as_u64().unwrap();
                if c.expected_revision.is_some_and(|expected| expected != revision) {
                    return Ok(json!({ "updated": false, "revision": revision }));
                }
                // Only a raw write can set the largest revision.
                let revision = revision.checked_add(1).ok_or("session/invalid_request")?;
                entry["revision"] = json!(revision);
                let NewContent::Full(content) = &c.content else { unreachable!("the model gets whole contents only") };
                entry["message"]["content"] = content.value();
                if let Some(details) = &c.details {
                    entry["message"]["details"] = details.value();
                }
                let mut payload = json!({
                    "entry_id": entry["id"], "message": entry["message"], "revision": revision, "timestamp": at,
                });
                if let Some(origin) = &c.origin {
                    payload["origin"] = origin.value();
                }
                self.put_entry(id, entry);
                self.touch(at, meta);
                self.report(id, "session::message-updated", payload, events);
                Ok(json!({ "updated": true, "revision": revision }))
            }
            Command::Fork(c) => {
                let source_id = c.session_id.as_str();
                let source = self.known(source_id)?;
                self.entry(source_id, c.entry_id.as_str()).ok_or("session/entry_not_found")?;
                let id = id_of(0);
                let path = self.path(source_id, c.entry_id.as_str());
                let copy_of =
                    |old: &Value| path.iter().position(|entry| entry["id"] == *old).map(|n| json!(id_of(n + 1)));
                let mut copies = Vec::new();
                for (n, entry) in path.iter().enumerate() {
                    let mut copy = entry.clone();
                    copy["id"] = json!(id_of(n + 1));
                    copy["revision"] = json!(0);
                    copy.as_object_mut().unwrap().remove("parent_id");
                    if n > 0 {
                        copy["parent_id"] = json!(id_of(n));
                    }
                    if copy["custom_type"] == "compaction"
                        && let Some(tail) = entry["data"].get("tail_start_entry_id").and_then(copy_of)
                    {
                        copy["data"]["tail_start_entry_id"] = tail;
                    }
                    copies.push(copy);
                }
                let title = c.title.clone().unwrap_or_else(|| source["title"].as_str().unwrap().to_owned());
                let mut meta = new_meta(&id, &title, source["description"].as_str().unwrap(), None, at);
                copy_field(&source, "metadata", &mut meta);
                meta["forked_from"] = json!(source_id);
                meta["message_count"] = json!(copies.iter().filter(|copy| copy["kind"] == "message").count());
                self.leaves.insert(id.clone(), id_of(path.len()));
                self.entries.insert(id, copies);
                Ok(self.create(at, meta, events))
            }
            Command::SetActiveLeaf(c) => {
                let (id, entry_id) = (c.session_id.as_str(), c.entry_id.as_str());
                let meta = self.known(id)?;
                self.entry(id, entry_id).ok_or("session/entry_not_found")?;
                if self.leaves.get(id).map(String::as_str) != Some(entry_id) {
                    self.leaves.insert(id.to_owned(), entry_id.to_owned());
                    self.touch(at, meta);
                }
                Ok(json!({ "active_leaf": entry_id }))
            }
            Command::Import(_) => unreachable!("the sequences import nothing"),
            Command::Beside(_) => unreachable!("the sequences have no turns"),
            Command::Store(write) => self.store(at, write, events),
            Command::Long(work) => self.long(at, work, minted, events),
            // Commands of the feed do not change sessions.
            Command::Feed(_) => Ok(json!({ "ok": true })),
        }
    }

    fn end_forks_of(&mut self, source: &str) {
        self.forks.retain(|_, (fork, _)| fork.session_id.as_str() != source);
    }

    /// Long work shows the same as the plain command, at one moment.
    fn long(&mut self, at: i64, work: &LongWork, minted: &[String], events: &mut Vec<Value>) -> Result<Value, Refused> {
        match work {
            LongWork::Delete(c) => self.decide(at, &Command::Delete(c.clone()), minted, events),
            LongWork::DeleteEntries(id) => {
                self.store(at, &StoreWrite::Session(id.clone(), SessionChange::DeleteEntries), events)
            }
            LongWork::BeginFork(c) => {
                self.known(c.session_id.as_str())?;
                self.entry(c.session_id.as_str(), c.entry_id.as_str()).ok_or("session/entry_not_found")?;
                if self.forks.len() >= 16 {
                    return Err("session/invalid_request");
                }
                self.forks.insert(minted[0].clone(), (c.clone(), 0));
                self.clock = at;
                Ok(json!({ "begun": true }))
            }
            LongWork::ContinueFork { source, fork, records } => {
                let Some((asked, copied)) = self.forks.get(fork.as_str()).cloned() else {
                    self.known(source.as_str())?;
                    return Err("session/invalid_request");
                };
                self.known(source.as_str())?;
                let copied = copied + *records as usize;
                if copied < self.path(source.as_str(), asked.entry_id.as_str()).len() {
                    self.forks.insert(fork.as_str().to_owned(), (asked, copied));
                    self.clock = at;
                    return Ok(json!({ "begun": true }));
                }
                self.forks.remove(fork.as_str());
                self.decide(at, &Command::Fork(asked), minted, events)
            }
            LongWork::GiveUpFork { fork, .. } => {
                if self.forks.remove(fork.as_str()).is_some() {
                    self.clock = at;
                }
                Ok(json!({ "ok": true }))
            }
            LongWork::FreeRecords { .. } => unreachable!("the sequences have no records beside sessions"),
            LongWork::Free { .. } => {
                self.clock = at;
                Ok(json!({ "ok": true }))
            }
            LongWork::Import(_) => unreachable!("the sequences import nothing"),
        }
    }

    fn store(&mut self, at: i64, write: &StoreWrite, events: &mut Vec<Value>) -> Result<Value, Refused> {
        let owned = |id: &session_manager::machine::ids::SessionId| id.as_str().to_owned();
        match write {
            StoreWrite::Session(id, SessionChange::PutMeta(meta)) => {
                self.metas.insert(owned(id), json!(meta));
            }
            StoreWrite::Session(id, SessionChange::DeleteMeta) => {
                self.metas.remove(id.as_str());
            }
            StoreWrite::Session(id, SessionChange::PutEntry(entry)) => {
                let entry = json!(entry);
                if entry.get("parent_id") == Some(&entry["id"]) {
                    return Err("session/invalid_request");
                }
                let old = self.entry(id.as_str(), entry["id"].as_str().unwrap());
                if old.is_some_and(|old| old.get("parent_id") != entry.get("parent_id")) {
                    return Err("session/invalid_request");
                }
                self.put_entry(id.as_str(), entry);
            }
            StoreWrite::Session(id, SessionChange::DeleteEntries) => {
                self.end_forks_of(id.as_str());
                self.entries.remove(id.as_str());
            }
            StoreWrite::Session(id, SessionChange::SetLeaf(entry_id)) => {
                self.leaves.insert(owned(id), entry_id.as_str().to_owned());
            }
            StoreWrite::Session(id, SessionChange::DeleteLeaf) => {
                self.leaves.remove(id.as_str());
            }
            StoreWrite::PublishEvents(envelopes) => {
                for envelope in envelopes {
                    let id = owned(&envelope.session_id);
                    let kind = envelope.kind.trigger_type();
                    let seq = self.next_seq(&id);
                    let mut event =
                        json!({ "kind": kind, "session": id, "seq": seq, "payload": envelope.payload.value() });
                    if let Some(metadata) = &envelope.metadata {
                        event["metadata"] = json!(metadata);
                    }
                    events.push(event);
                    if kind == "session::deleted" {
                        self.seqs.remove(&id);
                    }
                }
                self.clock = at;
                return Ok(json!({ "published": envelopes.len() }));
            }
        }
        self.tainted.extend(write.session_id().map(owned));
        self.clock = at;
        Ok(json!({ "ok": true }))
    }

    fn create(&mut self, at: i64, meta: Value, events: &mut Vec<Value>) -> Value {
        let id = meta["session_id"].as_str().unwrap().to_owned();
        self.metas.insert(id.clone(), meta.clone());
        self.clock = at;
        let mut payload = json!({
            "title": meta["title"], "description": meta["description"], "status": "idle", "created_at": at,
        });
        copy_field(&meta, "forked_from", &mut payload);
        self.report(&id, "session::created", payload, events);
        json!({ "meta": meta })
    }

    fn append_entries(&mut self, at: i64, id: &str, entries: Vec<Value>, events: &mut Vec<Value>) {
        let mut meta = self.metas[id].clone();
        for entry in entries {
            if entry["kind"] == "message" {
                let count = meta["message_count"].as_u64().unwrap();
                meta["message_count"] = json!(count.saturating_add(1));
            }
            let mut payload = json!({
                "entry_id": entry["id"], "timestamp": at,
                "parent_id": entry.get("parent_id").cloned().unwrap_or(Value::Null),
            });
            copy_field(&entry, "origin", &mut payload);
            if entry["kind"] == "message" {
                payload["message"] = entry["message"].clone();
            } else {
                payload["custom"] = json!({ "custom_type": entry["custom_type"], "data": entry["data"] });
            }
            self.leaves.insert(id.to_owned(), entry["id"].as_str().unwrap().to_owned());
            self.report(id, "session::message-added", payload, events);
            self.put_entry(id, entry);
        }
        self.touch(at, meta);
    }

    /// Stores the meta of a session that a command changed.
    fn touch(&mut self, at: i64, mut meta: Value) -> Value {
        meta["updated_at"] = json!(at.max(meta["updated_at"].as_i64().unwrap().saturating_add(1)));
        self.metas.insert(meta["session_id"].as_str().unwrap().to_owned(), meta.clone());
        self.clock = at;
        meta
    }

    fn report(&mut self, id: &str, kind: &str, mut payload: Value, events: &mut Vec<Value>) {
        payload["session_id"] = json!(id);
        let seq = self.next_seq(id);
        let mut event = json!({ "kind": kind, "session": id, "seq": seq, "payload": payload });
        copy_field(&self.metas[id], "metadata", &mut event);
        events.push(event);
    }

    fn next_seq(&mut self, id: &str) -> u64 {
        let seq = self.seqs.entry(id.to_owned()).or_default();
        *seq += 1;
        *seq
    }

    fn known(&self, id: &str) -> Result<Value, Refused> {
        self.metas.get(id).cloned().ok_or("session/not_found")
    }

    fn parent(&self, id: &str, named: Option<&str>) -> Result<Option<String>, Refused> {
        match named {
            Some(named) if self.entry(id, named).is_some() => Ok(Some(named.to_owned())),
            Some(_) => Err("session/parent_not_found"),
            None => Ok(self.leaves.get(id).filter(|leaf| self.entry(id, leaf).is_some()).cloned()),
        }
    }

    fn put_entry(&mut self, id: &str, entry: Value) {
        let entries = self.entries.entry(id.to_owned()).or_default();
        match entries.iter().position(|old| old["id"] == entry["id"]) {
            Some(at) => entries[at] = entry,
            None => entries.push(entry),
        }
    }

    pub fn entry(&self, id: &str, entry_id: &str) -> Option<&Value> {
        self.entries.get(id)?.iter().find(|entry| entry["id"] == entry_id)
    }

    /// Oldest first. Ends where a parent is missing or occurs a second time.
    pub fn path(&self, id: &str, leaf: &str) -> Vec<Value> {
        let mut path: Vec<Value> = Vec::new();
        let mut here = Some(leaf.to_owned());
        while let Some(entry) = here.and_then(|here| self.entry(id, &here)) {
            if path.iter().any(|seen| seen["id"] == entry["id"]) {
                break;
            }
            path.push(entry.clone());
            here = entry.get("parent_id").map(|parent| parent.as_str().unwrap().to_owned());
        }
        path.reverse();
        path
    }

    /// The entries of a page, and whether another page follows.
    pub fn messages(&self, query: &MessagesQuery, after: &After) -> Result<(Vec<Value>, bool), Refused> {
        let id = query.session_id.as_str();
        self.known(id)?;
        let leaf = match &query.from_entry_id {
            Some(from) if self.entry(id, from.as_str()).is_none() => return Err("session/entry_not_found"),
            Some(from) => Some(from.as_str()),
            None => self.leaves.get(id).map(String::as_str),
        };
        let mut path = leaf.map_or(Vec::new(), |leaf| self.path(id, leaf));
        if let After::Entry(last) = after {
            let at = path.iter().position(|entry| entry["id"] == *last).ok_or("session/invalid_cursor")?;
            path.drain(..=at);
        }
        path.retain(|entry| match &query.roles {
            Some(roles) => {
                entry["kind"] == "message" && roles.iter().any(|role| json!(role) == entry["message"]["role"])
            }
            None => entry["kind"] == "message" || query.include_custom,
        });
        let more = path.len() > query.limit;
        path.truncate(query.limit);
        Ok((path, more))
    }

    pub fn list(&self, query: &ListQuery, after: &After) -> Result<(Vec<Value>, bool), Refused> {
        let mut metas: Vec<Value> = self.metas.values().cloned().collect();
        metas.sort_by_key(|meta| sort_key(query.order, meta));
        metas.retain(|meta| {
            let status = query.status.is_none_or(|status| json!(status) == meta["status"]);
            let mut wanted = query.metadata.iter().flatten();
            status && wanted.all(|(key, value)| meta.get("metadata").and_then(|stored| stored.get(key)) == Some(value))
        });
        match after {
            After::Start => {}
            After::Session { time, id } => {
                let last = sort_key_of(query.order, *time, id);
                metas.retain(|meta| sort_key(query.order, meta) > last);
            }
            After::Entry(_) => return Err("session/invalid_cursor"),
        }
        let more = metas.len() > query.limit;
        metas.truncate(query.limit);
        Ok((metas, more))
    }
}

pub fn list_time(order: ListOrder, meta: &Value) -> i64 {
    match order {
        ListOrder::CreatedAsc | ListOrder::CreatedDesc => meta["created_at"].as_i64().unwrap(),
        ListOrder::UpdatedDesc => meta["updated_at"].as_i64().unwrap(),
    }
}

fn sort_key(order: ListOrder, meta: &Value) -> (i128, String) {
    sort_key_of(order, list_time(order, meta), meta["session_id"].as_str().unwrap())
}

fn sort_key_of(order: ListOrder, time: i64, id: &str) -> (i128, String) {
    match order {
        ListOrder::CreatedAsc => (i128::from(time), id.to_owned()),
        ListOrder::CreatedDesc | ListOrder::UpdatedDesc => (-i128::from(time), id.to_owned()),
    }
}

fn new_meta(id: &str, title: &str, description: &str, metadata: Option<&Map<String, Value>>, at: i64) -> Value {
    let mut meta = json!({
        "session_id": id, "title": title, "description": description, "status": "idle", "message_count": 0,
        "created_at": at, "updated_at": at,
    });
    if let Some(metadata) = metadata {
        meta["metadata"] = json!(metadata);
    }
    meta
}

fn entry_json(id: &str, parent: Option<&str>, at: i64, origin: Option<&Value>, body: &Body) -> Value {
    let mut entry = json!({ "id": id, "timestamp": at, "revision": 0 });
    if let Some(parent) = parent {
        entry["parent_id"] = json!(parent);
    }
    if let Some(origin) = origin {
        entry["origin"] = origin.clone();
    }
    match body {
        Body::Message(message) => {
            entry["kind"] = json!("message");
            entry["message"] = message.body.value();
        }
        Body::Custom { custom_type, data } => {
            entry["kind"] = json!("custom");
            entry["custom_type"] = json!(custom_type);
            entry["data"] = data.value();
        }
    }
    entry
}

fn appended(entry: &Value) -> Value {
    json!({
        "entry_id": entry["id"], "timestamp": entry["timestamp"],
        "parent_id": entry.get("parent_id").cloned().unwrap_or(Value::Null),
    })
}

fn copy_field(from: &Value, name: &str, to: &mut Value) {
    if let Some(value) = from.get(name) {
        to[name] = value.clone();
    }
}

/// Entries as JSON, as the model keeps them.
pub fn entries_json<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Vec<Value> {
    entries.into_iter().map(|entry| json!(entry)).collect()
}
