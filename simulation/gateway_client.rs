//! Owns: the clients of the gateway: front-ends that follow two sessions at one node after another and resume with their
//! last numbers, one of which asks for turns, and a driver that runs the turns. All speak to the WebSocket door of nodes.
//! Never: checks of what they receive; the oracle `gateway` does that.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::Message;

use crate::determinism::Chance;
use crate::frames::{self, Socket, next, ping, send};
use crate::history::GatewayFrame;
use crate::recorder::Recorder;
use crate::workload::Common;

/// The token of all front-ends and of the driver. The file of the nodes has the hash of it, and its tenant.
const TOKEN: &str = "simulated-front-end";
const FOLLOWERS: usize = 3;
/// The first front-end asks for turns.
const ASKER: usize = 0;
const SESSIONS: usize = 2;
/// How long connecting may take, and any answer of the node.
const CONNECT_MAX: Duration = Duration::from_secs(2);
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// How often a front-end looks around, and how long a node may be silent.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const SILENCE_MAX: Duration = Duration::from_millis(1_500);

/// What the clients of the gateway share: the sessions, once they exist.
type Sessions = Arc<Mutex<Vec<String>>>;

/// Starts all of them.
pub fn start(nodes: &[(u64, IpAddr)], recorder: &Recorder, common: &Arc<Common>, seed: u64) {
    let sessions = Sessions::default();
    for id in 0..=FOLLOWERS {
        let client = GatewayClient {
            id,
            nodes: nodes.to_vec(),
            recorder: recorder.clone(),
            common: common.clone(),
            chance: Chance::new(seed, 400 + id as u64),
            sessions: sessions.clone(),
            last: BTreeMap::new(),
            asked: 0,
        };
        if id == FOLLOWERS {
            tokio::spawn(client.drive());
        } else {
            tokio::spawn(client.follow());
        }
    }
}

struct GatewayClient {
    id: usize,
    nodes: Vec<(u64, IpAddr)>,
    recorder: Recorder,
    common: Arc<Common>,
    chance: Chance,
    sessions: Sessions,
    /// By session: the last number that this client knows of.
    last: BTreeMap<String, u64>,
    asked: usize,
}

/// A connection that is authenticated.
struct Open {
    socket: Socket,
    node: u64,
}

/// A turn that the driver runs.
struct Running {
    turn_id: String,
    n: u64,
    left: u64,
    said: String,
    /// The batch that is not acknowledged.
    batch: Option<Value>,
}

impl GatewayClient {
    fn record(&self, node: u64, frame: Value) {
        self.recorder.gateway(GatewayFrame { client: self.id, node, at: Default::default(), frame });
    }

    async fn open(&mut self) -> Option<Open> {
        let (node, host) = self.nodes[self.chance.below(self.nodes.len())];
        match timeout(CONNECT_MAX, connect(host)).await {
            Ok(Ok(socket)) => Some(Open { socket, node }),
            failed => {
                let why = failed.map_or_else(|late| late.to_string(), |failed| failed.err().unwrap_or_default());
                self.recorder.say(&format!("front-end {}", self.id), &format!("node {node} does not open: {why}"));
                tokio::time::sleep(self.chance.millis(50, 300)).await;
                None
            }
        }
    }

    fn known_sessions(&self) -> Vec<String> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A front-end: until the end of the run.
    async fn follow(mut self) {
        loop {
            let Some(mut open) = self.open().await else { continue };
            let why = match self.join_all(&mut open).await {
                Ok(()) => self.listen(&mut open).await,
                Err(why) => why,
            };
            self.record(open.node, json!({ "type": "(lost)", "why": why }));
            tokio::time::sleep(self.chance.millis(10, 200)).await;
        }
    }

    async fn join_all(&mut self, open: &mut Open) -> Result<(), String> {
        // Not once the load is over: what is read in the end is compared with the whole log.
        if self.id == ASKER && !self.common.stops() && self.known_sessions().len() < SESSIONS {
            let name = format!("followed by front-ends, {}", self.chance.next());
            send(&mut open.socket, json!({ "type": "create_session", "agentType": "simulated", "name": name })).await?;
            let created = expect(&mut open.socket, "session_created").await?;
            let id = created["session"]["id"].as_str().ok_or("no id")?.to_owned();
            self.sessions.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        }
        for session in self.known_sessions() {
            self.join(open, &session).await?;
        }
        Ok(())
    }

    async fn join(&mut self, open: &mut Open, session: &str) -> Result<(), String> {
        let after = self.last.get(session).copied().unwrap_or(0);
        let message = json!({ "type": "join_session", "sessionId": session, "afterSeq": after });
        self.record(open.node, message.clone());
        send(&mut open.socket, message).await?;
        self.last.insert(session.to_owned(), after);
        Ok(())
    }

    /// Receives until the connection ends. Returns why it ended.
    async fn listen(&mut self, open: &mut Open) -> String {
        let (mut heard, mut look) = (Instant::now(), tokio::time::interval(LOOK_EVERY));
        let leave_at = Instant::now() + self.chance.millis(1_000, 5_000);
        loop {
            tokio::select! {
                message = open.socket.next() => match message {
                    Some(Ok(Message::Text(text))) => {
                        heard = Instant::now();
                        if let Err(why) = self.hear(open.node, &text) {
                            return why;
                        }
                    }
                    Some(Ok(_)) => heard = Instant::now(),
                    Some(Err(error)) => return error.to_string(),
                    None => return "the node closed the connection".to_owned(),
                },
                _tick = look.tick() => {
                    if heard.elapsed() > SILENCE_MAX {
                        return "no frame in time".to_owned();
                    }
                    if Instant::now() > leave_at && !self.common.stops() {
                        return "moves to another node".to_owned();
                    }
                    if let Err(why) = self.look(open).await {
                        return why;
                    }
                }
            }
        }
    }

    /// Joins new sessions, asks for turns, and shows that it is there.
    async fn look(&mut self, open: &mut Open) -> Result<(), String> {
        let known = self.known_sessions();
        for session in known.iter().filter(|session| !self.last.contains_key(*session)).cloned().collect::<Vec<_>>() {
            self.join(open, &session).await?;
        }
        if self.id == ASKER && !self.common.stops() {
            if known.len() < SESSIONS {
                return Err("creates another session".to_owned());
            }
            self.asked += 1;
            let session = self.chance.pick(&known).cloned();
            let message = match self.chance.below(8) {
                0..=2 => json!({
                    "type": "run_turn", "sessionId": session, "text": format!("question {}", self.asked),
                    "clientTurnId": format!("question {}", self.asked),
                }),
                3 if self.chance.one_in(4) => json!({ "type": "stop_turn", "sessionId": session }),
                4 => json!({ "type": "set_mode", "sessionId": session, "mode": "plan" }),
                _nothing => return ping(&mut open.socket).await,
            };
            send(&mut open.socket, message).await?;
        }
        ping(&mut open.socket).await
    }

    fn hear(&mut self, node: u64, text: &str) -> Result<(), String> {
        let frame: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let reached = match frame["type"].as_str().unwrap_or_default() {
            "gap" => frame["toSeq"].as_u64(),
            "replay_complete" => frame["lastSeq"].as_u64(),
            "error" => None,
            _event => frame["seq"].as_u64(),
        };
        let lost =
            frame["type"] == "error" && frame["message"].as_str().is_some_and(|why| why.contains("join it again"));
        let of_stream = reached.is_some() || frame["type"] == "state_snapshot" || frame["type"] == "error";
        if let (Some(reached), Some(session)) = (reached, frame["sessionId"].as_str()) {
            let last = self.last.entry(session.to_owned()).or_default();
            *last = reached.max(*last);
        }
        // A join whose head the node could not read is not answered: nothing of this session would come.
        let refused = frame["type"] == "error" && frame["code"] == "StorageUnavailable";
        if of_stream {
            self.record(node, frame);
        }
        if lost || refused { Err("a session cannot be followed here now".to_owned()) } else { Ok(()) }
    }

    /// The driver: until the run stops the clients.
    async fn drive(mut self) {
        let mut turns: Vec<Running> = Vec::new();
        while !self.common.stops() {
            let Some(mut open) = self.open().await else { continue };
            if let Err(why) = self.work(&mut open, &mut turns).await {
                self.recorder.say("driver", &format!("lost node {}: {why}", open.node));
            }
            tokio::time::sleep(self.chance.millis(10, 100)).await;
        }
    }

    async fn work(&mut self, open: &mut Open, turns: &mut Vec<Running>) -> Result<(), String> {
        let attach = json!({ "type": "attach_driver", "driver_id": "d", "agent_types": ["simulated"] });
        send(&mut open.socket, attach).await?;
        expect(&mut open.socket, "driver_attached").await?;
        let leave_at = Instant::now() + self.chance.millis(2_000, 8_000);
        while !self.common.stops() && Instant::now() < leave_at {
            match timeout(self.chance.millis(5, 60), next(&mut open.socket)).await {
                Ok(frame) => self.obey(open, turns, &frame?).await?,
                Err(_) if turns.is_empty() => ping(&mut open.socket).await?,
                Err(_) => {
                    let at = self.chance.below(turns.len());
                    self.emit(open, turns, at).await?;
                }
            }
        }
        Ok(())
    }

    async fn obey(&mut self, open: &mut Open, turns: &mut Vec<Running>, frame: &Value) -> Result<(), String> {
        match frame["type"].as_str().unwrap_or_default() {
            "driver_command" => {
                let accepted = json!({
                    "type": "command_result", "command_id": frame["command_id"], "accepted": true,
                });
                send(&mut open.socket, accepted).await
            }
            "turn_claimed" if frame["claimed"] == true && frame["next_n"] == 1 => {
                let turn_id = frame["turn_id"].as_str().unwrap_or_default().to_owned();
                if turns.iter().all(|turn| turn.turn_id != turn_id) {
                    let left = self.chance.between(2, 12);
                    turns.push(Running { turn_id, n: 1, left, said: String::new(), batch: None });
                }
                Ok(())
            }
            _other => Ok(()),
        }
    }

    /// Sends the next batch of a turn and waits until the node has it. A batch without an answer is sent again.
    async fn emit(&mut self, open: &mut Open, turns: &mut Vec<Running>, at: usize) -> Result<(), String> {
        let turn = &mut turns[at];
        let batch =
            turn.batch.get_or_insert_with(|| batch_of(turn.n, turn.left, &mut turn.said, &mut self.chance)).clone();
        let (turn_id, n) = (turn.turn_id.clone(), turn.n);
        send(&mut open.socket, json!({ "type": "emit", "turn_id": turn_id, "n": n, "events": batch })).await?;
        let until = Instant::now() + ANSWER_MAX;
        loop {
            let frame =
                tokio::time::timeout_at(until, next(&mut open.socket)).await.map_err(|late| late.to_string())??;
            match frame["type"].as_str().unwrap_or_default() {
                "emitted" if frame["turn_id"] == turn_id.as_str() && frame["next_n"] == n + 1 => {
                    let mut told = frame;
                    told["events"] = batch;
                    self.record(open.node, told);
                    let turn = &mut turns[at];
                    (turn.n, turn.left, turn.batch) = (n + 1, turn.left.saturating_sub(1), None);
                    if turn.left == 0 {
                        turns.remove(at);
                    }
                    return Ok(());
                }
                "error" if frame["code"] == "INVALID_MESSAGE" => {
                    // The turn has ended without it.
                    turns.remove(at);
                    return Ok(());
                }
                "error" => return Err(frame["message"].to_string()),
                _other => self.obey_later(open, &frame).await?,
            }
        }
    }

    /// A command that comes while a batch is on its way. Turns are claimed and begun when the driver is back.
    async fn obey_later(&mut self, open: &mut Open, frame: &Value) -> Result<(), String> {
        if frame["type"] != "driver_command" || frame["command"] == "run_turn" {
            return Ok(());
        }
        let accepted = json!({ "type": "command_result", "command_id": frame["command_id"], "accepted": true });
        send(&mut open.socket, accepted).await
    }
}

/// The events of a batch; the last one of a turn ends it.
fn batch_of(n: u64, left: u64, said: &mut String, chance: &mut Chance) -> Value {
    let mut events = Vec::new();
    for number in 0..chance.between(1, 4) {
        let words = format!("{n}.{number} ");
        match chance.below(6) {
            0 => {
                let call = format!("c{n}-{number}");
                events.push(json!({ "type": "tool_call", "toolCallId": call, "toolName": "ls", "args": { "n": n } }));
                events.push(json!({ "type": "tool_result", "toolCallId": call, "status": "success" }));
            }
            1 => events.push(json!({ "type": "terminal_stream", "data": words })),
            _more => {
                said.push_str(&words);
                events.push(json!({ "type": "text_delta", "text": words }));
            }
        }
    }
    if left <= 1 {
        events.push(json!({ "type": "turn_complete", "finalText": said.as_str() }));
    }
    Value::Array(events)
}

async fn connect(host: IpAddr) -> Result<Socket, String> {
    let mut socket = frames::connect(host, frames::request("/ws", TOKEN)).await?;
    expect(&mut socket, "authenticated").await?;
    Ok(socket)
}

/// The next frame of a type; skips others, except errors.
async fn expect(socket: &mut Socket, kind: &str) -> Result<Value, String> {
    let found = async {
        loop {
            let frame = next(socket).await?;
            if frame["type"] == kind {
                return Ok(frame);
            }
            if frame["type"] == "error" {
                return Err(frame.to_string());
            }
        }
    };
    timeout(ANSWER_MAX, found).await.map_err(|late| late.to_string())?
}
