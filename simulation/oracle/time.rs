//! The law of time: it never goes backwards, whatever the clocks of the nodes say. Not in the log, not from one
//! acknowledged append of a session to a later one, and not in what readers get of a session.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Findings;
use super::replay::{Replay, Step};
use crate::history::{History, Moment, Operation, Outcome};

/// When an operation returned which time.
type Times = Vec<(Moment, i64, usize)>;

pub fn check(history: &History, replay: &Replay) -> Findings {
    let mut findings = Findings::of("time");
    // Commands without an effect do not move the clock.
    let effective: Vec<&Step> = replay.steps.iter().filter(|step| step.effective).collect();
    for pair in effective.windows(2) {
        findings.check(pair[0].stamp.at_ms <= pair[1].stamp.at_ms, None, || {
            format!(
                "entry {} has the time {} ms, the one before it {} ms",
                pair[1].index, pair[1].stamp.at_ms, pair[0].stamp.at_ms
            )
        });
    }
    // By session: the times that answers contained.
    let mut appended: BTreeMap<String, Times> = BTreeMap::new();
    let mut updated: BTreeMap<(String, i64), Times> = BTreeMap::new();
    for operation in &history.operations {
        let (Outcome::Answered(answer), Some(returned)) = (&operation.outcome, operation.returned) else { continue };
        let session_id = operation.request["session_id"].as_str().unwrap_or_default().to_owned();
        match operation.function {
            // With an entry id, the entry may be an old one.
            "session::append" if operation.request["entry_id"].is_null() => {
                if let Some(at_ms) = answer["timestamp"].as_i64() {
                    later(&mut findings, appended.entry(session_id).or_default(), operation, returned, at_ms);
                }
            }
            "session::get" => {
                let meta = answer.get("meta").unwrap_or(answer);
                let time = |field: &str| meta.get(field).and_then(Value::as_i64);
                if let (Some(created), Some(at_ms)) = (time("created_at"), time("updated_at")) {
                    later(&mut findings, updated.entry((session_id, created)).or_default(), operation, returned, at_ms);
                }
            }
            _other => {}
        }
    }
    findings
}

fn later(findings: &mut Findings, times: &mut Times, operation: &Operation, returned: Moment, at_ms: i64) {
    // Only operations that ended before this one began.
    let newest = times.iter().filter(|(ended, ..)| *ended < operation.called).max_by_key(|(_, at_ms, _)| *at_ms);
    if let Some((_, before, by)) = newest {
        findings.check(*before <= at_ms, Some(returned), || {
            format!("#{} got {at_ms} ms, after #{by} had got {before} ms", operation.id)
        });
    }
    times.push((returned, at_ms, operation.id));
}
