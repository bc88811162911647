//! Owns: forwarding mutations from this node to the leader. Mutations that wait together are sent in one call, and a
//! few calls are in flight at a time. A call ends with its slowest mutation, so large ones have calls of their own.
//! Never: retry, or decide what an outcome means; the adapter does (`proposal/raft.rs`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::attempt::{Attempt, encode};
use super::channels::{Purpose, never_sent};
use super::leader::Leader;
use super::network::Peers;
use super::replica::Raft;
use super::wire;
use crate::machine::Stamped;
use crate::metrics::trace;
use crate::proto::peer::{self, ForwardRequest};

/// Calls to the leader in flight. With more, each would hold fewer mutations; with fewer, one slow call would delay
/// the rest.
const CALLS_MAX: usize = 4;

/// The bounds of one call.
const MUTATIONS_PER_CALL: usize = 512;
const BYTES_PER_CALL: usize = 4 << 20;

/// Larger mutations wait in a queue of their own. The leader takes its time for them, and small ones must not wait for
/// that.
const LARGE_BYTES: usize = 64 << 10;

/// Mutations that wait to be sent: as many as the adapter admits.
pub const WAITING_MAX: usize = 4096;

/// One mutation that waits to be sent.
struct Forwarded {
    leader: Arc<Leader>,
    encoded: Bytes,
    deadline: Instant,
    /// Where its call is in its trace; empty if it is not traced.
    trace: Bytes,
    reply: oneshot::Sender<Attempt>,
}

pub struct Forwarder {
    small: mpsc::Sender<Forwarded>,
    large: mpsc::Sender<Forwarded>,
    senders: Mutex<Vec<AbortOnDropHandle<()>>>,
}

impl Forwarder {
    pub fn new(raft: Raft, peers: Peers) -> Forwarder {
        let (small, waiting) = mpsc::channel(WAITING_MAX);
        let (large, waiting_large) = mpsc::channel(WAITING_MAX);
        let start = |waiting, per_call| {
            AbortOnDropHandle::new(tokio::spawn(send_batches(raft.clone(), peers.clone(), waiting, per_call)))
        };
        let senders = vec![start(waiting, MUTATIONS_PER_CALL), start(waiting_large, 1)];
        Forwarder { small, large, senders: Mutex::new(senders) }
    }

    /// Aborts the calls in flight. Afterwards no task holds anything of this node.
    pub async fn stop(&self) {
        let senders = std::mem::take(&mut *self.senders.lock().unwrap_or_else(PoisonError::into_inner));
        for sender in senders {
            sender.abort();
            // The result of an aborted task says nothing.
            let _ = sender.await;
        }
    }

    /// Makes one attempt at `leader`. Ends early when another node becomes the leader.
    pub async fn attempt(&self, leader: Leader, stamped: Stamped, deadline: Instant) -> Attempt {
        let order = match encode(stamped, deadline) {
            Ok(order) => order,
            Err(error) => return error.into(),
        };
        let (reply, outcome) = oneshot::channel();
        let trace = trace::current().map_or(Bytes::new(), |trace| Bytes::copy_from_slice(&trace.to_bytes()));
        let forwarded =
            Forwarded { leader: Arc::new(leader), encoded: order.encoded().clone(), deadline, trace, reply };
        let queue = if order.encoded().len() > LARGE_BYTES { &self.large } else { &self.small };
        match queue.try_send(forwarded) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                return Attempt::Unavailable(format!("{WAITING_MAX} mutations wait for the leader; retry later"));
            }
            Err(TrySendError::Closed(_)) => return Attempt::Unavailable("this node is stopping".to_owned()),
        }
        match tokio::time::timeout_at(deadline.into(), outcome).await {
            Ok(Ok(attempt)) => attempt,
            Ok(Err(_)) => Attempt::Unknown("this node is stopping".to_owned()),
            Err(_) => Attempt::Unknown("the leader does not answer".to_owned()),
        }
    }
}

async fn send_batches(raft: Raft, peers: Peers, mut queue: mpsc::Receiver<Forwarded>, mutations_per_call: usize) {
    let mut in_flight = FuturesUnordered::new();
    let mut waiting = Vec::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = in_flight.next() => {}
            taken = queue.recv_many(&mut waiting, mutations_per_call), if in_flight.len() < CALLS_MAX => {
                if taken == 0 {
                    return;
                }
                while !waiting.is_empty() {
                    in_flight.push(send(&raft, &peers, next_batch(&mut waiting)));
                }
            }
        }
    }
}

/// Takes mutations from the front that go to one leader and fit one call; at least one.
fn next_batch(waiting: &mut Vec<Forwarded>) -> Vec<Forwarded> {
    let mut bytes = 0;
    let fits = |forwarded: &&Forwarded| {
        bytes += forwarded.encoded.len();
        forwarded.leader == waiting[0].leader && bytes <= BYTES_PER_CALL
    };
    let count = waiting.iter().take_while(fits).count().max(1);
    let rest = waiting.split_off(count);
    std::mem::replace(waiting, rest)
}

/// Makes one call and reports its outcome to each mutation in it.
async fn send(raft: &Raft, peers: &Peers, mut batch: Vec<Forwarded>) {
    // A mutation whose caller gave up before it was sent must not be applied.
    batch.retain(|forwarded| !forwarded.reply.is_closed());
    let Some(leader) = batch.first().map(|forwarded| forwarded.leader.clone()) else { return };
    let outcomes = call(raft, peers, &leader, &batch).await;
    for (forwarded, outcome) in batch.into_iter().zip(outcomes) {
        // The send fails if the caller's deadline has passed.
        let _ = forwarded.reply.send(outcome);
    }
}

async fn call(raft: &Raft, peers: &Peers, leader: &Arc<Leader>, batch: &[Forwarded]) -> Vec<Attempt> {
    let failed = |why: &dyn std::fmt::Display| format!("node {} leads, but {why}", leader.node);
    let all = |attempt: Attempt| vec![attempt; batch.len()];
    let mut client = match peers.channels.peer(&leader.peer.address, Purpose::Forward) {
        Ok(client) => client,
        Err(error) => return all(Attempt::Unavailable(failed(&error))),
    };
    let now = Instant::now();
    let remaining = |forwarded: &Forwarded| forwarded.deadline.saturating_duration_since(now);
    let longest = batch.iter().map(remaining).max().unwrap_or(Duration::ZERO);
    let mutations = batch.iter().map(|forwarded| peer::Forwarded {
        command: forwarded.encoded.clone(),
        remaining_ms: remaining(forwarded).as_millis() as u64,
        trace: forwarded.trace.clone(),
    });
    let hop = peers.local.hop_to(leader.node, &leader.peer);
    let request = ForwardRequest { hop: Some(hop), term: leader.term, mutations: mutations.collect() };
    let before = Some((**leader).clone());
    let answer = tokio::select! {
        answer = client.forward(request) => answer,
        () = Leader::changed(raft, &before, longest) => {
            return all(Attempt::Unknown(failed(&"another node took over")));
        }
    };
    match answer {
        Ok(answer) => {
            let outcomes = answer.into_inner().outcomes;
            if outcomes.len() != batch.len() {
                return all(Attempt::Unknown(failed(&"this version cannot read its answer")));
            }
            outcomes.into_iter().map(wire::attempt_from_proto).collect()
        }
        Err(status) if never_sent(&status) => all(Attempt::Unavailable(failed(&"it cannot be reached"))),
        Err(status) if status.code() == tonic::Code::FailedPrecondition => {
            all(Attempt::Unavailable(status.message().to_owned()))
        }
        Err(status) => all(Attempt::Unknown(failed(&status.message()))),
    }
}
