//! Owns: exactly once. A proposal whose answer was lost on the way is proposed again under its request id, by whoever
//! carried it; what it did the first time is remembered for a while, in the state itself, and told again.
//!
//! A first attempt is remembered if it changed something. A repetition is remembered whatever it came to: the attempt that
//! it repeats may still be on its way, and must not do later what its caller was told had not happened.

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
        return Ok(Some(Outcome { answer, changes: Vec::new(), events: Vec::new() }));
    }
    let forgotten = is_forgotten(at_ms, stamped.request_id);
    Ok(forgotten.then(|| Outcome::unchanged(Answer::Forgotten)))
}

/// The outcome with its answer kept, and with what is too old dropped.
pub fn remembered<V: View + ?Sized>(
    view: &V,
    at_ms: i64,
    stamped: &Stamped,
    mut outcome: Outcome,
) -> Result<Outcome, Fault> {
    // Whoever is told that the base moved proposes the whole under the same id.
    let is_final = outcome.answer != Ok(Answer::BaseMoved);
    let counts = !outcome.changes.is_empty() || (stamped.repeated && is_final);
    if !counts || stamped.request_id == RequestId::UNREPEATED {
        return Ok(outcome);
    }
    if !is_forgotten(at_ms, stamped.request_id) {
        outcome.changes.push(Change::Remember(stamped.request_id, outcome.answer.clone()));
    }
    if view.clock_ms()? / SWEEP_MS != at_ms / SWEEP_MS {
        outcome.changes.push(Change::Forget(at_ms - REMEMBERED_MS));
    }
    Ok(outcome)
}

fn is_forgotten(at_ms: i64, request_id: RequestId) -> bool {
    request_id.born_ms() < at_ms - REMEMBERED_MS
}
