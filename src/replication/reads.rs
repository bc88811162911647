//! Owns: how far the state must be applied before a read may be answered from it. The leader proves that it still
//! leads; a follower asks the leader. Readers that wait at the same time share one round, those of followers too.
//! Never: answer from what a quorum does not vouch for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::ReadPolicy;
use openraft::errors::{LinearizableReadError, RaftError};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::channels::Purpose;
use super::leader::Leader;
use super::network::Peers;
use super::replica::Raft;
use crate::proto::peer::ReadIndexRequest;
use crate::proto::peer::read_index_response::Outcome;

/// Readers that wait for a round. Beyond it they are told to come back.
const WAITING_MAX: usize = 16 << 10;

/// A round is one exchange with a quorum, and one with the leader: past this the leader is lost.
const ROUND_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a read cannot be confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unconfirmed {
    /// Perhaps in a moment: no leader or no quorum now.
    NotNow(String),
    /// Never again in this process.
    Stopped(String),
}

type Confirmed = Result<u64, Unconfirmed>;

pub struct Reads {
    /// Readers of this node and of those that follow it share the rounds of the leader.
    leading: Arc<Rounds>,
    /// Readers of this node share one question to the leader.
    anywhere: Rounds,
    raft: Raft,
    me: u64,
}

impl Reads {
    pub fn new(raft: Raft, peers: Peers) -> Reads {
        let me = peers.me.node;
        let leading = {
            let raft = raft.clone();
            Arc::new(Rounds::start(move || {
                let raft = raft.clone();
                async move { lead(&raft).await }
            }))
        };
        let anywhere = {
            let (raft, leading, peers) = (raft.clone(), leading.clone(), Arc::new(peers));
            Rounds::start(move || {
                let (raft, leading, peers) = (raft.clone(), leading.clone(), peers.clone());
                async move { round(&raft, &leading, &peers).await }
            })
        };
        Reads { leading, anywhere, raft, me }
    }

    /// Breaks off what is under way, and holds nothing of this node's any more when it returns.
    pub async fn stop(&self) {
        self.anywhere.stop().await;
        self.leading.stop().await;
    }

    /// The index that must be applied before a question asked now is answered.
    pub async fn index(&self) -> Confirmed {
        match Leader::of(&self.raft) {
            Some(leader) if leader.node == self.me => self.leading.index().await,
            Some(_) | None => self.anywhere.index().await,
        }
    }

    /// The read index of a node that leads, for a follower that asks.
    pub async fn lead(&self) -> Confirmed {
        self.leading.index().await
    }
}

/// One round after the other, each for all who asked before it began.
struct Rounds {
    ask: mpsc::Sender<oneshot::Sender<Confirmed>>,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Rounds {
    fn start<F>(round: impl Fn() -> F + Send + 'static) -> Rounds
    where
        F: Future<Output = Confirmed> + Send,
    {
        let (ask, mut asked) = mpsc::channel::<oneshot::Sender<Confirmed>>(WAITING_MAX);
        let task = tokio::spawn(async move {
            let mut waiting = Vec::new();
            while asked.recv_many(&mut waiting, WAITING_MAX).await > 0 {
                let confirmed = round().await;
                for reader in waiting.drain(..) {
                    // A reader whose deadline passed is gone.
                    let _ = reader.send(confirmed.clone());
                }
            }
        });
        Rounds { ask, task: Mutex::new(Some(AbortOnDropHandle::new(task))) }
    }

    async fn stop(&self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.abort();
            // Ends as aborted; there is nothing else to learn.
            let _ = task.await;
        }
    }

    async fn index(&self) -> Confirmed {
        let (tell, told) = oneshot::channel();
        let stopping = || Unconfirmed::Stopped("this node is stopping".to_owned());
        self.ask.try_send(tell).map_err(|refused| match refused {
            TrySendError::Full(_) => Unconfirmed::NotNow(format!("{WAITING_MAX} reads wait already; retry later")),
            TrySendError::Closed(_) => stopping(),
        })?;
        told.await.unwrap_or_else(|_| Err(stopping()))
    }
}

async fn round(raft: &Raft, leading: &Rounds, peers: &Peers) -> Confirmed {
    match Leader::of(raft) {
        Some(leader) if leader.node == peers.me.node => leading.index().await,
        Some(leader) => ask(&leader, peers).await,
        None => match lead(raft).await {
            // Says so when consensus has stopped.
            Err(stopped @ Unconfirmed::Stopped(_)) => Err(stopped),
            Ok(_) | Err(Unconfirmed::NotNow(_)) => Err(Unconfirmed::NotNow(no_leader())),
        },
    }
}

/// The read index of a node that leads.
async fn lead(raft: &Raft) -> Confirmed {
    match timeout(ROUND_TIMEOUT, raft.get_read_linearizer(ReadPolicy::ReadIndex)).await {
        Ok(Ok(linearizer)) => Ok(linearizer.read_log_id().index()),
        Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_)))) => {
            Err(Unconfirmed::NotNow("this node does not lead the cluster".to_owned()))
        }
        Ok(Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(quorum)))) => {
            Err(Unconfirmed::NotNow(quorum.to_string()))
        }
        Ok(Err(RaftError::Fatal(fatal))) => Err(Unconfirmed::Stopped(format!("this node has stopped: {fatal}"))),
        Err(_) => Err(Unconfirmed::NotNow(format!("no quorum answered within {ROUND_TIMEOUT:?}"))),
    }
}

async fn ask(leader: &Leader, peers: &Peers) -> Confirmed {
    let unreached = |why: &str| Unconfirmed::NotNow(format!("node {} leads, but {why}", leader.node));
    let client = peers.channels.peer(&leader.peer.address, Purpose::Call);
    let mut client = client.map_err(|why| unreached(&why))?;
    let request = ReadIndexRequest { hop: Some(peers.me.hop(leader.node, &leader.peer)) };
    let answer = match timeout(ROUND_TIMEOUT, client.read_index(request)).await {
        Ok(answer) => answer.map_err(|status| unreached(status.message()))?,
        Err(_) => {
            peers.channels.forget(&leader.peer.address, Purpose::Call);
            return Err(unreached("it does not answer"));
        }
    };
    match answer.into_inner().outcome {
        Some(Outcome::Index(index)) => Ok(index),
        Some(Outcome::NotLeader(_)) => Err(Unconfirmed::NotNow(no_leader())),
        Some(Outcome::Unavailable(why)) => Err(Unconfirmed::NotNow(why)),
        None => Err(unreached("its answer makes no sense to this version")),
    }
}

fn no_leader() -> String {
    "the cluster has no leader at the moment; retry later".to_owned()
}
