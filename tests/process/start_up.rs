//! Laws of starting the program: a refusal is one clear line and exit code 2, never a panic. Also the commands `call`
//! and `tail`.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::client::{Client, user_message};
use crate::node::{NodeProcess, command};

/// Runs the program, which must refuse to start. Returns its message.
fn refused(data_dir: &Path, arguments: &[&str]) -> String {
    let output = command(data_dir, arguments).stderr(Stdio::piped()).output().expect("the binary runs");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(!message.contains("panicked") && !message.contains("backtrace"), "{message}");
    let lines: Vec<&str> = message.lines().filter(|line| line.starts_with("session-manager: ")).collect();
    assert_eq!(lines.len(), 1, "one clear line: {message}");
    lines[0].to_owned()
}

fn program(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_session-manager"));
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null()).output().expect("the binary runs")
}

#[test]
fn a_second_process_on_one_data_directory_is_refused() {
    for adapter in ["raft", "fs"] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let data = dir.path().join("data");
        let mut first = NodeProcess::start(&data, &["--adapter", adapter]);
        let why = refused(&data, &["--adapter", adapter]);
        assert!(why.contains(&*data.to_string_lossy()), "{why}");
        assert!(first.is_running());
    }
}

#[test]
fn a_busy_port_is_refused_with_its_address() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("its address").to_string();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = dir.path().join("data");
    let output = program(&["--listen", &address, "--data-dir", &data.to_string_lossy()]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(&address), "{message}");
}

#[test]
fn a_data_directory_that_is_a_file_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = dir.path().join("data");
    std::fs::write(&data, "not a directory").expect("a written file");
    for adapter in ["raft", "fs"] {
        let why = refused(&data, &["--adapter", adapter]);
        assert!(why.contains(&*data.to_string_lossy()), "{why}");
    }
}

#[test]
fn a_foreign_data_directory_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("a directory");
    std::fs::write(data.join("holiday.jpg"), "not ours").expect("a written file");
    let why = refused(&data, &["--adapter", "raft"]);
    assert!(why.contains(&*data.to_string_lossy()), "{why}");
    let left: Vec<_> =
        std::fs::read_dir(&data).expect("the directory").flatten().map(|file| file.file_name()).collect();
    assert_eq!(left, ["holiday.jpg"]);
}

#[test]
fn a_bad_configuration_is_refused_with_the_field() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = dir.path().join("data");
    let config = dir.path().join("config.yaml");
    let path = config.to_string_lossy().into_owned();
    std::fs::write(&config, "max_list_limit: many\n").expect("a written file");
    let why = refused(&data, &["--config", &path]);
    assert!(why.contains("max_list_limit"), "{why}");
    std::fs::write(&config, "max_lst_limit: 3\n").expect("a written file");
    let why = refused(&data, &["--config", &path]);
    assert!(why.contains("max_lst_limit"), "{why}");
    std::fs::remove_file(&config).expect("the file is removed");
    let why = refused(&data, &["--config", &path]);
    assert!(why.contains(&path), "{why}");
    assert!(!data.exists(), "a refused configuration leaves nothing behind");
}

/// One file for all nodes of a cluster, whose addresses are arguments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arguments_complete_a_configuration_that_is_not_valid_alone() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = dir.path().join("config.yaml");
    let path = config.to_string_lossy().into_owned();
    let places = dir.path().join("places");
    std::fs::write(&places, "").expect("a written file");
    std::fs::write(&config, format!("discover: file:{}\n", places.display())).expect("a written file");
    let why = refused(&dir.path().join("refused"), &["--config", &path]);
    assert!(why.contains(&path) && why.contains("peer_listen: missing"), "{why}");
    let listen = ["--config", &path, "--peer-listen", "127.0.0.1:0"];
    let why = refused(&dir.path().join("other"), &listen);
    assert!(why.contains("peer_listen: port 0"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edited_configuration_is_applied_or_refused_while_the_node_runs() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = dir.path().join("config.yaml");
    let edit = |text: &str| std::fs::write(&config, text).expect("a written file");
    edit("max_list_limit: 2\ndefault_list_limit: 2\n");
    let node = NodeProcess::start(&dir.path().join("data"), &["--config", &config.to_string_lossy()]);
    let client = Client::connect(&node.url()).await;
    for _ in 0..3 {
        client.create().await;
    }
    let page = async || client.call("session::list", json!({ "limit": 9 })).await["sessions"].as_array().map(Vec::len);
    let reload = async || client.call("session::on-config-change", json!({})).await["ok"].clone();
    let status = async || client.call("session::config-status", json!({})).await;
    assert_eq!(page().await, Some(2));

    edit("max_list_limit: 3\ndefault_list_limit: 2\n");
    assert_eq!(reload().await, true);
    assert_eq!(page().await, Some(3));

    for bad in ["max_list_limit: many\n", "node_id: 7\n", "adapter: {name: fs}\n", "}"] {
        edit(bad);
        assert_eq!(reload().await, false, "{bad}");
        assert_eq!(status().await["last_outcome"], "rejected", "{bad}");
        assert_eq!(page().await, Some(3), "the last good configuration stays: {bad}");
    }
    edit("max_list_limit: 1\ndefault_list_limit: 1\n");
    assert_eq!(reload().await, true);
    assert_eq!(page().await, Some(1));
    // The node also reloads the file whenever it changes, so it may have refused a bad one twice.
    assert!(status().await["rejected_reloads"].as_u64() >= Some(4));
}

#[test]
fn the_manifest_is_printed_without_side_effects() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let output = Command::new(env!("CARGO_BIN_EXE_session-manager"))
        .arg("--manifest")
        .current_dir(dir.path())
        .output()
        .expect("the binary runs");
    assert!(output.status.success());
    let manifest: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(manifest["name"], "session-manager");
    for field in ["version", "description", "default_config", "supported_targets"] {
        assert!(!manifest[field].is_null(), "{field}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("the directory").count(), 0);
}

#[test]
fn every_command_helps_with_examples() {
    for command in
        [&["--help"][..], &["serve", "--help"], &["call", "--help"], &["tail", "--help"], &["bench", "--help"]]
    {
        let output = program(command);
        assert!(output.status.success(), "{command:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("Examples:"), "{command:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_prints_the_answer_or_the_error_and_tail_prints_events() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    let url = node.url();
    let call = |function: &str, json: &str| program(&["call", function, json, "--url", &url]);

    let created = call("session::ensure", r#"{"session_id": "by hand"}"#);
    assert!(created.status.success(), "{created:?}");
    let created: Value = serde_json::from_slice(&created.stdout).expect("JSON");
    assert_eq!(created["created"], true);

    let unknown = call("session::messages", r#"{"session_id": "nobody"}"#);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).starts_with("session/not_found: "), "{unknown:?}");
    assert!(unknown.stdout.is_empty());
    assert_eq!(call("session::nothing", "{}").status.code(), Some(1));

    tail_prints_an_append(&node).await;
}

async fn tail_prints_an_append(node: &NodeProcess) {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let mut tail = tokio::process::Command::new(env!("CARGO_BIN_EXE_session-manager"))
        .args(["tail", "--session", "by hand", "--url", &node.url()])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("tail starts");
    let mut lines = BufReader::new(tail.stdout.take().expect("its output")).lines();
    let client = Client::connect(&node.url()).await;
    // The test cannot see when `tail` is subscribed, so it appends until `tail` prints an event.
    let line = loop {
        let append = json!({ "session_id": "by hand", "message": user_message("hello") });
        client.call("session::append", append).await;
        if let Ok(line) = tokio::time::timeout(std::time::Duration::from_millis(100), lines.next_line()).await {
            break line.expect("a readable line").expect("a line");
        }
    };
    let event: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(event["type"], "session::message-added");
    assert_eq!(event["payload"]["message"]["content"][0]["text"], "hello");
    assert!(event["seq"].is_u64() && event["position"].is_string(), "{event}");
    let pid = tail.id().expect("tail runs").to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
    assert_eq!(tail.wait().await.expect("tail ends").code(), Some(0));
}
