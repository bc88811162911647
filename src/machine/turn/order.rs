//! Commands to the driver of a turn: stop, steer, answers, mode, profile, settings. They are kept until the driver
//! acknowledges them, and told again until then.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::due::DueKind;
use super::events::Fields;
use super::finish::{self, End};
use super::record::{Stream, Turn, TurnState, read};
use super::work::{Work, refused};
use super::{claim, session_of};
use crate::machine::beside::{RecordKey, Space};
use crate::machine::command::{Answer, Outcome};
use crate::machine::entry::Body;
use crate::machine::event::EventKind;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::{Json, List, Object};
use crate::machine::message::{AgentMessage, ContentBlock, Message};
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// A driver has this long to acknowledge a stop.
pub const STOP_MS: i64 = 5_000;
/// A command that is not acknowledged is told again after this time.
pub const REPEAT_MS: i64 = 5_000;
/// The settings of one session. Every turn's request and every change tells all of them.
pub const SETTINGS_BYTES_MAX: usize = 64 << 10;
/// Commands that may wait for acknowledgement in one session.
const ORDERS_MAX: usize = 64;

/// What a person wants of a session's agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OrderTurn {
    pub session_id: SessionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    pub order: Order,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    Stop {},
    Steer {
        content: String,
        /// From the stamp when `None`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        steer_id: Option<String>,
    },
    /// The answer to a question, or to a request of the GitHub family.
    Answer {
        request_id: String,
        /// The name of the event that tells it, such as `github.create_pr_answer`; none for a question.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        event: Option<String>,
        fields: Fields,
    },
    Approve {
        request_id: String,
        approved: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// More fields of `approval_resolved`, such as `decision`.
        #[serde(default)]
        fields: Fields,
    },
    SetMode {
        mode: String,
    },
    SetProfile {
        profile: String,
    },
    /// Changes single settings.
    SetSettings {
        settings: Json,
    },
}

impl Order {
    pub fn name(&self) -> &'static str {
        match self {
            Order::Stop {} => "stop",
            Order::Steer { .. } => "steer",
            Order::Answer { .. } => "answer",
            Order::Approve { .. } => "approve",
            Order::SetMode { .. } => "set_mode",
            Order::SetProfile { .. } => "set_profile",
            Order::SetSettings { .. } => "set_settings",
        }
    }
}

/// A command that waits to be acknowledged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SentOrder {
    pub turn_id: String,
    pub payload: Json,
    pub sent_at: i64,
}

/// What a driver says about a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckOrder {
    pub command_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_id: Option<String>,
    pub accepted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &OrderTurn) -> Result<Outcome, Failure> {
    let mut work = Work::open(view, stamp, &command.session_id)?;
    let answer = give(&mut work, &command.order)?;
    work.finish(&answer)
}

/// Gives a command as a part of a larger one.
pub fn give(work: &mut Work<'_>, order: &Order) -> Result<Value, Failure> {
    let current = work.stream.current.clone();
    let turn = match &current {
        Some(turn_id) => work.read_turn(turn_id)?.filter(|turn| !turn.offered),
        None => None,
    };
    match order {
        Order::Stop {} => stop(work, turn),
        Order::Steer { content, steer_id } => {
            let Some(turn) = turn else { return Ok(no_turn()) };
            let steer_id = steer_id.clone().unwrap_or_else(|| work.stamp.turn_id());
            let message = Message::new(AgentMessage::User {
                content: List::of(&[ContentBlock::Text { text: content.clone() }]),
                timestamp: work.now(),
            });
            work.append(EntryId::from(&*steer_id), super::reply::origin(&turn), Body::Message(message))?;
            let command_id = send(work, &turn, order, json!({ "content": content, "steer_id": steer_id }))?;
            Ok(json!({ "steer_id": steer_id, "turn_id": turn.turn_id, "command_id": command_id }))
        }
        Order::Answer { request_id, event, fields } => {
            let Some(turn_id) = take_request(work, request_id) else { return Ok(no_request(request_id)) };
            let mut told = fields.clone();
            told.insert("requestId".to_owned(), Json::print(request_id));
            let seq = event.as_ref().and_then(|name| work.publish_stream(name, Some(&turn_id), told));
            let command_id = settle(work, &turn_id, order, json!({ "request_id": request_id, "answer": fields }))?;
            Ok(json!({ "resolved": true, "turn_id": turn_id, "seq": seq, "command_id": command_id }))
        }
        Order::Approve { request_id, approved, reason, fields } => {
            let Some(turn_id) = take_request(work, request_id) else { return Ok(no_request(request_id)) };
            let mut told = fields.clone();
            told.insert("requestId".to_owned(), Json::print(request_id));
            told.insert("approved".to_owned(), Json::print(approved));
            let seq = work.publish_stream("approval_resolved", Some(&turn_id), told);
            if let Some(seq) = seq {
                work.mark(&turn_id, &format!("approval_resolved:{request_id}"), seq);
            }
            let more = json!({
                "request_id": request_id, "approved": approved, "reason": reason, "fields": fields,
            });
            let command_id = settle(work, &turn_id, order, more)?;
            Ok(json!({ "resolved": true, "turn_id": turn_id, "seq": seq, "command_id": command_id }))
        }
        Order::SetMode { mode } => {
            work.stream.mode = Some(mode.clone());
            set(work, turn, order, "mode_switched", "mode", Json::print(mode))
        }
        Order::SetProfile { profile } => {
            work.stream.profile = Some(profile.clone());
            set(work, turn, order, "autonomy_profile_updated", "profile", Json::print(profile))
        }
        Order::SetSettings { settings } => {
            let settings = merged(work.stream.settings.as_ref(), settings)?;
            work.stream.settings = Some(settings.clone());
            set(work, turn, order, "session_settings_updated", "settings", settings)
        }
    }
}

/// The settings with what is changed, key by key. `null` removes a key.
fn merged(old: Option<&Json>, changes: &Json) -> Result<Json, Failure> {
    let fields = |json: &Json| {
        json.parse::<Object>().map_err(|_| Refusal::RequestInvalid("settings: give an object".to_owned()))
    };
    let mut settings = old.map_or(Ok(Object::new()), fields)?;
    for (name, value) in fields(changes)? {
        match value {
            Value::Null => drop(settings.remove(&name)),
            value => drop(settings.insert(name, value)),
        }
    }
    let merged = Json::print(&settings);
    let bytes = merged.text().len();
    if bytes > SETTINGS_BYTES_MAX {
        let why = format!("settings: {bytes} bytes after the change, at most {SETTINGS_BYTES_MAX}");
        return Err(Refusal::RequestInvalid(why).into());
    }
    Ok(merged)
}

fn no_turn() -> Value {
    refused("NoActiveTurn", "the session has no turn under way")
}

fn no_request(request_id: &str) -> Value {
    refused("RequestNotFound", &format!("no open request {request_id:?}: it was answered, or its turn has ended"))
}

fn set(
    work: &mut Work<'_>,
    turn: Option<Turn>,
    order: &Order,
    event: &str,
    field: &str,
    value: Json,
) -> Result<Value, Failure> {
    let seq = work.publish_stream(event, None, Fields::from([(field.to_owned(), value.clone())]));
    let command_id = match turn {
        Some(turn) => send(work, &turn, order, json!({ field: value.value() }))?,
        None => None,
    };
    Ok(json!({ "seq": seq, "command_id": command_id }))
}

fn stop(work: &mut Work<'_>, turn: Option<Turn>) -> Result<Value, Failure> {
    let Some(turn) = turn else { return Ok(no_turn()) };
    let turn_id = turn.turn_id.clone();
    if turn.state == TurnState::Queued {
        finish::finish(work, &turn_id, End::Stopped)?;
        return Ok(json!({ "turn_id": turn_id, "stopped": true }));
    }
    if let Some(command_id) = &turn.stopping {
        return Ok(json!({ "turn_id": turn_id, "stopped": false, "command_id": command_id }));
    }
    let command_id = send(work, &turn, &Order::Stop {}, json!({}))?;
    if let Some(turn) = work.turn(&turn_id)? {
        turn.stopping.clone_from(&command_id);
    }
    let stop_by = work.now() + STOP_MS;
    work.due(stop_by, DueKind::Stop, &turn_id);
    Ok(json!({ "turn_id": turn_id, "stopped": false, "command_id": command_id }))
}

/// The driver did not acknowledge the stop in time: the turn is stopped without it.
pub(super) fn stop_overdue(work: &mut Work<'_>, turn_id: &str) -> Result<bool, Failure> {
    let stopping = work.read_turn(turn_id)?.is_some_and(|turn| turn.stopping.is_some() && !turn.state.is_over());
    if stopping {
        finish::finish(work, turn_id, End::Stopped)?;
    }
    Ok(stopping)
}

/// Takes a request off the list of open ones. The first answer wins.
fn take_request(work: &mut Work<'_>, request_id: &str) -> Option<String> {
    let at = work.stream.requests.iter().position(|request| request.request_id == request_id)?;
    Some(work.stream.requests.remove(at).turn_id)
}

fn settle(work: &mut Work<'_>, turn_id: &str, order: &Order, more: Value) -> Result<Option<String>, Failure> {
    if work.stream.requests.is_empty() {
        claim::go_on(work, turn_id)?;
    }
    match work.read_turn(turn_id)? {
        Some(turn) => send(work, &turn, order, more),
        None => Ok(None),
    }
}

/// Sends a command to the driver of a turn. `None` if nobody has claimed it.
fn send(work: &mut Work<'_>, turn: &Turn, order: &Order, more: Value) -> Result<Option<String>, Failure> {
    let Some(driver_id) = turn.driver_id.clone().filter(|_| !turn.state.is_over()) else { return Ok(None) };
    let under = RecordKey::of_session(work.session_id(), Space::Order);
    if work.view.records(&under, None, ORDERS_MAX)?.len() >= ORDERS_MAX {
        let why = format!("{ORDERS_MAX} commands to the driver of this session wait already: stop the turn");
        return Err(Refusal::RequestInvalid(why).into());
    }
    let turn_id = turn.turn_id.clone();
    let Some(kept) = work.turn(&turn_id)? else { return Ok(None) };
    let command_id = format!("{}.{turn_id}", kept.next_command);
    kept.next_command += 1;
    let mut payload = json!({
        "command_id": command_id,
        "command": order.name(),
        "turn_id": turn_id,
        "session_id": work.session_id(),
        "driver_id": driver_id,
        "agent_id": turn.agent.agent_id,
        "agent_type": turn.agent.agent_type,
        "tenant": turn.agent.tenant,
    });
    if let (Some(payload), Value::Object(more)) = (payload.as_object_mut(), more) {
        payload.extend(more);
    }
    let payload = Json::print(&payload);
    let sent = SentOrder { turn_id, payload: payload.clone(), sent_at: work.now() };
    work.put(Stream::order_key(work.session_id(), &command_id), &sent);
    let again = work.now() + REPEAT_MS;
    work.due(again, DueKind::Repeat, &command_id);
    work.note(EventKind::TurnCommand, payload, true);
    Ok(Some(command_id))
}

/// Tells a command again that is not acknowledged.
pub(super) fn repeat(work: &mut Work<'_>, command_id: &str) -> Result<bool, Failure> {
    let key = Stream::order_key(work.session_id(), command_id);
    let Some(sent) = read::<SentOrder>(work.view, &key)? else { return Ok(false) };
    let is_over = work.read_turn(&sent.turn_id)?.is_none_or(|turn| turn.state.is_over());
    if is_over {
        work.delete(key);
        return Ok(false);
    }
    let again = work.now() + REPEAT_MS;
    work.due(again, DueKind::Repeat, command_id);
    work.note(EventKind::TurnCommand, sent.payload, false);
    Ok(true)
}

pub fn acknowledge(view: &dyn View, stamp: &Stamp, ack: &AckOrder) -> Result<Outcome, Failure> {
    let unknown = || Refusal::RequestInvalid(format!("command_id: no command {:?} waits", ack.command_id));
    let (_, turn_id) = ack.command_id.split_once('.').ok_or_else(unknown)?;
    let session_id = session_of(view, turn_id)?;
    let mut work = Work::open(view, stamp, &session_id)?;
    let key = Stream::order_key(&session_id, &ack.command_id);
    // Acknowledged before, or void with its turn: a repeat is no error.
    if view.record(&key)?.is_none() {
        return Ok(Outcome::unchanged(Answer::Value(Json::adopt("{\"acknowledged\":false}"))));
    }
    let turn = work.read_turn(turn_id)?;
    let driver_id = turn.as_ref().and_then(|turn| turn.driver_id.clone());
    if ack.driver_id.is_some() && ack.driver_id != driver_id {
        let why = format!("driver_id: the command is for {:?}", driver_id.unwrap_or_default());
        return Err(Refusal::RequestInvalid(why).into());
    }
    work.delete(key);
    let stops = turn.is_some_and(|turn| turn.stopping.as_deref() == Some(&*ack.command_id));
    if stops {
        // A driver that refuses to stop is stopped all the same: what it emits later reaches nobody.
        finish::finish(&mut work, turn_id, End::Stopped)?;
    }
    work.finish(&json!({ "acknowledged": true }))
}

/// The commands of a turn that has ended are void.
pub(super) fn forget_all(work: &mut Work<'_>) -> Result<(), Failure> {
    let under = RecordKey::of_session(work.session_id(), Space::Order);
    for (key, _) in work.view.records(&under, None, ORDERS_MAX)? {
        work.delete(key);
    }
    Ok(())
}
