//! Owns: bringing the state up to where the log can take over, before consensus starts. The state is a view that may
//! be missing or behind; the truth is the newest snapshot plus the log.

use tracing::{info, warn};

use super::mark::Mark;
use super::replica::StartError;
use crate::machine::refusal::Fault;
use crate::storage::Store;
use crate::storage::log::Log;
use crate::storage::snapshot::{Sealed, SnapshotError, Snapshots};

/// How often a long installation says how far it is, in pairs.
const SAY_EVERY_PAIRS: u64 = 500_000;

/// Refuses a log that lost what must never be lost: a node that forgot its vote could vote twice in one term.
/// Only the very first entry of a cluster is written before a vote is.
pub fn check_vote(store: &dyn Store, snapshots: &Snapshots, log: &Log, group: u32) -> Result<(), StartError> {
    let logged = log.edges().last.map(|last| last.index);
    let known = logged.max(applied(store, group)?).max(snapshots.newest().map(|newest| newest.index));
    match known {
        Some(index) if index > 0 && log.vote().is_none() => Err(StartError::VoteLost { index }),
        Some(_) | None => Ok(()),
    }
}

/// Installs the newest snapshot where the state is behind it. A damaged one is set aside when the log alone will do.
pub fn recover(store: &dyn Store, snapshots: &Snapshots, log: &Log, group: u32) -> Result<(), StartError> {
    let applied = applied(store, group)?;
    if let Some(newest) = snapshots.newest()
        && applied < Some(newest.index)
    {
        info!(index = newest.index, bytes = newest.bytes, "rebuilding the state from the newest snapshot");
        match install(store, snapshots, &newest) {
            Ok(pairs) => info!(pairs, "the snapshot is installed"),
            Err(error) if reaches(log, applied) => {
                warn!(%error, "the snapshot cannot be used; the log reaches back far enough to do without it");
                snapshots.discard(&newest);
            }
            Err(error) => return Err(StartError::Snapshot(error)),
        }
    }
    let applied = self::applied(store, group)?;
    if reaches(log, applied) {
        return stand_in(store, snapshots, log, group);
    }
    let next = applied.map_or(0, |index| index + 1);
    let purged = log.edges().purged.map_or(0, |purged| purged.index);
    Err(StartError::Lost { next, purged })
}

/// Builds a snapshot from the state where the log does not begin at the beginning and there is none: consensus counts on
/// one for every follower that needs what was purged.
fn stand_in(store: &dyn Store, snapshots: &Snapshots, log: &Log, group: u32) -> Result<(), StartError> {
    if snapshots.newest().is_some() || log.edges().purged.is_none() {
        return Ok(());
    }
    warn!("there is no usable snapshot; building one from the state");
    let frozen = store.freeze().map_err(StartError::State)?;
    let mark = Mark::of(frozen.mark, group).map_err(StartError::State)?;
    let index = mark.applied.map_or(0, |applied| applied.index);
    let sealed = snapshots.write(index, mark.print(), frozen.pairs).map_err(StartError::Snapshot)?;
    snapshots.publish(sealed).map_err(StartError::Snapshot)?;
    Ok(())
}

fn applied(store: &dyn Store, group: u32) -> Result<Option<u64>, StartError> {
    let mark = store.mark().and_then(|mark| Mark::of(mark, group)).map_err(StartError::State)?;
    Ok(mark.applied.map(|applied| applied.index))
}

/// True when no entry after `applied` was purged.
fn reaches(log: &Log, applied: Option<u64>) -> bool {
    log.edges().purged.map(|purged| purged.index) <= applied
}

fn install(store: &dyn Store, snapshots: &Snapshots, sealed: &Sealed) -> Result<u64, SnapshotError> {
    let mut count = 0;
    let counted = snapshots.pairs(sealed)?.inspect(|_| {
        count += 1;
        if count % SAY_EVERY_PAIRS == 0 {
            info!(pairs = count, "installing the snapshot");
        }
    });
    let damaged = |Fault(why)| SnapshotError::State(Fault(why));
    store.replace(Box::new(counted), sealed.mark.clone()).map_err(damaged)?;
    Ok(count)
}
