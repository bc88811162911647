//! Owns: carrying out decisions through the replicated log, on whichever node they arrive: bounded in flight, retried
//! where the leader changes, honest about the outcome.
//! Never: answer before the log is durable, or read what a quorum does not vouch for.

mod carry;
mod courier;
mod hasty;
mod leading;
mod quick;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::mint::Mint;
use super::{Adapter, Undone};
use crate::events::EventSink;
use crate::events::history::History;
use crate::machine::ids::{FeedPlace, RequestId};
use crate::machine::view::View;
use crate::machine::{self, Answer, Command, Found, Query};
use crate::planted::{self, Bug};
use crate::replication::GROUP;
use crate::replication::admin_service::AdminService;
use crate::replication::forward::Arrivals;
use crate::replication::identity::{DataDir, Purpose, state_dir};
use crate::replication::leader::Leader;
use crate::replication::listener::{self, Bound, Listener};
use crate::replication::mark::Mark;
use crate::replication::peer_service::PeerService;
use crate::replication::reads::Unconfirmed;
use crate::replication::replica::Replica;
pub use crate::replication::replica::{RaftSettings, StartError};
use crate::storage::sled::{OpenFault, SledStore};
use crate::storage::{Store, look};
use courier::Courier;
use leading::Leading;

/// Mutations in flight at once: a second's worth at the peak. Beyond it the caller is told to come back.
const PROPOSALS_MAX: usize = 4096;

/// How long a call waits for a leader and a quorum to be there again. Well below the time for which answers are
/// remembered, so that a repetition is always recognised.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a call waits before it tries again although nobody new leads.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The data of one member of a replicated cluster; alone, a cluster of one.
pub struct RaftAdapter {
    replica: Arc<Replica>,
    leading: Arc<Leading>,
    mint: Arc<dyn Mint>,
    room: Semaphore,
    stale_reads: AtomicBool,
    listener: Option<Listener>,
    peer_address: Option<SocketAddr>,
    /// The state, where it was opened here and is to be closed here.
    opened: Option<Arc<SledStore>>,
}

impl RaftAdapter {
    /// Starts a member over a state of the caller's. Returns when it is ready to answer, or to join.
    pub async fn start(
        settings: RaftSettings,
        mint: Arc<dyn Mint>,
        store: Arc<dyn Store>,
        sink: Arc<dyn EventSink>,
    ) -> Result<RaftAdapter, StartError> {
        let data_dir = open_dir(&settings)?;
        RaftAdapter::start_in(settings, data_dir, mint, store, sink).await
    }

    /// Starts a member with its state on disk. A state that will not open is rebuilt from snapshot and log.
    pub async fn open(
        settings: RaftSettings,
        mint: Arc<dyn Mint>,
        sink: Arc<dyn EventSink>,
    ) -> Result<RaftAdapter, StartError> {
        let data_dir = open_dir(&settings)?;
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
        // 1. The port, so that a busy one is known before anything else happens.
        let bound = match settings.peer_listen {
            Some(address) => Some(listener::bind(&*settings.sockets, address).await?),
            None => None,
        };
        let peer_address = bound.as_ref().map(|bound| bound.address);
        let address = peer_address.map(|address| address.to_string()).unwrap_or_default();
        // 2. Consensus over log and state.
        let (stale_reads, on_cluster) = (settings.stale_reads, settings.on_cluster.clone());
        let replica = Arc::new(Replica::start(settings, data_dir, address, store, sink.clone()).await?);
        let courier = Courier::new(replica.raft().clone(), replica.council().peers.clone());
        let leading = Arc::new(Leading { replica: replica.clone(), mint: mint.clone(), courier, sink });
        // 3. Peers are answered.
        let listener = bound.map(|bound| serve(bound, &replica, &leading, on_cluster));
        let room = Semaphore::new(PROPOSALS_MAX);
        let stale_reads = AtomicBool::new(stale_reads);
        Ok(RaftAdapter { replica, leading, mint, room, stale_reads, listener, peer_address, opened: None })
    }

    pub fn share_replica(&self) -> Arc<Replica> {
        self.replica.clone()
    }

    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Whether reads are answered from the state here from now on, however old it is.
    pub fn read_stale(&self, stale: bool) {
        self.stale_reads.store(stale, Ordering::Relaxed);
    }

    /// Where peers reach this node.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.peer_address
    }

    /// Resolves when this node cannot go on and its process should end, with the reason.
    pub async fn failed(&self) -> String {
        self.replica.failed().await
    }

    /// Stops in order: leadership, peers, consensus, log, state. Calls in flight end with an error that says what
    /// became of them.
    pub async fn shutdown(&self) {
        self.replica.step_aside().await;
        if let Some(listener) = &self.listener {
            listener.close().await;
        }
        self.leading.courier.stop().await;
        self.replica.shutdown().await;
        if let Some(store) = self.opened.clone()
            && let Err(error) = tokio::task::spawn_blocking(move || store.close()).await
        {
            warn!(%error, "the state was not closed in order");
        }
    }

    /// `named`: its caller may have sent it before under this id.
    async fn order(&self, command: Command, named: Option<RequestId>, deadline: Instant) -> Result<Answer, Undone> {
        let full = |_| Undone::Unavailable(format!("{PROPOSALS_MAX} mutations are in flight already; retry later"));
        let _room = self.room.try_acquire().map_err(full)?;
        let deadline = deadline.min(Instant::now() + PATIENCE);
        let request_id = named.unwrap_or_else(|| self.mint.request_id());
        carry::carry(&self.leading, command, request_id, named.is_some(), deadline).await
    }

    /// Returns once the state here holds everything that was answered anywhere before now.
    async fn barrier(&self, deadline: Instant) -> Result<(), Undone> {
        let raft = self.replica.raft();
        loop {
            let leader = Leader::of(raft);
            let why = match self.replica.reads().index().await {
                Ok(index) => return self.replica.await_applied(index).await.map_err(Undone::Unavailable),
                Err(Unconfirmed::Stopped(why)) => return Err(Undone::Unavailable(why)),
                Err(Unconfirmed::NotNow(why)) => why,
            };
            if Instant::now() + AGAIN_AFTER >= deadline {
                return Err(Undone::Unavailable(why));
            }
            Leader::changed(raft, &leader, AGAIN_AFTER).await;
        }
    }

    async fn look_up(&self, query: Query, deadline: Instant) -> Result<Found, Undone> {
        // Whoever goes on from a cursor that is older than the last one repeats what was delivered since.
        let is_cursor = matches!(query, Query::Cursor(_) | Query::Cursors(_));
        let stale = self.stale_reads.load(Ordering::Relaxed) && !is_cursor;
        if !stale && !planted::has(Bug::ReadWithoutBarrier) {
            self.confirmed(deadline).await?;
        }
        self.look_here(&query)
    }

    /// The barrier, within the patience of a call.
    async fn confirmed(&self, deadline: Instant) -> Result<(), Undone> {
        let deadline = deadline.min(Instant::now() + PATIENCE);
        let late = |_| Undone::Unavailable("the deadline passed before the read was confirmed".to_owned());
        timeout_at(deadline.into(), self.barrier(deadline)).await.map_err(late)?
    }

    fn look_here(&self, query: &Query) -> Result<Found, Undone> {
        match look(&**self.replica.store(), |view| machine::query(view, query)) {
            Ok(found) => found.map_err(Undone::Refused),
            Err(fault) => Err(Undone::Unavailable(fault.0)),
        }
    }
}

impl Adapter for RaftAdapter {
    fn propose(&self, command: Command, deadline: Instant) -> BoxFuture<'_, Result<Answer, Undone>> {
        self.order(command, None, deadline).boxed()
    }

    fn propose_once(
        &self,
        command: Command,
        request_id: RequestId,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Answer, Undone>> {
        self.order(command, Some(request_id), deadline).boxed()
    }

    fn ask(&self, query: Query, deadline: Instant) -> BoxFuture<'_, Result<Found, Undone>> {
        self.look_up(query, deadline).boxed()
    }

    fn confirm(&self, deadline: Instant) -> BoxFuture<'_, Result<(), Undone>> {
        self.confirmed(deadline).boxed()
    }

    fn ask_here(&self, query: Query, _deadline: Instant) -> BoxFuture<'_, Result<Found, Undone>> {
        async move { self.look_here(&query) }.boxed()
    }
}

impl History for RaftAdapter {
    fn look(&self, look: &mut dyn FnMut(&dyn View)) {
        self.replica.store().look(look);
    }

    fn applied(&self) -> FeedPlace {
        FeedPlace { index: self.replica.applied(), ordinal: u32::MAX }
    }

    fn catch_up(&self) -> BoxFuture<'_, Result<(), String>> {
        async {
            let deadline = Instant::now() + PATIENCE;
            let late = |_| "nobody leads the cluster; retry later".to_owned();
            let confirmed = timeout_at(deadline.into(), self.barrier(deadline)).await.map_err(late)?;
            confirmed.map_err(|undone| undone.to_string())
        }
        .boxed()
    }
}

fn open_dir(settings: &RaftSettings) -> Result<DataDir, StartError> {
    let purpose = if settings.join { Purpose::Join } else { Purpose::Found };
    let data_dir = DataDir::open(&settings.disk, &settings.data_dir, settings.node_id, purpose)?;
    let cluster_id = data_dir.identity().cluster_id;
    if let Some(on_cluster) = settings.on_cluster.as_ref().filter(|_| !cluster_id.is_empty()) {
        on_cluster(&cluster_id);
    }
    Ok(data_dir)
}

fn serve(
    bound: Bound,
    replica: &Arc<Replica>,
    leading: &Arc<Leading>,
    on_cluster: Option<crate::replication::peer_service::OnCluster>,
) -> Listener {
    let peers = PeerService {
        me: replica.council().peers.me.clone(),
        raft: replica.raft().clone(),
        proposals: leading.clone(),
        arrivals: Arc::new(Arrivals::default()),
        reads: replica.reads().clone(),
        snapshots: replica.snapshots().clone(),
        disk: replica.disk().clone(),
        on_cluster: on_cluster.clone(),
        closing: CancellationToken::new(),
    };
    let admin = AdminService {
        council: replica.council().clone(),
        store: replica.store().clone(),
        snapshots: replica.snapshots().clone(),
        peer: replica.peer().clone(),
        on_cluster,
    };
    info!(node = peers.me.node, address = %bound.address, "peers are answered");
    Listener::serve(bound, peers, admin)
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

#[cfg(test)]
#[path = "damage_test.rs"]
mod damage_tests;

#[cfg(test)]
#[path = "cluster_test.rs"]
mod cluster_tests;

#[cfg(test)]
#[path = "garbage_test.rs"]
mod garbage_tests;
