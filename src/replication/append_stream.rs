//! Owns: the stream of entries from a leader to one follower, both ends. Several requests are in flight at once and are
//! answered in order. So a write waits neither for the answer to the previous one nor for the news of a commit, and one
//! long call is much cheaper than a call per request.
//! Never: give openraft's stream to tonic: it may outlive the connection and resend stale entries. Here the task that
//! reads the answers polls it, so both end together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use openraft::entry::RaftEntry;
use openraft::errors::RPCError;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendResult};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Status, Streaming};

use super::entry_traces;
use super::held_answers::{HeldAnswers, Unhurried};
use super::held_notices::HeldNotice;
use super::network::Connection;
use super::peer_service::PeerService;
use super::pieces::{self, Pieces};
use super::types::{LogId, Types};
use super::wire;
use crate::blocking::block;
use crate::metrics::trace::Span;
use crate::planted::{self, Bug};
use crate::proto::peer::{AppendRequest, AppendResponse, Hop};

/// Requests in flight. A small number: what waits meanwhile is sent together, and shares the follower's next write.
const IN_FLIGHT_MAX: usize = 4;

/// The response metadata of a follower that accepts requests in pieces. Followers of version 0.1.0 do not send it.
pub const TAKES_PIECES: &str = "entry-pieces";

/// A large request gets one second more to be answered for this many bytes.
const BYTES_PER_SECOND_MIN: usize = 4 << 20;

type Answer = Result<StreamAppendResult<Types>, RPCError<Types>>;
pub type Answers<'s> = BoxStream<'s, Answer>;

/// The leader's end.
struct Sending<'s, S> {
    connection: &'s mut Connection,
    input: S,
    /// `None` after the last request.
    requests: Option<mpsc::Sender<Pieces>>,
    answers: Streaming<AppendResponse>,
    /// Oldest first.
    in_flight: VecDeque<InFlight>,
    answer_due: Instant,
    notice: HeldNotice,
}

/// A request that was not answered yet.
struct InFlight {
    /// The log id before its entries.
    previous: Option<LogId>,
    /// Its last log id.
    last: Option<LogId>,
    answer_within: Duration,
    /// Of the calls whose commands are in it.
    spans: Vec<Span>,
}

/// Sends the requests of `input` over one call. The answers have the order of the requests.
pub async fn send<'s, S>(connection: &'s mut Connection, mut input: S) -> Result<Answers<'s>, RPCError<Types>>
where
    S: Stream<Item = AppendEntriesRequest<Types>> + Send + Unpin + 'static,
{
    // Polled before dialling: openraft applies its backoff between failures only when its stream is polled.
    let Some(first) = input.next().await else { return Ok(stream::empty().boxed()) };
    let (requests, queued) = mpsc::channel(IN_FLIGHT_MAX);
    // Only the first request names sender and receiver, for the whole call.
    let (first, in_flight) = prepare(connection, Some(connection.hop()), first);
    let within = in_flight.answer_within;
    let sent = requests.try_send(first).is_ok();
    debug_assert!(sent, "a new queue has room");
    let mut client = connection.client()?;
    let answers = match timeout(within, client.append_stream(pieces::stream(queued))).await {
        Ok(Ok(answers)) => {
            connection.takes_pieces = answers.metadata().contains_key(TAKES_PIECES);
            answers.into_inner()
        }
        Ok(Err(status)) => return Err(connection.refused(status).into()),
        Err(_) => return Err(connection.timed_out(within).into()),
    };
    let sending = Sending {
        notice: connection.held_notice(),
        connection,
        input,
        requests: Some(requests),
        answers,
        in_flight: [in_flight].into(),
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
            let holds = may_send && this.notice.is_held();
            tokio::select! {
                biased;
                answer = this.answers.next() => {
                    return match answer? {
                        Ok(answer) => this.answered(answer),
                        Err(status) => Some((Err(this.connection.refused(status).into()), None)),
                    };
                }
                request = this.input.next(), if may_send => {
                    let ends = request.is_none();
                    let due = match request {
                        Some(request) => this.notice.pass(request),
                        None => this.notice.take(),
                    };
                    if !this.send(due) {
                        return Some((Err(this.interrupted()), None));
                    }
                    if ends {
                        // The follower answers what is in flight, and then the call ends.
                        this.requests = None;
                    }
                }
                () = this.notice.due(), if holds => {
                    let due = this.notice.take();
                    if !this.send(due) {
                        return Some((Err(this.interrupted()), None));
                    }
                }
                () = sleep_until(this.answer_due), if !this.in_flight.is_empty() => {
                    let within = this.in_flight.front().map_or(Duration::ZERO, |late| late.answer_within);
                    return Some((Err(this.connection.timed_out(within).into()), None));
                }
            }
        }
    }

    fn interrupted(&self) -> RPCError<Types> {
        self.connection.unreachable(&"the stream of entries was interrupted").into()
    }

    /// Returns false if the call has ended.
    fn send(&mut self, request: Option<AppendEntriesRequest<Types>>) -> bool {
        let Some(request) = request else { return true };
        let (request, in_flight) = prepare(self.connection, None, request);
        if self.in_flight.is_empty() {
            self.answer_due = Instant::now() + in_flight.answer_within;
        }
        self.in_flight.push_back(in_flight);
        // The queue is as long as the number of requests in flight, so it is never full.
        self.requests.as_ref().is_some_and(|requests| requests.try_send(request).is_ok())
    }

    fn answered(mut self, answer: AppendResponse) -> Option<(Answer, Option<Self>)> {
        let Some(InFlight { previous, last, spans, .. }) = self.in_flight.pop_front() else {
            let why = self.connection.unreachable(&"it answered a request that was never sent");
            return Some((Err(why.into()), None));
        };
        self.notice.nobody_listens = answer.nobody_listens;
        let next = self.in_flight.front().map_or(Duration::ZERO, |next| next.answer_within);
        self.answer_due = Instant::now() + next;
        let answer = match wire::appended_from_proto(answer) {
            Ok(answer) => answer,
            Err(status) => return Some((Err(self.connection.unreachable(&status.message()).into()), None)),
        };
        entry_traces::answered(spans);
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

/// A request as it is sent, and what the answer to it means.
fn prepare(connection: &Connection, hop: Option<Hop>, request: AppendEntriesRequest<Types>) -> (Pieces, InFlight) {
    let previous = request.prev_log_id;
    let last = request.entries.last().map(RaftEntry::log_id).or(previous);
    let (spans, traces) = entry_traces::sent(connection.node(), &request);
    let request = AppendRequest { traces, ..wire::append_to_proto(hop, request) };
    let request = Pieces::of(request, connection.takes_pieces);
    let answer_within =
        connection.answer_within() + Duration::from_secs((request.bytes() / BYTES_PER_SECOND_MIN) as u64);
    (request, InFlight { previous, last, answer_within, spans })
}

/// The follower's end: passes requests to consensus in order, and answers each when it is durable. An invalid request
/// ends the call after the answers to the requests before it.
pub fn receive(
    node: &PeerService,
    first: AppendRequest,
    rest: Streaming<AppendRequest>,
) -> BoxStream<'static, Result<AppendResponse, Status>> {
    let (raft, signs, closing) = (node.raft.clone(), node.signs.clone(), node.closing.clone());
    // The spans of each request that is not answered yet, oldest first.
    let tracer = node.tracer.clone();
    let spans: Arc<Mutex<VecDeque<Vec<Span>>>> = Arc::default();
    let (begun, ended) = (spans.clone(), tracer.is_some().then_some(spans));
    let refused = Arc::new(Mutex::new(None));
    let refusal = refused.clone();
    let requests = pieces::assembled(stream::once(async { Ok(first) }).chain(rest));
    let this = raft.clone();
    let unhurried = Unhurried::default();
    let passed_on = unhurried.clone();
    let decode = move |mut request: AppendRequest| {
        let traces = std::mem::take(&mut request.traces);
        let mut request = decode(request)?;
        if let Some(tracer) = &tracer {
            lock(&begun).push_back(entry_traces::received(tracer, traces, &mut request));
        }
        passed_on.begun(request.entries.is_empty());
        Ok(request)
    };
    let decoded = requests.map(move |request| request.and_then(&decode)).scan((), move |(), request| {
        let request = request.map_err(|status| *lock(&refusal) = Some(status)).ok();
        if let Some(request) = &request
            && !planted::has(Bug::HeartbeatsWaitForDisk)
        {
            signs.request_from(request.vote, &this);
        }
        async move { request }
    });
    let sink = node.sink.clone();
    let answers = raft.stream_append(decoded).map(move |answer| {
        if let Some(spans) = &ended {
            drop(lock(spans).pop_front());
        }
        match answer {
            Ok(result) => {
                let answer = wire::appended_to_proto(&result.into());
                Ok(AppendResponse { nobody_listens: !sink.is_heard(), ..answer })
            }
            Err(fatal) => Err(Status::unavailable(format!("this node has stopped: {fatal}"))),
        }
    });
    let answers = HeldAnswers::new(Box::pin(answers), unhurried);
    let at_the_end = stream::once(async move { lock(&refused).take().map(Err) }).filter_map(async |refusal| refusal);
    answers.chain(at_the_end).take_until(closing.cancelled_owned()).boxed()
}

/// Reading a large request takes longer than a heartbeat may wait.
fn decode(request: AppendRequest) -> Result<AppendEntriesRequest<Types>, Status> {
    match pieces::is_large(&request) {
        true => block(|| wire::append_from_proto(request)),
        false => wire::append_from_proto(request),
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
