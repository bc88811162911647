//! Laws of the schemas: those of all functions equal those of version 1.0.0 of the API, except descriptions and titles.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use session_manager::requests;

/// The published schemas, without descriptions and titles.
const PUBLISHED: &str = include_str!("../golden/api-v1.0.0.json");

/// The schema without descriptions and titles. A property may have one of these names too, but its schema is not a
/// string.
fn stripped(schema: Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let is_text = |name: &str, value: &Value| matches!(name, "description" | "title") && value.is_string();
            let kept = fields.into_iter().filter(|(name, value)| !is_text(name, value));
            Value::Object(kept.map(|(name, value)| (name, stripped(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(stripped).collect()),
        // `0.0` and `0` are the same number in JSON.
        Value::Number(number) => Value::from(number.as_f64()),
        Value::Null | Value::Bool(_) | Value::String(_) => schema,
    }
}

fn published() -> Map<String, Value> {
    let golden: Value = serde_json::from_str(PUBLISHED).expect("the golden file is JSON");
    golden["functions"].as_object().expect("functions by id").clone()
}

#[test]
fn the_functions_are_those_of_the_published_api() {
    let ours: BTreeSet<String> = requests::functions().iter().map(|function| function.id.to_owned()).collect();
    let theirs: BTreeSet<String> = published().keys().cloned().collect();
    assert_eq!(ours, theirs);
    assert_eq!(ours.len(), 28);
}

#[test]
fn every_schema_equals_the_published_one() {
    let published = published();
    let mut differing = Vec::new();
    for function in requests::functions() {
        for (side, schema) in [("request", (function.request_schema)()), ("response", (function.response_schema)())] {
            let ours = stripped(serde_json::to_value(schema).expect("a schema prints"));
            let theirs = stripped(published[function.id][side].clone());
            if ours != theirs {
                differing.push(format!("{} {side}\n  ours:      {ours}\n  published: {theirs}", function.id));
            }
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn every_function_has_a_description() {
    for function in requests::functions() {
        assert!(function.description.len() > 20, "{}", function.id);
        assert_eq!(function.internal, function.id.contains("::store::") || function.id.ends_with("on-config-change"));
    }
}

#[test]
fn snake_case_names_are_found_only_with_legacy_names() {
    for function in requests::functions() {
        assert_eq!(requests::find(function.id, false).map(|found| found.id), Some(function.id));
        let legacy = function.id.replace('-', "_");
        assert_eq!(requests::find(&legacy, true).map(|found| found.id), Some(function.id));
        assert_eq!(requests::find(&legacy, false).is_some(), legacy == function.id);
    }
    for unknown in ["", "session::nothing", "session::store::set-active_leaf", "session::append_many2"] {
        assert!(requests::find(unknown, true).is_none(), "{unknown}");
    }
}
