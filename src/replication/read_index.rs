//! Owns: the read index, the log index that must be applied before a read may be answered. The leader confirms with a
//! quorum that it is still the leader; a follower asks the leader. Readers that wait at the same time share one round: those
//! of one node, and at the leader those of all nodes. The request of a follower is its confirmation too (`confirmed_by`): in
//! a cluster of three it makes a quorum together with the leader.
//! Never: return an index that a quorum did not confirm.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::errors::{LinearizableReadError, RaftError};
use openraft::{RaftState, ReadPolicy, ServerState};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::channels::Purpose;
use super::leader::Leader;
use super::network::Peers;
use super::replica::Raft;
use super::threads::Threads;
use super::types::Types;
use crate::proto::peer::ReadIndexRequest;
use crate::proto::peer::read_index_response::Outcome;
use crate::storage::log::Log;

/// Readers that wait for a round. Further readers are refused and told to retry.
const WAITING_MAX: usize = 16 << 10;

/// A round is one exchange with a quorum, and one with the leader. If it takes longer, the leader is lost.
const ROUND_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a read cannot be confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadIndexError {
    /// No leader or no quorum at the moment: retry.
    NotNow(String),
    /// This process will never confirm a read again.
    Stopped(String),
}

impl fmt::Display for ReadIndexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ReadIndexError::NotNow(why) | ReadIndexError::Stopped(why)) = self;
        f.write_str(why)
    }
}

impl std::error::Error for ReadIndexError {}

type Confirmed = Result<u64, ReadIndexError>;

pub struct ReadIndex {
    /// The rounds with the quorum, while this node is the leader. Each is for one round of the readers here, and one of
    /// each follower.
    quorum_rounds: Arc<Rounds>,
    /// The rounds of the readers of this node, with the leader.
    local_rounds: Rounds,
    raft: Raft,
}

impl ReadIndex {
    /// Rounds of the readers here run on the runtime of the clients, those with the quorum on the one of consensus.
    pub fn new(raft: Raft, peers: Peers, log: Log, threads: &Threads) -> ReadIndex {
        let quorum_rounds = {
            let raft = raft.clone();
            Arc::new(Rounds::start(threads.consensus(), move || {
                let raft = raft.clone();
                async move { ask_quorum(&raft).await }
            }))
        };
        let local_rounds = {
            let (raft, quorum_rounds, follower) = (raft.clone(), quorum_rounds.clone(), Arc::new((peers, log)));
            Rounds::start(threads.clients(), move || {
                let (raft, quorum_rounds, follower) = (raft.clone(), quorum_rounds.clone(), follower.clone());
                async move { ask_current_leader(&raft, &quorum_rounds, &follower.0, &follower.1).await }
            })
        };
        ReadIndex { quorum_rounds, local_rounds, raft }
    }

    /// Aborts the rounds in progress. Afterwards no task holds anything of this node.
    pub async fn stop(&self) {
        self.local_rounds.stop().await;
        self.quorum_rounds.stop().await;
    }

    /// The index that must be applied here before a query that arrives now may be answered.
    pub async fn confirm(&self) -> Confirmed {
        self.local_rounds.join().await
    }

    /// The same for a follower that asks this node as its leader. `term` is what it confirms, or 0.
    pub async fn confirm_as_leader(&self, follower: u64, term: u64) -> Confirmed {
        if term > 0 {
            // Runs in the task of consensus, so it sees the state of one moment, after the request.
            let confirmed = self.raft.with_raft_state(move |state| confirmed_by(state, follower, term)).await;
            if let Ok(Some(index)) = confirmed {
                return Ok(index);
            }
        }
        self.quorum_rounds.join().await
    }
}

/// One round after the other, each for all readers that asked before it began.
struct Rounds {
    readers: mpsc::Sender<oneshot::Sender<Confirmed>>,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Rounds {
    fn start<F>(runtime: &Handle, round: impl Fn() -> F + Send + 'static) -> Rounds
    where
        F: Future<Output = Confirmed> + Send,
    {
        let (readers, mut queue) = mpsc::channel::<oneshot::Sender<Confirmed>>(WAITING_MAX);
        let task = runtime.spawn(async move {
            let mut waiting = Vec::new();
            while queue.recv_many(&mut waiting, WAITING_MAX).await > 0 {
                // Readers that are on their way join: a round costs more than all the rest of a small read. This waits
                // for nothing but the tasks that can run now.
                tokio::task::yield_now().await;
                while waiting.len() < WAITING_MAX
                    && let Ok(reader) = queue.try_recv()
                {
                    waiting.push(reader);
                }
                let confirmed = round().await;
                for reader in waiting.drain(..) {
                    // The send fails if the reader's deadline has passed.
                    let _ = reader.send(confirmed.clone());
                }
            }
        });
        Rounds { readers, task: Mutex::new(Some(AbortOnDropHandle::new(task))) }
    }

    async fn stop(&self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.abort();
            // The result of an aborted task says nothing.
            let _ = task.await;
        }
    }

    /// Waits for the next round that begins after this call.
    async fn join(&self) -> Confirmed {
        let (reader, confirmed) = oneshot::channel();
        let stopping = || ReadIndexError::Stopped("this node is stopping".to_owned());
        self.readers.try_send(reader).map_err(|refused| match refused {
            TrySendError::Full(_) => ReadIndexError::NotNow(format!("{WAITING_MAX} reads wait already; retry later")),
            TrySendError::Closed(_) => stopping(),
        })?;
        confirmed.await.unwrap_or_else(|_| Err(stopping()))
    }
}

/// The read index, if a follower that has voted for no later term than this makes a quorum together with this node.
///
/// A later leader needs the votes of a quorum, and every two quorums share a node. The follower looked at its vote after its
/// readers had asked, and this node looks now: so nobody led a later term when they asked, and all that was acknowledged
/// before was committed by this leader or by earlier ones. The first entry of its own term ends theirs.
fn confirmed_by(state: &RaftState<Types>, follower: u64, term: u64) -> Option<u64> {
    let vote = state.vote_ref();
    let this_node = vote.leader_id.node;
    let committed = state.local_committed().filter(|committed| committed.leader_id == vote.leader_id)?;
    let is_leader = state.server_state == ServerState::Leader && vote.committed && vote.leader_id.term == term;
    let quorum = |config: &BTreeSet<u64>| {
        let confirming = [this_node, follower].iter().filter(|node| config.contains(node)).count();
        confirming * 2 > config.len()
    };
    let membership = state.membership_state.effective().membership();
    let all_agree = follower != this_node && membership.get_joint_config().iter().all(quorum);
    (is_leader && all_agree).then_some(committed.index)
}

async fn ask_current_leader(raft: &Raft, quorum_rounds: &Rounds, peers: &Peers, log: &Log) -> Confirmed {
    match Leader::of(raft) {
        Some(leader) if leader.node == peers.local.node => quorum_rounds.join().await,
        Some(leader) => ask_leader(&leader, peers, log).await,
        None => match ask_quorum(raft).await {
            // Asked only to find out whether consensus has stopped on this node.
            Err(stopped @ ReadIndexError::Stopped(_)) => Err(stopped),
            Ok(_) | Err(ReadIndexError::NotNow(_)) => Err(ReadIndexError::NotNow(no_leader())),
        },
    }
}

/// The read index of a node that is the leader.
async fn ask_quorum(raft: &Raft) -> Confirmed {
    match timeout(ROUND_TIMEOUT, raft.get_read_linearizer(ReadPolicy::ReadIndex)).await {
        Ok(Ok(linearizer)) => Ok(linearizer.read_log_id().index()),
        Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_)))) => {
            Err(ReadIndexError::NotNow("this node does not lead the cluster".to_owned()))
        }
        Ok(Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(quorum)))) => {
            Err(ReadIndexError::NotNow(quorum.to_string()))
        }
        Ok(Err(RaftError::Fatal(fatal))) => Err(ReadIndexError::Stopped(format!("this node has stopped: {fatal}"))),
        Err(_) => Err(ReadIndexError::NotNow(format!("no quorum answered within {ROUND_TIMEOUT:?}"))),
    }
}

/// The read index of another node, which is the leader.
async fn ask_leader(leader: &Leader, peers: &Peers, log: &Log) -> Confirmed {
    let failed = |why: &dyn fmt::Display| ReadIndexError::NotNow(format!("node {} leads, but {why}", leader.node));
    let client = peers.channels.peer(&leader.peer.address, Purpose::Call);
    let mut client = client.map_err(|error| failed(&error))?;
    // A vote is in the log before its candidate hears of it.
    let follows = log.vote().is_some_and(|vote| (vote.term, vote.node) == (leader.term, leader.node));
    let term = if follows { leader.term } else { 0 };
    let request = ReadIndexRequest { hop: Some(peers.local.hop_to(leader.node, &leader.peer)), term };
    let answer = match timeout(ROUND_TIMEOUT, client.read_index(request)).await {
        Ok(answer) => answer.map_err(|status| failed(&status.message()))?,
        Err(_) => {
            peers.channels.forget(&leader.peer.address, Purpose::Call);
            return Err(failed(&"it does not answer"));
        }
    };
    match answer.into_inner().outcome {
        Some(Outcome::Index(index)) => Ok(index),
        Some(Outcome::NotLeader(_)) => Err(ReadIndexError::NotNow(no_leader())),
        Some(Outcome::Unavailable(why)) => Err(ReadIndexError::NotNow(why)),
        None => Err(failed(&"this version cannot read its answer")),
    }
}

fn no_leader() -> String {
    "the cluster has no leader at the moment; retry later".to_owned()
}
