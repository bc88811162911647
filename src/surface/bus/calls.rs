//! Owns: how a call finds its function (this node's, the bus's own, another client's) and how its answer returns to the
//! client.
//! Never: what a function does.

use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::client::{Client, realm_of};
use super::inbound::{Action, Invoke, nests_within, owned};
use super::outbound::{self, InvokeFrame};
use super::{Bus, BusSettings};
use crate::access;
use crate::requests::Printed;
use crate::surface::errors::CallError;
use crate::surface::fair_share::CallerKey;
use crate::surface::gate::{Admission, Call, Caller, Door, check_open, trace_of};
use crate::surface::socket::Text;
use crate::surface::socket::intake::kib;

/// Deeper payloads are not forwarded: parsers of the SDKs fail at 128 levels and drop the frame silently.
const FORWARD_DEPTH_MAX: usize = 120;

/// A call on the bus.
pub struct Invocation {
    call: Call,
    /// Sent along when the call is forwarded to another client.
    trace: Trace,
    /// The caller wants no answer.
    void: bool,
}

/// Fields that the bus forwards without reading them, as JSON text.
#[derive(Default)]
struct Trace {
    traceparent: Option<String>,
    baggage: Option<String>,
    namespace: Option<String>,
}

/// How much one client may have in flight in functions of this node.
///
/// Void calls have their own count, because the reader waits for it. Functions of this node return their permits
/// without the reader's help, whereas a call forwarded to a client may need this very reader to be answered.
pub struct Share {
    body_kib: Arc<Semaphore>,
    body_kib_max: u32,
    voids: Arc<Semaphore>,
    /// Cancelled when the port that the client is connected to closes.
    closing: CancellationToken,
}

impl Share {
    pub fn new(settings: &BusSettings, closing: CancellationToken) -> Share {
        let body_kib_max = kib(settings.body_bytes_in_flight_max);
        Share {
            body_kib: Arc::new(Semaphore::new(body_kib_max as usize)),
            body_kib_max,
            voids: Arc::new(Semaphore::new(settings.calls_in_flight_max)),
            closing,
        }
    }

    /// Waits until this node's functions have answered every call of the client.
    pub async fn all_returned(&self) {
        // The semaphore is never closed, so this cannot fail.
        let _ = self.body_kib.acquire_many(self.body_kib_max).await;
    }
}

/// What a call holds until it is answered.
#[derive(Default)]
struct Admitted {
    _permits: Vec<OwnedSemaphorePermit>,
    admission: Option<Admission>,
}

impl Bus {
    /// Starts a call that a client sent. Admission and the first step of the call happen before the next frame is read,
    /// so calls of one client enter the node in the order in which they were sent. Then they run concurrently. A call
    /// with a large body may have to wait for its turn (`expensive_calls.rs`), and later calls overtake it.
    pub(super) async fn start_call(
        self: &Arc<Self>,
        client: &Arc<Client>,
        share: &Share,
        frame: &Text,
        invoke: Invoke<'_>,
    ) {
        let answer_to = match invoke.action {
            Action::Void => None,
            Action::Answer | Action::Enqueue | Action::Unknown => invoke.invocation_id.map(|id| id.get().to_owned()),
        };
        let mut permits = match self.admit(client, share, frame.len(), &invoke, answer_to.is_none()).await {
            Ok(permits) => permits,
            Err(error) => return answer(client, answer_to.as_deref(), &invoke.function_id, Err(error)),
        };
        let mut invocation = Invocation::new(self, client, frame, invoke, answer_to.is_none());
        let (bus, client) = (self.clone(), client.clone());
        let mut whole = Box::pin(async move {
            let result = bus.route(&mut invocation, Some(&client)).await;
            if let (Some(admission), Ok(result)) = (&mut permits.admission, &result) {
                admission.answers(result.len());
            }
            answer(&client, answer_to.as_deref(), &invocation.call.function, result);
            // Released only now: a client with calls in flight is kept when its socket is lost.
            drop(permits);
        });
        if whole.as_mut().now_or_never().is_none() {
            tokio::spawn(whole);
        }
    }

    /// Decides whether a call may start and takes its permits. The reader waits for room for the body. Too many calls
    /// with an answer fail; too many void calls wait, because nothing would receive the error.
    async fn admit(
        &self,
        client: &Arc<Client>,
        share: &Share,
        bytes: usize,
        invoke: &Invoke<'_>,
        void: bool,
    ) -> Result<Admitted, CallError> {
        check_open(&invoke.function_id, &share.closing)?;
        match invoke.action {
            Action::Answer | Action::Void => {}
            Action::Enqueue => return Err(CallError::EnqueueNotSupported),
            Action::Unknown => return Err(CallError::UnknownAction),
        }
        let forwarded = self.forwards(&client.realm, &invoke.function_id);
        if forwarded && void {
            // Forwarded at once. Waiting here could wait for this very client.
            return Ok(Admitted::default());
        }
        let mut permits = Vec::with_capacity(2);
        let mut admission = None;
        if void {
            permits.extend(share.voids.clone().acquire_owned().await);
        } else {
            let max = self.settings().calls_in_flight_max;
            let permit = client.calls.clone().try_acquire_owned().map_err(|_| CallError::TooManyCalls { max })?;
            permits.push(permit);
        }
        if !forwarded {
            let deadline = self.gate.deadline();
            let size = kib(bytes).min(share.body_kib_max);
            let own = share.body_kib.clone().acquire_many_owned(size);
            match tokio::time::timeout_at(deadline.into(), own).await {
                Ok(own) => permits.extend(own),
                Err(_) => return Err(CallError::Unavailable("earlier calls of this client take too long".to_owned())),
            }
            let key = CallerKey::of(&client.identity, CallerKey::Client(client.number));
            admission = Some(self.gate.admit(key, &invoke.function_id, bytes, deadline, &share.closing).await?);
        }
        Ok(Admitted { _permits: permits, admission })
    }

    /// Makes a call for another door of the port, which admitted it.
    pub async fn call(&self, call: Call) -> Result<Printed, CallError> {
        self.route(&mut Invocation { call, trace: Trace::default(), void: false }, None).await
    }

    async fn route(&self, invocation: &mut Invocation, client: Option<&Arc<Client>>) -> Result<Printed, CallError> {
        let call = &invocation.call;
        if call.function.starts_with("engine::") {
            return self.call_engine(call, client).map(Printed::from);
        }
        match self.server_of(&realm_of(&call.caller.identity), &call.function) {
            // A client without this right registers functions to receive its own events, and for nothing else.
            Some(server) if !server.identity.may(access::Action::Workers) => {
                Err(CallError::FunctionUnknown(call.function.clone()))
            }
            Some(_) if !call.caller.identity.may(access::Action::Workers) => {
                Err(CallError::forbidden(&call.caller.identity, access::Action::Workers))
            }
            Some(server) => self.forward(invocation, &server).await.map(Printed::from),
            None => self.gate.call(call).await,
        }
    }

    /// Forwards a call to the client that serves it, under a new id, and waits for the answer. Once it is sent, its body
    /// is not held: the client may take minutes, and holding it would use up what this node's own functions need.
    async fn forward(&self, invocation: &mut Invocation, server: &Arc<Client>) -> Result<String, CallError> {
        if !nests_within(&invocation.call.body, FORWARD_DEPTH_MAX) {
            return Err(CallError::InvalidPayload(format!(
                "the payload nests deeper than {FORWARD_DEPTH_MAX} levels, which workers cannot read"
            )));
        }
        if invocation.void {
            server.send(invocation.print(None));
            return Ok("null".to_owned());
        }
        let id = Uuid::new_v4().to_string();
        let reply = server.expect_reply(&id);
        server.send(invocation.print(Some(&id)));
        invocation.call.body = Text::default();
        invocation.call.metadata = None;
        // If the caller stops waiting (its HTTP request was dropped), the entry is removed.
        let _waiting = Waiting { server, id: &id };
        match tokio::time::timeout(self.settings().forward_timeout, reply).await {
            Ok(Ok(reply)) => reply.map_err(CallError::Client),
            Ok(Err(_)) => Err(CallError::ClientGone),
            Err(_) => Err(CallError::ClientTimeout(invocation.call.function.clone())),
        }
    }
}

struct Waiting<'a> {
    server: &'a Arc<Client>,
    id: &'a str,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.server.forget_reply(self.id);
    }
}

impl Invocation {
    /// The body is not copied: it stays a part of the frame.
    fn new(bus: &Bus, client: &Client, frame: &Text, invoke: Invoke<'_>, void: bool) -> Invocation {
        let traceparent = owned(invoke.traceparent);
        let call = Call {
            function: invoke.function_id.into_owned(),
            body: invoke.data.map_or(Text::from_static("null"), |raw| part_of(frame, raw.get())),
            metadata: owned(invoke.metadata),
            deadline: bus.gate.deadline(),
            caller: Caller { door: Door::Bus, identity: client.identity.clone() },
            trace: trace_of(traceparent.as_deref()),
            // Its outbox bounds what it leaves unread.
            is_crowded: false,
        };
        let trace = Trace { traceparent, baggage: owned(invoke.baggage), namespace: owned(invoke.namespace) };
        Invocation { call, trace, void }
    }

    fn print(&self, invocation_id: Option<&str>) -> Text {
        InvokeFrame {
            invocation_id,
            function_id: &self.call.function,
            data: &self.call.body,
            metadata: self.call.metadata.as_deref(),
            traceparent: self.trace.traceparent.as_deref(),
            baggage: self.trace.baggage.as_deref(),
            namespace: self.trace.namespace.as_deref(),
        }
        .print()
    }
}

fn part_of(frame: &Text, part: &str) -> Text {
    let whole: &bytes::Bytes = frame.as_ref();
    Text::try_from(whole.slice_ref(part.as_bytes())).unwrap_or_else(|_| Text::from(part))
}

/// Sends the result of a call to the client that made it.
fn answer(client: &Client, answer_to: Option<&str>, function_id: &str, result: Result<Printed, CallError>) {
    match (answer_to, result) {
        (Some(id), Ok(result)) => client.send_result(outbound::invocation_result(id, function_id, Ok(result))),
        (Some(id), Err(error)) => {
            let error = error.print_for_bus();
            client.send_result(outbound::invocation_result(id, function_id, Err(&error)));
        }
        (None, Ok(_)) => {}
        (None, Err(error)) => tracing::warn!(function_id, %error, "a void call failed"),
    }
}
