//! Owns: the clients of a trial: what they send, and what they conclude from what they hear.
//! Never: what must hold at the end (`verdict.rs`).

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::door::{Door, Heard, Nodes};
use super::history::{Counter, Fate, History, Write};

/// After a failure: long enough not to spin, short enough to notice a new leader at once.
const PAUSE: Duration = Duration::from_millis(10);
/// A call that is repeated until it is known to be done gives up after this many attempts.
const ATTEMPTS_MAX: usize = 3_000;

#[derive(Debug, Clone)]
pub struct LoadSettings {
    /// The same name over the same data would meet the sessions of an earlier trial.
    pub name: String,
    pub clients: usize,
    /// Sessions that all clients append to.
    pub sessions: usize,
    /// Messages that all clients update against each other.
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

/// Clients at work.
pub struct Load {
    history: Arc<History>,
    clients: JoinSet<()>,
    stop: CancellationToken,
}

impl Load {
    /// Makes the shared sessions, then lets the clients loose.
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
                self.history.broken(format!("a client broke off: {error}"));
            }
        }
        self.history
    }
}

pub fn shared_session(trial: &str, nth: usize) -> String {
    format!("{trial} session {nth}")
}

pub fn user_message(text: &str) -> Value {
    json!({ "role": "user", "timestamp": 1, "content": [{ "type": "text", "text": text }] })
}

/// One client: one call at a time, so that what it was told first happened first.
struct Client {
    id: usize,
    door: Door,
    history: Arc<History>,
    sessions: usize,
    random: SplitMix,
    written: usize,
    /// The client's own message, which it rewrites without naming a revision.
    stream: Stream,
    /// An entry whose append was acknowledged: every node must have it.
    last_entry: Option<(String, String)>,
}

/// What the only writer of a message knows about its revision.
#[derive(Debug, Default)]
struct Stream {
    ready: bool,
    revision: u64,
    /// Updates since then that may have counted it up.
    unknown: u64,
}

impl Client {
    fn new(id: usize, settings: &LoadSettings, nodes: Nodes, history: Arc<History>) -> Client {
        Client {
            id,
            door: Door::new(nodes, id, settings.call_max),
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
            self.door.move_to(self.random.below(64));
            match self.random.below(12) {
                0..=2 => self.append_repeated().await,
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

    /// One call, counted. `None` for a refusal, which no call of a trial deserves.
    async fn call(&mut self, function: &str, body: &Value) -> Option<Heard> {
        let heard = self.door.call(function, body).await;
        match &heard {
            Heard::Answer(_) => {}
            Heard::Refused(why) => {
                self.history.broken(format!("client {}: {function} was refused: {why}", self.id));
                return None;
            }
            Heard::NotDone(why) => {
                self.history.not_done(why);
                tokio::time::sleep(PAUSE).await;
            }
            Heard::Unknown(why) => self.history.unknown(why),
        }
        Some(heard)
    }

    /// For calls that are safe to repeat: goes from node to node until one answers.
    async fn insist(&mut self, function: &str, body: &Value) -> Option<Value> {
        for _ in 0..ATTEMPTS_MAX {
            match self.call(function, body).await? {
                Heard::Answer(answer) => return Some(answer),
                Heard::Refused(_) => return None,
                Heard::NotDone(_) | Heard::Unknown(_) => self.door.move_on(),
            }
        }
        self.history.broken(format!("client {}: {function} was not done in {ATTEMPTS_MAX} attempts", self.id));
        None
    }

    async fn ensure(&mut self, session_id: &str) -> Result<(), String> {
        let body = json!({ "session_id": session_id });
        let ensured = self.insist("session::ensure", &body).await;
        ensured.map(|_| ()).ok_or_else(|| self.history.laws_broken().join("; "))
    }

    async fn append_known(&mut self, session_id: &str, entry_id: &str, text: &str) -> Result<(), String> {
        let body = json!({ "session_id": session_id, "entry_id": entry_id, "message": user_message(text) });
        let appended = self.insist("session::append", &body).await;
        appended.map(|_| ()).ok_or_else(|| self.history.laws_broken().join("; "))
    }

    /// An append with an id of its own, repeated until it is done: once in the transcript, however often it was sent.
    async fn append_repeated(&mut self) {
        let (session_id, text) = (self.some_session(), self.next_text());
        let body = json!({ "session_id": session_id, "entry_id": text, "message": user_message(&text) });
        if self.insist("session::append", &body).await.is_some() {
            self.history.acknowledged();
            self.history.append(&session_id, Write { client: self.id, text: text.clone(), fate: Fate::Done });
            self.last_entry = Some((session_id, text));
        }
    }

    /// An append without an id, sent once: whatever the nodes did to get it through, it is there once.
    async fn append_once(&mut self) {
        let (session_id, text) = (self.some_session(), self.next_text());
        let body = json!({ "session_id": session_id, "message": user_message(&text) });
        let Some(heard) = self.call("session::append", &body).await else { return };
        let fate = self.fate(&heard);
        self.history.append(&session_id, Write { client: self.id, text, fate });
        if let Heard::Answer(appended) = heard
            && let Some(entry_id) = appended["entry_id"].as_str()
        {
            self.last_entry = Some((session_id, entry_id.to_owned()));
        }
    }

    async fn create(&mut self) {
        let text = self.next_text();
        let body = json!({ "title": text, "metadata": { "trial": self.history.name, "tag": text } });
        let Some(heard) = self.call("session::create", &body).await else { return };
        let fate = self.fate(&heard);
        self.history.create(Write { client: self.id, text, fate });
    }

    fn fate(&self, heard: &Heard) -> Fate {
        match heard {
            Heard::Answer(_) => {
                self.history.acknowledged();
                Fate::Done
            }
            Heard::Unknown(_) => Fate::Unknown,
            Heard::Refused(_) | Heard::NotDone(_) => Fate::NotDone,
        }
    }

    /// Compare and set, against every other client.
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
        let Some(heard) = self.call("session::update-message", &body).await else { return };
        let counter = &self.history.counters[nth];
        let answer = match heard {
            Heard::Answer(answer) => answer,
            Heard::Unknown(_) => return counter.may_have_made(floor + 1, &text),
            Heard::Refused(_) | Heard::NotDone(_) => return,
        };
        let revision = answer["revision"].as_u64().unwrap_or_default();
        let id = &counter.session_id;
        match answer["updated"].as_bool() {
            Some(true) if revision == floor + 1 => {
                self.history.acknowledged();
                self.history.check(counter.learn(revision, &text));
            }
            Some(false) if revision > floor => {}
            _other => {
                let law = format!("counter {id}: an update of revision {floor} was answered with {answer}");
                return self.history.broken(law);
            }
        }
        counter.floor.raise(revision);
    }

    /// A read sees what was acknowledged or read anywhere before it began.
    async fn read_counter(&mut self) {
        let Some(nth) = self.some_counter() else { return };
        let (floor, body) = {
            let counter = &self.history.counters[nth];
            let body = json!({ "session_id": counter.session_id, "entry_id": counter.entry_id });
            (counter.floor.get(), body)
        };
        let Some(Heard::Answer(answer)) = self.call("session::get-message", &body).await else { return };
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
            self.history.check(counter.learn(revision, &text));
        }
        counter.floor.raise(revision);
    }

    /// Updates without a revision, by one writer: each counts up by one, once.
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
        let Some(heard) = self.call("session::update-message", &body).await else { return };
        match heard {
            Heard::Answer(answer) => {
                let revision = answer["revision"].as_u64().unwrap_or_default();
                let (least, most) = (self.stream.revision + 1, self.stream.revision + 1 + self.stream.unknown);
                if answer["updated"] != true || revision < least || revision > most {
                    let law = format!("{session_id}: an update was answered {answer}, not revision {least} to {most}");
                    self.history.broken(law);
                }
                self.history.acknowledged();
                // An update with an unknown outcome may still be on its way.
                self.stream.unknown = self.stream.unknown.saturating_sub(revision.saturating_sub(least));
                self.stream.revision = revision;
            }
            Heard::Unknown(_) => self.stream.unknown += 1,
            Heard::Refused(_) | Heard::NotDone(_) => {}
        }
    }

    /// What one node acknowledged, any node has.
    async fn read_own_entry(&mut self) {
        let Some((session_id, entry_id)) = self.last_entry.clone() else { return };
        let body = json!({ "session_id": session_id, "entry_id": entry_id });
        let Some(Heard::Answer(answer)) = self.call("session::get-message", &body).await else { return };
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

/// Small, even, and the same for the same seed: all a load needs of randomness.
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
