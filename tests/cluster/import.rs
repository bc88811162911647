//! Laws of imports: 200 transcripts go into a cluster whose leader is killed meanwhile, and each is there once and
//! whole; sessions that go from one cluster to another leave it as the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::processes::{DevCluster, call, equal_states, leader, one_cluster_at_a_time, program};

const TRANSCRIPTS: usize = 200;
const TURNS: usize = 12;

/// A session file as Claude Code writes it: one JSON object per line, each naming the line before it.
fn write_transcript(directory: &Path, nth: usize) {
    let session = format!("00000000-0000-4000-8000-{nth:012}");
    let mut lines = String::new();
    for turn in 0..TURNS {
        let is_user = turn % 2 == 0;
        let (uuid, role) = (format!("{nth}-{turn}"), if is_user { "user" } else { "assistant" });
        let mut line = json!({
            "type": role, "uuid": uuid, "sessionId": session, "cwd": "/work", "version": "1.0.0", "isSidechain": false,
            "timestamp": format!("2026-01-01T00:{:02}:{:02}.000Z", turn / 60, turn % 60),
            "message": {"role": role, "content": format!("turn {turn} of session {nth}")},
        });
        if turn > 0 {
            line["parentUuid"] = json!(format!("{nth}-{}", turn - 1));
        }
        if !is_user {
            line["message"]["id"] = json!(format!("msg_{nth}_{turn}"));
            line["message"]["model"] = json!("claude-opus-4");
            line["message"]["content"] = json!([{"type": "text", "text": format!("turn {turn} of session {nth}")}]);
            line["message"]["usage"] = json!({"input_tokens": 3, "output_tokens": 5});
        }
        lines.push_str(&format!("{line}\n"));
    }
    fs::write(directory.join(format!("{session}.jsonl")), lines).expect("a transcript");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transcripts_imported_while_the_leader_is_killed_are_there_once_and_whole() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let transcripts = dir.path().join("projects");
    fs::create_dir(&transcripts).expect("a directory");
    (0..TRANSCRIPTS).for_each(|nth| write_transcript(&transcripts, nth));
    let cluster = DevCluster::start(dir.path(), 3, &["--respawn"]);
    let first = leader(&cluster.line(1).peer).await;
    let through = cluster.line(first % 3 + 1).client_address();
    let mut import = program();
    import.args(["import", "--from", "claude"]).arg(&transcripts).args(["--url", &format!("ws://{through}")]);
    let import = import.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the import starts");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    cluster.signal_node(first, "KILL");
    let done = tokio::task::spawn_blocking(move || import.wait_with_output()).await.expect("a thread");
    let done = done.expect("the import ends");
    let words = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{words}");
    println!("{}", words.lines().last().unwrap_or_default());

    let mut request = json!({"order": "created_asc", "limit": 100});
    let mut sessions: Vec<Value> = Vec::new();
    loop {
        let page = call(through, "session::list", request.clone()).await;
        sessions.extend(page["sessions"].as_array().expect("sessions").clone());
        match page.get("next_cursor") {
            Some(cursor) => request["cursor"] = cursor.clone(),
            None => break,
        }
    }
    assert_eq!(sessions.len(), TRANSCRIPTS);
    for meta in &sessions {
        assert_eq!(meta["message_count"], TURNS, "{meta}");
        assert_eq!(meta["metadata"]["source"], "claude-code");
        let read = json!({"session_id": meta["session_id"], "limit": 100});
        let page = call(through, "session::messages", read).await;
        let messages = page["messages"].as_array().expect("messages");
        assert_eq!(messages.len(), TURNS, "{meta}");
        for (turn, message) in messages.iter().enumerate() {
            let text = message["message"]["content"][0]["text"].as_str().expect("a text");
            assert!(text.starts_with(&format!("turn {turn} of session ")), "{text}");
        }
    }
    equal_states(&cluster.peer_besides(0), 3).await;
}

/// Fills a cluster with sessions of every shape: tools and a branch, a fork, text of all kinds, nothing, and one that
/// takes several pages and batches.
async fn fill(node: SocketAddr) {
    let said = |role: &str, text: &str| json!({"message": {"role": role, "content": [{"type": "text", "text": text}], "timestamp": 1}});
    let turn = json!({"message": {"role": "assistant", "content": [
        {"type": "thinking", "text": "hm", "signature": "sig"}, {"type": "text", "text": "I look."},
        {"type": "function_call", "id": "c1", "function_id": "fs::read", "arguments": {"path": "a.rs"}}],
        "stop_reason": "function_call", "usage": {"input": 10, "output": 4, "cost_usd": 0.25},
        "model": "lab/model-1", "provider": "lab", "timestamp": 2}});
    let answer = json!({"message": {"role": "function_result", "function_call_id": "c1", "function_id": "fs::read",
        "content": [{"type": "text", "text": "fn main() {}"}], "details": {"ms": 3}, "timestamp": 3}});
    let unicode = "🦀 ../escape";
    let appended = [
        ("tour", "u1", None, said("user", "What is in a.rs?")),
        ("tour", "a1", None, turn),
        ("tour", "r1", None, answer),
        ("tour", "k1", None, json!({"custom": {"custom_type": "compaction", "data": {"tail": "u1"}}})),
        ("tour", "b1", Some("u1"), said("user", "another try")),
        (unicode, "\u{0}é 'x'", None, said("user", "\u{2028}\"\\ 🦀\u{fffd}")),
    ];
    for id in ["empty", "tour", unicode, "long"] {
        call(node, "session::ensure", json!({"session_id": id, "title": format!("{id} 日本語")})).await;
    }
    for (session, entry, parent, body) in appended {
        let mut request = json!({"session_id": session, "entry_id": entry, "origin": {"turn": entry}});
        request.as_object_mut().expect("an object").extend(body.as_object().expect("an object").clone());
        if let Some(parent) = parent {
            request["parent_id"] = json!(parent);
        }
        call(node, "session::append", request).await;
    }
    call(node, "session::fork", json!({"session_id": "tour", "entry_id": "r1"})).await;
    for _ in 0..7 {
        let lines = (0..100).map(|nth| said("user", &format!("line {nth}"))["message"].take());
        let messages: Vec<Value> = lines.collect();
        call(node, "session::append-many", json!({"session_id": "long", "messages": messages})).await;
    }
}

/// Runs the program against a node; it must succeed.
async fn runs(node: SocketAddr, arguments: &[&str], path: &Path) {
    let mut command = program();
    command.args(arguments).arg(path).args(["--url", &format!("ws://{node}")]).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("a thread").expect("the program");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Exports every session in both forms: the bytes by file name.
async fn exported(node: SocketAddr, dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let (json, lines) = (dir.join("json/"), dir.join("lines/"));
    runs(node, &["export", "--all", "-o"], &json).await;
    runs(node, &["export", "--all", "--lines", "-o"], &lines).await;
    let mut files = BTreeMap::new();
    for directory in [json, lines] {
        for file in fs::read_dir(directory).expect("a directory") {
            let file = file.expect("a file");
            let name = file.file_name().into_string().expect("a name of ASCII");
            files.insert(name, fs::read(file.path()).expect("a document"));
        }
    }
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_leaves_another_cluster_as_the_same_bytes() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir(&path).expect("a directory");
        path
    };
    let first = DevCluster::start(&at("first"), 3, &[]);
    let leading = leader(&first.line(1).peer).await;
    fill(first.line(leading).client_address()).await;
    // A follower answers with all that was written.
    let from = at("exported");
    let documents = exported(first.line(leading % 3 + 1).client_address(), &from).await;
    assert_eq!(documents.len(), 2 * 5, "{:?}", documents.keys());
    drop(first);

    let second = DevCluster::start(&at("second"), 3, &[]);
    let leading = leader(&second.line(1).peer).await;
    let after = |nth: u64| second.line((leading + nth) % 3 + 1).client_address();
    let (into, out) = (after(0), after(1));
    for (form, arguments) in [("json", ["import"].as_slice()), ("lines", ["import", "--replace"].as_slice())] {
        runs(into, arguments, &from.join(form)).await;
        let again = exported(out, &at(&format!("from-{form}"))).await;
        let differing: Vec<&String> =
            documents.keys().filter(|name| again.get(*name) != documents.get(*name)).collect();
        assert!(differing.is_empty() && again.len() == documents.len(), "{form}: {differing:?}");
    }
    equal_states(&second.peer_besides(0), 3).await;
}
