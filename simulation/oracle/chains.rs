//! The law of chains: a list of the entries of a session contains the parent of each entry, and the path from every
//! entry ends at a root. Sessions that the raw store protocol wrote to are exempt.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Findings;
use crate::history::{History, Operation, Outcome};

pub fn check(history: &History) -> Findings {
    let mut findings = Findings::of("chains");
    let listed = |operation: &&Operation| operation.function == "session::store::list-entries";
    let raw = raw_sessions(history);
    for operation in history.operations.iter().filter(listed) {
        let Outcome::Answered(answer) = &operation.outcome else { continue };
        if raw.contains(&&operation.request["session_id"]) {
            continue;
        }
        if let Err(words) = reaches_a_root(answer["entries"].as_array().map_or(&[][..], Vec::as_slice)) {
            findings
                .add(operation.returned, format!("#{} in {}: {words}", operation.id, operation.request["session_id"]));
        }
    }
    findings
}

/// Sessions with raw writes.
fn raw_sessions(history: &History) -> Vec<&Value> {
    let raw = history.operations.iter().filter(|operation| operation.function.starts_with("session::store::"));
    let writes = raw.filter(|operation| operation.mutates());
    writes.flat_map(|operation| [&operation.request["session_id"], &operation.request["meta"]["session_id"]]).collect()
}

fn reaches_a_root(entries: &[Value]) -> Result<(), String> {
    let parents: BTreeMap<&str, Option<&str>> =
        entries.iter().filter_map(|entry| Some((entry["id"].as_str()?, entry["parent_id"].as_str()))).collect();
    for start in parents.keys() {
        let mut at = *start;
        for steps in 0.. {
            if steps > parents.len() {
                return Err(format!("the path from entry {start:?} is a cycle"));
            }
            match parents.get(at) {
                Some(Some(parent)) => at = parent,
                Some(None) => break,
                None => return Err(format!("the path from entry {start:?} leads to {at:?}, which does not exist")),
            }
        }
    }
    Ok(())
}
