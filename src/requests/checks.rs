//! Owns: the checks that need no state. Each error names the field, what is wrong with it and what would be right.

use std::io;

use serde::Serialize;

use super::limits::{
    BATCH_BYTES_MAX, BATCH_LENGTH_MAX, BODY_BYTES_MAX, CURSOR_BYTES_MAX, ID_BYTES_MAX, METADATA_BYTES_MAX,
    METADATA_KEYS_MAX, ORIGIN_BYTES_MAX, QUOTED_CHARS_MAX, TEXT_BYTES_MAX,
};
use crate::machine::entry::{Body, CustomPayload, Entry};
use crate::machine::ids::EntryId;
use crate::machine::json::{Json, Object};
use crate::machine::message::{AgentMessage, Message};
use crate::machine::refusal::Refusal;

pub fn invalid(words: impl Into<String>) -> Refusal {
    Refusal::RequestInvalid(words.into())
}

/// Text fit for an error: an offender may be megabytes long.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An id that names something. Any Unicode will do.
pub fn id(field: &str, id: &str) -> Result<(), Refusal> {
    at_most(field, id.len(), ID_BYTES_MAX)
}

pub fn optional_id(field: &str, id: Option<&EntryId>) -> Result<(), Refusal> {
    id.map_or(Ok(()), |id| self::id(field, id.as_str()))
}

/// An id under which something may come to be: it must say something.
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

pub fn metadata(field: &str, metadata: Option<&Object>) -> Result<(), Refusal> {
    let Some(metadata) = metadata else { return Ok(()) };
    let keys = metadata.len();
    if keys > METADATA_KEYS_MAX {
        return Err(invalid(format!("{field} has {keys} keys, at most {METADATA_KEYS_MAX} are allowed")));
    }
    at_most(field, printed_bytes(metadata), METADATA_BYTES_MAX)
}

pub fn origin(field: &str, origin: Option<&Object>) -> Result<Option<Json>, Refusal> {
    let origin = origin.map(Json::print);
    at_most(field, origin.as_ref().map_or(0, |origin| origin.text().len()), ORIGIN_BYTES_MAX)?;
    Ok(origin)
}

/// A value that is stored as text.
pub fn body<T: Serialize>(field: &str, value: &T) -> Result<Json, Refusal> {
    let body = Json::print(value);
    at_most(field, body.text().len(), BODY_BYTES_MAX)?;
    Ok(body)
}

pub fn message(field: &str, message: &AgentMessage) -> Result<Message, Refusal> {
    let message = Message::new(message);
    at_most(field, message.body.text().len(), BODY_BYTES_MAX)?;
    Ok(message)
}

pub fn custom(field: &str, payload: CustomPayload) -> Result<Body, Refusal> {
    let CustomPayload { custom_type, data } = payload;
    let body = Body::Custom { custom_type, data: Json::print(&data) };
    at_most(field, body.bytes(), BODY_BYTES_MAX)?;
    Ok(body)
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
        let words = format!("{field} has {length} items, at most {BATCH_LENGTH_MAX} are allowed: send several calls");
        return Err(invalid(words));
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

/// How long a value is in print, without keeping the print.
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
        // What cannot be printed has no acceptable size.
        Err(_) => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: serde_json::Value) -> Object {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_bound_includes_its_last_byte() {
        assert!(id("session_id", &"x".repeat(ID_BYTES_MAX)).is_ok());
        let error = id("session_id", &"x".repeat(ID_BYTES_MAX + 1)).unwrap_err();
        assert_eq!(error.to_string(), "session_id has 1025 bytes, at most 1024 are allowed");
    }

    #[test]
    fn any_unicode_is_an_id_but_nothing_is_not() {
        for good in ["../escape/chat 42:?", "🦀", "\u{0}", " "] {
            assert!(new_id("entry_id", good).is_ok(), "{good:?}");
        }
        assert_eq!(new_id("entry_id", "").unwrap_err().to_string(), "entry_id is empty: give at least one character");
    }

    #[test]
    fn metadata_is_bounded_in_keys_and_in_bytes() {
        let keys: Object = (0..=METADATA_KEYS_MAX).map(|n| (n.to_string(), json!(1))).collect();
        let error = metadata("metadata", Some(&keys)).unwrap_err();
        assert_eq!(error.to_string(), "metadata has 257 keys, at most 256 are allowed");
        let frame = object(json!({"k": ""}));
        let room = METADATA_BYTES_MAX - Json::print(&frame).text().len();
        assert!(metadata("metadata", Some(&object(json!({"k": "x".repeat(room)})))).is_ok());
        assert!(metadata("metadata", Some(&object(json!({"k": "x".repeat(room + 1)})))).is_err());
    }

    #[test]
    fn an_error_quotes_whole_characters_and_not_too_many() {
        let long = "é".repeat(QUOTED_CHARS_MAX + 1);
        assert_eq!(shortened(&long).chars().count(), QUOTED_CHARS_MAX + 1);
        assert_eq!(shortened("short"), "short");
    }
}
