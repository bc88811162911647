//! Owns: keeping the log within its bytes. openraft counts entries; entries may be large.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::replica::Raft;
use crate::storage::log::Log;
use crate::storage::snapshot::Snapshots;

const EVERY: Duration = Duration::from_secs(1);

/// Entries kept behind the snapshot even then: a purge must never run into what is being applied.
const KEEP_ENTRIES: u64 = 1000;

/// Builds a snapshot when the log has outgrown `bytes_max`, and purges the log behind it.
pub async fn tend(raft: Raft, log: Log, snapshots: Arc<Snapshots>, bytes_max: u64) {
    let mut asked = None;
    loop {
        tokio::time::sleep(EVERY).await;
        if log.bytes() > bytes_max && !step(&raft, &log, &snapshots, &mut asked).await {
            return;
        }
    }
}

/// Purges what the newest snapshot covers, or asks for a newer one. False once consensus has stopped.
async fn step(raft: &Raft, log: &Log, snapshots: &Snapshots, asked: &mut Option<Option<u64>>) -> bool {
    let newest = snapshots.newest().map(|newest| newest.index);
    let purged = log.edges().purged.map_or(0, |purged| purged.index);
    let purgeable = newest.map_or(0, |index| index.saturating_sub(KEEP_ENTRIES));
    let done = if purgeable > purged {
        info!(bytes = log.bytes(), upto = purgeable, "the log is large: purging what the snapshot holds");
        raft.trigger().purge_log(purgeable).await
    } else if *asked != Some(newest) {
        info!(bytes = log.bytes(), "the log is large: building a snapshot");
        *asked = Some(newest);
        raft.trigger().snapshot().await
    } else {
        Ok(())
    };
    done.inspect_err(|fatal| warn!(why = %fatal, "the log is not tended any more")).is_ok()
}
