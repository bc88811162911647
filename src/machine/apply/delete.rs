//! `session::delete`: removes a session with all it holds. Forks are sessions of their own and stay.

use super::Draft;
use crate::machine::command::{Answer, Outcome};
use crate::machine::event::Happened;
use crate::machine::ids::SessionId;
use crate::machine::refusal::Failure;
use crate::machine::stamp::Stamp;
use crate::machine::view::{Change, View};

#[derive(Debug, Clone, PartialEq)]
pub struct DeleteSession {
    pub session_id: SessionId,
}

pub fn apply<V: View + ?Sized>(view: &V, stamp: &Stamp, command: &DeleteSession) -> Result<Outcome, Failure> {
    let session_id = &command.session_id;
    let Some(meta) = view.meta(session_id)? else {
        return Ok(Outcome::unchanged(Answer::Deleted { deleted: false }));
    };
    let mut draft = Draft::new(view, session_id)?;
    draft.report(Happened::Deleted { timestamp: stamp.at_ms }, meta.metadata.as_ref());
    let mut outcome = draft.answer(stamp, Answer::Deleted { deleted: true });
    // The sequence ends with the session: a later session under the same id starts anew.
    outcome.changes = vec![
        Change::DeleteMeta(session_id.clone()),
        Change::DeleteEntries(session_id.clone()),
        Change::DeleteLeaf(session_id.clone()),
        Change::DeleteSeq(session_id.clone()),
        Change::SetClock(stamp.at_ms),
    ];
    Ok(outcome)
}
