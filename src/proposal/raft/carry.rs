//! Owns: bringing one mutation to whoever leads, and to its end: one hop, retried under the same request id when the
//! leader is lost, until the deadline.
//! Never: stamp anything; the leader does.

use std::sync::Arc;
use std::time::Instant;

use super::leading::{COMMAND_BYTES_MAX, Leading};
use super::{AGAIN_AFTER, Undone};
use crate::machine::ids::RequestId;
use crate::machine::refusal::Refusal;
use crate::machine::stamp::Stamp;
use crate::machine::{Answer, Command, Stamped};
use crate::planted::{self, Bug};
use crate::replication::forward::{Attempt, Proposals};
use crate::replication::leader::Leader;
use crate::storage::log::command::Order;

/// The leader replaces it.
const NO_STAMP: Stamp = Stamp { at_ms: 0, seed: 0 };

/// `repeated`: the caller may have sent it before, to any node.
pub async fn carry(
    leading: &Leading,
    command: Command,
    request_id: RequestId,
    repeated: bool,
    deadline: Instant,
) -> Result<Answer, Undone> {
    let raft = leading.replica.raft();
    let mut stamped = Stamped { stamp: NO_STAMP, request_id, repeated, command };
    let mut unknown = false;
    loop {
        let leader = Leader::of(raft);
        let attempt = match &leader {
            Some(leader) if leader.node != *raft.node_id() => forward(leading, leader, &stamped, deadline).await,
            Some(_) | None => leading.attempt(stamped.clone(), deadline).await,
        };
        let why = match attempt {
            Attempt::Answered(Ok(Answer::Forgotten)) => {
                let why = "it was repeated so late that nobody remembers whether it had happened".to_owned();
                return Err(Undone::OutcomeUnknown(why));
            }
            Attempt::Answered(answer) => return answer.map_err(Undone::Refused),
            Attempt::NotLeader(leader) => not_leading(leader),
            Attempt::Unavailable(why) => why,
            Attempt::Unknown(why) => {
                stamped.repeated = !planted::has(Bug::ForgetDedup);
                unknown = true;
                why
            }
        };
        if Instant::now() + AGAIN_AFTER >= deadline || !leading.replica.is_running() {
            // An attempt that may have been applied is not taken back by a later one that was not.
            return Err(if unknown { Undone::OutcomeUnknown(why) } else { Undone::Unavailable(why) });
        }
        Leader::changed(raft, &leader, AGAIN_AFTER).await;
    }
}

/// One attempt at another node.
async fn forward(leading: &Leading, leader: &Leader, stamped: &Stamped, deadline: Instant) -> Attempt {
    let order = Order::new(stamped.clone());
    let bytes = order.encoded().len();
    if bytes > COMMAND_BYTES_MAX {
        let why = format!("the request takes {bytes} bytes; at most {COMMAND_BYTES_MAX} can be stored at once");
        return Attempt::Answered(Err(Refusal::RequestInvalid(why)));
    }
    if Instant::now() >= deadline {
        return Attempt::Unavailable("the deadline passed before the mutation was proposed".to_owned());
    }
    leading.courier.deliver(Arc::new(leader.clone()), order.encoded().clone(), deadline).await
}

fn not_leading(leader: Option<u64>) -> String {
    match leader {
        Some(leader) => format!("this node does not lead the cluster, node {leader} does; retry"),
        None => "the cluster has no leader at the moment; retry later".to_owned(),
    }
}
