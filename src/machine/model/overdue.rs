//! Owns: what happens when a time of the model is over. It has no effect if the session has another one by now: something
//! happened meanwhile, or another leader's command came first.

use serde_json::json;

use super::checkpoint::Reason;
use super::profile::{Profile, Status};
use super::scene::Scene;
use super::{checkpoints, records, timers, turns};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::json::Json;
use crate::machine::refusal::Failure;
use crate::machine::stamp::Stamp;
use crate::machine::turn::due::{Due, DueKind};
use crate::machine::view::View;

pub fn fire(view: &dyn View, stamp: &Stamp, due: &Due) -> Result<Outcome, Failure> {
    // Apply has raised the stamp, so a leader whose clock is behind never fires too early.
    if view.record(&due.key())?.is_none() || due.at_ms > stamp.at_ms {
        return Ok(Outcome::unchanged(Answer::Value(Json::adopt("{\"fired\":false}"))));
    }
    let Some(session_id) = &due.session_id else { return Ok(timers::void(stamp, due)) };
    let Some(profile) = records::profile(view, session_id)? else { return Ok(timers::void(stamp, due)) };
    if !stands(&profile, due) {
        return Ok(timers::void(stamp, due));
    }
    if due.kind == DueKind::ModelApproval {
        let mut outcome = turns::decide(view, stamp, session_id, &due.id, "timed_out")?;
        if !outcome.has_effect() {
            return Ok(timers::void(stamp, due));
        }
        outcome.changes.insert(0, Change::delete_record(due.key()));
        return Ok(outcome);
    }
    let mut scene = Scene::of(view, stamp, session_id, profile)?;
    scene.draft.change(Change::delete_record(due.key()));
    match due.kind {
        DueKind::ModelIdle => {
            scene.profile.idle_due = None;
            checkpoints::begin(&mut scene.hand(), Reason::Idle)?;
        }
        DueKind::ModelCheckpoint => checkpoints::finish(&mut scene, false, None)?,
        DueKind::ModelInactive => {
            scene.profile.inactive_due = None;
            let silent = stamp.at_ms - scene.profile.last_activity_at;
            match silent >= scene.profile.terms.inactive_ms && !scene.profile.is_busy() {
                true => scene.set_status(Status::Inactive),
                // Something happened meanwhile: look again later.
                false => {
                    scene.profile.last_activity_at = match scene.profile.is_busy() {
                        true => stamp.at_ms,
                        false => scene.profile.last_activity_at,
                    };
                    timers::watch_activity(&mut scene.draft, &mut scene.profile, stamp.at_ms);
                }
            }
        }
        DueKind::ModelApproval
        | DueKind::Claim
        | DueKind::Lease
        | DueKind::Driver
        | DueKind::Stop
        | DueKind::AskOthers
        | DueKind::Repeat => {}
    }
    scene.answer(json!({ "fired": true }))
}

/// Whether what a time was about is still so.
fn stands(profile: &Profile, due: &Due) -> bool {
    match due.kind {
        DueKind::ModelIdle => profile.idle_due == Some(due.at_ms),
        DueKind::ModelInactive => profile.inactive_due == Some(due.at_ms),
        DueKind::ModelCheckpoint => {
            let underway = profile.underway.as_ref();
            underway.is_some_and(|underway| underway.checkpoint_id == due.id && underway.due_at == due.at_ms)
        }
        // The same call may be asked about again in another turn.
        DueKind::ModelApproval => profile.asked_until.get(&due.id) == Some(&due.at_ms),
        DueKind::Claim | DueKind::AskOthers | DueKind::Lease | DueKind::Driver | DueKind::Stop | DueKind::Repeat => {
            false
        }
    }
}
