//! Owns: the error for a body that does not parse: what is wrong, and where. Runs only after parsing has failed.

use serde::de::DeserializeOwned;

use super::checks::{invalid, shortened};
use crate::machine::refusal::Refusal;
use crate::machine::tagged::separator;

/// Why `body` is not a `T`.
pub fn refusal<T: DeserializeOwned>(body: &str) -> Refusal {
    invalid(format!("invalid request: {}", reason::<T>(body)))
}

/// The same in words, for a text that is part of a body.
pub fn reason<T: DeserializeOwned>(text: &str) -> String {
    let mut reader = serde_json::Deserializer::from_str(text);
    let fault = match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Err(fault) => fault,
        Ok(_) => {
            let why = reader.end().map_or_else(|error| error.to_string(), |()| "cannot be read".to_owned());
            return shortened(&why);
        }
    };
    let why = message(fault.inner());
    // For broken JSON the message has line and column, which are more useful than a path.
    if !fault.inner().is_data() {
        return shortened(&why);
    }
    let what = match path_text(fault.path()) {
        root if root.is_empty() => why.trim_start_matches('.').to_owned(),
        path => format!("{path}{}{why}", separator(&why)),
    };
    shortened(&what)
}

/// `message.content[1]`; empty for the body itself.
fn path_text(path: &serde_path_to_error::Path) -> String {
    match path.to_string() {
        root if root == "." => String::new(),
        below => below,
    }
}

/// serde's message. For a wrong value the path replaces line and column.
fn message(error: &serde_json::Error) -> String {
    let printed = error.to_string();
    match printed.rsplit_once(" at line ") {
        Some((message, _)) if error.is_data() => message.to_owned(),
        _ => printed,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
    fn the_field_is_found_below_tagged_values_too() {
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
    fn the_field_is_found_in_arrays_and_entries() {
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
    fn a_long_wrong_value_is_cut() {
        let words = explained::<ListRequest>(json!({"status": "x".repeat(1_000_000)}));
        assert!(words.len() < 600, "{}", words.len());
    }
}
