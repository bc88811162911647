//! Owns: raising the level of the cluster (`machine/level.rs`). The leader raises it when an operator says so, or when a
//! call first needs it; in both cases only if every member knows the level. A node that does not know it cannot become a
//! member afterwards.

use std::fmt;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::time::timeout;
use tonic::Status;
use tracing::info;

use super::RAFT_GROUP;
use super::attempt::Attempt;
use super::leader_write::LeaderWrite;
use super::membership::MembershipChanges;
use crate::machine::apply::beside::Beside;
use crate::machine::level::{self, FIRST, NEWEST, RaiseLevel};
use crate::machine::refusal::{Fault, Refusal};
use crate::machine::{Command, Stamped};
use crate::proto::admin::{Call, StatusRequest, StatusResponse};
use crate::storage::with_view;

const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Why the level of the cluster stays as it is.
#[derive(Debug)]
pub enum NotRaised {
    /// The setting `max_level` of this leader.
    Held {
        level: u32,
        max: u32,
    },
    /// A member runs an older build.
    Older {
        node: u64,
        knows: u32,
        version: String,
        level: u32,
    },
    /// A member does not say what it knows.
    Silent {
        node: u64,
        why: String,
    },
    Broken(Fault),
    /// It was not committed, or nobody knows.
    Failed(Attempt),
}

impl fmt::Display for NotRaised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotRaised::Held { level, max } => {
                write!(f, "this needs level {level} of the cluster, and the setting max_level holds it at {max}")
            }
            NotRaised::Older { node, knows, version, level } => write!(
                f,
                "this needs level {level} of the cluster, but node {node} (version {version}) knows level {knows}: \
                 upgrade that node first"
            ),
            NotRaised::Silent { node, why } => {
                write!(f, "the level of the cluster cannot be raised while node {node} does not answer: {why}")
            }
            NotRaised::Broken(fault) => write!(f, "{fault}"),
            NotRaised::Failed(attempt) => write!(f, "the level of the cluster was not raised: {attempt:?}"),
        }
    }
}

impl std::error::Error for NotRaised {}

impl From<NotRaised> for Attempt {
    fn from(why: NotRaised) -> Attempt {
        match why {
            // A retry would not help: an operator must do something first.
            NotRaised::Held { .. } | NotRaised::Older { .. } => {
                Attempt::Answered(Err(Refusal::RequestInvalid(why.to_string())))
            }
            NotRaised::Silent { .. } | NotRaised::Broken(_) | NotRaised::Failed(_) => {
                Attempt::Unavailable(why.to_string())
            }
        }
    }
}

/// The level that a node knows, by its status. Version 0.1 does not say: it knows the first.
fn known_to(status: &StatusResponse) -> u32 {
    status.knows_level.max(FIRST)
}

impl MembershipChanges {
    /// The level of the cluster, as far as this node has applied the log.
    pub fn level(&self) -> Result<u32, Fault> {
        with_view(&*self.store, level::level)
    }

    /// The status of the node at an address, whatever its id and cluster.
    async fn status_at(&self, address: &str) -> Result<StatusResponse, Status> {
        let client = self.peers.channels.admin(address);
        let mut client = client.map_err(|error| Status::unavailable(error.to_string()))?;
        // The cluster is not named: a node that waits for an invitation has none.
        let call = Call { protocol: 1, group: RAFT_GROUP, ..Call::default() };
        match timeout(ANSWER_MAX, client.status(StatusRequest { call: Some(call) })).await {
            Ok(answered) => Ok(answered?.into_inner()),
            Err(_) => Err(Status::unavailable("it does not answer in time")),
        }
    }

    /// Refuses a node that could not read the log of this cluster, before it is invited.
    pub(super) async fn check_knows_level(&self, node: u64, address: &str) -> Result<(), Status> {
        let level = self.level().map_err(|fault| Status::unavailable(fault.0))?;
        if level == FIRST {
            return Ok(());
        }
        let status = self.status_at(address).await?;
        if known_to(&status) >= level {
            return Ok(());
        }
        Err(Status::failed_precondition(too_old(&format!("node {node}"), &status.version, known_to(&status), level)))
    }
}

/// The refusal of a node that knows too little.
pub fn too_old(node: &str, version: &str, knows: u32, level: u32) -> String {
    format!(
        "{node} runs version {version}, which knows level {knows}; the cluster is at level {level}: start it with a \
         newer build"
    )
}

impl LeaderWrite {
    /// Makes sure that the log may hold a command of this level.
    pub async fn reach_level(&self, needed: u32, deadline: Instant) -> Result<(), NotRaised> {
        let membership = self.replica.membership();
        if needed == FIRST || membership.level().map_err(NotRaised::Broken)? >= needed {
            return Ok(());
        }
        self.raise_level(needed, deadline).await.map(|_| ())
    }

    /// Raises the level of the cluster. Returns the level from now on.
    pub async fn raise_level(&self, level: u32, deadline: Instant) -> Result<u32, NotRaised> {
        let membership = self.replica.membership();
        let max = self.replica.max_level().unwrap_or(NEWEST).min(NEWEST);
        if level > max {
            return Err(NotRaised::Held { level, max });
        }
        // No node becomes a member meanwhile.
        let _same_members = membership.taking_in.lock().await;
        let now = membership.level().map_err(NotRaised::Broken)?;
        if now >= level {
            return Ok(now);
        }
        let metrics = membership.metrics();
        let members = metrics.membership_config.membership().nodes();
        let others = members.filter(|(node, _)| **node != membership.peers.local.node);
        let asked = others.map(|(node, peer)| async { (*node, membership.status_at(&peer.address).await) });
        for (node, answer) in join_all(asked).await {
            let status = answer.map_err(|status| NotRaised::Silent { node, why: status.message().to_owned() })?;
            if known_to(&status) < level {
                let (knows, version) = (known_to(&status), status.version);
                return Err(NotRaised::Older { node, knows, version, level });
            }
        }
        let command = Command::Beside(Beside::Level(RaiseLevel { level }));
        let (stamp, request_id) = (self.mint.stamp(), self.mint.request_id());
        match self.write(Stamped { stamp, request_id, is_retry: false, scope: None, command }, deadline).await {
            Attempt::Answered(Ok(_)) => {
                info!(from = now, to = level, "the level of the cluster was raised");
                Ok(level)
            }
            attempt => Err(NotRaised::Failed(attempt)),
        }
    }
}
