//! Owns: changes that would touch too many records for one command. A delete detaches the entries at once; a fork copies
//! them before it shows. What is detached is freed by many small commands that the leader proposes.

pub mod fork;

use super::{delete, import, store};
use crate::machine::apply::delete::DeleteSession;
use crate::machine::apply::fork::ForkSession;
use crate::machine::apply::import::{IfExists, ImportEntries};
use crate::machine::apply::store::StoreWrite;
use crate::machine::beside::RecordLeftover;
use crate::machine::change::{Change, RecordChange, SessionChange, WorkChange};
use crate::machine::command::{Answer, Command, Outcome};
use crate::machine::ids::SessionId;
use crate::machine::long::{Home, Leftover, PendingFork, Steps};
use crate::machine::path;
use crate::machine::refusal::{Failure, Fault};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// Bodies that one command may delete or copy at once.
const BYTES_MAX: usize = 1 << 20;

/// A fork that nobody continued for so long is given up.
pub const FORK_IDLE_MS: i64 = 30_000;

/// One command of a change that takes many, or a change that leaves most of its work to later commands.
#[derive(Debug, Clone, PartialEq)]
pub enum LongWork {
    Delete(DeleteSession),
    /// `session::store::delete-entries`.
    DeleteEntries(SessionId),
    /// A first batch that replaces a session.
    Import(Box<ImportEntries>),
    /// Frees records, at most so many.
    Free {
        leftover: Leftover,
        records: u32,
    },
    BeginFork(ForkSession),
    /// Copies records, at most so many; the last command shows the fork.
    ContinueFork {
        source: SessionId,
        fork: SessionId,
        records: u32,
    },
    GiveUpFork {
        source: SessionId,
        fork: SessionId,
    },
    /// Frees records beside a deleted session, at most so many.
    FreeRecords {
        leftover: RecordLeftover,
        records: u32,
    },
}

impl LongWork {
    pub fn grows(&self) -> bool {
        match self {
            LongWork::Delete(_)
            | LongWork::DeleteEntries(_)
            | LongWork::Free { .. }
            | LongWork::FreeRecords { .. }
            | LongWork::GiveUpFork { .. } => false,
            LongWork::Import(_) | LongWork::BeginFork(_) | LongWork::ContinueFork { .. } => true,
        }
    }

    pub fn session_id(&self) -> &SessionId {
        match self {
            LongWork::Delete(delete) => &delete.session_id,
            LongWork::DeleteEntries(session_id) => session_id,
            LongWork::Import(import) => &import.session_id,
            LongWork::Free { leftover, .. } => &leftover.session_id,
            LongWork::BeginFork(fork) => &fork.session_id,
            LongWork::ContinueFork { source, .. } | LongWork::GiveUpFork { source, .. } => source,
            LongWork::FreeRecords { leftover, .. } => &leftover.session_id,
        }
    }
}

/// How a command deletes the entries of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// In this command.
    Now,
    /// They are detached now and freed by later commands.
    Later,
}

pub fn apply(view: &dyn View, stamp: &Stamp, work: &LongWork) -> Result<Outcome, Failure> {
    match work {
        LongWork::Delete(command) => delete::remove(view, stamp, command, Removal::Later),
        LongWork::DeleteEntries(session_id) => store::delete_entries(view, stamp, session_id, Removal::Later),
        LongWork::Import(command) => import::write(view, stamp, command, Removal::Later),
        LongWork::Free { leftover, records } => free(view, stamp, leftover, *records),
        LongWork::BeginFork(command) => fork::begin(view, stamp, command),
        LongWork::ContinueFork { source, fork, records } => fork::go_on(view, stamp, source, fork, *records),
        LongWork::GiveUpFork { source, fork } => fork::give_up(view, stamp, source, fork),
        LongWork::FreeRecords { leftover, records } => free_records(view, stamp, leftover, *records),
    }
}

/// Whether `bounded` may change a command. It reads the state to find out.
pub fn may_be_long(command: &Command) -> bool {
    match command {
        Command::Delete(_)
        | Command::Store(StoreWrite::Session(_, SessionChange::DeleteEntries))
        | Command::Import(_)
        | Command::Fork(_) => true,
        Command::Create(_)
        | Command::Ensure(_)
        | Command::SetMeta(_)
        | Command::SetStatus(_)
        | Command::Append(_)
        | Command::AppendMany(_)
        | Command::UpdateMessage(_)
        | Command::SetActiveLeaf(_)
        | Command::Store(_)
        | Command::Feed(_)
        | Command::Beside(_)
        | Command::Long(_) => false,
    }
}

/// The form of a command that applies a bounded number of records; `None` if it is bounded as it is. A node calls it
/// before it stamps a command. Short sessions keep the plain commands, which every version reads.
pub fn bounded(view: &dyn View, command: &Command, steps: Steps) -> Result<Option<Command>, Fault> {
    let work = match command {
        Command::Delete(delete) if is_long(view, &delete.session_id, steps)? => LongWork::Delete(delete.clone()),
        Command::Store(StoreWrite::Session(session_id, SessionChange::DeleteEntries))
            if is_long(view, session_id, steps)? =>
        {
            LongWork::DeleteEntries(session_id.clone())
        }
        Command::Import(import)
            if import.first && import.if_exists == IfExists::Replace && is_long(view, &import.session_id, steps)? =>
        {
            LongWork::Import(Box::new(import.clone()))
        }
        Command::Fork(fork) if is_long_path(view, fork, steps)? => LongWork::BeginFork(fork.clone()),
        _short => return Ok(None),
    };
    Ok(Some(Command::Long(work)))
}

fn is_long(view: &dyn View, session_id: &SessionId, steps: Steps) -> Result<bool, Fault> {
    let first = view.entries_after(session_id, None, steps.long_after + 1, BYTES_MAX)?;
    match first.last() {
        Some(last) if first.len() <= steps.long_after => {
            Ok(!view.entries_after(session_id, Some(&last.id), 1, 0)?.is_empty())
        }
        Some(_) => Ok(true),
        None => Ok(false),
    }
}

/// Only a path whose entries have places can be copied piece by piece.
fn is_long_path(view: &dyn View, fork: &ForkSession, steps: Steps) -> Result<bool, Fault> {
    let Some(leaf) = view.entry(&fork.session_id, &fork.entry_id)? else { return Ok(false) };
    let Some(place) = &leaf.place else { return Ok(false) };
    if place.depth >= steps.long_after as u64 {
        return Ok(true);
    }
    let all = path::slice(view, &fork.session_id, &leaf, 0, place.depth + 1, BYTES_MAX)?;
    Ok(all.is_some_and(|all| (all.len() as u64) <= place.depth))
}

/// The next command that the leader owes the state: it frees what was left, and gives up what nobody continues.
pub fn due(view: &dyn View, now_ms: i64, steps: Steps) -> Result<Option<Command>, Fault> {
    let idle = |fork: &PendingFork| fork.moved_at.saturating_add(FORK_IDLE_MS) < now_ms;
    if let Some(PendingFork { source, fork, .. }) = view.forks()?.into_iter().find(idle) {
        return Ok(Some(Command::Long(LongWork::GiveUpFork { source, fork })));
    }
    if let Some(leftover) = view.leftovers(1)?.into_iter().next() {
        return Ok(Some(Command::Long(LongWork::Free { leftover, records: steps.records })));
    }
    let leftover = view.record_leftovers(1)?.into_iter().next();
    Ok(leftover.map(|leftover| Command::Long(LongWork::FreeRecords { leftover, records: steps.records })))
}

fn free_records(view: &dyn View, stamp: &Stamp, left: &RecordLeftover, records: u32) -> Result<Outcome, Failure> {
    if !view.is_record_leftover(left)? {
        return Ok(Outcome::unchanged(Answer::Stored));
    }
    let records = records.clamp(1, Steps::RECORDS_MAX);
    let free = Change::Record(RecordChange::Free { leftover: left.clone(), records });
    Ok(Outcome { answer: Ok(Answer::Stored), changes: vec![free, Change::Clock(stamp.at_ms)], events: Vec::new() })
}

fn free(view: &dyn View, stamp: &Stamp, leftover: &Leftover, records: u32) -> Result<Outcome, Failure> {
    // An earlier leader's command may have freed the last of them.
    if !view.is_leftover(leftover)? {
        return Ok(Outcome::unchanged(Answer::Stored));
    }
    let records = records.clamp(1, Steps::RECORDS_MAX);
    let free = Change::Work(WorkChange::Free { leftover: leftover.clone(), records });
    Ok(Outcome { answer: Ok(Answer::Stored), changes: vec![free, Change::Clock(stamp.at_ms)], events: Vec::new() })
}

/// The changes that take all entries from a session, and what is being copied from it.
pub(super) fn remove_entries(
    view: &dyn View,
    stamp: &Stamp,
    session_id: &SessionId,
    removal: Removal,
) -> Result<Vec<Change>, Fault> {
    let mut changes = Vec::new();
    for pending in view.forks_of(session_id)? {
        changes.extend(fork::ended(stamp, &pending));
    }
    changes.push(match removal {
        Removal::Now => Change::Session(session_id.clone(), SessionChange::DeleteEntries),
        Removal::Later => detached(stamp, session_id),
    });
    Ok(changes)
}

fn detached(stamp: &Stamp, session_id: &SessionId) -> Change {
    Change::Work(WorkChange::Detach { session_id: session_id.clone(), new_home: Home::new(stamp, session_id) })
}
