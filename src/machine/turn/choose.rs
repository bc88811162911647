//! Owns: which driver a turn is given to. One driver is asked first: the one that ran the session's last turn, else the one
//! with the fewest unfinished turns. If it does not take the turn in time, the others hear of it too.

use serde_json::json;

use super::driver::{DriverRecord, session_key};
use super::due::{DueKind, is_attached};
use super::record::{Stream, Turn, TurnState, Waiting};
use super::work::Work;
use crate::machine::beside::{RecordKey, Space};
use crate::machine::event::EventKind;
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::refusal::Fault;
use crate::machine::view::View;

/// The driver that is asked first has the turn for itself for so long.
pub const ANSWER_MS: i64 = 2_000;

/// Turns of one driver that are counted. A driver with more is as busy as one with so many.
const LOAD_MAX: usize = 64;

/// In the request of a turn: the driver that is asked first. Without it, all are asked.
pub const ASKED: &str = "driver_id";
/// In the request of a turn that the driver asked first has not taken: who that was.
pub const NOT_TAKEN_BY: &str = "not_taken_by";

/// The attached drivers that may run a turn of this session, by their ids.
pub(super) fn fitting(work: &Work<'_>, turn: &super::driver::Agent) -> Result<Vec<DriverRecord>, Fault> {
    let now = work.now();
    let mut all = DriverRecord::all(work.view)?;
    all.retain(|record| is_attached(record, now) && record.driver.serves(turn) && record.may_run(&work.meta));
    Ok(all)
}

/// Chooses the driver that is asked first, and sets the time at which the others are asked too.
pub(super) fn ask_one(work: &mut Work<'_>, turn: &mut Turn, wait_ms: i64) -> Result<(), Fault> {
    let fitting = fitting(work, &turn.agent)?;
    let Some(driver_id) = choose(work.view, &work.stream, work.session_id(), &fitting)? else { return Ok(()) };
    take(work, &driver_id);
    // A turn that hardly waits is no reason to keep it from the others.
    let others_at = work.now().saturating_add(ANSWER_MS.min(wait_ms / 2));
    work.due(others_at, DueKind::AskOthers, &turn.turn_id);
    turn.asked_first = Some(driver_id);
    Ok(())
}

fn choose(
    view: &dyn View,
    stream: &Stream,
    session_id: &SessionId,
    fitting: &[DriverRecord],
) -> Result<Option<String>, Fault> {
    let mut ids = fitting.iter().map(|record| &record.driver.driver_id);
    if let Some(last) = ids.clone().find(|id| stream.driver_id.as_ref() == Some(id)) {
        return Ok(Some(last.clone()));
    }
    let Some(first) = ids.next() else { return Ok(None) };
    let (mut chosen, mut least) = (first, load(view, first, session_id)?);
    for driver_id in ids {
        let load = load(view, driver_id, session_id)?;
        if load < least {
            (chosen, least) = (driver_id, load);
        }
    }
    Ok(Some(chosen.clone()))
}

/// The unfinished turns of a driver in other sessions: this one has none any more, even if this command ended it.
fn load(view: &dyn View, driver_id: &str, session_id: &SessionId) -> Result<usize, Fault> {
    let under = RecordKey::of_cluster(Space::DriverTurn).with(driver_id);
    let found = view.records(&under, None, LOAD_MAX)?;
    Ok(found.iter().filter(|(key, _)| key.text(1) != Some(session_id.as_str())).count())
}

fn key(driver_id: &str, session_id: &SessionId) -> RecordKey {
    RecordKey::of_cluster(Space::DriverTurn).with(driver_id).with(session_id.as_str())
}

/// The driver has the turn of the session that is under way, or is asked for it.
pub(super) fn take(work: &mut Work<'_>, driver_id: &str) {
    let key = key(driver_id, work.session_id());
    work.put(key, &json!({}));
}

/// A turn is over, or its driver is another one.
pub(super) fn give_back(work: &mut Work<'_>, turn: &mut Turn) {
    for driver_id in turn.driver_id.clone().into_iter().chain(turn.asked_first.take()) {
        let key = key(&driver_id, work.session_id());
        work.delete(key);
    }
}

/// The keys that lead from drivers to a session that is deleted.
pub(super) fn keys_of(view: &dyn View, stream: &Stream, session_id: &SessionId) -> Result<Vec<RecordKey>, Fault> {
    let mut keys: Vec<RecordKey> = stream.driver_id.iter().map(|id| session_key(id, session_id)).collect();
    if let Some(turn_id) = &stream.current
        && let Some(turn) = Turn::read(view, session_id, turn_id)?
    {
        keys.extend(turn.driver_id.iter().chain(&turn.asked_first).map(|id| key(id, session_id)));
    }
    Ok(keys)
}

/// The driver that was asked first has not taken the turn: the others are asked. That one has heard of it, and may still
/// take it.
pub(super) fn ask_others(work: &mut Work<'_>, turn_id: &str) -> Result<bool, Fault> {
    let Some(mut turn) = work.read_turn(turn_id)?.filter(|turn| turn.state == TurnState::Queued) else {
        return Ok(false);
    };
    let Some(asked) = turn.asked_first.clone() else { return Ok(false) };
    let Some(mut waiting) = Waiting::read(work.view, turn_id)? else { return Ok(false) };
    give_back(work, &mut turn);
    work.put_turn(turn);
    waiting.payload.remove(ASKED);
    work.put(Waiting::key(turn_id), &waiting);
    let mut told = waiting.payload;
    told.insert(NOT_TAKEN_BY.to_owned(), Json::print(&asked));
    work.note(EventKind::TurnRequested, Json::print(&told), true);
    Ok(true)
}
