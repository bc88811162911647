//! How a decided command or query is executed.
//!
//! Owns: `Adapter`, and one implementation per place the data may live: `raft` (a member of a replicated cluster),
//! `local` (one process over JSONL files, or over memory in tests), `bridge` (a node whose data lives at a main).
//! May touch: the replication handle, the machine's vocabulary. Never: parse a request, deliver an event.

pub mod cursor;
pub mod presence;
pub mod retention;
pub mod bridge;
pub mod local;
pub mod long;
pub mod raft;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::machine::ids::RequestId;
use crate::machine::query::pieces::Pieces;
use crate::machine::refusal::{Fault, Refusal};
use crate::machine::scope::Scope;
use crate::machine::{Answer, Command, Found, Query};
pub use crate::mint;

/// A place the data may live. Every call ends by its deadline.
pub trait Adapter: Send + Sync + 'static {
    /// Executes a mutation. `Ok` means that it is durable and visible to every later linearizable `ask`.
    fn propose(&self, proposal: Proposal) -> BoxFuture<'_, Result<Answer, AdapterError>>;

    /// Does the part of a question that only waits, and returns how fresh the query must still be asked for. So a caller
    /// that takes turns for computing need not wait within its turn.
    fn catch_up(&self, freshness: Freshness, deadline: Instant) -> BoxFuture<'_, Result<Freshness, AdapterError>> {
        let _ = deadline;
        std::future::ready(Ok(freshness)).boxed()
    }

    /// Answers a query.
    fn ask(&self, query: Query, freshness: Freshness, deadline: Instant) -> BoxFuture<'_, Result<Found, AdapterError>>;

    /// Sends a call to the node that serves the same functions, if this adapter has such a main. `None`: execute it here.
    fn relay<'a>(
        &'a self,
        call: Relayed<'a>,
        deadline: Instant,
    ) -> Option<BoxFuture<'a, Result<String, AdapterError>>> {
        let _ = (call, deadline);
        None
    }
}

/// A mutation to execute.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    pub command: Command,
    /// Set by a caller that may have sent the mutation before without hearing the answer. All proposals under one id are
    /// applied at most once. `None`: the adapter mints an id for its own retries.
    pub request_id: Option<RequestId>,
    /// The caller sees only sessions with this metadata.
    pub scope: Option<Arc<Scope>>,
    pub deadline: Instant,
}

impl Proposal {
    /// A mutation that its caller sends only once.
    pub fn new(command: Command, deadline: Instant) -> Proposal {
        Proposal { command, request_id: None, scope: None, deadline }
    }
}

/// How new the answer to a query must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// At least as new as every mutation that was answered before the query, unless the node is configured to answer
    /// all reads locally.
    Linearizable,
    /// The state of this node, however old.
    Local,
}

/// A call that this node has checked and that another node may execute.
#[derive(Debug, Clone, Copy)]
pub struct Relayed<'a> {
    pub function_id: &'a str,
    /// A JSON object, or empty.
    pub body: &'a str,
    pub intent: Intent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    Change,
    /// A read. `page` is the page size of this node; the main may have another default.
    Read {
        page: Option<usize>,
    },
}

/// Why a call failed. The reasons are texts: they arrive as texts from leaders and mains, and no code depends on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdapterError {
    /// The state machine refused: final, and the same on every node.
    Refused(Refusal),
    /// The state machine of the main refused, with a code of the closed set and this message.
    RefusedByMain { code: &'static str, message: String },
    /// Nothing was written; a retry may succeed (no leader, no quorum, queue full, disk failure, deadline).
    Unavailable(String),
    /// The mutation may or may not have happened; only an idempotent retry is safe.
    OutcomeUnknown(String),
}

impl fmt::Display for AdapterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdapterError::Refused(refusal) => write!(f, "{}: {refusal}", refusal.code()),
            AdapterError::RefusedByMain { code, message } => write!(f, "{code}: {message}"),
            AdapterError::Unavailable(why) => write!(f, "session/storage: {why}"),
            AdapterError::OutcomeUnknown(why) => write!(f, "session/storage: outcome unknown: {why}"),
        }
    }
}

impl std::error::Error for AdapterError {}

/// Answers a query from the state here. A long list is read in pieces: `read` holds its lock for one of them, and others
/// have their turn in between.
async fn answer(
    query: &Query,
    read: impl Fn(&Query) -> Result<Result<Found, Refusal>, Fault>,
) -> Result<Found, AdapterError> {
    let one = |query: &Query| match read(query) {
        Ok(found) => found.map_err(AdapterError::Refused),
        Err(fault) => Err(AdapterError::Unavailable(fault.0)),
    };
    let Some(mut pieces) = Pieces::of(query) else { return one(query) };
    while let Some(piece) = pieces.next_query() {
        pieces.add(one(&piece)?).map_err(AdapterError::Refused)?;
        tokio::task::yield_now().await;
    }
    Ok(pieces.finish())
}

/// The answer to a retry that came after its first answer expired.
fn expired_retry() -> AdapterError {
    AdapterError::OutcomeUnknown("the retry came after the answer to the first attempt had expired".to_owned())
}
