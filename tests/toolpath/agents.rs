//! The session files of coding agents, as the crates that read them bring them along for their own tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use session_manager::cli::transfer::foreign::{Producer, read};
use session_manager::machine::toolpath::write::Form;

use crate::foreign::is_kept;
use crate::schema::problems;
use crate::store::Node;

const PRODUCERS: [(Producer, &str); 5] = [
    (Producer::Claude, "toolpath-claude"),
    (Producer::Codex, "toolpath-codex"),
    (Producer::Gemini, "toolpath-gemini"),
    (Producer::Copilot, "toolpath-copilot"),
    (Producer::Pi, "toolpath-pi"),
];

/// The fixtures inside a crate's published sources.
fn fixtures(crate_name: &str) -> Vec<PathBuf> {
    let version = Command::new("rustc").arg("-vV").output().expect("rustc runs");
    let version = String::from_utf8(version.stdout).expect("a text");
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("the host");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // The crates of other platforms may not be there.
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline", "--filter-platform", host])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let package = packages.iter().find(|package| package["name"] == crate_name).expect("the crate is a dependency");
    let manifest = Path::new(package["manifest_path"].as_str().expect("a manifest"));
    let directory = manifest.parent().expect("a directory").join("tests/fixtures");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(directory).expect("fixtures").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files
}

/// Copilot keeps each session in a directory of its own.
fn placed(producer: Producer, fixture: &Path, directory: &Path) -> PathBuf {
    if producer != Producer::Copilot {
        return fixture.to_owned();
    }
    let session = directory.join(fixture.file_stem().expect("a name"));
    std::fs::create_dir_all(&session).expect("a directory");
    let events = session.join("events.jsonl");
    std::fs::copy(fixture, &events).expect("a copy");
    events
}

#[test]
fn every_transcript_becomes_a_session_that_tells_the_same() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (producer, crate_name) in PRODUCERS {
        let fixtures = fixtures(crate_name);
        assert!(!fixtures.is_empty(), "{crate_name} brings no fixtures");
        for fixture in fixtures {
            let file = placed(producer, &fixture, directory.path());
            let transcript = read(producer, &file).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(problems(&transcript.document), Vec::<String>::new(), "{}", fixture.display());
            is_kept(&transcript.document, 50, 50);
            let mut node = Node::new();
            let id = node.import(&transcript.document.to_string(), 100, &json!({})).expect("an import").remove(0);
            let session = node.session(&id).expect("the session");
            let source = transcript.document["paths"][0]["meta"]["source"].clone();
            assert_eq!(session.meta.metadata.as_ref().expect("metadata")["source"], source);
            assert!(session.meta.message_count > 0, "{}", fixture.display());
            let text = node.export(&id, Form::Lines, &json!({}), 20);
            println!(
                "{crate_name} {}: {} bytes as lines, {} messages; {:?}",
                fixture.display(),
                text.len(),
                session.meta.message_count,
                transcript.notes
            );
        }
    }
}

#[test]
fn a_claude_transcript_tells_where_each_turn_ran() {
    for fixture in fixtures("toolpath-claude") {
        let conversation = toolpath_claude::ConversationReader::read_conversation(&fixture).expect("a transcript");
        let config = toolpath_claude::derive::DeriveConfig { project_path: None, include_thinking: true };
        // No directory of a fixture exists here, so the reader finds no git repository there.
        let derived = toolpath_claude::derive::derive_path(&conversation, &config);
        let mut derived = serde_json::to_value(derived).expect("a path");
        let mut read = read(Producer::Claude, &fixture).unwrap_or_else(|error| panic!("{error}")).document;
        let path = read["paths"][0].take();
        derived["path"]["id"] = path["path"]["id"].clone();
        assert!(path["path"]["base"]["uri"].is_string(), "{}", fixture.display());
        let environments = |path: &Value| -> Vec<Value> {
            let changes = path["steps"].as_array().into_iter().flatten().filter_map(|step| step["change"].as_object());
            let changes = changes.flat_map(|change| change.values());
            changes.map(|change| change["structural"]["environment"].clone()).collect()
        };
        assert_eq!(environments(&path), environments(&derived), "{}", fixture.display());
        assert_eq!(path["path"]["base"], derived["path"]["base"], "{}", fixture.display());
        assert_eq!(path["steps"].as_array().map(Vec::len), derived["steps"].as_array().map(Vec::len));
    }
}

/// A transcript may come from a stranger, and the directory it names may hold a repository whose settings run programs.
#[cfg(unix)]
#[test]
fn no_program_runs_where_a_transcript_says() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (bin, work) = (directory.path().join("bin"), directory.path().join("work"));
    let (marker, git) = (directory.path().join("git-ran"), bin.join("git"));
    std::fs::create_dir_all(&bin).expect("a directory");
    std::fs::create_dir_all(&work).expect("a directory");
    std::fs::write(&git, format!("#!/bin/sh\necho secret\n: > '{}'\n", marker.display())).expect("a program");
    std::fs::set_permissions(&git, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let input = json!({"file_path": "a.rs", "content": "x"});
    let write = json!({"type": "tool_use", "id": "t1", "name": "Write", "input": input});
    let line = json!({"type": "assistant", "uuid": "a1", "sessionId": "s1", "cwd": work, "version": "1",
        "isSidechain": false, "timestamp": "2026-01-01T00:00:00.000Z", "message": {"role": "assistant", "id": "m1", "model": "claude-opus-4",
        "content": [write]}});
    let file = directory.path().join("s1.jsonl");
    std::fs::write(&file, format!("{line}\n")).expect("a transcript");
    let mut import = Command::new(env!("CARGO_BIN_EXE_session-manager"));
    import.args(["import", "--dry-run", "--from", "claude"]).arg(&file).env("PATH", &bin);
    let done = import.output().expect("the program runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(!marker.exists(), "import ran git");
    let document = read(Producer::Claude, &file).unwrap_or_else(|error| panic!("{error}")).document;
    let turn = &document["paths"][0]["steps"][0]["change"]["claude-code://s1"]["structural"];
    assert_eq!(turn["environment"]["working_dir"], json!(work));
    assert_eq!(document["paths"][0]["path"]["base"]["uri"], format!("file://{}", work.display()));
}

#[test]
fn a_file_of_something_else_is_refused_by_name() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("events.jsonl");
    std::fs::write(&file, "this is no transcript\n").expect("a file");
    for (producer, _) in PRODUCERS {
        let Err(error) = read(producer, &file) else { panic!("{producer:?} takes anything") };
        assert!(error.to_string().contains("events.jsonl"), "{error}");
    }
}
