//! Owns: the two ways a mutation can fail. A `Refusal` is an answer, equal on every replica; a `Fault` is local and
//! stops the node.

use std::fmt;

use super::ids::{EntryId, SessionId};

/// Why the machine said no. Nothing was written and no event fired.
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
    /// The entry is bookkeeping where a message is needed.
    NotAMessage(EntryId),
    /// Only function results and custom messages carry `details`.
    DetailsNotSupported(EntryId),
    EmptyBatch,
    /// The cursor is not ours, belongs to another order, or its entry left the path.
    CursorInvalid(String),
    /// The request makes no sense against the state, for the reason given.
    RequestInvalid(String),
}

impl Refusal {
    /// Every code a refusal may have.
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

    /// The stable code of the closed set in the API contract.
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

/// This node cannot read or write its own state. Not an answer: the caller may retry elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault(pub String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

/// Either kind, for code that reads state and may refuse.
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
