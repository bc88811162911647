//! Owns: how good input is made bad: bytes flipped, cut, doubled, moved; JSON values replaced, dropped, nested, blown up.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value, json};

/// One harm done to bytes.
#[derive(Debug, Clone)]
pub enum Harm {
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    Remove(Index, u8),
    Double(Index, u8),
    /// Every byte 0xff or 0: lengths and counters at their ends.
    Fill(Index, u8, bool),
}

pub fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        4 => (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Harm::Flip(at, bit)),
        1 => any::<Index>().prop_map(Harm::Cut),
        2 => (any::<Index>(), vec(any::<u8>(), 1..12)).prop_map(|(at, bytes)| Harm::Insert(at, bytes)),
        2 => (any::<Index>(), 1..16u8).prop_map(|(at, count)| Harm::Remove(at, count)),
        1 => (any::<Index>(), 1..64u8).prop_map(|(at, count)| Harm::Double(at, count)),
        2 => (any::<Index>(), 1..10u8, any::<bool>()).prop_map(|(at, count, ones)| Harm::Fill(at, count, ones)),
    ]
}

pub fn harms() -> impl Strategy<Value = Vec<Harm>> {
    vec(harm(), 1..5)
}

pub fn spoil(bytes: &mut Vec<u8>, harms: &[Harm]) {
    for harm in harms {
        let length = bytes.len();
        let place = |at: &Index| at.index(length + 1);
        let range = |at: &Index, count: &u8| place(at)..(place(at) + usize::from(*count)).min(length);
        match harm {
            Harm::Flip(at, bit) if length > 0 => bytes[at.index(length)] ^= 1 << bit,
            Harm::Flip(..) => {}
            Harm::Cut(at) => bytes.truncate(place(at)),
            Harm::Insert(at, more) => drop(bytes.splice(place(at)..place(at), more.iter().copied())),
            Harm::Remove(at, count) => drop(bytes.drain(range(at, count))),
            Harm::Double(at, count) => {
                let piece = bytes[range(at, count)].to_vec();
                drop(bytes.splice(place(at)..place(at), piece));
            }
            Harm::Fill(at, count, ones) => bytes[range(at, count)].fill(if *ones { 0xff } else { 0 }),
        }
    }
}

/// Any JSON value, with what traps careless readers among the leaves.
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

/// One harm done to a JSON value, at some place in it.
#[derive(Debug, Clone)]
pub enum Twist {
    Replace(Index, Value),
    Drop(Index),
    Add(Index, String, Value),
    /// So many arrays around it.
    Nest(Index, usize),
    /// A text of so many bytes in its place.
    Blow(Index, usize),
}

pub fn twist() -> impl Strategy<Value = Twist> {
    prop_oneof![
        4 => (any::<Index>(), any_json()).prop_map(|(at, value)| Twist::Replace(at, value)),
        2 => any::<Index>().prop_map(Twist::Drop),
        2 => (any::<Index>(), "[a-z_]{1,8}", any_json()).prop_map(|(at, name, value)| Twist::Add(at, name, value)),
        1 => (any::<Index>(), prop_oneof![1..10usize, 100..140usize]).prop_map(|(at, levels)| Twist::Nest(at, levels)),
        1 => (any::<Index>(), prop_oneof![Just(1025), Just(65_537), Just(300_000)]).prop_map(|(at, bytes)| Twist::Blow(at, bytes)),
    ]
}

pub fn twist_value(value: &mut Value, twists: &[Twist]) {
    for twist in twists {
        match twist {
            Twist::Replace(at, new) => *place(value, at) = new.clone(),
            Twist::Drop(at) => drop_child(place(value, at)),
            Twist::Add(at, name, new) => match place(value, at) {
                Value::Object(fields) => drop(fields.insert(name.clone(), new.clone())),
                Value::Array(items) => items.push(new.clone()),
                leaf => *leaf = new.clone(),
            },
            Twist::Nest(at, levels) => {
                let spot = place(value, at);
                for _ in 0..*levels {
                    *spot = json!([spot.take()]);
                }
            }
            Twist::Blow(at, bytes) => *place(value, at) = Value::from("x".repeat(*bytes)),
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
