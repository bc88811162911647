//! Owns: the way to peers. A node that is its own cluster has none: every peer is unreachable, and says so.

use std::future::Future;

use openraft::OptionalSend;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::type_config::alias::SnapshotOf;

use super::types::{Types, Vote};
use crate::storage::log::record::Peer;
use crate::storage::snapshot::Sealed;

/// The network of a node without peers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

/// A peer nobody can reach.
pub struct Unreached {
    why: String,
}

impl Unreached {
    fn error(&self) -> Unreachable<Types> {
        Unreachable::from_string(&self.why)
    }
}

impl RaftNetworkFactory<Types> for Alone {
    type Network = Unreached;

    async fn new_client(&mut self, target: u64, peer: &Peer) -> Unreached {
        Unreached { why: format!("node {target} at {peer:?}: this node runs without a peer network") }
    }
}

impl RaftNetworkV2<Types> for Unreached {
    type SnapshotData = Sealed;

    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(self.error().into())
    }

    async fn vote(
        &mut self,
        _request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(self.error().into())
    }

    /// Must be refused here: the default grants blindly.
    async fn pre_vote(
        &mut self,
        _request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(self.error().into())
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: SnapshotOf<Types, Sealed>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(self.error().into())
    }
}
