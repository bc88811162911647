//! The law of retries: a proposal takes effect once, however often it is in the log; only its first attempt is not
//! marked as a retry; and all appends with the same entry id get the same answer.

use std::collections::BTreeMap;

use serde_json::Value;
use session_manager::machine::ids::RequestId;

use super::Findings;
use super::replay::{Replay, Step};
use crate::history::{History, Operation, Outcome};

pub fn check(history: &History, replay: &Replay) -> Findings {
    let mut findings = Findings::of("dedup");
    let mut proposals: BTreeMap<RequestId, Vec<&Step>> = BTreeMap::new();
    for step in replay.steps.iter().filter(|step| step.request_id != RequestId::NONE) {
        proposals.entry(step.request_id).or_default().push(step);
    }
    for (request_id, steps) in proposals {
        let indexes = |steps: &[&Step]| steps.iter().map(|step| step.index).collect::<Vec<u64>>();
        let effective: Vec<&Step> = steps.iter().copied().filter(|step| step.effective).collect();
        findings.check(effective.len() <= 1, None, || {
            format!("proposal {:032x} took effect at several entries: {:?}", request_id.0, indexes(&effective))
        });
        // An attempt without an effect may be sent again with another command: an update whose base revision had
        // changed.
        let unmarked: Vec<&Step> = steps.iter().copied().filter(|step| !step.is_retry && step.effective).collect();
        let before = |step: &Step| steps.iter().any(|other| other.index < step.index && other.effective);
        findings.check(!unmarked.iter().any(|step| before(step)), None, || {
            format!(
                "proposal {:032x} was retried without the mark of a retry: entries {:?}",
                request_id.0,
                indexes(&steps)
            )
        });
    }
    own_ids(history, &mut findings);
    findings
}

/// Appends with an entry id may be retried. While the session exists, every acknowledgement is the same.
fn own_ids(history: &History, findings: &mut Findings) {
    let mut told: BTreeMap<(String, String), (&Operation, &Value)> = BTreeMap::new();
    let deleted: Vec<&Value> = history
        .operations
        .iter()
        .filter(|operation| operation.function == "session::delete")
        .map(|operation| &operation.request["session_id"])
        .collect();
    for operation in history.operations.iter().filter(|operation| operation.function == "session::append") {
        let (Outcome::Answered(answer), Some(entry_id)) = (&operation.outcome, operation.request["entry_id"].as_str())
        else {
            continue;
        };
        if deleted.contains(&&operation.request["session_id"]) {
            continue;
        }
        let session_id = operation.request["session_id"].as_str().unwrap_or_default();
        let key = (session_id.to_owned(), entry_id.to_owned());
        let (first, before) = *told.entry(key).or_insert((operation, answer));
        findings.check(before == answer, operation.returned, || {
            format!("#{} and #{} append {entry_id:?} but got {before} and {answer}", first.id, operation.id)
        });
    }
}
