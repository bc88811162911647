//! Owns: a subscriber on the bus. It is bound to every event, moves between nodes at random or when a connection fails,
//! and resumes at its last position. Never: checks of what it receives; the oracles do that.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::time::{Instant, interval, timeout};
use tokio_tungstenite::tungstenite::Message;

use crate::determinism::Chance;
use crate::frames::{self, Socket, next, ping, send};
use crate::history::Place;
use crate::recorder::{Received, Recorder};
use crate::tenant::Tenant;
use crate::workload::Common;

/// How long connecting and binding may take.
const BIND_MAX: Duration = Duration::from_secs(2);
const PING_EVERY: Duration = Duration::from_millis(250);
/// A node that sends nothing for this long is down or cut off.
const SILENCE_MAX: Duration = Duration::from_millis(1_500);

pub struct Listener {
    pub id: usize,
    /// The hosts it may connect to: nodes, or the bridge.
    pub hosts: Vec<(u64, IpAddr)>,
    pub recorder: Recorder,
    pub common: Arc<Common>,
    pub chance: Chance,
    /// The position of the last received event, as text and as numbers.
    pub after: Option<(String, Place)>,
}

impl Listener {
    /// Connects and receives until the end of the run.
    pub async fn run(mut self) {
        loop {
            let (node, host) = self.hosts[self.chance.below(self.hosts.len())];
            match timeout(BIND_MAX, self.bind(node, host)).await {
                Ok(Ok((socket, subscription))) => self.listen(socket, subscription).await,
                Ok(Err(why)) => self.say(&format!("node {node} does not bind: {why}")),
                Err(_) => self.say(&format!("node {node} does not bind in time")),
            }
            tokio::time::sleep(self.chance.millis(10, 200)).await;
        }
    }

    fn say(&self, words: &str) {
        self.recorder.say(&format!("listener {}", self.id), words);
    }

    async fn bind(&mut self, node: u64, host: IpAddr) -> Result<(Socket, usize), String> {
        let mut socket = frames::connect(host, frames::request("/", Tenant::Everyone.token())).await?;
        expect(&mut socket, "workerregistered").await?;
        // The first client that registers a function id owns it, so each listener uses another id.
        let hear = format!("listener::hear-{}", self.id);
        send(&mut socket, json!({ "type": "registerfunction", "id": hear })).await?;
        let metadata = match &self.after {
            Some((position, _)) => json!({ "session-manager": { "after": position } }),
            None => json!({}),
        };
        let binding = json!({
            "type": "registertrigger", "id": format!("listener-{}", self.id), "trigger_type": "session::store::events",
            "function_id": hear, "config": {}, "metadata": metadata,
        });
        send(&mut socket, binding).await?;
        // Missed events may arrive before the answer to the binding.
        let mut early = Vec::new();
        let answer = loop {
            let frame = next(&mut socket).await?;
            if frame["type"] == "triggerregistrationresult" {
                break frame;
            }
            if frame["type"] == "registrationrejected" {
                // The node has not noticed that the earlier connection is lost, and would send the events there.
                return Err("the function belongs to an earlier connection".to_owned());
            }
            early.push(frame);
        };
        if let Some(error) = answer.get("error").filter(|error| !error.is_null()) {
            // The node does not keep events that far back: start without a position.
            self.after = None;
            return Err(error.to_string());
        }
        let subscription =
            self.recorder.bound(self.id, node, Tenant::Everyone, self.after.as_ref().map(|(_, place)| *place));
        for frame in early {
            self.hear(subscription, &frame)?;
        }
        Ok((socket, subscription))
    }

    async fn listen(&mut self, mut socket: Socket, subscription: usize) {
        let mut tick = interval(PING_EVERY);
        let mut heard = Instant::now();
        let leave_at = Instant::now() + self.chance.millis(1_000, 8_000);
        let why = loop {
            tokio::select! {
                message = socket.next() => match message {
                    Some(Ok(Message::Text(text))) => {
                        heard = Instant::now();
                        let read = serde_json::from_str(&text).map_err(|error| error.to_string());
                        if let Err(why) = read.and_then(|frame| self.hear(subscription, &frame)) {
                            break why;
                        }
                    }
                    Some(Ok(_)) => heard = Instant::now(),
                    Some(Err(error)) => break error.to_string(),
                    None => break "the node closed the connection".to_owned(),
                },
                _tick = tick.tick() => {
                    if heard.elapsed() > SILENCE_MAX {
                        break "no frame in time".to_owned();
                    }
                    if Instant::now() > leave_at && !self.common.stops() {
                        break "moves to another node".to_owned();
                    }
                    if let Err(why) = ping(&mut socket).await {
                        break why;
                    }
                }
            }
        };
        self.recorder.unbound(subscription, &why);
    }

    fn hear(&mut self, subscription: usize, frame: &Value) -> Result<(), String> {
        if frame["type"] != "invokefunction" {
            return Ok(());
        }
        let ours = &frame["metadata"]["session-manager"];
        let position = ours["position"].as_str().ok_or_else(|| format!("no position in {frame}"))?.to_owned();
        let place = place(&position).ok_or_else(|| format!("an invalid position in {frame}"))?;
        let seq = ours["seq"].as_u64().ok_or_else(|| format!("no seq in {frame}"))?;
        let payload = frame["data"]["payload"].clone();
        let kind = frame["data"]["trigger_type"].as_str().unwrap_or_default().to_owned();
        let session_id = payload["session_id"].as_str().unwrap_or_default().to_owned();
        let skipped = skipped(&ours["skipped"]);
        self.recorder.heard(subscription, Received { place, seq, skipped, kind, session_id, payload });
        self.after = Some((position, place));
        Ok(())
    }
}

/// The sequence numbers that were left out before an event.
pub fn skipped(range: &Value) -> Option<(u64, u64)> {
    Some((range["first"].as_u64()?, range["last"].as_u64()?))
}

/// `<cluster>.<group>.<index>.<ordinal>`.
pub fn place(position: &str) -> Option<Place> {
    let mut fields = position.rsplit('.');
    let ordinal = fields.next()?.parse().ok()?;
    let index = fields.next()?.parse().ok()?;
    Some(Place { index, ordinal })
}

async fn expect(socket: &mut Socket, kind: &str) -> Result<Value, String> {
    let frame = next(socket).await?;
    if frame["type"] == kind { Ok(frame) } else { Err(format!("{frame} instead of {kind}")) }
}
