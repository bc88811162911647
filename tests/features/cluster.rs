//! Owns: a cluster of three members for scenarios: real logs, real sockets between them, and states in sled. The scenario
//! talks to the last member, which follows.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use session_manager::dev::{Plan, form};
use session_manager::mint::Mint;
use session_manager::proposal::raft::{RaftAdapter, RaftSettings};

use crate::event_recorder::EventRecorder;

pub struct Cluster {
    /// In the order of their numbers. The first one leads, until it is stopped.
    members: Vec<Arc<RaftAdapter>>,
    /// A cluster is formed when its client ports answer. Here nobody calls there.
    _ports: Vec<TcpListener>,
}

impl Cluster {
    /// Returns when all three are voters. A second start over the same directory brings the same cluster back.
    pub async fn open(dir: &Path, mint: Arc<dyn Mint>, recorder: Arc<EventRecorder>) -> Cluster {
        let plan = Plan::prepare(dir, Some(3), None).expect("free ports");
        let mut members = Vec::new();
        for seat in &plan.seats {
            let settings = RaftSettings {
                peer_listen: Some(seat.peer),
                join: seat.node > 1,
                ..RaftSettings::new(&seat.data_dir, seat.node)
            };
            let is_last = seat.node == plan.seats.len() as u64;
            let sink = if is_last { recorder.clone() } else { EventRecorder::new() };
            let member = RaftAdapter::open(settings, mint.clone(), sink).await.expect("the data directory opens");
            members.push(Arc::new(member));
        }
        let ports = plan.seats.iter().map(|seat| TcpListener::bind(seat.client).expect("a free port")).collect();
        form(&plan, None, &mut []).await.expect("the members form a cluster");
        Cluster { members, _ports: ports }
    }

    /// The member that scenarios talk to.
    pub fn follower(&self) -> Arc<RaftAdapter> {
        self.members.last().expect("three members").clone()
    }

    /// Takes the leader away for good. The others go on.
    pub async fn stop_leader(&mut self) {
        let led = self.members.iter().position(|member| member.replica().raft().is_leader()).expect("a leader");
        assert!(led + 1 < self.members.len(), "the scenario talks to the leader");
        self.members.remove(led).shutdown().await;
    }

    pub async fn close(self) {
        for member in self.members {
            member.shutdown().await;
        }
    }
}
