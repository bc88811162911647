//! Owns: the stream of entries from a leader to one follower, both ends. Many requests are under way at once and answered in
//! order, so that a write waits neither for the answer to the one before nor for the news of a commit; and one long call
//! costs a fraction of a call per request.
//! Never: openraft's request stream in the transport's hands. A stream that outlived its connection there would take the next
//! request and replay what was taken back; here it is driven by whoever reads the answers, and ends with him.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use openraft::errors::RPCError;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendResult};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::network::Connection;
use super::replica::Raft;
use super::types::{LogId, Types};
use super::wire;
use crate::proto::peer::{AppendRequest, AppendResponse};

/// How long a request may wait for its answer. Entries may be large and a follower's disk busy; openraft's own time for an
/// append is a heartbeat.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Requests under way. Few: what waits meanwhile travels together, and shares the follower's next write.
const UNDER_WAY_MAX: usize = 4;

type Answer = Result<StreamAppendResult<Types>, RPCError<Types>>;
pub type Answers<'s> = BoxStream<'s, Answer>;

/// The leader's end.
struct Sending<'s, S> {
    connection: &'s mut Connection,
    input: S,
    /// `None` once there is nothing more to send.
    requests: Option<mpsc::Sender<AppendRequest>>,
    answers: Streaming<AppendResponse>,
    /// What each request under way began after and ended with, oldest first.
    under_way: VecDeque<(Option<LogId>, Option<LogId>)>,
    answer_due: Instant,
}

/// Sends what `input` brings, over one call. The answers come in the order of the requests.
pub async fn send<'s, S>(connection: &'s mut Connection, mut input: S) -> Result<Answers<'s>, RPCError<Types>>
where
    S: Stream<Item = AppendEntriesRequest<Types>> + Send + Unpin + 'static,
{
    // Before dialling: openraft waits between failures only where its stream is polled.
    let Some(first) = input.next().await else { return Ok(stream::empty().boxed()) };
    let (requests, queued) = mpsc::channel(UNDER_WAY_MAX);
    let range = range(&first);
    // The first request says whom the whole call is for.
    let spelled = wire::spell_append(Some(connection.hop()), first);
    let sent = requests.try_send(spelled).is_ok();
    debug_assert!(sent, "a new queue has room");
    let queued = stream::unfold(queued, |mut queued| async { Some((queued.recv().await?, queued)) });
    let mut client = connection.client()?;
    let answers = match timeout(ANSWER_WITHIN, client.append_stream(queued)).await {
        Ok(Ok(answers)) => answers.into_inner(),
        Ok(Err(status)) => return Err(connection.refused(status).into()),
        Err(_) => return Err(connection.hangs(ANSWER_WITHIN).into()),
    };
    let sending = Sending {
        connection,
        input,
        requests: Some(requests),
        answers,
        under_way: [range].into(),
        answer_due: Instant::now() + ANSWER_WITHIN,
    };
    Ok(stream::unfold(Some(sending), Sending::next).boxed())
}

impl<S> Sending<'_, S>
where
    S: Stream<Item = AppendEntriesRequest<Types>> + Send + Unpin + 'static,
{
    /// The next answer. Nothing comes after a refusal or an error.
    async fn next(sending: Option<Self>) -> Option<(Answer, Option<Self>)> {
        let mut this = sending?;
        loop {
            let may_send = this.requests.is_some() && this.under_way.len() < UNDER_WAY_MAX;
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
                            let why = this.connection.unreachable("the stream of entries broke off");
                            return Some((Err(why.into()), None));
                        }
                    }
                    // The follower answers what is under way, and then the call ends.
                    None => this.requests = None,
                },
                () = sleep_until(this.answer_due), if !this.under_way.is_empty() => {
                    return Some((Err(this.connection.hangs(ANSWER_WITHIN).into()), None));
                }
            }
        }
    }

    /// False when the call has ended.
    fn send(&mut self, request: AppendEntriesRequest<Types>) -> bool {
        if self.under_way.is_empty() {
            self.answer_due = Instant::now() + ANSWER_WITHIN;
        }
        self.under_way.push_back(range(&request));
        let spelled = wire::spell_append(None, request);
        // There are as many places in the queue as requests under way.
        self.requests.as_ref().is_some_and(|requests| requests.try_send(spelled).is_ok())
    }

    fn answered(mut self, answer: AppendResponse) -> Option<(Answer, Option<Self>)> {
        let Some((previous, last)) = self.under_way.pop_front() else {
            let why = self.connection.unreachable("it answered what was never asked");
            return Some((Err(why.into()), None));
        };
        self.answer_due = Instant::now() + ANSWER_WITHIN;
        let answer = match wire::appended(answer) {
            Ok(answer) => answer,
            Err(status) => return Some((Err(self.connection.unreachable(status.message()).into()), None)),
        };
        self.connection.is_understood();
        // A conflict without an entry before it cannot be: every log agrees on its beginning.
        if matches!(answer, AppendEntriesResponse::Conflict) && previous.is_none() {
            let why = self.connection.unreachable("it finds a conflict before the first entry");
            return Some((Err(why.into()), None));
        }
        let result = answer.into_stream_result(previous, last);
        let goes_on = result.as_ref().is_ok_and(|upto| *upto == last);
        Some((Ok(result), goes_on.then_some(self)))
    }
}

/// The entry before a request, and its last one.
fn range(request: &AppendEntriesRequest<Types>) -> (Option<LogId>, Option<LogId>) {
    let previous = request.prev_log_id;
    (previous, request.entries.last().map(|entry| entry.log_id).or(previous))
}

/// The follower's end: hands requests to consensus as they come, and answers each when it is durable. A request that makes
/// no sense ends the call, after the answers to those before it.
pub fn receive(
    raft: &Raft,
    first: AppendRequest,
    rest: Streaming<AppendRequest>,
    closing: CancellationToken,
) -> BoxStream<'static, Result<AppendResponse, Status>> {
    let refused = Arc::new(Mutex::new(None));
    let refusal = refused.clone();
    let requests = stream::once(async { Ok(first) }).chain(rest);
    let understood = requests.map(|request| request.and_then(wire::append)).scan((), move |(), request| {
        let request = request.map_err(|status| *lock(&refusal) = Some(status)).ok();
        async move { request }
    });
    let answers = raft.stream_append(understood).map(|answer| match answer {
        Ok(result) => Ok(wire::spell_appended(&result.into())),
        Err(fatal) => Err(Status::unavailable(format!("this node has stopped: {fatal}"))),
    });
    let in_the_end = stream::once(async move { lock(&refused).take().map(Err) }).filter_map(async |refusal| refusal);
    answers.chain(in_the_end).take_until(closing.cancelled_owned()).boxed()
}

fn lock(refused: &Mutex<Option<Status>>) -> std::sync::MutexGuard<'_, Option<Status>> {
    refused.lock().unwrap_or_else(PoisonError::into_inner)
}
