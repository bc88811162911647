//! Laws of imports: 200 transcripts go into a cluster whose leader is killed meanwhile, and each is there once and
//! whole; sessions that go from one cluster to another leave it as the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::processes::{
    DevCluster, ServerProcess, call, equal_states, free_port, leader, one_cluster_at_a_time, program,
};

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

/// A node that stores its sessions in files.
fn fs_node(data: &Path, log: &Path) -> (ServerProcess, SocketAddr) {
    let address = free_port(Ipv4Addr::LOCALHOST.into());
    let arguments = |command: &mut Command| {
        command.args(["--adapter", "fs", "--listen", &address.to_string(), "--data-dir"]).arg(data);
    };
    (ServerProcess::start(arguments, log), address)
}

async fn run(arguments: &[&str]) -> Output {
    let mut command = program();
    command.args(arguments).stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output()).await.expect("a thread").expect("the binary runs")
}

async fn succeeds(arguments: &[&str]) -> String {
    let output = run(arguments).await;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {words}");
    words
}

/// The sessions in a directory, to the byte.
fn files_in(dir: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(dir).expect("a directory").map(|file| file.expect("a file").path());
    let sessions = files.filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"));
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    sessions.map(|path| (name(&path), fs::read_to_string(&path).expect("text"))).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("Unicode")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_the_fs_adapter_move_to_a_cluster_and_back_to_the_byte() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| dir.path().join(name);
    let (mut node, address) = fs_node(&at("old"), &at("old.log"));
    let url = |address: SocketAddr| format!("ws://{address}");

    // 1. Sessions with branches, edits, forks, strange ids and strange numbers.
    for nth in 0..12 {
        let id = if nth == 0 { "a/b \u{e9} %".to_owned() } else { format!("s-{nth}") };
        let metadata = json!({"tenant": if nth % 2 == 0 { "acme" } else { "other" }, "n": nth});
        call(address, "session::ensure", json!({"session_id": id, "title": format!("t {nth}"), "metadata": metadata}))
            .await;
        for turn in 0..nth * 3 {
            let mut message = json!({"role": "user", "timestamp": turn,
                "content": [{"type": "text", "text": "x\u{2028}\u{1F600}"}]});
            // A message with exactly the stored fields keeps the spelling of its client; others are printed anew.
            if turn % 2 == 0 {
                message["extra"] = json!({"b": 1.0, "a": 1e300, "z": "\u{0}"});
            }
            let mut append = json!({"session_id": id, "entry_id": format!("e-{turn}"), "message": message});
            if turn % 4 == 3 {
                append["parent_id"] = json!(format!("e-{}", turn - 2));
            }
            call(address, "session::append", append).await;
        }
        call(address, "session::set-status", json!({"session_id": id, "status": "done"})).await;
    }
    let fork = json!({"session_id": "s-5", "entry_id": "e-7", "title": "fork"});
    call(address, "session::fork", fork).await;
    let leaf = json!({"session_id": "s-7", "entry_id": "e-2"});
    call(address, "session::set-active-leaf", leaf).await;
    let exported = at("exported/");
    succeeds(&["export", "--all", "--format", "fs", "-o", text(&exported), "--url", &url(address)]).await;
    let want = files_in(&exported);
    assert_eq!(want.len(), 13);
    let busy = run(&["import", "--format", "fs", text(&at("old")), "--dry-run"]).await;
    assert!(String::from_utf8_lossy(&busy.stderr).contains("in use"), "{busy:?}");
    node.kill();

    // 2. Into a cluster by one command, which may be repeated.
    let cluster = DevCluster::start(&at("cluster"), 3, &[]);
    let to = cluster.clients();
    let words = succeeds(&["import", "--format", "fs", text(&at("old")), "--url", &url(to[0])]).await;
    assert!(words.contains("imported 13 sessions"), "{words}");
    let words = succeeds(&["import", "--format", "fs", text(&at("old")), "--url", &url(to[1])]).await;
    assert!(words.contains("imported 0 sessions with 0 entries; 13 were there already"), "{words}");
    equal_states(&cluster.line(1).peer, 3).await;

    // 3. And back: all, some, one.
    let back = at("back/");
    succeeds(&["export", "--all", "--format", "fs", "-o", text(&back), "--url", &url(to[2])]).await;
    assert!(files_in(&back) == want, "a session has other bytes");
    let some = at("some/");
    let filter = ["export", "--metadata", "tenant=acme", "--format", "fs", "-o", text(&some), "--url", &url(to[0])];
    succeeds(&filter).await;
    let found = files_in(&some);
    assert!(found.len() >= 6 && found.iter().all(|(name, file)| want[name] == *file), "{:?}", found.keys());
    let one = run(&["export", "s-3", "--format", "fs", "--quiet", "--url", &url(to[0])]).await;
    assert_eq!(String::from_utf8_lossy(&one.stdout), want["s-3.jsonl"]);
    drop(cluster);
    let (_node, address) = fs_node(&back, &at("back.log"));
    let again = at("again/");
    call(address, "session::get", json!({"session_id": "s-7"})).await;
    succeeds(&["export", "--all", "--format", "fs", "-o", text(&again), "--url", &url(address)]).await;
    assert!(files_in(&again) == want, "the fs adapter serves other bytes");

    // 4. A damaged file is named, and the others are imported.
    let mut damaged = want["s-3.jsonl"].clone();
    damaged.insert_str(5, "garbage");
    fs::write(some.join("s-3.jsonl"), damaged).expect("a file");
    let refused = run(&["import", "--format", "fs", text(&some), "--dry-run"]).await;
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{words}");
    assert!(words.contains("s-3.jsonl: line 1 cannot be read"), "{words}");
}
