//! Owns: how a call finds its function (this node's, the bus's own, another worker's) and how its answer comes back.
//! Never: what a function does.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use super::inbound::{Action, Invoke, nests_within};
use super::outbound::{self, Call, ErrorBody, Frame};
use super::registry::Registry;
use super::worker::Worker;
use super::{Bus, BusSettings, kib};
use crate::surface::CallError;

/// Deeper payloads are not passed on: the SDKs' parsers give up at 128 and drop the frame without a word.
const FORWARD_DEPTH_MAX: usize = 120;
/// A function of this node answers by its deadline; if it does not, this much later the caller hears so.
const DEADLINE_GRACE: Duration = Duration::from_secs(5);

/// A call on its way, owning its texts. Optional ones are JSON.
pub struct Request {
    pub function_id: String,
    pub data: Frame,
    pub metadata: Option<String>,
    pub traceparent: Option<String>,
    pub baggage: Option<String>,
    pub namespace: Option<String>,
    /// Nobody waits for the answer.
    pub void: bool,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// A function of this node said so.
    Service(CallError),
    /// The bus could not carry the call.
    Bus(ErrorBody),
    /// Another worker's error, as JSON text.
    Remote(String),
}

impl Failure {
    /// A call that comes while the node drains: nothing happened. Our own functions fail within their closed set.
    fn stopping(function_id: &str) -> Failure {
        let why = "this node is shutting down; reconnect and try again";
        if function_id.starts_with("session::") {
            Failure::Service(CallError::storage(why))
        } else {
            Failure::bus("shutting_down", why)
        }
    }

    pub fn bus(code: &'static str, message: impl Into<String>) -> Failure {
        Failure::Bus(ErrorBody::new(code, message))
    }

    /// The error as an SDK gets it. Functions of this node fail like handlers of any worker do.
    pub fn print(&self) -> String {
        match self {
            Failure::Service(error) => {
                let error = error.bus();
                ErrorBody::new(error.code, error.message).print()
            }
            Failure::Bus(error) => error.print(),
            Failure::Remote(error) => error.clone(),
        }
    }
}

/// The answer to a call, as JSON text.
pub type Outcome = Result<String, Failure>;

/// One client's share of what may be in flight.
///
/// Void calls have a count of their own: the reader waits for it, and functions of this node give it back by
/// themselves, while calls passed on to workers may need this very reader to be answered.
pub struct Share {
    body_kib: Arc<Semaphore>,
    body_kib_max: u32,
    voids: Arc<Semaphore>,
}

impl Share {
    pub fn new(settings: &BusSettings) -> Share {
        let body_kib_max = kib(settings.body_bytes_in_flight_max);
        Share {
            body_kib: Arc::new(Semaphore::new(body_kib_max as usize)),
            body_kib_max,
            voids: Arc::new(Semaphore::new(settings.calls_in_flight_max)),
        }
    }

    /// Waits until this node's functions have answered every call of the client.
    pub async fn all_back(&self) {
        // An error would mean that the semaphore is closed, which nobody does.
        let _ = self.body_kib.acquire_many(self.body_kib_max).await;
    }
}

impl Bus {
    /// Starts a call a client made. The first step of every call is taken here, before the next frame is read, so
    /// calls of one client enter the node in the order in which they were sent; then they run side by side.
    pub(super) async fn start_call(
        self: &Arc<Self>,
        caller: &Arc<Worker>,
        share: &Share,
        text: &Frame,
        invoke: Invoke<'_>,
    ) {
        let answer_to = match invoke.action {
            Action::Void => None,
            Action::Answer | Action::Enqueue | Action::Unknown => invoke.invocation_id.map(|id| id.get().to_owned()),
        };
        let function_id = invoke.function_id.to_string();
        let started = match self.admit(caller, share, &invoke, answer_to.is_none()).await {
            Ok(permits) => {
                let request = Request::new(text, invoke, answer_to.is_none());
                let run = self.clone().carry_out(request, Some(caller.clone()));
                Started { permits: Some(permits), run: Box::pin(run) }
            }
            Err(failure) => Started { permits: None, run: Box::pin(std::future::ready(Err(failure))) },
        };
        let caller = caller.clone();
        let mut whole = Box::pin(async move {
            let outcome = started.run.await;
            answer(&caller, answer_to.as_deref(), &function_id, outcome);
            // Only now: a worker with calls in flight is kept when its socket is lost.
            drop(started.permits);
        });
        if whole.as_mut().now_or_never().is_none() {
            tokio::spawn(whole);
        }
    }

    /// Decides whether a call may start, and takes its share. Bodies wait for room; calls that want an answer and are
    /// too many get an error, while void ones wait, since nobody would read the error.
    async fn admit(
        &self,
        caller: &Arc<Worker>,
        share: &Share,
        invoke: &Invoke<'_>,
        void: bool,
    ) -> Result<Vec<OwnedSemaphorePermit>, Failure> {
        if self.is_draining() {
            return Err(Failure::stopping(&invoke.function_id));
        }
        match invoke.action {
            Action::Answer | Action::Void => {}
            Action::Enqueue => {
                return Err(Failure::bus(
                    "enqueue_not_supported",
                    "this bus has no queues: call without an action, or with the action `void`",
                ));
            }
            Action::Unknown => return Err(Failure::bus("unknown_action", "the field `action` must be of type void")),
        }
        let served_elsewhere = self.read_registry(|registry| registry.function(&invoke.function_id).is_some());
        if served_elsewhere && void {
            // Passed on at once and forgotten. Waiting here could wait for this very client.
            return Ok(Vec::new());
        }
        let mut permits = Vec::with_capacity(3);
        if void {
            permits.extend(share.voids.clone().acquire_owned().await);
        } else {
            let permit = caller.calls.clone().try_acquire_owned().map_err(|_| too_many(self))?;
            permits.push(permit);
        }
        if !served_elsewhere {
            let size = kib(invoke.data.map_or(0, |data| data.get().len()));
            permits.extend(share.body_kib.clone().acquire_many_owned(size.min(share.body_kib_max)).await);
            let most = kib(self.settings().total_body_bytes_in_flight_max);
            permits.extend(self.incoming_kib.clone().acquire_many_owned(size.min(most)).await);
        }
        Ok(permits)
    }

    /// A call from outside the bus (HTTP).
    pub async fn call(self: &Arc<Self>, function_id: &str, body: String, metadata: Option<String>) -> Outcome {
        if self.is_draining() {
            return Err(Failure::stopping(function_id));
        }
        let most = kib(self.settings().total_body_bytes_in_flight_max);
        let _permit = self.incoming_kib.acquire_many(kib(body.len()).min(most)).await;
        let request = Request {
            function_id: function_id.to_owned(),
            data: body.into(),
            metadata,
            traceparent: None,
            baggage: None,
            namespace: None,
            void: false,
        };
        self.clone().carry_out(request, None).await
    }

    async fn carry_out(self: Arc<Self>, request: Request, caller: Option<Arc<Worker>>) -> Outcome {
        if request.function_id.starts_with("engine::") {
            return self.call_engine(&request.function_id, &request.data, caller.as_ref());
        }
        let owner = self.read_registry(|registry: &Registry| {
            registry.function(&request.function_id).map(|function| function.owner.clone())
        });
        match owner {
            Some(owner) => self.forward(request, &owner).await,
            None => self.call_service(request).await,
        }
    }

    async fn call_service(&self, request: Request) -> Outcome {
        let patience = self.service.call_timeout();
        let deadline = Instant::now() + patience;
        let Some(call) = self.service.call(&request.function_id, &request.data, request.metadata.as_deref(), deadline)
        else {
            let id = &request.function_id;
            return Err(Failure::bus("function_not_found", format!("function `{id}` is not registered on this bus")));
        };
        match tokio::time::timeout(patience + DEADLINE_GRACE, call).await {
            Ok(outcome) => outcome.map_err(Failure::Service),
            Err(_) => Err(Failure::Service(CallError::storage(format!(
                "outcome unknown: `{}` did not answer by its deadline",
                request.function_id
            )))),
        }
    }

    /// Passes a call on to the worker that serves it, under a fresh id, and waits for its answer.
    async fn forward(&self, request: Request, owner: &Arc<Worker>) -> Outcome {
        if !nests_within(&request.data, FORWARD_DEPTH_MAX) {
            return Err(Failure::bus(
                "invalid_payload",
                format!("the payload nests deeper than {FORWARD_DEPTH_MAX} levels, which workers cannot read"),
            ));
        }
        let invocation_id = (!request.void).then(|| Uuid::new_v4().to_string());
        let reply = invocation_id.as_deref().map(|id| owner.expect_reply(id));
        owner.send(request.print(invocation_id.as_deref()));
        let (Some(reply), Some(id)) = (reply, invocation_id) else { return Ok("null".to_owned()) };
        // A caller that stops waiting (its HTTP request was dropped) leaves nothing behind.
        let _waiting = Waiting { owner, id: &id };
        match tokio::time::timeout(self.settings().forward_timeout, reply).await {
            Ok(Ok(reply)) => reply.map_err(Failure::Remote),
            Ok(Err(_)) => Err(Failure::bus("invocation_stopped", "the worker that served the call disconnected")),
            Err(_) => Err(Failure::bus("timeout", format!("`{}` did not answer in time", request.function_id))),
        }
    }
}

struct Started {
    permits: Option<Vec<OwnedSemaphorePermit>>,
    run: Pin<Box<dyn Future<Output = Outcome> + Send>>,
}

struct Waiting<'a> {
    owner: &'a Arc<Worker>,
    id: &'a str,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.owner.give_up(self.id);
    }
}

impl Request {
    /// The body is not copied: it stays the part of the frame that it is.
    fn new(text: &Frame, invoke: Invoke<'_>, void: bool) -> Request {
        let owned = |raw: Option<&RawValue>| raw.map(|raw| raw.get().to_owned());
        let data = match invoke.data {
            None => Frame::from_static("null"),
            Some(raw) => part_of(text, raw.get()),
        };
        Request {
            function_id: invoke.function_id.into_owned(),
            data,
            metadata: owned(invoke.metadata),
            traceparent: owned(invoke.traceparent),
            baggage: owned(invoke.baggage),
            namespace: owned(invoke.namespace),
            void,
        }
    }

    fn print(&self, invocation_id: Option<&str>) -> Frame {
        Call {
            invocation_id,
            function_id: &self.function_id,
            data: &self.data,
            metadata: self.metadata.as_deref(),
            traceparent: self.traceparent.as_deref(),
            baggage: self.baggage.as_deref(),
            namespace: self.namespace.as_deref(),
        }
        .print()
    }
}

fn part_of(text: &Frame, part: &str) -> Frame {
    let whole: &bytes::Bytes = text.as_ref();
    Frame::try_from(whole.slice_ref(part.as_bytes())).unwrap_or_else(|_| Frame::from(part))
}

fn too_many(bus: &Bus) -> Failure {
    let most = bus.settings().calls_in_flight_max;
    Failure::bus("too_many_calls", format!("{most} calls of this client are in flight; wait for some to finish"))
}

/// Sends the outcome to whoever asked for it.
fn answer(caller: &Worker, answer_to: Option<&str>, function_id: &str, outcome: Outcome) {
    match (answer_to, outcome) {
        (Some(id), Ok(result)) => caller.send_result(outbound::invocation_result(id, function_id, Ok(&result))),
        (Some(id), Err(failure)) => {
            caller.send_result(outbound::invocation_result(id, function_id, Err(&failure.print())));
        }
        (None, Ok(_)) => {}
        (None, Err(failure)) => tracing::warn!(function_id, error = failure.print(), "a void call failed"),
    }
}
