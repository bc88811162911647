//! Bad documents are refused with the place of what is wrong, and nothing of them is written.

use serde_json::{Value, json};
use session_manager::machine::toolpath::KIND;
use session_manager::machine::toolpath::outline::Outline;
use session_manager::machine::toolpath::write::Form;

use crate::sessions::sample;
use crate::store::Node;

fn step(id: &str, parents: &[&str]) -> Value {
    json!({
        "step": {"id": id, "parents": parents, "actor": "human:alex", "timestamp": "2026-01-01T00:00:00Z"},
        "change": {"x://p": {"structural": {"type": "conversation.append", "role": "user", "text": "t"}}},
    })
}

fn document(steps: &[Value], head: &str) -> Value {
    json!({"graph": {"id": "p"}, "paths": [{"path": {"id": "p", "head": head}, "steps": steps, "meta": {"kind": KIND}}]})
}

fn refused(text: &str) -> String {
    let mut node = Node::new();
    let error = node.import(text, 10, &json!({})).expect_err("must be refused");
    assert!(node.session("p").is_none(), "something was written");
    error
}

#[test]
fn each_fault_names_its_step() {
    let usage = |id: &str| {
        let mut step = step(id, &[]);
        let structural = &mut step["change"]["x://p"]["structural"];
        structural["group_id"] = json!("m");
        structural["token_usage"] = json!({"input_tokens": 1, "output_tokens": 1});
        step
    };
    let with = |pointer: &str, value: Value| {
        let mut step = step("a", &[]);
        *step.pointer_mut(pointer).unwrap() = value;
        document(&[step], "a")
    };
    let mut kindless = document(&[step("a", &[])], "a");
    kindless["paths"][0]["meta"] = json!({"kind": "https://toolpath.net/kinds/other/v1"});
    let mut referring = document(&[step("a", &[])], "a");
    referring["paths"].as_array_mut().unwrap().push(json!({"$ref": "https://example.com/p.json"}));
    let mut twice = document(&[step("a", &[])], "a");
    let path = twice["paths"][0].clone();
    twice["paths"].as_array_mut().unwrap().push(path);
    let bad_turn = json!({"type": "conversation.append", "role": "user"});
    let bad_use = json!({"type": "conversation.append", "role": "user", "text": "", "tool_uses": [{"id": "t"}]});
    for (document, words) in [
        (document(&[step("a", &[]), step("a", &[])], "a"), "step \"a\": this id occurs twice"),
        (document(&[step("a", &["b"])], "a"), "step \"a\": the parent \"b\" is no step of this path"),
        (document(&[step("a", &[])], "z"), "path \"p\": the head \"z\" is no step of this path"),
        (document(&[step("a", &["b"]), step("b", &["a"]), step("c", &["a"])], "c"), "is its own ancestor"),
        (document(&[step("a", &["a"])], "a"), "step \"a\": is its own ancestor"),
        (document(&[usage("a"), usage("b")], "a"), "step \"b\": `token_usage` stands twice in the group \"m\""),
        (
            with("/step/timestamp", json!("2026-13-01T00:00:00Z")),
            "step \"a\": `timestamp` \"2026-13-01T00:00:00Z\" is no",
        ),
        (with("/step/actor", json!("robot:x")), "step \"a\": `actor` \"robot:x\" must be"),
        (with("/change/x:~1~1p/structural", bad_turn), "step \"a\": `text` must be given"),
        (with("/change/x:~1~1p/structural", bad_use), "step \"a\": `name` must be given"),
        (with("/step", json!({"id": "a", "x": 1})), "step \"a\": has an unknown key \"x\""),
        (kindless, "path \"p\": has the kind \"https://toolpath.net/kinds/other/v1\""),
        (referring, "document: is a reference ($ref \"https://example.com/p.json\")"),
        (twice, "path \"p\": this id occurs twice"),
        (json!({"graph": {"id": "g"}, "paths": []}), "document: the document holds no path"),
        (json!({"path": {"id": "p", "head": ""}, "steps": []}), "document: is a bare path"),
        (json!([]), "document: must be a JSON object"),
    ] {
        let error = refused(&document.to_string());
        assert!(error.contains(words), "{error}\nexpected {words}");
    }
}

#[test]
fn a_document_cut_anywhere_is_refused() {
    let mut node = sample();
    let graph = node.export("tour", Form::Json, &json!({}), 50);
    let graph = graph.trim_end();
    for end in (0..graph.len()).step_by(7).filter(|end| graph.is_char_boundary(*end)) {
        assert!(Outline::read(&graph.as_bytes()[..end]).is_err(), "{}", &graph[..end]);
    }
    let error = Outline::read(&graph.as_bytes()[..graph.len() / 2]).unwrap_err().to_string();
    assert!(error.starts_with("step number ") && error.ends_with("the document is truncated"), "{error}");
    // Any line may be the last one of a torn file. Other producers need not close their paths.
    for options in [json!({}), json!({"redactable": true})] {
        let lines = node.export("tour", Form::Lines, &options, 50);
        for (end, _) in lines.trim_end().match_indices('\n') {
            let error = Outline::read(&lines.as_bytes()[..=end]).unwrap_err().to_string();
            assert!(error.starts_with("line ") && error.ends_with("the document is truncated"), "{error}");
        }
    }
    let lines = node.export("tour", Form::Lines, &json!({}), 50);
    let torn = &lines[..lines.len() / 2];
    let error = Outline::read(torn.as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with("line "), "{error}");
}

#[test]
fn a_deep_or_a_huge_step_is_refused_and_not_held() {
    let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    let text = document(&[step("a", &[]), step("b", &["a"])], "b").to_string();
    let in_step = |nested: &str| text.replacen("\"text\":\"t\"", &format!("\"text\":\"t\",\"x\":{nested}"), 1);
    assert_eq!(refused(&in_step(&deep)), "step number 1: is nested deeper than JSON readers allow (128 levels)");
    let huge = format!("\"{}\"", "x".repeat(200 * 1024 * 1024));
    assert_eq!(refused(&in_step(&huge)), "step number 1: has more than 67108864 bytes");
    let open = json!({"PathOpen": {"version": "1", "id": "p", "meta": {"kind": KIND}}});
    let line = format!("{open}\n{{\"Step\":{{\"x\":{deep}}}}}\n");
    assert_eq!(refused(&line), "line 2: is nested deeper than JSON readers allow (128 levels)");
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let mut text = document(&[step("a", &[])], "a").to_string().into_bytes();
    let at = text.windows(3).position(|bytes| bytes == b"\"t\"").unwrap();
    text[at + 1] = 0xff;
    assert!(Outline::read(text.as_slice()).unwrap_err().to_string().starts_with("step number 1: is not valid JSON"));
    for garbage in [
        "",
        " ",
        "{",
        "{}",
        "{\"graph\"}",
        "nul",
        "{\"PathOpen\":1}",
        "{\"PathOpen\":{}}",
        "{\"graph\":{\"id\":\"g\"},,}",
    ] {
        assert!(Outline::read(garbage.as_bytes()).is_err(), "{garbage}");
    }
}

#[test]
fn the_lines_of_a_path_are_checked_like_a_graph() {
    let open = json!({"PathOpen": {"version": "1", "id": "p", "meta": {"kind": KIND}}}).to_string();
    let line = |step: Value| json!({ "Step": step }).to_string();
    let lines = |lines: &[String]| lines.join("\n");
    let good = [open.clone(), line(step("a", &[])), line(step("b", &["a"]))];
    let outlines = Outline::read(lines(&good).as_bytes()).unwrap();
    assert_eq!((outlines[0].head(), outlines[0].len()), ("b", 2), "the head is inferred");
    for (bad, words) in [
        (vec![open.clone(), line(step("a", &[])), line(step("a", &[]))], "step \"a\": this id occurs twice"),
        (vec![open.clone(), line(step("a", &["x"]))], "step \"a\": the parent \"x\""),
        (vec![open.clone(), line(step("a", &[])), line(step("b", &[]))], "names no head"),
        (vec![open.clone(), open.clone()], "line 2: a second PathOpen"),
        (vec![open.clone(), "{}".to_owned()], "line 2: a line holds one key"),
        (
            vec![open.clone(), json!({"Signature": {"target": "step:x", "signature": {}}}).to_string()],
            "line 2: the signature",
        ),
        (vec![open, json!({"PathClose": {}}).to_string(), line(step("a", &[]))], "line 3: stands after PathClose"),
    ] {
        let error = refused(&lines(&bad));
        assert!(error.contains(words), "{error}\nexpected {words}");
    }
}
