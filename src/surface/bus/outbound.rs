//! Owns: printing the frames that clients receive. Texts that are JSON already are joined and not parsed again.
//! Never: when a frame is sent.

use bytes::Bytes;

use crate::requests::Printed;
use crate::surface::socket::Text;
use crate::surface::socket::frame::Frame;

/// A JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub fn worker_registered(worker_id: &str, token: &str) -> Text {
    let (worker_id, token) = (quoted(worker_id), quoted(token));
    format!(r#"{{"type":"workerregistered","worker_id":{worker_id},"reattach_token":{token}}}"#).into()
}

/// The frame with which an engine refuses a client, before it closes.
pub fn auth_error(message: &str) -> Text {
    let message = quoted(message);
    format!(r#"{{"type":"error","error":{{"code":"AUTH_ERROR","message":{message}}}}}"#).into()
}

pub fn registration_rejected(function_id: &str, owner_worker_id: &str) -> Text {
    let (function_id, owner) = (quoted(function_id), quoted(owner_worker_id));
    format!(
        r#"{{"type":"registrationrejected","code":"FUNCTION_NAMESPACE_CONFLICT","namespace":"default","function_id":{function_id},"owner_worker_id":{owner}}}"#
    )
    .into()
}

/// The answer to a call: the result or the error, both as JSON text. The shared parts of a result stay shared.
pub fn invocation_result(invocation_id: &str, function_id: &str, outcome: Result<Printed, &str>) -> Frame {
    let (name, (first, mut shared)) = match outcome {
        Ok(result) => ("result", result.into_parts()),
        Err(error) => ("error", (error.to_owned(), Vec::new())),
    };
    let function_id = quoted(function_id);
    let mut text = String::with_capacity(first.len() + invocation_id.len() + function_id.len() + 80);
    text.push_str(r#"{"type":"invocationresult","invocation_id":"#);
    text.push_str(invocation_id);
    text.push_str(r#","function_id":"#);
    text.push_str(&function_id);
    text.push_str(",\"");
    text.push_str(name);
    text.push_str("\":");
    text.push_str(&first);
    shared.last_mut().map_or(&mut text, |(_, tail)| tail).push('}');
    let more = shared.into_iter().flat_map(|(shared, tail)| [shared, Bytes::from(tail)]);
    Frame::of_parts(text, more.filter(|part| !part.is_empty()).collect())
}

/// A call to a client. Absent fields are left out.
pub struct InvokeFrame<'a> {
    pub invocation_id: Option<&'a str>,
    pub function_id: &'a str,
    pub data: &'a str,
    pub metadata: Option<&'a str>,
    pub traceparent: Option<&'a str>,
    pub baggage: Option<&'a str>,
    pub namespace: Option<&'a str>,
}

impl<'a> InvokeFrame<'a> {
    /// A call that wants no answer.
    pub fn void(function_id: &'a str, data: &'a str, metadata: Option<&'a str>) -> InvokeFrame<'a> {
        InvokeFrame {
            invocation_id: None,
            function_id,
            data,
            metadata,
            traceparent: None,
            baggage: None,
            namespace: None,
        }
    }

    pub fn print(&self) -> Text {
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

pub fn trigger_result(id: &str, trigger_type: &str, function_id: &str, error: Option<&str>) -> Text {
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
) -> Text {
    let metadata = metadata.map(|metadata| format!(",\"metadata\":{metadata}")).unwrap_or_default();
    let namespace = namespace.map(|namespace| format!(",\"namespace\":{namespace}")).unwrap_or_default();
    let (id, trigger_type, function_id) = (quoted(id), quoted(trigger_type), quoted(function_id));
    format!(
        r#"{{"type":"registertrigger","id":{id},"trigger_type":{trigger_type},"function_id":{function_id},"config":{config}{metadata}{namespace}}}"#
    )
    .into()
}

pub fn unregister_trigger(id: &str, trigger_type: &str) -> Text {
    format!(r#"{{"type":"unregistertrigger","id":{},"trigger_type":{}}}"#, quoted(id), quoted(trigger_type)).into()
}

pub fn pong() -> Text {
    Text::from_static(r#"{"type":"pong"}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_frames_are_json() {
        let call = InvokeFrame::void("f\"", "[1]", Some("{}"));
        let result = |outcome| invocation_result("\"i\"", "f", outcome);
        let mut page = Printed::from("[".to_owned());
        page.push_shared(format!("{:?}", "x".repeat(5000)).into());
        page.push_str("]");
        for frame in [
            worker_registered("a\"", "b").into(),
            registration_rejected("f", "w").into(),
            result(Ok("null".to_owned().into())),
            result(Ok(page)),
            result(Err(r#"{"code":"c","message":"m\n"}"#)),
            call.print().into(),
            trigger_result("i", "t", "f", Some("{}")).into(),
            register_trigger("i", "t", "f", "null", None, Some("\"n\"")).into(),
            unregister_trigger("i", "t").into(),
            pong().into(),
        ] {
            let frame: Frame = frame;
            let frame = frame.parts().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>();
            let value: serde_json::Value = serde_json::from_slice(&frame).unwrap();
            assert!(value["type"].is_string());
        }
    }
}
