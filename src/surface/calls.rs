//! Owns: the functions of this node: from the body of a call to its response, over a runtime that a reload replaces as
//! a whole.
//! Reads: the table of functions. Never: state, or a wire.

use std::error::Error;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;

use super::errors::CallError;
use super::expensive_calls::{Computing, ExpensiveCalls, NoTurn, session_of};
use super::gate::{CALL_TIMEOUT, Call, DescribedFunction, Service};
use super::locked;
use super::sidecar::{self, Consistency};
use crate::access::Action;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Found, Query};
use crate::metrics::timeline::{Step, timed};
use crate::proposal::{Adapter, Freshness, Intent, Proposal, Relayed};
use crate::requests::config_status::ReloadStatus;
use crate::requests::limits::RESPONSE_BYTES_MAX;
use crate::requests::store::about::Introduction;
use crate::requests::{self, Decision, Done, Function, Limits, Printed};

/// What calls run on. A reload replaces it as a whole. Calls in flight finish on the one they started with.
#[derive(Clone)]
pub struct Runtime {
    pub adapter: Arc<dyn Adapter>,
    pub limits: Limits,
    /// Whether functions also answer to the snake_case ids of version 0.1.2.
    pub legacy_names: bool,
    /// Whether this node holds the data. A bridge does not, and does not serve the raw store protocol.
    pub authoritative: bool,
    /// Whether the adapter has a place for turns and journals.
    pub keeps_turns: bool,
    /// How long a call may take when its door sets no deadline.
    pub call_timeout: Duration,
}

impl Runtime {
    /// An adapter that holds the data itself, with the default settings.
    pub fn new(adapter: Arc<dyn Adapter>) -> Runtime {
        Runtime {
            adapter,
            limits: Limits::DEFAULT,
            legacy_names: true,
            authoritative: true,
            keeps_turns: true,
            call_timeout: CALL_TIMEOUT,
        }
    }
}

/// Reads the configuration again and applies it, or returns why it was rejected.
pub type Reload = Arc<dyn Fn() -> BoxFuture<'static, Result<(), Box<dyn Error + Send + Sync>>> + Send + Sync>;

/// Describes this node to a bridge, including whether its feed can be resumed after the given position.
pub type Introduce = Arc<dyn Fn(Option<&str>) -> Introduction + Send + Sync>;

pub struct Calls {
    runtime: RwLock<Arc<Runtime>>,
    reloads: Arc<Reloads>,
    introduce: OnceLock<Introduce>,
    expensive: ExpensiveCalls,
}

impl Calls {
    pub fn new(runtime: Runtime) -> Calls {
        let reloads = Reloads {
            hook: Mutex::new(None),
            status: Mutex::new(ReloadStatus::AT_BOOT),
            turn: tokio::sync::Mutex::new(()),
        };
        Calls {
            runtime: RwLock::new(Arc::new(runtime)),
            reloads: Arc::new(reloads),
            introduce: OnceLock::new(),
            expensive: ExpensiveCalls::default(),
        }
    }

    /// Sets the answer of `session::store::about`. Without it, no bridge can use this node.
    pub fn introduce_with(&self, introduce: Introduce) {
        self.introduce.get_or_init(|| introduce);
    }

    /// The current runtime.
    pub fn runtime(&self) -> Arc<Runtime> {
        Arc::clone(&self.runtime.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the runtime for new calls. Returns the previous one.
    pub fn swap(&self, runtime: Runtime) -> Arc<Runtime> {
        let mut current = self.runtime.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut current, Arc::new(runtime))
    }

    /// Sets what `session::on-config-change` does. Without a hook it does nothing.
    pub fn on_reload(&self, hook: Reload) {
        *locked(&self.reloads.hook) = Some(hook);
    }

    /// Reloads the configuration now. False when it was rejected; the status says why.
    pub async fn reload_now(&self) -> bool {
        Arc::clone(&self.reloads).run().await
    }

    pub fn reload_status(&self) -> ReloadStatus {
        locked(&self.reloads.status).clone()
    }

    /// A read, from the query to the response. Expensive ones take turns.
    async fn read(
        &self,
        runtime: &Runtime,
        function: &Function,
        query: Query,
        freshness: Freshness,
        call: &Call,
    ) -> Result<Printed, CallError> {
        let (session, deadline) = (session_of(&query).cloned(), call.deadline);
        if call.is_crowded && self.expensive.is_expensive(session.as_ref()) {
            let why = "the node is busy: too many large responses wait for clients that do not read; try again";
            return Err(CallError::Unavailable(why.to_owned()));
        }
        // A turn is for computing, so the wait for the read index is not a part of it.
        let freshness = match &session {
            Some(_) => runtime.adapter.catch_up(freshness, deadline).await?,
            None => freshness,
        };
        let turn = timed(Step::Turn, self.expensive.wait(session.as_ref(), deadline)).await.map_err(|NoTurn| {
            CallError::Unavailable("too many large reads are in progress: read it again later".to_owned())
        })?;
        let reading = async {
            let found = runtime.adapter.ask(query, freshness, deadline).await?;
            respond(function, function, Done::Found(found))
        };
        let (response, computed) = Computing::new(reading, turn.is_some()).await;
        self.expensive.note(session.as_ref(), computed);
        if let Some(turn) = turn {
            turn.end(computed);
        }
        response
    }

    fn introduction(&self, after: Option<&str>) -> Result<Introduction, CallError> {
        let introduce = self.introduce.get();
        let missing = || CallError::Unavailable("this node has no feed that a bridge could follow".to_owned());
        let introduce = introduce.ok_or_else(missing)?;
        Ok(introduce(after))
    }

    /// Returns whether the configuration was applied. A reload continues when its caller stops waiting.
    async fn reload(&self, deadline: Instant) -> Result<bool, CallError> {
        let reloads = Arc::clone(&self.reloads);
        let running = tokio::spawn(async move { reloads.run().await });
        match tokio::time::timeout_at(deadline.into(), running).await {
            Ok(Ok(ok)) => Ok(ok),
            Ok(Err(_)) => Err(CallError::OutcomeUnknown("the reload stopped unexpectedly".to_owned())),
            Err(_) => Err(CallError::OutcomeUnknown("the reload is still running".to_owned())),
        }
    }
}

/// The reload hook and its status. `turn` keeps two reloads from interleaving.
struct Reloads {
    hook: Mutex<Option<Reload>>,
    status: Mutex<ReloadStatus>,
    turn: tokio::sync::Mutex<()>,
}

impl Reloads {
    async fn run(&self) -> bool {
        let _turn = self.turn.lock().await;
        let hook = locked(&self.hook).clone();
        let result = match hook {
            Some(hook) => hook().await,
            None => Ok(()),
        };
        if let Err(why) = &result {
            tracing::warn!(%why, "the configuration was rejected; the previous one stays in use");
        }
        locked(&self.status).record(&result);
        result.is_ok()
    }
}

/// Prints the answer with the function that `answers`; errors name the function that was called.
fn respond(answers: &Function, function: &Function, done: Done) -> Result<Printed, CallError> {
    let response = (answers.respond)(done).ok_or_else(|| {
        tracing::error!(function = function.id, "the adapter returned an answer of the wrong type");
        CallError::OutcomeUnknown(format!("{} got an answer of the wrong type", function.id))
    })?;
    check_size(response)
}

/// Only reads can be too long: a mutation answers with ids and one record.
fn check_size(response: Printed) -> Result<Printed, CallError> {
    let bytes = response.len();
    if bytes > RESPONSE_BYTES_MAX {
        let why = format!(
            "the response has {bytes} bytes, at most {RESPONSE_BYTES_MAX} fit a frame: read it in smaller pages"
        );
        return Err(Refusal::RequestInvalid(why).into());
    }
    Ok(response)
}

/// The intent of a call that another node could decide. `None` for calls about this node.
fn intent(decision: &Decision) -> Option<Intent> {
    match decision {
        Decision::Propose(_) => Some(Intent::Change),
        Decision::Ask(query) => Some(Intent::Read { page: query.page_limit() }),
        Decision::ProposeOnce { .. } | Decision::Introduce { .. } | Decision::ConfigStatus | Decision::ReloadConfig => {
            None
        }
    }
}

fn is_raw_store(function: &Function) -> bool {
    function.id.starts_with("session::store::")
}

impl Service for Calls {
    /// Checks the request and runs it. This is the only function that talks to the adapter.
    fn call<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Printed, CallError>> {
        async move {
            self.expensive.begins();
            let runtime = self.runtime();
            let function = requests::find(&call.function, runtime.legacy_names)
                .ok_or_else(|| CallError::FunctionUnknown(call.function.clone()))?;
            if is_raw_store(function) && !runtime.authoritative {
                let why = format!("{} is served only where the data lives: call the main of this bridge", function.id);
                return Err(Refusal::RequestInvalid(why).into());
            }
            let (body, deadline) = (call.body.as_str(), call.deadline);
            let terms = sidecar::read(call.metadata.as_deref())?;
            let decide = |body: &str| (function.decide)(body, &runtime.limits);
            let decision = self.expensive.read_body(body, deadline, decide).await.map_err(|NoTurn| {
                CallError::Unavailable("too many large calls are in progress: send it again later".to_owned())
            })??;
            if call.caller.identity.scope.is_some() && !runtime.authoritative {
                let why = "this node is a bridge, and its main decides about scopes: connect to the main itself";
                return Err(CallError::Forbidden(why.to_owned()));
            }
            if let Some(intent) = intent(&decision)
                && let Some(there) = runtime.adapter.relay(Relayed { function_id: function.id, body, intent }, deadline)
            {
                return check_size(there.await?.into());
            }
            let scope = call.caller.identity.scope.clone();
            let mut answers = function;
            let done = match decision {
                Decision::Propose(command) => {
                    let proposal = Proposal { scope, ..Proposal::new(command, deadline) };
                    Done::Answered(runtime.adapter.propose(proposal).await?)
                }
                Decision::Ask(query) => {
                    let query = match scope {
                        Some(scope) => Query::Within { scope, query: Box::new(query) },
                        None => query,
                    };
                    let freshness = match terms.consistency {
                        Some(Consistency::Local) => Freshness::Local,
                        Some(Consistency::Linearizable) | None => Freshness::Linearizable,
                    };
                    return self.read(&runtime, function, query, freshness, call).await;
                }
                Decision::ProposeOnce { command, request_id, function: called } => {
                    answers = requests::find(called, false).unwrap_or(function);
                    let proposal = Proposal { command, request_id: Some(request_id), scope: None, deadline };
                    Done::Answered(runtime.adapter.propose(proposal).await?)
                }
                Decision::Introduce { after } => {
                    // A node that is cut off, or was removed from its cluster, has no feed that a bridge should follow.
                    let any = Query::Cursor(String::new());
                    runtime.adapter.ask(any, Freshness::Linearizable, deadline).await?;
                    Done::Introduced(self.introduction(after.as_deref())?)
                }
                Decision::ConfigStatus => Done::Status(self.reload_status()),
                Decision::ReloadConfig => Done::Reloaded { ok: self.reload(deadline).await? },
            };
            respond(answers, function, done)
        }
        .boxed()
    }

    fn propose(&self, proposal: Proposal) -> BoxFuture<'_, Result<Answer, CallError>> {
        let adapter = self.runtime().adapter.clone();
        async move { Ok(adapter.propose(proposal).await?) }.boxed()
    }

    fn ask(&self, query: Query, freshness: Freshness, deadline: Instant) -> BoxFuture<'_, Result<Found, CallError>> {
        let adapter = self.runtime().adapter.clone();
        async move { Ok(adapter.ask(query, freshness, deadline).await?) }.boxed()
    }

    fn functions(&self) -> Vec<DescribedFunction> {
        let served = |function: &&Function| self.runtime().authoritative || !is_raw_store(function);
        requests::served().filter(served).map(described).collect()
    }

    fn action(&self, function_id: &str) -> Option<Action> {
        let function = requests::find(function_id, self.runtime().legacy_names)?;
        Some(match (is_raw_store(function), function.writes) {
            (true, _) => Action::RawStore,
            (false, true) => Action::Write,
            (false, false) => Action::Read,
        })
    }

    fn aliases(&self, function_id: &str) -> Vec<String> {
        let legacy = self.runtime().legacy_names.then(|| requests::legacy_name(function_id)).flatten();
        legacy.into_iter().collect()
    }

    fn keeps_turns(&self) -> bool {
        self.runtime().keeps_turns
    }

    fn call_timeout(&self) -> Duration {
        self.runtime().call_timeout
    }
}

fn described(function: &Function) -> DescribedFunction {
    DescribedFunction {
        id: function.id.to_owned(),
        description: function.description.to_owned(),
        internal: function.internal,
        request_schema: serde_json::to_value((function.request_schema)()).unwrap_or_default(),
        response_schema: serde_json::to_value((function.response_schema)()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::events::{Committed, EventSink};
    use crate::machine::ids::SessionId;
    use crate::machine::{Answer, Found, Query};
    use crate::mint::SystemMint;
    use crate::proposal::AdapterError;
    use crate::proposal::local::LocalAdapter;
    use crate::surface::gate::{Caller, Door};

    struct NoSubscribers;

    impl EventSink for NoSubscribers {
        fn publish(&self, _events: Vec<Arc<Committed>>) {}
    }

    /// An adapter that answers everything with the same failure, or with an answer of the wrong type.
    struct Broken(Option<AdapterError>);

    impl Adapter for Broken {
        fn propose(&self, _proposal: Proposal) -> BoxFuture<'_, Result<Answer, AdapterError>> {
            let answer = self.0.clone().map_or(Ok(Answer::Stored), Err);
            async move { answer }.boxed()
        }

        fn ask(&self, _: Query, _: Freshness, _: Instant) -> BoxFuture<'_, Result<Found, AdapterError>> {
            let found = self.0.clone().map_or(Ok(Found::Leaf(None)), Err);
            async move { found }.boxed()
        }
    }

    /// An adapter that cannot confirm a read index and answers only from its own state.
    struct CutOff;

    impl Adapter for CutOff {
        fn propose(&self, _proposal: Proposal) -> BoxFuture<'_, Result<Answer, AdapterError>> {
            std::future::pending().boxed()
        }

        fn catch_up(&self, freshness: Freshness, _: Instant) -> BoxFuture<'_, Result<Freshness, AdapterError>> {
            match freshness {
                Freshness::Local => async { Ok(Freshness::Local) }.boxed(),
                Freshness::Linearizable => std::future::pending().boxed(),
            }
        }

        fn ask(&self, _: Query, freshness: Freshness, _: Instant) -> BoxFuture<'_, Result<Found, AdapterError>> {
            async move {
                if freshness == Freshness::Linearizable {
                    std::future::pending::<()>().await;
                }
                Err(AdapterError::Refused(Refusal::SessionUnknown("s".into())))
            }
            .boxed()
        }
    }

    #[tokio::test]
    async fn an_expensive_read_that_waits_for_the_read_index_has_no_turn() {
        let calls = Calls::new(Runtime::new(Arc::new(CutOff)));
        calls.expensive.note(Some(&"s".into()), Duration::from_secs(1));
        let read = || request("session::messages", json!({ "session_id": "s" }), Duration::from_secs(10));
        // More of them than there are turns.
        let requests = Vec::from_iter((0..64).map(|_| read()));
        let mut waiting = Vec::from_iter(requests.iter().map(|request| calls.call(request)));
        waiting.iter_mut().for_each(|call| assert!(call.now_or_never().is_none()));
        let local =
            Call { metadata: Some(json!({ "session-manager": { "consistency": "local" } }).to_string()), ..read() };
        let answer = calls.call(&local).now_or_never().expect("its turn comes");
        assert!(answer.unwrap_err().to_string().contains("no session"));
    }

    fn memory() -> Runtime {
        Runtime::new(Arc::new(LocalAdapter::memory(Arc::new(SystemMint::default()), Arc::new(NoSubscribers))))
    }

    fn request(function_id: &str, body: Value, within: Duration) -> Call {
        Call::new(function_id, body.to_string(), Instant::now() + within, Caller::unauthenticated(Door::Bus))
    }

    async fn call(calls: &Calls, function_id: &str, body: Value) -> Result<Value, CallError> {
        let text = calls.call(&request(function_id, body, Duration::from_secs(5))).await?.into_text();
        Ok(serde_json::from_str(&text).expect("a response is JSON"))
    }

    #[tokio::test]
    async fn a_call_goes_from_its_body_to_its_response() {
        let calls = Calls::new(memory());
        let created = call(&calls, "session::create", json!({"title": "t"})).await.unwrap();
        let got = call(&calls, "session::get", json!({"session_id": created["session_id"]})).await.unwrap();
        assert_eq!(got["meta"], created["meta"]);
        let unknown = call(&calls, "session::nothing", json!({})).await;
        assert_eq!(unknown, Err(CallError::FunctionUnknown("session::nothing".to_owned())));
    }

    #[tokio::test]
    async fn legacy_names_answer_as_long_as_they_are_wanted() {
        let calls = Calls::new(memory());
        let listed = call(&calls, "session::store::list_metas", json!({})).await.unwrap();
        assert_eq!(listed, json!({"metas": []}));
        calls.swap(Runtime { legacy_names: false, ..(*calls.runtime()).clone() });
        let unknown = call(&calls, "session::store::list_metas", json!({})).await;
        assert_eq!(unknown, Err(CallError::FunctionUnknown("session::store::list_metas".to_owned())));
    }

    #[tokio::test]
    async fn a_swap_changes_what_the_next_call_sees() {
        let calls = Calls::new(memory());
        call(&calls, "session::ensure", json!({"session_id": "s"})).await.unwrap();
        let before = calls.swap(memory());
        assert_eq!(call(&calls, "session::get", json!({"session_id": "s"})).await.unwrap(), Value::Null);
        calls.swap((*before).clone());
        assert!(call(&calls, "session::get", json!({"session_id": "s"})).await.unwrap().is_object());
    }

    fn ids(calls: &Calls) -> Vec<String> {
        calls.functions().into_iter().map(|function| function.id).collect()
    }

    #[tokio::test]
    async fn a_bridge_serves_no_raw_store() {
        let calls = Calls::new(Runtime { authoritative: false, ..memory() });
        for function in requests::served().filter(|function| is_raw_store(function)) {
            let error = call(&calls, function.id, json!({})).await.unwrap_err();
            assert_eq!(error.code(), "session/invalid_request");
            assert!(error.message().contains("where the data lives"), "{error}");
        }
        let others = requests::served().filter(|function| !is_raw_store(function));
        assert_eq!(ids(&calls), others.map(|function| function.id).collect::<Vec<_>>());
        assert!(call(&calls, "session::list", json!({})).await.is_ok());
    }

    #[tokio::test]
    async fn a_page_of_large_messages_is_a_short_page_and_none_is_lost() {
        let calls = Calls::new(memory());
        call(&calls, "session::ensure", json!({"session_id": "s"})).await.unwrap();
        let text = "x".repeat(6 << 20);
        for entry_id in ["1", "2", "3", "4", "5"] {
            let message = json!({"role": "user", "content": [{"type": "text", "text": text}], "timestamp": 1});
            let body = json!({"session_id": "s", "entry_id": entry_id, "message": message});
            call(&calls, "session::append", body).await.unwrap();
        }
        let mut pages = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let page = call(&calls, "session::messages", json!({"session_id": "s", "cursor": cursor})).await.unwrap();
            let items = page["messages"].as_array().unwrap().iter();
            pages.push(items.map(|item| item["entry_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>());
            cursor = page["next_cursor"].clone();
            if cursor.is_null() {
                break;
            }
        }
        assert_eq!(pages, [vec!["1", "2"], vec!["3", "4"], vec!["5"]]);
    }

    #[tokio::test]
    async fn an_expensive_read_is_refused_before_it_is_made_while_large_answers_wait_unread() {
        let calls = Calls::new(memory());
        call(&calls, "session::ensure", json!({"session_id": "s"})).await.unwrap();
        let ask = || request("session::messages", json!({"session_id": "s"}), Duration::from_secs(5));
        let crowded = || Call { is_crowded: true, ..ask() };
        assert!(calls.call(&crowded()).await.is_ok(), "an ordinary read is made");
        let session = SessionId::from("s");
        calls.expensive.note(Some(&session), Duration::from_secs(1));
        let refused = calls.call(&crowded()).await.unwrap_err();
        assert!(refused.to_string().starts_with("session/storage: the node is busy"), "{refused}");
        assert!(calls.expensive.is_expensive(Some(&session)), "the read was not made, so nothing new is known of it");
        assert!(calls.call(&ask()).await.is_ok());
    }

    #[test]
    fn a_response_that_fits_no_frame_is_an_error() {
        assert!(check_size("x".repeat(RESPONSE_BYTES_MAX).into()).is_ok());
        let error = check_size("x".repeat(RESPONSE_BYTES_MAX + 1).into()).unwrap_err();
        assert_eq!(error.code(), "session/invalid_request");
    }

    #[tokio::test]
    async fn a_failed_adapter_is_a_storage_error_and_nonsense_is_one_too() {
        let calls = Calls::new(Runtime::new(Arc::new(Broken(Some(AdapterError::Unavailable("no leader".to_owned()))))));
        let error = call(&calls, "session::create", json!({})).await.unwrap_err();
        assert_eq!(error.to_string(), "session/storage: no leader");
        let calls = Calls::new(Runtime::new(Arc::new(Broken(None))));
        for (function, body) in [("session::create", json!({})), ("session::get", json!({"session_id": "s"}))] {
            let error = call(&calls, function, body).await.unwrap_err();
            assert!(error.to_string().starts_with("session/storage: outcome unknown"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_rejected_reload_shows_in_the_status_and_the_next_good_one_clears_it() {
        let calls = Calls::new(memory());
        assert_eq!(call(&calls, "session::on-config-change", json!({"id": "x"})).await.unwrap(), json!({"ok": true}));
        let turn = Arc::new(AtomicUsize::new(0));
        calls.on_reload(Arc::new(move || {
            let first = turn.fetch_add(1, Ordering::SeqCst) == 0;
            async move { if first { Err("data_dir is gone".into()) } else { Ok(()) } }.boxed()
        }));
        assert_eq!(call(&calls, "session::on-config-change", json!({})).await.unwrap(), json!({"ok": false}));
        assert_eq!(
            call(&calls, "session::config-status", Value::Null).await.unwrap(),
            json!({"last_outcome": "rejected", "last_error": "data_dir is gone", "rejected_reloads": 1})
        );
        assert_eq!(call(&calls, "session::on_config_change", json!({})).await.unwrap(), json!({"ok": true}));
        assert_eq!(
            call(&calls, "session::config-status", json!({})).await.unwrap(),
            json!({"last_outcome": "applied", "rejected_reloads": 1})
        );
    }

    #[tokio::test]
    async fn a_reload_outlives_a_caller_that_stops_waiting() {
        let calls = Calls::new(memory());
        let release = Arc::new(tokio::sync::Notify::new());
        let hook_release = Arc::clone(&release);
        calls.on_reload(Arc::new(move || {
            let release = Arc::clone(&hook_release);
            async move {
                release.notified().await;
                Err("late".into())
            }
            .boxed()
        }));
        let call = request("session::on-config-change", json!({}), Duration::ZERO);
        let late = calls.call(&call).await.unwrap_err();
        assert!(late.message().contains("still running"), "{late}");
        release.notify_one();
        while calls.reload_status().rejected_reloads == 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn all_functions_are_described_with_their_schemas() {
        let calls = Calls::new(memory());
        assert_eq!(ids(&calls), requests::served().map(|function| function.id).collect::<Vec<_>>());
        let functions = calls.functions();
        assert!(functions.iter().all(|function| function.request_schema["type"] == "object"));
        assert!(functions.iter().all(|function| function.response_schema.is_object()));
    }
}
