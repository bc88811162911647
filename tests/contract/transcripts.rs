//! Golden transcripts: calls, their answers, the events that fire, and the state at the end.
//!
//! A script is `tests/golden/<name>.txt`. Lines without indentation are the script; indented lines are its results:
//!
//! ```text
//! # comment
//! @ 1700                          sets the clock; every call advances it by 1 ms
//! > session::append {"…":"…"}     a call
//!   = {"…":"…"}                   its response
//!   ! session/not_found: …        or its error
//!   ~ 4.0 #2 session::created {…} an event: position, sequence number, type, payload, metadata where there is some
//! state                           every session with its leaf and entries
//! ```
//!
//! `BLESS=1 cargo test --test contract` rewrites the results. Read the difference before you commit it.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use session_manager::events::Committed;

use super::aliases::Aliases;
use super::node::Node;

const CLOCK_START_MS: i64 = 1000;

struct Transcript {
    node: Node,
    aliases: Aliases,
    now_ms: i64,
    out: String,
}

impl Transcript {
    async fn play(script: &str) -> String {
        let node = Node::start();
        let mut transcript =
            Transcript { node, aliases: Aliases::default(), now_ms: CLOCK_START_MS, out: String::new() };
        for line in script.lines().filter(|line| !line.starts_with("  ")) {
            transcript.out.push_str(line);
            transcript.out.push('\n');
            transcript.line(line).await;
        }
        transcript.out
    }

    async fn line(&mut self, line: &str) {
        if let Some(call) = line.strip_prefix("> ") {
            self.call(call).await;
        } else if let Some(clock) = line.strip_prefix("@ ") {
            self.now_ms = clock.trim().parse().expect("a clock is a number");
        } else if line == "state" {
            self.state().await;
        } else {
            assert!(line.is_empty() || line.starts_with('#'), "not a valid line of a script: {line:?}");
        }
    }

    async fn call(&mut self, call: &str) {
        let (function_id, body) = call.split_once(' ').unwrap_or((call, ""));
        let body = self.aliases.resolve(body);
        self.node.set_clock(self.now_ms);
        self.now_ms += 1;
        match self.node.call(function_id, &body).await {
            Some(Ok(response)) => self.print("=", &response),
            Some(Err(error)) => self.print("!", &error.to_string()),
            None => self.print("!", "no such function"),
        }
        for event in self.node.take_events().await {
            self.print("~", &describe(&event));
        }
    }

    async fn state(&mut self) {
        let metas = self.read("session::store::list-metas", json!({})).await;
        for meta in metas["metas"].as_array().expect("metas") {
            let session = json!({ "session_id": meta["session_id"] });
            let leaf = self.read("session::store::get-active-leaf", session.clone()).await;
            self.print(".", &format!("meta {meta} leaf {}", leaf["entry_id"]));
            let entries = self.read("session::store::list-entries", session).await;
            for entry in entries["entries"].as_array().expect("entries") {
                self.print(".", &format!("  entry {entry}"));
            }
        }
    }

    async fn read(&self, function_id: &str, body: Value) -> Value {
        let response = self.node.call(function_id, &body.to_string()).await.expect("known").expect("readable");
        serde_json::from_str(&response).expect("a response is JSON")
    }

    fn print(&mut self, mark: &str, text: &str) {
        let text = self.aliases.shorten(text);
        writeln!(self.out, "  {mark} {text}").expect("a string takes everything");
    }
}

fn describe(committed: &Committed) -> String {
    let (position, event) = (committed.position, &committed.event);
    let metadata = event.metadata.as_ref().map(|metadata| format!(" metadata {}", json!(metadata)));
    format!(
        "{}.{} #{} {} {}{}",
        position.index,
        position.ordinal,
        event.seq,
        event.kind().trigger_type(),
        committed.payload().text(),
        metadata.unwrap_or_default()
    )
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let files = std::fs::read_dir(folder).expect("the golden folder").map(|file| file.expect("a file").path());
    let mut scripts: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|ext| ext == "txt")).collect();
    scripts.sort();
    scripts
}

#[tokio::test]
async fn every_transcript_gives_its_recorded_results() {
    let bless = std::env::var_os("BLESS").is_some();
    let mut differing = Vec::new();
    for path in scripts() {
        // A checkout may change line endings.
        let written = std::fs::read_to_string(&path).expect("a script").replace("\r\n", "\n");
        let played = Transcript::play(&written).await;
        if played == written {
            continue;
        }
        if bless {
            std::fs::write(&path, played).expect("the golden folder is writable");
        } else {
            differing.push(format!("{}: {}", path.display(), first_difference(&written, &played)));
        }
    }
    assert!(differing.is_empty(), "{}\nBLESS=1 accepts the new results", differing.join("\n"));
}

fn first_difference(written: &str, played: &str) -> String {
    let mut lines = written.lines().zip(played.lines()).enumerate();
    match lines.find(|(_, (written, played))| written != played) {
        Some((at, (written, played))) => format!("line {}\n  written: {written}\n  played:  {played}", at + 1),
        None => "one is a prefix of the other".to_owned(),
    }
}

#[tokio::test]
async fn the_transcripts_call_every_function() {
    let called: Vec<String> = scripts().iter().map(|path| std::fs::read_to_string(path).expect("a script")).collect();
    for function in session_manager::requests::functions() {
        let call = format!("> {}", function.id);
        let is_called = called
            .iter()
            .flat_map(|script| script.lines())
            .any(|line| line.strip_prefix(&call).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')));
        assert!(is_called, "no transcript calls {}", function.id);
    }
}
