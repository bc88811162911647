//! Exports against the two schemas of the format: the base schema of the toolpath crate, and that of the kind
//! (tests/golden/toolpath).
//! Owns: a reader of the part of JSON Schema that they use.

use serde_json::{Value, json};
use session_manager::machine::toolpath::write::Form;

use crate::sessions::sample;

const BASE: &str = ::toolpath::SCHEMA_JSON;
const KIND: &str = include_str!("../golden/toolpath/agent-coding-session-v1.1.0.json");

/// Everything that is wrong with a document.
pub fn problems(document: &Value) -> Vec<String> {
    let base: Value = serde_json::from_str(BASE).unwrap();
    let kind: Value = serde_json::from_str(KIND).unwrap();
    let mut wrong = Vec::new();
    check(&base, &base, document, "$", &mut wrong);
    for (at, path) in document["paths"].as_array().into_iter().flatten().enumerate() {
        check(&kind, &kind, path, &format!("$.paths[{at}]"), &mut wrong);
    }
    wrong
}

fn holds(root: &Value, schema: &Value, value: &Value) -> bool {
    let mut wrong = Vec::new();
    check(root, schema, value, "", &mut wrong);
    wrong.is_empty()
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    let Some(rules) = schema.as_object() else {
        if schema == &json!(false) {
            wrong.push(format!("{at}: not allowed"));
        }
        return;
    };
    for (rule, wanted) in rules {
        let ok = match rule.as_str() {
            "$ref" => {
                let target = root.pointer(wanted.as_str().unwrap().trim_start_matches('#')).expect("a known $ref");
                check(root, target, value, at, wrong);
                true
            }
            "type" => match wanted {
                Value::Array(kinds) => kinds.iter().any(|kind| is_type(value, kind.as_str().unwrap())),
                kind => is_type(value, kind.as_str().unwrap()),
            },
            "const" => value == wanted,
            "enum" => wanted.as_array().unwrap().contains(value),
            "pattern" => {
                assert!(wanted.as_str().unwrap().starts_with("^(human|agent|tool|ci):"), "the one pattern there is");
                value.as_str().is_none_or(session_manager::machine::toolpath::actor::is_valid)
            }
            "required" => {
                let missing = |key: &&Value| value.get(key.as_str().unwrap()).is_none();
                !value.is_object() || !wanted.as_array().unwrap().iter().any(|key| missing(&key))
            }
            "properties" => {
                for (key, schema) in wanted.as_object().unwrap() {
                    if let Some(value) = value.get(key) {
                        check(root, schema, value, &format!("{at}.{key}"), wrong);
                    }
                }
                true
            }
            "additionalProperties" => {
                let known = rules.get("properties").and_then(Value::as_object);
                for (key, value) in value.as_object().into_iter().flatten() {
                    if known.is_none_or(|known| !known.contains_key(key)) {
                        check(root, wanted, value, &format!("{at}.{key}"), wrong);
                    }
                }
                true
            }
            "propertyNames" => {
                for key in value.as_object().into_iter().flat_map(|object| object.keys()) {
                    check(root, wanted, &json!(key), at, wrong);
                }
                true
            }
            "items" => {
                for (nth, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, wanted, item, &format!("{at}[{nth}]"), wrong);
                }
                true
            }
            "anyOf" => wanted.as_array().unwrap().iter().any(|schema| holds(root, schema, value)),
            "oneOf" => wanted.as_array().unwrap().iter().filter(|schema| holds(root, schema, value)).count() == 1,
            "allOf" => {
                for schema in wanted.as_array().unwrap() {
                    check(root, schema, value, at, wrong);
                }
                true
            }
            "if" => {
                if holds(root, wanted, value) {
                    check(root, &rules["then"], value, at, wrong);
                }
                true
            }
            "then" | "$schema" | "$id" | "$defs" | "title" | "description" | "examples" | "format" => true,
            other => panic!("the schema uses {other}, which this reader does not know"),
        };
        if !ok {
            wrong.push(format!("{at}: {rule} {wanted}"));
        }
    }
}

fn is_type(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    }
}

#[test]
fn the_reader_of_schemas_sees_what_is_wrong() {
    let mut node = sample();
    let good: Value = serde_json::from_str(&node.export("tour", Form::Json, &json!({}), 50)).unwrap();
    assert_eq!(problems(&good), Vec::<String>::new());
    for (pointer, bad) in [
        ("/graph/id", json!(1)),
        ("/paths/0/path/head", json!(null)),
        ("/paths/0/steps/0/step/actor", json!("nobody")),
        ("/paths/0/steps/0/change", json!({"a": {}})),
        ("/paths/0/steps/0/change", json!({"a": {"structural": {"type": "conversation.append", "role": "user"}}})),
        ("/paths/0/meta/kind", json!("https://example.com")),
    ] {
        let mut document = good.clone();
        *document.pointer_mut(pointer).unwrap() = bad;
        assert!(!problems(&document).is_empty(), "{pointer}");
    }
}

#[test]
fn exports_of_every_shape_keep_both_schemas() {
    let mut node = sample();
    for id in ["tour", "empty", "deep", "🦀 ../escape"] {
        for options in [json!({}), json!({"redactable": true}), json!({"redact": ["text", "tool_input", "files"]})] {
            let document: Value = serde_json::from_str(&node.export(id, Form::Json, &options, 3)).unwrap();
            assert_eq!(problems(&document), Vec::<String>::new(), "{id} {options}");
        }
    }
}
