//! Owns: the arithmetic of a session's checkpoints: what one covers, when one is due by itself, and what its result changes.
//! A checkpoint asks a worker to look back over the conversation. The worker writes back what it learned.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a checkpoint is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "CheckpointReason")]
pub enum Reason {
    #[default]
    Manual,
    NewSession,
    TurnLimit,
    Idle,
}

impl Reason {
    pub fn name(self) -> &'static str {
        match self {
            Reason::Manual => "manual",
            Reason::NewSession => "new_session",
            Reason::TurnLimit => "turn_limit",
            Reason::Idle => "idle",
        }
    }
}

/// What a session has counted. Only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// The last event of the stream.
    pub event_id: u64,
    /// Rows of users, assistants and errors: what a checkpoint covers.
    pub rows: u64,
    /// Turns that ended well.
    pub turns: u64,
    /// Messages that asked for no turn.
    pub passive: u64,
}

/// How far a checkpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Waits for the end of unfinished turns.
    Waiting,
    /// A worker was asked.
    Requested,
    /// A worker took it.
    Claimed,
}

/// The checkpoint that is under way. A session has at most one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Underway {
    pub checkpoint_id: String,
    pub reason: Reason,
    pub stage: Stage,
    /// What the checkpoint covers ends here. Set when a worker is asked.
    pub upto: Counted,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_id: Option<String>,
    /// When it ends without a result, in milliseconds.
    pub due_at: i64,
    /// The session was replaced by a new one meanwhile, so it becomes inactive at the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub then_inactive: bool,
}

/// How a checkpoint ended, for those who wait for it and for a worker that repeats its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub checkpoint_id: String,
    pub checkpointed: bool,
}

/// Whether there is anything that no checkpoint has covered.
pub fn has_news(counted: &Counted, cursor: &Counted) -> bool {
    counted.rows > cursor.rows
}

/// Whether the end of a turn asks for a checkpoint.
pub fn turn_limit_reached(counted: &Counted, cursor: &Counted, turns_max: u64) -> bool {
    turns_max > 0 && counted.turns.saturating_sub(cursor.turns) >= turns_max
}

/// Whether a message without a turn asks for a checkpoint.
pub fn passive_limit_reached(counted: &Counted, cursor: &Counted, passive_max: u64) -> bool {
    passive_max > 0 && counted.passive.saturating_sub(cursor.passive) >= passive_max
}

/// The cursor after a result: a failure leaves it where it was, so that the next one covers the same rows again.
pub fn cursor_after(cursor: &Counted, upto: &Counted, success: bool) -> Counted {
    if success { *upto } else { *cursor }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(rows: u64, turns: u64, passive: u64) -> Counted {
        Counted { event_id: rows * 3, rows, turns, passive }
    }

    #[test]
    fn a_failed_checkpoint_covers_the_same_rows_again() {
        let (cursor, now) = (counted(2, 1, 0), counted(5, 2, 0));
        assert!(has_news(&now, &cursor));
        assert_eq!(cursor_after(&cursor, &now, false), cursor);
        let moved = cursor_after(&cursor, &now, true);
        assert!(!has_news(&now, &moved) && has_news(&counted(6, 2, 0), &moved));
    }

    #[test]
    fn limits_count_from_the_cursor_and_zero_is_off() {
        let cursor = counted(0, 3, 7);
        assert!(!turn_limit_reached(&counted(9, 7, 7), &cursor, 5));
        assert!(turn_limit_reached(&counted(9, 8, 7), &cursor, 5));
        assert!(!turn_limit_reached(&counted(9, 80, 7), &cursor, 0));
        assert!(!passive_limit_reached(&counted(9, 3, 26), &cursor, 20));
        assert!(passive_limit_reached(&counted(9, 3, 27), &cursor, 20));
    }
}
