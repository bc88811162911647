//! Questions about turns: the state of a session's stream, a page of its journal, the turns that wait, the drivers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::driver::{Agent, DriverRecord};
use super::events::Fields;
use super::record::{State, Stream, Turn, TurnState, Waiting, parse};
use super::reply;
use crate::machine::beside::{RecordKey, Space};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::session::SessionMeta;
use crate::machine::view::View;

/// Waiting turns that one question looks at.
const WAITING_MAX: usize = 1000;
/// The most that one page of a journal has.
pub const PAGE_MAX: usize = 500;
const PAGE_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Clone, PartialEq)]
pub enum TurnQuery {
    /// The attached drivers.
    Drivers,
    /// The state of a session's stream.
    Snapshot(SessionId),
    /// The kept events after a number.
    Journal { session_id: SessionId, after: u64, limit: usize },
    /// One turn.
    Turn(String),
    /// The turns that wait for a driver of such agents. What is `None` is not asked for.
    Pending(Agent),
}

impl TurnQuery {
    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            TurnQuery::Snapshot(session_id) | TurnQuery::Journal { session_id, .. } => Some(session_id),
            TurnQuery::Drivers | TurnQuery::Turn(_) | TurnQuery::Pending(_) => None,
        }
    }
}

/// The state of a session's stream at one number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub session: SessionMeta,
    pub state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub head_seq: u64,
    /// Kept events before this number are gone.
    pub oldest_seq: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_turn: Option<CurrentTurn>,
    pub queued: usize,
    /// The events that ask for something and are not answered, oldest first.
    pub pending_requests: Vec<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Fields>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity_at: Option<i64>,
}

/// The turn under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurrentTurn {
    pub turn_id: String,
    pub state: TurnState,
    pub text_so_far: String,
    pub thinking_so_far: String,
    /// The texts have the deltas up to this number.
    pub as_of_seq: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_entry_id: Option<EntryId>,
    pub tool_calls: Vec<super::record::ToolInFlight>,
}

// A page of a journal. This is no doc comment, because the published schema has none here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "EventsResponse")]
pub struct JournalPage {
    /// Oldest first, each with its `seq`. Numbers between them are events that are not kept.
    pub events: Vec<Json>,
    pub seqs: Vec<u64>,
    /// Every kept event up to this number is on this page or before it.
    pub upto: u64,
    pub more: bool,
    /// The number of the last event of the stream.
    pub head_seq: u64,
    /// Kept events before this number are gone.
    pub oldest_seq: u64,
}

pub fn query(view: &dyn View, query: &TurnQuery) -> Result<Json, Failure> {
    Ok(match query {
        TurnQuery::Drivers => Json::print(&DriverRecord::shown(view)?),
        TurnQuery::Snapshot(session_id) => Json::print(&snapshot(view, session_id)?),
        TurnQuery::Journal { session_id, after, limit } => Json::print(&journal(view, session_id, *after, *limit)?),
        TurnQuery::Turn(turn_id) => Json::print(&turn(view, turn_id)?),
        TurnQuery::Pending(agent) => Json::print(&serde_json::json!({ "turns": pending(view, agent)? })),
    })
}

/// One turn, if the caller sees its session.
pub fn turn(view: &dyn View, turn_id: &str) -> Result<Option<Turn>, Failure> {
    let Some(session_id) = Turn::session_of(view, turn_id)? else { return Ok(None) };
    Ok(Turn::read(view, &session_id, turn_id)?)
}

pub fn snapshot(view: &dyn View, session_id: &SessionId) -> Result<Snapshot, Failure> {
    let session = view.meta(session_id)?.ok_or_else(|| Refusal::SessionUnknown(session_id.clone()))?;
    let stream = Stream::read(view, session_id)?.unwrap_or_else(|| Stream {
        state: State::of_status(session.status),
        oldest_seq: 1,
        ..Stream::default()
    });
    let turn = match &stream.current {
        Some(turn_id) => Turn::read(view, session_id, turn_id)?.filter(|turn| !turn.offered),
        None => None,
    };
    let current_turn = match turn {
        Some(turn) => {
            let texts = reply::so_far(&turn, |entry_id| view.entry(session_id, entry_id))?;
            Some(CurrentTurn {
                turn_id: turn.turn_id,
                state: turn.state,
                text_so_far: texts.text,
                thinking_so_far: texts.thinking,
                as_of_seq: stream.head_seq,
                started_at: turn.started_at,
                message_entry_id: turn.message_entry_id,
                tool_calls: turn.tools,
            })
        }
        None => None,
    };
    Ok(Snapshot {
        session,
        state: stream.state,
        reason: stream.reason,
        head_seq: stream.head_seq,
        oldest_seq: stream.oldest_seq,
        current_turn,
        queued: stream.queue.len(),
        pending_requests: stream.requests.into_iter().map(|request| request.event).collect(),
        driver_id: stream.driver_id,
        mode: stream.mode,
        profile: stream.profile,
        settings: stream.settings,
        sandbox: stream.sandbox,
        last_activity_at: stream.last_activity_at,
    })
}

pub fn journal(view: &dyn View, session_id: &SessionId, after: u64, limit: usize) -> Result<JournalPage, Failure> {
    if view.meta(session_id)?.is_none() {
        return Err(Refusal::SessionUnknown(session_id.clone()).into());
    }
    let stream = Stream::read(view, session_id)?.unwrap_or_else(|| Stream { oldest_seq: 1, ..Stream::default() });
    let limit = limit.clamp(1, PAGE_MAX);
    let under = RecordKey::of_session(session_id, Space::Journal);
    let found = view.records(&under, Some(&Stream::journal_key(session_id, after)), limit)?;
    let full = found.len() == limit;
    let mut page = JournalPage {
        events: Vec::new(),
        seqs: Vec::new(),
        upto: stream.head_seq.max(after),
        more: false,
        head_seq: stream.head_seq,
        oldest_seq: stream.oldest_seq,
    };
    let (mut bytes, last) = (0, found.len());
    for (rank, (key, event)) in found.into_iter().enumerate() {
        let seq = key.number(0).unwrap_or(0);
        bytes += event.text().len();
        page.seqs.push(seq);
        page.events.push(event);
        let cut = bytes > PAGE_BYTES_MAX && rank + 1 < last;
        if cut || (full && rank + 1 == last) {
            (page.more, page.upto) = (true, seq);
            break;
        }
    }
    Ok(page)
}

/// The payloads of the turns that wait for a driver, oldest first.
pub fn pending(view: &dyn View, asked: &Agent) -> Result<Vec<Json>, Failure> {
    let fits = |wanted: &Option<String>, has: &Option<String>| wanted.is_none() || wanted == has;
    let mut found: Vec<(i64, Json)> = Vec::new();
    for (key, value) in view.records(&RecordKey::of_cluster(Space::Waiting), None, WAITING_MAX)? {
        let waiting: Waiting = parse(&key, &value)?;
        let turn_id = key.text(0).unwrap_or_default();
        // A caller with a scope does not see the records of other sessions.
        let Some(turn) = Turn::read(view, &waiting.session_id, turn_id)? else { continue };
        let is_current = waiting.payload.contains_key("claim_by");
        let agent = &turn.agent;
        if is_current
            && fits(&asked.agent_id, &agent.agent_id)
            && fits(&asked.agent_type, &agent.agent_type)
            && fits(&asked.tenant, &agent.tenant)
        {
            found.push((waiting.since, Json::print(&waiting.payload)));
        }
    }
    found.sort_by_key(|(since, _)| *since);
    Ok(found.into_iter().map(|(_, payload)| payload).collect())
}
