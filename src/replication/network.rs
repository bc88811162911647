//! Owns: what openraft says to peers, over gRPC. Every call ends: by its answer, or by its time.
//! Never: a layout of openraft's on the wire (`wire.rs` translates), nor how a stream of entries is driven (`append_stream.rs`).

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
use super::hop::Me;
use super::snapshot_transfer;
use super::types::{Types, Vote};
use super::wire;
use crate::proto::peer::peer_client::PeerClient;
use crate::storage::disk::Disk;
use crate::storage::log::record::Peer;
use crate::storage::snapshot::Sealed;

/// Entries may be large and a follower's disk busy; openraft's own time for an append is a heartbeat.
const APPEND_TIMEOUT: Duration = Duration::from_secs(2);

/// How long to wait before a peer that cannot be reached is tried again, from the first failure on.
const RETRY_AFTER_MS: [u64; 5] = [20, 50, 100, 200, 400];

/// The way to all peers.
#[derive(Clone)]
pub struct Peers {
    pub me: Arc<Me>,
    pub channels: Arc<Channels>,
    pub disk: Arc<dyn Disk>,
}

/// The way to one of them.
pub struct Connection {
    peers: Peers,
    node: u64,
    peer: Peer,
    purpose: Purpose,
    /// What it said when it last refused, so that it is said once.
    refused: Option<String>,
}

impl Peers {
    fn connection(&self, node: u64, peer: &Peer, purpose: Purpose) -> Connection {
        Connection { peers: self.clone(), node, peer: peer.clone(), purpose, refused: None }
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
    pub(super) fn hop(&self) -> crate::proto::peer::Hop {
        self.peers.me.hop(self.node, &self.peer)
    }

    /// Makes one call within its time. A connection that let it run out is not used again.
    async fn call<Answer, Calling>(
        &mut self,
        within: Duration,
        call: impl FnOnce(PeerClient<Channel>) -> Calling,
    ) -> Result<Answer, Unreachable<Types>>
    where
        Calling: Future<Output = Result<Response<Answer>, Status>>,
    {
        let client = self.client()?;
        match timeout(within, call(client)).await {
            Ok(Ok(answer)) => {
                self.refused = None;
                Ok(answer.into_inner())
            }
            Ok(Err(status)) => Err(self.refused(status)),
            Err(_) => Err(self.hangs(within)),
        }
    }

    pub(super) fn client(&self) -> Result<PeerClient<Channel>, Unreachable<Types>> {
        let client = self.peers.channels.peer(&self.peer.address, self.purpose);
        client.map_err(|why| self.unreachable(&why))
    }

    /// Drops a connection that let a call run out of its time.
    pub(super) fn hangs(&self, within: Duration) -> Unreachable<Types> {
        self.peers.channels.forget(&self.peer.address, self.purpose);
        self.unreachable(&format!("no answer within {within:?}"))
    }

    /// It takes what it is sent: another refusal would be news again.
    pub(super) fn is_understood(&mut self) {
        self.refused = None;
    }

    pub(super) fn refused(&mut self, status: Status) -> Unreachable<Types> {
        let why = status.message().to_owned();
        let needs_operator = matches!(status.code(), Code::FailedPrecondition | Code::InvalidArgument | Code::DataLoss);
        if needs_operator && self.refused.as_ref() != Some(&why) {
            warn!(node = self.node, address = self.peer.address, why, "a peer refuses this node");
            self.refused = Some(why.clone());
        }
        self.unreachable(&why)
    }

    pub(super) fn unreachable(&self, why: &str) -> Unreachable<Types> {
        Unreachable::from_string(format!("node {} at {:?}: {why}", self.node, self.peer.address))
    }

    fn understood<T>(&self, answer: Result<T, Status>) -> Result<T, Unreachable<Types>> {
        answer.map_err(|status| self.unreachable(status.message()))
    }
}

impl RaftNetworkV2<Types> for Connection {
    type SnapshotData = Sealed;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let within = if request.entries.is_empty() { option.soft_ttl() } else { option.soft_ttl().max(APPEND_TIMEOUT) };
        let request = wire::spell_append(Some(self.hop()), request);
        let answer = self.call(within, |mut client| async move { client.append(request).await }).await?;
        Ok(self.understood(wire::appended(answer))?)
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
        let request = wire::spell_vote_request(self.hop(), &request);
        let answer = self.call(option.soft_ttl(), |mut client| async move { client.vote(request).await }).await?;
        Ok(self.understood(wire::vote_response(answer))?)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let request = wire::spell_vote_request(self.hop(), &request);
        let answer = self.call(option.soft_ttl(), |mut client| async move { client.pre_vote(request).await }).await?;
        Ok(self.understood(wire::vote_response(answer))?)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<Types, Sealed>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let Sealed { bytes, checksum, .. } = snapshot.snapshot;
        let header = wire::spell_snapshot_header(self.hop(), &vote, &snapshot.meta, bytes, checksum);
        let parts = snapshot_transfer::parts(self.peers.disk.clone(), header, snapshot.snapshot);
        let sending = self.call(option.soft_ttl(), |mut client| async move { client.install_snapshot(parts).await });
        let answer = tokio::select! {
            answer = sending => answer?,
            closed = cancel => return Err(closed.into()),
        };
        Ok(self.understood(wire::snapshot_response(answer))?)
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let spelled = wire::spell_transfer(self.hop(), &request);
        let call = self.call(option.soft_ttl(), |mut client| async move { client.transfer_leader(spelled).await });
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
