//! `session::store::propose`: one mutation on behalf of a bridge, checked and executed by the main, exactly once.
//!
//! Not part of the published API. With the other store functions a bridge writes records, and two bridges that write at
//! the same time can overwrite each other. Here the main orders the mutations.

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
    /// Identifies the mutation across retries: 32 hexadecimal digits. The first twelve are the main's time in
    /// milliseconds.
    pub request_id: String,
    /// The public function to execute, such as `session::append`.
    pub function: String,
    /// The request of that function.
    #[schemars(with = "Value")]
    pub request: Box<RawValue>,
}

pub const FUNCTION: Function = Function {
    id: "session::store::propose",
    description: "Internal, for bridges: execute one call of a public function that writes. Retries with the same \
                  request_id are executed once. Responds and fires events like that function.",
    internal: true,
    writes: true,
    request_schema: schema::<ProposeRequest>,
    response_schema: schema::<Value>,
    decide,
    // The response is printed by the function that is executed.
    respond: |_| None,
};

fn decide(body: &str, limits: &Limits) -> Result<Decision, Refusal> {
    // The request inside is one level deeper than in a direct call.
    let given: ProposeRequest = parse_within(body, DEPTH_MAX + 1)?;
    let request_id = request_id(&given.request_id)?;
    let mutation = find(&given.function, false).filter(|function| !function.internal);
    let decided = mutation.map(|function| ((function.decide)(given.request.get(), limits), function.id));
    match decided {
        Some((Ok(Decision::Propose(command)), function)) => Ok(Decision::ProposeOnce { command, request_id, function }),
        Some((Err(refusal), _)) => Err(refusal),
        Some((Ok(_), _)) | None => {
            let named = checks::shortened(&given.function);
            Err(checks::invalid(format!(
                "function: {named:?} is not a public function that writes; name one, such as session::append"
            )))
        }
    }
}

fn request_id(text: &str) -> Result<RequestId, Refusal> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    match number.map(RequestId) {
        Some(id) if id != RequestId::NONE => Ok(id),
        Some(_) | None => Err(checks::invalid("request_id: must be 32 hexadecimal digits, not all zero")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits::DEFAULT;

    fn propose(function: &str, request: &str) -> Result<Decision, Refusal> {
        decide(
            &format!(
                r#"{{"request_id":"019307c1d5a000000000000000000001","function":"{function}","request":{request}}}"#
            ),
            &LIMITS,
        )
    }

    #[test]
    fn a_mutation_is_checked_as_in_a_direct_call() {
        let decided = propose("session::ensure", r#"{"session_id":"s"}"#).unwrap();
        let Decision::ProposeOnce { command, request_id, function } = decided else { panic!("not proposed") };
        assert_eq!(command.session_id().unwrap().as_str(), "s");
        assert_eq!((request_id.issued_ms(), function), (0x0193_07c1_d5a0, "session::ensure"));
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
    fn a_malformed_request_id_is_refused() {
        for id in ["", "1", &"0".repeat(32), &"g".repeat(32), &format!("+{}", "1".repeat(31))] {
            assert!(request_id(id).is_err(), "{id}");
        }
    }
}
