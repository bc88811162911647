//! Owns: the WebSocket of this door: requests with ids, their responses, and the events of sessions that were subscribed to.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{AbortHandle, JoinSet};

use super::error::ModelError;
use super::follow::{Follow, Streamed, Subject};
use super::login::Caller;
use super::{answer, stream};
use crate::surface::http::Port;
use crate::surface::socket::outbox::{Class, Outbox};
use crate::surface::socket::probe::Probe;
use crate::surface::socket::reader::{Incoming, Reader};
use crate::surface::socket::{self, CloseReason, Text};
use crate::surface::subscribe::Ended;

/// Sessions that one connection can be subscribed to.
const SUBSCRIPTIONS_MAX: usize = 256;
/// Requests of one connection that are answered at the same time. Further ones are not read meanwhile.
const REQUESTS_MAX: usize = 32;

#[derive(Deserialize)]
struct Asked {
    kind: Option<Value>,
    id: Option<Value>,
    method: Option<Value>,
    params: Option<Value>,
}

/// Serves a connection after its upgrade, until it ends.
pub async fn serve<S>(port: Port, connection: S, agent: String, caller: Caller, ended: Ended)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let settings = port.bus.settings();
    let (writer, mut reader) = socket::open(connection, settings.socket.clone(), port.bus.intake()).await;
    let outbox = Arc::new(Outbox::new(settings.outbox.clone(), port.bus.outgoing_bytes()));
    let mut connection = Connection {
        port: port.clone(),
        agent,
        caller,
        outbox: outbox.clone(),
        tasks: JoinSet::new(),
        followed: BTreeMap::new(),
    };
    let probe = Probe::default();
    let write = writer.run(&outbox, &probe, |_| None);
    tokio::pin!(write);
    tokio::select! {
        () = &mut write => {}
        close = connection.read(&mut reader) => {
            outbox.finish(close.code, close.reason);
            (&mut write).await;
        }
        () = ended => {
            outbox.finish(1001, "the node stops, or the credentials no longer hold: connect again");
            (&mut write).await;
        }
    }
    reader.finish().await;
    // What was not written is not waiting any more.
    outbox.take_results();
}

struct Connection {
    port: Port,
    agent: String,
    caller: Caller,
    outbox: Arc<Outbox>,
    /// Requests that are being answered, and subscriptions. They end with the connection.
    tasks: JoinSet<()>,
    followed: BTreeMap<String, AbortHandle>,
}

impl Connection {
    async fn read<S>(&mut self, reader: &mut Reader<S>) -> CloseReason
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            self.outbox.room().await;
            while self.tasks.try_join_next().is_some() {}
            while self.tasks.len() >= self.followed.len() + REQUESTS_MAX {
                self.tasks.join_next().await;
                self.followed.retain(|_, task| !task.is_finished());
            }
            match reader.next().await {
                Ok(Incoming::Text(text)) => self.handle(&text),
                Ok(Incoming::Binary(_)) => return CloseReason::new(1003, "send JSON text"),
                Ok(Incoming::Pong(_)) => {}
                Err(close) => return close,
            }
        }
    }

    fn handle(&mut self, text: &str) {
        let asked: Asked = match serde_json::from_str(text) {
            Ok(asked) => asked,
            Err(error) => {
                let refused = ModelError::Invalid(format!("this is not a request: {error}"));
                return respond(&self.outbox, "", Err(refused));
            }
        };
        let Some(Value::String(id)) = asked.id else { return respond(&self.outbox, "", Err(no_request())) };
        let (Some("request"), Some(Value::String(method))) =
            (asked.kind.as_ref().and_then(Value::as_str), asked.method)
        else {
            return respond(&self.outbox, &id, Err(no_request()));
        };
        let params = match asked.params {
            None | Some(Value::Null) => Value::Object(Map::new()),
            Some(params @ Value::Object(_)) => params,
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
                return respond(&self.outbox, &id, Err(ModelError::Invalid("params: give an object".to_owned())));
            }
        };
        let session = params.get("sessionId").and_then(Value::as_str).unwrap_or_default().to_owned();
        let needs_session = !matches!(method.as_str(), "session.list" | "session.open");
        if needs_session && session.is_empty() {
            return respond(&self.outbox, &id, Err(ModelError::Invalid("sessionId is missing".to_owned())));
        }
        let subject =
            Subject { port: self.port.clone(), agent: self.agent.clone(), session, caller: self.caller.clone() };
        match method.as_str() {
            "session.subscribe" => self.subscribe(id, subject, &params),
            "session.unsubscribe" => {
                self.followed.retain(|_, task| !task.is_finished());
                let result = match self.followed.remove(&subject.session) {
                    Some(task) => {
                        task.abort();
                        Ok(json!({ "unsubscribed": true }))
                    }
                    None => Err(ModelError::NotSubscribed(subject.session)),
                };
                respond(&self.outbox, &id, result);
            }
            _call => {
                let outbox = self.outbox.clone();
                self.tasks.spawn(async move {
                    let result = call(&method, &subject, params).await;
                    respond(&outbox, &id, result);
                });
            }
        }
    }

    /// Follows a session. A second subscription to it replaces the first.
    fn subscribe(&mut self, id: String, subject: Subject, params: &Value) {
        let seen = match params.get("lastEventId") {
            None | Some(Value::Null) => None,
            Some(value) => match value.as_u64() {
                Some(seen) => Some(seen),
                None => {
                    let why = "lastEventId: give the number of an event".to_owned();
                    return respond(&self.outbox, &id, Err(ModelError::Invalid(why)));
                }
            },
        };
        self.followed.retain(|_, task| !task.is_finished());
        if self.followed.len() >= SUBSCRIPTIONS_MAX && !self.followed.contains_key(&subject.session) {
            let why = format!("a connection follows at most {SUBSCRIPTIONS_MAX} sessions");
            return respond(&self.outbox, &id, Err(ModelError::Invalid(why)));
        }
        let session = subject.session.clone();
        let asked = Subscribing { outbox: self.outbox.clone(), id: Some(id), session: session.clone() };
        let task = self.tasks.spawn(follow(asked, subject, seen));
        if let Some(before) = self.followed.insert(session, task) {
            before.abort();
        }
    }
}

/// The request of a subscription. It has an answer even if a later request ends the subscription before it began.
struct Subscribing {
    outbox: Arc<Outbox>,
    /// Taken with the answer.
    id: Option<String>,
    session: String,
}

impl Subscribing {
    fn answer(&mut self, result: Result<Value, ModelError>) {
        if let Some(id) = self.id.take() {
            respond(&self.outbox, &id, result);
        }
    }
}

impl Drop for Subscribing {
    fn drop(&mut self) {
        let session = std::mem::take(&mut self.session);
        self.answer(Err(ModelError::NotSubscribed(session)));
    }
}

/// Sends what the client missed, then says so, then sends what happens.
async fn follow(mut asked: Subscribing, subject: Subject, seen: Option<u64>) {
    let (outbox, session) = (asked.outbox.clone(), subject.session.clone());
    let opened = async {
        let (mut follow, edge) = Follow::open(subject).await?;
        let (after, compacted) = stream::first(&follow.subject, seen, edge).await?;
        follow.start_after(after);
        if let Some(oldest) = compacted {
            let event = json!({ "type": "compacted", "sessionId": session, "oldest": oldest });
            let message = json!({ "kind": "event", "eventId": oldest - 1, "sessionId": session, "event": event });
            outbox.push(Text::from(message.to_string()), Class::Other);
        }
        let mut sent = after;
        while sent < edge.last {
            // This node may not have applied all of them yet.
            let event = follow.next().await?;
            sent = event.id;
            push(&outbox, &session, &event).await;
        }
        Ok::<_, ModelError>(follow)
    };
    let mut follow = match opened.await {
        Ok(follow) => follow,
        Err(error) => return asked.answer(Err(error)),
    };
    asked.answer(Ok(json!({ "subscribed": true })));
    while let Ok(event) = follow.next().await {
        push(&outbox, &session, &event).await;
    }
}

async fn push(outbox: &Outbox, session: &str, event: &Streamed) {
    outbox.room_for_events().await;
    let session = Value::from(session);
    let (id, event) = (event.id, &event.text);
    let text = format!("{{\"kind\":\"event\",\"eventId\":{id},\"sessionId\":{session},\"event\":{event}}}");
    outbox.push(Text::from(text), Class::Other);
}

async fn call(method: &str, subject: &Subject, params: Value) -> Result<Value, ModelError> {
    let parsed = |text: String| serde_json::from_str(&text).map_err(|error| ModelError::Failed(error.to_string()));
    match method {
        "session.open" => answer::open(subject, &params).await,
        "session.message" => {
            let posted = answer::post(subject, &params, "post").await?;
            Ok(posted.json(&subject.session))
        }
        "session.approve" => answer::approve(subject, &params).await,
        "session.checkpoint" => answer::checkpoint(subject, &params).await,
        "session.delete" => answer::delete(subject).await,
        "session.history" => answer::history(subject).await.and_then(parsed),
        "session.list" => {
            let Value::Object(mut filters) = params else { return Err(ModelError::Query) };
            filters.retain(|name, _| FILTERS.contains(&name.as_str()));
            if filters.get("limit").is_some_and(|limit| limit.as_u64().is_none_or(|limit| limit == 0)) {
                return Err(ModelError::Invalid("limit: give a whole number above 0".to_owned()));
            }
            if let Some(Value::Object(metadata)) = filters.get_mut("metadata") {
                metadata.values_mut().for_each(as_text);
            }
            answer::list(subject, filters).await.and_then(parsed)
        }
        other => Err(ModelError::Invalid(format!("{other:?} is no method of this door"))),
    }
}

/// Metadata is compared as text, so that a filter finds a number or a boolean however a client writes it.
fn as_text(value: &mut Value) {
    if value.is_number() || value.is_boolean() {
        *value = Value::from(value.to_string());
    }
}

const FILTERS: [&str; 7] = ["kind", "platform", "interactive", "limit", "channel", "metadata", "includeInactive"];

fn no_request() -> ModelError {
    ModelError::Invalid("send {\"kind\":\"request\",\"id\":\"…\",\"method\":\"…\",\"params\":{…}}".to_owned())
}

fn respond(outbox: &Outbox, id: &str, result: Result<Value, ModelError>) {
    let message = match result {
        Ok(result) => json!({ "kind": "response", "id": id, "result": result }),
        Err(error) => {
            let error = json!({ "code": error.socket_code(), "message": error.to_string() });
            json!({ "kind": "response", "id": id, "error": error })
        }
    };
    outbox.push(Text::from(message.to_string()), Class::Other);
}
