//! Owns: the stream of entries from a leader to one follower, both ends. Several requests are in flight at once and are
//! answered in order. So a write waits neither for the answer to the previous one nor for the news of a commit, and one
//! long call is much cheaper than a call per request.
//! Never: give openraft's stream to tonic: it may outlive the connection and resend stale entries. Here the task that
//! reads the answers polls it, so both end together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use openraft::entry::RaftEntry;
use openraft::errors::RPCError;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendResult};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::elections::Signs;
use super::network::Connection;
use super::replica::Raft;
use super::types::{LogId, Types};
use super::wire;
use crate::planted::{self, Bug};
use crate::proto::peer::{AppendRequest, AppendResponse};

/// Requests in flight. A small number: what waits meanwhile is sent together, and shares the follower's next write.
const IN_FLIGHT_MAX: usize = 4;

type Answer = Result<StreamAppendResult<Types>, RPCError<Types>>;
pub type Answers<'s> = BoxStream<'s, Answer>;

/// The leader's end.
struct Sending<'s, S> {
    connection: &'s mut Connection,
    input: S,
    /// `None` after the last request.
    requests: Option<mpsc::Sender<AppendRequest>>,
    answers: Streaming<AppendResponse>,
    /// The log id before each request in flight and its last one, oldest first.
    in_flight: VecDeque<(Option<LogId>, Option<LogId>)>,
    answer_due: Instant,
}

/// Sends the requests of `input` over one call. The answers have the order of the requests.
pub async fn send<'s, S>(connection: &'s mut Connection, mut input: S) -> Result<Answers<'s>, RPCError<Types>>
where
    S: Stream<Item = AppendEntriesRequest<Types>> + Send + Unpin + 'static,
{
    // Polled before dialling: openraft applies its backoff between failures only when its stream is polled.
    let Some(first) = input.next().await else { return Ok(stream::empty().boxed()) };
    let (requests, queued) = mpsc::channel(IN_FLIGHT_MAX);
    let range = range(&first);
    // Only the first request names sender and receiver, for the whole call.
    let sent = requests.try_send(wire::append_to_proto(Some(connection.hop()), first)).is_ok();
    debug_assert!(sent, "a new queue has room");
    let queued = stream::unfold(queued, |mut queued| async { Some((queued.recv().await?, queued)) });
    let mut client = connection.client()?;
    let within = connection.answer_within();
    let answers = match timeout(within, client.append_stream(queued)).await {
        Ok(Ok(answers)) => answers.into_inner(),
        Ok(Err(status)) => return Err(connection.refused(status).into()),
        Err(_) => return Err(connection.timed_out(within).into()),
    };
    let sending = Sending {
        connection,
        input,
        requests: Some(requests),
        answers,
        in_flight: [range].into(),
        answer_due: Instant::now() + within,
    };
    Ok(stream::unfold(Some(sending), Sending::next).boxed())
}

impl<S> Sending<'_, S>
where
    S: Stream<Item = AppendEntriesRequest<Types>> + Send + Unpin + 'static,
{
    /// The next answer. The stream ends after a refusal or an error.
    async fn next(sending: Option<Self>) -> Option<(Answer, Option<Self>)> {
        let mut this = sending?;
        loop {
            let may_send = this.requests.is_some() && this.in_flight.len() < IN_FLIGHT_MAX;
            tokio::select! {
                biased;
                answer = this.answers.next() => {
                    return match answer? {
                        Ok(answer) => this.answered(answer),
                        Err(status) => Some((Err(this.connection.refused(status).into()), None)),
                    };
                }
                request = this.input.next(), if may_send => match request {
                    Some(request) => {
                        if !this.send(request) {
                            let why = this.connection.unreachable(&"the stream of entries was interrupted");
                            return Some((Err(why.into()), None));
                        }
                    }
                    // The follower answers what is in flight, and then the call ends.
                    None => this.requests = None,
                },
                () = sleep_until(this.answer_due), if !this.in_flight.is_empty() => {
                    return Some((Err(this.connection.timed_out(this.connection.answer_within()).into()), None));
                }
            }
        }
    }

    /// Returns false if the call has ended.
    fn send(&mut self, request: AppendEntriesRequest<Types>) -> bool {
        if self.in_flight.is_empty() {
            self.answer_due = Instant::now() + self.connection.answer_within();
        }
        self.in_flight.push_back(range(&request));
        let request = wire::append_to_proto(None, request);
        // The queue is as long as the number of requests in flight, so it is never full.
        self.requests.as_ref().is_some_and(|requests| requests.try_send(request).is_ok())
    }

    fn answered(mut self, answer: AppendResponse) -> Option<(Answer, Option<Self>)> {
        let Some((previous, last)) = self.in_flight.pop_front() else {
            let why = self.connection.unreachable(&"it answered a request that was never sent");
            return Some((Err(why.into()), None));
        };
        self.answer_due = Instant::now() + self.connection.answer_within();
        let answer = match wire::appended_from_proto(answer) {
            Ok(answer) => answer,
            Err(status) => return Some((Err(self.connection.unreachable(&status.message()).into()), None)),
        };
        self.connection.accepted();
        // All logs agree on their beginning, so there is no conflict without a previous entry.
        if matches!(answer, AppendEntriesResponse::Conflict) && previous.is_none() {
            let why = self.connection.unreachable(&"it reports a conflict before the first entry");
            return Some((Err(why.into()), None));
        }
        let result = answer.into_stream_result(previous, last);
        let goes_on = result.as_ref().is_ok_and(|upto| *upto == last);
        Some((Ok(result), goes_on.then_some(self)))
    }
}

/// The log id before a request, and its last one.
fn range(request: &AppendEntriesRequest<Types>) -> (Option<LogId>, Option<LogId>) {
    let previous = request.prev_log_id;
    (previous, request.entries.last().map(RaftEntry::log_id).or(previous))
}

/// The follower's end: passes requests to consensus in order, and answers each when it is durable. An invalid request
/// ends the call after the answers to the requests before it.
pub fn receive(
    raft: &Raft,
    signs: Arc<Signs>,
    first: AppendRequest,
    rest: Streaming<AppendRequest>,
    closing: CancellationToken,
) -> BoxStream<'static, Result<AppendResponse, Status>> {
    let refused = Arc::new(Mutex::new(None));
    let refusal = refused.clone();
    let requests = stream::once(async { Ok(first) }).chain(rest);
    let this = raft.clone();
    let decoded = requests.map(|request| request.and_then(wire::append_from_proto)).scan((), move |(), request| {
        let request = request.map_err(|status| *lock(&refusal) = Some(status)).ok();
        if let Some(request) = &request
            && !planted::has(Bug::HeartbeatsWaitForDisk)
        {
            signs.request_from(request.vote, &this);
        }
        async move { request }
    });
    let answers = raft.stream_append(decoded).map(|answer| match answer {
        Ok(result) => Ok(wire::appended_to_proto(&result.into())),
        Err(fatal) => Err(Status::unavailable(format!("this node has stopped: {fatal}"))),
    });
    let at_the_end = stream::once(async move { lock(&refused).take().map(Err) }).filter_map(async |refusal| refusal);
    answers.chain(at_the_end).take_until(closing.cancelled_owned()).boxed()
}

fn lock(refused: &Mutex<Option<Status>>) -> std::sync::MutexGuard<'_, Option<Status>> {
    refused.lock().unwrap_or_else(PoisonError::into_inner)
}
