//! Owns: the cluster of this node as the port for clients shows it to operators. Changes go the way of the admin protocol,
//! so that both doors refuse and forward alike.
//! Never: who may ask. The port has checked that.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use serde_json::Value;
use tokio::time::timeout;
use tonic::{Request, Status};

use super::running::Signals;
use crate::access::Identity;
use crate::admin::survey::Survey;
use crate::admin::{AdminError, PROTOCOL, error_of};
use crate::proposal::raft::RaftAdapter;
use crate::proto::admin::admin_server::Admin;
use crate::proto::admin::{
    AddLearnerRequest, Call, Member, PromoteRequest, RemoveRequest, SnapshotRequest, StatusRequest, StatusResponse,
    TransferLeaderRequest,
};
use crate::replication::admin_service::AdminService;
use crate::replication::sender::Sender;
use crate::surface::cluster::{Addition, NoCluster, OperateError, Operation, Operator, Promotion, Removal, Transfer};

/// A member that does not answer must not delay the others for long.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Asks the member that this node is now. A reload may replace it.
pub struct NodeOperator(pub Weak<Signals>);

impl Operator for NodeOperator {
    fn status(&self) -> BoxFuture<'static, Result<Value, OperateError>> {
        match self.member() {
            Some(member) => async move { survey(&member).await.map(|survey| survey.json()).map_err(refusal) }.boxed(),
            None => NoCluster.status(),
        }
    }

    fn operate(&self, operation: Operation, caller: Arc<Identity>) -> BoxFuture<'static, Result<Value, OperateError>> {
        match self.member() {
            Some(member) => async move {
                change(&member, operation, &caller).await.map_err(|status| refused(&status))?;
                survey(&member).await.map(|survey| survey.json()).map_err(refusal)
            }
            .boxed(),
            None => NoCluster.operate(operation, caller),
        }
    }
}

impl NodeOperator {
    fn member(&self) -> Option<Arc<RaftAdapter>> {
        self.0.upgrade()?.member()
    }
}

/// Every member with its own status.
async fn survey(member: &RaftAdapter) -> Result<Survey, AdminError> {
    let replica = member.replica();
    let own = AdminService::of(replica).status(Request::new(StatusRequest { call: Some(call()) })).await;
    let own = own.map_err(|status| error_of(&status, "this node", ANSWER_MAX))?.into_inner();
    let others = own.members.iter().filter(|member| member.node != own.node);
    let answers = join_all(others.map(|other| async { (other.node, ask(member, other).await) }));
    let mut answers: BTreeMap<u64, Result<StatusResponse, AdminError>> = answers.await.into_iter().collect();
    answers.insert(own.node, Ok(own.clone()));
    Ok(Survey::of(&own, answers))
}

async fn ask(member: &RaftAdapter, other: &Member) -> Result<StatusResponse, AdminError> {
    let peer = other.address.clone();
    let client = member.replica().membership().peers.channels.admin(&peer);
    let mut client = client.map_err(|error| AdminError::Unreachable { peer: peer.clone(), why: error.to_string() })?;
    match timeout(ANSWER_MAX, client.status(StatusRequest { call: Some(call()) })).await {
        Ok(Ok(answered)) => Ok(answered.into_inner()),
        Ok(Err(status)) => Err(error_of(&status, &peer, ANSWER_MAX)),
        Err(_) => Err(AdminError::Late { peer, call_max: ANSWER_MAX }),
    }
}

async fn change(member: &RaftAdapter, operation: Operation, caller: &Identity) -> Result<(), Status> {
    let (admin, call) = (AdminService::of(member.replica()), Some(call()));
    fn by<R>(request: R, caller: &Identity) -> Request<R> {
        let mut request = Request::new(request);
        request.extensions_mut().insert(Sender::local(&caller.name));
        request
    }
    match operation {
        Operation::TransferLeader(Transfer { to }) => {
            admin.transfer_leader(by(TransferLeaderRequest { call, to: to.unwrap_or(0) }, caller)).await?;
        }
        Operation::Snapshot => {
            admin.snapshot(by(SnapshotRequest { call }, caller)).await?;
        }
        Operation::Add(Addition { node, address }) => {
            admin.add_learner(by(AddLearnerRequest { call, node, address }, caller)).await?;
        }
        Operation::Promote(Promotion { node }) => {
            admin.promote(by(PromoteRequest { call, node }, caller)).await?;
        }
        Operation::Remove(Removal { node, force }) => {
            admin.remove(by(RemoveRequest { call, node, force }, caller)).await?;
        }
    }
    Ok(())
}

fn call() -> Call {
    Call { protocol: PROTOCOL, ..Call::default() }
}

fn refused(status: &Status) -> OperateError {
    refusal(error_of(status, "the leader", ANSWER_MAX))
}

fn refusal(error: AdminError) -> OperateError {
    match error.is_retryable() {
        true => OperateError::Unavailable(error.to_string()),
        false => OperateError::Refused(error.to_string()),
    }
}
