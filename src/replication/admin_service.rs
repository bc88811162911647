//! Owns: the calls this node answers to an operator. A call that needs the leader is forwarded to it, once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::BoxStream;
use openraft::{Instant as _, ServerState};
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use super::backup;
use super::checkpoint::Checkpoint;
use super::disk_space::DiskSpace;
use super::leader::Leader;
use super::leader_write::LeaderWrite;
use super::membership::{MembershipChanges, heard, lag};
use super::peer_service::OnCluster;
use super::raise::NotRaised;
use super::read_index::ReadIndex;
use super::replica::Replica;
use super::self_report::{CertificateEnd, DescribeNode};
use super::sender::Sender;
use super::types::Types;
use super::{RAFT_GROUP, identity};
use crate::machine::level::NEWEST;
use crate::proto::admin::admin_client::AdminClient;
use crate::proto::admin::admin_server::Admin;
use crate::proto::admin::{
    AddLearnerRequest, BackupPart, BackupRequest, Call, Certificate, ChangeResponse, FinalizeRequest, FinalizeResponse,
    Health, InitRequest, Member, PromoteRequest, RemoveRequest, Role, SnapshotRequest, SnapshotResponse, StatusRequest,
    StatusResponse, TransferLeaderRequest, UpdateMemberRequest,
};
use crate::storage::Store;
use crate::storage::disk::Disk;
use crate::storage::log::Log;
use crate::storage::log::record::Peer;
use crate::storage::snapshot::Snapshots;

/// The version of the admin protocol this build speaks.
const PROTOCOL: u32 = 1;
/// A leader that has not heard from a quorum for this long reports `no leader`.
const QUORUM_LOST: Duration = Duration::from_secs(2);
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a backup waits until this node has applied what was acknowledged before it.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(60);
/// A node that has just joined learns the addresses of the others in this time.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit of a forwarded change. It is longer than the limits of the change itself.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(40);

pub struct AdminService {
    pub membership: Arc<MembershipChanges>,
    pub store: Arc<dyn Store>,
    pub snapshots: Arc<Snapshots>,
    pub log: Log,
    pub disk: Arc<dyn Disk>,
    pub disk_space: Arc<DiskSpace>,
    pub read_index: Arc<ReadIndex>,
    /// The address and instance of this node, as peers know it.
    pub peer: Peer,
    pub on_cluster: Option<OnCluster>,
    pub describe: DescribeNode,
    /// Commits what an operator decides. A door of the same process has none.
    pub writes: Option<Arc<LeaderWrite>>,
}

impl AdminService {
    /// The calls about a member, for a door of the same process.
    pub fn of(replica: &Replica) -> AdminService {
        AdminService {
            membership: replica.membership().clone(),
            store: replica.store().clone(),
            snapshots: replica.snapshots().clone(),
            log: replica.log().clone(),
            disk: replica.disk().clone(),
            disk_space: replica.disk_space().clone(),
            read_index: replica.read_index().clone(),
            peer: replica.peer().clone(),
            on_cluster: None,
            describe: replica.describe().clone(),
            writes: None,
        }
    }

    /// Refuses who is no operator, and says so in the log.
    fn admit<R>(&self, what: &'static str, request: Request<R>) -> Result<R, Status> {
        let sender = Sender::of(&request);
        let (admitted, caller) = (sender.check_operator(), sender.name());
        match &admitted {
            // The status is read every few seconds by some tools, and changes nothing.
            Ok(()) if what == "status" => {}
            Ok(()) => {
                tracing::info!(target: "audit", caller, door = "admin", call = what, outcome = "allowed", "audit")
            }
            Err(_) => {
                tracing::warn!(target: "audit", caller, door = "admin", call = what, outcome = "refused", "audit")
            }
        }
        admitted.map(|()| request.into_inner())
    }

    fn accept(&self, call: Option<&Call>) -> Result<(), Status> {
        let wrong = |why: String| Err(Status::failed_precondition(why));
        let call =
            call.ok_or_else(|| Status::invalid_argument("call: missing; every admin request begins with one"))?;
        let local = &self.membership.peers.local;
        let ours = local.data_dir.identity().cluster_id;
        if call.protocol != PROTOCOL {
            let theirs = call.protocol;
            return wrong(format!("the call speaks admin protocol {theirs}, node {} speaks {PROTOCOL}", local.node));
        }
        if call.group != RAFT_GROUP {
            return wrong(format!("the call is for group {}, node {} serves {RAFT_GROUP}", call.group, local.node));
        }
        if !call.cluster_id.is_empty() && call.cluster_id != ours {
            return wrong(format!(
                "the call is for cluster {}, node {} belongs to {ours:?}",
                call.cluster_id, local.node
            ));
        }
        if call.node != 0 && call.node != local.node {
            return wrong(format!("the call is for node {}, but node {} listens here", call.node, local.node));
        }
        Ok(())
    }

    /// A client of the leader, if that is another node.
    async fn other_leader(
        &self,
        call: Option<&Call>,
    ) -> Result<Option<(AdminClient<tonic::transport::Channel>, Call)>, Status> {
        self.accept(call)?;
        let leader = Leader::of(&self.membership.raft);
        let mut leader = leader.ok_or_else(|| Status::unavailable("the cluster has no leader at the moment; retry"))?;
        if leader.node == self.membership.peers.local.node {
            return Ok(None);
        }
        if leader.peer.address.is_empty() {
            let known = Leader::with_address(&self.membership.raft, ADDRESS_TIMEOUT).await;
            let unknown = || Status::unavailable("this node does not know the address of the leader yet; retry");
            leader = known.ok_or_else(unknown)?;
        }
        if call.is_some_and(|call| call.forwarded) {
            return Err(Status::unavailable(format!("leadership moved to node {}; retry", leader.node)));
        }
        let client = self
            .membership
            .peers
            .channels
            .admin(&leader.peer.address)
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let cluster_id = self.membership.peers.local.data_dir.identity().cluster_id;
        Ok(Some((
            client,
            Call { protocol: PROTOCOL, cluster_id, group: RAFT_GROUP, node: leader.node, forwarded: true },
        )))
    }

    /// Builds snapshots until one holds this entry. One that is being built may have begun before.
    async fn snapshot_after(&self, applied: u64) -> Result<(), Status> {
        let raft = &self.membership.raft;
        loop {
            let had = index(&self.membership.metrics().snapshot);
            if had >= Some(applied) {
                return Ok(());
            }
            if !self.disk_space.has_room_for(self.snapshots.newest().map_or(0, |newest| newest.whole_bytes())) {
                let node = self.membership.peers.local.node;
                return Err(Status::resource_exhausted(format!(
                    "node {node} has no space for a snapshot on its disk; ask another node"
                )));
            }
            raft.trigger().snapshot().await.map_err(|fatal| Status::unavailable(fatal.to_string()))?;
            let newer = |metrics: &openraft::RaftMetrics<Types>| index(&metrics.snapshot) > had;
            let built = raft.wait(Some(SNAPSHOT_TIMEOUT)).metrics(newer, "the snapshot is on disk").await;
            built.map_err(|error| Status::deadline_exceeded(error.to_string()))?;
        }
    }

    /// Waits until this node has applied everything that was acknowledged before this call. Returns its index.
    async fn caught_up(&self) -> Result<u64, Status> {
        let not_now = |why: &dyn std::fmt::Display| {
            Status::unavailable(format!("{why}; --local backs up what this node has, without a leader"))
        };
        let index = self.read_index.confirm().await.map_err(|error| not_now(&error))?;
        let wait = self.membership.raft.wait(Some(CATCH_UP_TIMEOUT));
        let applied = wait.applied_index_at_least(Some(index), "everything acknowledged is applied").await;
        applied.map_err(|error| not_now(&error))?;
        Ok(index)
    }

    fn changed(&self) -> ChangeResponse {
        let metrics = self.membership.metrics();
        ChangeResponse { leader: metrics.current_leader.unwrap_or(0), members: members(&metrics) }
    }

    fn status_now(&self) -> Result<StatusResponse, Status> {
        let metrics = self.membership.metrics();
        let identity = self.membership.peers.local.data_dir.identity();
        let checkpoint = self.store.checkpoint().and_then(|mark| Checkpoint::of(mark, RAFT_GROUP));
        let checkpoint = checkpoint.map_err(|fault| Status::unavailable(fault.0))?;
        let report = (self.describe)();
        let certificate =
            |end: CertificateEnd| Certificate { port: end.port.to_owned(), not_after_ms: end.not_after_ms };
        let (role, health, health_reason) =
            condition(&metrics, identity.cluster_id.is_empty(), self.membership.peers.signs.silence());
        let mut warnings = report.warnings;
        if self.disk_space.own_is_low() {
            let (free, min) = (report.disk_free_bytes, self.disk_space.min_free());
            warnings.push(format!(
                "the disk is nearly full: {free} bytes are free, min_free_bytes is {min}; the cluster accepts no writes"
            ));
        }
        Ok(StatusResponse {
            cluster_id: identity.cluster_id,
            node: metrics.id,
            role: role as i32,
            term: metrics.current_term,
            leader: metrics.current_leader.unwrap_or(0),
            last_log: metrics.last_log_index,
            applied: checkpoint.applied.map(|applied| applied.index),
            state_hash: format!("{:032x}", checkpoint.state_hash),
            members: members(&metrics),
            health: health as i32,
            health_reason,
            snapshot: self.snapshots.newest().map(|newest| newest.index),
            address: self.peer.address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sync_us: self.log.sync_time().as_micros() as u64,
            sync_us_max: self.membership.peers.signs.times.sync_max().as_micros() as u64,
            client_url: report.client_url,
            warnings,
            certificates: report.certificates.into_iter().map(certificate).collect(),
            memory_bytes: report.memory_bytes,
            disk_free_bytes: report.disk_free_bytes,
            disk_size_bytes: report.disk_size_bytes,
            level: self.membership.level().map_err(|fault| Status::unavailable(fault.0))?,
            knows_level: NEWEST,
            disk_low: self.disk_space.own_is_low(),
            min_free_bytes: self.disk_space.min_free(),
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
        name: peer.name.clone(),
    };
    membership.nodes().map(member).collect()
}

fn index(id: &Option<super::types::LogId>) -> Option<u64> {
    id.as_ref().map(|id| id.index)
}

/// The role of a node, whether it can serve, and the reason if not. `silence`: how long it has heard of no leader.
pub fn condition(metrics: &openraft::RaftMetrics<Types>, waiting: bool, silence: Duration) -> (Role, Health, String) {
    if let Err(fatal) = &metrics.running_state {
        return (Role::Stopped, Health::Failed, fatal.to_string());
    }
    if waiting {
        return (Role::Waiting, Health::Waiting, "waiting for the invitation of a cluster".to_owned());
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
        // Without a quorum for a new one, openraft keeps the leader that it knew.
        (Some(leader), _) if leader != metrics.id && silence > QUORUM_LOST => {
            (role, Health::NoLeader, format!("node {leader}, which led, is silent"))
        }
        (Some(_), _) => (role, Health::Ok, String::new()),
    }
}

/// Waits for the leader's answer to a forwarded call.
async fn forward<Answer>(
    call: impl Future<Output = Result<Response<Answer>, Status>>,
) -> Result<Response<Answer>, Status> {
    timeout(FORWARD_TIMEOUT, call)
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded("the leader does not answer; check the status")))
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.accept(self.admit("status", request)?.call.as_ref())?;
        Ok(Response::new(self.status_now()?))
    }

    async fn init(&self, request: Request<InitRequest>) -> Result<Response<StatusResponse>, Status> {
        self.accept(self.admit("init", request)?.call.as_ref())?;
        let local = &self.membership.peers.local;
        let ours = local.data_dir.identity().cluster_id;
        if !ours.is_empty() {
            return Err(Status::failed_precondition(format!("node {} belongs to cluster {ours} already", local.node)));
        }
        // An earlier call may have been interrupted after the first step.
        let raft = &self.membership.raft;
        if !raft.is_initialized().await.map_err(|fatal| Status::unavailable(fatal.to_string()))? {
            let founded = raft.initialize(BTreeMap::from([(local.node, self.peer.clone())])).await;
            founded.map_err(|error| Status::failed_precondition(error.to_string()))?;
        }
        local.data_dir.join(&identity::random_id()).map_err(|error| Status::failed_precondition(error.to_string()))?;
        if let Some(on_cluster) = &self.on_cluster {
            on_cluster(&local.data_dir.identity().cluster_id);
        }
        let leads = raft.wait(Some(FORWARD_TIMEOUT)).current_leader(local.node, "the founder leads").await;
        leads.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(Response::new(self.status_now()?))
    }

    async fn add_learner(&self, request: Request<AddLearnerRequest>) -> Result<Response<ChangeResponse>, Status> {
        let request = self.admit("add-learner", request)?;
        if let Some((mut leader, call)) = self.other_leader(request.call.as_ref()).await? {
            return forward(leader.add_learner(AddLearnerRequest { call: Some(call), ..request })).await;
        }
        self.membership.add_learner(request.node, &request.address).await?;
        Ok(Response::new(self.changed()))
    }

    async fn promote(&self, request: Request<PromoteRequest>) -> Result<Response<ChangeResponse>, Status> {
        let request = self.admit("promote", request)?;
        if let Some((mut leader, call)) = self.other_leader(request.call.as_ref()).await? {
            return forward(leader.promote(PromoteRequest { call: Some(call), ..request })).await;
        }
        self.membership.promote(request.node).await?;
        Ok(Response::new(self.changed()))
    }

    async fn update_member(&self, request: Request<UpdateMemberRequest>) -> Result<Response<ChangeResponse>, Status> {
        let request = self.admit("update-member", request)?;
        if let Some((mut leader, call)) = self.other_leader(request.call.as_ref()).await? {
            return forward(leader.update_member(UpdateMemberRequest { call: Some(call), ..request })).await;
        }
        self.membership.update_member(request.node, &request.address).await?;
        Ok(Response::new(self.changed()))
    }

    async fn remove(&self, request: Request<RemoveRequest>) -> Result<Response<ChangeResponse>, Status> {
        let request = self.admit("remove", request)?;
        if let Some((mut leader, call)) = self.other_leader(request.call.as_ref()).await? {
            return forward(leader.remove(RemoveRequest { call: Some(call), ..request })).await;
        }
        self.membership.remove(request.node, request.force).await?;
        Ok(Response::new(self.changed()))
    }

    async fn transfer_leader(
        &self,
        request: Request<TransferLeaderRequest>,
    ) -> Result<Response<ChangeResponse>, Status> {
        let request = self.admit("transfer-leader", request)?;
        if let Some((mut leader, call)) = self.other_leader(request.call.as_ref()).await? {
            return forward(leader.transfer_leader(TransferLeaderRequest { call: Some(call), ..request })).await;
        }
        self.membership.transfer(request.to).await?;
        Ok(Response::new(self.changed()))
    }

    async fn finalize(&self, request: Request<FinalizeRequest>) -> Result<Response<FinalizeResponse>, Status> {
        let request = self.admit("finalize", request)?;
        if let Some((mut leader, call)) = self.other_leader(request.call.as_ref()).await? {
            return forward(leader.finalize(FinalizeRequest { call: Some(call) })).await;
        }
        let writes = self.writes.as_ref().ok_or_else(|| Status::unimplemented("use the peer port"))?;
        let level = self.membership.level().map_err(|fault| Status::unavailable(fault.0))?;
        let newest = writes.replica.max_level().unwrap_or(NEWEST).min(NEWEST).max(level);
        match writes.raise_level(newest, Instant::now() + FORWARD_TIMEOUT).await {
            Ok(level) => Ok(Response::new(FinalizeResponse { level })),
            Err(why @ (NotRaised::Held { .. } | NotRaised::Older { .. })) => {
                Err(Status::failed_precondition(why.to_string()))
            }
            Err(why) => Err(Status::unavailable(why.to_string())),
        }
    }

    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Result<Response<SnapshotResponse>, Status> {
        self.accept(self.admit("snapshot", request)?.call.as_ref())?;
        let Some(applied) = index(&self.membership.metrics().last_applied) else {
            return Err(Status::failed_precondition("there is nothing to take a snapshot of yet"));
        };
        self.snapshot_after(applied).await?;
        Ok(Response::new(SnapshotResponse { index: index(&self.membership.metrics().snapshot).unwrap_or(0) }))
    }

    type BackupStream = BoxStream<'static, Result<BackupPart, Status>>;

    async fn backup(&self, request: Request<BackupRequest>) -> Result<Response<Self::BackupStream>, Status> {
        let request = self.admit("backup", request)?;
        self.accept(request.call.as_ref())?;
        let applied = match request.local {
            true => index(&self.membership.metrics().last_applied),
            false => Some(self.caught_up().await?),
        };
        let applied = applied.ok_or_else(|| Status::failed_precondition("there is nothing to back up yet"))?;
        self.snapshot_after(applied).await?;
        let cluster_id = self.membership.peers.local.data_dir.identity().cluster_id;
        let node = self.membership.peers.local.node;
        let parts = backup::parts(&self.disk, &self.snapshots, RAFT_GROUP, node, cluster_id).await?;
        Ok(Response::new(Box::pin(parts)))
    }
}
