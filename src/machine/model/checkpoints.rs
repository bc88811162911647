//! `session::checkpoint` and what belongs to it: one checkpoint at a time is under way in a session. It waits for the end of
//! unfinished turns, then a worker is asked, takes it, and writes back what it learned.

use serde_json::{Value, json};

use super::checkpoint::{Ended, Reason, Stage, Underway, cursor_after, has_news};
use super::profile::{DescriptionSource, Status};
use super::records::{self, CheckpointOf, WorkingMemory};
use super::scene::{Asked, Hand, Scene, id_of};
use super::timers;
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::event::EventKind;
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::turn::due::DueKind;
use crate::machine::view::View;

/// How long a worker has to take a checkpoint.
const CLAIM_MS: i64 = 10_000;
/// How long a worker may take for it.
const WORK_MS: i64 = 300_000;

/// What a worker writes back.
#[derive(Debug, Clone, Copy)]
pub struct Learned<'a> {
    pub success: bool,
    pub summary: Option<&'a str>,
    pub working_memory: Option<&'a str>,
    pub description: Option<&'a str>,
}

/// What became of the wish for a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    Yes,
    /// Everything is covered already.
    NothingNew,
    /// Another one is under way.
    Busy,
}

pub fn ask(view: &dyn View, stamp: &Stamp, asked: &Asked<'_>, reason: Reason) -> Result<Outcome, Failure> {
    let store_id = id_of(asked);
    let (mut scene, _) = Scene::open(view, stamp, asked, &store_id)?;
    let begun = begin(&mut scene.hand(), reason)?;
    if begun != Begun::Yes && reason == Reason::NewSession {
        // Whatever comes of it, the session is replaced: now, or when the turn and the other checkpoint have ended.
        if !scene.profile.is_busy() {
            scene.set_status(Status::Inactive);
        } else if let Some(underway) = &mut scene.profile.underway {
            underway.then_inactive = true;
        }
    }
    let checkpoint_id = match begun {
        Begun::Yes => scene.profile.underway.as_ref().map(|underway| underway.checkpoint_id.clone()),
        Begun::NothingNew | Begun::Busy => None,
    };
    scene.answer(json!({ "begun": begun == Begun::Yes, "checkpoint_id": checkpoint_id }))
}

/// Begins a checkpoint, if there is anything to look back at.
pub fn begin(hand: &mut Hand<'_, '_>, reason: Reason) -> Result<Begun, Failure> {
    if hand.profile.underway.is_some() {
        return Ok(Begun::Busy);
    }
    if !has_news(&hand.profile.counted, &hand.profile.cursor) {
        return Ok(Begun::NothingNew);
    }
    const CHECKPOINT_ORDINAL: u64 = 1001; // after the ids of entries and users
    let checkpoint_id = hand.stamp.entry_id(CHECKPOINT_ORDINAL).as_str().replacen("e_", "cp_", 1);
    let of = CheckpointOf { session_id: hand.draft.session_id.clone() };
    hand.draft.change(Change::put_record(records::checkpoint_of_key(&checkpoint_id), Json::print(&of)));
    hand.profile.underway = Some(Underway {
        checkpoint_id,
        reason,
        stage: Stage::Waiting,
        upto: hand.profile.counted,
        driver_id: None,
        due_at: 0,
        then_inactive: reason == Reason::NewSession,
    });
    if !hand.profile.is_busy() {
        request(hand)?;
    }
    Ok(Begun::Yes)
}

/// Asks for a worker. Called when no turn is unfinished.
pub fn request(hand: &mut Hand<'_, '_>) -> Result<(), Failure> {
    let counted = hand.profile.counted;
    let Some(underway) = hand.profile.underway.as_mut().filter(|underway| underway.stage == Stage::Waiting) else {
        return Ok(());
    };
    underway.stage = Stage::Requested;
    underway.upto = counted;
    underway.due_at = hand.stamp.at_ms + CLAIM_MS;
    let (underway, profile) = (underway.clone(), &*hand.profile);
    let mut wanted = json!({
        "checkpoint_id": underway.checkpoint_id,
        "agent_id": profile.agent_id,
        "session_id": hand.draft.session_id.as_str(),
        "reason": underway.reason,
        "after_event_id": profile.cursor.event_id,
        "up_to_event_id": underway.upto.event_id,
        "turns_since_last": profile.counted.turns.saturating_sub(profile.cursor.turns),
    });
    if let Some(memory) = records::memory(hand.view, hand.draft.session_id)? {
        wanted["working_memory"] = Value::from(memory.text);
    }
    if let Some(description) = &profile.description {
        wanted["description"] = Value::from(description.as_str());
    }
    hand.draft.note(EventKind::CheckpointRequested, Json::print(&wanted), true, hand.metadata);
    timers::set(hand.draft, DueKind::ModelCheckpoint, underway.due_at, &underway.checkpoint_id);
    Ok(())
}

/// The session of a checkpoint that is under way or was the last one.
fn session_of(view: &dyn View, checkpoint_id: &str) -> Result<SessionId, Failure> {
    let of: Option<CheckpointOf> = records::read(view, &records::checkpoint_of_key(checkpoint_id))?;
    let unknown = || Refusal::RequestInvalid("checkpoint_id: there is no such checkpoint, or not any more".to_owned());
    Ok(of.ok_or_else(unknown)?.session_id)
}

fn scene_of<'a>(view: &'a dyn View, stamp: &Stamp, session_id: &'a SessionId) -> Result<Scene<'a>, Failure> {
    let profile = records::profile(view, session_id)?.ok_or_else(|| Refusal::SessionUnknown(session_id.clone()))?;
    Scene::of(view, stamp, session_id, profile)
}

/// A worker takes a checkpoint. One wins; to ask again is to go on with it.
pub fn claim(view: &dyn View, stamp: &Stamp, checkpoint_id: &str, driver_id: &str) -> Result<Outcome, Failure> {
    let session_id = session_of(view, checkpoint_id)?;
    let mut scene = scene_of(view, stamp, &session_id)?;
    let mine = scene.profile.underway.as_mut().filter(|underway| underway.checkpoint_id == checkpoint_id);
    let Some(underway) = mine else { return Ok(unchanged(json!({ "claimed": false }))) };
    match underway.stage {
        Stage::Waiting => return Ok(unchanged(json!({ "claimed": false }))),
        Stage::Claimed => {
            let claimed = underway.driver_id.as_deref() == Some(driver_id);
            return Ok(unchanged(json!({ "claimed": claimed, "lease_until": underway.due_at })));
        }
        Stage::Requested => {}
    }
    underway.stage = Stage::Claimed;
    underway.driver_id = Some(driver_id.to_owned());
    underway.due_at = stamp.at_ms + WORK_MS;
    let (reason, due_at) = (underway.reason, underway.due_at);
    let turns = scene.profile.counted.turns.saturating_sub(scene.profile.cursor.turns);
    scene.append_record("introspection_start", 0, json!({ "reason": reason, "turnsSinceLast": turns }))?;
    timers::set(&mut scene.draft, DueKind::ModelCheckpoint, due_at, checkpoint_id);
    scene.answer(json!({ "claimed": true, "lease_until": due_at }))
}

fn unchanged(answer: Value) -> Outcome {
    Outcome::unchanged(Answer::Value(Json::print(&answer)))
}

/// A worker writes back what it learned. Repeating it changes nothing.
pub fn end(view: &dyn View, stamp: &Stamp, checkpoint_id: &str, learned: &Learned<'_>) -> Result<Outcome, Failure> {
    let session_id = session_of(view, checkpoint_id)?;
    let mut scene = scene_of(view, stamp, &session_id)?;
    if scene.profile.underway.as_ref().is_none_or(|underway| underway.checkpoint_id != checkpoint_id) {
        let ended = scene.profile.ended.as_ref().is_some_and(|ended| ended.checkpointed);
        return Ok(unchanged(json!({ "accepted": false, "checkpointed": ended })));
    }
    if learned.success {
        if let Some(text) = learned.working_memory {
            remember(&mut scene, text);
        }
        if let Some(text) = learned.description {
            describe(&mut scene, text);
        }
    }
    finish(&mut scene, learned.success, learned.summary)?;
    scene.answer(json!({ "accepted": true, "checkpointed": learned.success }))
}

/// Ends the checkpoint that is under way.
pub fn finish(scene: &mut Scene<'_>, success: bool, summary: Option<&str>) -> Result<(), Failure> {
    let Some(underway) = scene.profile.underway.take() else { return Ok(()) };
    if underway.stage == Stage::Claimed {
        let rows = underway.upto.rows.saturating_sub(scene.profile.cursor.rows);
        let ended =
            json!({ "reason": underway.reason, "summary": summary, "success": success, "counts": { "rows": rows } });
        scene.append_record("introspection_end", 1, ended)?;
    }
    scene.profile.cursor = cursor_after(&scene.profile.cursor, &underway.upto, success);
    if let Some(before) = scene.profile.ended.take() {
        scene.draft.change(Change::delete_record(records::checkpoint_of_key(&before.checkpoint_id)));
    }
    scene.profile.ended = Some(Ended { checkpoint_id: underway.checkpoint_id, checkpointed: success });
    if underway.then_inactive && !scene.profile.is_busy() {
        scene.set_status(Status::Inactive);
    }
    Ok(())
}

pub fn remember(scene: &mut Scene<'_>, text: &str) {
    let memory = WorkingMemory { text: text.to_owned(), updated_at: scene.stamp.at_ms };
    let key = records::memory_key(scene.draft.session_id);
    scene.draft.change(Change::put_record(key, Json::print(&memory)));
}

pub fn describe(scene: &mut Scene<'_>, text: &str) {
    scene.profile.description = Some(text.to_owned());
    scene.profile.description_source = Some(DescriptionSource::Ai);
    if scene.meta.description != text {
        scene.meta.description = text.to_owned();
        scene.report_meta();
    }
}
