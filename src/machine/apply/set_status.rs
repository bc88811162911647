//! `session::set-status`: changes the status. Setting the same status again changes nothing and reports no event.

use super::{Draft, known, touched};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::event::Happened;
use crate::machine::ids::SessionId;
use crate::machine::refusal::Failure;
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub struct SetStatus {
    pub session_id: SessionId,
    pub status: SessionStatus,
    pub reason: Option<String>,
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &SetStatus) -> Result<Outcome, Failure> {
    let old = known(view, &command.session_id)?;
    let (status, previous) = (command.status, old.status);
    if status == previous {
        return Ok(Outcome::unchanged(Answer::StatusSet { status, previous }));
    }
    let reason = command.reason.clone().filter(|_| status == SessionStatus::Error);
    let mut draft = Draft::new(view, &command.session_id)?;
    let meta = SessionMeta { status, status_reason: reason.clone(), ..touched(old, stamp) };
    draft.change(Change::put_meta(meta.clone()));
    let changed = Happened::StatusChanged { status, previous, reason, timestamp: stamp.at_ms };
    draft.report(changed, meta.metadata.as_ref());
    Ok(draft.answer(stamp, Answer::StatusSet { status, previous }))
}
