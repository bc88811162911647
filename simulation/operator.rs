//! Owns: the operator of the simulated cluster. It changes members and leader over the admin protocol, through any
//! node.
//! Never: when; the nemesis decides that.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use session_manager::proto::admin as words;
use session_manager::proto::admin::admin_client::AdminClient;
use session_manager::replication::channels::Channels;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::determinism::Chance;
use crate::host::PEER_PORT;
use crate::network::SimulatedSockets;
use crate::recorder::Recorder;

const CALL_MAX: Duration = Duration::from_secs(8);

/// A task of the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Makes a node a voter.
    Join(u64),
    Remove(u64),
    /// Transfers leadership to this voter; 0: to the one with the longest log.
    Transfer(u64),
    /// Builds a snapshot on this node.
    Snapshot(u64),
}

/// Open tasks, and the voters as far as they are known.
#[derive(Default)]
pub struct TaskQueue {
    tasks: Mutex<VecDeque<Task>>,
    voters: Mutex<BTreeSet<u64>>,
    busy: Mutex<bool>,
}

impl TaskQueue {
    pub fn ask(&self, task: Task) {
        lock(&self.tasks).push_back(task);
    }

    /// True when there is no open task.
    pub fn is_done(&self) -> bool {
        lock(&self.tasks).is_empty() && !*lock(&self.busy)
    }

    /// The voters, according to the last answer of a leader.
    pub fn voters(&self) -> BTreeSet<u64> {
        lock(&self.voters).clone()
    }

    fn take(&self) -> Option<Task> {
        let task = lock(&self.tasks).pop_front();
        *lock(&self.busy) = task.is_some();
        task
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Operator {
    pub hosts: Vec<IpAddr>,
    pub tasks: Arc<TaskQueue>,
    pub recorder: Recorder,
    pub chance: Chance,
    channels: Channels,
}

fn call() -> Option<words::Call> {
    Some(words::Call { protocol: 1, ..words::Call::default() })
}

impl Operator {
    /// Must run on the runtime of the simulated operator, which its connections use.
    pub fn new(
        here: IpAddr,
        hosts: Vec<IpAddr>,
        tasks: Arc<TaskQueue>,
        recorder: Recorder,
        chance: Chance,
    ) -> Operator {
        let channels = Channels::new(Arc::new(SimulatedSockets { host: here }), None, Handle::current());
        Operator { hosts, tasks, recorder, chance, channels }
    }

    pub async fn run(mut self) {
        loop {
            while let Some(task) = self.tasks.take() {
                let result = timeout(CALL_MAX, self.execute(task)).await;
                let result = result.unwrap_or_else(|_| Err("it took too long".to_owned()));
                self.recorder.say("operator", &format!("{task:?}: {result:?}"));
                self.refresh_voters().await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn address(&self, node: u64) -> String {
        format!("{}:{PEER_PORT}", self.hosts[node as usize - 1])
    }

    fn client(&self, node: u64) -> Result<AdminClient<Channel>, String> {
        self.channels.admin(&self.address(node)).map_err(|error| error.to_string())
    }

    /// Any voter.
    fn any_voter(&mut self) -> Result<AdminClient<Channel>, String> {
        let voters: Vec<u64> = self.tasks.voters().into_iter().collect();
        let node = self.chance.pick(&voters).copied().unwrap_or(1);
        self.client(node)
    }

    async fn execute(&mut self, task: Task) -> Result<(), String> {
        let mut any_voter = self.any_voter()?;
        let failed = |status: tonic::Status| status.message().to_owned();
        match task {
            Task::Join(node) => {
                let add = words::AddLearnerRequest { call: call(), node, address: self.address(node) };
                any_voter.add_learner(add).await.map_err(failed)?;
                any_voter.promote(words::PromoteRequest { call: call(), node }).await.map_err(failed)?;
            }
            Task::Remove(node) => {
                let remove = words::RemoveRequest { call: call(), node, ..words::RemoveRequest::default() };
                any_voter.remove(remove).await.map_err(failed)?;
            }
            Task::Transfer(to) => {
                let transfer = words::TransferLeaderRequest { call: call(), to };
                any_voter.transfer_leader(transfer).await.map_err(failed)?;
            }
            Task::Snapshot(node) => {
                self.client(node)?.snapshot(words::SnapshotRequest { call: call() }).await.map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Asks the leader for the current voters.
    pub async fn refresh_voters(&mut self) {
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
                *lock(&self.tasks.voters) = voters;
                return;
            }
        }
    }
}
