//! Owns: `ClientMessage`, a message of a request. If the client's text already says what the store would print, the
//! text is kept as it is: nothing is parsed into values and nothing is printed again.
//! Never: decides what a message is. A text that this check is unsure of takes the way over `AgentMessage`.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::limits::BODY_BYTES_MAX;
use crate::machine::json::Json;
use crate::machine::message::{AgentMessage, ErrorKind, Message, Role, StopReason};
use crate::machine::tagged;

/// A message in the form of the store. Its schema is that of `AgentMessage`.
#[derive(Debug)]
pub struct ClientMessage(pub Message);

impl<'de> Deserialize<'de> for ClientMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ClientMessage, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?.get();
        if let Some(message) = own_text(text) {
            return Ok(ClientMessage(message));
        }
        let message = tagged::parse_below("", text, std::marker::PhantomData::<AgentMessage>);
        message.map(|message| ClientMessage(Message::new(message))).map_err(de::Error::custom)
    }
}

/// The message with the client's text, if that text has exactly the fields that `AgentMessage` prints, in any order.
fn own_text(text: &str) -> Option<Message> {
    // A line break between two fields would break formats with one record per line.
    if text.len() > BODY_BYTES_MAX || text.bytes().any(|byte| byte < b' ') {
        return None;
    }
    let fields: Fields = serde_json::from_str(text).ok()?;
    fields.are_of_one_role().then(|| Message { role: fields.role, body: Json::adopt(text) })
}

/// The fields of all roles. Unknown fields are refused, because the store does not keep them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    role: Role,
    #[serde(rename = "content")]
    _content: Blocks,
    #[serde(rename = "timestamp")]
    _timestamp: i64,
    #[serde(default, deserialize_with = "given")]
    stop_reason: Option<StopReason>,
    #[serde(default, deserialize_with = "given")]
    native_stop_reason: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    error_message: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    error_kind: Option<ErrorKind>,
    #[serde(default, deserialize_with = "given")]
    usage: Option<Usage>,
    #[serde(default, deserialize_with = "given")]
    warnings: Option<Texts>,
    #[serde(default, deserialize_with = "given")]
    model: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    provider: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    function_call_id: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    function_id: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    details: Option<Any>,
    #[serde(default, deserialize_with = "given")]
    is_error: Option<bool>,
    #[serde(default, deserialize_with = "given")]
    custom_type: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    display: Option<Text>,
}

impl Fields {
    /// True if every field that the role prints is there, and no field of another role.
    fn are_of_one_role(&self) -> bool {
        let assistant = self.stop_reason.is_some() && self.model.is_some() && self.provider.is_some();
        let no_assistant = self.stop_reason.is_none()
            && self.native_stop_reason.is_none()
            && self.error_message.is_none()
            && self.error_kind.is_none()
            && self.usage.is_none()
            && self.warnings.is_none()
            && self.model.is_none()
            && self.provider.is_none();
        let result = self.function_call_id.is_some() && self.function_id.is_some() && self.is_error.is_some();
        let no_result = self.function_call_id.is_none() && self.function_id.is_none() && self.is_error.is_none();
        let no_custom = self.custom_type.is_none() && self.display.is_none();
        match self.role {
            Role::User => no_assistant && no_result && no_custom && self.details.is_none(),
            Role::Assistant => assistant && no_result && no_custom && self.details.is_none(),
            Role::FunctionResult => no_assistant && result && no_custom && self.details.is_some(),
            // The store leaves out details that are null.
            Role::Custom => {
                let details = !matches!(self.details, Some(Any { is_null: true }));
                no_assistant && no_result && self.custom_type.is_some() && details
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Usage {
    #[serde(default, deserialize_with = "given", rename = "input")]
    _input: Option<u64>,
    #[serde(default, deserialize_with = "given", rename = "output")]
    _output: Option<u64>,
    #[serde(default, deserialize_with = "given", rename = "cache_read")]
    _cache_read: Option<u64>,
    #[serde(default, deserialize_with = "given", rename = "cache_write")]
    _cache_write: Option<u64>,
    #[serde(default, deserialize_with = "given", rename = "reasoning")]
    _reasoning: Option<u64>,
    #[serde(default, deserialize_with = "given", rename = "cost_usd")]
    _cost_usd: Option<f64>,
}

/// The fields of all content blocks.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    r#type: BlockType,
    #[serde(default, deserialize_with = "given")]
    text: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    data: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    mime: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    signature: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    id: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    function_id: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    arguments: Option<Any>,
    #[serde(default, deserialize_with = "given")]
    function_call_id: Option<Text>,
    #[serde(default, deserialize_with = "given")]
    content: Option<Blocks>,
    #[serde(default, deserialize_with = "given")]
    is_error: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum BlockType {
    Text,
    Image,
    Thinking,
    FunctionCall,
    FunctionResult,
}

impl Block {
    fn is_of_one_type(&self) -> bool {
        let text = self.text.is_some();
        let image = self.data.is_some() && self.mime.is_some();
        let no_image = self.data.is_none() && self.mime.is_none();
        let call = self.id.is_some() && self.function_id.is_some() && self.arguments.is_some();
        let no_call = self.id.is_none() && self.function_id.is_none() && self.arguments.is_none();
        let result = self.function_call_id.is_some() && self.content.is_some();
        let no_result = self.function_call_id.is_none() && self.content.is_none() && self.is_error.is_none();
        let unsigned = self.signature.is_none();
        match self.r#type {
            BlockType::Text => text && no_image && no_call && no_result && unsigned,
            BlockType::Image => image && !text && no_call && no_result && unsigned,
            BlockType::Thinking => text && no_image && no_call && no_result,
            BlockType::FunctionCall => call && !text && no_image && no_result && unsigned,
            BlockType::FunctionResult => result && !text && no_image && no_call && unsigned,
        }
    }
}

/// A field that is there has a value: the store leaves out fields that are null.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A valid string.
struct Text;

/// An array of valid strings.
struct Texts;

/// An array of content blocks.
struct Blocks;

/// Any value that `serde_json::Value` can hold. serde's `IgnoredAny` also takes numbers and escapes that no reader
/// accepts.
struct Any {
    is_null: bool,
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        struct Reads;
        impl Visitor<'_> for Reads {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E>(self, _: &str) -> Result<Text, E> {
                Ok(Text)
            }
        }
        deserializer.deserialize_str(Reads)
    }
}

/// Reads every item of an array and keeps none.
fn each<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(mut items: A, good: fn(&T) -> bool) -> Result<(), A::Error> {
    while let Some(item) = items.next_element::<T>()? {
        if !good(&item) {
            return Err(de::Error::custom("not what the store prints"));
        }
    }
    Ok(())
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Texts, D::Error> {
        struct Reads;
        impl<'de> Visitor<'de> for Reads {
            type Value = Texts;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an array of strings")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Texts, A::Error> {
                each::<Text, A>(items, |_| true).map(|()| Texts)
            }
        }
        deserializer.deserialize_seq(Reads)
    }
}

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Blocks, D::Error> {
        struct Reads;
        impl<'de> Visitor<'de> for Reads {
            type Value = Blocks;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an array of content blocks")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Blocks, A::Error> {
                each::<Block, A>(items, Block::is_of_one_type).map(|()| Blocks)
            }
        }
        deserializer.deserialize_seq(Reads)
    }
}

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Any, D::Error> {
        struct Reads;
        const SOMETHING: Any = Any { is_null: false };
        impl<'de> Visitor<'de> for Reads {
            type Value = Any;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_unit<E>(self) -> Result<Any, E> {
                Ok(Any { is_null: true })
            }
            fn visit_bool<E>(self, _: bool) -> Result<Any, E> {
                Ok(SOMETHING)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Any, E> {
                Ok(SOMETHING)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Any, E> {
                Ok(SOMETHING)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Any, E> {
                Ok(SOMETHING)
            }
            fn visit_str<E>(self, _: &str) -> Result<Any, E> {
                Ok(SOMETHING)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Any, A::Error> {
                each::<Any, A>(items, |_| true).map(|()| SOMETHING)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Any, A::Error> {
                while fields.next_entry::<Text, Any>()?.is_some() {}
                Ok(SOMETHING)
            }
        }
        deserializer.deserialize_any(Reads)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn kept(value: &Value) -> bool {
        own_text(&value.to_string()).is_some()
    }

    fn user(block: Value) -> Value {
        json!({"role": "user", "content": [block], "timestamp": 1})
    }

    #[test]
    fn a_text_that_says_what_the_store_prints_is_kept() {
        let texts = [
            r#"{"timestamp": 1, "role": "user", "content": [{"type": "text", "text": "A\nå"}]}"#,
            r#"{"role":"assistant","content":[{"type":"thinking","text":"t","signature":"s"}],"stop_reason":"end",
                "usage":{"input":1,"cost_usd":0.25},"warnings":["w"],"model":"m","provider":"p","timestamp":1}"#,
            r#"{"role":"function_result","function_call_id":"c","function_id":"f","content":[],"details":null,
                "is_error":false,"timestamp":1}"#,
            r#"{"role":"custom","custom_type":"c","content":[{"type":"image","data":"","mime":"m"}],
                "details":{"a":[1e3,null]},"timestamp":1}"#,
            r#"{"role":"user","content":[{"type":"function_call","id":"i","function_id":"f","arguments":[{}]},
                {"type":"function_result","function_call_id":"c","content":[{"type":"text","text":""}],
                "is_error":true}],"timestamp":1}"#,
        ];
        for text in texts {
            let text = text.replace('\n', " ");
            let message = own_text(&text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(message.body.text(), text);
            let parsed: AgentMessage = serde_json::from_str(&text).unwrap();
            assert_eq!(message.role, parsed.role());
            assert_eq!(Message::new(parsed).body.value(), message.body.value(), "{text}");
        }
    }

    #[test]
    fn a_text_with_anything_else_is_printed_again_or_refused() {
        for other in [
            json!({"role": "user", "content": [], "timestamp": 1, "unknown": 1}),
            json!({"role": "user", "content": [], "timestamp": 1, "model": "m"}),
            json!({"role": "user", "content": []}),
            json!({"role": "robot", "content": [], "timestamp": 1}),
            json!({"role": "assistant", "content": [], "timestamp": 1, "stop_reason": "end", "model": "m",
                "provider": "p", "error_message": null}),
            json!({"role": "assistant", "content": [], "timestamp": 1, "stop_reason": "end", "model": "m",
                "provider": "p", "usage": {"input": null}}),
            json!({"role": "function_result", "function_call_id": "c", "function_id": "f", "content": [],
                "timestamp": 1, "is_error": false}),
            json!({"role": "custom", "custom_type": "c", "content": [], "timestamp": 1, "details": null}),
            user(json!({"type": "text", "text": "a", "signature": "s"})),
            user(json!({"type": "text"})),
            user(json!({"type": "smell"})),
            user(json!({"type": "function_call", "id": "i", "function_id": "f"})),
        ] {
            assert!(!kept(&other), "{other}");
        }
        let with = |arguments: &str| {
            format!(
                r#"{{"role":"user","content":[{{"type":"function_call","id":"i","function_id":"f",
                "arguments":{arguments}}}],"timestamp":1}}"#
            )
            .replace('\n', "")
        };
        assert!(own_text(&with("1e300")).is_some());
        for unreadable in ["1e400", r#""\ud800""#, r#"{"\ud800":1}"#, "01", "[1,]"] {
            assert!(own_text(&with(unreadable)).is_none(), "{unreadable}");
            assert!(serde_json::from_str::<AgentMessage>(&with(unreadable)).is_err(), "{unreadable}");
        }
        assert!(own_text("{\"role\":\"user\",\n\"content\":[],\"timestamp\":1}").is_none());
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,4}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::hash_map("[a-c]", inner, 0..3).prop_map(|map| json!(map)),
            ]
        })
    }

    /// A message or nearly one: fields of all kinds, some left out and some wrong.
    fn nearly_a_message() -> impl Strategy<Value = Value> {
        let block = (
            prop::sample::select(vec!["text", "image", "thinking", "function_call", "function_result"]),
            prop::collection::hash_map(
                prop::sample::select(vec![
                    "text",
                    "data",
                    "mime",
                    "signature",
                    "id",
                    "function_id",
                    "function_call_id",
                ]),
                ".{0,3}".prop_map(Value::from),
                0..4,
            ),
            prop::option::of(value()),
            any::<bool>(),
        )
            .prop_map(|(kind, fields, arguments, nested)| {
                let mut block = json!(fields);
                block["type"] = kind.into();
                if let Some(arguments) = arguments {
                    block["arguments"] = arguments;
                }
                if nested {
                    block["content"] = json!([]);
                }
                block
            });
        let field = prop::sample::select(vec![
            "stop_reason",
            "native_stop_reason",
            "error_kind",
            "model",
            "provider",
            "function_call_id",
            "function_id",
            "details",
            "is_error",
            "custom_type",
            "display",
            "other",
        ]);
        let filled = prop_oneof![Just(json!("end")), Just(json!("transient")), Just(json!(true)), value()];
        (
            prop::sample::select(vec!["user", "assistant", "function_result", "custom"]),
            prop::collection::vec(block, 0..2),
            prop::collection::hash_map(field, filled, 0..6),
        )
            .prop_map(|(role, content, fields)| {
                let mut message = json!(fields);
                message["role"] = role.into();
                message["content"] = content.into();
                message["timestamp"] = 7.into();
                message
            })
    }

    proptest! {
        #[test]
        fn a_kept_text_has_the_value_that_the_store_would_print(message in nearly_a_message()) {
            let text = message.to_string();
            if let Some(own) = own_text(&text) {
                let parsed: AgentMessage = serde_json::from_str(&text).expect("a kept text is a message");
                prop_assert_eq!(own.role, parsed.role());
                prop_assert_eq!(Message::new(parsed).body.value(), message);
            }
        }
    }
}
