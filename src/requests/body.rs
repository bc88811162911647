//! Owns: the way from a JSON body to a request. A body that does not parse is explained, never half taken.

use serde::de::DeserializeOwned;

use super::checks::invalid;
use super::explain;
use super::limits::DEPTH_MAX;
use crate::machine::refusal::Refusal;

/// Parses a body. Nothing at all, or null, is an empty object: functions without required fields take it.
pub fn parse<T: DeserializeOwned>(body: &str) -> Result<T, Refusal> {
    parse_within(body, DEPTH_MAX)
}

/// The same for a body that may nest so many levels deep.
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
    // The path of an error is worked out only when there is an error: requests are parsed often, faults rarely.
    serde_json::from_str(body).map_err(|_| explain::refusal::<T>(body))
}

/// Counts brackets outside strings. Exact for valid JSON; what is not valid is refused by the parser.
fn is_deeper_than(body: &str, depth_max: usize) -> bool {
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
    fn nothing_and_null_are_an_empty_request_where_no_field_is_required() {
        for body in ["", "  ", "null", " null\n", "{}"] {
            assert!(parse::<CreateRequest>(body).is_ok(), "{body:?}");
            assert_eq!(words::<AppendRequest>(body), "invalid request: missing field `session_id`");
        }
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
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
    fn a_deep_document_is_refused_whether_it_is_known_or_not() {
        let too_deep = format!("invalid request: nested deeper than {DEPTH_MAX} levels");
        assert_eq!(words::<AppendRequest>(&nested_append(2000)), too_deep);
        let deep = |levels: usize| format!(r#"{{"x":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        assert_eq!(words::<CreateRequest>(&deep(2000)), too_deep);
        assert!(parse::<CreateRequest>(&deep(DEPTH_MAX - 1)).is_ok());
        assert_eq!(words::<CreateRequest>(&deep(DEPTH_MAX)), too_deep);
    }

    #[test]
    fn the_deepest_message_that_is_taken_fits_the_stack_and_comes_back_out() {
        let request: AppendRequest = parse(&nested_append((DEPTH_MAX - 3) / 2)).unwrap();
        let printed = serde_json::to_string(&request.message).unwrap();
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
