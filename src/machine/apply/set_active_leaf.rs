//! `session::set-active-leaf`: switches to another branch. Reports no event.

use super::{Draft, known, touched};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub struct SetActiveLeaf {
    pub session_id: SessionId,
    pub entry_id: EntryId,
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &SetActiveLeaf) -> Result<Outcome, Failure> {
    let SetActiveLeaf { session_id, entry_id } = command;
    let meta = known(view, session_id)?;
    if view.entry(session_id, entry_id)?.is_none() {
        let unknown = Refusal::EntryUnknown { session_id: session_id.clone(), entry_id: entry_id.clone() };
        return Err(unknown.into());
    }
    let answer = Answer::LeafSet { entry_id: entry_id.clone() };
    if view.leaf(session_id)?.as_ref() == Some(entry_id) {
        return Ok(Outcome::unchanged(answer));
    }
    let mut draft = Draft::new(view, session_id)?;
    draft.change(Change::set_leaf(session_id, entry_id.clone()));
    draft.change(Change::put_meta(touched(meta, stamp)));
    Ok(draft.answer(stamp, answer))
}
