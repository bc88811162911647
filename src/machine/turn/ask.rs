//! Asking for a turn: it gets its record, its message and, at the head of its session's queue, its drivers.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::choose;
use super::driver::Agent;
use super::due::DueKind;
use super::events::Fields;
use super::record::{AskedEntry, State, Turn, TurnRef, TurnState, Unclaimed, Waiting};
use super::work::{Work, refused};
use crate::machine::change::Change;
use crate::machine::command::Outcome;
use crate::machine::entry::Body;
use crate::machine::event::EventKind;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::message::{Message, Role};
use crate::machine::refusal::{Failure, Fault};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// A driver that is attached must take a turn within this time.
pub const CLAIM_WITHIN_MS: i64 = 60_000;
/// A turn that is only offered is withdrawn after this time. The leader fires it up to half a second later, so that its
/// client knows within 5 s.
pub const OFFER_MS: i64 = 4_400;
/// The longest time that a turn may wait for a driver.
pub const CLAIM_WITHIN_MS_MAX: i64 = 24 * 60 * 60 * 1000;

/// Turns that may wait behind the current one of a session.
pub const QUEUE_MAX: usize = 64;
/// Turns of a session that are remembered, finished ones too.
pub const TURNS_MAX: usize = 64;
/// Records of an old turn that one command deletes.
const PRUNE_MAX: usize = 64;

/// Asks for a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AskTurn {
    pub session_id: SessionId,
    /// The door: `gateway`, `model` or `bus`.
    pub door: String,
    /// From the stamp when `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<String>,
    /// The client's own id of the request. The same id again gets the same turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whether it waits behind the current turn; else it is refused while there is one.
    #[serde(default)]
    pub queue: bool,
    #[serde(default)]
    pub agent: Agent,
    /// The message that the turn answers, to be added to the transcript.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<AskedEntry>,
    /// The message, if it is in the transcript already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_entry_id: Option<EntryId>,
    /// More fields of the payload of `session::turn::requested`.
    #[serde(default)]
    pub request: Fields,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_within_ms: Option<i64>,
    #[serde(default)]
    pub unclaimed: Unclaimed,
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &AskTurn) -> Result<Outcome, Failure> {
    let mut work = Work::open(view, stamp, &command.session_id)?;
    let answer = ask(&mut work, command)?;
    work.finish(&answer)
}

/// Asks for a turn as a part of a larger command. The answer has `turn_id`, or `refused` with a name for the doors.
pub fn ask(work: &mut Work<'_>, command: &AskTurn) -> Result<Value, Failure> {
    if let Some(key) = &command.key
        && let Some(known) = work.stream.turns.iter().find(|turn| turn.key.as_ref() == Some(key))
    {
        let turn_id = known.turn_id.clone();
        let turn = work.read_turn(&turn_id)?;
        return Ok(json!({
            "turn_id": turn_id,
            "repeated": true,
            "state": turn.as_ref().map(|turn| turn.state),
            "offered": turn.as_ref().is_some_and(|turn| turn.offered),
            "entry_id": turn.and_then(|turn| turn.message_entry_id),
        }));
    }
    let busy = work.stream.current.is_some();
    let may_begin = matches!(work.stream.state, State::Inactive | State::Ready | State::Error);
    if !command.queue && (busy || !may_begin) {
        let why = format!("the session is {}: wait until its turn has ended, or stop it", work.stream.state.name());
        return Ok(refused("TurnInProgress", &why));
    }
    if busy && work.stream.queue.len() >= QUEUE_MAX {
        let why = format!("{QUEUE_MAX} turns wait in this session already");
        return Ok(refused("QueueFull", &why));
    }
    let turn_id = command.turn_id.clone().unwrap_or_else(|| work.stamp.turn_id());
    let offered = command.unclaimed == Unclaimed::Withdraw && choose::fitting(work, &command.agent)?.is_empty();
    let wait_ms = match command.claim_within_ms {
        Some(asked) => asked.clamp(0, CLAIM_WITHIN_MS_MAX),
        None if offered => OFFER_MS,
        None => CLAIM_WITHIN_MS,
    };
    let mut turn = Turn {
        turn_id: turn_id.clone(),
        session_id: command.session_id.clone(),
        state: TurnState::Queued,
        door: command.door.clone(),
        asked_by: command.asked_by.clone(),
        key: command.key.clone(),
        message_entry_id: command.message_entry_id.clone(),
        agent: command.agent.clone(),
        driver_id: None,
        asked_first: None,
        lease_until: None,
        next_n: 1,
        asked_at: work.now(),
        started_at: None,
        ended_at: None,
        // Counted from the moment it is at the head of the queue.
        claim_by: Some(wait_ms),
        unclaimed: command.unclaimed,
        offered,
        replies: Vec::new(),
        open: None,
        says_all: false,
        delta_name: None,
        usage: None,
        tools: Vec::new(),
        batches: Vec::new(),
        stopping: None,
        next_command: 1,
        error: None,
    };
    let mut entry = command.entry.clone();
    if let Some(entry) = entry.take_if(|_| !offered) {
        turn.message_entry_id = Some(add_message(work, &turn_id, entry)?);
    }
    work.put(Turn::index_key(&turn_id), &command.session_id);
    let waiting =
        Waiting { session_id: command.session_id.clone(), payload: command.request.clone(), entry, since: work.now() };
    work.stream.turns.push(TurnRef { turn_id: turn_id.clone(), key: command.key.clone() });
    work.stream.last_activity_at = Some(work.now());
    prune(work)?;
    let entry_id = turn.message_entry_id.clone();
    if busy {
        work.stream.queue.push(turn_id.clone());
        work.put(Waiting::key(&turn_id), &waiting);
        work.put_turn(turn);
    } else {
        request(work, turn, waiting)?;
    }
    Ok(json!({
        "turn_id": turn_id, "entry_id": entry_id, "queued": busy, "offered": offered, "state": TurnState::Queued,
    }))
}

/// Adds the message that a turn answers.
pub(super) fn add_message(work: &mut Work<'_>, turn_id: &str, entry: AskedEntry) -> Result<EntryId, Fault> {
    let entry_id = entry.entry_id.unwrap_or_else(|| EntryId::from(format!("{turn_id}.u")));
    let body = Body::Message(Message { role: Role::User, body: entry.message });
    work.append(entry_id.clone(), entry.origin, body)?;
    Ok(entry_id)
}

/// Makes a turn the current one and tells the drivers.
pub(super) fn request(work: &mut Work<'_>, mut turn: Turn, mut waiting: Waiting) -> Result<(), Failure> {
    let wait_ms = turn.claim_by.unwrap_or(CLAIM_WITHIN_MS);
    let claim_by = work.now().saturating_add(wait_ms);
    turn.claim_by = Some(claim_by);
    work.stream.current = Some(turn.turn_id.clone());
    choose::ask_one(work, &mut turn, wait_ms)?;
    if !turn.offered {
        if work.stream.state == State::Error {
            work.become_state(State::Inactive, None)?;
        }
        if work.stream.state == State::Inactive {
            work.become_state(State::Activating, None)?;
        }
    }
    let (mode, profile) = (work.stream.mode.as_ref().map(Json::print), work.stream.profile.as_ref().map(Json::print));
    let settings = work.stream.settings.clone();
    let payload = &mut waiting.payload;
    payload.insert("turn_id".to_owned(), Json::print(&turn.turn_id));
    payload.insert("session_id".to_owned(), Json::print(&turn.session_id));
    let mut named = |name: &str, value: Option<Json>| {
        if let Some(value) = value {
            payload.insert(name.to_owned(), value);
        }
    };
    named("agent_id", turn.agent.agent_id.as_ref().map(Json::print));
    named("agent_type", turn.agent.agent_type.as_ref().map(Json::print));
    named("tenant", turn.agent.tenant.as_ref().map(Json::print));
    // What people chose while no turn was under way.
    named("mode", mode);
    named("profile", profile);
    named("settings", settings);
    named("entry_id", turn.message_entry_id.as_ref().map(Json::print));
    named("claim_by", Some(Json::print(&claim_by)));
    named(choose::ASKED, turn.asked_first.as_ref().map(Json::print));
    let printed = Json::print(&waiting.payload);
    work.put(Waiting::key(&turn.turn_id), &waiting);
    work.due(claim_by, DueKind::Claim, &turn.turn_id);
    work.put_turn(turn);
    work.note(EventKind::TurnRequested, printed, true);
    Ok(())
}

/// After a turn has ended: requests the next one of the queue.
pub(super) fn next_in_queue(work: &mut Work<'_>) -> Result<(), Failure> {
    while work.stream.current.is_none() && !work.stream.queue.is_empty() {
        let turn_id = work.stream.queue.remove(0);
        let Some(turn) = work.read_turn(&turn_id)?.filter(|turn| turn.state == TurnState::Queued) else { continue };
        let waiting = Waiting::read(work.view, &turn_id)?;
        let waiting = waiting.unwrap_or_else(|| Waiting {
            session_id: turn.session_id.clone(),
            payload: Fields::new(),
            entry: None,
            since: turn.asked_at,
        });
        request(work, turn, waiting)?;
    }
    Ok(())
}

/// Takes back a turn that was only offered. Nothing of it is left; the door that offered it hears of it.
pub(super) fn withdraw(work: &mut Work<'_>, mut turn: Turn) -> Result<(), Failure> {
    work.stream.turns.retain(|known| known.turn_id != turn.turn_id);
    if work.stream.current.as_deref() == Some(&turn.turn_id) {
        work.stream.current = None;
    }
    choose::give_back(work, &mut turn);
    work.delete(Waiting::key(&turn.turn_id));
    work.delete(Turn::index_key(&turn.turn_id));
    let payload = json!({ "turn_id": turn.turn_id, "session_id": turn.session_id, "refused": "AgentUnavailable" });
    work.note(EventKind::StreamEvent, Json::print(&payload), false);
    work.delete(Turn::key(&turn.session_id, &turn.turn_id));
    work.forget_turn(&turn.turn_id);
    next_in_queue(work)
}

/// Forgets the oldest finished turns of a session.
fn prune(work: &mut Work<'_>) -> Result<(), Failure> {
    while work.stream.turns.len() > TURNS_MAX {
        let oldest = work.stream.turns[0].turn_id.clone();
        let is_over = work.read_turn(&oldest)?.is_none_or(|turn| turn.state.is_over());
        if !is_over {
            return Ok(());
        }
        let under = Turn::key(work.session_id(), &oldest);
        let found = work.view.records(&under, None, PRUNE_MAX + 1)?;
        let more = found.len() > PRUNE_MAX;
        // The turn itself goes last, with the last of its marks.
        for (key, _) in found.into_iter().take(PRUNE_MAX) {
            if !more || key != under {
                work.delete(key);
            }
        }
        if more {
            return Ok(());
        }
        work.forget_turn(&oldest);
        work.delete(Turn::index_key(&oldest));
        work.stream.turns.remove(0);
    }
    Ok(())
}

/// The changes that delete the records of the cluster that lead to a session.
pub fn forget_session(view: &dyn View, session_id: &SessionId) -> Result<Vec<Change>, Fault> {
    let Some(stream) = super::record::Stream::read(view, session_id)? else { return Ok(Vec::new()) };
    let mut changes = Vec::new();
    for turn in &stream.turns {
        changes.push(Change::delete_record(Turn::index_key(&turn.turn_id)));
    }
    for turn_id in stream.current.iter().chain(&stream.queue) {
        changes.push(Change::delete_record(Waiting::key(turn_id)));
    }
    changes.extend(choose::keys_of(view, &stream, session_id)?.into_iter().map(Change::delete_record));
    Ok(changes)
}
