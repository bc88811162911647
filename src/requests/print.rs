//! Owns: responses with stored bodies, written directly into one buffer. A stored body is JSON text already, and serde
//! would validate it again, which takes most of the time of a page. The output equals serde's byte for byte.

use std::fmt::Write;

use crate::machine::entry::{Body, Entry};
use crate::machine::query::messages::MessagesPage;
use crate::machine::query::window::Window;
use crate::machine::section::Part;
use crate::requests::printed::Printed;

/// Estimated bytes of the fields around a body, to allocate the buffer once.
const FRAME_BYTES: usize = 192;

/// A page of `session::messages`. The texts of its sections are shared, not copied.
pub fn messages(page: &MessagesPage) -> Printed {
    let mut out = Printed::from(r#"{"messages":["#.to_owned());
    for (nth, Part { section, range }) in page.parts.iter().enumerate() {
        if nth > 0 {
            out.push_str(",");
        }
        match section.printed(range.clone(), message_item) {
            Some(text) => out.push_shared(text),
            None => {
                let entries = &section.entries()[range.clone()];
                out.tail().reserve(entries.iter().map(size).sum());
                separated(out.tail(), entries, message_item);
            }
        }
    }
    out.push_str("]");
    if let Some(cursor) = &page.next_cursor {
        out.push_str(r#","next_cursor":"#);
        string(out.tail(), cursor);
    }
    out.push_str("}");
    out
}

/// A window of `session::path`.
pub fn window(window: &Window) -> String {
    let mut out = entries(&window.entries);
    out.pop();
    // Writing to a string cannot fail.
    let _ = write!(out, r#","first":{},"length":{}"#, window.first, window.length);
    if let Some(leaf) = &window.leaf {
        out.push_str(r#","leaf":"#);
        string(&mut out, leaf.as_str());
    }
    out.push('}');
    out
}

/// The entries of `session::store::list-entries`.
pub fn entries(entries: &[Entry]) -> String {
    let mut out = String::with_capacity(FRAME_BYTES + entries.iter().map(size).sum::<usize>());
    out.push_str(r#"{"entries":["#);
    separated(&mut out, entries, entry);
    out.push_str("]}");
    out
}

/// `{"entry":…}` of `session::get-message`, or null.
pub fn wrapped_entry(found: Option<&Entry>) -> String {
    let Some(found) = found else { return "null".to_owned() };
    let mut out = String::with_capacity(size(found));
    out.push_str(r#"{"entry":"#);
    entry(&mut out, found);
    out.push('}');
    out
}

/// The entry of `session::store::get-entry`, or null.
pub fn bare_entry(found: Option<&Entry>) -> String {
    let Some(found) = found else { return "null".to_owned() };
    let mut out = String::with_capacity(size(found));
    entry(&mut out, found);
    out
}

fn size(entry: &Entry) -> usize {
    FRAME_BYTES + entry.body.bytes() + entry.origin.as_ref().map_or(0, |origin| origin.text().len())
}

fn separated(out: &mut String, entries: &[Entry], print: fn(&mut String, &Entry)) {
    for (at, entry) in entries.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        print(out, entry);
    }
}

fn message_item(out: &mut String, entry: &Entry) {
    out.push_str(r#"{"entry_id":"#);
    string(out, entry.id.as_str());
    match &entry.body {
        Body::Message(message) => {
            out.push_str(r#","message":"#);
            out.push_str(message.body.text());
        }
        Body::Custom { custom_type, data } => {
            out.push_str(r#","custom":{"custom_type":"#);
            string(out, custom_type);
            out.push_str(r#","data":"#);
            out.push_str(data.text());
            out.push('}');
        }
    }
    out.push('}');
}

fn entry(out: &mut String, entry: &Entry) {
    match &entry.body {
        Body::Message(message) => {
            out.push_str(r#"{"kind":"message","message":"#);
            out.push_str(message.body.text());
        }
        Body::Custom { custom_type, data } => {
            out.push_str(r#"{"kind":"custom","custom_type":"#);
            string(out, custom_type);
            out.push_str(r#","data":"#);
            out.push_str(data.text());
        }
    }
    out.push_str(r#","id":"#);
    string(out, entry.id.as_str());
    if let Some(parent_id) = &entry.parent_id {
        out.push_str(r#","parent_id":"#);
        string(out, parent_id.as_str());
    }
    // Writing into a String cannot fail.
    let _ = write!(out, r#","timestamp":{},"revision":{}"#, entry.timestamp, entry.revision);
    if let Some(origin) = &entry.origin {
        out.push_str(r#","origin":"#);
        out.push_str(origin.text());
    }
    out.push('}');
}

/// A JSON string. Ids rarely contain characters to escape; those that do are printed by serde.
fn string(out: &mut String, text: &str) {
    if text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(text).to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::machine::Found;
    use crate::machine::ids::EntryId;
    use crate::machine::json::{Json, List};
    use crate::machine::message::{AgentMessage, ContentBlock, Message};
    use crate::machine::section::Section;
    use crate::requests::Question;
    use crate::requests::get_message::GetMessageRequest;
    use crate::requests::messages::MessagesRequest;
    use crate::requests::store::get_entry::GetEntryRequest;
    use crate::requests::store::list_entries::ListEntriesRequest;

    fn any_body() -> impl Strategy<Value = Body> {
        let message = any::<String>().prop_map(|text| {
            let content = List::of(&[ContentBlock::Text { text }]);
            Body::Message(Message::new(AgentMessage::User { content, timestamp: 1 }))
        });
        let custom = (any::<String>(), any::<Option<String>>())
            .prop_map(|(custom_type, data)| Body::Custom { custom_type, data: Json::print(&json!({ "x": data })) });
        prop_oneof![message, custom]
    }

    fn any_entry() -> impl Strategy<Value = Entry> {
        let fields = (any::<String>(), any::<Option<String>>(), any::<i64>(), any::<u64>(), any::<Option<String>>());
        (fields, any_body()).prop_map(|((id, parent_id, timestamp, revision, origin), body)| Entry {
            id: EntryId::from(id),
            parent_id: parent_id.map(EntryId::from),
            timestamp,
            revision,
            origin: origin.map(|origin| Json::print(&json!({ "turn": origin }))),
            body,
            place: None,
        })
    }

    /// Every printer must give the same text as serde.
    fn prints_as_serde<Q: Question>(found: Found) {
        let spelled = serde_json::to_string(&Q::response(found.clone()).unwrap()).unwrap();
        assert_eq!(Q::print(found).unwrap().into_text(), spelled);
    }

    proptest! {
        #[test]
        fn the_printed_text_equals_serdes(
            entries in prop::collection::vec(any_entry(), 0..4),
            next_cursor in any::<Option<String>>(),
        ) {
            let one = entries.first().cloned();
            prints_as_serde::<GetMessageRequest>(Found::Entry(one.clone()));
            prints_as_serde::<GetEntryRequest>(Found::Entry(one));
            prints_as_serde::<ListEntriesRequest>(Found::Entries(entries.clone()));
            let section = Arc::new(Section::of(entries));
            // Twice: the second time the section is printed already.
            for range in [0..section.entries().len(), 0..section.entries().len() / 3] {
                let part = Part { section: section.clone(), range };
                let parts = Vec::from_iter(Some(part).filter(|part| !part.range.is_empty()));
                let page = MessagesPage { parts, next_cursor: next_cursor.clone() };
                prints_as_serde::<MessagesRequest>(Found::Messages(page));
            }
        }
    }

    #[test]
    fn the_result_of_another_query_is_not_printed() {
        assert_eq!(MessagesRequest::print(Found::Leaf(None)), None);
        assert_eq!(GetMessageRequest::print(Found::Leaf(None)), None);
        assert_eq!(GetEntryRequest::print(Found::Metas(Vec::new())), None);
        assert_eq!(ListEntriesRequest::print(Found::Entry(None)), None);
    }
}
