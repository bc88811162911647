//! Owns: what this node answers to an operator. What only the leader can do is passed on to it, once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::{Instant as _, ServerState};
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use super::leader::Leader;
use super::membership::{Council, heard, lag};
use super::peer_service::OnCluster;
use super::types::Types;
use super::{GROUP, identity};
use crate::proto::admin::admin_client::AdminClient;
use crate::proto::admin::admin_server::Admin;
use crate::proto::admin::{
    AddLearnerRequest, Call, ChangeResponse, Health, InitRequest, Member, PromoteRequest, RemoveRequest, Role,
    SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse, TransferLeaderRequest,
};
use crate::storage::Store;
use crate::storage::log::record::Peer;
use crate::storage::snapshot::Snapshots;

/// The version of the admin protocol this build speaks.
const PROTOCOL: u32 = 1;
/// Past this without a quorum's answer a leader leads nobody.
const QUORUM_LOST: Duration = Duration::from_secs(2);
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(600);
/// A change at the leader takes at most so long, with its own limits inside.
const PASSED_ON_TIMEOUT: Duration = Duration::from_secs(40);

pub struct AdminService {
    pub council: Arc<Council>,
    pub store: Arc<dyn Store>,
    pub snapshots: Arc<Snapshots>,
    /// How peers reach this node.
    pub peer: Peer,
    pub on_cluster: Option<OnCluster>,
}

impl AdminService {
    fn accept(&self, call: Option<&Call>) -> Result<(), Status> {
        let wrong = |why: String| Err(Status::failed_precondition(why));
        let call =
            call.ok_or_else(|| Status::invalid_argument("call: missing; every admin request begins with one"))?;
        let me = &self.council.peers.me;
        let ours = me.data_dir.identity().cluster_id;
        if call.protocol != PROTOCOL {
            let theirs = call.protocol;
            return wrong(format!("the call speaks admin protocol {theirs}, node {} speaks {PROTOCOL}", me.node));
        }
        if call.group != GROUP {
            return wrong(format!("the call is for group {}, node {} serves {GROUP}", call.group, me.node));
        }
        if !call.cluster_id.is_empty() && call.cluster_id != ours {
            return wrong(format!("the call is for cluster {}, node {} belongs to {ours:?}", call.cluster_id, me.node));
        }
        if call.node != 0 && call.node != me.node {
            return wrong(format!("the call is for node {}, but node {} listens here", call.node, me.node));
        }
        Ok(())
    }

    /// A way to the leader, when that is another node.
    fn elsewhere(&self, call: Option<&Call>) -> Result<Option<(AdminClient<tonic::transport::Channel>, Call)>, Status> {
        self.accept(call)?;
        let leader = Leader::of(&self.council.raft);
        let leader = leader.ok_or_else(|| Status::unavailable("the cluster has no leader at the moment; retry"))?;
        if leader.node == self.council.peers.me.node {
            return Ok(None);
        }
        if call.is_some_and(|call| call.forwarded) {
            return Err(Status::unavailable(format!("leadership moved to node {}; retry", leader.node)));
        }
        let client = self.council.peers.channels.admin(&leader.peer.address).map_err(Status::unavailable)?;
        let cluster_id = self.council.peers.me.data_dir.identity().cluster_id;
        Ok(Some((client, Call { protocol: PROTOCOL, cluster_id, group: GROUP, node: leader.node, forwarded: true })))
    }

    fn changed(&self) -> ChangeResponse {
        let metrics = self.council.metrics();
        ChangeResponse { leader: metrics.current_leader.unwrap_or(0), members: members(&metrics) }
    }

    fn status_now(&self) -> Result<StatusResponse, Status> {
        let metrics = self.council.metrics();
        let identity = self.council.peers.me.data_dir.identity();
        let mark = self.store.mark().and_then(|mark| super::mark::Mark::of(mark, GROUP));
        let mark = mark.map_err(|fault| Status::unavailable(fault.0))?;
        let (role, health, health_reason) = condition(&metrics, identity.cluster_id.is_empty());
        Ok(StatusResponse {
            cluster_id: identity.cluster_id,
            node: metrics.id,
            role: role as i32,
            term: metrics.current_term,
            leader: metrics.current_leader.unwrap_or(0),
            last_log: metrics.last_log_index,
            applied: mark.applied.map(|applied| applied.index),
            state_hash: format!("{:032x}", mark.state_hash),
            members: members(&metrics),
            health: health as i32,
            health_reason,
            snapshot: self.snapshots.newest().map(|newest| newest.index),
            address: self.peer.address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }
}

fn members(metrics: &openraft::RaftMetrics<Types>) -> Vec<Member> {
    let membership = metrics.membership_config.membership();
    let voters: Vec<u64> = membership.voter_ids().collect();
    let member = |(node, peer): (&u64, &Peer)| Member {
        node: *node,
        address: peer.address.clone(),
        voter: voters.contains(node),
        lag: lag(metrics, *node),
        heard_ms: heard(metrics, *node).map(|ago| ago.as_millis() as u64),
    };
    membership.nodes().map(member).collect()
}

/// How a node is: its role, whether it can serve, and what is wrong otherwise.
pub fn condition(metrics: &openraft::RaftMetrics<Types>, waiting: bool) -> (Role, Health, String) {
    if let Err(fatal) = &metrics.running_state {
        return (Role::Stopped, Health::Failed, fatal.to_string());
    }
    if waiting {
        return (Role::Waiting, Health::Waiting, "started to join a cluster and not invited yet".to_owned());
    }
    let role = match metrics.state {
        ServerState::Leader => Role::Leader,
        ServerState::Follower => Role::Follower,
        ServerState::Candidate => Role::Candidate,
        ServerState::Learner => Role::Learner,
        ServerState::Shutdown => Role::Stopped,
    };
    let alone = metrics.membership_config.membership().voter_ids().count() <= 1;
    let acked = metrics.last_quorum_acked.as_ref().map(|acked| acked.elapsed());
    match (metrics.current_leader, role) {
        (None, _) => (role, Health::NoLeader, "no leader is known".to_owned()),
        (Some(_), Role::Leader) if !alone && acked.is_none_or(|ago| ago > QUORUM_LOST) => {
            (role, Health::NoLeader, "no quorum answers this leader".to_owned())
        }
        (Some(_), _) => (role, Health::Ok, String::new()),
    }
}

/// Asks the leader in this node's place.
async fn pass_on<Answer>(
    call: impl Future<Output = Result<Response<Answer>, Status>>,
) -> Result<Response<Answer>, Status> {
    timeout(PASSED_ON_TIMEOUT, call)
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded("the leader does not answer; look at the status")))
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.accept(request.into_inner().call.as_ref())?;
        Ok(Response::new(self.status_now()?))
    }

    async fn init(&self, request: Request<InitRequest>) -> Result<Response<StatusResponse>, Status> {
        self.accept(request.into_inner().call.as_ref())?;
        let me = &self.council.peers.me;
        let ours = me.data_dir.identity().cluster_id;
        if !ours.is_empty() {
            return Err(Status::failed_precondition(format!("node {} belongs to cluster {ours} already", me.node)));
        }
        // An earlier call may have been cut off after the first step.
        let raft = &self.council.raft;
        if !raft.is_initialized().await.map_err(|fatal| Status::unavailable(fatal.to_string()))? {
            let founded = raft.initialize(BTreeMap::from([(me.node, self.peer.clone())])).await;
            founded.map_err(|error| Status::failed_precondition(error.to_string()))?;
        }
        me.data_dir.join(&identity::random_id()).map_err(Status::failed_precondition)?;
        if let Some(on_cluster) = &self.on_cluster {
            on_cluster(&me.data_dir.identity().cluster_id);
        }
        let leads = raft.wait(Some(PASSED_ON_TIMEOUT)).current_leader(me.node, "the founder leads").await;
        leads.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(Response::new(self.status_now()?))
    }

    async fn add_learner(&self, request: Request<AddLearnerRequest>) -> Result<Response<ChangeResponse>, Status> {
        let request = request.into_inner();
        if let Some((mut leader, call)) = self.elsewhere(request.call.as_ref())? {
            return pass_on(leader.add_learner(AddLearnerRequest { call: Some(call), ..request })).await;
        }
        self.council.add_learner(request.node, &request.address).await?;
        Ok(Response::new(self.changed()))
    }

    async fn promote(&self, request: Request<PromoteRequest>) -> Result<Response<ChangeResponse>, Status> {
        let request = request.into_inner();
        if let Some((mut leader, call)) = self.elsewhere(request.call.as_ref())? {
            return pass_on(leader.promote(PromoteRequest { call: Some(call), ..request })).await;
        }
        self.council.promote(request.node).await?;
        Ok(Response::new(self.changed()))
    }

    async fn remove(&self, request: Request<RemoveRequest>) -> Result<Response<ChangeResponse>, Status> {
        let request = request.into_inner();
        if let Some((mut leader, call)) = self.elsewhere(request.call.as_ref())? {
            return pass_on(leader.remove(RemoveRequest { call: Some(call), ..request })).await;
        }
        self.council.remove(request.node, request.force).await?;
        Ok(Response::new(self.changed()))
    }

    async fn transfer_leader(
        &self,
        request: Request<TransferLeaderRequest>,
    ) -> Result<Response<ChangeResponse>, Status> {
        let request = request.into_inner();
        if let Some((mut leader, call)) = self.elsewhere(request.call.as_ref())? {
            return pass_on(leader.transfer_leader(TransferLeaderRequest { call: Some(call), ..request })).await;
        }
        self.council.transfer(request.to).await?;
        Ok(Response::new(self.changed()))
    }

    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Result<Response<SnapshotResponse>, Status> {
        self.accept(request.into_inner().call.as_ref())?;
        let index = |id: &Option<super::types::LogId>| id.as_ref().map(|id| id.index);
        let before = self.council.metrics();
        let (had, applied) = (index(&before.snapshot), index(&before.last_applied));
        let Some(applied) = applied else {
            return Err(Status::failed_precondition("there is nothing to take a snapshot of yet"));
        };
        let raft = &self.council.raft;
        raft.trigger().snapshot().await.map_err(|fatal| Status::unavailable(fatal.to_string()))?;
        let built = |metrics: &openraft::RaftMetrics<Types>| {
            let now = index(&metrics.snapshot);
            now > had || now >= Some(applied)
        };
        let after = raft.wait(Some(SNAPSHOT_TIMEOUT)).metrics(built, "the snapshot is on disk").await;
        let after = after.map_err(|error| Status::deadline_exceeded(error.to_string()))?;
        Ok(Response::new(SnapshotResponse { index: index(&after.snapshot).unwrap_or(0) }))
    }
}
