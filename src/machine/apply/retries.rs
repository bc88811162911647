//! Owns: exactly-once execution. A proposer that lost an answer proposes again with the same request id. The state
//! keeps the answer of the first attempt for a while, and the retry gets that answer.
//!
//! The answer of a first attempt is recorded if it changed something. Retries are recorded even if refused, so that a
//! late original cannot succeed afterwards.

use crate::machine::change::{AnswerChange, Change};
use crate::machine::command::{Answer, Outcome, Stamped};
use crate::machine::ids::RequestId;
use crate::machine::refusal::Fault;
use crate::machine::view::View;

/// How long an answer is kept. Retries end long before: the deadline of their call bounds them.
pub const ANSWER_TTL_MS: i64 = 60_000;

/// An id may be this far ahead of the state's clock: the clocks of its sender and of the leader may differ. The answer to
/// an id of a farther future would be kept until then, so such a proposal is not executed at all.
pub const AHEAD_MAX_MS: i64 = 24 * 60 * 60 * 1000;

/// Expired answers are dropped whenever the clock passes a multiple of this: not at every command, and few at a time.
const EXPIRE_INTERVAL_MS: i64 = 256;

/// The outcome of a proposal that needs no decision: its answer is recorded, it is a retry that arrived too late, or its
/// id is of a far future.
pub fn known_outcome(view: &dyn View, at_ms: i64, stamped: &Stamped) -> Result<Option<Outcome>, Fault> {
    if stamped.request_id.issued_ms() > at_ms.saturating_add(AHEAD_MAX_MS) {
        return Ok(Some(Outcome::unchanged(Answer::Forgotten)));
    }
    if !stamped.is_retry {
        return Ok(None);
    }
    if let Some(answer) = view.recorded_answer(stamped.request_id)? {
        return Ok(Some(Outcome { answer, changes: Vec::new(), events: Vec::new() }));
    }
    let expired = is_expired(at_ms, stamped.request_id);
    Ok(expired.then(|| Outcome::unchanged(Answer::Forgotten)))
}

/// Adds the changes that record the answer and drop expired ones.
pub fn record_answer(view: &dyn View, at_ms: i64, stamped: &Stamped, mut outcome: Outcome) -> Result<Outcome, Fault> {
    // After `BaseMoved` the proposer sends the whole update with the same id.
    let is_final = outcome.answer != Ok(Answer::BaseMoved);
    let recorded = !outcome.changes.is_empty() || (stamped.is_retry && is_final);
    if !recorded || stamped.request_id == RequestId::NONE {
        return Ok(outcome);
    }
    if !is_expired(at_ms, stamped.request_id) {
        let record = AnswerChange::Record(stamped.request_id, outcome.answer.clone());
        outcome.changes.push(Change::Answer(record));
    }
    if view.clock_ms()? / EXPIRE_INTERVAL_MS != at_ms / EXPIRE_INTERVAL_MS {
        outcome.changes.push(Change::Answer(AnswerChange::ExpireBefore(at_ms - ANSWER_TTL_MS)));
    }
    Ok(outcome)
}

fn is_expired(at_ms: i64, request_id: RequestId) -> bool {
    request_id.issued_ms() < at_ms - ANSWER_TTL_MS
}
