//! Owns: the clients of a run: they call every function through all nodes, with deadlines, and retry where that is
//! safe.
//! Never: checks of answers; the oracles do that.
//!
//! Some clients see everything, others only the sessions of their tenant. The tenants use ids, entries and cursors that
//! belong to others, and clients without a scope hand sessions from one tenant to another, so that decisions about a
//! scope race with all other commands in the log.
//!
//! The clients of the session model are in `model_client.rs`; how clients ask for turns and run them is in
//! `turn_client.rs`.
//!
//! Only the raw store protocol writes to sessions named `raw …`, because it does not keep the laws of a transcript.

#[path = "model_client.rs"]
mod model_client;
#[path = "turn_client.rs"]
mod turn_client;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::caller::Caller;
use crate::determinism::{self, Chance};
use crate::history::Outcome;
use crate::recorder::{Made, Recorder};
use crate::tenant::Tenant;
use turn_client::Driven;

/// Sessions that all clients write to, so that calls conflict.
const SHARED_SESSIONS: usize = 4;
const RAW_SESSIONS: usize = 2;
/// Some deadlines are shorter than an election and all are shorter than the product's, so clients see every kind of
/// failure.
const CALL_MAX_MS: (u64, u64) = (400, 3_000);
const ATTEMPTS_MAX: usize = 8;
/// The longest time for which a client avoids a node that did not answer.
const SILENT_MS: u64 = 2_000;

/// What the clients share.
#[derive(Default)]
pub struct Common {
    pub stop: AtomicBool,
    pub clients_done: AtomicUsize,
    sessions: Mutex<Vec<String>>,
    entries: Mutex<BTreeMap<String, Vec<String>>>,
    /// Cursors of pages: of a session's messages by its id, and of lists by the empty name.
    cursors: Mutex<BTreeMap<String, Vec<String>>>,
    /// Sessions whose turns the clients run, and the turns that were asked for. Nothing else writes to these sessions.
    turn_sessions: Mutex<Vec<String>>,
    turns: Mutex<Vec<String>>,
    /// Turns that messages of the session model asked for.
    model_turns: Mutex<Vec<String>>,
}

impl Common {
    pub fn stops(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Every known session, sorted by id.
    pub fn sessions(&self) -> Vec<String> {
        let mut all = lock(&self.sessions).clone();
        all.sort();
        all.dedup();
        all
    }

    fn saw_session(&self, session_id: &str) {
        lock(&self.sessions).push(session_id.to_owned());
    }

    fn saw_cursor(&self, of: &str, answer: &Value) {
        if let Some(cursor) = answer["next_cursor"].as_str() {
            lock(&self.cursors).entry(of.to_owned()).or_default().push(cursor.to_owned());
        }
    }

    fn saw_entry(&self, session_id: &str, entry_id: &str) {
        lock(&self.entries).entry(session_id.to_owned()).or_default().push(entry_id.to_owned());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(words: &str) -> Value {
    json!([{ "type": "text", "text": words }])
}

fn message(words: &str) -> Value {
    json!({ "role": "user", "timestamp": 1, "content": text(words) })
}

/// One client: one call at a time.
pub struct Client {
    id: usize,
    tenant: Tenant,
    caller: Caller,
    recorder: Recorder,
    common: Arc<Common>,
    chance: Chance,
    written: usize,
    /// Sessions that this client wrote to. A tenant may have lost some of them since.
    own: Vec<String>,
    /// The last revision of an entry that this client saw. It may be stale.
    revisions: BTreeMap<(String, String), u64>,
    /// Turns that this client drives.
    driven: Vec<Driven>,
    /// Nodes that did not answer recently, and until when to avoid them.
    silent_until: BTreeMap<u64, Duration>,
}

impl Client {
    pub fn new(
        id: usize,
        tenant: Tenant,
        hosts: Vec<IpAddr>,
        recorder: Recorder,
        common: Arc<Common>,
        chance: Chance,
    ) -> Client {
        Client {
            id,
            tenant,
            caller: Caller::new(hosts, tenant.token()),
            recorder,
            common,
            chance,
            written: 0,
            own: Vec::new(),
            revisions: BTreeMap::new(),
            driven: Vec::new(),
            silent_until: BTreeMap::new(),
        }
    }

    /// Calls until the run stops the clients.
    pub async fn run(mut self) {
        while !self.common.stops() {
            self.act().await;
            tokio::time::sleep(self.chance.millis(1, 60)).await;
        }
        self.common.clients_done.fetch_add(1, Ordering::SeqCst);
    }

    async fn act(&mut self) {
        match self.chance.below(100) {
            0..=9 => self.append_known().await,
            10..=15 => self.turn().await,
            16..=25 => self.append_minted().await,
            26..=29 => self.append_many().await,
            30..=41 => self.update().await,
            42..=44 => self.create().await,
            45..=47 => self.ensure().await,
            48..=50 => self.set_meta().await,
            51..=53 => self.set_status().await,
            54..=56 => self.set_active_leaf().await,
            57..=58 => self.fork().await,
            59 => self.delete().await,
            60..=67 => self.get_message().await,
            68..=75 => self.messages().await,
            76..=82 => self.get().await,
            83..=86 => self.list().await,
            87..=98 => self.raw().await,
            _last => self.operational().await,
        }
    }

    /// The node to call. The last one is the bridge, which does not serve the raw store protocol.
    fn node(&mut self, function: &str) -> u64 {
        let raw = function.starts_with("session::store::");
        // It refuses callers with a scope, too.
        let refuses = raw || (self.is_scoped() && !self.chance.one_in(12));
        let nodes = self.caller.nodes() - usize::from(refuses);
        let mut node = self.chance.below(nodes) as u64 + 1;
        // A node that did not answer is mostly avoided for a while: a run is too short to wait for it repeatedly.
        for _ in 0..nodes {
            let silent = self.silent_until.get(&node).is_some_and(|until| determinism::now() < *until);
            if !silent || self.chance.one_in(12) {
                break;
            }
            node = self.chance.below(nodes) as u64 + 1;
        }
        node
    }

    fn is_scoped(&self) -> bool {
        self.tenant != Tenant::Everyone
    }

    /// Metadata with an owner or without. A client without a scope gives sessions to tenants and takes them away; a tenant
    /// tries to give one to another.
    fn metadata(&mut self) -> Value {
        match (self.tenant, self.chance.below(6)) {
            (Tenant::Everyone, 0) => json!({}),
            (Tenant::Everyone, 1) => json!({ "owner": self.id }),
            (Tenant::Everyone, 2 | 3) => json!({ "owner": "a" }),
            (Tenant::Everyone, _) => json!({ "owner": "b" }),
            (Tenant::A, 0) => json!({ "owner": "b" }),
            (Tenant::B, 0) => json!({ "owner": "a" }),
            (Tenant::A | Tenant::B, 1 | 2) => json!({ "owner": self.tenant.owner() }),
            (Tenant::A | Tenant::B, _) => json!({ "color": self.chance.below(4) }),
        }
    }

    /// Sometimes a cursor that any client got for such a page.
    fn cursor(&mut self, of: &str) -> Option<String> {
        let known = lock(&self.common.cursors).get(of).cloned().unwrap_or_default();
        if self.chance.one_in(4) { self.chance.pick(&known).cloned() } else { None }
    }

    fn words(&mut self) -> String {
        self.written += 1;
        // Some texts are long, so that segments fill and frames span blocks.
        let padding = if self.chance.one_in(12) { self.chance.below(3000) } else { self.chance.below(40) };
        format!("client {} write {} {}", self.id, self.written, "x".repeat(padding))
    }

    fn session(&mut self) -> String {
        let created = lock(&self.common.sessions).clone();
        let known = match self.chance.below(10) {
            0 | 1 => self.chance.pick(&created),
            // A tenant sees few of the other sessions.
            2..=6 if self.is_scoped() => self.chance.pick(&self.own),
            _shared => None,
        };
        known.cloned().unwrap_or_else(|| format!("s{}", self.chance.below(SHARED_SESSIONS)))
    }

    fn entry(&mut self, session_id: &str) -> Option<String> {
        let known = match self.is_scoped() && self.chance.one_in(5) {
            // An entry of another session, which may belong to somebody else.
            true => lock(&self.common.entries).values().flatten().cloned().collect(),
            false => lock(&self.common.entries).get(session_id).cloned().unwrap_or_default(),
        };
        // Recent entries are picked more often.
        let recent = known.len().saturating_sub(8);
        if self.chance.one_in(3) {
            self.chance.pick(&known).cloned()
        } else {
            self.chance.pick(&known[recent..]).cloned()
        }
    }

    /// One attempt, recorded.
    async fn attempt(
        &mut self,
        node: u64,
        function: &'static str,
        request: &Value,
        repeats: Option<usize>,
    ) -> (usize, Outcome) {
        let (client, tenant) = (self.id, self.tenant);
        let id = self.recorder.called(&Made { client, tenant, node, function, request, repeats });
        let call_max = self.chance.millis(CALL_MAX_MS.0, CALL_MAX_MS.1);
        let outcome = self.caller.call(node, function, request, call_max).await;
        self.recorder.returned(id, &outcome);
        match &outcome {
            Outcome::Answered(_) | Outcome::Refused { .. } => drop(self.silent_until.remove(&node)),
            Outcome::Unavailable(_) | Outcome::Unknown(_) => {
                self.silent_until.insert(node, determinism::now() + self.chance.millis(200, SILENT_MS));
            }
        }
        (id, outcome)
    }

    /// Tries node after node until one answers or refuses. A call that is not idempotent is not retried after an
    /// unknown outcome.
    async fn call(&mut self, function: &'static str, request: Value, repeatable: bool) -> Option<Value> {
        let mut node = self.node(function);
        let mut first = None;
        for _ in 0..ATTEMPTS_MAX {
            let (id, outcome) = self.attempt(node, function, &request, first).await;
            first.get_or_insert(id);
            match outcome {
                Outcome::Answered(answer) => {
                    self.wrote(function, &request, &answer);
                    return Some(answer);
                }
                Outcome::Refused { .. } => return None,
                Outcome::Unknown(_) if !repeatable => return None,
                Outcome::Unknown(_) | Outcome::Unavailable(_) => {}
            }
            if self.common.stops() {
                return None;
            }
            node = self.node(function);
            tokio::time::sleep(self.chance.millis(5, 100)).await;
        }
        None
    }

    fn wrote(&mut self, function: &str, request: &Value, answer: &Value) {
        let session_id = match function {
            "session::create" | "session::fork" => &answer["session_id"],
            "session::ensure" | "session::append" | "session::set-meta" => &request["session_id"],
            _other => return,
        };
        if let Some(session_id) = session_id.as_str().filter(|id| self.own.iter().all(|own| own != id)) {
            self.own.push(session_id.to_owned());
        }
    }

    async fn ensured(&mut self, session_id: &str) {
        let mut request = json!({ "session_id": session_id, "title": session_id });
        if self.chance.one_in(2) {
            request["metadata"] = self.metadata();
        }
        if self.call("session::ensure", request, true).await.is_some() {
            self.common.saw_session(session_id);
        }
    }

    async fn ensure(&mut self) {
        let session_id = format!("s{}", self.chance.below(SHARED_SESSIONS));
        self.ensured(&session_id).await;
    }

    /// Asks for a turn, claims one, or goes on with one. Tenants have none.
    async fn turn(&mut self) {
        if self.is_scoped() {
            return self.append_known().await;
        }
        match self.chance.below(8) {
            0 | 1 => self.ask_for_turn().await,
            2 | 3 => self.claim().await,
            _more if self.driven.is_empty() => self.claim().await,
            _more => self.emit().await,
        }
    }

    async fn create(&mut self) {
        let title = self.words();
        let request = json!({ "title": title, "metadata": self.metadata() });
        if let Some(answer) = self.call("session::create", request, false).await
            && let Some(session_id) = answer["session_id"].as_str()
        {
            self.common.saw_session(session_id);
        }
    }

    async fn append_known(&mut self) {
        let (session_id, words) = (self.session(), self.words());
        let entry_id = format!("e {} {}", self.id, self.written);
        let mut request = json!({ "session_id": session_id, "entry_id": entry_id, "message": message(&words) });
        if self.chance.one_in(6)
            && let Some(parent) = self.entry(&session_id)
        {
            request["parent_id"] = json!(parent);
        }
        if self.call("session::append", request, true).await.is_some() {
            self.common.saw_entry(&session_id, &entry_id);
        } else if self.chance.one_in(2) {
            // The session may not exist yet.
            self.ensured(&session_id).await;
        }
    }

    async fn append_minted(&mut self) {
        let (session_id, words) = (self.session(), self.words());
        let body = if self.chance.one_in(5) {
            json!({ "session_id": session_id, "custom": { "custom_type": "note", "data": { "words": words } } })
        } else {
            json!({ "session_id": session_id, "message": message(&words) })
        };
        if let Some(answer) = self.call("session::append", body, false).await
            && let Some(entry_id) = answer["entry_id"].as_str()
        {
            self.common.saw_entry(&session_id, entry_id);
        }
    }

    async fn append_many(&mut self) {
        let (session_id, count) = (self.session(), self.chance.between(1, 4));
        let messages: Vec<Value> = (0..count).map(|_| message(&self.words())).collect();
        let request = json!({ "session_id": session_id, "messages": messages });
        if let Some(answer) = self.call("session::append-many", request, false).await {
            for entry_id in answer["entry_ids"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                self.common.saw_entry(&session_id, entry_id);
            }
        }
    }

    /// Half of the time with the revision that this client last saw, which may be stale.
    async fn update(&mut self) {
        let session_id = self.session();
        let Some(entry_id) = self.entry(&session_id) else { return };
        let key = (session_id.clone(), entry_id.clone());
        let mut request = json!({ "session_id": session_id, "entry_id": entry_id, "content": text(&self.words()) });
        let expected = self.chance.one_in(2);
        if expected {
            request["expected_revision"] = json!(self.revisions.get(&key).copied().unwrap_or(0));
        }
        if let Some(answer) = self.call("session::update-message", request, expected).await {
            self.revisions.insert(key, answer["revision"].as_u64().unwrap_or_default());
        }
    }

    async fn set_meta(&mut self) {
        let session_id = self.session();
        let request = json!({ "session_id": session_id, "title": self.words(), "metadata": self.metadata() });
        self.call("session::set-meta", request, true).await;
    }

    async fn set_status(&mut self) {
        let session_id = self.session();
        let status = self.chance.pick(&["idle", "working", "done", "error"]).copied().unwrap_or("idle");
        self.call("session::set-status", json!({ "session_id": session_id, "status": status }), true).await;
    }

    async fn set_active_leaf(&mut self) {
        let session_id = self.session();
        let Some(entry_id) = self.entry(&session_id) else { return };
        self.call("session::set-active-leaf", json!({ "session_id": session_id, "entry_id": entry_id }), true).await;
    }

    async fn fork(&mut self) {
        let session_id = self.session();
        let Some(entry_id) = self.entry(&session_id) else { return };
        let request = json!({ "session_id": session_id, "entry_id": entry_id });
        if let Some(answer) = self.call("session::fork", request, false).await
            && let Some(forked) = answer["session_id"].as_str()
        {
            self.common.saw_session(forked);
        }
    }

    async fn delete(&mut self) {
        let session_id = self.session();
        self.call("session::delete", json!({ "session_id": session_id }), true).await;
    }

    async fn get(&mut self) {
        let session_id = self.session();
        self.call("session::get", json!({ "session_id": session_id }), true).await;
    }

    async fn get_message(&mut self) {
        let session_id = self.session();
        let Some(entry_id) = self.entry(&session_id) else { return };
        let request = json!({ "session_id": session_id, "entry_id": entry_id });
        if let Some(answer) = self.call("session::get-message", request, true).await
            && let Some(revision) = answer["entry"]["revision"].as_u64()
        {
            self.revisions.insert((session_id, entry_id), revision);
        }
    }

    async fn messages(&mut self) {
        let session_id = self.session();
        let limit = self.chance.between(1, 40);
        let mut request = json!({ "session_id": session_id, "limit": limit, "include_custom": self.chance.one_in(2) });
        if let Some(cursor) = self.cursor(&session_id) {
            request["cursor"] = json!(cursor);
        }
        if let Some(answer) = self.call("session::messages", request, true).await {
            self.common.saw_cursor(&session_id, &answer);
        }
    }

    async fn list(&mut self) {
        let order =
            self.chance.pick(&["updated_desc", "created_asc", "created_desc"]).copied().unwrap_or("updated_desc");
        let mut request = json!({ "limit": self.chance.between(1, 30), "order": order });
        if self.chance.one_in(3) {
            request["metadata"] = self.metadata();
        }
        if let Some(cursor) = self.cursor("") {
            request["cursor"] = json!(cursor);
        }
        if let Some(answer) = self.call("session::list", request, true).await {
            self.common.saw_cursor("", &answer);
        }
    }

    async fn operational(&mut self) {
        let function = if self.chance.one_in(2) { "session::config-status" } else { "session::on-config-change" };
        self.call(function, json!({}), true).await;
    }

    /// The raw store protocol, on sessions of its own. A tenant has none, and mostly lists its sessions instead.
    async fn raw(&mut self) {
        if self.is_scoped() && !self.chance.one_in(10) {
            return self.list().await;
        }
        let session_id = format!("raw {}", self.chance.below(RAW_SESSIONS));
        let entry_id = format!("r{}", self.chance.below(5));
        let only = json!({ "session_id": session_id });
        let both = json!({ "session_id": session_id, "entry_id": entry_id });
        match self.chance.below(14) {
            0 | 1 => {
                let meta = json!({
                    "session_id": session_id, "title": self.words(), "description": "", "status": "idle",
                    "message_count": 0, "created_at": 1, "updated_at": 2,
                });
                self.call("session::store::put-meta", json!({ "meta": meta }), true).await;
            }
            2 | 3 => {
                let entry = json!({
                    "id": entry_id, "parent_id": null, "timestamp": 1, "revision": 0, "kind": "message",
                    "message": message(&self.words()),
                });
                self.call("session::store::put-entry", json!({ "session_id": session_id, "entry": entry }), true).await;
            }
            4 => drop(self.call("session::store::set-active-leaf", both, true).await),
            5 => drop(self.call("session::store::delete-active-leaf", only, true).await),
            6 => drop(self.call("session::store::delete-entries", only, true).await),
            7 => drop(self.call("session::store::delete-meta", only, true).await),
            8 => {
                let event = json!({ "trigger_type": "session::deleted", "payload": { "session_id": session_id } });
                self.call("session::store::publish-events", json!({ "events": [event] }), false).await;
            }
            9 => drop(self.call("session::store::get-meta", only, true).await),
            10 => drop(self.call("session::store::get-entry", both, true).await),
            11 => drop(self.call("session::store::list-entries", only, true).await),
            12 => drop(self.call("session::store::get-active-leaf", only, true).await),
            _last => drop(self.call("session::store::list-metas", json!({}), true).await),
        }
    }

    /// After all faults were mended: a write through every node. Returns the nodes that did not answer in time.
    pub async fn write_through(mut self, nodes: &[u64], within: Duration) -> Vec<u64> {
        let mut silent = Vec::new();
        for node in nodes {
            let request = json!({ "session_id": "s0", "title": format!("final {node}") });
            let reached = tokio::time::timeout(within, self.retry(*node, "session::ensure", &request)).await.is_ok();
            if !reached {
                silent.push(*node);
            }
        }
        silent
    }

    /// After the final writes: reads everything through this node.
    pub async fn read_final_state(mut self, node: u64) {
        for session_id in self.common.sessions() {
            let only = json!({ "session_id": session_id });
            self.retry(node, "session::get", &only).await;
            let pages = json!({ "session_id": session_id, "limit": 500, "include_custom": true });
            self.retry(node, "session::messages", &pages).await;
            self.retry(node, "session::store::list-entries", &only).await;
        }
        self.retry(node, "session::store::list-metas", &json!({})).await;
    }

    /// The same for a tenant, after the final writes: what it sees of all sessions, and of those that everybody writes to.
    pub async fn read_final_state_of_tenant(mut self, nodes: &[u64]) {
        for node in nodes {
            self.retry(*node, "session::list", &json!({ "limit": 500, "order": "created_asc" })).await;
            for shared in 0..SHARED_SESSIONS {
                let only = json!({ "session_id": format!("s{shared}") });
                self.retry(*node, "session::get", &only).await;
                self.retry(*node, "session::messages", &only).await;
            }
        }
    }

    async fn retry(&mut self, node: u64, function: &'static str, request: &Value) {
        let mut first = None;
        loop {
            let (id, outcome) = self.attempt(node, function, request, first).await;
            first.get_or_insert(id);
            match outcome {
                Outcome::Answered(_) | Outcome::Refused { .. } => return,
                Outcome::Unavailable(_) | Outcome::Unknown(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}
