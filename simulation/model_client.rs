//! Owns: the clients of the session model in a run: they open sessions, post to them, run the turns that this asks for,
//! decide about tool calls, and make checkpoints. Nothing else writes to these sessions.
//! Never: checks of answers; the oracle `model` does that.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::{Client, lock};

/// The agent, and its sessions: two people and a group.
const AGENT: &str = "main";
const SESSIONS: [(&str, &str); 3] = [("cli:a", "direct"), ("web:b", "direct"), ("telegram:c", "group")];

impl Client {
    /// Calls until the run stops the clients.
    pub async fn run_model(mut self) {
        while !self.common.stops() {
            self.act_on_model().await;
            tokio::time::sleep(self.chance.millis(1, 40)).await;
        }
        self.common.clients_done.fetch_add(1, Ordering::SeqCst);
    }

    async fn act_on_model(&mut self) {
        let (session_id, session_type) = self.chance.pick(&SESSIONS).copied().unwrap_or(SESSIONS[0]);
        match self.chance.below(24) {
            0..=2 => self.open(session_id, session_type).await,
            3..=7 => self.post(session_id).await,
            8 => self.note(session_id).await,
            9..=11 => self.take_turn().await,
            12..=16 if self.driven.is_empty() => self.take_turn().await,
            12..=16 => self.answer_turn().await,
            17 => self.decide(session_id).await,
            18 => self.checkpoint(session_id).await,
            19 | 20 => self.look_back(session_id).await,
            21 | 22 => {
                drop(self.call("session::profile::events", self.at(session_id, json!({ "after": 0 })), true).await);
            }
            _last => self.leave(session_id).await,
        }
    }

    fn at(&self, session_id: &str, mut body: Value) -> Value {
        body["agent_id"] = json!(AGENT);
        body["session_id"] = json!(session_id);
        body
    }

    async fn open(&mut self, session_id: &str, session_type: &str) {
        let source = json!({ "kind": "cli", "interactive": true, "type": session_type });
        let request = self.at(session_id, json!({ "source": source, "metadata": { "by": self.id } }));
        self.call("session::open", request, true).await;
    }

    /// A message has an id of its own, so that a repeated post is the same message.
    fn message(&mut self) -> Value {
        let text = self.words();
        let sender = json!({ "channel": "web", "channelUserId": format!("u{}", self.chance.below(3)) });
        let message_id = format!("{} {}", self.id, self.written);
        json!({ "text": text, "messageId": message_id, "sender": sender, "mentioned": self.chance.one_in(2) })
    }

    async fn post(&mut self, session_id: &str) {
        let message = self.message();
        let answer = self.call("session::post", self.at(session_id, json!({ "message": message })), true).await;
        if let Some(turn_id) = answer.as_ref().and_then(|answer| answer["turn_id"].as_str()) {
            lock(&self.common.model_turns).push(turn_id.to_owned());
        }
    }

    async fn note(&mut self, session_id: &str) {
        let mut message = self.message();
        if self.chance.one_in(2) {
            message["appendAs"] = json!("assistant");
        }
        let request = self.at(session_id, json!({ "message": message, "mode": "append" }));
        self.call("session::post", request, true).await;
    }

    async fn take_turn(&mut self) {
        let known = lock(&self.common.model_turns).clone();
        // Turns run in the order of their messages: the newest wait.
        self.claim_one(&known[known.len().saturating_sub(8)..]).await;
    }

    /// The next batch of a turn: text, a question to a person, or the end.
    async fn answer_turn(&mut self) {
        let at = self.chance.below(self.driven.len());
        let mut events = Vec::new();
        if self.chance.one_in(2) {
            events.push(self.says(at));
        }
        if self.chance.one_in(6) {
            let call = format!("call {}", self.driven[at].n);
            events.push(json!({
                "type": "permission_requested", "requestId": call, "toolCallId": call, "toolName": "rm",
                "description": "",
            }));
        }
        let ends = events.is_empty() || self.chance.one_in(3);
        match (ends, self.chance.one_in(5)) {
            (true, true) => events.push(json!({ "type": "turn_error", "code": "AGENT_ERROR", "message": "no" })),
            (true, false) => events.push(json!({ "type": "turn_complete", "finalText": self.driven[at].said })),
            (false, _) => {}
        }
        self.send_batch(at, &events, ends).await;
    }

    async fn decide(&mut self, session_id: &str) {
        let tool_call_id = format!("call {}", self.chance.between(1, 4));
        let request = json!({ "tool_call_id": tool_call_id, "approved": self.chance.one_in(2) });
        self.call("session::approve", self.at(session_id, request), true).await;
    }

    async fn checkpoint(&mut self, session_id: &str) {
        let reason = if self.chance.one_in(4) { "new_session" } else { "manual" };
        self.call("session::checkpoint", self.at(session_id, json!({ "reason": reason })), false).await;
    }

    /// A worker takes the checkpoint that is under way, and mostly ends it.
    async fn look_back(&mut self, session_id: &str) {
        let profile = self.call("session::profile::get", self.at(session_id, json!({})), true).await;
        let underway = profile.as_ref().and_then(|profile| profile["checkpoint"]["underway"].as_str());
        let Some(checkpoint_id) = underway.map(str::to_owned) else { return };
        let request = json!({ "checkpoint_id": checkpoint_id, "driver_id": format!("worker {}", self.id) });
        let claimed = self.call("session::checkpoint::claim", request, true).await;
        if claimed.is_none_or(|answer| answer["claimed"] != true) || self.chance.one_in(5) {
            return;
        }
        let result = json!({
            "checkpoint_id": checkpoint_id, "success": !self.chance.one_in(3), "working_memory": self.words(),
            "description": self.words(), "summary": self.words(),
        });
        self.call("session::checkpoint::result", result, true).await;
    }

    async fn leave(&mut self, session_id: &str) {
        match self.chance.one_in(4) {
            true => drop(self.call("session::profile::delete", self.at(session_id, json!({})), true).await),
            false => drop(self.call("session::deactivate", self.at(session_id, json!({})), true).await),
        }
    }
}
