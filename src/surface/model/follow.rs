//! Owns: following the events of one session: pages of the stored stream, and waiting for more.
//! Every node reads its own applied state. The change feed only says when to look, so a lost notice loses no event.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::backlog::Edge;
use super::desk::{Desk, Fresh, own_identity};
use super::error::ModelError;
use super::login::Caller;
use crate::events::stream::Stream;
use crate::machine::event::EventKind;
use crate::machine::model::names::store_id;
use crate::surface::http::Port;
use crate::surface::subscribe::{self, Asked};

/// Events that are read at once.
const PAGE: usize = 200;

/// A session, and on whose behalf it is read.
#[derive(Clone)]
pub struct Subject {
    pub port: Port,
    pub agent: String,
    pub session: String,
    pub caller: Caller,
}

impl Subject {
    /// The body of a call about the session.
    pub fn body(&self) -> Value {
        let mut body = json!({ "agent_id": self.agent, "session_id": self.session });
        if let Some(caller) = self.caller.field() {
            body["caller"] = caller;
        }
        body
    }

    pub async fn call(&self, function: &str, body: &Value, fresh: Fresh) -> Result<String, ModelError> {
        let called = Desk { port: &self.port }.call(function, body, fresh).await;
        called.map_err(|error| ModelError::of_call(error, &self.session))
    }
}

/// One event of a session's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Streamed {
    pub id: u64,
    pub kind: String,
    /// The message whose turn it belongs to.
    pub correlation: Option<String>,
    /// JSON.
    pub text: String,
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    events: Vec<Row<'a>>,
    oldest: u64,
    last: u64,
}

#[derive(Deserialize)]
struct Row<'a> {
    event_id: u64,
    #[serde(borrow)]
    event: &'a RawValue,
}

#[derive(Deserialize)]
struct Head {
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "correlationId")]
    correlation: Option<String>,
}

pub struct Follow {
    pub subject: Subject,
    after: u64,
    waiting: VecDeque<Streamed>,
    notices: Stream,
}

impl Follow {
    /// Begins to follow a session, after its last event. Also says what the stream holds.
    pub async fn open(subject: Subject) -> Result<(Follow, Edge), ModelError> {
        let asked = Asked {
            session: Some(store_id(&subject.agent, &subject.session).as_str().to_owned()),
            types: [EventKind::ProfileEvent, EventKind::Deleted].map(|kind| kind.trigger_type().to_owned()).into(),
            ..Asked::default()
        };
        // First the notices, so that nothing that comes after the first look is missed.
        let opened = subscribe::open(subject.port.bus.feed(), asked, &own_identity()).await;
        let notices = opened.map_err(|error| ModelError::Unavailable(error.to_string()))?;
        let (_, edge) = read(&subject, None, Fresh::Linearizable).await?;
        Ok((Follow { subject, after: edge.last, waiting: VecDeque::new(), notices }, edge))
    }

    /// Goes on after another event.
    pub fn start_after(&mut self, event_id: u64) {
        self.after = event_id;
        self.waiting.clear();
    }

    /// The next event that is stored already; `None` if there is none.
    pub async fn stored(&mut self) -> Result<Option<Streamed>, ModelError> {
        if self.waiting.is_empty() {
            let (events, _) = read(&self.subject, Some(self.after), Fresh::Local).await?;
            if let Some(last) = events.last() {
                self.after = last.id;
            }
            self.waiting.extend(events);
        }
        Ok(self.waiting.pop_front())
    }

    /// Waits for the next event. An error is the end: the session is gone, or this node stops.
    pub async fn next(&mut self) -> Result<Streamed, ModelError> {
        loop {
            if let Some(event) = self.stored().await? {
                return Ok(event);
            }
            // A feed that caught up may have missed notices of deltas, which it does not keep.
            self.notices.follow().await;
            while self.notices.try_next().is_some() {}
        }
    }
}

/// One page of the stored stream.
pub async fn read(subject: &Subject, after: Option<u64>, fresh: Fresh) -> Result<(Vec<Streamed>, Edge), ModelError> {
    let mut body = subject.body();
    body["limit"] = Value::from(PAGE);
    if let Some(after) = after {
        body["after"] = Value::from(after);
    }
    let text = subject.call("session::profile::events", &body, fresh).await?;
    let unreadable = |error: serde_json::Error| ModelError::Failed(format!("the stream cannot be read: {error}"));
    let page: Page<'_> = serde_json::from_str(&text).map_err(unreadable)?;
    let mut events = Vec::with_capacity(page.events.len());
    for row in page.events {
        let head: Head = serde_json::from_str(row.event.get()).map_err(unreadable)?;
        events.push(Streamed {
            id: row.event_id,
            kind: head.kind,
            correlation: head.correlation,
            text: row.event.get().to_owned(),
        });
    }
    Ok((events, Edge { oldest: page.oldest, last: page.last }))
}
