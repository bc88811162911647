//! `session::deactivate`, `session::profile::delete`, `session::profile::set-description`,
//! `session::profile::set-working-memory` and `session::approve`.

use serde_json::json;

use super::profile::{Profile, Status};
use super::scene::{Asked, Scene, id_of};
use super::{checkpoints, records, turns};
use crate::machine::apply::delete::{self, DeleteSession};
use crate::machine::apply::long::Removal;
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::refusal::{Failure, Fault};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

pub fn describe(view: &dyn View, stamp: &Stamp, asked: &Asked<'_>, text: &str) -> Result<Outcome, Failure> {
    let store_id = id_of(asked);
    let (mut scene, _) = Scene::open(view, stamp, asked, &store_id)?;
    checkpoints::describe(&mut scene, text);
    scene.answer(json!({ "description": text }))
}

pub fn remember(view: &dyn View, stamp: &Stamp, asked: &Asked<'_>, text: &str) -> Result<Outcome, Failure> {
    let store_id = id_of(asked);
    let (mut scene, _) = Scene::open(view, stamp, asked, &store_id)?;
    checkpoints::remember(&mut scene, text);
    scene.answer(json!({ "updated_at": stamp.at_ms }))
}

/// Hides a session from lists. A session with an unfinished turn stays: its turn would wake it anyway.
pub fn deactivate(view: &dyn View, stamp: &Stamp, asked: &Asked<'_>) -> Result<Outcome, Failure> {
    let store_id = id_of(asked);
    let (mut scene, _) = Scene::open(view, stamp, asked, &store_id)?;
    if scene.profile.is_busy() {
        let answer = json!({ "deactivated": false, "reason": "a turn is unfinished" });
        return Ok(Outcome::unchanged(Answer::Value(Json::print(&answer))));
    }
    scene.profile.idle_due = None;
    scene.set_status(Status::Inactive);
    scene.answer(json!({ "deactivated": true }))
}

/// A decision about a tool call that waits for one. The first decision wins.
pub fn approve(
    view: &dyn View,
    stamp: &Stamp,
    asked: &Asked<'_>,
    tool_call_id: &str,
    approved: bool,
) -> Result<Outcome, Failure> {
    let store_id = id_of(asked);
    Scene::open(view, stamp, asked, &store_id)?;
    let decision = if approved { "approved" } else { "rejected" };
    turns::decide(view, stamp, &store_id, tool_call_id, decision)
}

/// Deletes a session that belongs to one person and is not working. A group keeps its history.
pub fn delete(view: &dyn View, stamp: &Stamp, asked: &Asked<'_>) -> Result<Outcome, Failure> {
    let store_id = id_of(asked);
    let (scene, _) = Scene::open(view, stamp, asked, &store_id)?;
    let conflict = match (scene.profile.source.is_group(), scene.profile.is_busy()) {
        (true, _) => Some("Cannot delete group sessions."),
        (false, true) => Some("Cannot delete a running session."),
        (false, false) => None,
    };
    if let Some(conflict) = conflict {
        let answer = json!({ "deleted": false, "conflict": conflict });
        return Ok(Outcome::unchanged(Answer::Value(Json::print(&answer))));
    }
    let command = DeleteSession { session_id: store_id.clone() };
    let mut outcome = delete::remove(view, stamp, &command, Removal::Later)?;
    outcome.answer = Ok(Answer::Value(Json::print(&json!({ "deleted": true }))));
    Ok(outcome)
}

/// What a deleted session leaves outside its own records. Those of the session go with it.
pub fn forget(view: &dyn View, session_id: &SessionId) -> Result<Vec<Change>, Fault> {
    let Some(profile) = records::profile(view, session_id)? else { return Ok(Vec::new()) };
    let mut changes = vec![Change::delete_record(records::activity_of(&profile))];
    let Profile { underway, ended, .. } = &profile;
    let ids = underway.iter().map(|underway| &underway.checkpoint_id);
    let ids = ids.chain(ended.iter().map(|ended| &ended.checkpoint_id));
    changes.extend(ids.map(|id| Change::delete_record(records::checkpoint_of_key(id))));
    Ok(changes)
}
