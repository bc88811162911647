//! Owns: the clients of a load: which calls they send, and the laws that each answer is checked against at once.
//! Never: what must hold at the end (`oracle.rs`).

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::caller::{Caller, Nodes};
use super::history::{Counter, Fate, History, Write};
use crate::http_call::Outcome;

/// After a failure: long enough not to spin, short enough to notice a new leader at once.
const PAUSE: Duration = Duration::from_millis(10);
/// A call that is retried until it is acknowledged gives up after this many attempts.
const ATTEMPTS_MAX: usize = 3_000;

#[derive(Debug, Clone)]
pub struct LoadSettings {
    /// Part of every session id. Two loads over the same data need different names.
    pub name: String,
    pub clients: usize,
    /// Sessions that all clients append to.
    pub sessions: usize,
    /// Messages that all clients update concurrently.
    pub counters: usize,
    /// Decides what each client does next.
    pub seed: u64,
    pub call_max: Duration,
}

impl LoadSettings {
    pub fn new(name: &str) -> LoadSettings {
        let call_max = Duration::from_secs(5);
        LoadSettings { name: name.to_owned(), clients: 12, sessions: 4, counters: 2, seed: 1, call_max }
    }
}

/// Running clients.
pub struct Load {
    history: Arc<History>,
    clients: JoinSet<()>,
    stop: CancellationToken,
}

impl Load {
    /// Creates the shared sessions, then starts the clients.
    pub async fn start(settings: LoadSettings, nodes: Nodes) -> Result<Load, String> {
        let counters = (0..settings.counters).map(|nth| {
            let session_id = format!("{} counter {nth}", settings.name);
            Counter::new(session_id, "count".to_owned())
        });
        let history = Arc::new(History::new(settings.name.clone(), counters.collect()));
        let mut first = Client::new(0, &settings, nodes.clone(), history.clone());
        for nth in 0..settings.sessions {
            first.ensure(&shared_session(&settings.name, nth)).await?;
        }
        for counter in &history.counters {
            first.ensure(&counter.session_id).await?;
            first.append_known(&counter.session_id, &counter.entry_id, "0").await?;
        }
        let (mut clients, stop) = (JoinSet::new(), CancellationToken::new());
        for nth in 0..settings.clients {
            let client = Client::new(nth, &settings, nodes.clone(), history.clone());
            clients.spawn(client.run(stop.clone()));
        }
        Ok(Load { history, clients, stop })
    }

    pub fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// Lets every client finish its call.
    pub async fn stop(mut self) -> Arc<History> {
        self.stop.cancel();
        while let Some(ended) = self.clients.join_next().await {
            if let Err(error) = ended {
                self.history.broken(format!("a client panicked: {error}"));
            }
        }
        self.history
    }
}

pub fn shared_session(load: &str, nth: usize) -> String {
    format!("{load} session {nth}")
}

pub fn user_message(text: &str) -> Value {
    json!({ "role": "user", "timestamp": 1, "content": [{ "type": "text", "text": text }] })
}

/// One client. It sends one call at a time, so its acknowledgements come in the order of its writes.
struct Client {
    id: usize,
    caller: Caller,
    history: Arc<History>,
    sessions: usize,
    random: SplitMix,
    written: usize,
    /// The client's own message, which it rewrites without naming a revision.
    stream: Stream,
    /// Session and entry id of an acknowledged append. Every node must have it.
    last_entry: Option<(String, String)>,
}

/// What the only writer of a message knows about its revision.
#[derive(Debug, Default)]
struct Stream {
    ready: bool,
    revision: u64,
    /// Updates since then with an unknown outcome. Each may have raised the revision by one.
    unknown: u64,
}

impl Client {
    fn new(id: usize, settings: &LoadSettings, nodes: Nodes, history: Arc<History>) -> Client {
        Client {
            id,
            caller: Caller::new(nodes, id, settings.call_max),
            history,
            sessions: settings.sessions.max(1),
            random: SplitMix(settings.seed ^ (id as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            written: 0,
            stream: Stream::default(),
            last_entry: None,
        }
    }

    async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            self.caller.use_node(self.random.below(64));
            match self.random.below(12) {
                0..=2 => self.append_with_retries().await,
                3..=4 => self.append_once().await,
                5 => self.create().await,
                6..=7 => self.count().await,
                8 => self.rewrite().await,
                9..=10 => self.read_counter().await,
                _last => self.read_own_entry().await,
            }
        }
    }

    fn next_text(&mut self) -> String {
        self.written += 1;
        format!("client {} write {}", self.id, self.written)
    }

    fn some_session(&mut self) -> String {
        shared_session(&self.history.name, self.random.below(self.sessions))
    }

    fn some_counter(&mut self) -> Option<usize> {
        let count = self.history.counters.len();
        (count > 0).then(|| self.random.below(count))
    }

    /// One call, counted. `None` for a refusal: the load sends valid calls only, so a refusal breaks a law.
    async fn call(&mut self, function: &str, body: &Value) -> Option<Outcome> {
        let outcome = self.caller.call(function, body).await;
        match &outcome {
            Outcome::Answered(_) => {}
            Outcome::Refused { code, message } => {
                self.history.broken(format!("client {}: {function} was refused with {code}: {message}", self.id));
                return None;
            }
            Outcome::Unavailable(why) => {
                self.history.unavailable(why);
                tokio::time::sleep(PAUSE).await;
            }
            Outcome::Unknown(why) => self.history.unknown(why),
        }
        Some(outcome)
    }

    /// For calls that are safe to retry: goes from node to node until one answers.
    async fn retry(&mut self, function: &str, body: &Value) -> Option<Value> {
        for _ in 0..ATTEMPTS_MAX {
            match self.call(function, body).await? {
                Outcome::Answered(answer) => return Some(answer),
                Outcome::Refused { .. } => return None,
                Outcome::Unavailable(_) | Outcome::Unknown(_) => self.caller.use_next_node(),
            }
        }
        self.history.broken(format!("client {}: {function} was not acknowledged in {ATTEMPTS_MAX} attempts", self.id));
        None
    }

    async fn ensure(&mut self, session_id: &str) -> Result<(), String> {
        let body = json!({ "session_id": session_id });
        let ensured = self.retry("session::ensure", &body).await;
        ensured.map(|_| ()).ok_or_else(|| self.history.laws_broken().join("; "))
    }

    async fn append_known(&mut self, session_id: &str, entry_id: &str, text: &str) -> Result<(), String> {
        let body = json!({ "session_id": session_id, "entry_id": entry_id, "message": user_message(text) });
        let appended = self.retry("session::append", &body).await;
        appended.map(|_| ()).ok_or_else(|| self.history.laws_broken().join("; "))
    }

    /// An append with an entry id, retried until it is acknowledged. It must be in the transcript once.
    async fn append_with_retries(&mut self) {
        let (session_id, text) = (self.some_session(), self.next_text());
        let body = json!({ "session_id": session_id, "entry_id": text, "message": user_message(&text) });
        if self.retry("session::append", &body).await.is_some() {
            self.history.acknowledged();
            self.history.append(&session_id, Write { client: self.id, text: text.clone(), fate: Fate::Acknowledged });
            self.last_entry = Some((session_id, text));
        }
    }

    /// An append without an entry id, sent once. Forwarding and retries between nodes must not write it twice.
    async fn append_once(&mut self) {
        let (session_id, text) = (self.some_session(), self.next_text());
        let body = json!({ "session_id": session_id, "message": user_message(&text) });
        let Some(outcome) = self.call("session::append", &body).await else { return };
        let fate = self.fate(&outcome);
        self.history.append(&session_id, Write { client: self.id, text, fate });
        if let Outcome::Answered(appended) = outcome
            && let Some(entry_id) = appended["entry_id"].as_str()
        {
            self.last_entry = Some((session_id, entry_id.to_owned()));
        }
    }

    async fn create(&mut self) {
        let text = self.next_text();
        let body = json!({ "title": text, "metadata": { "load": self.history.name, "tag": text } });
        let Some(outcome) = self.call("session::create", &body).await else { return };
        let fate = self.fate(&outcome);
        self.history.create(Write { client: self.id, text, fate });
    }

    fn fate(&self, outcome: &Outcome) -> Fate {
        match outcome {
            Outcome::Answered(_) => {
                self.history.acknowledged();
                Fate::Acknowledged
            }
            Outcome::Unknown(_) => Fate::Unknown,
            Outcome::Refused { .. } | Outcome::Unavailable(_) => Fate::NotExecuted,
        }
    }

    /// Compare-and-set, in competition with every other client.
    async fn count(&mut self) {
        let Some(nth) = self.some_counter() else { return };
        let text = self.next_text();
        let (floor, body) = {
            let counter = &self.history.counters[nth];
            let floor = counter.floor.get();
            let content = json!([{ "type": "text", "text": text }]);
            let body = json!({
                "session_id": counter.session_id, "entry_id": counter.entry_id,
                "content": content, "expected_revision": floor,
            });
            (floor, body)
        };
        let Some(outcome) = self.call("session::update-message", &body).await else { return };
        let counter = &self.history.counters[nth];
        let answer = match outcome {
            Outcome::Answered(answer) => answer,
            Outcome::Unknown(_) => return counter.may_have_made(floor + 1, &text),
            Outcome::Refused { .. } | Outcome::Unavailable(_) => return,
        };
        let revision = answer["revision"].as_u64().unwrap_or_default();
        let id = &counter.session_id;
        match answer["updated"].as_bool() {
            Some(true) if revision == floor + 1 => {
                self.history.acknowledged();
                self.history.check(counter.record(revision, &text));
            }
            Some(false) if revision > floor => {}
            _other => {
                let law = format!("counter {id}: an update of revision {floor} was answered with {answer}");
                return self.history.broken(law);
            }
        }
        counter.floor.raise(revision);
    }

    /// A read must return at least the newest revision that any client knew of before the read began.
    async fn read_counter(&mut self) {
        let Some(nth) = self.some_counter() else { return };
        let (floor, body) = {
            let counter = &self.history.counters[nth];
            let body = json!({ "session_id": counter.session_id, "entry_id": counter.entry_id });
            (counter.floor.get(), body)
        };
        let Some(Outcome::Answered(answer)) = self.call("session::get-message", &body).await else { return };
        self.history.read();
        let counter = &self.history.counters[nth];
        let Some((revision, text)) = read_message(&answer) else {
            return self.history.broken(format!("counter {}: a read found {answer}", counter.session_id));
        };
        if revision < floor {
            let id = &counter.session_id;
            let law = format!("stale read of counter {id}: revision {revision} after {floor} was known");
            return self.history.broken(law);
        }
        if revision > 0 {
            self.history.check(counter.record(revision, &text));
        }
        counter.floor.raise(revision);
    }

    /// Updates without an expected revision, by one writer. Each acknowledged one raises the revision by one.
    async fn rewrite(&mut self) {
        let (session_id, entry_id) = (format!("{} stream {}", self.history.name, self.id), "stream");
        if !self.stream.ready {
            let made =
                self.ensure(&session_id).await.is_ok() && self.append_known(&session_id, entry_id, "0").await.is_ok();
            self.stream.ready = made;
            return;
        }
        let text = self.next_text();
        let content = json!([{ "type": "text", "text": text }]);
        let body = json!({ "session_id": session_id, "entry_id": entry_id, "content": content });
        let Some(outcome) = self.call("session::update-message", &body).await else { return };
        match outcome {
            Outcome::Answered(answer) => {
                let revision = answer["revision"].as_u64().unwrap_or_default();
                let (least, most) = (self.stream.revision + 1, self.stream.revision + 1 + self.stream.unknown);
                if answer["updated"] != true || revision < least || revision > most {
                    let law = format!("{session_id}: an update was answered {answer}, not revision {least} to {most}");
                    self.history.broken(law);
                }
                self.history.acknowledged();
                // An update with an unknown outcome may still be applied later.
                self.stream.unknown = self.stream.unknown.saturating_sub(revision.saturating_sub(least));
                self.stream.revision = revision;
            }
            Outcome::Unknown(_) => self.stream.unknown += 1,
            Outcome::Refused { .. } | Outcome::Unavailable(_) => {}
        }
    }

    /// An acknowledged entry can be read on every node.
    async fn read_own_entry(&mut self) {
        let Some((session_id, entry_id)) = self.last_entry.clone() else { return };
        let body = json!({ "session_id": session_id, "entry_id": entry_id });
        let Some(Outcome::Answered(answer)) = self.call("session::get-message", &body).await else { return };
        self.history.read();
        if answer.is_null() {
            self.history.broken(format!("{session_id}: {entry_id} was acknowledged and then not found"));
        }
    }
}

/// Revision and text of `session::get-message`.
pub fn read_message(answer: &Value) -> Option<(u64, String)> {
    let entry = answer.get("entry")?;
    let text = entry["message"]["content"][0]["text"].as_str()?;
    Some((entry["revision"].as_u64()?, text.to_owned()))
}

/// A small pseudo-random generator. Equal seeds give equal loads.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }
}
