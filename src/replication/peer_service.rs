//! Owns: what this node answers to its peers. Each call is checked for whom it is meant, translated, and handed to
//! consensus or to the proposals.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::stream::BoxStream;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::RaftError;
use openraft::type_config::alias::SnapshotOf;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use tracing::{info, warn};

use super::forward::{Arrivals, Attempt, Proposals};
use super::hop::{Me, lost_disk};
use super::reads::{Reads, Unconfirmed};
use super::replica::Raft;
use super::types::Types;
use super::{append_stream, snapshot_transfer, wire};
use crate::proto::peer::peer_server::Peer;
use crate::proto::peer::read_index_response::Outcome as ReadIndex;
use crate::proto::peer::snapshot_part::Part;
use crate::proto::peer::{
    AppendRequest, AppendResponse, ForwardRequest, ForwardResponse, Forwarded, Hop, InviteRequest, InviteResponse,
    ReadIndexRequest, ReadIndexResponse, SnapshotPart, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use crate::storage::disk::Disk;
use crate::storage::log::command::Order;
use crate::storage::snapshot::{Sealed, Snapshots};

/// The longest a forwarded mutation may take here, whatever its sender says.
const FORWARD_MAX: Duration = Duration::from_secs(60);

pub struct PeerService {
    pub me: Arc<Me>,
    pub raft: Raft,
    pub proposals: Arc<dyn Proposals>,
    pub arrivals: Arc<Arrivals>,
    pub reads: Arc<Reads>,
    pub snapshots: Arc<Snapshots>,
    pub disk: Arc<dyn Disk>,
    /// Told the cluster id when this node joins, before the first entry can arrive.
    pub on_cluster: Option<OnCluster>,
    /// Ends the calls that would not end by themselves.
    pub closing: CancellationToken,
}

pub type OnCluster = Arc<dyn Fn(&str) + Send + Sync>;

impl PeerService {
    /// Accepts a call that is meant for this node and comes from the data directory it should come from.
    fn accept(&self, hop: Option<&Hop>) -> Result<(), Status> {
        self.me.accept(hop)?;
        let Some(hop) = hop else { return Ok(()) };
        let members = self.raft.server_metrics().borrow_watched().membership_config.clone();
        match members.membership().get_node(&hop.from_node) {
            Some(known) if !known.instance.is_empty() && known.instance != hop.from_instance => {
                Err(Status::failed_precondition(lost_disk(hop.from_node)))
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl PeerService {
    /// One attempt at what another node was asked for.
    async fn attempt(&self, mutation: Forwarded, term: u64) -> Attempt {
        let mut stamped = match Order::read(mutation.command) {
            Ok(order) => order.into_stamped(),
            // The others in the same call are none the worse for it.
            Err(error) => return Attempt::Unavailable(format!("the leader cannot read the mutation: {error}")),
        };
        let deadline = Instant::now() + Duration::from_millis(mutation.remaining_ms).min(FORWARD_MAX);
        match self.arrivals.enter(stamped.request_id, stamped.repeated) {
            None => Attempt::Unknown("an earlier attempt is still under way".to_owned()),
            Some(_) if self.raft.server_metrics().borrow_watched().vote.leader_id.term != term => {
                Attempt::NotLeader(None)
            }
            Some(arrival) => {
                stamped.repeated = arrival.repeated;
                self.proposals.attempt(stamped, deadline).await
            }
        }
    }
}

fn stopped(fatal: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("this node has stopped: {fatal}"))
}

fn fatal(error: RaftError<Types>) -> Status {
    stopped(error)
}

#[tonic::async_trait]
impl Peer for PeerService {
    async fn invite(&self, request: Request<InviteRequest>) -> Result<Response<InviteResponse>, Status> {
        let request = request.into_inner();
        let instance = self.me.invited(request.hop.as_ref())?;
        if let Some(on_cluster) = &self.on_cluster {
            on_cluster(&self.me.data_dir.identity().cluster_id);
        }
        Ok(Response::new(InviteResponse { instance }))
    }

    async fn vote(&self, request: Request<VoteRequest>) -> Result<Response<VoteResponse>, Status> {
        let request = request.into_inner();
        self.accept(request.hop.as_ref())?;
        let answer = self.raft.vote(wire::vote_request(request)?).await.map_err(fatal)?;
        Ok(Response::new(wire::spell_vote_response(&answer)))
    }

    async fn pre_vote(&self, request: Request<VoteRequest>) -> Result<Response<VoteResponse>, Status> {
        let request = request.into_inner();
        self.accept(request.hop.as_ref())?;
        let answer = self.raft.pre_vote(wire::vote_request(request)?).await.map_err(fatal)?;
        Ok(Response::new(wire::spell_vote_response(&answer)))
    }

    async fn append(&self, request: Request<AppendRequest>) -> Result<Response<AppendResponse>, Status> {
        let request = request.into_inner();
        self.accept(request.hop.as_ref())?;
        let answer = self.raft.append_entries(wire::append(request)?).await.map_err(fatal)?;
        Ok(Response::new(wire::spell_appended(&answer)))
    }

    type AppendStreamStream = BoxStream<'static, Result<AppendResponse, Status>>;

    async fn append_stream(
        &self,
        request: Request<Streaming<AppendRequest>>,
    ) -> Result<Response<Self::AppendStreamStream>, Status> {
        let mut requests = request.into_inner();
        let none = || Status::invalid_argument("a stream of entries begins with a request");
        let first = requests.message().await?.ok_or_else(none)?;
        self.accept(first.hop.as_ref())?;
        Ok(Response::new(append_stream::receive(&self.raft, first, requests, self.closing.clone())))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<SnapshotPart>>,
    ) -> Result<Response<SnapshotResponse>, Status> {
        let mut parts = request.into_inner();
        let first = parts.message().await?.and_then(|part| part.part);
        let Some(Part::Header(header)) = first else {
            return Err(Status::invalid_argument("part: a snapshot begins with its header"));
        };
        self.accept(header.hop.as_ref())?;
        let (vote, meta) = (wire::vote(header.vote)?, wire::snapshot_meta(&header)?);
        let index = header.last_log.map_or(0, |last| last.index);
        info!(index, bytes = header.length, "receiving a snapshot");
        let received = snapshot_transfer::receive(&self.snapshots, &self.disk, &header, &mut parts).await;
        let snapshot = received.inspect_err(|status| warn!(why = status.message(), "a snapshot is refused"))?;
        let snapshot = SnapshotOf::<Types, Sealed> { meta, snapshot };
        let answer = self.raft.install_full_snapshot(vote, snapshot).await.map_err(stopped)?;
        Ok(Response::new(wire::spell_snapshot_response(&answer)))
    }

    async fn transfer_leader(
        &self,
        request: Request<TransferLeaderRequest>,
    ) -> Result<Response<TransferLeaderResponse>, Status> {
        let request = request.into_inner();
        self.accept(request.hop.as_ref())?;
        let answer = self.raft.handle_transfer_leader(wire::transfer(request)?).await.map_err(stopped)?;
        let reason = answer.as_ref().err().map(ToString::to_string).unwrap_or_default();
        Ok(Response::new(TransferLeaderResponse { accepted: answer.is_ok(), reason }))
    }

    async fn read_index(&self, request: Request<ReadIndexRequest>) -> Result<Response<ReadIndexResponse>, Status> {
        self.accept(request.into_inner().hop.as_ref())?;
        let outcome = match self.reads.lead().await {
            Ok(index) => ReadIndex::Index(index),
            Err(Unconfirmed::NotNow(why) | Unconfirmed::Stopped(why)) => ReadIndex::Unavailable(why),
        };
        Ok(Response::new(ReadIndexResponse { outcome: Some(outcome) }))
    }

    async fn forward(&self, request: Request<ForwardRequest>) -> Result<Response<ForwardResponse>, Status> {
        let request = request.into_inner();
        self.accept(request.hop.as_ref())?;
        // Side by side: they share the log's next write, and none waits for another's answer.
        let attempts = request
            .mutations
            .into_iter()
            .map(|mutation| async { wire::spell_attempt(self.attempt(mutation, request.term).await) });
        Ok(Response::new(ForwardResponse { outcomes: join_all(attempts).await }))
    }
}
