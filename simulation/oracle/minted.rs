//! The law of minted ids: an id that a leader gives to a session or an entry is unique, across all leaders.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Findings;
use crate::history::{History, Operation, Outcome};

pub fn check(history: &History) -> Findings {
    let mut findings = Findings::of("minted");
    let mut given: BTreeMap<&str, usize> = BTreeMap::new();
    for operation in &history.operations {
        for id in minted(operation) {
            let first = *given.entry(id).or_insert(operation.id);
            findings.check(first == operation.id, operation.returned, || {
                format!("#{first} and #{} both got the new id {id:?}", operation.id)
            });
        }
    }
    findings
}

/// The new ids in the answer of a call.
fn minted(operation: &Operation) -> Vec<&str> {
    let Outcome::Answered(answer) = &operation.outcome else { return Vec::new() };
    let one = |field: &str| answer[field].as_str().into_iter().collect();
    match operation.function {
        "session::create" | "session::fork" => one("session_id"),
        "session::append" if operation.request["entry_id"].is_null() => one("entry_id"),
        "session::append-many" => {
            answer["entry_ids"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
        }
        _other => Vec::new(),
    }
}
