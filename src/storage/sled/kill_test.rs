//! The most important law, tested with a real process: after a kill at any time, state and checkpoint on disk agree.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::store_test::{checkpoint, content, entry, meta};
use super::*;
use crate::machine::change::{Change, SessionChange};
use crate::storage::state::memory::MemoryStore;

const DIR_VARIABLE: &str = "SESSION_MANAGER_KILL_TEST_DIR";

/// The `n`-th commit, the same in every process.
fn commit(store: &dyn Store, n: u64) {
    let session = (n % 7) as u8;
    let mut changes =
        vec![meta(session, n as i64), entry(session, (n % 11) as u8, &format!("{n} {}", "x".repeat(400)))];
    if n.is_multiple_of(13) {
        changes.push(Change::Session(format!("s{session}").into(), SessionChange::DeleteEntries));
    }
    store.commit(&changes, checkpoint(&n.to_string())).unwrap();
}

fn reached(store: &dyn Store) -> u64 {
    let checkpoint = store.checkpoint().unwrap().unwrap_or_else(|| checkpoint("0"));
    std::str::from_utf8(&checkpoint).unwrap().parse().unwrap()
}

/// Runs in a process of its own, which the test below kills.
#[test]
#[ignore = "the victim of whenever_it_is_killed_the_state_is_that_of_its_checkpoint"]
fn victim() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE) else { return };
    // Small layers, so that a kill often meets a flush.
    let bounds = Bounds { flush_bytes: 8 << 10, ..Bounds::default() };
    let store = SledStore::open_within(Path::new(&dir), bounds).unwrap();
    println!("\nopen");
    for n in reached(&store) + 1.. {
        commit(&store, n);
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn whenever_it_is_killed_the_state_is_that_of_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let twin = MemoryStore::new();
    for lifetime_ms in [90, 260, 900] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "storage::sled::kill_test::victim", "--ignored", "--nocapture"])
            .env(DIR_VARIABLE, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "open"), "the victim opened its store");
        std::thread::sleep(Duration::from_millis(lifetime_ms));
        child.kill().unwrap();
        child.wait().unwrap();

        let store = SledStore::open(dir.path()).unwrap();
        for n in reached(&twin) + 1..=reached(&store) {
            commit(&twin, n);
        }
        assert!(
            content(&store) == content(&twin),
            "state and checkpoint disagree after a kill at checkpoint {}",
            reached(&store)
        );
    }
    assert!(reached(&twin) > 0, "something reached the disk");
}
