//! Owns: the times of the model: when a session is idle, inactive, waits in vain for a checkpoint or for a person. They are
//! due times like those of turns: the leader proposes a command when one has passed.

use super::profile::Profile;
use crate::machine::apply::Draft;
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::stamp::Stamp;
use crate::machine::turn::due::{Due, DueKind};

fn due(session_id: &SessionId, kind: DueKind, at_ms: i64, id: &str) -> Due {
    Due { at_ms, kind, session_id: Some(session_id.clone()), id: id.to_owned() }
}

/// Something is due at a time. `id` tells two of a kind apart.
pub fn set(draft: &mut Draft<'_>, kind: DueKind, at_ms: i64, id: &str) {
    let put = due(draft.session_id, kind, at_ms, id).put();
    draft.change(put);
}

/// A time that means nothing any more: only its record goes.
pub fn void(stamp: &Stamp, due: &Due) -> Outcome {
    let changes = vec![Change::delete_record(due.key()), Change::Clock(stamp.at_ms)];
    Outcome { answer: Ok(Answer::Value(Json::adopt("{\"fired\":false}"))), changes, events: Vec::new() }
}

/// Looks again when the session may have become inactive. One time per session is enough: when it is over, the last
/// activity says whether to wait on.
pub fn watch_activity(draft: &mut Draft<'_>, profile: &mut Profile, now_ms: i64) {
    if profile.inactive_due.is_some() || profile.terms.inactive_ms <= 0 {
        return;
    }
    let mut at_ms = profile.last_activity_at + profile.terms.inactive_ms;
    if at_ms <= now_ms {
        // A session that was put aside long ago and is opened again: opening is no activity, and still it stays awake.
        at_ms = now_ms + profile.terms.inactive_ms;
    }
    profile.inactive_due = Some(at_ms);
    set(draft, DueKind::ModelInactive, at_ms, "");
}
