//! Owns: the operator of the simulated cluster: brings it up, and changes who belongs to it and who leads it, over the admin
//! protocol through any node. Never: decide when.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use session_manager::proto::admin as words;
use session_manager::proto::admin::admin_client::AdminClient;
use session_manager::replication::channels::Channels;
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::determinism::Chance;
use crate::host::PEER_PORT;
use crate::network::SimulatedSockets;
use crate::recorder::Recorder;

const CALL_MAX: Duration = Duration::from_secs(8);

/// What the operator is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errand {
    /// Makes a node a member that votes.
    Join(u64),
    Remove(u64),
    /// Hands leadership to the voter that is furthest, or to this one.
    Transfer(u64),
    /// Builds a snapshot on this node.
    Snapshot(u64),
}

/// Errands to do, and who is believed to be a member.
#[derive(Default)]
pub struct Desk {
    errands: Mutex<VecDeque<Errand>>,
    voters: Mutex<BTreeSet<u64>>,
    busy: Mutex<bool>,
}

impl Desk {
    pub fn ask(&self, errand: Errand) {
        lock(&self.errands).push_back(errand);
    }

    /// True when nothing is left to do.
    pub fn is_done(&self) -> bool {
        lock(&self.errands).is_empty() && !*lock(&self.busy)
    }

    /// The voters, as the last member that was asked said.
    pub fn voters(&self) -> BTreeSet<u64> {
        lock(&self.voters).clone()
    }

    fn take(&self) -> Option<Errand> {
        let errand = lock(&self.errands).pop_front();
        *lock(&self.busy) = errand.is_some();
        errand
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Operator {
    pub hosts: Vec<IpAddr>,
    pub desk: Arc<Desk>,
    pub recorder: Recorder,
    pub chance: Chance,
    channels: Channels,
}

fn call() -> Option<words::Call> {
    Some(words::Call { protocol: 1, ..words::Call::default() })
}

impl Operator {
    pub fn new(here: IpAddr, hosts: Vec<IpAddr>, desk: Arc<Desk>, recorder: Recorder, chance: Chance) -> Operator {
        let channels = Channels::new(Arc::new(SimulatedSockets { host: here }));
        Operator { hosts, desk, recorder, chance, channels }
    }

    pub async fn run(mut self) {
        loop {
            while let Some(errand) = self.desk.take() {
                let told = timeout(CALL_MAX, self.carry_out(errand)).await;
                let told = told.unwrap_or_else(|_| Err("it took too long".to_owned()));
                self.recorder.say("operator", &format!("{errand:?}: {told:?}"));
                self.look_around().await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn address(&self, node: u64) -> String {
        format!("{}:{PEER_PORT}", self.hosts[node as usize - 1])
    }

    fn client(&self, node: u64) -> Result<AdminClient<Channel>, String> {
        self.channels.admin(&self.address(node))
    }

    /// Some member to ask.
    fn anyone(&mut self) -> Result<AdminClient<Channel>, String> {
        let voters: Vec<u64> = self.desk.voters().into_iter().collect();
        let node = self.chance.pick(&voters).copied().unwrap_or(1);
        self.client(node)
    }

    async fn carry_out(&mut self, errand: Errand) -> Result<(), String> {
        let mut anyone = self.anyone()?;
        let failed = |status: tonic::Status| status.message().to_owned();
        match errand {
            Errand::Join(node) => {
                let add = words::AddLearnerRequest { call: call(), node, address: self.address(node) };
                anyone.add_learner(add).await.map_err(failed)?;
                anyone.promote(words::PromoteRequest { call: call(), node }).await.map_err(failed)?;
            }
            Errand::Remove(node) => {
                let remove = words::RemoveRequest { call: call(), node, ..words::RemoveRequest::default() };
                anyone.remove(remove).await.map_err(failed)?;
            }
            Errand::Transfer(to) => {
                let transfer = words::TransferLeaderRequest { call: call(), to };
                anyone.transfer_leader(transfer).await.map_err(failed)?;
            }
            Errand::Snapshot(node) => {
                self.client(node)?.snapshot(words::SnapshotRequest { call: call() }).await.map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Asks who votes now.
    pub async fn look_around(&mut self) {
        for node in 1..=self.hosts.len() as u64 {
            let Ok(mut client) = self.client(node) else { continue };
            let asked = client.status(words::StatusRequest { call: call() });
            let Ok(Ok(status)) = timeout(Duration::from_secs(1), asked).await else { continue };
            let status = status.into_inner();
            if status.role() != words::Role::Leader {
                continue;
            }
            let voters: BTreeSet<u64> =
                status.members.iter().filter(|member| member.voter).map(|member| member.node).collect();
            if !voters.is_empty() {
                *lock(&self.desk.voters) = voters;
                return;
            }
        }
    }
}
