//! Owns: filling a store over HTTP with sessions and transcripts of a given size.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::error::BenchError;
use super::http_client::Caller;
use super::progress::progress;
use super::target::Target;

/// Enough concurrent callers that one fsync serves many of them.
const CALLERS: usize = 128;
/// Messages in one `session::append-many`.
const BATCH: usize = 1_000;
/// The length of a message's text.
const TEXT_BYTES: usize = 1_024;

/// One session in four has the same owner, one in five is working, one in twenty both. Then every filter fills a page
/// of 50 in the small store too.
pub const OWNERS: usize = 4;
pub const WORKING: usize = 5;

#[derive(Deserialize)]
struct Created {
    session_id: String,
}

#[derive(Deserialize)]
struct Page {
    next_cursor: Option<String>,
}

/// Creates `count` sessions with many concurrent callers.
pub async fn build_sessions(node: SocketAddr, count: usize) -> Result<(), BenchError> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS.min(count) {
        let next = next.clone();
        callers.spawn(async move {
            let mut caller = Caller::connect(&Target::plain(node)).await?;
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                if nth >= count {
                    return Ok::<(), BenchError>(());
                }
                build_session(&mut caller, nth).await?;
                if nth.is_multiple_of(1_000) {
                    progress(&format!("building sessions: {nth} of {count}"));
                }
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(())
}

async fn build_session(caller: &mut Caller, nth: usize) -> Result<(), BenchError> {
    let owner = format!("u_{}", nth % OWNERS);
    let create = json!({ "title": format!("Session {nth}"), "metadata": { "owner": owner, "nth": nth } });
    let created: Created = caller.parsed("session::create", create.to_string()).await?;
    if (nth / OWNERS).is_multiple_of(WORKING) {
        let working = json!({ "session_id": created.session_id, "status": "working" });
        caller.call("session::set-status", working.to_string()).await?;
    }
    Ok(())
}

/// A session whose transcript has `count` messages.
pub async fn build_transcript(node: SocketAddr, count: usize) -> Result<String, BenchError> {
    let mut caller = Caller::connect(&Target::plain(node)).await?;
    let transcript = json!({ "title": "Transcript" });
    let created: Created = caller.parsed("session::create", transcript.to_string()).await?;
    let mut built = 0;
    while built < count {
        let batch = BATCH.min(count - built);
        let messages: Vec<Value> = (built..built + batch).map(message).collect();
        let append = json!({ "session_id": created.session_id, "messages": messages });
        caller.call("session::append-many", append.to_string()).await?;
        built += batch;
        progress(&format!("building a transcript: {built} of {count}"));
    }
    Ok(created.session_id)
}

fn message(nth: usize) -> Value {
    let text = format!("{nth:>0$}", TEXT_BYTES);
    json!({ "role": "user", "timestamp": nth, "content": [{ "type": "text", "text": text }] })
}

/// The cursor after the first `entries` messages of a transcript; `None` at its beginning.
pub async fn cursor_after(node: SocketAddr, session_id: &str, entries: usize) -> Result<Option<String>, BenchError> {
    let mut caller = Caller::connect(&Target::plain(node)).await?;
    let mut cursor = None;
    let mut passed = 0;
    while passed < entries {
        let limit = (entries - passed).min(500);
        let ask = json!({ "session_id": session_id, "limit": limit, "cursor": cursor });
        let page: Page = caller.parsed("session::messages", ask.to_string()).await?;
        let short = || BenchError::UnexpectedAnswer {
            call: "session::messages",
            answer: "the transcript is shorter than written".to_owned(),
        };
        cursor = Some(page.next_cursor.ok_or_else(short)?);
        passed += limit;
    }
    Ok(cursor)
}
