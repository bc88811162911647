//! Owns: the events of a session as server-sent events: one frame per event with its number, in one `data` line.

use std::collections::VecDeque;
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use serde_json::json;
use tokio::time::timeout;

use super::backlog::{self, Edge};
use super::desk::Fresh;
use super::error::ModelError;
use super::follow::{Follow, Streamed, Subject, read};
use super::login::Caller;
use crate::surface::event_stream::{Printer, event_stream};
use crate::surface::subscribe::Ended;

/// How often a quiet stream says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a client waits before it connects again, in milliseconds.
const RETRY_MS: u32 = 500;
/// Events that are looked through for the turn of an adapter.
const SCANNED_MAX: u64 = 2000;

/// What a stream is for.
enum Shows {
    /// All events of the session, with pings.
    Session,
    /// The turn of one message, until it ends.
    Turn { message_id: String, has_begun: bool },
}

struct SessionPrinter {
    follow: Follow,
    shows: Shows,
    ended: Ended,
    done: bool,
}

/// `GET …/events`: what the client missed, then what happens.
pub async fn events(subject: Subject, seen: Option<u64>, ended: Ended) -> Result<Response, ModelError> {
    let session = subject.session.clone();
    let (mut follow, edge) = Follow::open(subject).await?;
    let (begin, compacted) = first(&follow.subject, seen, edge).await?;
    follow.start_after(begin);
    let ready = json!({ "sessionId": session, "nextEventId": edge.last + 1 });
    let mut head = format!("retry: {RETRY_MS}\nevent: ready\ndata: {ready}\n\n");
    if let Some(oldest) = compacted {
        head.push_str(&format!("event: compacted\ndata: {}\n\n", json!({ "oldest": oldest })));
    }
    Ok(event_stream(head, SessionPrinter { follow, shows: Shows::Session, ended, done: false }))
}

/// Where a stream begins.
pub async fn first(subject: &Subject, seen: Option<u64>, edge: Edge) -> Result<(u64, Option<u64>), ModelError> {
    let is_adapter = matches!(subject.caller, Caller::Channel { .. });
    if is_adapter && seen.is_none_or(|seen| seen > edge.last) {
        let mut after = edge.last.saturating_sub(SCANNED_MAX).max(edge.oldest.saturating_sub(1));
        let mut events = Vec::new();
        loop {
            let (page, _) = read(subject, Some(after), Fresh::Linearizable).await?;
            let Some(last) = page.last() else { break };
            after = last.id;
            events.extend(page.into_iter().map(|event| Streamed { text: String::new(), ..event }));
            if after >= edge.last {
                break;
            }
        }
        return Ok((backlog::begin_of_adapter(&events, edge), None));
    }
    let begin = backlog::begin(seen, edge);
    Ok((begin.after, begin.compacted))
}

/// `POST …/messages?stream=true`: the turn of a message. One that was posted before is looked for among older events.
pub fn turn(follow: Follow, message_id: String, is_old: bool, ended: Ended) -> Response {
    let session = follow.subject.session.clone();
    let ack = json!({ "type": "message_ack", "sessionId": session, "messageId": message_id });
    let begin = format!("event: message_ack\ndata: {ack}\n\n");
    event_stream(
        begin,
        SessionPrinter { follow, shows: Shows::Turn { message_id, has_begun: !is_old }, ended, done: false },
    )
}

impl Printer for SessionPrinter {
    async fn print_next(&mut self) -> Option<VecDeque<Bytes>> {
        if self.done {
            return None;
        }
        Some(VecDeque::from([Bytes::from(self.next_event().await?)]))
    }
}

impl SessionPrinter {
    async fn next_event(&mut self) -> Option<String> {
        loop {
            let ended = self.ended.clone();
            let next = tokio::select! {
                next = timeout(HEARTBEAT, self.follow.next()) => next,
                () = ended => return None,
            };
            let event = match next {
                Ok(Ok(event)) => event,
                // The session is gone, or this node stops. The client connects again, here or elsewhere.
                Ok(Err(_)) => return None,
                Err(_) => return Some(self.heartbeat()),
            };
            if let Shows::Turn { message_id, has_begun } = &mut self.shows {
                let is_mine = event.correlation.as_ref() == Some(&*message_id);
                *has_begun |= is_mine;
                if !is_mine && (event.correlation.is_some() || !*has_begun) {
                    continue;
                }
                self.done = is_mine && event.kind == "agent_end";
            }
            return Some(frame(&event));
        }
    }

    fn heartbeat(&self) -> String {
        match self.shows {
            Shows::Session => {
                let ping = json!({ "sessionId": self.follow.subject.session });
                format!("event: ping\ndata: {ping}\n\n")
            }
            // A client of a turn would take a ping for an event, and skips comments.
            Shows::Turn { .. } => ": quiet\n\n".to_owned(),
        }
    }
}

/// Our own JSON is one line.
fn frame(event: &Streamed) -> String {
    format!("id: {}\nevent: {}\ndata: {}\n\n", event.id, event.kind, event.text)
}
