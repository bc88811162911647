//! Owns: the commands of the state machine, their answers and their outcomes.
//! Never: what a command does. Its struct and its apply function are in `apply/`.

use std::sync::Arc;

use super::apply::append::AppendEntry;
use super::apply::append_many::AppendMany;
use super::apply::beside::Beside;
use super::apply::create::CreateSession;
use super::apply::delete::DeleteSession;
use super::apply::ensure::EnsureSession;
use super::apply::feed_order::FeedOrder;
use super::apply::fork::ForkSession;
use super::apply::import::{ImportEntries, Imported};
use super::apply::long::LongWork;
use super::apply::set_active_leaf::SetActiveLeaf;
use super::apply::set_meta::SetMeta;
use super::apply::set_status::SetStatus;
use super::apply::store::StoreWrite;
use super::apply::update_message::UpdateMessage;
use super::change::Change;
use super::event::Event;
use super::ids::{EntryId, RequestId, SessionId};
use super::json::Json;
use super::refusal::Refusal;
use super::scope::Scope;
use super::session::{SessionMeta, SessionStatus};
use super::stamp::Stamp;

/// A requested mutation, before it gets a time and ids.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    Create(CreateSession),
    Ensure(EnsureSession),
    SetMeta(SetMeta),
    SetStatus(SetStatus),
    Delete(DeleteSession),
    Append(AppendEntry),
    AppendMany(AppendMany),
    UpdateMessage(UpdateMessage),
    Fork(ForkSession),
    SetActiveLeaf(SetActiveLeaf),
    Import(ImportEntries),
    Store(StoreWrite),
    Feed(FeedOrder),
    Long(LongWork),
    Beside(Beside),
}

/// A command with the time and randomness that it gets before it enters the log. Apply depends on nothing else.
#[derive(Debug, Clone, PartialEq)]
pub struct Stamped {
    pub stamp: Stamp,
    /// Identifies this proposal across retries. A retry gets the answer of the first attempt.
    pub request_id: RequestId,
    /// True for a retry: an earlier attempt with the same id may have been applied.
    pub is_retry: bool,
    /// The caller sees only sessions with this metadata. Decided here, in the log, so that no race opens it.
    pub scope: Option<Arc<Scope>>,
    pub command: Command,
}

/// The result of a command, for its caller.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Created {
        meta: SessionMeta,
    },
    Ensured {
        meta: SessionMeta,
        created: bool,
    },
    MetaSet {
        meta: SessionMeta,
    },
    StatusSet {
        status: SessionStatus,
        previous: SessionStatus,
    },
    Deleted {
        deleted: bool,
    },
    Appended {
        entry_id: EntryId,
        parent_id: Option<EntryId>,
        timestamp: i64,
    },
    AppendedMany {
        entry_ids: Vec<EntryId>,
    },
    Updated {
        updated: bool,
        revision: u64,
    },
    /// A patched update found another content than its base, so nothing was changed. Only proposers see this answer.
    BaseMoved,
    /// A retry arrived after the answer of its first attempt had expired. Nothing was changed now; whether the first
    /// attempt was applied is unknown.
    Forgotten,
    Forked {
        meta: SessionMeta,
    },
    /// The fork is under way and not visible. Only proposers see this answer: they continue it to its end.
    ForkBegun {
        source: SessionId,
        fork: SessionId,
    },
    LeafSet {
        entry_id: EntryId,
    },
    Stored,
    Published {
        published: u64,
    },
    Imported {
        /// How many entries this batch added.
        added: u64,
        imported: Imported,
    },
    /// The answer to a command about records beside sessions.
    Value(Json),
}

/// Everything that applying one command produces. A refused command has no changes (except its recorded answer) and
/// no events.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub answer: Result<Answer, Refusal>,
    pub changes: Vec<Change>,
    pub events: Vec<Event>,
}

impl Outcome {
    /// An answer without changes: for example a repeated append or a stale revision.
    pub fn unchanged(answer: Answer) -> Outcome {
        Outcome { answer: Ok(answer), changes: Vec::new(), events: Vec::new() }
    }

    /// True if a caller could observe the outcome later. Recorded answers do not count: only retries see them.
    pub fn has_effect(&self) -> bool {
        self.changes.iter().any(|change| !matches!(change, Change::Answer(_)))
    }

    pub fn refused(refusal: Refusal) -> Outcome {
        Outcome { answer: Err(refusal), changes: Vec::new(), events: Vec::new() }
    }
}

impl Command {
    /// The session that a command is about, if it names one.
    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            Command::Create(_) => None,
            Command::Ensure(c) => Some(&c.session_id),
            Command::SetMeta(c) => Some(&c.session_id),
            Command::SetStatus(c) => Some(&c.session_id),
            Command::Delete(c) => Some(&c.session_id),
            Command::Append(c) => Some(&c.session_id),
            Command::AppendMany(c) => Some(&c.session_id),
            Command::UpdateMessage(c) => Some(&c.session_id),
            Command::Fork(c) => Some(&c.session_id),
            Command::SetActiveLeaf(c) => Some(&c.session_id),
            Command::Import(c) => Some(&c.session_id),
            Command::Store(c) => c.session_id(),
            Command::Feed(_) => None,
            Command::Long(work) => Some(work.session_id()),
            Command::Beside(command) => command.session_id(),
        }
    }
}
