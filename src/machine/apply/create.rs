//! `session::create`: creates a session with an id from the stamp.

use super::Draft;
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::event::Happened;
use crate::machine::ids::SessionId;
use crate::machine::json::Object;
use crate::machine::refusal::Failure;
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub struct CreateSession {
    pub title: String,
    pub description: String,
    pub metadata: Option<Object>,
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &CreateSession) -> Result<Outcome, Failure> {
    let session_id = stamp.session_id();
    let mut draft = Draft::new(view, &session_id)?;
    let meta = new_session(&session_id, stamp, command);
    draft.change(Change::put_meta(meta.clone()));
    draft.report(Happened::created(&meta), meta.metadata.as_ref());
    Ok(draft.answer(stamp, Answer::Created { meta }))
}

/// The record of a new session.
pub fn new_session(session_id: &SessionId, stamp: &Stamp, given: &CreateSession) -> SessionMeta {
    SessionMeta {
        session_id: session_id.clone(),
        title: given.title.clone(),
        description: given.description.clone(),
        status: SessionStatus::Idle,
        status_reason: None,
        message_count: 0,
        metadata: given.metadata.clone(),
        forked_from: None,
        created_at: stamp.at_ms,
        updated_at: stamp.at_ms,
    }
}
