//! Owns: the answers of this node to others that look for a cluster: before it has one itself, and as a member.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use openraft::async_runtime::WatchReceiver;
use tonic::{Request, Response, Status};

use super::super::leader::Leader;
use super::super::membership::MembershipChanges;
use super::super::sender::Sender;
use super::meeting::{Meeting, forming_to_proto};
use super::record::{Record, Who};
use crate::access::credentials::now_ms;
use crate::machine::level::NEWEST;
use crate::proto::formation::formation_server::Formation;
use crate::proto::formation::meet_response::State;
use crate::proto::formation::{
    Belongs, JoinRequest, JoinResponse, MeetRequest, MeetResponse, ProbeRequest, ProbeResponse,
};

/// Addresses that callers told. Further ones are not remembered.
const CALLERS_MAX: usize = 64;

/// A node without a cluster.
pub struct Waiting {
    pub address: String,
    pub record: Arc<Mutex<Record>>,
    /// The addresses of nodes that met this one: it meets them too.
    pub callers: Arc<Mutex<BTreeSet<String>>>,
}

#[tonic::async_trait]
impl Formation for Waiting {
    async fn meet(&self, request: Request<MeetRequest>) -> Result<Response<MeetResponse>, Status> {
        Sender::of(&request).check_peer(None)?;
        let caller = Who::from_proto(request.into_inner().caller);
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if !caller.address.is_empty() && callers.len() < CALLERS_MAX {
            callers.insert(caller.address);
        }
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let who = Who { name: record.name.clone(), instance: record.instance.clone(), address: self.address.clone() };
        Ok(Response::new(answer(&who, forming_to_proto(&record))))
    }

    async fn join(&self, _request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        Err(Status::unavailable("this node belongs to no cluster yet"))
    }

    async fn probe(&self, _request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Err(Status::unavailable("this node belongs to no cluster yet"))
    }
}

fn answer(who: &Who, state: State) -> MeetResponse {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    MeetResponse { who: Some(who.to_proto()), state: Some(state), now_ms: now_ms(), version, knows_level: NEWEST }
}

/// A member of a cluster.
pub struct Member {
    pub own: Who,
    pub membership: Arc<MembershipChanges>,
}

impl Member {
    fn meeting(&self) -> Meeting {
        Meeting { own: self.own.clone(), channels: self.membership.peers.channels.clone() }
    }
}

#[tonic::async_trait]
impl Formation for Member {
    async fn meet(&self, request: Request<MeetRequest>) -> Result<Response<MeetResponse>, Status> {
        Sender::of(&request).check_peer(None)?;
        let caller = Who::from_proto(request.into_inner().caller);
        let local = &self.membership.peers.local;
        let cluster_id = local.data_dir.identity().cluster_id;
        // A node that was started by hand and waits for an invitation founds nothing, and joins nothing by itself.
        if cluster_id.is_empty() {
            return Err(Status::unimplemented("this node waits for an invitation"));
        }
        let members = self.membership.raft.server_metrics().borrow_watched().membership_config.clone();
        let knows_caller = members.membership().nodes().any(|(_, peer)| peer.instance == caller.instance);
        let state = State::Belongs(Belongs { cluster_id, node: local.node, knows_caller });
        Ok(Response::new(answer(&self.own, state)))
    }

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        Sender::of(&request).check_peer(None)?;
        let request = request.into_inner();
        let leader = Leader::of(&self.membership.raft);
        let leader = leader.ok_or_else(|| Status::unavailable("the cluster has no leader at the moment; retry"))?;
        let local = &self.membership.peers.local;
        if leader.node == local.node {
            let who = Who::from_proto(request.who);
            let node = self.membership.take_in(&who, request.node, &self.meeting()).await?;
            return Ok(Response::new(JoinResponse { cluster_id: local.data_dir.identity().cluster_id, node }));
        }
        if request.forwarded {
            return Err(Status::unavailable("leadership moved; retry"));
        }
        let client = self.membership.peers.channels.formation(&leader.peer.address);
        let mut client = client.map_err(|error| Status::unavailable(error.to_string()))?;
        client.join(JoinRequest { forwarded: true, ..request }).await
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Sender::of(&request).check_peer(None)?;
        let ProbeRequest { address, instance } = request.into_inner();
        let answer = self.meeting().one(&address).await;
        let answers = answer.is_some_and(|answer| answer.met.who.instance == instance);
        Ok(Response::new(ProbeResponse { answers }))
    }
}
