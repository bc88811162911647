//! Owns: the small language of the feature files: shorthands and variables in JSON, and the comparison of an expected
//! shape with what was really said.
//!
//! In a request, and in an expectation:
//! - `"<user:hi>"`, `"<assistant:hi>"`, `"<result:hi>"`, `"<note:hi>"`: a whole message of that role with that text;
//! - `"<content:hi>"`: content blocks with that text;
//! - `"<text:5>"`: five bytes of text; `"<nested:5>"`: arrays five deep; `"<messages:5>"`: five user messages;
//!   `"<keys:5>"`: an object with five keys;
//! - `"<name>"`: the variable, where it is bound.
//!
//! Only in an expectation: `"<any>"` (something, not null), `"<absent>"` (no such field, or null), `"<after name>"` (a
//! number greater than the variable), `"<not before name>"`; a variable that is not bound yet is bound to what was said.

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
            Some(meant) => expanded.push_str(&meant),
            None => expanded.push_str(&rest[start..start + length + 2]),
        }
        rest = &rest[start + length + 2..];
    }
    expanded.push_str(rest);
    expanded
}

fn shorthand(word: &str) -> Option<String> {
    let (name, given) = word.split_once(':')?;
    let count = || given.parse::<usize>().unwrap_or_else(|_| panic!("<{word}>: {given:?} is no number"));
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

/// Where `said` differs from `expected`; unbound variables of `expected` are bound on the way. Objects may hold more
/// fields than expected, unless `exact`.
pub fn compare(expected: &Value, said: &Value, exact: bool, variables: &mut Variables) -> Result<(), String> {
    Comparison { exact, variables }.compare("", expected, Some(said))
}

struct Comparison<'a> {
    exact: bool,
    variables: &'a mut Variables,
}

impl Comparison<'_> {
    fn compare(&mut self, at: &str, expected: &Value, said: Option<&Value>) -> Result<(), String> {
        if let Some(word) = expected.as_str().and_then(|text| text.strip_prefix('<')?.strip_suffix('>')) {
            return self.placeholder(at, word, said.filter(|said| !said.is_null()));
        }
        let Some(said) = said else { return Err(format!("{at}: nothing was said, expected {expected}")) };
        match (expected, said) {
            (Value::Object(expected), Value::Object(said)) => {
                for (name, expected) in expected {
                    self.compare(&format!("{at}.{name}"), expected, said.get(name))?;
                }
                let more = said.keys().find(|name| !expected.contains_key(*name));
                match more.filter(|_| self.exact) {
                    Some(name) => Err(format!("{at}.{name}: more was said than expected: {}", said[name])),
                    None => Ok(()),
                }
            }
            (Value::Array(expected), Value::Array(said)) => {
                if expected.len() != said.len() {
                    let [expected, said] = [expected, said].map(|items| Value::Array(items.clone()));
                    return Err(format!("{at}: expected {expected}\nbut was told {said}"));
                }
                let mut items = expected.iter().zip(said).enumerate();
                items.try_for_each(|(n, (expected, said))| self.compare(&format!("{at}[{n}]"), expected, Some(said)))
            }
            (expected, said) if expected == said => Ok(()),
            (expected, said) => Err(format!("{at}: expected {expected}\nbut was told {said}")),
        }
    }

    fn placeholder(&mut self, at: &str, word: &str, said: Option<&Value>) -> Result<(), String> {
        match (word, said) {
            ("absent", None) | ("any", Some(_)) => Ok(()),
            ("absent", Some(said)) => Err(format!("{at}: nothing expected\nbut was told {said}")),
            (word, None) => Err(format!("{at}: nothing was said, expected <{word}>")),
            (word, Some(said)) => {
                if let Some(earlier) = word.strip_prefix("after ") {
                    return self.in_time(at, word, said.as_i64() > self.time(earlier));
                }
                if let Some(earlier) = word.strip_prefix("not before ") {
                    return self.in_time(at, word, said.as_i64() >= self.time(earlier));
                }
                match self.variables.get(word) {
                    Some(bound) if bound == said => Ok(()),
                    Some(bound) => Err(format!("{at}: expected {bound} (<{word}>)\nbut was told {said}")),
                    None => {
                        self.variables.insert(word.to_owned(), said.clone());
                        Ok(())
                    }
                }
            }
        }
    }
    fn time(&self, name: &str) -> Option<i64> {
        let time = self.variables.get(name).and_then(Value::as_i64);
        Some(time.unwrap_or_else(|| panic!("<{name}> is no time")))
    }

    fn in_time(&self, at: &str, word: &str, holds: bool) -> Result<(), String> {
        holds.then_some(()).ok_or_else(|| format!("{at}: not <{word}>"))
    }
}
