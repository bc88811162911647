//! Owns: carrying out decisions through the replicated log: bounded in flight, stamped here, honest about the outcome.
//! Never: answer before the log is durable, or read what a quorum does not vouch for.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use openraft::ReadPolicy;
use openraft::errors::{ClientWriteError, LinearizableReadError, RaftError};
use tokio::sync::Semaphore;
use tokio::time::timeout_at;
use tracing::{info, warn};

use super::mint::Mint;
use super::{Adapter, Undone};
use crate::events::EventSink;
use crate::machine::refusal::Refusal;
use crate::machine::{self, Answer, Command, Found, Query, Stamped};
use crate::replication::GROUP;
use crate::replication::identity::{DataDir, state_dir};
use crate::replication::mark::Mark;
use crate::replication::replica::Replica;
pub use crate::replication::replica::{RaftSettings, StartError};
use crate::replication::types::{Reply, Types};
use crate::storage::log::command::Order;
use crate::storage::sled::{OpenFault, SledStore};
use crate::storage::{Store, look};

/// Mutations in flight at once: a second's worth at the peak. Beyond it the caller is told to come back.
const PROPOSALS_MAX: usize = 4096;

/// The largest command the log takes. Requests are bounded far below this at the door.
const COMMAND_BYTES_MAX: usize = 64 << 20;

/// The data of one member of a replicated cluster; for now, the only one.
pub struct RaftAdapter {
    replica: Replica,
    mint: Arc<dyn Mint>,
    room: Semaphore,
    /// The state, where it was opened here and is to be closed here.
    opened: Option<Arc<SledStore>>,
}

impl RaftAdapter {
    /// Starts a member over a state of the caller's. Returns when it is ready to answer.
    pub async fn start(
        settings: RaftSettings,
        mint: Arc<dyn Mint>,
        store: Arc<dyn Store>,
        sink: Arc<dyn EventSink>,
    ) -> Result<RaftAdapter, StartError> {
        let data_dir = DataDir::open(&settings.disk, &settings.data_dir, settings.node_id)?;
        RaftAdapter::start_in(settings, data_dir, mint, store, sink).await
    }

    /// Starts a member with its state on disk. A state that will not open is rebuilt from snapshot and log.
    pub async fn open(
        settings: RaftSettings,
        mint: Arc<dyn Mint>,
        sink: Arc<dyn EventSink>,
    ) -> Result<RaftAdapter, StartError> {
        let data_dir = DataDir::open(&settings.disk, &settings.data_dir, settings.node_id)?;
        let store = Arc::new(open_state(&state_dir(&settings.data_dir))?);
        let mut adapter = RaftAdapter::start_in(settings, data_dir, mint, store.clone(), sink).await?;
        adapter.opened = Some(store);
        Ok(adapter)
    }

    async fn start_in(
        settings: RaftSettings,
        data_dir: DataDir,
        mint: Arc<dyn Mint>,
        store: Arc<dyn Store>,
        sink: Arc<dyn EventSink>,
    ) -> Result<RaftAdapter, StartError> {
        let replica = Replica::start(settings, data_dir, store, sink).await?;
        Ok(RaftAdapter { replica, mint, room: Semaphore::new(PROPOSALS_MAX), opened: None })
    }

    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Resolves when this node cannot go on and its process should end, with the reason.
    pub async fn failed(&self) -> String {
        self.replica.failed().await
    }

    /// Stops in order: consensus, log, state. Calls in flight end with an error that says what became of them.
    pub async fn shutdown(&self) {
        self.replica.shutdown().await;
        if let Some(store) = self.opened.clone()
            && let Err(error) = tokio::task::spawn_blocking(move || store.close()).await
        {
            warn!(%error, "the state was not closed in order");
        }
    }

    async fn order(&self, command: Command, deadline: Instant) -> Result<Answer, Undone> {
        let full = |_| Undone::Unavailable(format!("{PROPOSALS_MAX} mutations are in flight already; retry later"));
        let _room = self.room.try_acquire().map_err(full)?;
        if let Some(shrunk) = self.shrunk(&command)? {
            match self.write(shrunk, deadline).await? {
                // Another update came between: say everything.
                Answer::BaseMoved => {}
                answer => return Ok(answer),
            }
        }
        self.write(command, deadline).await
    }

    /// The command with less in it, where the state here tells the rest.
    fn shrunk(&self, command: &Command) -> Result<Option<Command>, Undone> {
        let Command::UpdateMessage(update) = command else { return Ok(None) };
        let shrunk = look(self.replica.store(), |view| update.shrunk(view));
        Ok(shrunk.map_err(|fault| Undone::Unavailable(fault.0))?.map(Command::UpdateMessage))
    }

    async fn write(&self, command: Command, deadline: Instant) -> Result<Answer, Undone> {
        let (stamp, request_id) = (self.mint.stamp(), self.mint.request_id());
        let stamped = Stamped { stamp, request_id, repeated: false, command };
        let order = Order::new(stamped);
        let bytes = order.encoded().len();
        if bytes > COMMAND_BYTES_MAX {
            let why = format!("the request takes {bytes} bytes; at most {COMMAND_BYTES_MAX} can be stored at once");
            return Err(Undone::Refused(Refusal::RequestInvalid(why)));
        }
        if Instant::now() >= deadline {
            return Err(Undone::Unavailable("the deadline passed before the mutation was proposed".to_owned()));
        }
        let written = match timeout_at(deadline.into(), self.replica.raft().client_write(order)).await {
            Ok(written) => written.map_err(not_written)?,
            Err(_) => {
                let why = "the deadline passed while the mutation was being replicated".to_owned();
                return Err(Undone::OutcomeUnknown(why));
            }
        };
        match written.data {
            Reply::Answered(answer) => answer.map_err(Undone::Refused),
            Reply::Nothing => Err(Undone::OutcomeUnknown("a command was applied without an answer".to_owned())),
        }
    }

    /// Returns once the state here holds everything that was answered anywhere before now.
    async fn barrier(&self) -> Result<(), Undone> {
        let linearizer = self.replica.raft().get_read_linearizer(ReadPolicy::ReadIndex).await.map_err(not_read)?;
        self.replica.await_applied(linearizer.read_log_id().index()).await.map_err(Undone::Unavailable)
    }

    async fn look_up(&self, query: Query, deadline: Instant) -> Result<Found, Undone> {
        let late = |_| Undone::Unavailable("the deadline passed before the read was confirmed".to_owned());
        timeout_at(deadline.into(), self.barrier()).await.map_err(late)??;
        match look(self.replica.store(), |view| machine::query(view, &query)) {
            Ok(found) => found.map_err(Undone::Refused),
            Err(fault) => Err(Undone::Unavailable(fault.0)),
        }
    }
}

impl Adapter for RaftAdapter {
    fn propose(&self, command: Command, deadline: Instant) -> BoxFuture<'_, Result<Answer, Undone>> {
        self.order(command, deadline).boxed()
    }

    fn ask(&self, query: Query, deadline: Instant) -> BoxFuture<'_, Result<Found, Undone>> {
        self.look_up(query, deadline).boxed()
    }
}

/// What became of a mutation that was not answered.
fn not_written(error: RaftError<Types, ClientWriteError<Types>>) -> Undone {
    match error {
        // Refused before it reached the log: nothing was written.
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => Undone::Unavailable(not_leading(to.leader_id)),
        RaftError::APIError(
            error @ (ClientWriteError::ChangeMembershipError(_) | ClientWriteError::PreconditionFailed(_)),
        ) => Undone::Unavailable(error.to_string()),
        // Another leader took over while it was on its way; it may have been committed all the same.
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => {
            Undone::OutcomeUnknown("another node took over while the mutation was being replicated".to_owned())
        }
        RaftError::Fatal(fatal) => Undone::OutcomeUnknown(format!("this node has stopped: {fatal}")),
    }
}

fn not_read(error: RaftError<Types, LinearizableReadError<Types>>) -> Undone {
    Undone::Unavailable(match error {
        RaftError::APIError(LinearizableReadError::ForwardToLeader(to)) => not_leading(to.leader_id),
        RaftError::APIError(LinearizableReadError::QuorumNotEnough(quorum)) => quorum.to_string(),
        RaftError::Fatal(fatal) => format!("this node has stopped: {fatal}"),
    })
}

fn not_leading(leader: Option<u64>) -> String {
    match leader {
        Some(leader) => format!("this node does not lead the cluster, node {leader} does; retry there"),
        None => "the cluster has no leader at the moment; retry later".to_owned(),
    }
}

/// Opens the state, or an empty one in place of one that makes no sense: the log brings it back.
fn open_state(dir: &Path) -> Result<SledStore, StartError> {
    let unusable = match SledStore::open(dir) {
        Ok(store) => match store.mark().and_then(|mark| Mark::of(mark, GROUP)) {
            Ok(_) => return Ok(store),
            Err(fault) => fault.0,
        },
        Err(OpenFault::Damaged(why)) => why,
        Err(fault @ (OpenFault::Busy(_) | OpenFault::Newer(_) | OpenFault::Disk(_))) => return Err(state_error(fault)),
    };
    warn!(dir = %dir.display(), why = unusable, "the state cannot be used; rebuilding it from snapshot and log");
    SledStore::wipe(dir).map_err(state_error)?;
    let store = SledStore::open(dir).map_err(state_error)?;
    info!(dir = %dir.display(), "the old state is removed");
    Ok(store)
}

fn state_error(why: impl std::fmt::Display) -> StartError {
    StartError::State(machine::refusal::Fault(why.to_string()))
}

#[cfg(test)]
#[path = "raft_test.rs"]
mod tests;
