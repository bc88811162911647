//! Owns: `Json`, the text of one JSON value that the store carries without looking inside.
//! Never: parse on the hot path. A body is validated once, at the door, and travels as text from there on.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::value::RawValue;

/// An app-defined JSON object (`metadata`, `origin`). Ordered, so that equal objects print equal text.
pub type Object = serde_json::Map<String, serde_json::Value>;

/// The text of exactly one JSON value, cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Json(Arc<str>);

impl Json {
    /// Prints a value. Our own types always print: they have string keys and finite numbers.
    pub fn print<T: Serialize>(value: &T) -> Json {
        let text = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
        Json(text.into())
    }

    /// Adopts text that was printed by this type before (read back from disk or wire).
    pub fn adopt(text: &str) -> Json {
        Json(text.into())
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    pub fn parse<T: de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    pub fn value(&self) -> serde_json::Value {
        self.parse().unwrap_or(serde_json::Value::Null)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Ok(Json::print(&value))
    }
}

/// The one text of a value that equal values share: keys sorted, negative zero folded into zero.
/// What the metadata index hashes, so that deep equality becomes equality of bytes.
pub fn canonical(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            let fields: Vec<String> = keys
                .iter()
                .map(|key| format!("{}:{}", Value::from(key.as_str()), canonical(&map[key.as_str()])))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        Value::Number(number) if number.as_f64() == Some(0.0) && number.is_f64() => "0.0".to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}
