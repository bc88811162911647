//! Owns: bringing one mutation to whoever leads, and to its end: one hop, retried under the same request id when the
//! leader is lost, until the deadline.
//! Never: stamp anything; the leader does.

use std::time::Instant;

use tokio::time::timeout_at;

use super::leading::{COMMAND_BYTES_MAX, Leading};
use super::{AGAIN_AFTER, Undone};
use crate::machine::ids::RequestId;
use crate::machine::refusal::Refusal;
use crate::machine::stamp::Stamp;
use crate::machine::{Answer, Command, Stamped};
use crate::replication::channels::{Purpose, never_sent};
use crate::replication::forward::{Attempt, Proposals};
use crate::replication::leader::Leader;
use crate::replication::wire;
use crate::storage::log::command::Order;

/// The leader replaces it.
const NO_STAMP: Stamp = Stamp { at_ms: 0, seed: 0 };

pub async fn carry(
    leading: &Leading,
    command: Command,
    request_id: RequestId,
    deadline: Instant,
) -> Result<Answer, Undone> {
    let raft = leading.replica.raft();
    let mut stamped = Stamped { stamp: NO_STAMP, request_id, repeated: false, command };
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
                stamped.repeated = true;
                why
            }
        };
        if Instant::now() + AGAIN_AFTER >= deadline || !leading.replica.is_running() {
            // An attempt that may have been applied is not taken back by a later one that was not.
            return Err(if stamped.repeated { Undone::OutcomeUnknown(why) } else { Undone::Unavailable(why) });
        }
        Leader::changed(raft, &leader, AGAIN_AFTER).await;
    }
}

/// One attempt at another node. Given up as soon as somebody else leads.
async fn forward(leading: &Leading, leader: &Leader, stamped: &Stamped, deadline: Instant) -> Attempt {
    let order = Order::new(stamped.clone());
    let bytes = order.encoded().len();
    if bytes > COMMAND_BYTES_MAX {
        let why = format!("the request takes {bytes} bytes; at most {COMMAND_BYTES_MAX} can be stored at once");
        return Attempt::Answered(Err(Refusal::RequestInvalid(why)));
    }
    let peers = &leading.replica.council().peers;
    let unreached = |why: &str| format!("node {} leads, but {why}", leader.node);
    let mut client = match peers.channels.peer(&leader.peer.address, Purpose::Call) {
        Ok(client) => client,
        Err(why) => return Attempt::Unavailable(unreached(&why)),
    };
    let hop = peers.me.hop(leader.node, &leader.peer);
    let Some(remaining) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
        return Attempt::Unavailable("the deadline passed before the mutation was proposed".to_owned());
    };
    let request = wire::spell_forward(hop, leader.term, &order, remaining);
    let before = Some(leader.clone());
    let answer = tokio::select! {
        answer = timeout_at(deadline.into(), client.forward(request)) => answer,
        () = Leader::changed(leading.replica.raft(), &before, remaining) => {
            return Attempt::Unknown(unreached("somebody else took over"));
        }
    };
    match answer {
        Ok(Ok(answer)) => wire::forwarded(answer.into_inner()),
        Ok(Err(status)) if never_sent(&status) => Attempt::Unavailable(unreached("it cannot be reached")),
        Ok(Err(status)) if status.code() == tonic::Code::FailedPrecondition => {
            Attempt::Unavailable(status.message().to_owned())
        }
        Ok(Err(status)) => Attempt::Unknown(unreached(status.message())),
        Err(_) => Attempt::Unknown(unreached("it does not answer")),
    }
}

fn not_leading(leader: Option<u64>) -> String {
    match leader {
        Some(leader) => format!("this node does not lead the cluster, node {leader} does; retry"),
        None => "the cluster has no leader at the moment; retry later".to_owned(),
    }
}
