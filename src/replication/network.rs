//! Owns: openraft's calls to peers, over gRPC. Every call ends with an answer or a time-out.
//! Never: a layout of openraft on the wire (`wire.rs` translates), or the stream of entries (`append_stream.rs`).

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, Stream};
use openraft::OptionalSend;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};
use tracing::warn;

use super::append_stream;
use super::channels::{Channels, Purpose};
use super::elections::Signs;
use super::held_notices::{HeldNotice, Hurry};
use super::local_node::LocalNode;
use super::snapshot_transfer;
use super::state_machine::off_runtime;
use super::types::{Types, Vote};
use super::wire;
use crate::proto::peer::{self, peer_client::PeerClient};
use crate::storage::disk::Disk;
use crate::storage::log::record::Peer;
use crate::storage::snapshot::Sealed;

/// The most that slow answers stretch the time for a heartbeat.
const PATIENCE_MAX: u32 = 64;

/// The waits between attempts to reach a peer, from the first failure on.
const RETRY_AFTER_MS: [u64; 5] = [20, 50, 100, 200, 400];

/// Reaches all peers.
#[derive(Clone)]
pub struct Peers {
    pub local: Arc<LocalNode>,
    pub channels: Arc<Channels>,
    pub disk: Arc<dyn Disk>,
    pub signs: Arc<Signs>,
    pub hurry: Hurry,
}

/// Reaches one peer.
pub struct Connection {
    peers: Peers,
    node: u64,
    peer: Peer,
    purpose: Purpose,
    /// The reason of its last refusal, so that it is logged only once.
    last_refusal: Option<String>,
    /// How many times longer than usual a heartbeat may take. Each heartbeat that is not answered in time doubles it.
    patience: u32,
    /// Whether the peer accepts a large request in pieces; known after the first answer to a stream.
    pub(super) takes_pieces: bool,
}

impl Peers {
    fn connection(&self, node: u64, peer: &Peer, purpose: Purpose) -> Connection {
        Connection {
            peers: self.clone(),
            node,
            peer: peer.clone(),
            purpose,
            last_refusal: None,
            patience: 1,
            takes_pieces: false,
        }
    }
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, peer: &Peer) -> Connection {
        self.connection(target, peer, Purpose::Log)
    }

    async fn new_heartbeat_client(&mut self, target: u64, peer: &Peer) -> Connection {
        self.connection(target, peer, Purpose::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: u64, peer: &Peer) -> Connection {
        self.connection(target, peer, Purpose::Snapshot)
    }
}

impl Connection {
    pub(super) fn node(&self) -> u64 {
        self.node
    }

    pub(super) fn hop(&self) -> peer::Hop {
        self.peers.local.hop_to(self.node, &self.peer)
    }

    /// Makes one call.
    async fn call<Answer, Calling>(
        &mut self,
        within: Duration,
        call: impl FnOnce(PeerClient<Channel>) -> Calling,
    ) -> Result<Answer, Unreachable<Types>>
    where
        Calling: Future<Output = Result<Response<Answer>, Status>>,
    {
        self.call_on(self.purpose, within, call).await
    }

    /// Makes one call. A connection on which a call timed out is not used again.
    async fn call_on<Answer, Calling>(
        &mut self,
        purpose: Purpose,
        within: Duration,
        call: impl FnOnce(PeerClient<Channel>) -> Calling,
    ) -> Result<Answer, Unreachable<Types>>
    where
        Calling: Future<Output = Result<Response<Answer>, Status>>,
    {
        let client = self.client_on(purpose)?;
        match timeout(within, call(client)).await {
            Ok(Ok(answer)) => {
                self.accepted();
                Ok(answer.into_inner())
            }
            Ok(Err(status)) => Err(self.refused(status)),
            Err(_) => Err(self.timed_out_on(purpose, within)),
        }
    }

    pub(super) fn held_notice(&self) -> HeldNotice {
        HeldNotice::new(&self.peers.hurry)
    }

    pub(super) fn client(&self) -> Result<PeerClient<Channel>, Unreachable<Types>> {
        self.client_on(self.purpose)
    }

    fn client_on(&self, purpose: Purpose) -> Result<PeerClient<Channel>, Unreachable<Types>> {
        let client = self.peers.channels.peer(&self.peer.address, purpose);
        client.map_err(|error| self.unreachable(&error))
    }

    /// The time for an answer to entries. They may be large and a follower's disk busy, so this is longer than openraft's
    /// own limit, which is one heartbeat.
    pub(super) fn answer_within(&self) -> Duration {
        self.peers.signs.peer_timeout
    }

    /// Drops a connection on which a call timed out.
    pub(super) fn timed_out(&self, within: Duration) -> Unreachable<Types> {
        self.timed_out_on(self.purpose, within)
    }

    fn timed_out_on(&self, purpose: Purpose, within: Duration) -> Unreachable<Types> {
        self.peers.channels.forget(&self.peer.address, purpose);
        self.unreachable(&format!("no answer within {within:?}"))
    }

    /// The peer accepted a call, so that its next refusal is logged.
    pub(super) fn accepted(&mut self) {
        self.last_refusal = None;
    }

    pub(super) fn refused(&mut self, status: Status) -> Unreachable<Types> {
        let why = status.message().to_owned();
        let needs_operator = matches!(status.code(), Code::FailedPrecondition | Code::InvalidArgument | Code::DataLoss);
        if needs_operator && self.last_refusal.as_ref() != Some(&why) {
            warn!(node = self.node, address = self.peer.address, why, "a peer refuses this node");
            self.last_refusal = Some(why.clone());
        }
        self.unreachable(&why)
    }

    pub(super) fn unreachable(&self, why: &dyn fmt::Display) -> Unreachable<Types> {
        Unreachable::from_string(format!("node {} at {:?}: {why}", self.node, self.peer.address))
    }

    /// Votes never wait behind entries.
    async fn ask_for_vote<Calling>(
        &mut self,
        request: &VoteRequest<Types>,
        option: &RPCOption,
        call: impl FnOnce(PeerClient<Channel>, peer::VoteRequest) -> Calling,
    ) -> Result<VoteResponse<Types>, RPCError<Types>>
    where
        Calling: Future<Output = Result<Response<peer::VoteResponse>, Status>>,
    {
        let request = wire::vote_request_to_proto(self.hop(), request);
        let within = self.peers.signs.vote_request_max().min(option.soft_ttl());
        let answer = self.call_on(Purpose::Heartbeat, within, |client| call(client, request)).await?;
        Ok(self.decoded(wire::vote_response_from_proto(answer))?)
    }

    fn decoded<T>(&self, answer: Result<T, Status>) -> Result<T, Unreachable<Types>> {
        answer.map_err(|status| self.unreachable(&status.message()))
    }
}

impl RaftNetworkV2<Types> for Connection {
    type SnapshotData = Sealed;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let within = match request.entries.is_empty() {
            true => (option.soft_ttl() * self.patience).min(self.answer_within()),
            false => option.soft_ttl().max(self.answer_within()),
        };
        let request = wire::append_to_proto(Some(self.hop()), request);
        let answer = self.call(within, |mut client| async move { client.append(request).await }).await;
        // A follower answers when its disk has what came before. On a slow disk that takes longer than a heartbeat.
        self.patience = if answer.is_ok() { (self.patience / 2).max(1) } else { (self.patience * 2).min(PATIENCE_MAX) };
        Ok(self.decoded(wire::appended_from_proto(answer?))?)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, Result<append_stream::Answers<'s>, RPCError<Types>>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        append_stream::send(self, input).boxed()
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let call = |mut client: PeerClient<Channel>, request| async move { client.vote(request).await };
        self.ask_for_vote(&request, &option, call).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let call = |mut client: PeerClient<Channel>, request| async move { client.pre_vote(request).await };
        self.ask_for_vote(&request, &option, call).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<Types, Sealed>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let (disk, sealed) = (self.peers.disk.clone(), snapshot.snapshot.clone());
        let measured = off_runtime(move || sealed.announcement(&*disk)).await;
        let (bytes, checksum) = measured.and_then(|found| Ok(found?)).map_err(|error| {
            warn!(%error, "a snapshot cannot be sent");
            self.unreachable(&error.to_string())
        })?;
        let header = wire::snapshot_header_to_proto(self.hop(), &vote, &snapshot.meta, bytes, checksum);
        let parts = snapshot_transfer::parts(self.peers.disk.clone(), header, snapshot.snapshot);
        let sending = self.call(option.soft_ttl(), |mut client| async move { client.install_snapshot(parts).await });
        let answer = tokio::select! {
            answer = sending => answer?,
            closed = cancel => return Err(closed.into()),
        };
        Ok(self.decoded(wire::snapshot_response_from_proto(answer))?)
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let request_proto = wire::transfer_to_proto(self.hop(), &request);
        let call =
            self.call(option.soft_ttl(), |mut client| async move { client.transfer_leader(request_proto).await });
        let answer = call.await?;
        if answer.accepted {
            return Ok(Ok(()));
        }
        Err(self.unreachable(&answer.reason).into())
    }

    fn backoff(&self) -> Option<Backoff> {
        let longest = RETRY_AFTER_MS[RETRY_AFTER_MS.len() - 1];
        let waits = RETRY_AFTER_MS.into_iter().chain(std::iter::repeat(longest));
        Some(Backoff::new(waits.map(Duration::from_millis)))
    }
}
