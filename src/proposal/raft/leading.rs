//! Owns: one attempt at a mutation on the node that leads: shrunk to what changes, stamped, replicated.
//! Never: retry, or ask another node.

use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use openraft::errors::{ClientWriteError, RaftError};
use tokio::time::timeout_at;

use super::courier::Courier;
use super::{hasty, quick};
use crate::events::EventSink;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command, Stamped};
use crate::proposal::mint::Mint;
use crate::replication::forward::{Attempt, Proposals};
use crate::replication::replica::Replica;
use crate::replication::types::{Reply, Types};
use crate::storage::log::command::Order;
use crate::storage::look;

/// The largest command the log takes. Requests are bounded far below this at the door.
pub const COMMAND_BYTES_MAX: usize = 64 << 20;

pub struct Leading {
    pub replica: Arc<Replica>,
    pub mint: Arc<dyn Mint>,
    pub courier: Courier,
    /// Where events go once they are committed.
    pub sink: Arc<dyn EventSink>,
}

impl Proposals for Leading {
    fn attempt(&self, stamped: Stamped, deadline: Instant) -> BoxFuture<'_, Attempt> {
        self.carry_out(stamped, deadline).boxed()
    }
}

impl Leading {
    /// Only a leader's state is worth comparing with, and only a leader's stamp counts.
    async fn carry_out(&self, stamped: Stamped, deadline: Instant) -> Attempt {
        if !self.replica.raft().is_leader() {
            let leader = crate::replication::leader::Leader::of(self.replica.raft());
            let leader = leader.map(|leader| leader.node).filter(|node| *node != *self.replica.raft().node_id());
            // A node that has stopped says so when it is asked to write.
            if leader.is_some() || self.replica.is_running() {
                return Attempt::NotLeader(leader);
            }
        }
        if let Some(answered) = quick::answer(self, &stamped, deadline).await {
            return answered;
        }
        match self.shrunk(&stamped.command) {
            Err(why) => return Attempt::Unavailable(why),
            Ok(None) => {}
            Ok(Some(shrunk)) => match self.write(Stamped { command: shrunk, ..stamped.clone() }, deadline).await {
                // Another update came between: say everything.
                Attempt::Answered(Ok(Answer::BaseMoved)) => {}
                attempt => return attempt,
            },
        }
        self.write(stamped, deadline).await
    }

    /// The command with less in it, where the state here tells the rest.
    fn shrunk(&self, command: &Command) -> Result<Option<Command>, String> {
        let Command::UpdateMessage(update) = command else { return Ok(None) };
        let shrunk = look(&**self.replica.store(), |view| update.shrunk(view));
        Ok(shrunk.map_err(|fault| fault.0)?.map(Command::UpdateMessage))
    }

    async fn write(&self, stamped: Stamped, deadline: Instant) -> Attempt {
        let order = Order::new(Stamped { stamp: self.mint.stamp(), ..stamped });
        let bytes = order.encoded().len();
        if bytes > COMMAND_BYTES_MAX {
            let why = format!("the request takes {bytes} bytes; at most {COMMAND_BYTES_MAX} can be stored at once");
            return Attempt::Answered(Err(Refusal::RequestInvalid(why)));
        }
        if Instant::now() >= deadline {
            return Attempt::Unavailable("the deadline passed before the mutation was proposed".to_owned());
        }
        if let Some(answered) = hasty::answer(self, &order) {
            return answered;
        }
        match timeout_at(deadline.into(), self.replica.raft().client_write(order)).await {
            Ok(Ok(written)) => match written.data {
                Reply::Answered(answer) => Attempt::Answered(answer),
                Reply::Nothing => Attempt::Unknown("a command was applied without an answer".to_owned()),
            },
            Ok(Err(error)) => not_written(error),
            Err(_) => Attempt::Unknown("the deadline passed while the mutation was being replicated".to_owned()),
        }
    }
}

/// What became of a mutation that was not answered.
fn not_written(error: RaftError<Types, ClientWriteError<Types>>) -> Attempt {
    match error {
        // Refused before it reached the log: nothing was written.
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => Attempt::NotLeader(to.leader_id),
        RaftError::APIError(
            error @ (ClientWriteError::ChangeMembershipError(_) | ClientWriteError::PreconditionFailed(_)),
        ) => Attempt::Unavailable(error.to_string()),
        // Another leader took over while it was on its way; it may have been committed all the same.
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => {
            Attempt::Unknown("another node took over while the mutation was being replicated".to_owned())
        }
        RaftError::Fatal(fatal) => Attempt::Unknown(format!("this node has stopped: {fatal}")),
    }
}
