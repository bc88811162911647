//! Owns: what front-ends ask of a session's agent: run, stop, steer, answer, mode, profile, settings.
//! Never: what a turn does (`machine::turn`).
//!
//! What happens is told by the session's stream. A client that has not joined the session gets the one event that answers
//! it, and the clients that have joined get nothing twice.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;
use uuid::Uuid;

use super::connection::Connection;
use super::errors::GatewayError;
use super::follow::{self, Streamed};
use super::messages::Reply;
use super::person::Person;
use super::sessions::{AGENT_TYPE, Speaker};
use super::{Gateway, Reads};
use crate::events::stream::Stream;
use crate::machine::apply::beside::Beside;
use crate::machine::gateway::{GatewayCommand, GatewayQuery};
use crate::machine::ids::SessionId;
use crate::machine::json::{Json, Object};
use crate::machine::query::beside::BesideQuery;
use crate::machine::turn::TurnCommand;
use crate::machine::turn::ask::{AskTurn, CLAIM_WITHIN_MS, OFFER_MS};
use crate::machine::turn::driver::Agent;
use crate::machine::turn::order::{Order, OrderTurn, STOP_MS};
use crate::machine::turn::record::{AskedEntry, Unclaimed};

/// How much longer than the store the door waits, until the store says what became of a request.
const GRACE: Duration = Duration::from_secs(3);

/// The agent of a session.
pub fn agent_of(meta: &Value, person: &Person) -> Agent {
    Agent {
        agent_id: None,
        agent_type: meta["metadata"][AGENT_TYPE].as_str().map(str::to_owned),
        tenant: Some(person.tenant.to_string()),
    }
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(ms.unsigned_abs()) + GRACE
}

/// A refusal of the machine in the words of this door.
fn refusal(answer: &Value) -> Option<GatewayError> {
    let why = answer["message"].as_str().unwrap_or_default().to_owned();
    Some(match answer["refused"].as_str()? {
        "TurnInProgress" | "QueueFull" => GatewayError::TurnInProgress,
        "NoActiveTurn" => GatewayError::NoActiveTurn,
        "RequestNotFound" => GatewayError::RequestNotFound,
        "AgentUnavailable" => nobody(),
        _other => GatewayError::AgentError(why),
    })
}

fn nobody() -> GatewayError {
    GatewayError::AgentUnavailable("no driver is attached that runs this agent; nothing was written".to_owned())
}

/// The events of one session while the door waits for one of them.
struct Waiter {
    connection: Arc<Connection>,
    session: String,
    stream: Stream,
}

impl Waiter {
    fn new(connection: &Arc<Connection>, speaker: &Speaker, session: &str) -> Result<Waiter, GatewayError> {
        let stream = follow::subscribe(&connection.gateway, speaker, session)?;
        Ok(Waiter { connection: connection.clone(), session: session.to_owned(), stream })
    }

    /// Waits for an event. `None` when it did not come in time.
    async fn wait(&self, max: Duration, is_it: impl Fn(&Streamed) -> bool) -> Option<Streamed> {
        let found = async {
            loop {
                let Some(event) = Streamed::of(&self.stream.next().await) else { continue };
                if is_it(&event) {
                    return event;
                }
            }
        };
        timeout(max, found).await.ok()
    }

    /// Tells a client that does not follow the session what it would have learned there.
    fn tell(&self, event: &Streamed) {
        if !self.connection.has_joined(&self.session)
            && let Some(text) = &event.text
        {
            self.connection.send_text(text.clone());
        }
    }
}

impl Connection {
    pub(super) async fn run_turn(
        self: Arc<Self>,
        speaker: Speaker,
        session: String,
        text: String,
        client_turn_id: Option<String>,
    ) -> Result<(), GatewayError> {
        let waiter = Waiter::new(&self, &speaker, &session)?;
        let meta = self.gateway.session(&speaker, &session, Reads::Local).await?;
        let ask = ask(&meta, &speaker.person, &session, &text, client_turn_id);
        let answer = self.gateway.change(speaker.person.scope(), Beside::Turn(TurnCommand::Ask(Box::new(ask)))).await?;
        if let Some(error) = refusal(&answer) {
            return Err(error);
        }
        let turn_id = answer["turn_id"].as_str().ok_or(GatewayError::Internal)?.to_owned();
        if answer["repeated"] == true
            && let Some(started) = self.gateway.started(&speaker, &session, &turn_id).await?
        {
            self.send(&started);
            return Ok(());
        }
        let max = if answer["offered"] == true { millis(OFFER_MS) } else { millis(CLAIM_WITHIN_MS) };
        let began = |event: &Streamed| {
            event.turn_id.as_deref() == Some(&turn_id)
                && (event.is_refused || ["turn_started", "turn_error", "stop_acknowledged"].contains(&&*event.kind))
        };
        match waiter.wait(max, began).await {
            Some(event) if !event.is_refused => {
                waiter.tell(&event);
                Ok(())
            }
            Some(_) | None => Err(nobody()),
        }
    }

    pub(super) async fn stop_turn(self: Arc<Self>, speaker: Speaker, session: String) -> Result<(), GatewayError> {
        let waiter = Waiter::new(&self, &speaker, &session)?;
        self.asks_to_stop(&session);
        let is_told = self.stop(&speaker, &session, &waiter).await;
        // Else the one that follows the session for this client tells it.
        if !matches!(is_told, Ok(true)) {
            self.takes_stop(&session);
        }
        is_told.map(drop)
    }

    /// Returns whether the turn was stopped and the client hears of it as a follower.
    async fn stop(&self, speaker: &Speaker, session: &str, waiter: &Waiter) -> Result<bool, GatewayError> {
        let answer = self.order(speaker, session, Order::Stop {}).await?;
        let turn_id = answer["turn_id"].as_str().map(str::to_owned);
        let ended = [follow::STOPPED, "turn_complete", "turn_error"];
        let over = |event: &Streamed| event.turn_id == turn_id && ended.contains(&&*event.kind);
        let Some(event) = waiter.wait(millis(STOP_MS), over).await else { return Ok(false) };
        waiter.tell(&event);
        Ok(event.kind == follow::STOPPED && self.has_joined(session))
    }

    pub(super) async fn steer(
        self: &Arc<Self>,
        speaker: &Speaker,
        session: &str,
        content: String,
    ) -> Result<(), GatewayError> {
        let steer_id = Uuid::new_v4().to_string();
        let order = Order::Steer { content: content.clone(), steer_id: Some(steer_id.clone()) };
        self.order(speaker, session, order).await?;
        let sent = json!({ "type": "steer_sent", "sessionId": session, "steerId": steer_id, "content": content });
        self.send(&sent);
        Ok(())
    }

    /// An answer of a person to a request of the agent.
    pub(super) async fn answer_request(
        self: Arc<Self>,
        speaker: Speaker,
        session: String,
        request_id: String,
        reply: Reply,
    ) -> Result<(), GatewayError> {
        let fields = |object: Object| object.iter().map(|(name, value)| (name.clone(), Json::print(value))).collect();
        let (order, kind) = match reply {
            Reply::Question { answers, dismissed } => {
                let mut told = Object::new();
                told.insert("answers".to_owned(), Value::Object(answers));
                told.insert("dismissed".to_owned(), Value::from(dismissed));
                (Order::Answer { request_id, event: None, fields: fields(told) }, "session_state")
            }
            Reply::Permission { approved, reason } => {
                let more = reason.iter().map(|reason| ("reason".to_owned(), Json::print(reason))).collect();
                (Order::Approve { request_id, approved, reason, fields: more }, "approval_resolved")
            }
            Reply::Github { name, approved, fields: mut told } => {
                told.retain(|field, _| !["type", "sessionId", "seq", "ts"].contains(&field.as_str()));
                told.insert("approved".to_owned(), Value::from(approved));
                (Order::Answer { request_id, event: Some(name.to_owned()), fields: fields(told) }, name)
            }
        };
        let waiter = Waiter::new(&self, &speaker, &session)?;
        self.order(&speaker, &session, order).await?;
        // Further requests may be open: then no state changes, and there is nothing to tell.
        if let Some(event) = waiter.wait(GRACE, |event| event.kind == kind).await {
            waiter.tell(&event);
        }
        Ok(())
    }

    /// Mode, profile or settings. The event that says so has the number of the answer.
    pub(super) async fn set(
        self: Arc<Self>,
        speaker: Speaker,
        session: String,
        order: Order,
    ) -> Result<(), GatewayError> {
        let waiter = Waiter::new(&self, &speaker, &session)?;
        let answer = self.order(&speaker, &session, order).await?;
        let seq = answer["seq"].as_u64();
        if let Some(event) = waiter.wait(GRACE, |event| seq.is_some() && event.seq == seq).await {
            waiter.tell(&event);
        }
        Ok(())
    }

    /// An answer of a driver that is an event of the session's stream.
    pub(super) async fn keep_answer(
        self: Arc<Self>,
        speaker: &Speaker,
        session: &str,
        answer: Value,
    ) -> Result<(), GatewayError> {
        let waiter = Waiter::new(&self, speaker, session)?;
        let name = answer["type"].as_str().unwrap_or_default().to_owned();
        let fields = answer.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), Json::print(value)));
        let command = GatewayCommand::Answered { session_id: SessionId::from(session), name, fields: fields.collect() };
        let kept = self.gateway.change(speaker.person.scope(), Beside::Gateway(command)).await?;
        let seq = kept["seq"].as_u64();
        if let Some(event) = waiter.wait(GRACE, |event| seq.is_some() && event.seq == seq).await {
            waiter.tell(&event);
        }
        Ok(())
    }

    async fn order(&self, speaker: &Speaker, session: &str, order: Order) -> Result<Value, GatewayError> {
        let by = Some(speaker.person.user.to_string());
        let command = TurnCommand::Order(OrderTurn { session_id: SessionId::from(session), by, order });
        let answer = self.gateway.change(speaker.person.scope(), Beside::Turn(command)).await?;
        refusal(&answer).map_or(Ok(answer), Err)
    }
}

impl Gateway {
    /// The event with which a turn started, if it has.
    async fn started(&self, speaker: &Speaker, session: &str, turn_id: &str) -> Result<Option<Value>, GatewayError> {
        let query = GatewayQuery::Started { session_id: SessionId::from(session), turn_id: turn_id.to_owned() };
        self.ask(speaker.person.scope(), BesideQuery::Gateway(query), Reads::Fresh).await
    }
}

/// The message and the request of a turn, as drivers get it.
fn ask(meta: &Value, person: &Person, session: &str, text: &str, key: Option<String>) -> AskTurn {
    let message = json!({
        "role": "user", "content": [{ "type": "text", "text": text }], "timestamp": crate::access::credentials::now_ms(),
    });
    let sender = json!({ "user_id": &*person.user, "email": &*person.email });
    let request = [
        ("text", json!(text)),
        ("prompt_text", json!(text)),
        ("sender", sender),
        ("source", json!("gateway")),
        ("metadata", meta["metadata"].clone()),
    ];
    AskTurn {
        session_id: SessionId::from(session),
        door: "gateway".to_owned(),
        turn_id: None,
        asked_by: Some(person.user.to_string()),
        key,
        queue: false,
        agent: agent_of(meta, person),
        entry: Some(AskedEntry { entry_id: None, message: Json::print(&message), origin: None }),
        message_entry_id: None,
        request: request.into_iter().map(|(name, value)| (name.to_owned(), Json::print(&value))).collect(),
        claim_within_ms: None,
        unclaimed: Unclaimed::Withdraw,
    }
}
