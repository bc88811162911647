//! Owns: THE table of outcomes: every error code of the closed set, and how each door spells it.
//! Never: decide what went wrong; the machine, the adapter and the checks do.

use serde::Serialize;

use super::CallError;
use crate::machine::refusal::Refusal;
use crate::proposal::Undone;

/// How one code looks on every wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub code: &'static str,
    pub http_status: u16,
    /// Whether the same call may succeed later.
    pub retryable: bool,
}

pub const STORAGE: &str = "session/storage";

/// The closed set. A code that is not here does not leave the node.
pub const TABLE: [Row; 9] = [
    Row { code: "session/not_found", http_status: 404, retryable: false },
    Row { code: "session/entry_not_found", http_status: 404, retryable: false },
    Row { code: "session/parent_not_found", http_status: 404, retryable: false },
    Row { code: "session/invalid_entry_kind", http_status: 422, retryable: false },
    Row { code: "session/details_not_supported", http_status: 422, retryable: false },
    Row { code: "session/empty_batch", http_status: 400, retryable: false },
    Row { code: "session/invalid_cursor", http_status: 400, retryable: false },
    Row { code: "session/invalid_request", http_status: 400, retryable: false },
    Row { code: STORAGE, http_status: 503, retryable: true },
];

/// An error as the bus carries it. Clients look for the code inside the message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BusError {
    pub code: &'static str,
    pub message: String,
}

impl CallError {
    pub fn storage(why: impl Into<String>) -> CallError {
        CallError { code: STORAGE, message: why.into() }
    }

    pub fn bus(&self) -> BusError {
        BusError { code: "invocation_failed", message: format!("handler error: {self}") }
    }

    pub fn http_status(&self) -> u16 {
        self.row().map_or(500, |row| row.http_status)
    }

    pub fn is_retryable(&self) -> bool {
        self.row().is_some_and(|row| row.retryable)
    }

    fn row(&self) -> Option<&'static Row> {
        TABLE.iter().find(|row| row.code == self.code)
    }
}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> CallError {
        CallError { code: refusal.code(), message: refusal.to_string() }
    }
}

impl From<Undone> for CallError {
    fn from(undone: Undone) -> CallError {
        match undone {
            Undone::Refused(refusal) => CallError::from(refusal),
            Undone::RefusedThere { code, message } => CallError { code, message },
            Undone::Unavailable(why) => CallError::storage(why),
            Undone::OutcomeUnknown(why) => CallError::storage(format!("outcome unknown: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::machine::ids::{EntryId, SessionId};

    /// One of each. The match makes a new refusal fail to compile until it is listed here.
    fn refusals() -> Vec<Refusal> {
        let (session_id, entry_id) = (SessionId::from("s"), EntryId::from("e"));
        let all = vec![
            Refusal::SessionUnknown(session_id.clone()),
            Refusal::EntryUnknown { session_id: session_id.clone(), entry_id: entry_id.clone() },
            Refusal::ParentUnknown { session_id, parent_id: entry_id.clone() },
            Refusal::NotAMessage(entry_id.clone()),
            Refusal::DetailsNotSupported(entry_id),
            Refusal::EmptyBatch,
            Refusal::CursorInvalid(String::new()),
            Refusal::RequestInvalid(String::new()),
        ];
        for refusal in &all {
            match refusal {
                Refusal::SessionUnknown(_)
                | Refusal::EntryUnknown { .. }
                | Refusal::ParentUnknown { .. }
                | Refusal::NotAMessage(_)
                | Refusal::DetailsNotSupported(_)
                | Refusal::EmptyBatch
                | Refusal::CursorInvalid(_)
                | Refusal::RequestInvalid(_) => {}
            }
        }
        all
    }

    #[test]
    fn every_outcome_has_a_row_and_every_row_an_outcome() {
        let mut undone: Vec<Undone> = refusals().into_iter().map(Undone::Refused).collect();
        undone.push(Undone::Unavailable("no leader".to_owned()));
        undone.push(Undone::OutcomeUnknown("deadline".to_owned()));
        let errors: Vec<CallError> = undone.into_iter().map(CallError::from).collect();
        assert!(errors.iter().all(|error| error.row().is_some()));
        let refused: BTreeSet<&str> = refusals().iter().map(Refusal::code).collect();
        assert_eq!(refused, Refusal::CODES.into());
        let reached: BTreeSet<&str> = errors.iter().map(|error| error.code).collect();
        assert_eq!(reached, TABLE.iter().map(|row| row.code).collect());
    }

    #[test]
    fn only_storage_is_worth_a_retry() {
        for row in TABLE {
            assert_eq!(row.retryable, row.code == STORAGE);
            assert_eq!(row.http_status >= 500, row.retryable);
        }
    }

    #[test]
    fn an_error_reads_the_same_on_every_wire() {
        let error = CallError::from(Refusal::SessionUnknown(SessionId::from("s_1")));
        assert_eq!(error.to_string(), "session/not_found: no session \"s_1\"");
        let bus = error.bus();
        assert_eq!(bus.code, "invocation_failed");
        assert_eq!(bus.message, "handler error: session/not_found: no session \"s_1\"");
        assert_eq!(error.http_status(), 404);
    }

    #[test]
    fn an_unknown_outcome_says_so() {
        let error = CallError::from(Undone::OutcomeUnknown("the leader changed".to_owned()));
        assert_eq!(error.to_string(), "session/storage: outcome unknown: the leader changed");
    }
}
