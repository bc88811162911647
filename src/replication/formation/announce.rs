//! Owns: what a member tells its cluster by itself: where it is now, if that changed; and what it tells its operator: that
//! it was removed, or that another cluster answers behind the name it is told to look at.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use tracing::{error, info, warn};

use super::super::leader::Leader;
use super::super::membership::MembershipChanges;
use super::decide::State;
use super::discovery::Discover;
use super::forming::ask_to_join;
use super::meeting::{Meeting, warn_about_clocks};

const EVERY: Duration = Duration::from_secs(2);
/// How often a member that lacks nothing looks for strangers behind its name.
const LOOK_AROUND_ROUNDS: u32 = 15;

/// A member that was told where to look.
pub struct Announce {
    pub discover: Discover,
    pub meeting: Meeting,
    pub membership: Arc<MembershipChanges>,
}

impl Announce {
    /// Runs for as long as this node is a member.
    pub async fn run(self) {
        let mut said = String::new();
        for round in 0_u32.. {
            tokio::time::sleep(EVERY).await;
            let at_home = self.is_known() && Leader::of(&self.membership.raft).is_some();
            if !at_home || round % LOOK_AROUND_ROUNDS == 0 {
                let line = self.look_around(at_home).await;
                if let Some(line) = &line
                    && *line != said
                {
                    error!("{line}");
                }
                said = line.unwrap_or_default();
            }
        }
    }

    /// The cluster knows this node as it is now.
    fn is_known(&self) -> bool {
        let members = self.membership.raft.server_metrics().borrow_watched().membership_config.clone();
        let own = members.membership().get_node(&self.membership.peers.local.node).cloned().unwrap_or_default();
        let who = &self.meeting.own;
        (&own.address, &own.instance, &own.name) == (&who.address, &who.instance, &who.name)
    }

    /// Returns what the operator must know.
    async fn look_around(&self, at_home: bool) -> Option<String> {
        let addresses = match self.discover.addresses().await {
            Ok(addresses) => addresses.into_iter().collect(),
            Err(why) => {
                warn!(%why, "discover");
                return None;
            }
        };
        let (answers, _) = self.meeting.all(&addresses).await;
        warn_about_clocks(&answers);
        let local = &self.membership.peers.local;
        let ours = local.data_dir.identity().cluster_id;
        let mut strange = None;
        for answer in answers {
            match &answer.met.state {
                State::Member { cluster_id } if *cluster_id != ours => {
                    strange = Some(format!(
                        "a member of cluster {cluster_id} answers at {}, but this node belongs to cluster {ours}: let \
                         discover name the nodes of one cluster",
                        answer.at
                    ));
                }
                State::Member { .. } if !at_home => match ask_to_join(&self.meeting, &answer.at, local.node).await {
                    Ok(told) if told.cluster_id == ours && told.node == 0 => {
                        return Some(format!(
                            "this node {} was removed from cluster {ours}: stop it, or start it with --rejoin to join \
                             as a new node",
                            local.node
                        ));
                    }
                    Ok(_) => {
                        info!(address = self.meeting.own.address, "the cluster knows where this node is");
                        return None;
                    }
                    Err(why) => tracing::debug!(%why, at = answer.at, "not announced"),
                },
                State::Member { .. } | State::Forming { .. } | State::Silent => {}
            }
        }
        strange
    }
}
