//! Owns: how clients ask for turns, claim them and send their batches.
//! Never: checks of answers; the oracles `turns` and `model` do that.

use serde_json::{Value, json};

use super::{Client, lock};

/// A turn that a client has claimed.
pub(super) struct Driven {
    turn_id: String,
    /// The number of its next batch.
    pub n: u64,
    pub said: String,
}

impl Client {
    pub(super) async fn ask_for_turn(&mut self) {
        let known = lock(&self.common.turn_sessions).clone();
        if known.len() < 2 {
            let request = json!({ "title": self.words() });
            let answer = self.call("session::create", request, false).await;
            if let Some(session_id) = answer.as_ref().and_then(|answer| answer["session_id"].as_str()) {
                lock(&self.common.turn_sessions).push(session_id.to_owned());
            }
            return;
        }
        let Some(session_id) = self.chance.pick(&known).cloned() else { return };
        let text = self.words();
        let request = json!({
            "session_id": session_id, "text": text, "client_turn_id": format!("{} {}", self.id, self.written),
            "refuse_if_busy": self.chance.one_in(3), "claim_within_ms": self.chance.between(200, 5_000),
        });
        if let Some(answer) = self.call("session::turn::ask", request, true).await
            && let Some(turn_id) = answer["turn_id"].as_str()
        {
            lock(&self.common.turns).push(turn_id.to_owned());
        }
    }

    pub(super) async fn claim(&mut self) {
        let known = lock(&self.common.turns).clone();
        // Mostly one of the newest: the others have ended.
        self.claim_one(&known[known.len().saturating_sub(6)..]).await;
    }

    /// Claims one of these turns. If it has batches already, another client runs it.
    pub(super) async fn claim_one(&mut self, turns: &[String]) {
        let Some(turn_id) = self.chance.pick(turns).cloned() else { return };
        let request = json!({ "turn_id": turn_id, "driver_id": format!("driver {}", self.id) });
        let answer = self.call("session::turn::claim", request, true).await;
        let is_new = self.driven.iter().all(|driven| driven.turn_id != turn_id);
        if answer.is_some_and(|answer| answer["claimed"] == true && answer["next_n"] == 1) && is_new {
            self.driven.push(Driven { turn_id, n: 1, said: String::new() });
        }
    }

    /// The next batch of a turn, sometimes the last one.
    pub(super) async fn emit(&mut self) {
        let at = self.chance.below(self.driven.len());
        let mut events = Vec::new();
        for _ in 0..self.chance.between(1, 4) {
            events.push(self.says(at));
        }
        let ends = self.chance.one_in(4);
        if ends {
            events.push(json!({ "type": "turn_complete", "finalText": self.driven[at].said }));
        }
        self.send_batch(at, &events, ends).await;
    }

    /// More text of a turn.
    pub(super) fn says(&mut self, at: usize) -> Value {
        let text = self.words();
        self.driven[at].said.push_str(&text);
        json!({ "type": "text_delta", "text": text })
    }

    /// Sends the next batch of a turn. A batch whose outcome is unknown is sent again.
    pub(super) async fn send_batch(&mut self, at: usize, events: &[Value], ends: bool) {
        let Driven { turn_id, n, .. } = &self.driven[at];
        let driver_id = format!("driver {}", self.id);
        let request = json!({ "turn_id": turn_id, "driver_id": driver_id, "n": n, "events": events });
        match self.call("session::turn::emit", request, true).await {
            Some(_) if !ends => self.driven[at].n += 1,
            // It has ended, it was taken away, or it is unknown whether the batch counts: this client leaves it.
            Some(_) | None => drop(self.driven.remove(at)),
        }
    }
}
