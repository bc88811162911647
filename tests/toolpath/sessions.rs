//! import(export(s)) equals s, to the byte of every entry.

use proptest::prelude::*;
use serde_json::{Value, json};
use session_manager::machine::entry::{Entry, SessionEntry};
use session_manager::machine::json::{Json, JsonObject, List};
use session_manager::machine::message::{AgentMessage, ContentBlock, ErrorKind, StopReason, Usage};
use session_manager::machine::toolpath::write::Form;

use crate::schema::problems;
use crate::store::Node;

/// Sessions of different shapes: a tour through every kind of entry with a branch, an empty one, a deep value.
pub fn sample() -> Node {
    let mut node = Node::new();
    node.call("session::ensure", &json!({"session_id": "empty", "title": "Nothing yet"})).unwrap();
    node.call("session::ensure", &json!({"session_id": "tour", "title": "Tour", "metadata": {"tenant": "a"}})).unwrap();
    let said =
        |role: &str, text: &str| json!({"role": role, "content": [{"type": "text", "text": text}], "timestamp": 1});
    let append = |node: &mut Node, id: &str, entry: &str, parent: Option<&str>, body: Value| {
        let mut request = json!({"session_id": id, "entry_id": entry, "origin": {"turn": entry}});
        if let Some(parent) = parent {
            request["parent_id"] = json!(parent);
        }
        request.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        node.call("session::append", &request).unwrap();
    };
    let turn = json!({"message": {"role": "assistant", "content": [
        {"type": "thinking", "text": "hm", "signature": "sig"}, {"type": "text", "text": "I look."},
        {"type": "function_call", "id": "c1", "function_id": "fs::read", "arguments": {"path": "a.rs"}},
        {"type": "function_call", "id": "c2", "function_id": "shell::bash", "arguments": {"cmd": "ls"}},
    ], "stop_reason": "function_call", "native_stop_reason": "tool_use", "usage": {"input": 10, "output": 4,
        "cache_read": 2, "reasoning": 1, "cost_usd": 0.25}, "model": "lab/model-1", "provider": "lab", "timestamp": 2}});
    let answer = |call: &str, text: &str| {
        json!({"message": {"role": "function_result", "function_call_id": call,
        "function_id": "fs::read", "content": [{"type": "text", "text": text}], "details": {"ms": 3}, "timestamp": 3}})
    };
    append(&mut node, "tour", "u1", None, json!({"message": said("user", "What is in a.rs?")}));
    append(&mut node, "tour", "a1", None, turn);
    append(&mut node, "tour", "r1", None, answer("c1", "fn main() {}"));
    append(&mut node, "tour", "k1", None, json!({"custom": {"custom_type": "compaction", "data": {"tail": "u1"}}}));
    append(&mut node, "tour", "r2", None, answer("c2", "a.rs"));
    append(
        &mut node,
        "tour",
        "n1",
        None,
        json!({"message": {"role": "custom", "custom_type": "note",
        "content": [{"type": "text", "text": "noted"}], "display": "Note", "timestamp": 4}}),
    );
    append(&mut node, "tour", "b1", Some("u1"), json!({"message": said("user", "another try")}));
    append(&mut node, "tour", "b2", None, json!({"custom": {"custom_type": "x", "data": [1, {"type": 2}]}}));
    node.call("session::set-active-leaf", &json!({"session_id": "tour", "entry_id": "n1"})).unwrap();
    node.call(
        "session::update-message",
        &json!({"session_id": "tour", "entry_id": "u1",
        "content": [{"type": "text", "text": "What is in a.rs, please?"}]}),
    )
    .unwrap();
    node.call("session::fork", &json!({"session_id": "tour", "entry_id": "r2"})).unwrap();
    node.call("session::ensure", &json!({"session_id": "deep"})).unwrap();
    let deep = (0..110).fold(json!(1), |inner, _| json!([inner]));
    append(&mut node, "deep", "d1", None, json!({"custom": {"custom_type": "deep", "data": deep}}));
    node.call("session::ensure", &json!({"session_id": "🦀 ../escape", "title": "日本語 \u{0}\u{7f}"})).unwrap();
    append(&mut node, "🦀 ../escape", "\u{0}é 'x'", None, json!({"message": said("user", "\u{2028}\"\\ 🦀\u{fffd}")}));
    node
}

/// Exports a session in both forms and imports it elsewhere.
fn comes_back(node: &mut Node, id: &str, limit: usize, batch: usize) {
    let original = node.session(id).expect("the session");
    for form in [Form::Json, Form::Lines] {
        let text = node.export(id, form, &json!({}), limit);
        if form == Form::Json {
            let document: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(problems(&document), Vec::<String>::new());
        }
        // The session's own export tells it nothing new.
        for if_exists in ["refuse", "merge"] {
            node.import(&text, batch, &json!({"if_exists": if_exists})).unwrap();
            assert_eq!(node.session(id).unwrap(), original, "{if_exists}");
        }
        let mut other = Node::new();
        assert_eq!(other.import(&text, batch, &json!({})).unwrap(), [id]);
        assert_eq!(other.session(id).unwrap(), original, "{form:?}\n{text}");
        // A second import of the same says nothing new; under another id it is another session.
        other.import(&text, batch, &json!({})).unwrap();
        assert_eq!(other.session(id).unwrap(), original);
        other.import(&text, batch, &json!({"as": "copy"})).unwrap();
        assert_eq!(other.session("copy").unwrap().entries, original.entries);
        other.import(&text, batch, &json!({"if_exists": "replace"})).unwrap();
        assert_eq!(other.session(id).unwrap(), original);
    }
}

#[test]
fn sessions_of_every_shape_come_back() {
    let mut node = sample();
    for id in ["empty", "tour", "deep", "🦀 ../escape"] {
        comes_back(&mut node, id, 3, 2);
        comes_back(&mut node, id, 100, 100);
    }
}

#[test]
fn values_come_back_as_their_client_spelled_them() {
    let mut node = Node::new();
    node.call("session::ensure", &json!({"session_id": "s"})).unwrap();
    let values =
        r#"{"z":1,"a":[1.50,1e2,-0,12345678901234567890123,0.1000000000000000055511151231257827],"é":"\u00e9\/"}"#;
    let call =
        r#"{"type":"function_call","id":"c","function_id":"f"}"#.replace('}', &format!(",\"arguments\":{values}}}"));
    for (id, body) in [
        (
            "u",
            format!(
                r#""message":{{"role":"assistant","content":[{call}],"stop_reason":"end","model":"m","provider":"p","timestamp":1}}"#
            ),
        ),
        (
            "r",
            format!(
                r#""message":{{"role":"function_result","function_call_id":"c","function_id":"f","content":[],"details":{values},"timestamp":1}}"#
            ),
        ),
        (
            "n",
            format!(
                r#""message":{{"role":"custom","custom_type":"x","content":[],"details":{{"details":null,"b":{values}}},"timestamp":1}}"#
            ),
        ),
        ("k", format!(r#""custom":{{"custom_type":"x","data":{values}}}"#)),
        ("o", r#""message":{"role":"user","content":[],"timestamp":1}"#.to_owned()),
    ] {
        let request = format!(r#"{{"session_id":"s","entry_id":"{id}","origin":{values},{body}}}"#);
        node.call_text("session::append", &request).unwrap();
    }
    for entry in node.session("s").unwrap().entries {
        let text = entry.json_text();
        let times = if entry.id.as_str() == "o" { 1 } else { 2 };
        assert_eq!(text.matches(values).count(), times, "{text}");
    }
    comes_back(&mut node, "s", 2, 2);
    comes_back(&mut node, "s", 50, 50);
}

#[test]
fn a_fork_names_its_source_and_comes_back() {
    let mut node = sample();
    let listed = node.call("session::list", &json!({"limit": 10})).unwrap();
    let fork = listed["sessions"].as_array().unwrap().iter().find(|meta| meta.get("forked_from").is_some()).unwrap();
    let id = fork["session_id"].as_str().unwrap().to_owned();
    let document: Value = serde_json::from_str(&node.export(&id, Form::Json, &json!({}), 50)).unwrap();
    let refs = &document["paths"][0]["meta"]["refs"];
    assert_eq!(refs, &json!([{"rel": "forked_from", "href": "session-manager://tour"}]));
    comes_back(&mut node, &id, 4, 3);
}

#[test]
fn tools_show_their_answers_and_their_category() {
    let mut node = sample();
    let document: Value = serde_json::from_str(&node.export("tour", Form::Json, &json!({}), 2)).unwrap();
    let step = &document["paths"][0]["steps"][1];
    let turn = &step["change"]["session-manager://tour"]["structural"];
    assert_eq!(step["step"]["actor"], "agent:lab-model-1");
    assert_eq!(document["paths"][0]["meta"]["actors"]["agent:lab-model-1"]["model"], "lab/model-1");
    assert_eq!(turn["text"], "I look.");
    assert_eq!(turn["thinking"], "hm");
    assert_eq!(turn["stop_reason"], "tool_use");
    assert_eq!(turn["tool_uses"][0]["category"], "file_read");
    assert_eq!(turn["tool_uses"][1]["category"], "shell");
    assert_eq!(turn["tool_uses"][0]["result"], json!({"content": "fn main() {}", "is_error": false}));
    assert_eq!(turn["tool_uses"][1]["result"], json!({"content": "a.rs", "is_error": false}));
    assert_eq!(
        turn["token_usage"],
        json!({"input_tokens": 10, "output_tokens": 4, "cache_read_tokens": 2,
        "breakdowns": {"output": {"reasoning": 1}}})
    );
    assert_eq!(document["paths"][0]["path"]["head"], "n1");
}

#[test]
fn a_redacted_document_leaks_nothing() {
    let mut node = sample();
    let text = node.export(
        "tour",
        Form::Json,
        &json!({"redact": ["text", "thinking", "tool_input", "tool_result",
        "event_data", "title"]}),
        50,
    );
    for secret in ["please", "I look", "hm", "ls", "fn main", "noted", "Tour", "u1\"]}}"] {
        assert!(!text.contains(&format!("\"{secret}")), "{secret} in {text}");
    }
    let redactable = node.export("tour", Form::Json, &json!({"redactable": true}), 50);
    assert!(!redactable.contains("\"signature\"") && redactable.contains("please"));
    let mut other = Node::new();
    other.import(&redactable, 10, &json!({})).unwrap();
    let again = other.export("tour", Form::Json, &json!({"redactable": true}), 50);
    assert_eq!(again, redactable, "what is visible comes back without the copy too");
}

#[test]
fn an_edited_text_wins_over_the_copy() {
    let mut node = sample();
    let text = node.export("tour", Form::Json, &json!({}), 50);
    let mut document: Value = serde_json::from_str(&text).unwrap();
    document["paths"][0]["steps"][0]["change"]["session-manager://tour"]["structural"]["text"] = json!("Scrubbed.");
    let mut other = Node::new();
    other.import(&document.to_string(), 10, &json!({})).unwrap();
    let session = other.session("tour").unwrap();
    let entry = session.entries.iter().find(|entry| entry.id.as_str() == "u1").unwrap();
    let entry = serde_json::to_value(entry).unwrap();
    assert_eq!(entry["message"]["content"], json!([{"type": "text", "text": "Scrubbed."}]));
}

/// The steps of the tour by id, in a document that can be edited.
fn edited(edit: impl Fn(&mut dyn FnMut(&str, &str, Value))) -> Value {
    let text = sample().export("tour", Form::Json, &json!({}), 50);
    let mut document: Value = serde_json::from_str(&text).unwrap();
    let steps = document["paths"][0]["steps"].as_array_mut().unwrap();
    edit(&mut |id, pointer, value| {
        let step = steps.iter_mut().find(|step| step["step"]["id"] == id).unwrap();
        let structural = &mut step["change"]["session-manager://tour"]["structural"];
        *structural.pointer_mut(pointer).unwrap() = value;
    });
    document
}

/// What a session that was imported from a document says in one of its entries, and what it shows when it is exported.
fn imported(document: &Value, entry_id: &str) -> (Node, Value, Vec<Value>) {
    let mut node = Node::new();
    node.import(&document.to_string(), 10, &json!({})).unwrap();
    let session = node.session("tour").unwrap();
    let entry = session.entries.iter().find(|entry| entry.id.as_str() == entry_id).unwrap();
    let entry = serde_json::to_value(entry).unwrap();
    let exported: Value = serde_json::from_str(&node.export("tour", Form::Json, &json!({}), 50)).unwrap();
    assert_eq!(problems(&exported), Vec::<String>::new());
    (node, entry, exported["paths"][0]["steps"].as_array().unwrap().clone())
}

fn shown(steps: &[Value], id: &str) -> Value {
    let step = steps.iter().find(|step| step["step"]["id"] == id).unwrap();
    step["change"]["session-manager://tour"]["structural"].clone()
}

#[test]
fn an_edited_result_of_a_tool_use_wins_over_the_untouched_function_result() {
    let scrubbed = json!({"content": "Scrubbed.", "is_error": true});
    let document = edited(|set| set("a1", "/tool_uses/0/result", scrubbed.clone()));
    let (mut node, answer, steps) = imported(&document, "r1");
    assert_eq!(answer["message"]["content"], json!([{"type": "text", "text": "Scrubbed."}]));
    assert_eq!(answer["message"]["is_error"], true);
    assert!(!answer.to_string().contains("fn main"), "{answer}");
    assert_eq!(shown(&steps, "a1")["tool_uses"][0]["result"], scrubbed);
    assert_eq!(shown(&steps, "r1")["content"], "Scrubbed.");
    assert_eq!(node.session("tour").unwrap().meta.message_count, sample().session("tour").unwrap().meta.message_count);
    comes_back(&mut node, "tour", 3, 2);
    // The turn itself was not edited: its copy, with the signature that is not visible, is used.
    let (_, turn, _) = imported(&document, "a1");
    assert_eq!(turn["message"]["content"][0]["signature"], "sig");
}

#[test]
fn an_edited_function_result_wins_over_the_untouched_tool_use() {
    let document = edited(|set| set("r1", "/content", json!("Scrubbed.")));
    let (mut node, answer, steps) = imported(&document, "r1");
    assert_eq!(answer["message"]["content"], json!([{"type": "text", "text": "Scrubbed."}]));
    assert_eq!(shown(&steps, "a1")["tool_uses"][0]["result"], json!({"content": "Scrubbed.", "is_error": false}));
    assert!(!json!(steps).to_string().contains("fn main"), "the old words are gone everywhere");
    comes_back(&mut node, "tour", 3, 2);
}

#[test]
fn a_result_edited_twice_differently_keeps_both_words() {
    let said = json!({"content": "one", "is_error": false});
    let document = edited(|set| {
        set("a1", "/tool_uses/0/result", said.clone());
        set("r1", "/content", json!("two"));
    });
    let (mut node, answer, steps) = imported(&document, "r1");
    assert_eq!(answer["message"]["content"], json!([{"type": "text", "text": "two"}]));
    assert_eq!(shown(&steps, "a1")["tool_uses"][0]["result"], said);
    assert_eq!(shown(&steps, "r1")["content"], "two");
    comes_back(&mut node, "tour", 3, 2);
}

#[test]
fn moving_the_head_of_a_document_edits_no_entry() {
    let mut document = edited(|_| {});
    document["paths"][0]["path"]["head"] = json!("b2");
    let (node, _, _) = imported(&document, "a1");
    let (moved, original) = (node.session("tour").unwrap(), sample().session("tour").unwrap());
    assert_eq!(moved.entries, original.entries);
    assert_eq!(moved.leaf.unwrap().as_str(), "b2");
}

#[test]
fn merging_adds_what_is_missing_and_moves_the_leaf_forward() {
    let mut node = sample();
    let mut other = Node::new();
    other.import(&node.export("tour", Form::Json, &json!({}), 50), 10, &json!({})).unwrap();
    node.call(
        "session::append",
        &json!({"session_id": "tour", "entry_id": "z1",
        "message": {"role": "user", "content": [], "timestamp": 9}}),
    )
    .unwrap();
    let grown = node.export("tour", Form::Json, &json!({}), 50);
    let refused = other.import(&grown, 10, &json!({})).unwrap_err();
    assert!(refused.starts_with("session/invalid_request: session \"tour\" exists already"), "{refused}");
    other.import(&grown, 10, &json!({"if_exists": "skip"})).unwrap();
    assert_eq!(other.session("tour").unwrap().leaf.unwrap().as_str(), "n1");
    other.import(&grown, 2, &json!({"if_exists": "merge"})).unwrap();
    let (merged, original) = (other.session("tour").unwrap(), node.session("tour").unwrap());
    assert_eq!((&merged.entries, &merged.leaf), (&original.entries, &original.leaf));
    assert_eq!(merged.meta.message_count, original.meta.message_count);
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z ]{0,12}", any::<String>(), Just("text\nmore".to_owned())]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("finite", |n| serde_json::Number::from_f64(n).map(Value::Number)),
        any_text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let key = prop_oneof!["[a-c]", Just("type".to_owned()), Just("data".to_owned()), Just("$is".to_owned())];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..3).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A value as some client may spell it: keys in any order, numbers and characters written in other ways.
fn any_spelled() -> impl Strategy<Value = Json> {
    (any_json(), any::<bool>()).prop_map(|(value, plain)| match plain {
        true => Json::print(&value),
        false => serde_json::from_str(&respelled(&value)).expect("a value"),
    })
}

fn respelled(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) => value.to_string(),
        Value::Number(number) if number.is_i64() => format!("{number}0000000000000000000000"),
        Value::Number(number) if number.to_string().contains(['e', 'E']) => number.to_string(),
        Value::Number(number) => format!("{number}00E-0"),
        Value::String(text) => {
            let units = text.encode_utf16().map(|unit| format!("\\u{unit:04X}"));
            format!("\"{}\"", units.collect::<String>())
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(respelled).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let field =
                |(key, value): (&String, &Value)| format!("{}: {}", Value::from(key.as_str()), respelled(value));
            let fields: Vec<String> = fields.iter().rev().map(field).collect();
            format!("{{ {} }}", fields.join(","))
        }
    }
}

fn any_block() -> impl Strategy<Value = ContentBlock> {
    let leaf = prop_oneof![
        4 => any_text().prop_map(|text| ContentBlock::Text { text }),
        1 => any_text().prop_map(|data| ContentBlock::Image { data, mime: "image/png".to_owned() }),
        1 => (any_text(), any::<Option<String>>())
            .prop_map(|(text, signature)| ContentBlock::Thinking { text, signature }),
        2 => ("[ab]", any_text(), any_spelled())
            .prop_map(|(id, function_id, arguments)| ContentBlock::FunctionCall { id, function_id, arguments }),
    ];
    leaf.prop_recursive(1, 4, 2, |inner| {
        (any_text(), prop::collection::vec(inner, 0..2), any::<Option<bool>>()).prop_map(
            |(function_call_id, content, is_error)| ContentBlock::FunctionResult {
                function_call_id,
                content: List::of(&content),
                is_error,
            },
        )
    })
}

fn any_message() -> impl Strategy<Value = AgentMessage> {
    let blocks = || prop::collection::vec(any_block(), 0..4).prop_map(|blocks| List::of(&blocks));
    let usage = (any::<Option<u64>>(), any::<Option<u64>>(), any::<Option<u64>>(), any::<Option<u64>>()).prop_map(
        |(input, output, cache_read, reasoning)| Usage {
            input,
            output,
            cache_read,
            cache_write: None,
            reasoning,
            cost_usd: Some(0.1),
        },
    );
    let reason = prop_oneof![Just(StopReason::End), Just(StopReason::FunctionCall), Just(StopReason::Error)];
    prop_oneof![
        (blocks(), any::<i64>()).prop_map(|(content, timestamp)| AgentMessage::User { content, timestamp }),
        (blocks(), reason, any::<Option<String>>(), prop::option::of(usage), any_text(), any::<i64>()).prop_map(
            |(content, stop_reason, native_stop_reason, usage, model, timestamp)| AgentMessage::Assistant {
                content,
                stop_reason,
                native_stop_reason,
                error_message: None,
                error_kind: Some(ErrorKind::Transient),
                usage,
                warnings: Some(List::of(&["w".to_owned()])),
                model,
                provider: "p".to_owned(),
                timestamp,
            }
        ),
        ("[ab]", blocks(), any_spelled(), any::<bool>()).prop_map(|(function_call_id, content, details, is_error)| {
            AgentMessage::FunctionResult {
                function_call_id,
                function_id: "f::read".to_owned(),
                content,
                details,
                is_error,
                timestamp: 3,
            }
        }),
        (
            prop_oneof![any_text(), Just("toolpath:user".to_owned()), Just("toolpath:system".to_owned())],
            blocks(),
            any::<Option<String>>(),
            prop::option::of(any_spelled())
        )
            .prop_map(|(custom_type, content, display, details)| {
                // The store leaves out details that are null, so no stored message has them.
                let details = details.filter(|details| details.text() != "null");
                AgentMessage::Custom { custom_type, content, display, details, timestamp: 4 }
            }),
    ]
}

fn object(json: &Json) -> Option<JsonObject> {
    serde_json::from_str(json.text()).ok()
}

/// The body of an entry, and which of the earlier entries it hangs below.
fn any_entry() -> impl Strategy<Value = (SessionEntry, usize)> {
    let origin = prop_oneof![
        3 => Just(None),
        1 => any_spelled().prop_map(|json| object(&json)),
        1 => any_spelled().prop_map(|json| object(&Json::adopt(&format!("{{\"toolpath\":{}}}", json.text())))),
    ];
    let fields = (any_text(), any::<i64>(), any::<u64>(), origin, 0..100usize);
    let body = prop_oneof![
        any_message().prop_map(|message| (Some(message), String::new(), Json::default())),
        (any_text(), any_spelled()).prop_map(|(custom_type, data)| (None, custom_type, data)),
    ];
    (fields, body).prop_map(|((id, timestamp, revision, origin, below), (message, custom_type, data))| {
        let (id, parent_id) = (id.as_str().into(), None);
        let entry = match message {
            Some(message) => SessionEntry::Message { id, parent_id, timestamp, revision, origin, message },
            None => SessionEntry::Custom { id, parent_id, timestamp, revision, origin, custom_type, data },
        };
        (entry, below)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn any_session_comes_back(
        entries in prop::collection::vec(any_entry(), 0..14),
        leaf in 0..100usize,
        texts in (any_text(), any_text()),
        limit in 1..9usize,
        batch in 1..9usize,
    ) {
        let mut given: Vec<Entry> = Vec::new();
        for (at, (entry, below)) in entries.into_iter().enumerate() {
            let mut entry = Entry::from(entry);
            entry.id = format!("{}#{at}", entry.id).into();
            entry.parent_id = (at > 0 && below % 7 != 0).then(|| given[below % at].id.clone());
            given.push(entry);
        }
        let messages = given.iter().filter(|entry| entry.is_message()).count();
        let leaf = (!given.is_empty()).then(|| given[leaf % given.len()].id.clone());
        let spelled: Vec<String> = given.iter().map(Entry::json_text).collect();
        let meta = json!({"session_id": "s", "title": texts.0, "description": texts.1, "status": "error",
            "status_reason": "r", "message_count": messages, "metadata": {"k": [1, null]}, "created_at": -5,
            "updated_at": 99});
        let mut node = Node::new();
        node.call("session::import", &json!({"session_id": "s", "first": true, "entries": spelled,
            "finish": {"meta": meta, "active_leaf": leaf}})).unwrap();
        // What is stored is what was given, to the byte.
        for stored in node.session("s").unwrap().entries {
            prop_assert_eq!(Some(stored.json_text()), spelled.iter().find(|text| **text == stored.json_text()).cloned());
        }
        comes_back(&mut node, "s", limit, batch);
    }
}
