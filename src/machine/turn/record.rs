//! Owns: the records of a turn and of a session's stream, as JSON in the state. Add optional fields, change none.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::driver::Agent;
use super::events::Fields;
use crate::machine::beside::{RecordKey, Space};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::refusal::Fault;
use crate::machine::session::SessionStatus;
use crate::machine::view::View;

/// What a session's agent is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    #[default]
    Inactive,
    Activating,
    Ready,
    Running,
    Waiting,
    Deactivating,
    Error,
}

impl State {
    pub const ALL: [State; 7] = [
        State::Inactive,
        State::Activating,
        State::Ready,
        State::Running,
        State::Waiting,
        State::Deactivating,
        State::Error,
    ];

    pub fn name(self) -> &'static str {
        match self {
            State::Inactive => "inactive",
            State::Activating => "activating",
            State::Ready => "ready",
            State::Running => "running",
            State::Waiting => "waiting",
            State::Deactivating => "deactivating",
            State::Error => "error",
        }
    }

    /// Drivers may say `idle` for ready.
    pub fn parse(name: &str) -> Option<State> {
        if name == "idle" {
            return Some(State::Ready);
        }
        State::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether the machine lets it follow this one.
    pub fn may_become(self, next: State) -> bool {
        use State::{Activating, Deactivating, Error, Inactive, Ready, Running, Waiting};
        let followers: &[State] = match self {
            Inactive => &[Activating],
            Activating => &[Ready, Error, Inactive],
            Ready => &[Running, Deactivating, Inactive, Error],
            Running => &[Ready, Waiting, Error, Deactivating],
            Waiting => &[Running, Ready, Error, Deactivating],
            Deactivating => &[Inactive, Error],
            Error => &[Deactivating, Inactive],
        };
        followers.contains(&next)
    }

    /// The status of the session that goes with it.
    pub fn status(self) -> SessionStatus {
        match self {
            State::Inactive | State::Ready | State::Deactivating => SessionStatus::Idle,
            State::Activating | State::Running | State::Waiting => SessionStatus::Working,
            State::Error => SessionStatus::Error,
        }
    }

    /// The state of a session that has no stream yet.
    pub fn of_status(status: SessionStatus) -> State {
        match status {
            SessionStatus::Idle | SessionStatus::Done => State::Inactive,
            SessionStatus::Working => State::Running,
            SessionStatus::Error => State::Error,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnState {
    Queued,
    Claimed,
    Running,
    /// For a person.
    Waiting,
    Done,
    Failed,
    Stopped,
}

impl TurnState {
    pub fn is_over(self) -> bool {
        matches!(self, TurnState::Done | TurnState::Failed | TurnState::Stopped)
    }

    pub fn name(self) -> &'static str {
        match self {
            TurnState::Queued => "queued",
            TurnState::Claimed => "claimed",
            TurnState::Running => "running",
            TurnState::Waiting => "waiting",
            TurnState::Done => "done",
            TurnState::Failed => "failed",
            TurnState::Stopped => "stopped",
        }
    }
}

/// What happens to a turn that no driver claims in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unclaimed {
    #[default]
    Fail,
    /// If no driver is attached that could take it, it is only offered, and withdrawn without a trace.
    Withdraw,
}

/// A message that a turn adds to the transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AskedEntry {
    /// `<turn_id>.u` when `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<EntryId>,
    /// The text of a user message; the door has validated it.
    pub message: Json,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Json>,
}

/// One run of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    pub turn_id: String,
    pub session_id: SessionId,
    pub state: TurnState,
    /// The door it was asked for at.
    pub door: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<String>,
    /// The client's own id of the request: a repeated request finds its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_entry_id: Option<EntryId>,
    #[serde(default)]
    pub agent: Agent,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_id: Option<String>,
    /// The driver that is asked first, while nobody has claimed it and the others are not asked yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_first: Option<String>,
    /// The driver must be heard of before this time. `None` while nobody has claimed it, and while it waits for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<i64>,
    /// The number of the driver's next batch.
    pub next_n: u64,
    pub asked_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<i64>,
    /// Somebody must claim it before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_by: Option<i64>,
    #[serde(default)]
    pub unclaimed: Unclaimed,
    /// Nothing of it is visible yet: it is withdrawn unless a driver claims it.
    #[serde(default)]
    pub offered: bool,
    /// The assistant entries of the turn, oldest first.
    #[serde(default)]
    pub replies: Vec<EntryId>,
    /// The last of `replies` still grows; the kind of its last block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<Block>,
    /// The driver has said that the text of all replies together is what the turn says in the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub says_all: bool,
    /// Of `text_delta` and `message.delta`, the one that grows the reply: the first that the turn used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageSoFar>,
    /// Tool calls without a result.
    #[serde(default)]
    pub tools: Vec<ToolInFlight>,
    /// The numbers that recent batches got, for repeats.
    #[serde(default)]
    pub batches: Vec<Batch>,
    /// The stop command that the driver has not acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping: Option<String>,
    /// The number of the next command to its driver.
    #[serde(default)]
    pub next_command: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
}

/// The kind of the last block of a growing reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Block {
    Text,
    Thinking,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnError {
    pub code: String,
    pub message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UsageSoFar {
    pub model: Option<String>,
    pub provider: Option<String>,
    pub input: Option<u64>,
    pub output: Option<u64>,
    pub cache_read: Option<u64>,
    pub cost_micro_dollars: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolInFlight {
    pub tool_call_id: String,
    pub tool_name: String,
    #[serde(default)]
    pub args_so_far: String,
    /// Its `tool_call` came: the arguments are complete.
    #[serde(default)]
    pub called: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub n: u64,
    /// One per event; `None` for events without a number.
    pub seqs: Vec<Option<u64>>,
}

/// What a person was asked and has not answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenRequest {
    pub request_id: String,
    pub turn_id: String,
    /// The event that asked.
    pub event: Json,
    pub asked_at: i64,
}

/// A turn in the list of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnRef {
    pub turn_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The stream of a session: what both doors read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    pub state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The number of the last event; 0 before the first.
    pub head_seq: u64,
    /// Events before this number are gone from the journal.
    #[serde(default)]
    pub oldest_seq: u64,
    #[serde(default)]
    pub journal_bytes: u64,
    /// The turn that is unfinished and requested or claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// Turns after it, in order.
    #[serde(default)]
    pub queue: Vec<String>,
    /// The newest turns, oldest first, finished ones too.
    #[serde(default)]
    pub turns: Vec<TurnRef>,
    #[serde(default)]
    pub requests: Vec<OpenRequest>,
    /// The driver of the last turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Json>,
    /// Where the agent works, as its driver told it: `provider`, `status` and what else the last event said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Fields>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity_at: Option<i64>,
}

/// A turn that waits for a driver, as drivers hear of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    pub session_id: SessionId,
    /// The payload of `session::turn::requested`.
    pub payload: Fields,
    /// The message that is added when the turn is claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<AskedEntry>,
    pub since: i64,
}

impl Turn {
    pub fn key(session_id: &SessionId, turn_id: &str) -> RecordKey {
        RecordKey::of_session(session_id, Space::Turn).with(turn_id)
    }

    /// The number of an event that must not count twice.
    pub fn mark_key(session_id: &SessionId, turn_id: &str, mark: &str) -> RecordKey {
        Turn::key(session_id, turn_id).with(mark)
    }

    /// The session that a turn belongs to.
    pub fn index_key(turn_id: &str) -> RecordKey {
        RecordKey::of_cluster(Space::TurnOf).with(turn_id)
    }

    pub fn read(view: &dyn View, session_id: &SessionId, turn_id: &str) -> Result<Option<Turn>, Fault> {
        read(view, &Turn::key(session_id, turn_id))
    }

    pub fn session_of(view: &dyn View, turn_id: &str) -> Result<Option<SessionId>, Fault> {
        read(view, &Turn::index_key(turn_id))
    }
}

impl Stream {
    pub fn key(session_id: &SessionId) -> RecordKey {
        RecordKey::of_session(session_id, Space::Stream)
    }

    pub fn read(view: &dyn View, session_id: &SessionId) -> Result<Option<Stream>, Fault> {
        read(view, &Stream::key(session_id))
    }

    pub fn journal_key(session_id: &SessionId, seq: u64) -> RecordKey {
        RecordKey::of_session(session_id, Space::Journal).with(seq)
    }

    pub fn order_key(session_id: &SessionId, command_id: &str) -> RecordKey {
        RecordKey::of_session(session_id, Space::Order).with(command_id)
    }
}

impl Waiting {
    pub fn key(turn_id: &str) -> RecordKey {
        RecordKey::of_cluster(Space::Waiting).with(turn_id)
    }

    pub fn read(view: &dyn View, turn_id: &str) -> Result<Option<Waiting>, Fault> {
        read(view, &Waiting::key(turn_id))
    }
}

/// Reads a record of a known type.
pub fn read<T: DeserializeOwned>(view: &dyn View, key: &RecordKey) -> Result<Option<T>, Fault> {
    let Some(value) = view.record(key)? else { return Ok(None) };
    parse(key, &value).map(Some)
}

pub fn parse<T: DeserializeOwned>(key: &RecordKey, value: &Json) -> Result<T, Fault> {
    value.parse().map_err(|error| Fault(format!("damaged record {key:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_specified_states_follow_each_other() {
        let legal: Vec<String> = State::ALL
            .into_iter()
            .flat_map(|from| State::ALL.into_iter().filter(move |to| from.may_become(*to)).map(move |to| (from, to)))
            .map(|(from, to)| format!("{}>{}", from.name(), to.name()))
            .collect();
        assert_eq!(
            legal.join(" "),
            "inactive>activating activating>inactive activating>ready activating>error ready>inactive ready>running \
             ready>deactivating ready>error running>ready running>waiting running>deactivating running>error \
             waiting>ready waiting>running waiting>deactivating waiting>error deactivating>inactive \
             deactivating>error error>inactive error>deactivating"
        );
        assert_eq!(State::parse("idle"), Some(State::Ready));
        assert_eq!(State::parse("asleep"), None);
    }
}
