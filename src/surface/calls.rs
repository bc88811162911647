//! Owns: the way of a call from its body to its response, and the runtime that calls see, swapped whole.
//! Reads: the table of functions. Never: state, or a wire.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;

use super::sidecar::{self, Consistency};
use super::{CallError, DescribedFunction, Service};
use crate::machine::Query;
use crate::machine::refusal::Refusal;
use crate::proposal::{Adapter, Intent, Relayed};
use crate::requests::config_status::ReloadStatus;
use crate::requests::limits::RESPONSE_BYTES_MAX;
use crate::requests::store::about::Introduction;
use crate::requests::{self, Decision, Done, Function, Limits};

/// What calls run on. A reload swaps it as a whole; calls under way end on what they began with.
#[derive(Clone)]
pub struct Runtime {
    pub adapter: Arc<dyn Adapter>,
    pub limits: Limits,
    /// Whether the snake_case ids of version 0.1.2 answer.
    pub legacy_names: bool,
    /// Whether the data lives here. A bridge does not serve the raw store protocol.
    pub authoritative: bool,
    /// How long a call may take when its door sets no deadline of its own.
    pub call_timeout: Duration,
}

/// Reads the configuration again and puts it to work, or says why not.
pub type Reload = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Tells a bridge of this node, and whether its feed can be resumed after the given position.
pub type Introduce = Arc<dyn Fn(Option<&str>) -> Introduction + Send + Sync>;

pub struct Calls {
    runtime: RwLock<Arc<Runtime>>,
    reloads: Arc<Reloads>,
    introduce: OnceLock<Introduce>,
}

impl Calls {
    pub fn new(runtime: Runtime) -> Calls {
        let reloads = Reloads {
            hook: Mutex::new(None),
            status: Mutex::new(ReloadStatus::AT_BOOT),
            turn: tokio::sync::Mutex::new(()),
        };
        Calls { runtime: RwLock::new(Arc::new(runtime)), reloads: Arc::new(reloads), introduce: OnceLock::new() }
    }

    /// What `session::store::about` says from now on. Without it no bridge is told, and none proposes.
    pub fn introduce_with(&self, introduce: Introduce) {
        self.introduce.get_or_init(|| introduce);
    }

    /// What calls run on now.
    pub fn runtime(&self) -> Arc<Runtime> {
        Arc::clone(&self.runtime.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls that come from now on run on `runtime`. Returns what they ran on before.
    pub fn swap(&self, runtime: Runtime) -> Arc<Runtime> {
        let mut current = self.runtime.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut current, Arc::new(runtime))
    }

    /// What `session::on-config-change` does from now on. Without a hook there is nothing to read again.
    pub fn on_reload(&self, hook: Reload) {
        *lock(&self.reloads.hook) = Some(hook);
    }

    /// Reads the configuration again now. False: it was rejected, and the status tells why.
    pub async fn reload_now(&self) -> bool {
        Arc::clone(&self.reloads).run().await
    }

    pub fn reload_status(&self) -> ReloadStatus {
        lock(&self.reloads.status).clone()
    }

    async fn carry_out(
        &self,
        function: &Function,
        body: &str,
        sidecar: Option<&str>,
        deadline: Instant,
    ) -> Result<String, CallError> {
        let runtime = self.runtime();
        if is_raw_store(function) && !runtime.authoritative {
            let words = format!("{} is served only where the data lives: call the main of this bridge", function.id);
            return Err(Refusal::RequestInvalid(words).into());
        }
        let terms = sidecar::read(sidecar)?;
        let decision = (function.decide)(body, &runtime.limits)?;
        if let Some(intent) = intent(&decision)
            && let Some(there) = runtime.adapter.relay(Relayed { function_id: function.id, body, intent }, deadline)
        {
            return fits(there.await?);
        }
        let mut answers = function;
        let done = match decision {
            Decision::Propose(command) => Done::Answered(runtime.adapter.propose(command, deadline).await?),
            Decision::Ask(query) => Done::Found(match terms.consistency {
                Some(Consistency::Local) => runtime.adapter.ask_here(query, deadline).await?,
                Some(Consistency::Linearizable) | None => runtime.adapter.ask(query, deadline).await?,
            }),
            Decision::ProposeOnce { command, request_id, function: called } => {
                answers = requests::find(called, false).unwrap_or(function);
                Done::Answered(runtime.adapter.propose_once(command, request_id, deadline).await?)
            }
            Decision::Introduce { after } => {
                // Who is cut off, or was removed from its cluster, has no feed that anybody should follow.
                runtime.adapter.confirm(deadline).await?;
                Done::Introduced(self.introduction(after.as_deref())?)
            }
            Decision::ConfigStatus => Done::Status(self.reload_status()),
            Decision::ReloadConfig => Done::Reloaded { ok: self.reload(deadline).await? },
        };
        let response = (answers.respond)(done).ok_or_else(|| {
            tracing::error!(function = function.id, "the adapter answered something else than what was asked");
            CallError::storage(format!("outcome unknown: {} was answered with something else", function.id))
        })?;
        fits(response)
    }

    fn introduction(&self, after: Option<&str>) -> Result<Introduction, CallError> {
        let introduce = self.introduce.get();
        let introduce = introduce.ok_or_else(|| CallError::storage("this node has no feed a bridge could follow"))?;
        Ok(introduce(after))
    }

    /// Whether the configuration was put to work. A reload goes on when its caller stops waiting.
    async fn reload(&self, deadline: Instant) -> Result<bool, CallError> {
        let reloads = Arc::clone(&self.reloads);
        let running = tokio::spawn(async move { reloads.run().await });
        match tokio::time::timeout_at(deadline.into(), running).await {
            Ok(Ok(ok)) => Ok(ok),
            Ok(Err(_)) => Err(CallError::storage("outcome unknown: the reload broke off")),
            Err(_) => Err(CallError::storage("outcome unknown: the reload is still under way")),
        }
    }
}

/// The hook, how it went, and the turn that keeps two reloads from interleaving.
struct Reloads {
    hook: Mutex<Option<Reload>>,
    status: Mutex<ReloadStatus>,
    turn: tokio::sync::Mutex<()>,
}

impl Reloads {
    async fn run(&self) -> bool {
        let _turn = self.turn.lock().await;
        let hook = lock(&self.hook).clone();
        let result = match hook {
            Some(hook) => hook().await,
            None => Ok(()),
        };
        if let Err(why) = &result {
            tracing::warn!(why, "the configuration was rejected; the one before stays in force");
        }
        lock(&self.status).record(&result);
        result.is_ok()
    }
}

/// Only reads can be too long: a mutation answers with ids and one record.
fn fits(response: String) -> Result<String, CallError> {
    let bytes = response.len();
    if bytes > RESPONSE_BYTES_MAX {
        let words = format!(
            "the response has {bytes} bytes, at most {RESPONSE_BYTES_MAX} fit a frame: read it in smaller pages"
        );
        return Err(Refusal::RequestInvalid(words).into());
    }
    Ok(response)
}

/// What a call is about, where another node's machine could decide it.
fn intent(decision: &Decision) -> Option<Intent> {
    match decision {
        Decision::Propose(_) => Some(Intent::Change),
        Decision::Ask(Query::List(query)) => Some(Intent::Read { page: Some(query.limit) }),
        Decision::Ask(Query::Messages(query)) => Some(Intent::Read { page: Some(query.limit) }),
        Decision::Ask(
            Query::Meta(_)
            | Query::Cursor(_)
            | Query::Cursors(_)
            | Query::Entry(..)
            | Query::Leaf(_)
            | Query::Entries(_)
            | Query::Metas,
        ) => Some(Intent::Read { page: None }),
        Decision::ProposeOnce { .. } | Decision::Introduce { .. } | Decision::ConfigStatus | Decision::ReloadConfig => {
            None
        }
    }
}

fn is_raw_store(function: &Function) -> bool {
    function.id.starts_with("session::store::")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service for Calls {
    fn call<'a>(
        &'a self,
        function_id: &'a str,
        body: &'a str,
        sidecar: Option<&'a str>,
        deadline: Instant,
    ) -> Option<BoxFuture<'a, Result<String, CallError>>> {
        let function = requests::find(function_id, self.runtime().legacy_names)?;
        Some(self.carry_out(function, body, sidecar, deadline).boxed())
    }

    fn functions(&self) -> Vec<DescribedFunction> {
        let served = |function: &&Function| self.runtime().authoritative || !is_raw_store(function);
        requests::served().filter(served).map(described).collect()
    }

    fn aliases(&self, function_id: &str) -> Vec<String> {
        let legacy = self.runtime().legacy_names.then(|| requests::legacy_name(function_id)).flatten();
        legacy.into_iter().collect()
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
    use crate::machine::{Answer, Command, Found, Query};
    use crate::proposal::Undone;
    use crate::proposal::local::LocalAdapter;
    use crate::proposal::mint::SystemMint;

    struct Nobody;

    impl EventSink for Nobody {
        fn publish(&self, _events: Vec<Arc<Committed>>) {}
    }

    /// An adapter that answers everything with the same failure, or with nonsense.
    struct Broken(Option<Undone>);

    impl Adapter for Broken {
        fn propose(&self, _command: Command, _deadline: Instant) -> BoxFuture<'_, Result<Answer, Undone>> {
            let answer = self.0.clone().map_or(Ok(Answer::Stored), Err);
            async move { answer }.boxed()
        }

        fn ask(&self, _query: Query, _deadline: Instant) -> BoxFuture<'_, Result<Found, Undone>> {
            let found = self.0.clone().map_or(Ok(Found::Leaf(None)), Err);
            async move { found }.boxed()
        }
    }

    fn runtime(adapter: Arc<dyn Adapter>) -> Runtime {
        let limits = Limits { default_list_limit: 50, max_list_limit: 500 };
        Runtime { adapter, limits, legacy_names: true, authoritative: true, call_timeout: Duration::from_secs(30) }
    }

    fn memory() -> Runtime {
        runtime(Arc::new(LocalAdapter::memory(Arc::new(SystemMint::default()), Arc::new(Nobody))))
    }

    async fn call(calls: &Calls, function_id: &str, body: Value) -> Result<Value, CallError> {
        let deadline = Instant::now() + Duration::from_secs(5);
        let text = calls.call(function_id, &body.to_string(), None, deadline).expect("a known function").await?;
        Ok(serde_json::from_str(&text).expect("a response is JSON"))
    }

    #[tokio::test]
    async fn a_call_goes_from_its_body_to_its_response() {
        let calls = Calls::new(memory());
        let created = call(&calls, "session::create", json!({"title": "t"})).await.unwrap();
        let got = call(&calls, "session::get", json!({"session_id": created["session_id"]})).await.unwrap();
        assert_eq!(got["meta"], created["meta"]);
        assert!(calls.call("session::nothing", "{}", None, Instant::now()).is_none());
    }

    #[tokio::test]
    async fn legacy_names_answer_as_long_as_they_are_wanted() {
        let calls = Calls::new(memory());
        let listed = call(&calls, "session::store::list_metas", json!({})).await.unwrap();
        assert_eq!(listed, json!({"metas": []}));
        calls.swap(Runtime { legacy_names: false, ..(*calls.runtime()).clone() });
        assert!(calls.call("session::store::list_metas", "{}", None, Instant::now()).is_none());
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

    #[tokio::test]
    async fn a_bridge_serves_no_raw_store() {
        let calls = Calls::new(Runtime { authoritative: false, ..memory() });
        for function in requests::served().filter(|function| is_raw_store(function)) {
            let error = call(&calls, function.id, json!({})).await.unwrap_err();
            assert_eq!(error.code, "session/invalid_request");
            assert!(error.message.contains("where the data lives"), "{error}");
        }
        assert_eq!(calls.functions().len(), 16);
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

    #[test]
    fn a_response_that_fits_no_frame_is_an_error() {
        assert!(fits("x".repeat(RESPONSE_BYTES_MAX)).is_ok());
        let error = fits("x".repeat(RESPONSE_BYTES_MAX + 1)).unwrap_err();
        assert_eq!(error.code, "session/invalid_request");
    }

    #[tokio::test]
    async fn a_failed_adapter_is_a_storage_error_and_nonsense_is_one_too() {
        let calls = Calls::new(runtime(Arc::new(Broken(Some(Undone::Unavailable("no leader".to_owned()))))));
        let error = call(&calls, "session::create", json!({})).await.unwrap_err();
        assert_eq!(error.to_string(), "session/storage: no leader");
        let calls = Calls::new(runtime(Arc::new(Broken(None))));
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
            async move { if first { Err("data_dir is gone".to_owned()) } else { Ok(()) } }.boxed()
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
                Err("late".to_owned())
            }
            .boxed()
        }));
        let late = calls.call("session::on-config-change", "{}", None, Instant::now()).unwrap().await.unwrap_err();
        assert!(late.message.contains("still under way"), "{late}");
        release.notify_one();
        while calls.reload_status().rejected_reloads == 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn all_functions_are_described_with_their_schemas() {
        let calls = Calls::new(memory());
        let functions = calls.functions();
        assert_eq!(functions.len(), 30);
        assert!(functions.iter().all(|function| function.request_schema["type"] == "object"));
        assert!(functions.iter().all(|function| function.response_schema.is_object()));
    }
}
