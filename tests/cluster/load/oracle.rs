//! Owns: the laws that must hold when a load is over and every node runs again: no acknowledged write is lost, no write
//! is stored twice, no refused write is stored, and all nodes return the same transcripts.
//! Never: the load itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::caller::{Caller, Nodes};
use super::clients::read_message;
use super::history::{Fate, History, Write};
use crate::http_call::Outcome;

/// A cluster whose last node has just come back may still hold an election.
const SETTLE_MAX: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// Reads back the state from every node. Returns the violations found during the load, then those found now.
pub async fn violations(history: &History, nodes: &[SocketAddr]) -> Vec<String> {
    let mut broken = history.laws_broken();
    let mut first: Option<BTreeMap<String, Vec<(String, String)>>> = None;
    for node in nodes {
        let mut reader = Reader { caller: Caller::new(Nodes::new(vec![*node]), 0, SETTLE_MAX), node: *node };
        match reader.check(history, &mut broken).await {
            Ok(transcripts) => match &first {
                None => first = Some(transcripts),
                Some(first) if *first == transcripts => {}
                Some(_) => broken.push(format!("{node} and {} return different transcripts", nodes[0])),
            },
            Err(why) => broken.push(format!("{node} could not be read: {why}")),
        }
    }
    broken
}

struct Reader {
    caller: Caller,
    node: SocketAddr,
}

impl Reader {
    async fn check(
        &mut self,
        history: &History,
        broken: &mut Vec<String>,
    ) -> Result<BTreeMap<String, Vec<(String, String)>>, String> {
        let mut transcripts = BTreeMap::new();
        for (session_id, writes) in history.appends() {
            let transcript = self.transcript(&session_id).await?;
            let texts: Vec<&str> = transcript.iter().map(|(_, text)| text.as_str()).collect();
            broken.extend(check_writes(&writes, &texts).into_iter().map(|why| format!("{session_id}: {why}")));
            let session = self.ask("session::get", json!({ "session_id": session_id })).await?;
            let counted = session["meta"]["message_count"].as_u64();
            if counted != Some(transcript.len() as u64) {
                let reached = transcript.len();
                broken.push(format!(
                    "{session_id}: message_count is {counted:?}, but the transcript has {reached} messages"
                ));
            }
            transcripts.insert(session_id, transcript);
        }
        let created = self.created(&history.name).await?;
        let tags: Vec<&str> = created.iter().map(String::as_str).collect();
        broken.extend(check_each_once(&history.creates(), &tags).into_iter().map(|why| format!("created: {why}")));
        for counter in &history.counters {
            let ask = json!({ "session_id": counter.session_id, "entry_id": counter.entry_id });
            let answer = self.ask("session::get-message", ask).await?;
            let Some((revision, text)) = read_message(&answer) else {
                return Err(format!("counter {} is lost: {answer}", counter.session_id));
            };
            if revision > 0 {
                broken.extend(counter.record(revision, &text).err());
            }
            broken.extend(counter.dense_up_to(revision).err());
        }
        Ok(transcripts)
    }

    /// Retries a read until the node answers.
    async fn ask(&mut self, function: &str, body: Value) -> Result<Value, String> {
        let begun = Instant::now();
        loop {
            match self.caller.call(function, &body).await {
                Outcome::Answered(answer) => return Ok(answer),
                Outcome::Refused { code, message } => {
                    return Err(format!("{function} at {}: {code}: {message}", self.node));
                }
                Outcome::Unavailable(why) | Outcome::Unknown(why) if begun.elapsed() > SETTLE_MAX => return Err(why),
                Outcome::Unavailable(_) | Outcome::Unknown(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Entry ids and texts, oldest first.
    async fn transcript(&mut self, session_id: &str) -> Result<Vec<(String, String)>, String> {
        let mut items = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let ask = json!({ "session_id": session_id, "limit": 500, "cursor": cursor });
            let page = self.ask("session::messages", ask).await?;
            for item in page["messages"].as_array().into_iter().flatten() {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                items.push((text(&item["entry_id"]), text(&item["message"]["content"][0]["text"])));
            }
            cursor = page["next_cursor"].clone();
            if cursor.is_null() {
                return Ok(items);
            }
        }
    }

    /// The tags of all sessions that the load created.
    async fn created(&mut self, load: &str) -> Result<Vec<String>, String> {
        let mut tags = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let ask = json!({ "metadata": { "load": load }, "order": "created_asc", "limit": 500, "cursor": cursor });
            let page = self.ask("session::list", ask).await?;
            for session in page["sessions"].as_array().into_iter().flatten() {
                tags.push(session["metadata"]["tag"].as_str().unwrap_or_default().to_owned());
            }
            cursor = page["next_cursor"].clone();
            if cursor.is_null() {
                return Ok(tags);
            }
        }
    }
}

/// The laws of one session's transcript.
fn check_writes(writes: &[Write], texts: &[&str]) -> Vec<String> {
    let mut broken = check_each_once(writes, texts);
    // A client sends one write at a time, so the transcript has its acknowledged writes in the order it sent them.
    let place: BTreeMap<&str, usize> = texts.iter().enumerate().map(|(at, text)| (*text, at)).collect();
    let mut last: BTreeMap<usize, usize> = BTreeMap::new();
    for write in writes.iter().filter(|write| write.fate == Fate::Acknowledged) {
        let Some(at) = place.get(write.text.as_str()) else { continue };
        if let Some(before) = last.insert(write.client, *at)
            && before > *at
        {
            broken.push(format!("{:?} is before an earlier write of the same client", write.text));
        }
    }
    broken
}

fn check_each_once(writes: &[Write], texts: &[&str]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for text in texts {
        *times.entry(text).or_default() += 1;
    }
    for write in writes {
        let (text, count) = (&write.text, times.get(write.text.as_str()).copied().unwrap_or_default());
        match (write.fate, count) {
            (Fate::Acknowledged, 0) => broken.push(format!("{text:?} was acknowledged but is lost")),
            (Fate::NotExecuted, 1) => broken.push(format!("{text:?} was refused but is stored")),
            (_, 0 | 1) => {}
            (_, count) => broken.push(format!("{text:?} is stored {count} times")),
        }
    }
    let sent: BTreeSet<&str> = writes.iter().map(|write| write.text.as_str()).collect();
    broken.extend(
        times
            .keys()
            .filter(|text| !sent.contains(*text))
            .map(|text| format!("{text:?} is stored but no client sent it")),
    );
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(client: usize, text: &str, fate: Fate) -> Write {
        Write { client, text: text.to_owned(), fate }
    }

    #[test]
    fn lost_doubled_refused_and_foreign_writes_are_found() {
        let writes = [
            write(0, "lost", Fate::Acknowledged),
            write(0, "doubled", Fate::Acknowledged),
            write(0, "refused", Fate::NotExecuted),
            write(0, "perhaps", Fate::Unknown),
            write(0, "perhaps not", Fate::Unknown),
        ];
        let broken = check_each_once(&writes, &["doubled", "doubled", "refused", "perhaps", "foreign"]);
        assert_eq!(broken.len(), 4, "{broken:?}");
        for word in ["lost", "doubled", "refused", "foreign"] {
            assert!(broken.iter().any(|why| why.contains(word)), "{word}: {broken:?}");
        }
    }

    #[test]
    fn writes_of_one_client_keep_their_order() {
        let writes =
            [write(0, "a", Fate::Acknowledged), write(1, "x", Fate::Acknowledged), write(0, "b", Fate::Acknowledged)];
        assert!(check_writes(&writes, &["a", "b", "x"]).is_empty());
        assert_eq!(check_writes(&writes, &["b", "a", "x"]).len(), 1);
    }
}
