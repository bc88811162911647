//! Owns: the words for a body that does not parse: what is wrong, and where. Runs only after parsing failed.
//!
//! Types told apart by a tag (messages, content blocks, entries) are read through a buffer that forgets where it was,
//! so below such a value the place is found by trying: the field without which the complaint changes is the culprit.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use super::checks::{invalid, shortened};
use crate::machine::entry::SessionEntry;
use crate::machine::message::{AgentMessage, ContentBlock};
use crate::machine::refusal::Refusal;

/// Trying costs a few parses of the value; a larger body is explained by its top-level path alone.
const TRIED_BYTES_MAX: usize = 1024 * 1024;

/// Why `body` is no `T`.
pub fn refusal<T: DeserializeOwned>(body: &str) -> Refusal {
    let mut reader = serde_json::Deserializer::from_str(body);
    let fault = match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Err(fault) => fault,
        Ok(_) => {
            let why = reader.end().map_or_else(|error| error.to_string(), |()| "cannot be read".to_owned());
            return invalid(format!("invalid request: {}", shortened(&why)));
        }
    };
    let mut why = words(fault.inner());
    // In broken JSON the place is the line and column; a path would only say how far the reader came.
    if !fault.inner().is_data() {
        return invalid(format!("invalid request: {}", shortened(&why)));
    }
    let mut place = place(fault.path());
    if body.len() <= TRIED_BYTES_MAX
        && let Ok(value) = serde_json::from_str::<Value>(body)
        && let Some((node, tagged)) = tagged_node(&value, fault.path())
    {
        tagged.narrow(node, &mut place, &mut why);
    }
    let what = if place.is_empty() { why } else { format!("{place}: {why}") };
    invalid(format!("invalid request: {}", shortened(&what)))
}

/// `message.content[1]`; empty for the body itself.
fn place(path: &serde_path_to_error::Path) -> String {
    match path.to_string() {
        root if root == "." => String::new(),
        place => place,
    }
}

/// Serde's words. Line and column help a reader of broken JSON; of a wrong value the path says more.
fn words(error: &serde_json::Error) -> String {
    let printed = error.to_string();
    match printed.rsplit_once(" at line ") {
        Some((words, _)) if error.is_data() => words.to_owned(),
        _ => printed,
    }
}

/// A type told apart by a tag.
#[derive(Clone, Copy)]
enum Tagged {
    Message,
    Block,
    Entry,
}

/// The value a path ends at, where that is of a tagged type.
fn tagged_node<'a>(body: &'a Value, path: &serde_path_to_error::Path) -> Option<(&'a Value, Tagged)> {
    let mut node = body;
    let mut field = "";
    for segment in path.iter() {
        match segment {
            Segment::Seq { index } => node = node.get(index)?,
            Segment::Map { key } => {
                node = node.get(key)?;
                field = key;
            }
            Segment::Enum { .. } | Segment::Unknown => return None,
        }
    }
    let in_array = matches!(path.iter().next_back(), Some(Segment::Seq { .. }));
    Some((node, Tagged::under(field, in_array)?))
}

impl Tagged {
    /// What stands under a field of this name, or in the array under it.
    fn under(field: &str, in_array: bool) -> Option<Tagged> {
        match (field, in_array) {
            ("message", false) | ("messages", true) => Some(Tagged::Message),
            ("content", true) => Some(Tagged::Block),
            ("entry", false) => Some(Tagged::Entry),
            _ => None,
        }
    }

    fn tag(self) -> &'static str {
        match self {
            Tagged::Message => "role",
            Tagged::Block => "type",
            Tagged::Entry => "kind",
        }
    }

    fn complaint(self, value: &Value) -> Option<String> {
        match self {
            Tagged::Message => AgentMessage::deserialize(value).err(),
            Tagged::Block => ContentBlock::deserialize(value).err(),
            Tagged::Entry => SessionEntry::deserialize(value).err(),
        }
        .map(|error| words(&error))
    }

    /// Follows a complaint down to the field it is about.
    fn narrow(self, value: &Value, place: &mut String, why: &mut String) {
        let (Some(complaint), Value::Object(fields)) = (self.complaint(value), value) else { return };
        why.clone_from(&complaint);
        // A tagged value below that says the same is where it comes from.
        let below = fields.iter().flat_map(|(name, value)| tagged_children(name, value));
        if let Some((step, value, tagged)) =
            below.into_iter().find(|(_, value, tagged)| tagged.complaint(value).as_ref() == Some(&complaint))
        {
            place.push_str(&step);
            return tagged.narrow(value, place, why);
        }
        // A missing field is named by the complaint itself.
        if complaint.starts_with("missing field") {
            return;
        }
        // The tag comes last: without it every complaint is another one.
        let (tags, others): (Vec<_>, Vec<_>) = fields.keys().partition(|name| *name == self.tag());
        let culprit = others.into_iter().chain(tags).find(|name| {
            let mut without = fields.clone();
            without.remove(*name);
            self.complaint(&Value::Object(without)).as_ref() != Some(&complaint)
        });
        if let Some(name) = culprit {
            place.push('.');
            place.push_str(name);
        }
    }
}

/// The tagged values of one field, each with the step that leads to it.
fn tagged_children<'a>(name: &str, value: &'a Value) -> Vec<(String, &'a Value, Tagged)> {
    if let Some(tagged) = Tagged::under(name, false) {
        return vec![(format!(".{name}"), value, tagged)];
    }
    match (Tagged::under(name, true), value) {
        (Some(tagged), Value::Array(items)) => {
            items.iter().enumerate().map(|(at, item)| (format!(".{name}[{at}]"), item, tagged)).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::requests::append::AppendRequest;
    use crate::requests::append_many::AppendManyRequest;
    use crate::requests::list::ListRequest;
    use crate::requests::store::put_entry::PutEntryRequest;
    use crate::requests::update_message::UpdateMessageRequest;

    fn explained<T: DeserializeOwned>(body: Value) -> String {
        let words = refusal::<T>(&body.to_string()).to_string();
        words.strip_prefix("invalid request: ").unwrap().to_owned()
    }

    #[test]
    fn a_wrong_value_is_named_by_its_path() {
        assert_eq!(
            explained::<AppendRequest>(json!({"session_id": 5})),
            "session_id: invalid type: integer `5`, expected a string"
        );
        assert_eq!(explained::<AppendRequest>(json!({"message": null})), "missing field `session_id`");
        assert_eq!(
            explained::<ListRequest>(json!({"status": "asleep"})),
            "status: unknown variant `asleep`, expected one of `idle`, `working`, `done`, `error`"
        );
        assert_eq!(
            explained::<ListRequest>(json!({"limit": -1})),
            "limit: invalid value: integer `-1`, expected usize"
        );
    }

    #[test]
    fn the_place_is_found_below_tagged_values_too() {
        let append = |message: Value| explained::<AppendRequest>(json!({"session_id": "s", "message": message}));
        assert_eq!(
            append(json!({"role": "robot", "content": [], "timestamp": 1})),
            "message.role: unknown variant `robot`, expected one of `user`, `assistant`, `function_result`, `custom`"
        );
        assert_eq!(append(json!({"role": "user", "content": []})), "message: missing field `timestamp`");
        assert_eq!(
            append(json!({"role": "user", "content": [], "timestamp": "now"})),
            "message.timestamp: invalid type: string \"now\", expected i64"
        );
        let block = json!({"type": "function_result", "function_call_id": "c",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": 7}]});
        assert_eq!(
            append(json!({"role": "user", "content": [block], "timestamp": 1})),
            "message.content[0].content[1].text: invalid type: integer `7`, expected a string"
        );
    }

    #[test]
    fn the_place_is_found_in_arrays_and_entries() {
        let good = json!({"role": "user", "content": [], "timestamp": 1});
        let bad = json!({"role": "user", "content": [{"type": "smell"}], "timestamp": 1});
        let expected = "expected one of `text`, `image`, `thinking`, `function_call`, `function_result`";
        assert_eq!(
            explained::<AppendManyRequest>(json!({"session_id": "s", "messages": [good, bad]})),
            format!("messages[1].content[0].type: unknown variant `smell`, {expected}")
        );
        assert_eq!(
            explained::<UpdateMessageRequest>(json!({"session_id": "s", "entry_id": "e", "content": [{"type": 1}]})),
            "content[0].type: invalid type: integer `1`, expected variant identifier"
        );
        let entry = json!({"kind": "message", "id": "e", "timestamp": 1, "message": bad});
        assert_eq!(
            explained::<PutEntryRequest>(json!({"session_id": "s", "entry": entry})),
            format!("entry.message.content[0].type: unknown variant `smell`, {expected}")
        );
    }

    #[test]
    fn a_missing_field_is_placed_where_it_is_missing() {
        let bad = json!({"role": "user", "content": [{"type": "text"}], "timestamp": 1});
        assert_eq!(
            explained::<AppendManyRequest>(json!({"session_id": "s", "messages": [bad]})),
            "messages[0].content[0]: missing field `text`"
        );
        assert_eq!(
            explained::<AppendManyRequest>(json!({"session_id": "s", "messages": {}})),
            "messages: invalid type: map, expected a sequence"
        );
    }

    #[test]
    fn an_endless_offender_is_cut_short() {
        let words = explained::<ListRequest>(json!({"status": "x".repeat(1_000_000)}));
        assert!(words.len() < 600, "{}", words.len());
    }
}
