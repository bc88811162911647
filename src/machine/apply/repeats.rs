//! Owns: exactly once. A proposal whose answer was lost on the way is proposed again under its request id, by whoever
//! carried it; what it did the first time is remembered for a while, in the state itself, and told again.
//!
//! Only what changed something is remembered: a refusal may be decided anew, since nothing happened yet.

use crate::machine::command::{Answer, Outcome, Stamped};
use crate::machine::ids::RequestId;
use crate::machine::refusal::Fault;
use crate::machine::view::{Change, View};

/// How long an answer is kept. Retries end long before (their deadline is part of the call).
pub const REMEMBERED_MS: i64 = 60_000;

/// Old answers are dropped in one sweep whenever the clock passes a multiple of this: few enough to be quick, not at
/// every command.
const SWEEP_MS: i64 = 256;

/// The outcome of a retry that needs no deciding: told already, or too late to tell.
pub fn first_outcome<V: View + ?Sized>(view: &V, at_ms: i64, stamped: &Stamped) -> Result<Option<Outcome>, Fault> {
    if !stamped.repeated {
        return Ok(None);
    }
    if let Some(answer) = view.remembered(stamped.request_id)? {
        return Ok(Some(Outcome::unchanged(answer)));
    }
    let forgotten = is_forgotten(at_ms, stamped.request_id);
    Ok(forgotten.then(|| Outcome::unchanged(Answer::Forgotten)))
}

/// The outcome with its answer kept, and with what is too old dropped.
pub fn remembered<V: View + ?Sized>(
    view: &V,
    at_ms: i64,
    request_id: RequestId,
    mut outcome: Outcome,
) -> Result<Outcome, Fault> {
    let Ok(answer) = &outcome.answer else { return Ok(outcome) };
    if outcome.changes.is_empty() || request_id == RequestId::UNREPEATED {
        return Ok(outcome);
    }
    if !is_forgotten(at_ms, request_id) {
        outcome.changes.push(Change::Remember(request_id, answer.clone()));
    }
    if view.clock_ms()? / SWEEP_MS != at_ms / SWEEP_MS {
        outcome.changes.push(Change::Forget(at_ms - REMEMBERED_MS));
    }
    Ok(outcome)
}

fn is_forgotten(at_ms: i64, request_id: RequestId) -> bool {
    request_id.born_ms() < at_ms - REMEMBERED_MS
}
