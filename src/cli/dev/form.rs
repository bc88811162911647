//! Owns: making one cluster of the nodes of a plan: the first founds it, each other one is added, then promoted.
//! What is done already is left as it is, so a second start changes nothing.

use std::time::{Duration, Instant};

use super::child::Child;
use super::plan::{Plan, Seat};
use crate::cli::cluster::admin::{Admin, AdminError};
use crate::proto::admin::{Health, Member, StatusResponse};

/// Recovery of a large log takes its time; a cluster that is not whole after this has a problem to look at.
const FORM_MAX: Duration = Duration::from_secs(120);
/// A change waits for a quorum and for a learner to catch up, each with limits of its own.
const CALL_MAX: Duration = Duration::from_secs(35);
const PAUSE: Duration = Duration::from_millis(50);

/// Returns when every node is a voter and follows a leader.
pub async fn form(plan: &Plan, children: &mut [Child]) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        if let Some(child) = children.iter_mut().find_map(|child| child.has_ended().is_some().then_some(child)) {
            let (node, log) = (child.seat().node, child.log());
            let words = child.last_words();
            return Err(format!("node {node} ended before the cluster was whole; its log {}:{words}", log.display()));
        }
        match step(plan).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if error.is_retryable() && begun.elapsed() < FORM_MAX => {}
            Err(error) => return Err(format!("the nodes do not become a cluster: {error}")),
        }
        if begun.elapsed() >= FORM_MAX {
            return Err(format!("the nodes are not a cluster after {} s; see their logs", FORM_MAX.as_secs()));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Does what is missing. True when nothing was.
async fn step(plan: &Plan) -> Result<bool, AdminError> {
    let Some((asked, status)) = most_knowing(plan).await? else { return Ok(false) };
    if status.leader == 0 {
        return Ok(false);
    }
    let mut admin = connect(asked).await?;
    for seat in &plan.seats {
        let address = seat.peer.to_string();
        let member = status.members.iter().find(|member| member.node == seat.node);
        match member {
            None => {
                // Its process may still be starting; the leader would wait for it.
                connect(seat).await?.status().await?;
                admin.add_learner(seat.node, &address).await?;
                admin.promote(seat.node).await?;
            }
            Some(Member { voter: false, .. }) => {
                admin.promote(seat.node).await?;
            }
            Some(Member { voter: true, .. }) => {}
        }
    }
    for seat in &plan.seats {
        if connect(seat).await?.status().await?.health() != Health::Ok {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The status of the node with the most members: a node that waits to be added knows none.
async fn most_knowing(plan: &Plan) -> Result<Option<(&Seat, StatusResponse)>, AdminError> {
    let mut best: Option<(&Seat, StatusResponse)> = None;
    for seat in &plan.seats {
        let status = connect(seat).await?.status().await?;
        if best.as_ref().is_none_or(|(_, known)| known.members.len() < status.members.len()) {
            best = Some((seat, status));
        }
    }
    Ok(best.filter(|(_, status)| !status.members.is_empty()))
}

async fn connect(seat: &Seat) -> Result<Admin, AdminError> {
    Admin::connect(&seat.peer.to_string(), "", CALL_MAX).await
}
