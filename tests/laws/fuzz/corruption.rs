//! Owns: how valid input is corrupted: bytes are flipped, cut, inserted and doubled; JSON values are replaced, dropped,
//! nested and enlarged.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value, json};

/// One change of bytes.
#[derive(Debug, Clone)]
pub enum Corruption {
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    Remove(Index, u8),
    Double(Index, u8),
    /// Sets bytes to 0xff or 0, for extreme lengths and counters.
    Fill(Index, u8, bool),
}

pub fn corruption() -> impl Strategy<Value = Corruption> {
    prop_oneof![
        4 => (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Corruption::Flip(at, bit)),
        1 => any::<Index>().prop_map(Corruption::Cut),
        2 => (any::<Index>(), vec(any::<u8>(), 1..12)).prop_map(|(at, bytes)| Corruption::Insert(at, bytes)),
        2 => (any::<Index>(), 1..16u8).prop_map(|(at, count)| Corruption::Remove(at, count)),
        1 => (any::<Index>(), 1..64u8).prop_map(|(at, count)| Corruption::Double(at, count)),
        2 => (any::<Index>(), 1..10u8, any::<bool>()).prop_map(|(at, count, ones)| Corruption::Fill(at, count, ones)),
    ]
}

pub fn corruptions() -> impl Strategy<Value = Vec<Corruption>> {
    vec(corruption(), 1..5)
}

pub fn corrupt(bytes: &mut Vec<u8>, corruptions: &[Corruption]) {
    for corruption in corruptions {
        let length = bytes.len();
        let place = |at: &Index| at.index(length + 1);
        let range = |at: &Index, count: &u8| place(at)..(place(at) + usize::from(*count)).min(length);
        match corruption {
            Corruption::Flip(at, bit) if length > 0 => bytes[at.index(length)] ^= 1 << bit,
            Corruption::Flip(..) => {}
            Corruption::Cut(at) => bytes.truncate(place(at)),
            Corruption::Insert(at, more) => drop(bytes.splice(place(at)..place(at), more.iter().copied())),
            Corruption::Remove(at, count) => drop(bytes.drain(range(at, count))),
            Corruption::Double(at, count) => {
                let piece = bytes[range(at, count)].to_vec();
                drop(bytes.splice(place(at)..place(at), piece));
            }
            Corruption::Fill(at, count, ones) => bytes[range(at, count)].fill(if *ones { 0xff } else { 0 }),
        }
    }
}

/// Any JSON value. Some leaves are values that careless readers mishandle.
pub fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            json!(u64::MAX),
            json!(-1),
            json!(1e308),
            json!(-0.0),
            json!(""),
            json!("\u{0}"),
            json!("\u{10ffff}"),
            json!("../../x"),
            json!("s"),
            json!("e1"),
            json!("user"),
            json!("text"),
        ]),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((prop_oneof!["[a-z_]{1,8}", ".{0,4}"], inner), 0..5)
                .prop_map(|fields| Value::from(fields.into_iter().collect::<Map<String, Value>>())),
        ]
    })
}

/// One change of a JSON value, somewhere inside it.
#[derive(Debug, Clone)]
pub enum JsonChange {
    Replace(Index, Value),
    Drop(Index),
    Add(Index, String, Value),
    /// Wraps the value in this many arrays.
    Nest(Index, usize),
    /// Replaces the value by a text of this many bytes.
    Enlarge(Index, usize),
}

pub fn json_change() -> impl Strategy<Value = JsonChange> {
    prop_oneof![
        4 => (any::<Index>(), any_json()).prop_map(|(at, value)| JsonChange::Replace(at, value)),
        2 => any::<Index>().prop_map(JsonChange::Drop),
        2 => (any::<Index>(), "[a-z_]{1,8}", any_json()).prop_map(|(at, name, value)| JsonChange::Add(at, name, value)),
        1 => (any::<Index>(), prop_oneof![1..10usize, 100..140usize]).prop_map(|(at, levels)| JsonChange::Nest(at, levels)),
        1 => (any::<Index>(), prop_oneof![Just(1025), Just(65_537), Just(300_000)]).prop_map(|(at, bytes)| JsonChange::Enlarge(at, bytes)),
    ]
}

pub fn change_json(value: &mut Value, json_changes: &[JsonChange]) {
    for json_change in json_changes {
        match json_change {
            JsonChange::Replace(at, new) => *place(value, at) = new.clone(),
            JsonChange::Drop(at) => drop_child(place(value, at)),
            JsonChange::Add(at, name, new) => match place(value, at) {
                Value::Object(fields) => drop(fields.insert(name.clone(), new.clone())),
                Value::Array(items) => items.push(new.clone()),
                leaf => *leaf = new.clone(),
            },
            JsonChange::Nest(at, levels) => {
                let spot = place(value, at);
                for _ in 0..*levels {
                    *spot = json!([spot.take()]);
                }
            }
            JsonChange::Enlarge(at, bytes) => *place(value, at) = Value::from("x".repeat(*bytes)),
        }
    }
}

fn drop_child(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let first = fields.keys().next().cloned();
            first.map(|name| fields.remove(&name));
        }
        Value::Array(items) => drop(items.pop()),
        leaf => *leaf = Value::Null,
    }
}

/// Some value inside `value`, itself included.
fn place<'a>(value: &'a mut Value, at: &Index) -> &'a mut Value {
    let mut left = at.index(size(value));
    let mut spot = value;
    while left > 0 {
        left -= 1;
        let children: Vec<&mut Value> = match spot {
            Value::Object(fields) => fields.values_mut().collect(),
            Value::Array(items) => items.iter_mut().collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => unreachable!("a leaf has size 1"),
        };
        let mut found = None;
        for child in children {
            let below = size(child);
            if left < below {
                found = Some(child);
                break;
            }
            left -= below;
        }
        spot = found.expect("the place is inside");
    }
    spot
}

fn size(value: &Value) -> usize {
    1 + match value {
        Value::Object(fields) => fields.values().map(size).sum(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}
