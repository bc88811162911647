//! Owns: the difference between two JSON values, itself a JSON value. Import stores what a foreign step says beyond its
//! entry as such a difference, and export applies it again.
//!
//! Objects nest: `{"key": difference}`. `$drop` lists keys that are removed, `$items` holds differences of array items
//! by index, `$is` holds a value that replaces all. Every other value replaces what was there.

use serde_json::{Map, Value};

const DROP: &str = "$drop";
const ITEMS: &str = "$items";
const IS: &str = "$is";

/// What turns `from` into `to`; `None` when they are equal.
pub fn between(from: &Value, to: &Value) -> Option<Value> {
    if from == to {
        return None;
    }
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => Some(between_objects(from, to)),
        (Value::Array(from), Value::Array(to)) if from.len() == to.len() => {
            let changed = from.iter().zip(to).enumerate();
            let items: Map<String, Value> =
                changed.filter_map(|(at, (from, to))| Some((at.to_string(), between(from, to)?))).collect();
            Some(Value::Object(Map::from_iter([(ITEMS.to_owned(), Value::Object(items))])))
        }
        _ => Some(replacement(to)),
    }
}

fn between_objects(from: &Map<String, Value>, to: &Map<String, Value>) -> Value {
    let mut difference = Map::new();
    for (key, value) in to {
        let changed = match from.get(key) {
            Some(old) => between(old, value),
            None => Some(replacement(value)),
        };
        if let Some(changed) = changed {
            if is_reserved(key) {
                // A key that means something here cannot stand beside the others.
                return is(&Value::Object(to.clone()));
            }
            difference.insert(key.clone(), changed);
        }
    }
    let dropped: Vec<Value> =
        from.keys().filter(|key| !to.contains_key(*key)).map(|key| Value::from(key.as_str())).collect();
    if !dropped.is_empty() {
        difference.insert(DROP.to_owned(), Value::Array(dropped));
    }
    Value::Object(difference)
}

/// A value as the difference that puts it in place of whatever was there. Objects need a mark, or they would be merged.
fn replacement(value: &Value) -> Value {
    match value {
        Value::Object(_) => is(value),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => value.clone(),
    }
}

fn is(value: &Value) -> Value {
    Value::Object(Map::from_iter([(IS.to_owned(), value.clone())]))
}

fn is_reserved(key: &str) -> bool {
    matches!(key, DROP | ITEMS | IS)
}

/// `from` with a difference applied. What no longer fits (the value changed its shape meanwhile) is left out.
pub fn apply(from: Value, difference: &Value) -> Value {
    let Value::Object(changes) = difference else { return difference.clone() };
    if let Some(value) = changes.get(IS) {
        return value.clone();
    }
    if let Some(items) = changes.get(ITEMS) {
        return apply_items(from, items);
    }
    let Value::Object(mut object) = from else { return from };
    for (key, change) in changes {
        if key == DROP {
            for dropped in change.as_array().into_iter().flatten().filter_map(Value::as_str) {
                object.remove(dropped);
            }
            continue;
        }
        match object.remove(key) {
            Some(old) => object.insert(key.clone(), apply(old, change)),
            None => addition(change).and_then(|value| object.insert(key.clone(), value)),
        };
    }
    Value::Object(object)
}

/// The value a difference puts where nothing is. A merge or a change of items has nothing to apply to.
fn addition(change: &Value) -> Option<Value> {
    match change {
        Value::Object(changes) => changes.get(IS).cloned(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Some(change.clone()),
    }
}

fn apply_items(from: Value, changes: &Value) -> Value {
    let (Value::Array(mut items), Value::Object(changes)) = (from, changes) else { return Value::Null };
    for (at, change) in changes {
        if let Some(item) = at.parse::<usize>().ok().and_then(|at| items.get_mut(at)) {
            *item = apply(item.take(), change);
        }
    }
    Value::Array(items)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let key = prop_oneof!["[a-c]", Just(DROP.to_owned()), Just(ITEMS.to_owned()), Just(IS.to_owned())];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(key, inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_difference_leads_from_one_value_to_the_other(from in any_value(), to in any_value()) {
            match between(&from, &to) {
                None => prop_assert_eq!(from, to),
                Some(difference) => prop_assert_eq!(apply(from, &difference), to),
            }
        }
    }

    #[test]
    fn a_small_change_has_a_small_difference() {
        let from = json!({"text": "long", "tools": [{"id": "a"}, {"id": "b"}], "usage": {"in": 1}});
        let to = json!({"text": "long", "tools": [{"id": "a"}, {"id": "b", "x": null}], "environment": {"dir": "/"}});
        let difference = between(&from, &to).unwrap();
        assert_eq!(
            difference,
            json!({"tools": {"$items": {"1": {"x": null}}}, "environment": {"$is": {"dir": "/"}}, "$drop": ["usage"]})
        );
        // Applied to another text, it keeps that text.
        let edited = json!({"text": "new", "tools": [{"id": "a"}, {"id": "b"}], "usage": {"in": 1}});
        assert_eq!(apply(edited, &difference)["text"], "new");
    }
}
