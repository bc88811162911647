//! Owns: the two ways a mutation can fail. A `Refusal` is an answer and equal on every replica. A `Fault` is local to
//! one node and stops it.

use std::fmt;

use super::ids::{EntryId, SessionId};

/// Why the machine refused a command or query. Nothing was written and there is no event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    SessionUnknown(SessionId),
    EntryUnknown {
        session_id: SessionId,
        entry_id: EntryId,
    },
    ParentUnknown {
        session_id: SessionId,
        parent_id: EntryId,
    },
    /// The entry is a custom entry where a message is needed.
    NotAMessage(EntryId),
    /// Only function results and custom messages carry `details`.
    DetailsNotSupported(EntryId),
    EmptyBatch,
    /// The cursor is malformed, belongs to another order, or its entry is no longer on the path.
    CursorInvalid(String),
    /// The request contradicts the state. The text says how, and names the field.
    RequestInvalid(String),
}

impl Refusal {
    /// All codes of refusals.
    pub const CODES: [&'static str; 8] = [
        "session/not_found",
        "session/entry_not_found",
        "session/parent_not_found",
        "session/invalid_entry_kind",
        "session/details_not_supported",
        "session/empty_batch",
        "session/invalid_cursor",
        "session/invalid_request",
    ];

    /// The error code of the API. Codes never change.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::SessionUnknown(_) => "session/not_found",
            Refusal::EntryUnknown { .. } => "session/entry_not_found",
            Refusal::ParentUnknown { .. } => "session/parent_not_found",
            Refusal::NotAMessage(_) => "session/invalid_entry_kind",
            Refusal::DetailsNotSupported(_) => "session/details_not_supported",
            Refusal::EmptyBatch => "session/empty_batch",
            Refusal::CursorInvalid(_) => "session/invalid_cursor",
            Refusal::RequestInvalid(_) => "session/invalid_request",
        }
    }
}

impl fmt::Display for Refusal {
    /// The message without its code.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::SessionUnknown(id) => write!(f, "no session {id:?}", id = id.as_str()),
            Refusal::EntryUnknown { session_id, entry_id } => {
                write!(f, "no entry {:?} in session {:?}", entry_id.as_str(), session_id.as_str())
            }
            Refusal::ParentUnknown { session_id, parent_id } => {
                write!(f, "parent_id {:?} is no entry of session {:?}", parent_id.as_str(), session_id.as_str())
            }
            Refusal::NotAMessage(id) => write!(f, "entry {:?} is a custom entry, not a message", id.as_str()),
            Refusal::DetailsNotSupported(id) => {
                write!(f, "entry {:?}: only function_result and custom messages carry details", id.as_str())
            }
            Refusal::EmptyBatch => f.write_str("messages is empty: give at least one message"),
            Refusal::CursorInvalid(why) | Refusal::RequestInvalid(why) => f.write_str(why),
        }
    }
}

/// This node cannot read or write its own state. Not an answer: the caller may retry on another node.
/// One sentence for the operator. No code branches on it: every fault has the same consequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault(pub String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

/// Either kind, for code that reads the state and may refuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    Refused(Refusal),
    Broken(Fault),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        Failure::Broken(fault)
    }
}
