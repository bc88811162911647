//! `session::ensure`: creates a session with the given id if it is missing, otherwise only reads it.

use super::Draft;
use super::create::{CreateSession, new_session};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::event::Happened;
use crate::machine::ids::SessionId;
use crate::machine::refusal::Failure;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub struct EnsureSession {
    pub session_id: SessionId,
    /// Applied only when the session is created.
    pub session: CreateSession,
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &EnsureSession) -> Result<Outcome, Failure> {
    if let Some(meta) = view.meta(&command.session_id)? {
        return Ok(Outcome::unchanged(Answer::Ensured { meta, created: false }));
    }
    let mut draft = Draft::new(view, &command.session_id)?;
    let meta = new_session(&command.session_id, stamp, &command.session);
    draft.change(Change::put_meta(meta.clone()));
    draft.report(Happened::created(&meta), meta.metadata.as_ref());
    Ok(draft.answer(stamp, Answer::Ensured { meta, created: true }))
}
