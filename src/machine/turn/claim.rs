//! Claiming a turn: one driver wins and holds a lease that its batches renew.

use serde_json::{Value, json};

use super::driver::{check_driver_id, session_key};
use super::due::DueKind;
use super::events::Fields;
use super::record::{State, Turn, TurnState, Waiting};
use super::work::Work;
use super::{ask, choose, unknown_turn};
use crate::machine::command::Outcome;
use crate::machine::refusal::Failure;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// A driver that is not heard of for so long loses its turn. Emitting renews it.
pub const LEASE_MS: i64 = 60_000;

pub fn apply(view: &dyn View, stamp: &Stamp, turn_id: &str, driver_id: &str) -> Result<Outcome, Failure> {
    check_driver_id(driver_id)?;
    let session_id = super::session_of(view, turn_id)?;
    let mut work = Work::open(view, stamp, &session_id)?;
    let turn = work.read_turn(turn_id)?.ok_or_else(|| unknown_turn(turn_id))?;
    let answer = claim(&mut work, turn, driver_id)?;
    work.finish(&answer)
}

fn claim(work: &mut Work<'_>, mut turn: Turn, driver_id: &str) -> Result<Value, Failure> {
    let not = |reason: String| json!({ "claimed": false, "reason": reason });
    match turn.state {
        TurnState::Queued if work.stream.current.as_ref() == Some(&turn.turn_id) => {}
        TurnState::Queued => return Ok(not("another turn of the session comes first".to_owned())),
        TurnState::Claimed | TurnState::Running | TurnState::Waiting => {
            if turn.driver_id.as_deref() != Some(driver_id) {
                return Ok(not("another driver has claimed it".to_owned()));
            }
            turn.lease_until = turn.lease_until.map(|_| work.now() + LEASE_MS);
            let answer = claimed(&turn);
            work.put_turn(turn);
            return Ok(answer);
        }
        TurnState::Done | TurnState::Failed | TurnState::Stopped => {
            return Ok(not(format!("the turn is {}", turn.state.name())));
        }
    }
    let now = work.now();
    choose::give_back(work, &mut turn);
    choose::take(work, driver_id);
    turn.state = TurnState::Claimed;
    turn.driver_id = Some(driver_id.to_owned());
    turn.lease_until = Some(now + LEASE_MS);
    turn.claim_by = None;
    turn.started_at = Some(now);
    if std::mem::take(&mut turn.offered)
        && let Some(entry) = Waiting::read(work.view, &turn.turn_id)?.and_then(|waiting| waiting.entry)
    {
        turn.message_entry_id = Some(ask::add_message(work, &turn.turn_id, entry)?);
    }
    work.delete(Waiting::key(&turn.turn_id));
    work.due(now + LEASE_MS, DueKind::Lease, &turn.turn_id);
    take_over(work, driver_id);
    run(work)?;
    let turn_id = turn.turn_id.clone();
    let seq = work.publish_stream("turn_started", Some(&turn_id), started_fields(&turn));
    if let Some(seq) = seq {
        work.mark(&turn_id, "turn_started", seq);
    }
    let answer = claimed(&turn);
    work.put_turn(turn);
    Ok(answer)
}

fn claimed(turn: &Turn) -> Value {
    json!({
        "claimed": true,
        "lease_until": turn.lease_until,
        "next_n": turn.next_n,
        "entry_id": turn.message_entry_id,
        "session_id": turn.session_id,
    })
}

fn started_fields(turn: &Turn) -> Fields {
    let mut fields = Fields::new();
    if let Some(key) = &turn.key {
        fields.insert("clientTurnId".to_owned(), crate::machine::json::Json::print(key));
    }
    fields
}

/// Remembers the driver of the session, to find the session when the driver is gone.
fn take_over(work: &mut Work<'_>, driver_id: &str) {
    if work.stream.driver_id.as_deref() == Some(driver_id) {
        return;
    }
    let session_id = work.session_id().clone();
    if let Some(old) = work.stream.driver_id.replace(driver_id.to_owned()) {
        work.delete(session_key(&old, &session_id));
    }
    work.put(session_key(driver_id, &session_id), &json!({}));
}

/// Brings the stream to `running` by legal steps.
fn run(work: &mut Work<'_>) -> Result<(), Failure> {
    if work.stream.state == State::Error {
        work.become_state(State::Inactive, None)?;
    }
    if work.stream.state == State::Deactivating {
        work.become_state(State::Inactive, None)?;
    }
    if work.stream.state == State::Inactive {
        work.become_state(State::Activating, None)?;
    }
    if work.stream.state == State::Activating {
        work.become_state(State::Ready, None)?;
    }
    work.become_state(State::Running, None)
}

/// Brings the stream to `inactive` by legal steps. A session without a stream stays as it is.
pub(super) fn deactivate(work: &mut Work<'_>, reason: &str) -> Result<(), Failure> {
    match work.stream.state {
        State::Inactive => Ok(()),
        State::Running | State::Waiting => {
            work.become_state(State::Deactivating, Some(reason))?;
            work.become_state(State::Inactive, Some(reason))
        }
        State::Activating | State::Ready | State::Deactivating | State::Error => {
            work.become_state(State::Inactive, Some(reason))
        }
    }
}

/// Renews the lease of a turn that is not waiting for a person.
pub(super) fn renew(turn: &mut Turn, now: i64) {
    if turn.state != TurnState::Waiting {
        turn.lease_until = Some(now + LEASE_MS);
    }
}

/// A person has answered, so the driver must go on.
pub(super) fn go_on(work: &mut Work<'_>, turn_id: &str) -> Result<(), Failure> {
    let now = work.now();
    let Some(turn) = work.turn(turn_id)? else { return Ok(()) };
    if turn.state == TurnState::Waiting {
        turn.state = TurnState::Running;
        turn.lease_until = Some(now + LEASE_MS);
        work.due(now + LEASE_MS, DueKind::Lease, turn_id);
    }
    if work.stream.state == State::Waiting {
        work.become_state(State::Running, None)?;
    }
    Ok(())
}
