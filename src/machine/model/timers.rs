//! Owns: the times of the model: when a session is idle, inactive, or waits in vain for a checkpoint. They are records in
//! the order of their times; the leader proposes what is over.

use serde_json::json;

use super::command::{ModelCommand, Timer};
use super::profile::Profile;
use crate::machine::apply::Draft;
use crate::machine::beside::{RecordKey, Space};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::stamp::Stamp;

fn key(session_id: &SessionId, timer: Timer, at_ms: i64) -> RecordKey {
    let name = match timer {
        Timer::Idle => "idle",
        Timer::Inactive => "inactive",
        Timer::Checkpoint => "checkpoint",
    };
    RecordKey::of_cluster(Space::Due).with(at_ms).with("model").with(name).with(session_id.as_str())
}

/// Something is due at a time.
pub fn set(draft: &mut Draft<'_>, timer: Timer, at_ms: i64) {
    let due = ModelCommand::Due { session_id: draft.session_id.clone(), timer, at_ms };
    let key = key(draft.session_id, timer, at_ms);
    draft.change(Change::put_record(key, Json::print(&json!({ "model": due }))));
}

pub fn clear(draft: &mut Draft<'_>, timer: Timer, at_ms: i64) {
    let key = key(draft.session_id, timer, at_ms);
    draft.change(Change::delete_record(key));
}

/// A time that means nothing any more: only its record goes.
pub fn void(stamp: &Stamp, session_id: &SessionId, timer: Timer, at_ms: i64) -> Outcome {
    let changes = vec![Change::delete_record(key(session_id, timer, at_ms)), Change::Clock(stamp.at_ms)];
    let answer = Answer::Value(Json::print(&json!({ "done": false })));
    Outcome { answer: Ok(answer), changes, events: Vec::new() }
}

/// Looks again when the session may have become inactive. One time per session is enough: when it is over, the last
/// activity says whether to wait on.
pub fn watch_activity(draft: &mut Draft<'_>, profile: &mut Profile) {
    if profile.inactive_due.is_some() || profile.terms.inactive_ms <= 0 {
        return;
    }
    let due = profile.last_activity_at + profile.terms.inactive_ms;
    profile.inactive_due = Some(due);
    set(draft, Timer::Inactive, due);
}
