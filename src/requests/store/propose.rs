//! `session::store::propose`: a whole mutation of a bridge, checked and decided where the data lives, once.
//!
//! Beyond the published API. The other store functions let a bridge write records, and two bridges that do so at once
//! can undo each other's work; this one lets the main decide.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::machine::ids::RequestId;
use crate::machine::refusal::Refusal;
use crate::requests::body::parse_within;
use crate::requests::limits::DEPTH_MAX;
use crate::requests::table::{find, schema};
use crate::requests::{Decision, Function, Limits, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ProposeRequest {
    /// Names the mutation across its repetitions: 32 hexadecimal digits, the first twelve of them the time in
    /// milliseconds by the main's clock.
    pub request_id: String,
    /// The public function that was called, such as `session::append`.
    pub function: String,
    /// What it was called with.
    #[schemars(with = "Value")]
    pub request: Box<RawValue>,
}

pub const FUNCTION: Function = Function {
    id: "session::store::propose",
    description: "Internal, for bridges: carry out one call of a mutating public function, once however often it is \
                  sent under the same request_id; answers and fires as that function does.",
    internal: true,
    request_schema: schema::<ProposeRequest>,
    response_schema: schema::<Value>,
    decide,
    // The answer is printed by the function that was called.
    respond: |_| None,
};

fn decide(body: &str, limits: &Limits) -> Result<Decision, Refusal> {
    // One level deeper than what it carries.
    let asked: ProposeRequest = parse_within(body, DEPTH_MAX + 1)?;
    let request_id = request_id(&asked.request_id)?;
    let mutation = find(&asked.function, false).filter(|function| !function.internal);
    let decided = mutation.map(|function| ((function.decide)(asked.request.get(), limits), function.id));
    match decided {
        Some((Ok(Decision::Propose(command)), function)) => Ok(Decision::ProposeOnce { command, request_id, function }),
        Some((Err(refusal), _)) => Err(refusal),
        Some((Ok(_), _)) | None => {
            let named = checks::shortened(&asked.function);
            Err(checks::invalid(format!("function: {named:?} is no public function that changes anything")))
        }
    }
}

fn request_id(text: &str) -> Result<RequestId, Refusal> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    match number.map(RequestId) {
        Some(id) if id != RequestId::UNREPEATED => Ok(id),
        Some(_) | None => Err(checks::invalid("request_id must be 32 hexadecimal digits, not all zero")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { default_list_limit: 50, max_list_limit: 500 };

    fn propose(function: &str, request: &str) -> Result<Decision, Refusal> {
        decide(
            &format!(
                r#"{{"request_id":"019307c1d5a000000000000000000001","function":"{function}","request":{request}}}"#
            ),
            &LIMITS,
        )
    }

    #[test]
    fn a_mutation_travels_whole_and_is_checked_as_if_it_were_called_here() {
        let decided = propose("session::ensure", r#"{"session_id":"s"}"#).unwrap();
        let Decision::ProposeOnce { command, request_id, function } = decided else { panic!("not proposed") };
        assert_eq!(command.session_id().unwrap().as_str(), "s");
        assert_eq!((request_id.born_ms(), function), (0x0193_07c1_d5a0, "session::ensure"));
        let refusal = propose("session::ensure", r#"{"session_id":""}"#).unwrap_err();
        assert_eq!(refusal.code(), "session/invalid_request");
    }

    #[test]
    fn only_public_mutations_may_be_proposed() {
        for function in ["session::get", "session::config-status", "session::store::put-meta", "session::no", ""] {
            let refusal = propose(function, r#"{"session_id":"s"}"#).unwrap_err();
            assert!(refusal.to_string().starts_with("function: "), "{refusal}");
        }
    }

    #[test]
    fn a_malformed_name_is_refused() {
        for id in ["", "1", &"0".repeat(32), &"g".repeat(32), &format!("+{}", "1".repeat(31))] {
            assert!(request_id(id).is_err(), "{id}");
        }
    }
}
