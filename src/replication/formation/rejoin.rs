//! Owns: the return of a node whose membership ended while it was away, with the data it had.

use std::path::Path;
use std::time::Duration;

use tracing::warn;

use super::super::identity::{Identity, IdentityError};
use super::decide::State;
use super::forming::{FormSettings, ask_to_join};
use crate::storage::disk::Disk;

/// Rounds in which nobody answers. The cluster may be starting as a whole, so the node starts too.
const ROUNDS: usize = 8;
const ROUND_EVERY: Duration = Duration::from_millis(250);
/// What belongs to a membership.
const PARTS: [&str; 5] = ["formation", "log", "snapshots", "state", "identity"];

/// Whether the leader of this node's cluster says that the node is no member any more.
pub async fn was_removed(settings: &FormSettings, known: &Identity) -> bool {
    if known.cluster_id.is_empty() {
        return false;
    }
    let meeting = settings.meeting(&known.instance);
    for _ in 0..ROUNDS {
        let addresses = settings.discover.addresses().await.unwrap_or_default().into_iter().collect();
        let (answers, _) = meeting.all(&addresses).await;
        let ours = State::Member { cluster_id: known.cluster_id.clone() };
        let members: Vec<_> = answers.iter().filter(|answer| answer.met.state == ours).collect();
        if members.iter().any(|answer| answer.knows_caller) {
            return false;
        }
        for member in members {
            match ask_to_join(&meeting, &member.at, known.node_id).await {
                Ok(answer) if answer.cluster_id == known.cluster_id => return answer.node == 0,
                Ok(_) | Err(_) => {}
            }
        }
        tokio::time::sleep(ROUND_EVERY).await;
    }
    false
}

/// Moves the data of the ended membership into a directory of its own. The identity goes last: until then, a start
/// finds the old node.
pub fn set_aside(disk: &dyn Disk, dir: &Path, known: &Identity) -> Result<(), IdentityError> {
    let aside = dir.join(format!("removed-node-{}-{}", known.node_id, known.instance));
    disk.create_dir(&aside)?;
    let names = disk.list(dir)?;
    for part in PARTS.iter().filter(|part| names.iter().any(|name| name == *part)) {
        disk.rename(&dir.join(part), &aside.join(part))?;
    }
    disk.sync_dir(dir)?;
    warn!(node = known.node_id, cluster = known.cluster_id, kept = %aside.display(),
        "this node was removed from its cluster; its data is set aside and it joins as a new node");
    Ok(())
}
