//! Owns: making one cluster of the nodes of a plan. Node 1 founds it; each other node is added as a learner and then
//! promoted. Steps that are done already are skipped, so a second start changes nothing.

use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use super::DevError;
use super::child::Child;
use super::plan::{Plan, Seat};
use crate::access::tls::OperatorTls;
use crate::admin::{Admin, AdminError};
use crate::proto::admin::{Health, Member, StatusResponse};

/// Recovery of a large log takes time. A cluster that is not complete after this has a fault.
const FORM_MAX: Duration = Duration::from_secs(120);
/// A membership change waits for a quorum and for a learner to catch up. Both have shorter limits of their own.
const CALL_MAX: Duration = Duration::from_secs(35);
const RETRY_EVERY: Duration = Duration::from_millis(50);

/// Returns when every node is a voter and follows a leader.
pub async fn form(plan: &Plan, operator: Option<&OperatorTls>, children: &mut [Child]) -> Result<(), DevError> {
    let begun = Instant::now();
    loop {
        for child in children.iter_mut() {
            if let Some(how) = child.take_exit_status() {
                let (node, log, tail) = (child.seat().node, child.log(), child.log_tail());
                return Err(DevError::Exited { node, how, log, tail });
            }
        }
        match step(plan, operator).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if error.is_retryable() && begun.elapsed() < FORM_MAX => {}
            Err(error) => return Err(DevError::Form(error)),
        }
        if begun.elapsed() >= FORM_MAX {
            return Err(DevError::Late(FORM_MAX));
        }
        tokio::time::sleep(RETRY_EVERY).await;
    }
}

/// Takes the missing steps. True when the cluster was complete already.
async fn step(plan: &Plan, operator: Option<&OperatorTls>) -> Result<bool, AdminError> {
    let Some((asked, status)) = largest_membership(plan, operator).await? else { return Ok(false) };
    if status.leader == 0 {
        return Ok(false);
    }
    let mut admin = connect(asked, operator).await?;
    for seat in &plan.seats {
        let address = seat.peer.to_string();
        let member = status.members.iter().find(|member| member.node == seat.node);
        match member {
            None => {
                // The process may still be starting. Check that it answers first: the leader would wait for it.
                connect(seat, operator).await?.status().await?;
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
        if connect(seat, operator).await?.status().await?.health() != Health::Ok {
            return Ok(false);
        }
        // A node serves its peers before its clients: a cluster of one is healthy before it accepts clients.
        if TcpStream::connect(seat.client).await.is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The status of the node that knows the most members. A node that waits to be added knows none.
async fn largest_membership<'a>(
    plan: &'a Plan,
    operator: Option<&OperatorTls>,
) -> Result<Option<(&'a Seat, StatusResponse)>, AdminError> {
    let mut best: Option<(&Seat, StatusResponse)> = None;
    for seat in &plan.seats {
        let status = connect(seat, operator).await?.status().await?;
        if best.as_ref().is_none_or(|(_, known)| known.members.len() < status.members.len()) {
            best = Some((seat, status));
        }
    }
    Ok(best.filter(|(_, status)| !status.members.is_empty()))
}

async fn connect(seat: &Seat, operator: Option<&OperatorTls>) -> Result<Admin, AdminError> {
    Admin::connect_over(operator, &seat.peer.to_string(), "", CALL_MAX).await
}
