//! Tests of damaged files: one flipped bit in any file of a node is found or has no effect. The node never serves wrong
//! data, and the error names a file that cannot be repaired.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

use super::tests::{World, fill};
use super::*;
use crate::mint::SystemMint;

type Pairs = Vec<(Vec<u8>, bytes::Bytes)>;

/// Flips in one run; CI has little time, `DAMAGE_FLIPS=1000` takes more.
fn flips() -> u64 {
    std::env::var("DAMAGE_FLIPS").ok().and_then(|count| count.parse().ok()).unwrap_or(120)
}

fn settings(world: &World) -> RaftSettings {
    RaftSettings {
        snapshot_every: 60,
        keep_entries: 20,
        log: crate::storage::log::Limits { segment_bytes: 4 << 10, ..Default::default() },
        ..world.settings()
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for found in fs::read_dir(from).unwrap() {
        let (path, name) = found.map(|found| (found.path(), found.file_name())).unwrap();
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else {
            fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = super::tests::walk(dir);
    files.retain(|path| fs::metadata(path).unwrap().len() > 0);
    files.sort();
    files
}

/// Everything the node would serve, or why it cannot.
fn served(adapter: &RaftAdapter) -> Result<Pairs, machine::refusal::Fault> {
    adapter.replica().store().freeze()?.pairs.collect()
}

/// What a node with this directory serves in the end: after damage was found, once more from the start.
async fn outcome(world: &World) -> Result<Pairs, String> {
    let mut why = String::new();
    for _ in 0..2 {
        let opened = RaftAdapter::open(settings(world), Arc::new(SystemMint::default()), world.heard()).await;
        let adapter = opened.map_err(|error| error.to_string())?;
        let read = served(&adapter);
        adapter.shutdown().await;
        match read {
            Ok(pairs) => return Ok(pairs),
            Err(fault) => why = fault.0,
        }
    }
    Err(format!("still damaged after a restart: {why}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_flipped_bit_in_any_file_is_found_or_harmless() {
    let world = World::new();
    let adapter = world.open_with(settings(&world)).await;
    fill(&adapter, 12).await;
    let raft = adapter.replica().raft().clone();
    let purged = |metrics: &openraft::RaftMetrics<crate::replication::types::Types>| metrics.purged.is_some();
    raft.wait(Some(std::time::Duration::from_secs(20))).metrics(purged, "a snapshot and a purge").await.unwrap();
    let truth = served(&adapter).unwrap();
    adapter.shutdown().await;
    drop((adapter, raft));

    let template = TempDir::new().unwrap();
    copy(world.dir.path(), template.path());
    let names = files(template.path());
    assert!(names.len() > 6, "{names:?}");
    assert!(names.iter().any(|name| name.ends_with("state/gen-1/bodies-1")), "{names:?}");
    let mut refused = 0;
    for seed in 0..flips() {
        let random = xxh3_64(&seed.to_be_bytes()) as usize;
        let world = World::new();
        copy(template.path(), world.dir.path());
        let name = names[seed as usize % names.len()].strip_prefix(template.path()).unwrap();
        let path = world.dir.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        let (at, bit) = (random / 8 % bytes.len(), random % 8);
        bytes[at] ^= 1 << bit;
        fs::write(&path, &bytes).unwrap();
        let place = format!("seed {seed}: bit {bit} of byte {at} of {}", name.display());
        match outcome(&world).await {
            Ok(pairs) => assert!(pairs == truth, "{place}: something else was served"),
            Err(why) => {
                refused += 1;
                let file = name.file_name().unwrap().to_string_lossy().into_owned();
                assert!(why.contains(&file), "{place}: {why}");
            }
        }
    }
    eprintln!("{refused} of {} flips kept the node from starting, the others did no harm", flips());
}
