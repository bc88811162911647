//! Owns: the calls this node answers to its peers. Each call is checked for sender and receiver, decoded, and passed to
//! consensus, to the leader's write path or to the read index.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use futures::stream::BoxStream;
use openraft::async_runtime::WatchReceiver;
use openraft::type_config::alias::SnapshotOf;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};
use tracing::{info, warn};

use super::attempt::{Attempt, ForwardedAttempts};
use super::elections::Signs;
use super::held_notices::Hurry;
use super::leader_write::LeaderWrite;
use super::local_node::{LocalNode, lost_disk};
use super::read_index::ReadIndex;
use super::replica::Raft;
use super::sender::Sender;
use super::types::Types;
use super::{append_stream, snapshot_transfer, wire};
use crate::events::EventSink;
use crate::machine::Stamped;
use crate::metrics::trace::{self, Tracer};
use crate::planted::{self, Bug};
use crate::proto::peer::peer_server::Peer;
use crate::proto::peer::read_index_response::Outcome;
use crate::proto::peer::snapshot_part::Part;
use crate::proto::peer::{
    AppendRequest, AppendResponse, ForwardOutcome, ForwardRequest, ForwardResponse, Forwarded, Hop, InviteRequest,
    InviteResponse, ReadIndexRequest, ReadIndexResponse, SnapshotPart, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use crate::storage::disk::Disk;
use crate::storage::log::command::Order;
use crate::storage::log::record::Unreadable;
use crate::storage::snapshot::{Sealed, Snapshots};

/// The longest time a forwarded mutation may take here, whatever its sender asks for.
const FORWARD_MAX: Duration = Duration::from_secs(60);

/// A lone mutation of at most so many bytes begins on the thread of consensus, if nothing is read for it. Decoding it takes
/// some microseconds, less than two switches of threads.
const AT_ONCE_BYTES: usize = 16 << 10;

/// The span of one attempt at a mutation on the leader.
pub const PROPOSE: &str = "propose";

pub struct PeerService {
    pub local: Arc<LocalNode>,
    pub raft: Raft,
    pub forwarded: Arc<ForwardedWrites>,
    /// Where forwarded mutations are executed: they read the state, so never on the thread of consensus.
    pub clients: Handle,
    pub read_index: Arc<ReadIndex>,
    pub signs: Arc<Signs>,
    pub hurry: Hurry,
    /// Who listens for events here.
    pub sink: Arc<dyn EventSink>,
    pub snapshots: Arc<Snapshots>,
    pub disk: Arc<dyn Disk>,
    /// Called with the cluster id when this node joins, before the first entry can arrive.
    pub on_cluster: Option<OnCluster>,
    /// Cancelled at shutdown: ends the streams, which have no end of their own.
    pub closing: CancellationToken,
    /// Follows calls whose entries arrive here; `None` if this node exports no traces.
    pub tracer: Option<Arc<Tracer>>,
}

pub type OnCluster = Arc<dyn Fn(&str) + Send + Sync>;

impl PeerService {
    /// Accepts a call that is meant for this node, from a member that still has the disk it joined with.
    fn check(&self, sender: &Sender, hop: Option<&Hop>) -> Result<(), Status> {
        sender.check_peer(hop)?;
        self.local.check(hop)?;
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

/// Executes the mutations that other nodes received.
pub struct ForwardedWrites {
    leader_write: Arc<LeaderWrite>,
    attempts: Arc<ForwardedAttempts>,
    tracer: Option<Arc<Tracer>>,
}

impl ForwardedWrites {
    pub fn new(leader_write: Arc<LeaderWrite>, tracer: Option<Arc<Tracer>>) -> ForwardedWrites {
        ForwardedWrites { leader_write, attempts: Arc::default(), tracer }
    }

    /// Makes one attempt at a mutation.
    async fn answer(&self, mutation: Mutation, term: u64) -> ForwardOutcome {
        let span = self.tracer.as_ref().and_then(|tracer| tracer.remote(&mutation.trace, PROPOSE));
        wire::attempt_to_proto(trace::within(span.as_ref(), self.attempt(mutation, term)).await)
    }

    async fn attempt(&self, mutation: Mutation, term: u64) -> Attempt {
        let raft = self.leader_write.replica.raft();
        let mut stamped = match mutation.read {
            Ok(stamped) => stamped,
            // The other mutations in the same call are not affected.
            Err(error) => return Attempt::Unavailable(format!("the leader cannot read the mutation: {error}")),
        };
        let deadline = mutation.deadline;
        match self.attempts.begin(stamped.request_id, stamped.is_retry) {
            None => Attempt::Unknown("an earlier attempt is still in progress".to_owned()),
            Some(_) if raft.server_metrics().borrow_watched().vote.leader_id.term != term => Attempt::NotLeader(None),
            Some(attempt) => {
                stamped.is_retry = attempt.is_retry;
                self.leader_write.attempt(stamped, deadline).await
            }
        }
    }
}

/// A mutation that another node received, decoded.
struct Mutation {
    read: Result<Stamped, Unreadable>,
    deadline: Instant,
    trace: Bytes,
}

impl Mutation {
    fn read(spelled: Forwarded) -> Mutation {
        let read = Order::read(spelled.command).map(Order::into_stamped);
        let deadline = Instant::now() + Duration::from_millis(spelled.remaining_ms).min(FORWARD_MAX);
        Mutation { read, deadline, trace: spelled.trace }
    }

    /// Whether the attempt may begin on the thread of consensus.
    fn is_quick(&self) -> bool {
        self.read.as_ref().is_ok_and(LeaderWrite::reads_nothing)
    }
}

fn stopped(fatal: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("this node has stopped: {fatal}"))
}

#[tonic::async_trait]
impl Peer for PeerService {
    async fn invite(&self, request: Request<InviteRequest>) -> Result<Response<InviteResponse>, Status> {
        let (sender, request) = (Sender::of(&request), request.into_inner());
        sender.check_peer(request.hop.as_ref())?;
        let instance = self.local.accept_invitation(request.hop.as_ref())?;
        if let Some(on_cluster) = &self.on_cluster {
            on_cluster(&self.local.data_dir.identity().cluster_id);
        }
        Ok(Response::new(InviteResponse { instance }))
    }

    async fn vote(&self, request: Request<VoteRequest>) -> Result<Response<VoteResponse>, Status> {
        let (sender, request) = (Sender::of(&request), request.into_inner());
        self.check(&sender, request.hop.as_ref())?;
        let request = wire::vote_request_from_proto(request)?;
        self.signs.request_of_candidate(request.vote, &self.raft);
        let answer = self.raft.vote(request).await.map_err(stopped)?;
        if answer.vote_granted {
            self.signs.supports_candidate();
        }
        Ok(Response::new(wire::vote_response_to_proto(&answer)))
    }

    async fn pre_vote(&self, request: Request<VoteRequest>) -> Result<Response<VoteResponse>, Status> {
        let (sender, request) = (Sender::of(&request), request.into_inner());
        self.check(&sender, request.hop.as_ref())?;
        let answer = self.raft.pre_vote(wire::vote_request_from_proto(request)?).await.map_err(stopped)?;
        if answer.vote_granted {
            self.signs.supports_candidate();
        }
        Ok(Response::new(wire::vote_response_to_proto(&answer)))
    }

    async fn append(&self, request: Request<AppendRequest>) -> Result<Response<AppendResponse>, Status> {
        let (sender, request) = (Sender::of(&request), request.into_inner());
        self.check(&sender, request.hop.as_ref())?;
        let request = wire::append_from_proto(request)?;
        let leader = request.vote;
        if !planted::has(Bug::HeartbeatsWaitForDisk) {
            self.signs.request_from(leader, &self.raft);
        }
        let answer = self.raft.append_entries(request).await.map_err(stopped)?;
        if planted::has(Bug::HeartbeatsWaitForDisk) {
            self.signs.request_from(leader, &self.raft);
        }
        Ok(Response::new(wire::appended_to_proto(&answer)))
    }

    type AppendStreamStream = BoxStream<'static, Result<AppendResponse, Status>>;

    async fn append_stream(
        &self,
        request: Request<Streaming<AppendRequest>>,
    ) -> Result<Response<Self::AppendStreamStream>, Status> {
        let (sender, mut requests) = (Sender::of(&request), request.into_inner());
        let none = || Status::invalid_argument("a stream of entries begins with a request");
        let first = requests.message().await?.ok_or_else(none)?;
        self.check(&sender, first.hop.as_ref())?;
        let answers = append_stream::receive(self, first, requests);
        let mut response = Response::new(answers);
        response.metadata_mut().insert(append_stream::TAKES_PIECES, MetadataValue::from_static("1"));
        Ok(response)
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<SnapshotPart>>,
    ) -> Result<Response<SnapshotResponse>, Status> {
        let (sender, mut parts) = (Sender::of(&request), request.into_inner());
        let first = parts.message().await?.and_then(|part| part.part);
        let Some(Part::Header(header)) = first else {
            return Err(Status::invalid_argument("part: a snapshot begins with its header"));
        };
        self.check(&sender, header.hop.as_ref())?;
        let (vote, meta) = (wire::vote_from_proto(header.vote)?, wire::snapshot_meta_from_proto(&header)?);
        let index = header.last_log.map_or(0, |last| last.index);
        info!(index, bytes = header.length, "receiving a snapshot");
        let received = snapshot_transfer::receive(&self.snapshots, &self.disk, &header, &mut parts).await;
        let snapshot = received.inspect_err(|status| warn!(why = status.message(), "a snapshot is refused"))?;
        let snapshot = SnapshotOf::<Types, Sealed> { meta, snapshot };
        let answer = self.raft.install_full_snapshot(vote, snapshot).await.map_err(stopped)?;
        Ok(Response::new(wire::snapshot_response_to_proto(&answer)))
    }

    async fn transfer_leader(
        &self,
        request: Request<TransferLeaderRequest>,
    ) -> Result<Response<TransferLeaderResponse>, Status> {
        let (sender, request) = (Sender::of(&request), request.into_inner());
        self.check(&sender, request.hop.as_ref())?;
        let answer = self.raft.handle_transfer_leader(wire::transfer_from_proto(request)?).await.map_err(stopped)?;
        let reason = answer.as_ref().err().map(ToString::to_string).unwrap_or_default();
        Ok(Response::new(TransferLeaderResponse { accepted: answer.is_ok(), reason }))
    }

    async fn read_index(&self, request: Request<ReadIndexRequest>) -> Result<Response<ReadIndexResponse>, Status> {
        let (sender, request) = (Sender::of(&request), request.into_inner());
        self.check(&sender, request.hop.as_ref())?;
        let follower = request.hop.as_ref().map_or(0, |hop| hop.from_node);
        let outcome = match self.read_index.confirm_as_leader(follower, request.term).await {
            Ok(index) => Outcome::Index(index),
            Err(error) => Outcome::Unavailable(error.to_string()),
        };
        // The follower waits until it has applied everything up to this index.
        self.hurry.now();
        Ok(Response::new(ReadIndexResponse { outcome: Some(outcome) }))
    }

    async fn forward(&self, request: Request<ForwardRequest>) -> Result<Response<ForwardResponse>, Status> {
        let (sender, request) = (Sender::of(&request), request.into_inner());
        self.check(&sender, request.hop.as_ref())?;
        let (forwarded, term, mut mutations) = (self.forwarded.clone(), request.term, request.mutations);
        let mut lone = None;
        if mutations.len() == 1 {
            lone = mutations.pop_if(|one| one.command.len() <= AT_ONCE_BYTES).map(Mutation::read);
        }
        if let Some(quick) = lone.take_if(|lone| lone.is_quick()) {
            return Ok(Response::new(ForwardResponse { outcomes: vec![forwarded.answer(quick, term).await] }));
        }
        let outcomes = self.clients.spawn(async move {
            // Concurrently: the mutations share the log's next write, and none waits for the answer of another.
            let mutations = lone.into_iter().chain(mutations.into_iter().map(Mutation::read));
            // On the heap, so that the list does not move them about.
            join_all(mutations.map(|mutation| Box::pin(forwarded.answer(mutation, term)))).await
        });
        // A caller that is gone takes its attempts along.
        let outcomes = AbortOnDropHandle::new(outcomes).await.map_err(stopped)?;
        Ok(Response::new(ForwardResponse { outcomes }))
    }
}
