//! Owns: the one way into the functions of this node. Every door makes a `Call`; the gate admits it, bounds its time,
//! counts it and returns the answer.
//! Reads: the functions (`Service`). Never: a wire, or what a function does.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

pub use super::call_figures::Tally;
use super::call_figures::{ABANDONED, CallFigures};
use super::errors::CallError;
use super::fair_share::{Busy, CallerKey, FairShare, Slot};
use super::locked;
use super::retry_after::RetryAfter;
use super::slow_calls::SlowCalls;
use super::socket::Text;
use super::socket::intake::kib;
use crate::access::{Action, Identity, audit};
use crate::machine::{Answer, Found, Query};
use crate::metrics::timeline::followed;
use crate::metrics::trace::{self, Span, Tracer, Value};
use crate::metrics::{Counter, Durations, Page, catalogue};
use crate::proposal::{Freshness, Proposal};
use crate::requests::Printed;

/// The default of the SDKs.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// A function answers by its deadline. If it does not, the caller gets an error this much later.
const DEADLINE_GRACE: Duration = Duration::from_secs(5);
/// The default memory for calls in flight over all doors of the port. Past it, calls wait.
const MEMORY_BYTES: usize = 512 << 20;
/// A call takes at most this many times its body: the body, the checked copy, and the records made of it.
const MEMORY_PER_BODY_BYTE: usize = 4;
/// If calls wait and none was admitted for this long, the node is not healthy.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// One call of a function.
#[derive(Debug, Clone)]
pub struct Call {
    pub function: String,
    /// JSON text. A part of the frame it came in: it is not copied.
    pub body: Text,
    /// The metadata sent with the body, as JSON text.
    pub metadata: Option<String>,
    pub deadline: Instant,
    pub caller: Caller,
    /// The trace that the caller follows, as it was sent (`traceparent`).
    pub trace: Option<String>,
    /// Large answers wait unread at this door. A read that is probably expensive is refused before it is made.
    pub is_crowded: bool,
}

impl Call {
    /// A call without metadata.
    pub fn new(function: impl Into<String>, body: impl Into<Text>, deadline: Instant, caller: Caller) -> Call {
        let (function, body) = (function.into(), body.into());
        Call { function, body, metadata: None, deadline, caller, trace: None, is_crowded: false }
    }
}

/// The `traceparent` of a call, bare or as JSON text, if it has the shape that the W3C gives it. It is logged, so nothing
/// else is taken.
pub fn trace_of(given: Option<&str>) -> Option<String> {
    let text = given?.trim_matches('"');
    let lengths = text.split('-').map(str::len);
    let is_hex = |c: char| c == '-' || c.is_ascii_digit() || ('a'..='f').contains(&c);
    (lengths.eq([2, 32, 16, 2]) && text.chars().all(is_hex)).then(|| text.to_owned())
}

/// The names under which the work of doors is counted and logged.
pub const DOOR_COMMAND: &str = "door::command";
pub const DOOR_QUERY: &str = "door::query";

/// On whose behalf a door sends a command or query that is not a function.
pub struct DoorWork {
    pub door: Door,
    pub key: CallerKey,
}

/// Who makes a call, and through which door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub door: Door,
    pub identity: Arc<Identity>,
}

impl Caller {
    /// A caller of a node without credentials: it may do everything.
    pub fn unauthenticated(door: Door) -> Caller {
        Caller { door, identity: Identity::open() }
    }
}

/// Where a call entered the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    Bus,
    Http,
    /// An iii engine this node is a worker of.
    Engine,
    /// The gateway for front-ends that follow agents live.
    Gateway,
}

impl Door {
    pub const ALL: [Door; 4] = [Door::Bus, Door::Http, Door::Engine, Door::Gateway];

    pub fn name(self) -> &'static str {
        match self {
            Door::Bus => "bus",
            Door::Http => "http",
            Door::Engine => "engine",
            Door::Gateway => "gateway",
        }
    }
}

/// A set of functions, callable by name with a JSON body.
pub trait Service: Send + Sync + 'static {
    /// Fails with `CallError::FunctionUnknown` if there is no such function. Aliases of older versions count as known.
    fn call<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Printed, CallError>>;

    /// Executes a command that a door of this node decided for a caller it checked.
    fn propose(&self, proposal: Proposal) -> BoxFuture<'_, Result<Answer, CallError>> {
        let _ = proposal;
        async { Err(CallError::Unavailable("this service has no store".to_owned())) }.boxed()
    }

    /// Answers a query of a door of this node.
    fn ask(&self, query: Query, freshness: Freshness, deadline: Instant) -> BoxFuture<'_, Result<Found, CallError>> {
        let _ = (query, freshness, deadline);
        async { Err(CallError::Unavailable("this service has no store".to_owned())) }.boxed()
    }

    /// The functions as `engine::functions::list` and `engine::functions::info` describe them.
    fn functions(&self) -> Vec<DescribedFunction>;

    /// What a function does, as far as access is concerned. `None` if there is no such function.
    fn action(&self, _function_id: &str) -> Option<Action> {
        None
    }

    /// Further names of a function.
    fn aliases(&self, _function_id: &str) -> Vec<String> {
        Vec::new()
    }

    /// Whether there is a place for turns and journals, which the gateway needs.
    fn keeps_turns(&self) -> bool {
        true
    }

    /// How long a call may take when its door sets no deadline.
    fn call_timeout(&self) -> Duration {
        CALL_TIMEOUT
    }
}

/// A function as clients may ask about it.
#[derive(Debug, Clone)]
pub struct DescribedFunction {
    pub id: String,
    pub description: String,
    pub internal: bool,
    pub request_schema: serde_json::Value,
    pub response_schema: serde_json::Value,
}

/// The one way into a service.
pub struct Gate {
    service: Arc<dyn Service>,
    memory: Memory,
    share: FairShare,
    retry_after: RetryAfter,
    refusals: Durations,
    slow_calls: SlowCalls,
    calls: CallFigures,
    not_admitted: Counter,
    refused_logins: [Counter; Door::ALL.len()],
    /// Who calls that come through an iii engine act as. The engine admitted them.
    engine: RwLock<Arc<Identity>>,
    /// Set once, if this node exports traces.
    tracer: OnceLock<Arc<Tracer>>,
}

impl Gate {
    pub fn new(service: Arc<dyn Service>) -> Arc<Gate> {
        Gate::with_memory(service, MEMORY_BYTES)
    }

    /// A gate with another bound on the memory of calls in flight.
    pub fn with_memory(service: Arc<dyn Service>, bytes: usize) -> Arc<Gate> {
        let engine = RwLock::new(Identity::open());
        Arc::new(Gate {
            service,
            memory: Memory::new(bytes),
            share: FairShare::default(),
            retry_after: RetryAfter::default(),
            refusals: Durations::default(),
            slow_calls: SlowCalls::default(),
            calls: CallFigures::default(),
            not_admitted: Counter::default(),
            refused_logins: Default::default(),
            engine,
            tracer: OnceLock::new(),
        })
    }

    /// Calls are traced from now on.
    pub fn trace_with(&self, tracer: Arc<Tracer>) {
        self.tracer.get_or_init(|| tracer);
    }

    /// The span of a call that starts, if it is traced. It ends as abandoned unless the call is answered.
    fn span_of(&self, call: &Call) -> Option<Span> {
        let name = self.calls.name_of(&call.function);
        let mut span = self.tracer.get()?.call(name, call.trace.as_deref())?;
        span.note("door", Value::Text(call.caller.door.name()));
        span.ends_with(Some(ABANDONED));
        Some(span)
    }

    /// Another bound from now on. Calls in flight keep what they have.
    pub fn change_memory(&self, bytes: usize) {
        self.memory.change(bytes);
    }

    /// A task of the doors has waited this long for a processor.
    pub fn ran_late(&self, lateness: Duration) {
        self.share.ran_late(lateness);
    }

    /// Why calls cannot be served now. `None` when they can.
    pub fn trouble(&self) -> Option<String> {
        let waiting = self.memory.stuck_calls()?;
        Some(format!("{waiting} calls wait for memory, and none was admitted for {STUCK_AFTER:?}"))
    }

    /// What is served behind the gate, to describe it. Calls go through the gate.
    pub fn service(&self) -> &dyn Service {
        &*self.service
    }

    /// Sets who calls that come through an iii engine act as.
    pub fn set_engine_identity(&self, identity: Arc<Identity>) {
        *self.engine.write().unwrap_or_else(PoisonError::into_inner) = identity;
    }

    pub fn engine_identity(&self) -> Arc<Identity> {
        self.engine.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether an identity may call a function. An unknown function is no secret: the call fails as unknown.
    pub fn check_access(&self, identity: &Identity, function: &str) -> Result<(), CallError> {
        match self.service.action(function) {
            Some(action) if !identity.may(action) => Err(CallError::forbidden(identity, action)),
            Some(_) | None => Ok(()),
        }
    }

    /// The deadline of a call that starts now and whose door sets none.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.service.call_timeout()
    }

    /// Admits a call: waits until its caller may run one more and until there is memory for it, at most until its
    /// deadline. Fails at once when too many calls of the caller wait, or when the port it came through is closing. The
    /// admission is held until the call is answered.
    pub async fn admit(
        &self,
        caller: CallerKey,
        function: &str,
        body_bytes: usize,
        deadline: Instant,
        closing: &CancellationToken,
    ) -> Result<Admission, CallError> {
        check_open(function, closing)?;
        self.admit_begun(caller, function, body_bytes, deadline).await
    }

    /// The same for a door that finishes what it has begun, even while it closes.
    pub async fn admit_begun(
        &self,
        caller: CallerKey,
        function: &str,
        body_bytes: usize,
        deadline: Instant,
    ) -> Result<Admission, CallError> {
        let busy = |why: String| self.not_admitted(&why);
        let slot = match tokio::time::timeout_at(deadline.into(), self.share.take(caller, body_bytes)).await {
            Ok(Ok(slot)) => slot,
            Ok(Err(full)) => return Err(busy(full.to_string())),
            Err(_) => return Err(busy("the turn of the call did not come by its deadline".to_owned())),
        };
        match tokio::time::timeout_at(deadline.into(), self.memory.take(body_bytes)).await {
            Ok(Some(memory)) => {
                self.retry_after.admitted();
                Ok(Admission { _memory: memory, slot })
            }
            Ok(None) => Err(CallError::shutting_down(function)),
            Err(_) => Err(busy("no memory for the call became free by its deadline".to_owned())),
        }
    }

    /// Fails if too many calls of the caller wait already. A door asks before it reads a body, so that refusing costs
    /// little.
    pub fn check_queue(&self, caller: &CallerKey) -> Result<(), CallError> {
        self.share.check_queue(caller).map_err(|full: Busy| self.not_admitted(&full.to_string()))
    }

    /// A door tells a caller that its call was not admitted, so long after the request came. Returns after how many
    /// seconds the caller should try again.
    pub fn tells_refusal(&self, after: Duration) -> u64 {
        self.refusals.observe(after);
        self.retry_after.refused()
    }

    fn not_admitted(&self, why: &str) -> CallError {
        self.not_admitted.count();
        CallError::Unavailable(format!("the node is busy: {why}; try again"))
    }

    /// Runs a call and returns its answer, at the latest a little after its deadline.
    pub async fn call(&self, call: &Call) -> Result<Printed, CallError> {
        let answering = async {
            let allowed = self.check_access(&call.caller.identity, &call.function);
            allowed.inspect_err(|_| audit::refused_call(&call.caller.identity, call.caller.door, &call.function))?;
            self.service.call(call).await
        };
        self.run(call, answering).await
    }

    /// Admits and executes a command that a door made itself. The door has checked that its caller may do this.
    pub async fn propose(&self, by: DoorWork, proposal: Proposal) -> Result<Answer, CallError> {
        let (call, _admitted) = self.admit_door(DOOR_COMMAND, by, proposal.deadline).await?;
        self.run(&call, self.service.propose(proposal)).await
    }

    /// Admits and answers a query that a door made itself. The door has checked that its caller may ask this.
    pub async fn ask(&self, by: DoorWork, query: Query, freshness: Freshness) -> Result<Found, CallError> {
        let (call, _admitted) = self.admit_door(DOOR_QUERY, by, self.deadline()).await?;
        self.run(&call, self.service.ask(query, freshness, call.deadline)).await
    }

    async fn admit_door(&self, name: &str, by: DoorWork, deadline: Instant) -> Result<(Call, Admission), CallError> {
        // The connection of the caller bounds the size of what it sends here.
        let admission = self.admit_begun(by.key, name, 0, deadline).await?;
        Ok((Call::new(name, "", deadline, Caller::unauthenticated(by.door)), admission))
    }

    /// Times, counts and traces what answers a call.
    async fn run<T>(&self, call: &Call, answering: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
        let mut running = self.calls.start(call);
        let at_most = call.deadline.saturating_duration_since(running.started) + DEADLINE_GRACE;
        // Lines of the log that belong to the call name it, with the level debug.
        let span = tracing::debug_span!("call", function = call.function, trace = call.trace);
        let mut traced = self.span_of(call);
        let working = followed(tokio::time::timeout(at_most, answering).instrument(span));
        let (answered, went) = trace::within(traced.as_ref(), working).await;
        let answer = match answered {
            Ok(answer) => answer,
            Err(_) => {
                let why = format!("`{}` did not answer by its deadline", call.function);
                Err(CallError::OutcomeUnknown(why))
            }
        };
        self.slow_calls.note(call, running.started.elapsed(), &went, answer.as_ref().err());
        running.ends_with(&answer);
        if let Some(traced) = &mut traced {
            traced.ends_with(answer.as_ref().err().map(|error| error.kind().row().code));
        }
        answer
    }

    /// The calls that entered through a door since the node started.
    pub fn tally(&self, door: Door) -> Tally {
        self.calls.tally(door)
    }

    /// A door refused a call because of the caller's role, before it read the body.
    pub fn refused_early(&self, caller: &Caller, function: &str) {
        audit::refused_call(&caller.identity, caller.door, function);
        self.calls.forbidden(function, caller.door);
    }

    /// A door refused a caller without valid credentials.
    pub fn refused_login(&self, door: Door) {
        self.refused_logins[door as usize].count();
    }

    /// Adds the figures of all calls to a page.
    pub fn measure(&self, page: &mut Page) {
        self.calls.measure(page);
        self.memory.measure(page);
        page.whole(catalogue::CALLS_QUEUED, self.share.waiting() as u64);
        page.whole(catalogue::CALLS_NOT_ADMITTED, self.not_admitted.value());
        page.durations(catalogue::REFUSAL, &[], &self.refusals);
        // An engine has no login: the node logs in there.
        for door in [Door::Bus, Door::Http, Door::Gateway] {
            let refused = self.refused_logins[door as usize].value();
            page.whole_of(catalogue::LOGINS_REFUSED, &[("door", door.name())], refused);
        }
    }
}

/// A call that may run. Dropping it lets others run.
pub struct Admission {
    _memory: OwnedSemaphorePermit,
    slot: Slot,
}

impl Admission {
    /// The size of the answer, which counts towards the share of the caller.
    pub fn answers(&mut self, bytes: usize) {
        self.slot.answers(bytes);
    }
}

/// The memory for calls in flight.
struct Memory {
    /// Permits are KiB.
    kib: Arc<Semaphore>,
    kib_max: AtomicU32,
    queue: Mutex<Queue>,
}

/// The calls that wait for memory.
struct Queue {
    length: usize,
    /// When a call was admitted last, or began to wait as the only one.
    moved: tokio::time::Instant,
}

impl Memory {
    fn new(bytes: usize) -> Memory {
        let kib_max = kib(bytes);
        Memory {
            kib: Arc::new(Semaphore::new(kib_max as usize)),
            kib_max: AtomicU32::new(kib_max),
            queue: Mutex::new(Queue { length: 0, moved: tokio::time::Instant::now() }),
        }
    }

    /// Waits for the memory of one call. One that is larger than all of it gets all of it.
    async fn take(&self, body_bytes: usize) -> Option<OwnedSemaphorePermit> {
        let size = kib(body_bytes.saturating_mul(MEMORY_PER_BODY_BYTE)).min(self.kib_max.load(Ordering::Relaxed));
        if let Ok(permit) = self.kib.clone().try_acquire_many_owned(size) {
            return Some(permit);
        }
        let _place = self.stand_in_line();
        // The semaphore is never closed, so this is never `None`.
        let permit = self.kib.clone().acquire_many_owned(size).await.ok();
        locked(&self.queue).moved = tokio::time::Instant::now();
        permit
    }

    fn stand_in_line(&self) -> PlaceInLine<'_> {
        let mut queue = locked(&self.queue);
        if queue.length == 0 {
            queue.moved = tokio::time::Instant::now();
        }
        queue.length += 1;
        PlaceInLine(self)
    }

    /// How many calls wait although none was admitted for long.
    fn stuck_calls(&self) -> Option<usize> {
        let queue = locked(&self.queue);
        (queue.length > 0 && queue.moved.elapsed() > STUCK_AFTER).then_some(queue.length)
    }

    fn measure(&self, page: &mut Page) {
        let max = self.kib_max.load(Ordering::Relaxed) as usize;
        page.whole(catalogue::CALLS_WAITING, locked(&self.queue).length as u64);
        page.whole(catalogue::CALL_MEMORY, max.saturating_sub(self.kib.available_permits()) as u64 * 1024);
        page.whole(catalogue::CALL_MEMORY_LIMIT, max as u64 * 1024);
    }

    fn change(&self, bytes: usize) {
        let (next, before) = (kib(bytes), self.kib_max.swap(kib(bytes), Ordering::Relaxed));
        if next >= before {
            return self.kib.add_permits((next - before) as usize);
        }
        let fewer = (before - next) as usize;
        let taken = fewer - self.kib.forget_permits(fewer);
        let semaphore = self.kib.clone();
        if taken > 0 {
            tokio::spawn(async move {
                if let Ok(permits) = semaphore.acquire_many(u32::try_from(taken).unwrap_or(u32::MAX)).await {
                    permits.forget();
                }
            });
        }
    }
}

/// A call that waits. Dropped when it is admitted or gives up.
struct PlaceInLine<'a>(&'a Memory);

impl Drop for PlaceInLine<'_> {
    fn drop(&mut self) {
        locked(&self.0.queue).length -= 1;
    }
}

/// Fails when the port a call came through is closing.
pub fn check_open(function: &str, closing: &CancellationToken) -> Result<(), CallError> {
    if closing.is_cancelled() { Err(CallError::shutting_down(function)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::ids::SessionId;
    use crate::machine::refusal::Refusal;

    struct ByName;

    impl Service for ByName {
        fn call<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Printed, CallError>> {
            async move {
                match call.function.as_str() {
                    "answer" => Ok(call.body.to_string().into()),
                    "refuse" => Err(Refusal::SessionUnknown(SessionId::from("s")).into()),
                    "fail" => Err(CallError::Unavailable("no leader".to_owned())),
                    "hang" => std::future::pending().await,
                    other => Err(CallError::FunctionUnknown(other.to_owned())),
                }
            }
            .boxed()
        }

        fn functions(&self) -> Vec<DescribedFunction> {
            Vec::new()
        }
    }

    fn call(function: &str, door: Door) -> Call {
        Call::new(function, "{}", Instant::now() + Duration::from_secs(1), Caller::unauthenticated(door))
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_counted_by_door_and_outcome() {
        let gate = Gate::new(Arc::new(ByName));
        assert_eq!(gate.call(&call("answer", Door::Bus)).await, Ok("{}".to_owned().into()));
        for function in ["refuse", "unknown"] {
            assert!(gate.call(&call(function, Door::Bus)).await.is_err());
        }
        assert!(gate.call(&call("fail", Door::Http)).await.is_err());
        let late = gate.call(&call("hang", Door::Engine)).await.unwrap_err();
        assert_eq!(late.to_string(), "session/storage: outcome unknown: `hang` did not answer by its deadline");
        let abandoned = call("hang", Door::Http);
        let mut running = Box::pin(gate.call(&abandoned));
        assert!(running.as_mut().now_or_never().is_none());
        assert_eq!(gate.tally(Door::Http).in_flight, 1);
        drop(running);
        let counts = |door| {
            let Tally { in_flight, answered, refused, failed, abandoned, .. } = gate.tally(door);
            [in_flight, answered, refused, failed, abandoned]
        };
        assert_eq!(counts(Door::Bus), [0, 1, 2, 0, 0]);
        assert_eq!(counts(Door::Http), [0, 0, 0, 1, 1]);
        assert_eq!(counts(Door::Engine), [0, 0, 0, 1, 0]);
    }

    #[test]
    fn only_a_trace_of_the_right_shape_is_taken() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(trace_of(Some(good)).as_deref(), Some(good));
        assert_eq!(trace_of(Some(&format!("\"{good}\""))).as_deref(), Some(good));
        for bad in ["", "00", "null", "00-x-y-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\n"] {
            assert_eq!(trace_of(Some(bad)), None, "{bad}");
        }
        assert_eq!(trace_of(None), None);
    }

    fn somebody() -> CallerKey {
        CallerKey::Name("somebody".into())
    }

    #[tokio::test]
    async fn a_closing_port_admits_nothing() {
        let (gate, closing) = (Gate::new(Arc::new(ByName)), CancellationToken::new());
        assert!(gate.admit(somebody(), "session::get", 10, gate.deadline(), &closing).await.is_ok());
        closing.cancel();
        let own = gate.admit(somebody(), "session::get", 10, gate.deadline(), &closing).await.err().unwrap();
        assert!(own.to_string().starts_with("session/storage: this node is shutting down"), "{own}");
        let other = gate.admit(somebody(), "shop::buy", 10, gate.deadline(), &closing).await.err().unwrap();
        assert_eq!(other, CallError::ShuttingDown);
    }

    #[tokio::test]
    async fn what_a_door_does_itself_is_admitted_and_counted() {
        let gate = Gate::new(Arc::new(ByName));
        let work = || DoorWork { door: Door::Gateway, key: somebody() };
        let query = || Query::Cursor(String::new());
        let failed = gate.ask(work(), query(), Freshness::Local).await.unwrap_err();
        assert_eq!(failed.to_string(), "session/storage: this service has no store");
        assert_eq!(gate.tally(Door::Gateway).failed, 1);
        // While others call, a caller has a share of the calls that run, and its further ones wait.
        let other = gate.admit_begun(CallerKey::Name("other".into()), "session::get", 10, gate.deadline()).await;
        let mut running = Vec::new();
        while let Some(admitted) = gate.admit_begun(somebody(), "session::get", 10, gate.deadline()).now_or_never() {
            running.push(admitted.ok().unwrap());
        }
        let mut waiting = Box::pin(gate.ask(work(), query(), Freshness::Local));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop((running, other));
        assert!(waiting.await.is_err());
        assert_eq!(gate.tally(Door::Gateway).failed, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_memory_until_its_deadline_and_health_tells_of_it() {
        let (gate, closing) = (Gate::with_memory(Arc::new(ByName), 1 << 20), CancellationToken::new());
        let all = gate.admit(somebody(), "session::append", 1 << 20, gate.deadline(), &closing).await.ok().unwrap();
        assert_eq!(gate.trouble(), None);
        let mut waiting = Box::pin(gate.admit(somebody(), "session::get", 10, gate.deadline(), &closing));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert_eq!(gate.trouble(), None, "a moment of waiting is ordinary");
        tokio::time::sleep(STUCK_AFTER * 2).await;
        assert!(gate.trouble().unwrap().starts_with("1 calls wait for memory"));
        let late = waiting.await.err().unwrap();
        assert!(late.to_string().starts_with("session/storage: the node is busy"), "{late}");
        assert_eq!(gate.trouble(), None);
        drop(all);
        assert!(gate.admit(somebody(), "session::get", 10, gate.deadline(), &closing).await.is_ok());
    }

    #[tokio::test]
    async fn the_memory_for_calls_can_change_while_calls_are_in_flight() {
        let (gate, closing) = (Gate::with_memory(Arc::new(ByName), 8 << 20), CancellationToken::new());
        let held = gate.admit(somebody(), "session::append", 1 << 20, gate.deadline(), &closing).await.ok().unwrap();
        gate.change_memory(2 << 20);
        let mut waiting = Box::pin(gate.admit(somebody(), "session::append", 1 << 20, gate.deadline(), &closing));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(held);
        assert!(waiting.await.is_ok());
        gate.change_memory(8 << 20);
        // What the smaller bound takes back is taken when it becomes free, by a task.
        let settled = async {
            while gate.memory.kib.available_permits() != 8 << 10 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), settled).await.expect("all memory is free again");
    }
}
