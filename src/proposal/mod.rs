//! How a decision is carried out.
//!
//! Owns: the mint of time and randomness, the bounded queue with its deadlines, and one implementation of
//! `Adapter` per place the data may live: `raft` (a member of a replicated cluster), `local` (one process over JSONL
//! files, or over memory in tests), `bridge` (an edge whose data lives at a main).
//! May touch: the replication handle, the machine's vocabulary. Never: parse a request, deliver an event.

pub mod cursor;
pub mod mint;
pub mod retention;
pub mod bridge;
pub mod local;
pub mod raft;

use std::fmt;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::machine::ids::RequestId;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command, Found, Query};

/// A place the data may live. Calls that cannot be answered by their deadline fail; none hangs.
pub trait Adapter: Send + Sync + 'static {
    /// Orders a mutation. `Ok` means it is durable and visible to every later `ask`.
    fn propose(&self, command: Command, deadline: Instant) -> BoxFuture<'_, Result<Answer, Undone>>;

    /// Asks a question. The answer is at least as new as every mutation answered before the question was asked.
    fn ask(&self, query: Query, deadline: Instant) -> BoxFuture<'_, Result<Found, Undone>>;

    /// Asks what this node knows, however old: for callers who would rather have an answer now than the newest one.
    fn ask_here(&self, query: Query, deadline: Instant) -> BoxFuture<'_, Result<Found, Undone>> {
        self.ask(query, deadline)
    }

    /// Returns once this node knows all that was answered before now: it still belongs to what it serves.
    fn confirm(&self, deadline: Instant) -> BoxFuture<'_, Result<(), Undone>> {
        let _ = deadline;
        std::future::ready(Ok(())).boxed()
    }

    /// Orders a mutation under a name of its caller's, who may have ordered it before and not heard the answer: it
    /// happens once, however often it is ordered.
    fn propose_once(
        &self,
        command: Command,
        request_id: RequestId,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Answer, Undone>> {
        let _ = (command, request_id, deadline);
        let why = "this store does not remember what it was asked";
        std::future::ready(Err(Undone::Unavailable(why.to_owned()))).boxed()
    }

    /// Carries out a call by its text, where somebody else serves the same functions. `None`: it is decided here.
    fn relay<'a>(&'a self, call: Relayed<'a>, deadline: Instant) -> Option<BoxFuture<'a, Result<String, Undone>>> {
        let _ = (call, deadline);
        None
    }
}

/// A call that was checked here and may be decided elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct Relayed<'a> {
    pub function_id: &'a str,
    /// A JSON object, or nothing.
    pub body: &'a str,
    pub intent: Intent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    Change,
    /// Reads; a page has this size here, whatever it is elsewhere.
    Read {
        page: Option<usize>,
    },
}

/// Why a call was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undone {
    /// The machine said no: final, the same everywhere.
    Refused(Refusal),
    /// The machine of another node said no, with a code of the closed set and in these words.
    RefusedThere { code: &'static str, message: String },
    /// Nothing was written; a retry may succeed (no leader, no quorum, queue full, disk failure, deadline).
    Unavailable(String),
    /// The mutation may or may not have happened; a retry must be safe to repeat.
    OutcomeUnknown(String),
}

impl fmt::Display for Undone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undone::Refused(refusal) => write!(f, "{}: {refusal}", refusal.code()),
            Undone::RefusedThere { code, message } => write!(f, "{code}: {message}"),
            Undone::Unavailable(why) => write!(f, "session/storage: {why}"),
            Undone::OutcomeUnknown(why) => write!(f, "session/storage: outcome unknown: {why}"),
        }
    }
}
