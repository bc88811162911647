//! Owns: the spelling of frames that clients get. Texts that are JSON already are joined, never parsed again.
//! Never: when a frame is sent.

use std::borrow::Cow;

use tokio_tungstenite::tungstenite::Utf8Bytes;

/// A frame to a client, as text.
pub type Frame = Utf8Bytes;

/// An error as the bus spells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorBody {
    pub code: Cow<'static, str>,
    pub message: String,
}

impl ErrorBody {
    pub fn new(code: &'static str, message: impl Into<String>) -> ErrorBody {
        ErrorBody { code: Cow::Borrowed(code), message: message.into() }
    }

    pub fn print(&self) -> String {
        format!("{{\"code\":{},\"message\":{}}}", quoted(&self.code), quoted(&self.message))
    }
}

/// A JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub fn worker_registered(worker_id: &str, token: &str) -> Frame {
    let (worker_id, token) = (quoted(worker_id), quoted(token));
    format!(r#"{{"type":"workerregistered","worker_id":{worker_id},"reattach_token":{token}}}"#).into()
}

pub fn registration_rejected(function_id: &str, owner_worker_id: &str) -> Frame {
    let (function_id, owner) = (quoted(function_id), quoted(owner_worker_id));
    format!(
        r#"{{"type":"registrationrejected","code":"FUNCTION_NAMESPACE_CONFLICT","namespace":"default","function_id":{function_id},"owner_worker_id":{owner}}}"#
    )
    .into()
}

/// The answer to a call: `Ok` the result, `Err` the error, both as JSON text.
pub fn invocation_result(invocation_id: &str, function_id: &str, outcome: Result<&str, &str>) -> Frame {
    let (name, value) = match outcome {
        Ok(result) => ("result", result),
        Err(error) => ("error", error),
    };
    let function_id = quoted(function_id);
    let mut text = String::with_capacity(value.len() + invocation_id.len() + function_id.len() + 80);
    text.push_str(r#"{"type":"invocationresult","invocation_id":"#);
    text.push_str(invocation_id);
    text.push_str(r#","function_id":"#);
    text.push_str(&function_id);
    text.push_str(",\"");
    text.push_str(name);
    text.push_str("\":");
    text.push_str(value);
    text.push('}');
    text.into()
}

/// A call to a client. Fields that are absent are left out.
pub struct Call<'a> {
    pub invocation_id: Option<&'a str>,
    pub function_id: &'a str,
    pub data: &'a str,
    pub metadata: Option<&'a str>,
    pub traceparent: Option<&'a str>,
    pub baggage: Option<&'a str>,
    pub namespace: Option<&'a str>,
}

impl Call<'_> {
    pub fn print(&self) -> Frame {
        let sidecars = [
            ("metadata", self.metadata),
            ("traceparent", self.traceparent),
            ("baggage", self.baggage),
            ("namespace", self.namespace),
        ];
        let size: usize = sidecars.iter().filter_map(|(_, value)| *value).map(|value| value.len() + 20).sum();
        let mut text = String::with_capacity(self.data.len() + self.function_id.len() + size + 160);
        text.push_str(r#"{"type":"invokefunction""#);
        match self.invocation_id {
            Some(id) => {
                text.push_str(r#","invocation_id":"#);
                text.push_str(&quoted(id));
            }
            None => text.push_str(r#","action":{"type":"void"}"#),
        }
        text.push_str(r#","function_id":"#);
        text.push_str(&quoted(self.function_id));
        for (name, value) in sidecars {
            let Some(value) = value else { continue };
            text.push_str(",\"");
            text.push_str(name);
            text.push_str("\":");
            text.push_str(value);
        }
        text.push_str(r#","data":"#);
        text.push_str(self.data);
        text.push('}');
        text.into()
    }
}

pub fn trigger_result(id: &str, trigger_type: &str, function_id: &str, error: Option<&str>) -> Frame {
    let error = error.map(|error| format!(",\"error\":{error}")).unwrap_or_default();
    let (id, trigger_type, function_id) = (quoted(id), quoted(trigger_type), quoted(function_id));
    format!(
        r#"{{"type":"triggerregistrationresult","id":{id},"trigger_type":{trigger_type},"function_id":{function_id}{error}}}"#
    )
    .into()
}

/// Asks the owner of a trigger type to serve a binding.
pub fn register_trigger(
    id: &str,
    trigger_type: &str,
    function_id: &str,
    config: &str,
    metadata: Option<&str>,
    namespace: Option<&str>,
) -> Frame {
    let metadata = metadata.map(|metadata| format!(",\"metadata\":{metadata}")).unwrap_or_default();
    let namespace = namespace.map(|namespace| format!(",\"namespace\":{namespace}")).unwrap_or_default();
    let (id, trigger_type, function_id) = (quoted(id), quoted(trigger_type), quoted(function_id));
    format!(
        r#"{{"type":"registertrigger","id":{id},"trigger_type":{trigger_type},"function_id":{function_id},"config":{config}{metadata}{namespace}}}"#
    )
    .into()
}

pub fn unregister_trigger(id: &str, trigger_type: &str) -> Frame {
    format!(r#"{{"type":"unregistertrigger","id":{},"trigger_type":{}}}"#, quoted(id), quoted(trigger_type)).into()
}

pub fn pong() -> Frame {
    Frame::from_static(r#"{"type":"pong"}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_frames_are_json() {
        let call = Call {
            invocation_id: None,
            function_id: "f\"",
            data: "[1]",
            metadata: Some("{}"),
            traceparent: None,
            baggage: None,
            namespace: None,
        };
        for frame in [
            worker_registered("a\"", "b"),
            registration_rejected("f", "w"),
            invocation_result("\"i\"", "f", Ok("null")),
            invocation_result("\"i\"", "f", Err(&ErrorBody::new("c", "m\n").print())),
            call.print(),
            trigger_result("i", "t", "f", Some("{}")),
            register_trigger("i", "t", "f", "null", None, Some("\"n\"")),
            unregister_trigger("i", "t"),
            pong(),
        ] {
            let value: serde_json::Value = serde_json::from_str(&frame).unwrap();
            assert!(value["type"].is_string());
        }
    }
}
