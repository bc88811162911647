//! Owns: the checks that need no state. Each error names the field, the problem and the limit.

use std::io;

use serde::Serialize;
use serde_json::Value;

use super::client_message::ClientMessage;
use super::limits::{
    BATCH_BYTES_MAX, BATCH_LENGTH_MAX, BODY_BYTES_MAX, CURSOR_BYTES_MAX, ID_BYTES_MAX, METADATA_BYTES_MAX,
    METADATA_KEYS_MAX, METADATA_VALUES_MAX, ORIGIN_BYTES_MAX, QUOTED_CHARS_MAX, TEXT_BYTES_MAX,
};
use crate::machine::entry::{Body, CustomPayload, Entry};
use crate::machine::ids::EntryId;
use crate::machine::json::{Json, JsonObject, Object, values_below};
use crate::machine::message::Message;
use crate::machine::refusal::Refusal;
use crate::machine::session::{self, SessionMeta};

pub fn invalid(why: impl Into<String>) -> Refusal {
    Refusal::RequestInvalid(why.into())
}

/// Cuts a quoted value for an error: it may be megabytes long.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The id of something that exists. Any Unicode text is allowed.
pub fn id(field: &str, id: &str) -> Result<(), Refusal> {
    at_most(field, id.len(), ID_BYTES_MAX)
}

pub fn optional_id(field: &str, id: Option<&EntryId>) -> Result<(), Refusal> {
    id.map_or(Ok(()), |id| self::id(field, id.as_str()))
}

/// The id of something that may be created. It must not be empty.
pub fn new_id(field: &str, id: &str) -> Result<(), Refusal> {
    if id.is_empty() {
        return Err(invalid(format!("{field} is empty: give at least one character")));
    }
    self::id(field, id)
}

pub fn text(field: &str, text: Option<&str>) -> Result<(), Refusal> {
    text.map_or(Ok(()), |text| at_most(field, text.len(), TEXT_BYTES_MAX))
}

pub fn cursor(cursor: Option<&str>) -> Result<(), Refusal> {
    cursor.map_or(Ok(()), |cursor| at_most("cursor", cursor.len(), CURSOR_BYTES_MAX))
}

/// Metadata as it was sent. Its size is checked before it is parsed.
pub fn metadata(field: &str, text: Option<JsonObject>) -> Result<Option<Object>, Refusal> {
    let Some(text) = text else { return Ok(None) };
    at_most(field, text.text().len(), METADATA_BYTES_MAX)?;
    values(field, values_below(text.text()))?;
    let metadata = session::metadata(&text).map_err(|error| invalid(format!("{field} {error}")))?;
    parsed_metadata(field, Some(&metadata))?;
    Ok(Some(metadata))
}

/// Metadata that was parsed as a part of a session's record.
fn parsed_metadata(field: &str, metadata: Option<&Object>) -> Result<(), Refusal> {
    let Some(metadata) = metadata else { return Ok(()) };
    let keys = metadata.len();
    if keys > METADATA_KEYS_MAX {
        return Err(invalid(format!("{field} has {keys} keys, at most {METADATA_KEYS_MAX} are allowed")));
    }
    values(field, metadata.values().map(count).sum())?;
    at_most(field, printed_bytes(metadata), METADATA_BYTES_MAX)
}

/// The values in a value, including itself.
fn count(value: &Value) -> usize {
    match value {
        Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

fn values(field: &str, values: usize) -> Result<(), Refusal> {
    if values > METADATA_VALUES_MAX {
        return Err(invalid(format!("{field} has {values} values, at most {METADATA_VALUES_MAX} are allowed")));
    }
    Ok(())
}

pub fn origin(field: &str, origin: Option<JsonObject>) -> Result<Option<Json>, Refusal> {
    let origin = origin.map(JsonObject::into_json);
    at_most(field, origin.as_ref().map_or(0, |origin| origin.text().len()), ORIGIN_BYTES_MAX)?;
    Ok(origin)
}

/// A value that is stored as JSON text.
pub fn body(field: &str, body: Json) -> Result<Json, Refusal> {
    at_most(field, body.text().len(), BODY_BYTES_MAX)?;
    Ok(body)
}

pub fn message(field: &str, ClientMessage(message): ClientMessage) -> Result<Message, Refusal> {
    at_most(field, message.body.text().len(), BODY_BYTES_MAX)?;
    Ok(message)
}

pub fn custom(field: &str, payload: CustomPayload) -> Result<Body, Refusal> {
    let CustomPayload { custom_type, data } = payload;
    let body = Body::Custom { custom_type, data };
    at_most(field, body.bytes(), BODY_BYTES_MAX)?;
    Ok(body)
}

/// A session's record as a whole.
pub fn meta(field: &str, meta: &SessionMeta) -> Result<(), Refusal> {
    new_id(&format!("{field}.session_id"), meta.session_id.as_str())?;
    text(&format!("{field}.title"), Some(&meta.title))?;
    text(&format!("{field}.description"), Some(&meta.description))?;
    text(&format!("{field}.status_reason"), meta.status_reason.as_deref())?;
    parsed_metadata(&format!("{field}.metadata"), meta.metadata.as_ref())?;
    match &meta.forked_from {
        Some(source) => id(&format!("{field}.forked_from"), source.as_str()),
        None => Ok(()),
    }
}

/// A raw entry, as bridges write them.
pub fn entry(field: &str, entry: &Entry) -> Result<(), Refusal> {
    new_id(&format!("{field}.id"), entry.id.as_str())?;
    optional_id(&format!("{field}.parent_id"), entry.parent_id.as_ref())?;
    let origin_bytes = entry.origin.as_ref().map_or(0, |origin| origin.text().len());
    at_most(&format!("{field}.origin"), origin_bytes, ORIGIN_BYTES_MAX)?;
    at_most(field, entry.body.bytes(), BODY_BYTES_MAX)
}

pub fn batch(field: &str, length: usize) -> Result<(), Refusal> {
    if length > BATCH_LENGTH_MAX {
        return Err(invalid(format!(
            "{field} has {length} items, at most {BATCH_LENGTH_MAX} are allowed: send several calls"
        )));
    }
    Ok(())
}

pub fn batch_bytes(field: &str, bytes: usize) -> Result<(), Refusal> {
    if bytes > BATCH_BYTES_MAX {
        return Err(invalid(format!("{field} together exceed {BATCH_BYTES_MAX} bytes: send several calls")));
    }
    Ok(())
}

fn at_most(field: &str, bytes: usize, bytes_max: usize) -> Result<(), Refusal> {
    if bytes > bytes_max {
        return Err(invalid(format!("{field} has {bytes} bytes, at most {bytes_max} are allowed")));
    }
    Ok(())
}

/// The length of a value as JSON, without building the text.
fn printed_bytes<T: Serialize>(value: &T) -> usize {
    struct Counter(usize);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, value) {
        Ok(()) => counter.0,
        // A value that cannot be serialised exceeds every limit.
        Err(_) => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Option<JsonObject> {
        serde_json::from_str(&value.to_string()).unwrap()
    }

    #[test]
    fn a_bound_includes_its_last_byte() {
        assert!(id("session_id", &"x".repeat(ID_BYTES_MAX)).is_ok());
        let error = id("session_id", &"x".repeat(ID_BYTES_MAX + 1)).unwrap_err();
        assert_eq!(error.to_string(), "session_id has 1025 bytes, at most 1024 are allowed");
    }

    #[test]
    fn any_unicode_is_an_id_but_the_empty_text_is_not() {
        for good in ["../escape/chat 42:?", "🦀", "\u{0}", " "] {
            assert!(new_id("entry_id", good).is_ok(), "{good:?}");
        }
        assert_eq!(new_id("entry_id", "").unwrap_err().to_string(), "entry_id is empty: give at least one character");
    }

    #[test]
    fn metadata_is_bounded_in_keys_and_in_bytes() {
        let keys: Value = (0..=METADATA_KEYS_MAX).map(|n| (n.to_string(), json!(1))).collect();
        let error = metadata("metadata", object(keys)).unwrap_err();
        assert_eq!(error.to_string(), "metadata has 257 keys, at most 256 are allowed");
        let room = METADATA_BYTES_MAX - r#"{"k":""}"#.len();
        assert!(metadata("metadata", object(json!({"k": "x".repeat(room)}))).is_ok());
        assert!(metadata("metadata", object(json!({"k": "x".repeat(room + 1)}))).is_err());
        assert!(metadata("metadata", object(json!({"k": vec![1; METADATA_VALUES_MAX - 1]}))).is_ok());
        let error = metadata("metadata", object(json!({"k": vec![1; METADATA_VALUES_MAX]}))).unwrap_err();
        assert_eq!(error.to_string(), "metadata has 2001 values, at most 2000 are allowed");
    }

    #[test]
    fn metadata_with_an_integer_that_would_change_is_refused_by_name() {
        let read = |text: &str| metadata("metadata", serde_json::from_str(text).unwrap());
        for number in ["18446744073709551615", "-9223372036854775808", "0", "1.5", "1e30"] {
            assert!(read(&format!(r#"{{"n":[{number}]}}"#)).is_ok(), "{number}");
        }
        for number in ["18446744073709551616", "-9223372036854775809", "12345678901234567890123"] {
            let error = read(&format!(r#"{{"n":{{"m":{number}}}}}"#)).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("metadata has the integer {number}, which does not fit 64 bits: write it as a string")
            );
        }
    }

    #[test]
    fn an_error_quotes_whole_characters_and_not_too_many() {
        let long = "é".repeat(QUOTED_CHARS_MAX + 1);
        assert_eq!(shortened(&long).chars().count(), QUOTED_CHARS_MAX + 1);
        assert_eq!(shortened("short"), "short");
    }
}
