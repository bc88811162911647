//! Owns: what can be ordered of the machine, and what it answers. Each command's struct lives with its apply.

use super::apply::append::AppendEntry;
use super::apply::append_many::AppendMany;
use super::apply::create::CreateSession;
use super::apply::delete::DeleteSession;
use super::apply::ensure::EnsureSession;
use super::apply::feed::FeedOrder;
use super::apply::fork::ForkSession;
use super::apply::set_active_leaf::SetActiveLeaf;
use super::apply::set_meta::SetMeta;
use super::apply::set_status::SetStatus;
use super::apply::store::StoreWrite;
use super::apply::update_message::UpdateMessage;
use super::event::Event;
use super::ids::{EntryId, RequestId, SessionId};
use super::refusal::Refusal;
use super::session::{SessionMeta, SessionStatus};
use super::stamp::Stamp;
use super::view::Change;

/// A mutation someone asked for. Nothing in it was minted.
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
    Store(StoreWrite),
    Feed(FeedOrder),
}

/// A command with the time and randomness it was given before the log: everything apply may depend on.
#[derive(Debug, Clone, PartialEq)]
pub struct Stamped {
    pub stamp: Stamp,
    /// Names this proposal across retries; a repeat is answered with the first outcome.
    pub request_id: RequestId,
    /// Whether this is a retry: an earlier attempt under the same id may have been applied.
    pub repeated: bool,
    pub command: Command,
}

/// What the caller is told.
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
    /// A patched update met another content than it was made for; nothing happened. Only proposers see this.
    BaseMoved,
    /// A retry came after its first attempt could be remembered: whether that was applied is not known, and nothing
    /// happened now.
    Forgotten,
    Forked {
        meta: SessionMeta,
    },
    LeafSet {
        entry_id: EntryId,
    },
    Stored,
    Published {
        published: u64,
    },
}

/// All that applying one command brings about. A refusal changes nothing and reports nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub answer: Result<Answer, Refusal>,
    pub changes: Vec<Change>,
    pub events: Vec<Event>,
}

impl Outcome {
    /// An answer that changed nothing: the repeat of an append, a stale revision.
    pub fn unchanged(answer: Answer) -> Outcome {
        Outcome { answer: Ok(answer), changes: Vec::new(), events: Vec::new() }
    }

    /// Whether it did something that somebody could see. What is remembered of an answer is for its repetitions alone.
    pub fn has_effect(&self) -> bool {
        self.changes.iter().any(|change| !matches!(change, Change::Remember(..) | Change::Forget(_)))
    }

    pub fn refused(refusal: Refusal) -> Outcome {
        Outcome { answer: Err(refusal), changes: Vec::new(), events: Vec::new() }
    }
}

impl Command {
    /// The session a command is about, where it names one.
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
            Command::Store(c) => c.session_id(),
            Command::Feed(_) => None,
        }
    }
}
