//! `session::set-meta`: replaces those of title, description and metadata that are given.

use super::{Draft, known, touched};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::event::Happened;
use crate::machine::ids::SessionId;
use crate::machine::json::Object;
use crate::machine::model;
use crate::machine::refusal::Failure;
use crate::machine::session::SessionMeta;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub struct SetMeta {
    pub session_id: SessionId,
    pub title: Option<String>,
    pub description: Option<String>,
    /// Replaces the whole stored object. A session of the session model keeps what says so.
    pub metadata: Option<Object>,
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &SetMeta) -> Result<Outcome, Failure> {
    let old = known(view, &command.session_id)?;
    if command.title.is_none() && command.description.is_none() && command.metadata.is_none() {
        return Ok(Outcome::unchanged(Answer::MetaSet { meta: old }));
    }
    let mut draft = Draft::new(view, &command.session_id)?;
    let old = touched(old, stamp);
    let metadata = match &command.metadata {
        Some(metadata) => Some(model::keep_mark(view, &old, metadata.clone())?),
        None => old.metadata,
    };
    let meta = SessionMeta {
        title: command.title.clone().unwrap_or(old.title),
        description: command.description.clone().unwrap_or(old.description),
        metadata,
        ..old
    };
    draft.change(Change::put_meta(meta.clone()));
    let updated = Happened::MetaUpdated {
        title: meta.title.clone(),
        description: meta.description.clone(),
        metadata: meta.metadata.clone(),
        timestamp: stamp.at_ms,
    };
    draft.report(updated, meta.metadata.as_ref());
    Ok(draft.answer(stamp, Answer::MetaSet { meta }))
}
