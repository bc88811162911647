//! Owns: opening and closing a member: data directory, state, peer port, consensus.
//! Never: how a command or query is executed (`raft.rs`).

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{PROPOSALS_MAX, RaftAdapter};
use crate::events::EventSink;
use crate::machine::refusal::Fault;
use crate::metrics::trace::Tracer;
use crate::mint::Mint;
use crate::replication::RAFT_GROUP;
use crate::replication::admin_service::AdminService;
use crate::replication::checkpoint::Checkpoint;
use crate::replication::formation::service::Member;
use crate::replication::forward_batch::Forwarder;
use crate::replication::identity::{DataDir, Purpose, state_dir};
use crate::replication::leader_write::LeaderWrite;
use crate::replication::listener::{self, Bound, Listener, PeerAccess};
use crate::replication::peer_service::{ForwardedWrites, OnCluster, PeerService};
use crate::replication::replica::{RaftSettings, Replica, StartError, who};
use crate::replication::threads::Threads;
use crate::storage::Store;
use crate::storage::sled::{OpenFault, SledStore};

impl RaftAdapter {
    /// Starts a member over a state of the caller. Returns when it can answer, or waits for an invitation.
    pub async fn start(
        settings: RaftSettings,
        mint: Arc<dyn Mint>,
        store: Arc<dyn Store>,
        sink: Arc<dyn EventSink>,
    ) -> Result<RaftAdapter, StartError> {
        let data_dir = open_dir(&settings)?;
        RaftAdapter::start_in(settings, data_dir, mint, store, sink).await
    }

    /// Starts a member with its state on disk. A damaged state is rebuilt from snapshot and log.
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
        let raft_error = |error: std::io::Error| StartError::Raft(error.to_string());
        let threads = Arc::new(Threads::start(settings.own_threads).map_err(raft_error)?);
        // 1. Bind the port first: if it is in use, the start fails before anything else happens.
        let bound = match settings.peer_listen {
            Some(address) => {
                let (sockets, access) = (settings.sockets.clone(), peer_access(&settings));
                let binding = async move { listener::bind(&*sockets, address, access).await };
                Some(threads.on_consensus(binding).await.map_err(raft_error)??)
            }
            None => None,
        };
        let peer_address = bound.as_ref().map(|bound| bound.address);
        let advertised = settings.peer_advertise.clone().filter(|_| bound.is_some());
        let address = advertised.or(peer_address.map(|address| address.to_string())).unwrap_or_default();
        // 2. Start consensus over log and state.
        let (local_reads, on_cluster) = (AtomicBool::new(settings.stale_reads), settings.on_cluster.clone());
        let (steps, tracer) = (settings.steps, settings.tracer.clone());
        let replica =
            Arc::new(Replica::start(settings, threads.clone(), data_dir, address, store, sink.clone()).await?);
        let forwarder = Forwarder::new(replica.raft().clone(), replica.membership().peers.clone());
        let leader_write = Arc::new(LeaderWrite::new(replica.clone(), mint.clone(), sink, steps));
        // 3. Answer peers.
        let listener = bound.map(|bound| serve_peers(bound, &leader_write, &threads, on_cluster, tracer));
        let in_flight = Semaphore::new(PROPOSALS_MAX);
        let opened = None;
        Ok(RaftAdapter {
            replica,
            leader_write,
            forwarder,
            mint,
            in_flight,
            local_reads,
            listener,
            peer_address,
            opened,
        })
    }

    /// Stops in order: leadership, peers, consensus, log, state. Calls in flight end with an error that says whether
    /// their outcome is known.
    pub async fn shutdown(&self) {
        self.replica.step_down().await;
        if let Some(listener) = &self.listener {
            listener.close().await;
        }
        self.forwarder.stop().await;
        self.replica.shutdown().await;
        if let Some(store) = self.opened.clone()
            && let Err(error) = tokio::task::spawn_blocking(move || store.close()).await
        {
            warn!(%error, "the state was not closed in order");
        }
    }
}

fn peer_access(settings: &RaftSettings) -> PeerAccess {
    match &settings.peer_tls {
        Some(tls) => PeerAccess::Certificates(tls.clone()),
        None if settings.open_peer_port => PeerAccess::Everybody,
        None => PeerAccess::ThisMachine,
    }
}

fn open_dir(settings: &RaftSettings) -> Result<DataDir, StartError> {
    let purpose = if settings.join { Purpose::Join } else { Purpose::Found };
    let data_dir = DataDir::open(&settings.disk, &settings.data_dir, settings.node_id, purpose)
        .map_err(|why| StartError::DataDir { path: settings.data_dir.clone(), why })?;
    let cluster_id = data_dir.identity().cluster_id;
    if let Some(on_cluster) = settings.on_cluster.as_ref().filter(|_| !cluster_id.is_empty()) {
        on_cluster(&cluster_id);
    }
    Ok(data_dir)
}

fn serve_peers(
    bound: Bound,
    leader_write: &Arc<LeaderWrite>,
    threads: &Threads,
    on_cluster: Option<OnCluster>,
    tracer: Option<Arc<Tracer>>,
) -> Listener {
    let replica = &leader_write.replica;
    let peers = PeerService {
        local: replica.membership().peers.local.clone(),
        raft: replica.raft().clone(),
        forwarded: Arc::new(ForwardedWrites::new(leader_write.clone(), tracer.clone())),
        clients: threads.clients().clone(),
        read_index: replica.read_index().clone(),
        signs: replica.membership().peers.signs.clone(),
        hurry: replica.membership().peers.hurry.clone(),
        sink: leader_write.sink.clone(),
        snapshots: replica.snapshots().clone(),
        disk: replica.disk().clone(),
        on_cluster: on_cluster.clone(),
        closing: CancellationToken::new(),
        tracer,
    };
    let formation = Member { own: who(replica.peer()), membership: replica.membership().clone() };
    let admin = AdminService { on_cluster, writes: Some(leader_write.clone()), ..AdminService::of(replica) };
    info!(node = peers.local.node, address = %bound.address, "serving peers");
    let _consensus = threads.consensus().enter();
    Listener::serve(bound, peers, admin, formation)
}

/// Opens the state. A damaged one is replaced by an empty one, which is rebuilt from snapshot and log.
fn open_state(dir: &Path) -> Result<SledStore, StartError> {
    let damage = match SledStore::open(dir) {
        Ok(store) => match store.checkpoint().and_then(|mark| Checkpoint::of(mark, RAFT_GROUP)) {
            Ok(_) => return Ok(store),
            Err(fault) => fault.0,
        },
        Err(OpenFault::Damaged(why)) => why,
        Err(fault @ (OpenFault::Busy(_) | OpenFault::Newer(_) | OpenFault::Disk(_))) => return Err(state_error(fault)),
    };
    warn!(dir = %dir.display(), why = damage, "the state cannot be used; rebuilding it from snapshot and log");
    SledStore::wipe(dir).map_err(state_error)?;
    let store = SledStore::open(dir).map_err(state_error)?;
    info!(dir = %dir.display(), "the old state is removed");
    Ok(store)
}

fn state_error(why: impl fmt::Display) -> StartError {
    StartError::State(Fault(why.to_string()))
}
