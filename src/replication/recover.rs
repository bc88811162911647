//! Owns: recovery of the state before consensus starts. The state may be missing or behind; it is rebuilt from the newest
//! snapshot, and consensus replays the log after it.

use tracing::{info, warn};

use super::checkpoint::Checkpoint;
use super::replica::StartError;
use crate::machine::refusal::Fault;
use crate::storage::Store;
use crate::storage::log::Log;
use crate::storage::snapshot::{Sealed, SnapshotError, Snapshots};

/// Pairs between two progress messages of a long installation.
const REPORT_EVERY_PAIRS: u64 = 500_000;

/// Refuses a log without a vote: a node that forgot its vote could vote twice in one term. Only the first entry of a
/// cluster is written before a vote.
pub fn check_vote(store: &dyn Store, snapshots: &Snapshots, log: &Log, group: u32) -> Result<(), StartError> {
    let logged = log.edges().last.map(|last| last.index);
    let known = logged.max(applied(store, group)?).max(snapshots.newest().map(|newest| newest.index));
    match known {
        Some(index) if index > 0 && log.vote().is_none() => Err(StartError::VoteLost { index }),
        Some(_) | None => Ok(()),
    }
}

/// Installs the newest snapshot if the state is behind it. A damaged snapshot is set aside if the log alone is enough.
pub fn recover(store: &dyn Store, snapshots: &Snapshots, log: &Log, group: u32) -> Result<(), StartError> {
    let applied = applied(store, group)?;
    if let Some(newest) = snapshots.newest()
        && applied < Some(newest.index)
    {
        info!(index = newest.index, bytes = newest.whole_bytes(), "rebuilding the state from the newest snapshot");
        match install(store, snapshots, &newest) {
            Ok(pairs) => info!(pairs, "the snapshot is installed"),
            Err(error) if reaches(log, applied) => {
                warn!(%error, "the snapshot cannot be used; the log alone is enough");
                snapshots.discard(&newest);
            }
            Err(error) => return Err(StartError::Snapshot(error)),
        }
    }
    let applied = self::applied(store, group)?;
    if reaches(log, applied) {
        return build_missing_snapshot(store, snapshots, log, group);
    }
    let next = applied.map_or(0, |index| index + 1);
    let purged = log.edges().purged.map_or(0, |purged| purged.index);
    Err(StartError::Lost { next, purged })
}

/// Builds a snapshot from the state if the log was purged and there is none: consensus needs one for every follower that
/// lacks purged entries.
fn build_missing_snapshot(store: &dyn Store, snapshots: &Snapshots, log: &Log, group: u32) -> Result<(), StartError> {
    if snapshots.newest().is_some() || log.edges().purged.is_none() {
        return Ok(());
    }
    warn!("there is no usable snapshot; building one from the state");
    let frozen = store.freeze().map_err(StartError::State)?;
    let checkpoint = Checkpoint::of(frozen.checkpoint.clone(), group).map_err(StartError::State)?;
    let index = checkpoint.applied.map_or(0, |applied| applied.index);
    let sealed = snapshots.build(index, checkpoint.encode(), frozen, &mut |_| Ok(())).map_err(StartError::Snapshot)?;
    snapshots.publish(sealed).map_err(StartError::Snapshot)?;
    Ok(())
}

fn applied(store: &dyn Store, group: u32) -> Result<Option<u64>, StartError> {
    let checkpoint = store.checkpoint().and_then(|mark| Checkpoint::of(mark, group)).map_err(StartError::State)?;
    Ok(checkpoint.applied.map(|applied| applied.index))
}

/// True if no entry after `applied` was purged.
fn reaches(log: &Log, applied: Option<u64>) -> bool {
    log.edges().purged.map(|purged| purged.index) <= applied
}

fn install(store: &dyn Store, snapshots: &Snapshots, sealed: &Sealed) -> Result<u64, SnapshotError> {
    let mut count = 0;
    let counted = snapshots.pairs(sealed)?.inspect(|_| {
        count += 1;
        if count % REPORT_EVERY_PAIRS == 0 {
            info!(pairs = count, "installing the snapshot");
        }
    });
    let damaged = |Fault(why)| SnapshotError::State(Fault(why));
    store.replace(Box::new(counted), sealed.checkpoint.clone()).map_err(damaged)?;
    Ok(count)
}
