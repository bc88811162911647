//! Commands of a caller with a scope. A session outside the scope is not found, in the words an unknown id gets; a new
//! session gets the scope as metadata; and no command moves a session out of the scope.
//! Reads: View. Never: time, randomness, IO.

use super::decide;
use super::ensure::EnsureSession;
use super::import::{FinishImport, ImportEntries};
use super::long::LongWork;
use super::set_meta::SetMeta;
use crate::machine::apply::create::CreateSession;
use crate::machine::command::{Command, Outcome};
use crate::machine::ids::SessionId;
use crate::machine::json::Object;
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::scope::Scope;
use crate::machine::scoped_view::ScopedView;
use crate::machine::session::SessionMeta;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// Decides a command as the caller with this scope sees the state.
pub fn apply(view: &dyn View, stamp: &Stamp, scope: &Scope, command: &Command) -> Result<Outcome, Failure> {
    let changed;
    let command = match command {
        Command::Create(create) => {
            changed = Command::Create(stamped_create(scope, create)?);
            &changed
        }
        Command::Ensure(ensure) => {
            refuse_hidden(view, scope, &ensure.session_id)?;
            let session = stamped_create(scope, &ensure.session)?;
            changed = Command::Ensure(EnsureSession { session_id: ensure.session_id.clone(), session });
            &changed
        }
        Command::SetMeta(set) => {
            let metadata = set.metadata.as_ref().map(|metadata| stamped(scope, Some(metadata))).transpose()?;
            changed = Command::SetMeta(SetMeta { metadata, ..set.clone() });
            &changed
        }
        Command::Import(import) => {
            refuse_hidden(view, scope, &import.session_id)?;
            changed = Command::Import(stamped_import(scope, import)?);
            &changed
        }
        Command::Long(LongWork::Import(import)) => {
            refuse_hidden(view, scope, &import.session_id)?;
            changed = Command::Long(LongWork::Import(Box::new(stamped_import(scope, import)?)));
            &changed
        }
        // A fork takes over the metadata of its source, which is within the scope.
        Command::Fork(_)
        | Command::SetStatus(_)
        | Command::Delete(_)
        | Command::Append(_)
        | Command::AppendMany(_)
        | Command::UpdateMessage(_)
        | Command::SetActiveLeaf(_)
        | Command::Long(LongWork::Delete(_) | LongWork::BeginFork(_)) => command,
        // Its records are those of a session, or lead to one: `ScopedView` shows them if it shows the session.
        Command::Beside(beside) if !beside.is_internal() => command,
        Command::Long(LongWork::ContinueFork { source, fork, .. }) => {
            return go_on(view, stamp, scope, source, fork, command);
        }
        // The doors refuse these calls, and nodes propose the rest of long work without a scope. A log that has one
        // anyway is answered the same on every replica.
        Command::Store(_)
        | Command::Feed(_)
        | Command::Beside(_)
        | Command::Long(
            LongWork::DeleteEntries(_)
            | LongWork::Free { .. }
            | LongWork::FreeRecords { .. }
            | LongWork::GiveUpFork { .. },
        ) => {
            return Err(Refusal::RequestInvalid("a caller with a scope has no raw store".to_owned()).into());
        }
    };
    decide(&ScopedView::new(view, scope), stamp, command)
}

/// A fork takes many commands, and its source may leave the scope between two of them. The copies are not a session yet,
/// so the scope would hide them: the check is made first.
fn go_on(
    view: &dyn View,
    stamp: &Stamp,
    scope: &Scope,
    source: &SessionId,
    fork: &SessionId,
    command: &Command,
) -> Result<Outcome, Failure> {
    let scoped = ScopedView::new(view, scope);
    let left = |session_id: &SessionId| {
        Ok::<_, Failure>(view.meta(session_id)?.is_some() && scoped.meta(session_id)?.is_none())
    };
    if left(source)? || left(fork)? {
        return Err(Refusal::SessionUnknown(source.clone()).into());
    }
    decide(view, stamp, command)
}

/// A session that is created under an id of the caller's choice must not exist outside the scope, nor leave entries
/// there (an unfinished import), which would become part of the new session.
fn refuse_hidden(view: &dyn View, scope: &Scope, session_id: &SessionId) -> Result<(), Failure> {
    let hidden = match view.meta(session_id)? {
        Some(meta) => !scope.includes(meta.metadata.as_ref()),
        None => !view.entries_after(session_id, None, 1, 0)?.is_empty(),
    };
    if hidden {
        return Err(Refusal::SessionUnknown(session_id.clone()).into());
    }
    Ok(())
}

fn stamped_create(scope: &Scope, create: &CreateSession) -> Result<CreateSession, Refusal> {
    Ok(CreateSession { metadata: Some(stamped(scope, create.metadata.as_ref())?), ..create.clone() })
}

/// An import under a scope comes in one batch: entries without a session belong to nobody yet.
fn stamped_import(scope: &Scope, import: &ImportEntries) -> Result<ImportEntries, Refusal> {
    let Some(FinishImport { meta, leaf }) = import.finish.clone().filter(|_| import.first) else {
        let why = "a caller with a scope imports a session in one batch: send all entries in one call";
        return Err(Refusal::RequestInvalid(why.to_owned()));
    };
    let metadata = Some(stamped(scope, meta.metadata.as_ref())?);
    let finish = Some(FinishImport { meta: SessionMeta { metadata, ..meta }, leaf });
    Ok(ImportEntries { finish, ..import.clone() })
}

/// The metadata with the scope in it. Refuses metadata that contradicts the scope.
fn stamped(scope: &Scope, metadata: Option<&Object>) -> Result<Object, Refusal> {
    let mut metadata = metadata.cloned().unwrap_or_default();
    for (key, value) in scope.fields() {
        match metadata.get(key) {
            Some(given) if given != value => {
                let why = format!("metadata.{key}: this caller may only use {value}; leave the key out");
                return Err(Refusal::RequestInvalid(why));
            }
            Some(_) => {}
            None => {
                metadata.insert(key.clone(), value.clone());
            }
        }
    }
    Ok(metadata)
}
