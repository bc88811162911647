//! Owns: what the events of a turn, and entries that come from elsewhere, mean for the profile of a session: counts, status,
//! the words of the stream, and what is due after a turn. Commands about turns and appends call it.

use serde_json::json;

use super::checkpoint::{Reason, turn_limit_reached};
use super::profile::{Profile, Status};
use super::scene::{Fields, Hand, trim, write_profile};
use super::spelling::{self, Means};
use super::{checkpoints, names, records, texts, timers};
use crate::machine::apply::Draft;
use crate::machine::entry::{Body, Entry};
use crate::machine::ids::EntryId;
use crate::machine::json::{Json, Object};
use crate::machine::message::Role;
use crate::machine::refusal::{Failure, Fault};
use crate::machine::session::SessionMeta;
use crate::machine::stamp::Stamp;
use crate::machine::turn::due::DueKind;
use crate::machine::turn::reply;
use crate::machine::view::View;

/// A person has this long to decide about a tool call.
const APPROVAL_MS: i64 = 120_000;
/// Tool calls in flight whose names are remembered.
const CALLS_MAX: usize = 64;

/// An event of a session's stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Heard {
    pub name: String,
    pub turn_id: Option<String>,
    /// The entry of the message that asked for the turn.
    pub message_entry_id: Option<EntryId>,
    pub fields: Fields,
}

/// A text that an event of the model has, and that a driver may leave out: the reply says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    pub name: &'static str,
    is_thinking: bool,
}

impl Missing {
    pub fn of(self, texts: reply::Texts) -> String {
        if self.is_thinking { texts.thinking } else { texts.text }
    }
}

/// The text that an event lacks.
pub fn missing_text(heard: &Heard) -> Option<Missing> {
    let (name, is_thinking) = match heard.name.as_str() {
        "turn_complete" => ("finalText", false),
        "thinking_complete" => ("text", true),
        _other => return None,
    };
    let given = heard.fields.get(name).and_then(|text| text.parse::<String>().ok()).unwrap_or_default();
    given.is_empty().then_some(Missing { name, is_thinking })
}

/// Only sessions of the model have this field in their metadata: the others cost no read.
const MARK: &str = "profile";

pub fn is_of_model(metadata: Option<&Object>) -> bool {
    metadata.is_some_and(|metadata| metadata.contains_key(MARK))
}

/// Metadata that a client of the store writes. A session of the model keeps its mark, or its stream would end here.
pub fn keep_mark(view: &dyn View, old: &SessionMeta, mut metadata: Object) -> Result<Object, Fault> {
    let mark = old.metadata.as_ref().and_then(|metadata| metadata.get(MARK));
    if let Some(mark) = mark
        && records::profile(view, &old.session_id)?.is_some()
    {
        metadata.insert(MARK.to_owned(), mark.clone());
    }
    Ok(metadata)
}

/// The record that the transcript of a session of the model keeps of an event. Others have none.
pub fn record_of(metadata: Option<&Object>, heard: &Heard) -> Option<(EntryId, Body)> {
    if !is_of_model(metadata) {
        return None;
    }
    let turn_id = heard.turn_id.as_deref().unwrap_or("turn");
    let text = |name: &str| heard.fields.get(name).and_then(|text| text.parse::<String>().ok()).unwrap_or_default();
    let (kind, id, data) = match heard.name.as_str() {
        "turn_error" => ("error", format!("{turn_id}.error"), Json::print(&json!({ "message": text("message") }))),
        "permission_requested" => {
            let id = heard.fields.get("toolCallId").map_or_else(|| text("requestId"), |_| text("toolCallId"));
            let mut data = Fields::from([
                ("toolName".to_owned(), Json::print(&text("toolName"))),
                ("toolCallId".to_owned(), Json::print(&id)),
            ]);
            data.extend(heard.fields.get("args").map(|args| ("args".to_owned(), args.clone())));
            ("tool_approval_required", format!("{turn_id}.asked.{id}"), Json::print(&data))
        }
        "approval_resolved" => {
            let request_id = text("requestId");
            let data = json!({ "toolCallId": request_id, "decision": text("decision") });
            ("approval_resolved", format!("{turn_id}.approval.{request_id}"), Json::print(&data))
        }
        "channel_message_sent" => {
            let mut data = json!({ "channel": text("channel"), "to": text("to"), "text": text("text") });
            if heard.fields.contains_key("messageId") {
                data["messageId"] = json!(text("messageId"));
            }
            let seq = heard.fields.get("seq").map_or("", |seq| seq.text());
            ("channel_message_sent", format!("{turn_id}.sent.{seq}"), Json::print(&data))
        }
        _other => return None,
    };
    let body = Body::Custom { custom_type: format!("profile/{kind}"), data };
    Some((EntryId::from(id), body))
}

/// What one command about turns did to a session.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'b> {
    pub events: &'b [Heard],
    /// New assistant messages with text or thinking.
    pub new_replies: u64,
    /// Whether a turn of the session waits or runs after the command.
    pub is_busy: bool,
}

/// Follows the events of a turn. A session without a profile is left alone.
pub fn follow(
    view: &dyn View,
    stamp: &Stamp,
    draft: &mut Draft<'_>,
    metadata: Option<&Object>,
    batch: &Batch<'_>,
) -> Result<(), Failure> {
    let concerns = |heard: &Heard| spelling::is_told(&heard.name) || spelling::meaning(&heard.name) != Means::Nothing;
    if !is_of_model(metadata) || !batch.events.iter().any(concerns) {
        return Ok(());
    }
    let Some(before) = records::profile(view, draft.session_id)? else { return Ok(()) };
    let mut profile = before.clone();
    profile.message_count += batch.new_replies;
    profile.counted.rows += batch.new_replies;
    for heard in batch.events {
        let mut hand = Hand { view, stamp: *stamp, draft, metadata, profile: &mut profile };
        hear(&mut hand, heard, batch.is_busy)?;
    }
    trim(view, draft, &mut profile)?;
    write_profile(draft, Some(&before), &profile);
    Ok(())
}

fn hear(hand: &mut Hand<'_, '_>, heard: &Heard, is_busy: bool) -> Result<(), Failure> {
    let text = |name: &str| heard.fields.get(name).and_then(|text| text.parse::<String>().ok());
    let message_id = heard.message_entry_id.as_ref().and_then(|id| names::message_id(id.as_str()));
    let means = spelling::meaning(&heard.name);
    // 1. Counts and status.
    match means {
        Means::Started => hand.profile.status = Status::Running,
        Means::Calls => {
            if let (Some(id), Some(name)) = (text("toolCallId"), text("toolName"))
                && hand.profile.calls.len() < CALLS_MAX
            {
                hand.profile.calls.insert(id, name);
            }
        }
        Means::AsksPerson => {
            hand.profile.status = Status::AwaitingApproval;
            let id = text("toolCallId").or(text("requestId")).unwrap_or_default();
            let until = hand.stamp.at_ms + APPROVAL_MS;
            timers::set(hand.draft, DueKind::ModelApproval, until, &id);
            hand.profile.asked_until.insert(id, until);
        }
        Means::PersonAnswered => {
            for name in ["toolCallId", "requestId"] {
                hand.profile.asked_until.remove(&text(name).unwrap_or_default());
            }
            // Another call may still wait.
            if hand.profile.asked_until.is_empty() {
                hand.profile.status = Status::Running;
            }
        }
        Means::SaidAll => show(hand.profile, text("text")),
        Means::Completed => {
            show(hand.profile, text("finalText"));
            hand.profile.completed_turn_count += 1;
            hand.profile.counted.turns += 1;
        }
        Means::Failed => hand.profile.counted.rows += 1,
        Means::Stopped => {}
        Means::Nothing => {}
    }
    // 2. The stream.
    for mut told in spelling::tell(&heard.name, &heard.fields) {
        if let ("agent_end", Some(message_id)) = (told.kind, message_id) {
            told.fields.insert("messageId".to_owned(), Json::print(&message_id));
        }
        if told.kind == "tool_result" {
            let call = text("toolCallId").unwrap_or_default();
            if let Some(name) = hand.profile.calls.remove(&call) {
                told.fields.insert("tool".to_owned(), Json::print(&name));
            }
        }
        hand.stream(told.kind, told.fields, message_id);
    }
    // 3. What follows from the end of a turn.
    if matches!(means, Means::Completed | Means::Failed | Means::Stopped) {
        hand.profile.calls.clear();
        hand.profile.asked_until.clear();
        hand.profile.last_activity_at = hand.profile.last_activity_at.max(hand.stamp.at_ms);
        ended(hand, means == Means::Completed, is_busy)?;
    }
    Ok(())
}

/// A list shows the last message.
fn show(profile: &mut Profile, said: Option<String>) {
    if let Some(said) = said.filter(|said| !said.is_empty()) {
        profile.preview = Some(texts::preview(&said));
    }
}

fn ended(hand: &mut Hand<'_, '_>, well: bool, is_busy: bool) -> Result<(), Failure> {
    if is_busy {
        hand.profile.status = Status::Running;
        return Ok(());
    }
    hand.profile.status = Status::Idle;
    // A checkpoint that waited for this, or one that is due now.
    checkpoints::request(hand)?;
    let turns_max = hand.profile.terms.checkpoint_turns;
    if well && turn_limit_reached(&hand.profile.counted, &hand.profile.cursor, turns_max) {
        checkpoints::begin(hand, Reason::TurnLimit)?;
    }
    if hand.profile.terms.idle_ms > 0 {
        let due = hand.stamp.at_ms + hand.profile.terms.idle_ms;
        hand.profile.idle_due = Some(due);
        timers::set(hand.draft, DueKind::ModelIdle, due, "");
    }
    Ok(())
}

/// Entries that were appended through the store's own functions: they are told, and trigger nothing.
pub fn appended(
    view: &dyn View,
    stamp: &Stamp,
    draft: &mut Draft<'_>,
    metadata: Option<&Object>,
    entries: &[Entry],
) -> Result<(), Failure> {
    if !is_of_model(metadata) {
        return Ok(());
    }
    let Some(before) = records::profile(view, draft.session_id)? else { return Ok(()) };
    let mut profile = before.clone();
    for entry in entries {
        let Body::Message(message) = &entry.body else { continue };
        let kind = match message.role {
            Role::User => "user_message",
            Role::Assistant => "text_final",
            Role::FunctionResult | Role::Custom => continue,
        };
        let text = reply::texts(&entry.body).text;
        profile.message_count += 1;
        profile.counted.rows += 1;
        profile.last_activity_at = profile.last_activity_at.max(stamp.at_ms);
        profile.preview = Some(texts::preview(&text));
        let fields = Fields::from([("text".to_owned(), Json::print(&text))]);
        Hand { view, stamp: *stamp, draft, metadata, profile: &mut profile }.stream(kind, fields, None);
    }
    trim(view, draft, &mut profile)?;
    write_profile(draft, Some(&before), &profile);
    Ok(())
}
