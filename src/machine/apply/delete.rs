//! `session::delete`: deletes a session with its entries. Its forks are separate sessions and stay.

use super::Draft;
use super::beside;
use super::long::{self, Removal};
use crate::machine::change::{Change, FeedChange, SessionChange};
use crate::machine::command::{Answer, Outcome};
use crate::machine::event::Happened;
use crate::machine::ids::SessionId;
use crate::machine::refusal::Failure;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub struct DeleteSession {
    pub session_id: SessionId,
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &DeleteSession) -> Result<Outcome, Failure> {
    remove(view, stamp, command, Removal::Now)
}

pub fn remove(view: &dyn View, stamp: &Stamp, command: &DeleteSession, removal: Removal) -> Result<Outcome, Failure> {
    let session_id = &command.session_id;
    let Some(meta) = view.meta(session_id)? else {
        return Ok(Outcome::unchanged(Answer::Deleted { deleted: false }));
    };
    let mut draft = Draft::new(view, session_id)?;
    draft.report(Happened::Deleted { timestamp: stamp.at_ms }, meta.metadata.as_ref());
    let mut outcome = draft.answer(stamp, Answer::Deleted { deleted: true });
    // The event sequence is deleted too: a later session with the same id starts at 1 again.
    outcome.changes = vec![Change::Session(session_id.clone(), SessionChange::DeleteMeta)];
    outcome.changes.extend(long::remove_entries(view, stamp, session_id, removal)?);
    outcome.changes.extend(beside::drop_session(view, session_id)?);
    outcome.changes.extend([
        Change::Session(session_id.clone(), SessionChange::DeleteLeaf),
        Change::Feed(FeedChange::SetSeq(session_id.clone(), None)),
        Change::Clock(stamp.at_ms),
    ]);
    Ok(outcome)
}
