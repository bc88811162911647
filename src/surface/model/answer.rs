//! Owns: the requests of this door: from the route and the body to calls of the node's functions, and back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

use super::desk::{Desk, Fresh, own_identity};
use super::error::{ModelError, json_response};
use super::follow::{Follow, Subject};
use super::login::{self, Caller};
use super::route::{Route, pairs};
use super::{socket, stream};
use crate::access::Identity;
use crate::requests::limits::RESPONSE_BYTES_MAX;
use crate::surface::http::{HttpError, Place, Port, read_body};
use crate::surface::socket::handshake;
use crate::surface::subscribe::{Ended, ended};

/// How long `wait=true` waits if the client does not say.
const WAIT_MS: u64 = 300_000;
/// The longest wait that a client can ask for: an hour.
const WAIT_MS_MAX: u64 = 3_600_000;
/// A checkpoint waits for the end of unfinished turns, and then some minutes for its worker.
const CHECKPOINT_MAX: Duration = Duration::from_secs(900);
/// How often the end of a checkpoint is looked for.
const CHECKPOINT_LOOK: Duration = Duration::from_millis(200);

/// Answers one request.
pub async fn answer(port: Port, request: Request, peer: SocketAddr) -> Response {
    answered(port, request, peer).await.unwrap_or_else(IntoResponse::into_response)
}

async fn answered(port: Port, request: Request, peer: SocketAddr) -> Result<Response, ModelError> {
    let route = Route::read(request.method(), request.uri().path())?;
    if let Route::Health { agent } = &route {
        let healthy = json!({ "agentId": agent, "ok": true, "status": "running" });
        return Ok(json_response(StatusCode::OK, healthy.to_string()));
    }
    let query = pairs(request.uri().query().unwrap_or_default())?;
    let headers = request.headers().clone();
    let (caller, identity) = enter(&port, &route, &headers, &query, peer).await?;
    let door = Entered { port, caller, identity, query };
    door.answer(route, request).await
}

async fn enter(
    port: &Port,
    route: &Route,
    headers: &HeaderMap,
    query: &[(String, String)],
    peer: SocketAddr,
) -> Result<(Caller, Arc<Identity>), ModelError> {
    let token = login::token(headers, query)?;
    let desk = Desk { port };
    let (caller, identity) = login::check(&desk, &port.credentials, route.agent(), &token, peer.ip()).await?;
    Ok((caller, identity.unwrap_or_else(own_identity)))
}

/// Upgrades a request to the WebSocket of this door.
pub async fn upgrade(port: Port, mut request: Request, peer: SocketAddr, place: Place) -> Response {
    let (method, uri, headers) = (request.method().clone(), request.uri().clone(), request.headers().clone());
    let opened = async {
        let route = Route::read(&method, uri.path())?;
        let Route::Socket { agent } = route.clone() else {
            return Err(ModelError::NoRoute { method: "WebSocket".to_owned(), path: uri.path().to_owned() });
        };
        let query = pairs(uri.query().unwrap_or_default())?;
        let (caller, identity) = enter(&port, &route, &headers, &query, peer).await?;
        Ok((agent, caller, identity))
    };
    let (agent, caller, identity) = match opened.await {
        Ok(opened) => opened,
        Err(ModelError::OtherAgent) => {
            return json_response(StatusCode::FORBIDDEN, ModelError::OtherAgent.json().to_string());
        }
        Err(error) => return error.into_response(),
    };
    let (response, upgraded) = match handshake::accept(&mut request) {
        Ok(accepted) => accepted,
        Err(error) => return HttpError::Handshake(error).into_response(),
    };
    let connections = port.connections.clone();
    connections.spawn(async move {
        let _place = place;
        let Ok(upgraded) = upgraded.await else { return };
        let ended = ended(port.credentials.clone(), identity, port.shutdown.clone());
        socket::serve(port, TokioIo::new(upgraded), agent, caller, ended).await;
    });
    response
}

/// A request whose caller is known.
struct Entered {
    port: Port,
    caller: Caller,
    identity: Arc<Identity>,
    query: Vec<(String, String)>,
}

impl Entered {
    fn subject(&self, agent: String, session: String) -> Subject {
        Subject { port: self.port.clone(), agent, session, caller: self.caller.clone() }
    }

    fn ended(&self) -> Ended {
        ended(self.port.credentials.clone(), self.identity.clone(), self.port.shutdown.clone())
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn is_set(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| value == "true" || value == "1")
    }

    async fn answer(&self, route: Route, request: Request) -> Result<Response, ModelError> {
        let ok = |text: String| json_response(StatusCode::OK, text);
        match route {
            Route::Health { .. } => Err(no_route(&request)),
            Route::Socket { .. } => {
                Err(ModelError::Invalid("this path is a WebSocket: send an upgrade request".to_owned()))
            }
            Route::Open { agent } => {
                let spec = self.body(request).await?;
                open(&self.subject(agent, String::new()), &spec).await.map(|value| ok(value.to_string()))
            }
            Route::List { agent } => {
                let asked = filters(&self.query)?;
                list(&self.subject(agent, String::new()), asked).await.map(ok)
            }
            Route::Delete { agent, session } => {
                delete(&self.subject(agent, session)).await.map(|value| ok(value.to_string()))
            }
            Route::History { agent, session } => history(&self.subject(agent, session)).await.map(ok),
            Route::Approve { agent, session } => {
                let decision = self.body(request).await?;
                approve(&self.subject(agent, session), &decision).await.map(|value| ok(value.to_string()))
            }
            Route::Checkpoint { agent, session } => {
                let asked = self.body(request).await?;
                checkpoint(&self.subject(agent, session), &asked).await.map(|value| ok(value.to_string()))
            }
            Route::Events { agent, session } => {
                let seen = last_event_id(request.headers())?;
                stream::events(self.subject(agent, session), seen, self.ended()).await
            }
            Route::Post { agent, session } => {
                let message = self.body(request).await?;
                self.post(self.subject(agent, session), message).await
            }
        }
    }

    async fn body(&self, request: Request) -> Result<Value, ModelError> {
        let (text, _room) = read_body(&self.port, request).await.map_err(ModelError::Body)?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| ModelError::Invalid(format!("the body is not JSON: {error}")))?;
        match value {
            Value::Object(_) => Ok(value),
            Value::Null => Ok(json!({})),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Err(ModelError::Invalid("the body must be a JSON object".to_owned()))
            }
        }
    }

    async fn post(&self, subject: Subject, message: Value) -> Result<Response, ModelError> {
        let ok = |value: &Value| json_response(StatusCode::OK, value.to_string());
        if self.is_set("append") || self.is_set("inject") {
            let posted = post(&subject, &message, "append").await?;
            return Ok(ok(&match posted.deduped {
                true => json!({ "sessionId": subject.session, "appended": false, "deduped": true }),
                false => json!({ "sessionId": subject.session, "appended": true }),
            }));
        }
        let wait_ms = match self.value("timeout") {
            Some(text) => match text.parse::<u64>() {
                Ok(ms) if ms > 0 => ms.min(WAIT_MS_MAX),
                Ok(_) | Err(_) => return Err(ModelError::Invalid("timeout: give milliseconds above 0".to_owned())),
            },
            None => WAIT_MS,
        };
        if self.is_set("wait") {
            let (mut follow, edge) = Follow::open(subject.clone()).await?;
            let posted = post(&subject, &message, "post").await?;
            if !posted.triggered {
                return Ok(ok(&json!({
                    "sessionId": subject.session, "messageId": posted.message_id, "text": null, "toolCalls": [],
                    "triggered": false,
                })));
            }
            follow.start_after(if posted.deduped { edge.oldest.saturating_sub(1) } else { edge.last });
            let deadline = Instant::now() + Duration::from_millis(wait_ms);
            let (status, reply) = wait(&mut follow, &posted.message_id, deadline).await?;
            return Ok(json_response(status, reply.to_string()));
        }
        if self.is_set("stream") {
            let (mut follow, edge) = Follow::open(subject.clone()).await?;
            let posted = post(&subject, &message, "post").await?;
            if !posted.triggered {
                return Ok(ok(&posted.json(&subject.session)));
            }
            follow.start_after(if posted.deduped { edge.oldest.saturating_sub(1) } else { edge.last });
            return Ok(stream::turn(follow, posted.message_id, posted.deduped, self.ended()));
        }
        let posted = post(&subject, &message, "post").await?;
        Ok(ok(&posted.json(&subject.session)))
    }
}

fn no_route(request: &Request) -> ModelError {
    ModelError::NoRoute { method: request.method().to_string(), path: request.uri().path().to_owned() }
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, ModelError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |_| ModelError::Invalid("Last-Event-ID: give the number of an event".to_owned());
    text.parse().map(Some).map_err(wrong)
}

/// The answer to a posted message.
#[derive(Debug, Deserialize)]
pub struct Posted {
    pub message_id: String,
    pub triggered: bool,
    pub deduped: bool,
}

impl Posted {
    pub fn json(&self, session: &str) -> Value {
        json!({ "sessionId": session, "messageId": self.message_id, "triggered": self.triggered })
    }
}

fn text_field<'a>(body: &'a Value, name: &str) -> Result<&'a str, ModelError> {
    match body.get(name) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(ModelError::Invalid(format!("{name}: give a text"))),
        None => Err(ModelError::Invalid(format!("{name} is missing"))),
    }
}

/// Opens a session. The subject has no session yet: the body names it.
pub async fn open(subject: &Subject, spec: &Value) -> Result<Value, ModelError> {
    let session = text_field(spec, "sessionId")?.to_owned();
    let subject = Subject { session, ..subject.clone() };
    let mut body = subject.body();
    body["source"] = spec.get("source").cloned().ok_or_else(|| ModelError::Invalid("source is missing".to_owned()))?;
    for (name, field) in [("metadata", "metadata"), ("customInstruction", "custom_instruction")] {
        if let Some(value) = spec.get(name) {
            body[field] = value.clone();
        }
    }
    subject.call("session::open", &body, Fresh::Linearizable).await?;
    Ok(json!({ "sessionId": subject.session }))
}

pub async fn post(subject: &Subject, message: &Value, mode: &str) -> Result<Posted, ModelError> {
    let mut body = subject.body();
    body["message"] = message.clone();
    body["mode"] = Value::from(mode);
    let text = subject.call("session::post", &body, Fresh::Linearizable).await?;
    serde_json::from_str(&text).map_err(|error| ModelError::Failed(error.to_string()))
}

pub async fn approve(subject: &Subject, decision: &Value) -> Result<Value, ModelError> {
    let mut body = subject.body();
    body["tool_call_id"] = Value::from(text_field(decision, "toolCallId")?);
    body["approved"] = match decision.get("approved") {
        Some(Value::Bool(approved)) => Value::Bool(*approved),
        Some(_) | None => return Err(ModelError::Invalid("approved: give true or false".to_owned())),
    };
    let text = subject.call("session::approve", &body, Fresh::Linearizable).await?;
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    Ok(json!({ "resolved": answer["resolved"] == true }))
}

pub async fn delete(subject: &Subject) -> Result<Value, ModelError> {
    let text = subject.call("session::profile::delete", &subject.body(), Fresh::Linearizable).await?;
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    match answer.get("conflict").and_then(Value::as_str) {
        Some(conflict) => Err(ModelError::Conflict(conflict.to_owned())),
        None => Ok(json!({ "deleted": true })),
    }
}

/// Asks for a checkpoint and waits for its end.
pub async fn checkpoint(subject: &Subject, asked: &Value) -> Result<Value, ModelError> {
    let mut body = subject.body();
    if let Some(reason) = asked.get("reason") {
        body["reason"] = reason.clone();
    }
    let text = subject.call("session::checkpoint", &body, Fresh::Linearizable).await?;
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    let Some(checkpoint_id) = answer["checkpoint_id"].as_str() else { return Ok(json!({ "checkpointed": false })) };
    let deadline = Instant::now() + CHECKPOINT_MAX;
    // What the last checkpoint covered while this one was under way. The first look sees that it has begun, or more.
    let mut covered = None;
    let mut fresh = Fresh::Linearizable;
    while Instant::now() < deadline && !subject.port.shutdown.is_cancelled() {
        let text = subject.call("session::profile::get", &subject.body(), fresh).await?;
        let profile: Value = serde_json::from_str(&text).unwrap_or_default();
        let (state, cursor) = (&profile["checkpoint"], profile["cursor"]["eventId"].as_u64());
        if state["ended"] == checkpoint_id {
            return Ok(json!({ "checkpointed": state["checkpointed"] == true }));
        }
        if state["underway"] != checkpoint_id {
            // Another one has ended since. The cursor has moved if one of them succeeded.
            return Ok(json!({ "checkpointed": covered.is_some_and(|covered| cursor > covered) }));
        }
        covered.get_or_insert(cursor);
        fresh = Fresh::Local;
        tokio::time::sleep(CHECKPOINT_LOOK).await;
    }
    Ok(json!({ "checkpointed": false }))
}

/// Reads the filters of a list from a query.
fn filters(query: &[(String, String)]) -> Result<Map<String, Value>, ModelError> {
    let mut asked = Map::new();
    let mut metadata = Map::new();
    let truth = |name: &str, value: &str| match value {
        "true" => Ok(Value::Bool(true)),
        "false" => Ok(Value::Bool(false)),
        _other => Err(ModelError::Invalid(format!("{name}: give true or false"))),
    };
    for (name, value) in query {
        match name.as_str() {
            "kind" | "platform" | "channel" => {
                asked.insert(name.clone(), Value::from(value.as_str()));
            }
            "interactive" => {
                asked.insert(name.clone(), truth(name, value)?);
            }
            "includeInactive" => {
                asked.insert(name.clone(), truth(name, value)?);
            }
            "limit" => {
                let wrong = || ModelError::Invalid("limit: give a whole number above 0".to_owned());
                let limit = value.parse::<u64>().ok().filter(|limit| *limit > 0).ok_or_else(wrong)?;
                asked.insert(name.clone(), Value::from(limit));
            }
            other => {
                if let Some(key) = other.strip_prefix("metadata.") {
                    metadata.insert(key.to_owned(), Value::from(value.as_str()));
                }
            }
        }
    }
    if !metadata.is_empty() {
        asked.insert("metadata".to_owned(), Value::Object(metadata));
    }
    Ok(asked)
}

#[derive(Deserialize)]
struct Rows<'a> {
    #[serde(borrow)]
    rows: Vec<&'a RawValue>,
    next: Option<Value>,
    leaf: Option<String>,
}

/// Rows of several pages as one array.
struct Array {
    text: String,
    length: usize,
}

impl Array {
    fn new() -> Array {
        Array { text: "[".to_owned(), length: 0 }
    }

    fn add(&mut self, row: &str) -> Result<(), ModelError> {
        if self.length > 0 {
            self.text.push(',');
        }
        self.text.push_str(row);
        self.length += 1;
        match self.text.len() > RESPONSE_BYTES_MAX {
            true => Err(ModelError::Invalid(format!("the answer has more than {RESPONSE_BYTES_MAX} bytes"))),
            false => Ok(()),
        }
    }

    fn finish(mut self) -> String {
        self.text.push(']');
        self.text
    }
}

fn rows(text: &str) -> Result<Rows<'_>, ModelError> {
    serde_json::from_str(text).map_err(|error| ModelError::Failed(error.to_string()))
}

/// The sessions of an agent, the most recently active first, from as many pages as it takes.
pub async fn list(subject: &Subject, mut asked: Map<String, Value>) -> Result<String, ModelError> {
    let limit = asked.get("limit").and_then(Value::as_u64).map_or(usize::MAX, |limit| limit as usize);
    if let Some(include) = asked.remove("includeInactive") {
        asked.insert("include_inactive".to_owned(), include);
    }
    let mut body = Value::Object(asked);
    body["agent_id"] = Value::from(subject.agent.as_str());
    if let Some(caller) = subject.caller.field() {
        body["caller"] = caller;
    }
    let mut array = Array::new();
    loop {
        let text = subject.call("session::profile::list", &body, Fresh::Linearizable).await?;
        let page = rows(&text)?;
        for row in page.rows {
            if array.length < limit {
                array.add(row.get())?;
            }
        }
        match page.next {
            Some(next) if array.length < limit => body["after"] = next,
            Some(_) | None => return Ok(array.finish()),
        }
    }
}

pub async fn history(subject: &Subject) -> Result<String, ModelError> {
    let mut body = subject.body();
    let mut array = Array::new();
    loop {
        let text = subject.call("session::profile::history", &body, Fresh::Linearizable).await?;
        let page = rows(&text)?;
        for row in &page.rows {
            array.add(row.get())?;
        }
        match page.next {
            Some(next) => {
                body["first"] = next;
                body["leaf"] = json!(page.leaf);
            }
            None => return Ok(array.finish()),
        }
    }
}

/// Waits for the end of a turn and puts its reply together.
async fn wait(follow: &mut Follow, message_id: &str, deadline: Instant) -> Result<(StatusCode, Value), ModelError> {
    let mut reply = json!({
        "sessionId": follow.subject.session, "messageId": message_id, "text": null, "toolCalls": [],
    });
    let mut calls: Map<String, Value> = Map::new();
    let mut taken = false;
    loop {
        let Ok(next) = timeout_at(deadline, follow.next()).await else {
            let why = match taken {
                true => "Timeout waiting for agent response.",
                false => "Timeout waiting for agent response: no driver has taken the turn.",
            };
            reply["error"] = Value::from(why);
            return Ok((StatusCode::GATEWAY_TIMEOUT, reply));
        };
        let event = next?;
        if event.correlation.as_deref() != Some(message_id) {
            continue;
        }
        let value: Value = serde_json::from_str(&event.text).unwrap_or_default();
        match event.kind.as_str() {
            "agent_start" => taken = true,
            "text_final" => reply["text"] = value["text"].clone(),
            "tool_call" => {
                let id = value["toolCallId"].as_str().unwrap_or_default().to_owned();
                calls.insert(id, value.get("args").cloned().unwrap_or_default());
            }
            "tool_result" => {
                let id = value["toolCallId"].as_str().unwrap_or_default();
                let mut call = json!({ "tool": value["tool"], "isError": value["isError"] == true });
                if let Some(args) = calls.get(id).filter(|args| !args.is_null()) {
                    call["args"] = args.clone();
                }
                for name in ["text", "details"] {
                    if let Some(part) = value.get(name) {
                        call[name] = part.clone();
                    }
                }
                if let Some(calls) = reply["toolCalls"].as_array_mut() {
                    calls.push(call);
                }
            }
            "error" => reply["error"] = value["message"].clone(),
            "agent_end" => return Ok((StatusCode::OK, reply)),
            _other => {}
        }
    }
}
