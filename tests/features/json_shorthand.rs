//! Owns: the JSON notation of the feature files: shorthands, variables, and the comparison of an expected shape with
//! the actual value.
//!
//! In a request, and in an expectation:
//! - `"<user:hi>"`, `"<assistant:hi>"`, `"<result:hi>"`, `"<note:hi>"`: a whole message of that role with that text;
//! - `"<content:hi>"`: content blocks with that text;
//! - `"<text:5>"`: five bytes of text; `"<nested:5>"`: arrays five deep; `"<messages:5>"`: five user messages;
//!   `"<keys:5>"`: an object with five keys;
//! - `"<name>"`: the value of a bound variable.
//!
//! Only in an expectation: `"<any>"` (any value but null), `"<absent>"` (no such field, or null), `"<after name>"` (a
//! number greater than the variable), `"<not before name>"`. A variable that is not bound yet is bound to the actual
//! value.

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub type Variables = BTreeMap<String, Value>;

/// Replaces shorthands and bound variables in JSON text.
pub fn expand(text: &str, variables: &Variables) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("\"<") {
        let Some(length) = rest[start..].find(">\"") else { break };
        let word = &rest[start + 2..start + length];
        expanded.push_str(&rest[..start]);
        match shorthand(word).or_else(|| variables.get(word).map(Value::to_string)) {
            Some(value) => expanded.push_str(&value),
            None => expanded.push_str(&rest[start..start + length + 2]),
        }
        rest = &rest[start + length + 2..];
    }
    expanded.push_str(rest);
    expanded
}

/// The JSON of a step, with shorthands and variables replaced.
pub fn read(text: &str, variables: &Variables) -> Value {
    let text = expand(text, variables);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("the JSON of the step is invalid ({error}): {text}"))
}

/// Fails the step if a value differs from what it expects.
pub fn check(expected: &str, actual: &Value, exact: bool, variables: &mut Variables) {
    let expected = read(expected, variables);
    if let Err(difference) = compare(&expected, actual, exact, variables) {
        panic!("{difference}\nin {actual}");
    }
}

fn shorthand(word: &str) -> Option<String> {
    let (name, given) = word.split_once(':')?;
    let count = || given.parse::<usize>().unwrap_or_else(|_| panic!("<{word}>: {given:?} is not a number"));
    Some(match name {
        "user" | "assistant" | "result" | "note" => message(name, given).to_string(),
        "content" => content(given).to_string(),
        "text" => json!("x".repeat(count())).to_string(),
        "nested" => format!("{}{}", "[".repeat(count()), "]".repeat(count())),
        "messages" => json!((0..count()).map(|n| message("user", &n.to_string())).collect::<Vec<_>>()).to_string(),
        "keys" => Value::Object((0..count()).map(|n| (format!("k{n}"), json!(n))).collect()).to_string(),
        _other => return None,
    })
}

pub fn content(text: &str) -> Value {
    json!([{ "type": "text", "text": text }])
}

pub fn message(name: &str, text: &str) -> Value {
    let content = content(text);
    match name {
        "user" => json!({ "role": "user", "content": content, "timestamp": 1 }),
        "assistant" => json!({
            "role": "assistant", "content": content, "stop_reason": "end", "model": "m", "provider": "p", "timestamp": 2,
        }),
        "result" => json!({
            "role": "function_result", "function_call_id": "call-1", "function_id": "files::read", "content": content,
            "details": { "exit": 0 }, "is_error": false, "timestamp": 3,
        }),
        _note => json!({ "role": "custom", "custom_type": "note", "content": content, "timestamp": 4 }),
    }
}

/// The first difference between `actual` and `expected`. Binds the unbound variables of `expected`. Unless `exact`, an
/// object may have more fields than expected.
pub fn compare(expected: &Value, actual: &Value, exact: bool, variables: &mut Variables) -> Result<(), String> {
    Comparison { exact, variables }.compare("", expected, Some(actual))
}

struct Comparison<'a> {
    exact: bool,
    variables: &'a mut Variables,
}

impl Comparison<'_> {
    fn compare(&mut self, at: &str, expected: &Value, actual: Option<&Value>) -> Result<(), String> {
        if let Some(word) = expected.as_str().and_then(|text| text.strip_prefix('<')?.strip_suffix('>')) {
            return self.placeholder(at, word, actual.filter(|actual| !actual.is_null()));
        }
        let Some(actual) = actual else { return Err(format!("{at}: missing, expected {expected}")) };
        match (expected, actual) {
            (Value::Object(expected), Value::Object(actual)) => {
                for (name, expected) in expected {
                    self.compare(&format!("{at}.{name}"), expected, actual.get(name))?;
                }
                let more = actual.keys().find(|name| !expected.contains_key(*name));
                match more.filter(|_| self.exact) {
                    Some(name) => Err(format!("{at}.{name}: unexpected field: {}", actual[name])),
                    None => Ok(()),
                }
            }
            (Value::Array(expected), Value::Array(actual)) => {
                if expected.len() != actual.len() {
                    let [expected, actual] = [expected, actual].map(|items| Value::Array(items.clone()));
                    return Err(format!("{at}: expected {expected}\nbut was {actual}"));
                }
                let mut items = expected.iter().zip(actual).enumerate();
                items
                    .try_for_each(|(n, (expected, actual))| self.compare(&format!("{at}[{n}]"), expected, Some(actual)))
            }
            (expected, actual) if expected == actual => Ok(()),
            (expected, actual) => Err(format!("{at}: expected {expected}\nbut was {actual}")),
        }
    }

    fn placeholder(&mut self, at: &str, word: &str, actual: Option<&Value>) -> Result<(), String> {
        match (word, actual) {
            ("absent", None) | ("any", Some(_)) => Ok(()),
            ("absent", Some(actual)) => Err(format!("{at}: expected no value\nbut was {actual}")),
            (word, None) => Err(format!("{at}: missing, expected <{word}>")),
            (word, Some(actual)) => {
                if let Some(earlier) = word.strip_prefix("after ") {
                    return self.in_time(at, word, actual.as_i64() > self.time(earlier));
                }
                if let Some(earlier) = word.strip_prefix("not before ") {
                    return self.in_time(at, word, actual.as_i64() >= self.time(earlier));
                }
                match self.variables.get(word) {
                    Some(bound) if bound == actual => Ok(()),
                    Some(bound) => Err(format!("{at}: expected {bound} (<{word}>)\nbut was {actual}")),
                    None => {
                        self.variables.insert(word.to_owned(), actual.clone());
                        Ok(())
                    }
                }
            }
        }
    }

    fn time(&self, name: &str) -> Option<i64> {
        let time = self.variables.get(name).and_then(Value::as_i64);
        Some(time.unwrap_or_else(|| panic!("<{name}> is not a time")))
    }

    fn in_time(&self, at: &str, word: &str, holds: bool) -> Result<(), String> {
        holds.then_some(()).ok_or_else(|| format!("{at}: not <{word}>"))
    }
}
