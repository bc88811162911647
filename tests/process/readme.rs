//! README and the examples: README prints the tested files, its links lead to files, and the examples run.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::node::NodeProcess;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn readme_prints_the_curl_quickstart_and_links_to_the_other_examples() {
    let readme = read("README.md");
    let block = format!("```sh\n{}```\n", read("examples/curl/quickstart.sh"));
    assert!(readme.contains(&block), "README's curl block differs from examples/curl/quickstart.sh");
    for example in ["examples/rust", "examples/python", "examples/node", "examples/browser"] {
        let is_linked = links(&readme).iter().any(|link| link.starts_with(example));
        assert!(is_linked, "README has no link to {example}");
    }
}

#[test]
fn links_in_the_documents_lead_to_files() {
    let mut documents = vec![root().join("README.md"), root().join("examples/README.md")];
    for directory in ["architecture", "architecture/decisions"] {
        let files = std::fs::read_dir(root().join(directory)).expect("a directory of documents").flatten();
        documents.extend(files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    for document in documents {
        let text = std::fs::read_to_string(&document).expect("a readable document");
        let beside = document.parent().expect("a directory");
        for target in links(&text) {
            assert!(beside.join(target).exists(), "{}: {target} does not exist", document.display());
        }
    }
}

/// The targets of Markdown links to files of this repository.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let targets = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    targets.map(|target| target.split('#').next().unwrap_or(target)).collect()
}

#[test]
fn the_quickstarts_in_rust_and_curl_run_against_a_fresh_node() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    run(Command::new(example("quickstart")).env("III_URL", node.url()));
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("SKIPPED: curl is not installed; its quickstart was not run");
        return;
    }
    run(Command::new("sh")
        .arg(root().join("examples/curl/quickstart.sh"))
        .env("NODE_URL", format!("http://{}", node.address))
        .env("SESSION_MANAGER", env!("CARGO_BIN_EXE_session-manager")));
}

fn run(command: &mut Command) {
    let output = command.env("OTEL_ENABLED", "false").output().expect("the quickstart starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    for wanted in ["message-added", "message-updated", "An ordered list of facts."] {
        assert!(printed.contains(wanted), "{wanted} is missing:\n{printed}");
    }
}

/// `cargo test` builds the examples beside the tests: target/<profile>/examples.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps");
    profile.join("examples").join(name)
}
