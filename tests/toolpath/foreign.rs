//! export(import(x)) keeps every visible field of x, for documents of other producers.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use session_manager::machine::toolpath::write::Form;
use session_manager::machine::toolpath::{EXTRAS, KIND, KIND_BEFORE};

use crate::schema::problems;
use crate::store::Node;

/// A document without what this project adds to it, its steps by id.
fn visible(mut document: Value) -> Value {
    for path in document["paths"].as_array_mut().unwrap() {
        path["meta"].as_object_mut().unwrap().remove(EXTRAS);
        let steps = path["steps"].as_array_mut().unwrap();
        steps.sort_by_key(|step| step["step"]["id"].to_string());
        for step in steps {
            for change in step["change"].as_object_mut().unwrap().values_mut() {
                change.get_mut("structural").and_then(Value::as_object_mut).map(|fields| fields.remove(EXTRAS));
            }
            let is_ours =
                |meta: &mut Value| meta.as_object_mut().unwrap().remove(EXTRAS).is_some() && meta == &json!({});
            if step.get_mut("meta").is_some_and(is_ours) {
                step.as_object_mut().unwrap().remove("meta");
            }
        }
    }
    document
}

/// Imports a document and compares what comes out again.
pub fn is_kept(document: &Value, batch: usize, limit: usize) {
    let mut node = Node::new();
    let id = node.import(&document.to_string(), batch, &json!({})).expect("an import").remove(0);
    let text = node.export(&id, Form::Json, &json!({}), limit);
    let exported: Value = serde_json::from_str(&text).unwrap();
    let mut wrong = problems(&exported);
    wrong.retain(|wrong| !wrong.contains("kind/")); // A document of the kind before says so.
    wrong.retain(|wrong| !wrong.contains("meta.kind"));
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(visible(exported.clone()), visible(document.clone()));
    // And once more, in both forms, with the copies that are now inside: nothing changes any more.
    let first = node.session(&id).unwrap();
    for form in [Form::Json, Form::Lines] {
        let mut other = Node::new();
        other.import(&node.export(&id, form, &json!({}), limit), batch, &json!({})).unwrap();
        assert_eq!(other.session(&id).unwrap(), first, "{form:?}");
    }
    // Without the copies the visible fields still make the same document.
    let bare = node.export(&id, Form::Json, &json!({"redactable": true}), limit);
    let mut other = Node::new();
    other.import(&bare, batch, &json!({})).unwrap();
    let again: Value =
        serde_json::from_str(&other.export(&id, Form::Json, &json!({"redactable": true}), limit)).unwrap();
    assert_eq!(visible(again), visible(document.clone()));
}

fn document(steps: Value, head: &str) -> Value {
    json!({
        "graph": {"id": "g1", },
        "meta": {"title": "a graph", "x": [1]},
        "paths": [{
            "path": {"id": "p1", "head": head, "base": {"uri": "file:///w", "ref": "abc", "branch": "main"}},
            "steps": steps,
            "meta": {"kind": KIND, "source": "claude-code", "title": "T", "files_changed": ["a.rs"], "vcs_remote": "git@x",
                "producer": {"name": "claude-code", "version": "2"}, "intent": "try", "signatures": [
                    {"signer": "human:alex", "key": "gpg:1", "scope": "author", "sig": "s"}],
                "actors": {"agent:opus/4": {"model": "claude-opus-4", "provider": "anthropic",
                    "identities": [{"system": "x", "id": "y"}]}}},
        }],
    })
}

fn full_document() -> Value {
    let conversation = "claude-code://p1";
    document(
        json!([
            {"step": {"id": "e0", "actor": "tool:claude-code", "timestamp": "2026-01-01T00:00:00Z"},
             "change": {conversation: {"structural": {"type": "conversation.event", "entry_type": "preamble",
                "event_source_id": "raw-1", "data": {"x": 1}, "other": null}}}},
            {"step": {"id": "u1", "parents": ["e0"], "actor": "human:alex", "timestamp": "2026-01-01T01:00:00.123456+01:00"},
             "change": {conversation: {"raw": "@@", "structural": {"type": "conversation.append", "role": "user", "text": "",
                "environment": {"working_dir": "/w"}}}}},
            {"step": {"id": "a1", "parents": ["u1", "e0"], "actor": "agent:opus/4", "timestamp": "2026-01-01T00:00:01Z"},
             "change": {
                conversation: {"structural": {"type": "conversation.append", "role": "assistant", "text": "go",
                    "thinking": "", "group_id": "m1", "attributed_token_usage": {"input_tokens": 1},
                    "tool_uses": [
                        {"id": "t1", "name": "Write", "input": {"file_path": "a.rs"}, "category": "file_write",
                         "result": {"content": "ok", "is_error": false, "extra": [1]}},
                        {"id": "t1", "name": "Bash", "input": null, "category": null},
                        {"id": "t1", "name": "Bash", "input": "x", "category": "shell",
                         "result": {"content": "", "is_error": true}}],
                    "delegations": [{"agent_id": "s", "prompt": "p", "turns": [{"x": 1}], "result": "r"}],
                    "stop_reason": "tool_use", "model_hint": {"$is": 1}}},
                "a.rs": {"raw": "--- a\n+++ b", "structural": {"type": "file.write", "tool_id": "t1", "after": "x"}},
                "zz": {"structural": {"type": "conversation.append", "role": "user", "text": "a second turn in one step"}}},
             "meta": {"intent": "write", "signatures": [], "source": {"type": "git", "revision": "1"}}},
            {"step": {"id": "a2", "parents": ["a1"], "actor": "agent:opus/4", "timestamp": "2026-01-01T00:00:02Z"},
             "change": {conversation: {"structural": {"type": "conversation.append", "role": "assistant", "text": "done",
                "group_id": "m1", "token_usage": {"input_tokens": null, "output_tokens": 3, "cache_read_tokens": 0,
                    "breakdowns": {"output": {"reasoning": 2, "other": 1}, "input": {}}, "x": 1}}}}},
            {"step": {"id": "s1", "parents": ["a1"], "actor": "ci:bot", "timestamp": "2026-01-01T00:00:03Z"},
             "change": {conversation: {"structural": {"type": "conversation.append", "role": "system", "text": "note",
                "tool_uses": []}}}},
            {"step": {"id": "f1", "parents": ["s1"], "actor": "tool:fmt/1", "timestamp": "2026-01-01T00:00:04Z"},
             "change": {"b.rs": {"raw": "diff"}}},
            {"step": {"id": "n1", "parents": [], "actor": "human:alex", "timestamp": "2026-01-01T00:00:05Z"}, "change": {}},
        ]),
        "a2",
    )
}

#[test]
fn every_field_the_kind_knows_is_kept() {
    assert_eq!(problems(&full_document()), Vec::<String>::new());
    is_kept(&full_document(), 3, 2);
    is_kept(&full_document(), 100, 100);
}

#[test]
fn results_of_tools_become_entries_that_later_ones_hang_below() {
    let mut node = Node::new();
    node.import(&full_document().to_string(), 100, &json!({})).unwrap();
    let session = node.session("p1").unwrap();
    let parent = |id: &str| {
        let entry = session.entries.iter().find(|entry| entry.id.as_str() == id);
        entry.unwrap_or_else(|| panic!("no entry {id}")).parent_id.as_ref().map(ToString::to_string)
    };
    assert_eq!(parent("a1#r:t1").as_deref(), Some("a1"));
    assert_eq!(parent("a1#r:t1#2").as_deref(), Some("a1#r:t1"));
    assert_eq!(parent("a2").as_deref(), Some("a1#r:t1#2"));
    assert_eq!(parent("s1").as_deref(), Some("a1#r:t1#2"));
    assert_eq!(session.meta.metadata.as_ref().unwrap()["source"], "claude-code");
    assert_eq!(session.meta.message_count, 6);
    // What is appended to an imported session is exported with it.
    node.call("session::set-active-leaf", &json!({"session_id": "p1", "entry_id": "a1#r:t1#2"})).unwrap();
    let said = json!({"role": "user", "content": [{"type": "text", "text": "and now?"}], "timestamp": 1});
    node.call("session::append", &json!({"session_id": "p1", "entry_id": "x1", "message": said})).unwrap();
    let document: Value = serde_json::from_str(&node.export("p1", Form::Json, &json!({}), 3)).unwrap();
    let steps = document["paths"][0]["steps"].as_array().unwrap();
    let step = steps.iter().find(|step| step["step"]["id"] == "x1").unwrap();
    assert_eq!(step["step"]["parents"], json!(["a1"]));
    assert_eq!(document["paths"][0]["path"]["head"], "x1");
    assert_eq!(problems(&document), Vec::<String>::new());
}

#[test]
fn a_head_with_results_is_kept() {
    let mut document = full_document();
    document["paths"][0]["path"]["head"] = json!("a1");
    is_kept(&document, 4, 4);
}

#[test]
fn several_paths_become_several_sessions() {
    let mut document = full_document();
    let mut second = document["paths"][0].clone();
    second["path"]["id"] = json!("p2");
    document["paths"].as_array_mut().unwrap().push(second);
    let mut node = Node::new();
    assert_eq!(node.import(&document.to_string(), 10, &json!({})).unwrap(), ["p1", "p2"]);
    assert_eq!(node.session("p1").unwrap().entries.len(), node.session("p2").unwrap().entries.len());
}

fn any_structural() -> impl Strategy<Value = Value> {
    let role = prop_oneof![Just("user"), Just("assistant"), Just("system"), Just("tool"), Just("custom:x")];
    let used = ("[ab]{1,2}", any::<bool>(), prop::option::of(("[a-c]{0,1}", any::<bool>()))).prop_map(
        |(id, known, result)| {
            let category = if known { json!("shell") } else { Value::Null };
            let mut used = json!({"id": id, "name": "Bash", "input": {"a": id}, "category": category});
            if let Some((content, is_error)) = result {
                used["result"] = json!({"content": content, "is_error": is_error});
            }
            used
        },
    );
    let usage = (any::<Option<i64>>(), any::<Option<u32>>())
        .prop_map(|(input, output)| json!({"input_tokens": input, "output_tokens": output}));
    let extras = (
        prop::option::of("[a-c]{0,3}"),
        prop::option::of(prop::collection::vec(used, 0..4)),
        prop::option::of(usage),
        prop::option::of(prop_oneof![Just("end_turn"), Just("end"), Just("max_tokens"), Just("function_call")]),
    );
    let turn = (role, "[a-c\n]{0,5}", extras).prop_map(|(role, text, (thinking, uses, usage, stop))| {
        let mut turn = json!({"type": "conversation.append", "role": role, "text": text});
        let fields = turn.as_object_mut().unwrap();
        fields.extend(thinking.map(|thinking| ("thinking".to_owned(), json!(thinking))));
        fields.extend(uses.map(|uses| ("tool_uses".to_owned(), json!(uses))));
        fields.extend(usage.map(|usage| ("token_usage".to_owned(), usage)));
        fields.extend(stop.map(|stop| ("stop_reason".to_owned(), json!(stop))));
        turn
    });
    let event = ("[a-c]{0,3}", prop::collection::btree_map("[a-d]|data|event_source_id", "[a-c]{0,2}", 0..3)).prop_map(
        |(kind, data)| {
            let mut event = json!({"type": "conversation.event", "entry_type": kind});
            event.as_object_mut().unwrap().extend(data.into_iter().map(|(key, value)| (key, json!(value))));
            event
        },
    );
    // Answers to calls of any turn above, with the same words as its tool use or with others.
    let answer = ("[ab]{1,2}", "[a-c]{0,1}", any::<bool>()).prop_map(|(call, content, is_error)| {
        json!({"type": "conversation.event", "entry_type": "function_result", "function_call_id": call,
            "function_id": "Bash", "content": content, "is_error": is_error})
    });
    prop_oneof![3 => turn, 1 => event, 2 => answer]
}

fn any_steps() -> impl Strategy<Value = Vec<Value>> {
    let actor = prop_oneof![Just("human:alex"), Just("agent:m-1"), Just("agent:a/b"), Just("tool:x"), Just("ci:y")];
    let time = prop_oneof![
        Just("2026-01-01T00:00:00Z"),
        Just("2026-05-05T10:00:00.5+02:00"),
        Just("2020-02-29t23:59:59.123456789z"),
    ];
    let step = (actor, time, prop::option::of(any_structural()), any::<[u8; 4]>());
    prop::collection::vec(step, 1..12).prop_map(|steps| {
        let mut made: Vec<Value> = Vec::new();
        for (at, (actor, time, structural, [below, second, extra, meta])) in steps.into_iter().enumerate() {
            let mut parents = Vec::new();
            if at > 0 && below % 5 > 0 {
                parents.push(format!("s{}", below as usize % at));
                let other = format!("s{}", second as usize % at);
                if second % 4 == 0 && !parents.contains(&other) {
                    parents.push(other);
                }
            }
            let mut change = Map::new();
            if let Some(structural) = structural {
                change.insert("codex://p1".to_owned(), json!({ "structural": structural }));
            }
            if extra % 3 == 0 {
                change.insert(
                    "src/a.rs".to_owned(),
                    json!({"raw": "d", "structural": {"type": "file.write", "before": "b"}}),
                );
            }
            let mut step =
                json!({"step": {"id": format!("s{at}"), "actor": actor, "timestamp": time}, "change": change});
            if !parents.is_empty() || extra % 2 == 0 {
                step["step"]["parents"] = json!(parents);
            }
            if meta % 3 == 0 {
                step["meta"] = json!({"description": "d", "x": {"y": meta}});
            }
            made.push(step);
        }
        made
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_document_is_kept(
        steps in any_steps(),
        head in 0..100usize,
        order in any::<bool>(),
        (batch, limit) in (1..9usize, 1..9usize),
        before in any::<bool>(),
    ) {
        let head = format!("s{}", head % steps.len());
        let mut steps = steps;
        if order {
            steps.reverse();
        }
        let mut document = document(json!(steps), &head);
        if before {
            document["paths"][0]["meta"]["kind"] = json!(KIND_BEFORE);
        }
        is_kept(&document, batch, limit);
    }
}
