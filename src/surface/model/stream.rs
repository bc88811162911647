//! Owns: the events of a session as server-sent events: one frame per event with its number, in one `data` line.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde_json::json;
use tokio::time::timeout;

use super::backlog::{self, Edge};
use super::desk::Fresh;
use super::error::ModelError;
use super::follow::{Follow, Streamed, Subject, read};
use super::login::Caller;
use crate::surface::subscribe::Ended;

/// How often a quiet stream says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a client waits before it connects again, in milliseconds.
const RETRY_MS: u32 = 500;
/// The largest piece that is handed to a connection at once.
const PIECE_BYTES: usize = 64 << 10;
/// Events that are looked through for the turn of an adapter.
const SCANNED_MAX: u64 = 2000;

/// What a stream is for.
enum Shows {
    /// All events of the session, with pings.
    Session,
    /// The turn of one message, until it ends.
    Turn { message_id: String, has_begun: bool },
}

struct Printer {
    follow: Follow,
    shows: Shows,
    ended: Ended,
    waiting: VecDeque<Bytes>,
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
    Ok(response(Printer { follow, shows: Shows::Session, ended, waiting: text(head), done: false }))
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
    let waiting = text(format!("event: message_ack\ndata: {ack}\n\n"));
    response(Printer { follow, shows: Shows::Turn { message_id, has_begun: !is_old }, ended, waiting, done: false })
}

fn response(printer: Printer) -> Response {
    let chunk = |mut printer: Printer| async move { printer.piece().await.map(|piece| (piece, printer)) };
    let pieces = futures::stream::unfold(printer, chunk);
    let body = Body::from_stream(futures::StreamExt::map(pieces, Ok::<_, Infallible>));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn text(text: String) -> VecDeque<Bytes> {
    VecDeque::from([Bytes::from(text)])
}

impl Printer {
    async fn piece(&mut self) -> Option<Bytes> {
        loop {
            if let Some(first) = self.waiting.front_mut() {
                let piece = first.split_to(first.len().min(PIECE_BYTES));
                if first.is_empty() {
                    self.waiting.pop_front();
                }
                return Some(piece);
            }
            if self.done {
                return None;
            }
            let printed = self.print_next().await?;
            self.waiting = text(printed);
        }
    }

    async fn print_next(&mut self) -> Option<String> {
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
