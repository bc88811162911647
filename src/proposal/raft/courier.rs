//! Owns: the way of mutations from this node to the one that leads. Those that wait together travel together: one call
//! for many, a few calls under way at a time.
//! Never: retry, or decide what an attempt means; `carry` does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::replication::channels::{Purpose, never_sent};
use crate::replication::forward::Attempt;
use crate::replication::leader::Leader;
use crate::replication::network::Peers;
use crate::replication::replica::Raft;
use crate::replication::wire;

/// Calls to the leader under way at once. More would carry less each; fewer would let one slow call hold up the rest.
const CALLS_MAX: usize = 4;

/// What one call carries: no further mutation beyond either.
const MUTATIONS_PER_CALL: usize = 512;
const BYTES_PER_CALL: usize = 4 << 20;

/// Mutations that wait to be sent. The node's own bound on what is in flight is as large.
const WAITING_MAX: usize = super::PROPOSALS_MAX;

/// One attempt, on its way.
struct Parcel {
    leader: Arc<Leader>,
    encoded: Bytes,
    deadline: Instant,
    tell: oneshot::Sender<Attempt>,
}

pub struct Courier {
    queue: mpsc::Sender<Parcel>,
    rounds: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Courier {
    pub fn new(raft: Raft, peers: Peers) -> Courier {
        let (queue, waiting) = mpsc::channel(WAITING_MAX);
        let rounds = AbortOnDropHandle::new(tokio::spawn(rounds(raft, peers, waiting)));
        Courier { queue, rounds: Mutex::new(Some(rounds)) }
    }

    /// Breaks off what is under way, and holds nothing of this node's any more when it returns.
    pub async fn stop(&self) {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(rounds) = rounds {
            rounds.abort();
            // Ends as aborted; there is nothing else to learn.
            let _ = rounds.await;
        }
    }

    /// Brings an encoded command to a leader and its answer back. Given up as soon as somebody else leads.
    pub async fn deliver(&self, leader: Arc<Leader>, encoded: Bytes, deadline: Instant) -> Attempt {
        let (tell, told) = oneshot::channel();
        let parcel = Parcel { leader, encoded, deadline, tell };
        match self.queue.try_send(parcel) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                return Attempt::Unavailable(format!("{WAITING_MAX} mutations wait for the leader; retry later"));
            }
            Err(TrySendError::Closed(_)) => return Attempt::Unavailable("this node is stopping".to_owned()),
        }
        match tokio::time::timeout_at(deadline.into(), told).await {
            Ok(Ok(attempt)) => attempt,
            Ok(Err(_)) => Attempt::Unknown("this node is stopping".to_owned()),
            Err(_) => Attempt::Unknown("the leader does not answer".to_owned()),
        }
    }
}

async fn rounds(raft: Raft, peers: Peers, mut queue: mpsc::Receiver<Parcel>) {
    let mut under_way = FuturesUnordered::new();
    let mut waiting = Vec::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = under_way.next() => {}
            taken = queue.recv_many(&mut waiting, MUTATIONS_PER_CALL), if under_way.len() < CALLS_MAX => {
                if taken == 0 {
                    return;
                }
                while !waiting.is_empty() {
                    under_way.push(send(&raft, &peers, first_load(&mut waiting)));
                }
            }
        }
    }
}

/// Takes the parcels from the front that go to one leader and fit one call; one at least.
fn first_load(waiting: &mut Vec<Parcel>) -> Vec<Parcel> {
    let mut bytes = 0;
    let fits = |parcel: &&Parcel| {
        bytes += parcel.encoded.len();
        parcel.leader == waiting[0].leader && bytes <= BYTES_PER_CALL
    };
    let count = waiting.iter().take_while(fits).count().max(1);
    let rest = waiting.split_off(count);
    std::mem::replace(waiting, rest)
}

/// One call. Tells every parcel what became of it.
async fn send(raft: &Raft, peers: &Peers, mut load: Vec<Parcel>) {
    // Whoever stopped waiting before anything was sent need not be carried out.
    load.retain(|parcel| !parcel.tell.is_closed());
    let Some(leader) = load.first().map(|parcel| parcel.leader.clone()) else { return };
    let attempts = attempts(raft, peers, &leader, &load).await;
    for (parcel, attempt) in load.into_iter().zip(attempts) {
        // The caller's deadline may have passed.
        let _ = parcel.tell.send(attempt);
    }
}

async fn attempts(raft: &Raft, peers: &Peers, leader: &Arc<Leader>, load: &[Parcel]) -> Vec<Attempt> {
    let unreached = |why: &str| format!("node {} leads, but {why}", leader.node);
    let all = |attempt: Attempt| vec![attempt; load.len()];
    let mut client = match peers.channels.peer(&leader.peer.address, Purpose::Call) {
        Ok(client) => client,
        Err(why) => return all(Attempt::Unavailable(unreached(&why))),
    };
    let now = Instant::now();
    let remaining = |parcel: &Parcel| parcel.deadline.saturating_duration_since(now);
    let longest = load.iter().map(remaining).max().unwrap_or(Duration::ZERO);
    let mutations = load.iter().map(|parcel| wire::spell_forwarded(parcel.encoded.clone(), remaining(parcel)));
    let hop = peers.me.hop(leader.node, &leader.peer);
    let request = wire::spell_forward(hop, leader.term, mutations.collect());
    let before = Some((**leader).clone());
    let answer = tokio::select! {
        answer = client.forward(request) => answer,
        () = Leader::changed(raft, &before, longest) => {
            return all(Attempt::Unknown(unreached("somebody else took over")));
        }
    };
    match answer {
        Ok(answer) => {
            let outcomes = answer.into_inner().outcomes;
            if outcomes.len() != load.len() {
                return all(Attempt::Unknown(unreached("its answer makes no sense to this version")));
            }
            outcomes.into_iter().map(wire::attempt).collect()
        }
        Err(status) if never_sent(&status) => all(Attempt::Unavailable(unreached("it cannot be reached"))),
        Err(status) if status.code() == tonic::Code::FailedPrecondition => {
            all(Attempt::Unavailable(status.message().to_owned()))
        }
        Err(status) => all(Attempt::Unknown(unreached(status.message()))),
    }
}
