//! Owns: parsing the frames that clients send. Payloads stay raw text, so that a frame with a very deeply nested
//! payload still yields the id to answer.
//! Never: what a frame means.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;

/// The fields of all frames, unparsed. A field of a wrong type is an error only in a frame that needs it.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    invocation_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    function_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    trigger_type: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow, default)]
    action: Option<&'a RawValue>,
    #[serde(borrow, default)]
    config: Option<&'a RawValue>,
    #[serde(borrow, default)]
    description: Option<&'a RawValue>,
    #[serde(borrow, default)]
    request_format: Option<&'a RawValue>,
    #[serde(borrow, default)]
    response_format: Option<&'a RawValue>,
    #[serde(borrow, default)]
    trigger_request_format: Option<&'a RawValue>,
    #[serde(borrow, default)]
    call_request_format: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    traceparent: Option<&'a RawValue>,
    #[serde(borrow, default)]
    baggage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    namespace: Option<&'a RawValue>,
    #[serde(borrow, default)]
    previous_worker_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reattach_token: Option<&'a RawValue>,
}

/// How a client wants a call to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Answer,
    Void,
    Enqueue,
    Unknown,
}

/// A call as a client sent it. `null` fields count as absent.
#[derive(Debug)]
pub struct Invoke<'a> {
    /// Repeated unchanged in the answer. Absent when no answer is wanted.
    pub invocation_id: Option<&'a RawValue>,
    pub function_id: Cow<'a, str>,
    pub data: Option<&'a RawValue>,
    pub metadata: Option<&'a RawValue>,
    pub action: Action,
    pub traceparent: Option<&'a RawValue>,
    pub baggage: Option<&'a RawValue>,
    pub namespace: Option<&'a RawValue>,
}

#[derive(Debug)]
pub struct RegisterFunction<'a> {
    pub id: Cow<'a, str>,
    pub description: Option<&'a RawValue>,
    pub request_format: Option<&'a RawValue>,
    pub response_format: Option<&'a RawValue>,
    pub metadata: Option<&'a RawValue>,
}

#[derive(Debug)]
pub struct RegisterType<'a> {
    pub id: Cow<'a, str>,
    pub description: Option<&'a RawValue>,
    pub trigger_request_format: Option<&'a RawValue>,
    pub call_request_format: Option<&'a RawValue>,
}

#[derive(Debug)]
pub struct RegisterTrigger<'a> {
    pub id: Cow<'a, str>,
    pub trigger_type: Cow<'a, str>,
    pub function_id: Cow<'a, str>,
    pub config: Option<&'a RawValue>,
    pub metadata: Option<&'a RawValue>,
    pub namespace: Option<&'a RawValue>,
}

/// A frame from a client.
#[derive(Debug)]
pub enum Inbound<'a> {
    Invoke(Invoke<'a>),
    Result {
        invocation_id: Cow<'a, str>,
        result: Option<&'a RawValue>,
        error: Option<&'a RawValue>,
    },
    RegisterFunction(RegisterFunction<'a>),
    UnregisterFunction {
        id: Cow<'a, str>,
    },
    RegisterType(RegisterType<'a>),
    UnregisterType {
        id: Cow<'a, str>,
    },
    RegisterTrigger(RegisterTrigger<'a>),
    UnregisterTrigger {
        id: Cow<'a, str>,
    },
    TriggerResult {
        id: Cow<'a, str>,
        error: Option<&'a RawValue>,
    },
    Reattach {
        previous_worker_id: Cow<'a, str>,
        token: Cow<'a, str>,
    },
    Ping,
    /// Pongs and unknown types.
    Ignored,
    /// A frame of a known type that lacks a field. `invocation_id` is the call to answer with the error, if any.
    Unusable {
        invocation_id: Option<&'a RawValue>,
        why: String,
    },
}

/// The text is not a JSON object, so there is no call to answer.
#[derive(Debug)]
pub struct NotAnObject(Option<serde_json::Error>);

impl fmt::Display for NotAnObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(error) => write!(f, "not a JSON object: {error}"),
            None => f.write_str("not a JSON object"),
        }
    }
}

impl std::error::Error for NotAnObject {}

impl<'a> Inbound<'a> {
    /// Whether it adds something to what the node keeps for the client.
    pub fn registers(&self) -> bool {
        match self {
            Inbound::RegisterFunction(_) | Inbound::RegisterType(_) | Inbound::RegisterTrigger(_) => true,
            Inbound::Invoke(_)
            | Inbound::Result { .. }
            | Inbound::UnregisterFunction { .. }
            | Inbound::UnregisterType { .. }
            | Inbound::UnregisterTrigger { .. }
            | Inbound::TriggerResult { .. }
            | Inbound::Reattach { .. }
            | Inbound::Ping
            | Inbound::Ignored
            | Inbound::Unusable { .. } => false,
        }
    }

    pub fn parse(text: &'a str) -> Result<Inbound<'a>, NotAnObject> {
        // serde would accept an array too, as the values of the fields in order.
        if !text.trim_start().starts_with('{') {
            return Err(NotAnObject(None));
        }
        let fields: Fields = serde_json::from_str(text).map_err(|error| NotAnObject(Some(error)))?;
        let Some(kind) = fields.kind.and_then(string) else { return Ok(Inbound::Ignored) };
        let invocation_id = fields.invocation_id;
        let read = fields.read(&kind);
        Ok(read.unwrap_or_else(|field| Inbound::Unusable {
            invocation_id: if kind == "invokefunction" { invocation_id } else { None },
            why: format!("frame `{kind}` needs the string field `{field}`"),
        }))
    }
}

impl<'a> Fields<'a> {
    /// `Err` names the missing field.
    fn read(self, kind: &str) -> Result<Inbound<'a>, &'static str> {
        let need = |field: Option<&'a RawValue>, name| field.and_then(string).ok_or(name);
        Ok(match kind {
            "invokefunction" => Inbound::Invoke(Invoke {
                function_id: need(self.function_id, "function_id")?,
                invocation_id: self.invocation_id,
                data: self.data,
                metadata: self.metadata,
                action: self.action.map_or(Action::Answer, action),
                traceparent: self.traceparent,
                baggage: self.baggage,
                namespace: self.namespace,
            }),
            "invocationresult" => Inbound::Result {
                invocation_id: need(self.invocation_id, "invocation_id")?,
                result: self.result,
                error: self.error,
            },
            "registerfunction" => Inbound::RegisterFunction(RegisterFunction {
                id: need(self.id, "id")?,
                description: self.description,
                request_format: self.request_format,
                response_format: self.response_format,
                metadata: self.metadata,
            }),
            "unregisterfunction" => Inbound::UnregisterFunction { id: need(self.id, "id")? },
            "registertriggertype" => Inbound::RegisterType(RegisterType {
                id: need(self.id, "id")?,
                description: self.description,
                trigger_request_format: self.trigger_request_format,
                call_request_format: self.call_request_format,
            }),
            "unregistertriggertype" => Inbound::UnregisterType { id: need(self.id, "id")? },
            "registertrigger" => Inbound::RegisterTrigger(RegisterTrigger {
                id: need(self.id, "id")?,
                trigger_type: need(self.trigger_type, "trigger_type")?,
                function_id: need(self.function_id, "function_id")?,
                config: self.config,
                metadata: self.metadata,
                namespace: self.namespace,
            }),
            "unregistertrigger" => Inbound::UnregisterTrigger { id: need(self.id, "id")? },
            "triggerregistrationresult" => Inbound::TriggerResult { id: need(self.id, "id")?, error: self.error },
            "reattach" => Inbound::Reattach {
                previous_worker_id: need(self.previous_worker_id, "previous_worker_id")?,
                token: need(self.reattach_token, "reattach_token")?,
            },
            "ping" => Inbound::Ping,
            _ => Inbound::Ignored,
        })
    }
}

/// A copy of raw JSON text.
pub fn owned(raw: Option<&RawValue>) -> Option<String> {
    raw.map(|raw| raw.get().to_owned())
}

/// The text of a raw JSON string. `None` for any other value.
fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str::<Text>(raw.get()).ok().map(|text| text.0)
}

fn action(raw: &RawValue) -> Action {
    #[derive(Deserialize)]
    struct Typed<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
    }
    match serde_json::from_str::<Typed>(raw.get()).as_ref().map(|typed| typed.kind.as_ref()) {
        Ok("void") => Action::Void,
        Ok("enqueue") => Action::Enqueue,
        Ok(_) | Err(_) => Action::Unknown,
    }
}

/// True when brackets nest at most `most` deep. Parsers of clients fail at some depth and drop the frame silently, so
/// this is checked before a payload is forwarded.
pub fn nests_within(text: &str, most: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                if depth > most {
                    return false;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_nested_thousands_deep_still_yields_the_invocation_id() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let text = format!(r#"{{"type":"invokefunction","invocation_id":"i","function_id":"f","data":{deep}}}"#);
        let Ok(Inbound::Invoke(invoke)) = Inbound::parse(&text) else { panic!("not read") };
        assert_eq!(invoke.invocation_id.unwrap().get(), "\"i\"");
        assert_eq!(invoke.data.unwrap().get(), deep);
        assert!(!nests_within(&deep, 99_999) && nests_within(&deep, 100_000));
        assert!(nests_within(r#"{"a":"[[[[\"[[["}"#, 1));
    }

    #[test]
    fn frames_of_unknown_types_are_ignored_whatever_their_fields() {
        for text in ["{}", r#"{"type":"observe","id":{"x":1}}"#, r#"{"type":7}"#, r#"{"type":"pong"}"#] {
            assert!(matches!(Inbound::parse(text), Ok(Inbound::Ignored)), "{text}");
        }
    }

    #[test]
    fn a_frame_that_lacks_what_it_needs_says_what() {
        let Ok(Inbound::Unusable { invocation_id, why }) =
            Inbound::parse(r#"{"type":"invokefunction","invocation_id":"i","function_id":5}"#)
        else {
            panic!("not noticed")
        };
        assert_eq!(invocation_id.unwrap().get(), "\"i\"");
        assert!(why.contains("`function_id`"), "{why}");
    }

    #[test]
    fn text_that_is_no_json_object_is_an_error() {
        for text in ["", "[1]", "{\"type\":", "hello", "{\"type\":\"ping\"} {}"] {
            assert!(Inbound::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn absent_data_and_action_read_as_null_and_answer() {
        let text = r#"{"type":"invokefunction","function_id":"f","data":null,"action":{"type":"enqueue","queue":"q"}}"#;
        let Ok(Inbound::Invoke(invoke)) = Inbound::parse(text) else { panic!("not read") };
        assert!(invoke.data.is_none() && invoke.action == Action::Enqueue);
    }
}
