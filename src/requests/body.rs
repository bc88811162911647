//! Owns: parsing a JSON body into a request.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::checks::{self, invalid};
use super::explain;
use super::limits::{BATCH_LENGTH_MAX, DEPTH_MAX};
use crate::machine::refusal::Refusal;

/// Parses a body. An empty body and `null` count as an empty object, for functions without required fields.
pub fn parse<T: DeserializeOwned>(body: &str) -> Result<T, Refusal> {
    parse_within(body, DEPTH_MAX)
}

/// Parses a body with another limit on its depth.
pub fn parse_within<T: DeserializeOwned>(body: &str, depth_max: usize) -> Result<T, Refusal> {
    let body = match body.trim_ascii() {
        "" | "null" => "{}",
        body => body,
    };
    if !body.starts_with('{') {
        return Err(invalid("invalid request: the body must be a JSON object"));
    }
    if is_deeper_than(body, depth_max) {
        return Err(invalid(format!("invalid request: nested deeper than {depth_max} levels")));
    }
    // The path of an error is expensive, so it is computed only after the plain parser has failed.
    serde_json::from_str(body).map_err(|_| explain::refusal::<T>(body))
}

/// An array with a limited length. Elements past the limit are counted and not parsed.
#[derive(Debug)]
pub struct Batch<T> {
    items: Vec<T>,
    length: usize,
}

impl<T> Batch<T> {
    /// The elements; refuses a batch that is too long.
    pub fn items(self, field: &str) -> Result<Vec<T>, Refusal> {
        checks::batch(field, self.length)?;
        Ok(self.items)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Batch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Batch<T>, D::Error> {
        deserializer.deserialize_seq(BatchVisitor(PhantomData))
    }
}

struct BatchVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for BatchVisitor<T> {
    type Value = Batch<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sent: A) -> Result<Batch<T>, A::Error> {
        let mut items = Vec::new();
        while items.len() < BATCH_LENGTH_MAX {
            let Some(item) = sent.next_element()? else { return Ok(Batch { length: items.len(), items }) };
            items.push(item);
        }
        let mut length = items.len();
        while sent.next_element::<IgnoredAny>()?.is_some() {
            length += 1;
        }
        Ok(Batch { items, length })
    }
}

/// Counts brackets outside strings. Exact for valid JSON; the parser refuses everything else.
pub fn is_deeper_than(body: &str, depth_max: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in body.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                if depth > depth_max {
                    return true;
                }
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::requests::append::AppendRequest;
    use crate::requests::create::CreateRequest;

    fn words<T: DeserializeOwned + std::fmt::Debug>(body: &str) -> String {
        let refusal = parse::<T>(body).unwrap_err();
        assert_eq!(refusal.code(), "session/invalid_request");
        refusal.to_string()
    }

    /// An append whose message nests function results `levels` deep.
    fn nested_append(levels: usize) -> String {
        let open = r#"[{"type":"function_result","function_call_id":"c","content":"#.repeat(levels);
        let close = "}]".repeat(levels);
        format!(r#"{{"session_id":"s","message":{{"role":"user","timestamp":1,"content":{open}[]{close}}}}}"#)
    }

    #[test]
    fn an_empty_body_and_null_are_an_empty_request_if_no_field_is_required() {
        for body in ["", "  ", "null", " null\n", "{}"] {
            assert!(parse::<CreateRequest>(body).is_ok(), "{body:?}");
            assert_eq!(words::<AppendRequest>(body), "invalid request: missing field `session_id`");
        }
    }

    #[test]
    fn a_body_that_is_not_an_object_is_refused() {
        for body in ["[]", "[\"s\"]", "1", "\"s\"", "true", "nul"] {
            assert_eq!(words::<AppendRequest>(body), "invalid request: the body must be a JSON object", "{body}");
        }
    }

    #[test]
    fn broken_json_is_refused_with_its_place() {
        let what = words::<CreateRequest>(r#"{"title": "a" "b"}"#);
        assert!(what.contains("line 1 column 15"), "{what}");
        assert!(words::<CreateRequest>(r#"{} {}"#).contains("trailing characters"));
        assert!(words::<CreateRequest>(r#"{"title""#).contains("EOF"));
        let what = words::<CreateRequest>(r#"{"title":"\ud800"}"#);
        assert!(what.contains("line 1 column"), "{what}");
    }

    #[test]
    fn unknown_fields_are_ignored() {
        assert!(parse::<CreateRequest>(r#"{"_caller_worker_id":"w","x":{"y":[1]}}"#).is_ok());
    }

    #[test]
    fn a_deep_document_is_refused_in_known_and_unknown_fields() {
        let too_deep = format!("invalid request: nested deeper than {DEPTH_MAX} levels");
        assert_eq!(words::<AppendRequest>(&nested_append(2000)), too_deep);
        let deep = |levels: usize| format!(r#"{{"x":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        assert_eq!(words::<CreateRequest>(&deep(2000)), too_deep);
        assert!(parse::<CreateRequest>(&deep(DEPTH_MAX - 1)).is_ok());
        assert_eq!(words::<CreateRequest>(&deep(DEPTH_MAX)), too_deep);
    }

    #[test]
    fn the_deepest_accepted_message_fits_the_stack_and_reads_back() {
        let request: AppendRequest = parse(&nested_append((DEPTH_MAX - 3) / 2)).unwrap();
        let printed = request.message.unwrap().0.body.text().to_owned();
        let page = format!(r#"{{"result":{{"messages":[{{"message":{printed}}}]}}}}"#);
        assert!(serde_json::from_str::<serde_json::Value>(&page).is_ok());
    }

    #[test]
    fn brackets_inside_strings_do_not_count() {
        let text = serde_json::to_string(&"[\"\\".repeat(500)).unwrap();
        assert!(parse::<CreateRequest>(&format!(r#"{{"title":{text}}}"#)).is_ok());
    }

    #[test]
    fn broken_text_of_any_shape_never_panics() {
        #[derive(Debug, Deserialize)]
        struct Nothing {}
        for body in ["{", "{\"", "{\"\\", "{]]]]]", "{\"a\":tru}", "{\u{0}}"] {
            assert!(parse::<Nothing>(body).is_err(), "{body:?}");
        }
    }
}
