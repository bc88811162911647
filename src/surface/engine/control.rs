//! Owns: the control connection that every replica keeps to its engine, serving or not. It watches the engine's
//! workers, receives changes of the configuration, and asks which replica serves and whether it is alive.
//! Never: register public functions or trigger types; only the serving replica does (`registration`).

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::EngineSettings;
use super::delivery_queue::probe_id;
use super::error::EngineError;
use super::sdk::{Connection, Handler};

/// How long a node waits for its engine when it starts. After that it exits, and a supervisor may start it again.
const CONNECT_MAX: Duration = Duration::from_secs(60);
/// How long the engine may take to answer questions about itself.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Part of the id of the function that is called when workers come or go. Every connected replica has one, so calling
/// it shows that the replica is alive.
const WORKERS: &str = "workers";
/// The functions whose owner tells which replica serves. They are the first and the last in the order of registration,
/// and functions are unregistered in reverse order, so these two show whether another replica has all of them.
const FIRST_AND_LAST_FUNCTION: [&str; 2] = ["session::append", "session::update-message"];

/// Which worker has our functions on an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FunctionOwner {
    None,
    /// The worker of this name has all of them.
    Worker(String),
    /// The worker of this name has some of them: it is registering or unregistering.
    PartOf(String),
}

/// Whether a replica is connected to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    Alive,
    Disconnected,
    /// It has a connection but does not answer: its process may be stopped.
    Unresponsive,
}

/// The control connection of one replica.
pub struct ControlConnection {
    pub settings: EngineSettings,
    connection: Connection,
    workers_changed: Arc<Notify>,
    configuration_changed: Arc<Notify>,
    closed: CancellationToken,
}

impl ControlConnection {
    /// Waits until the engine has accepted the connection. Fails if the name is taken or no engine answers.
    pub async fn open(settings: EngineSettings) -> Result<Arc<ControlConnection>, EngineError> {
        check_url(&settings.url)?;
        let name = format!("{}-control", settings.name);
        let connection = Connection::open(&settings.url, &name, settings.namespace.as_deref());
        let failed = |why| EngineError::Connect { url: settings.url.clone(), why: Box::new(why) };
        if let Err(error) = connection.registered(CONNECT_MAX).await {
            connection.close().await;
            return Err(failed(error));
        }
        let control = ControlConnection {
            connection,
            workers_changed: Arc::default(),
            configuration_changed: Arc::default(),
            closed: CancellationToken::new(),
            settings: settings.clone(),
        };
        control.notify_on(WORKERS, "engine::workers-available", json!({}), &control.workers_changed).map_err(failed)?;
        tracing::info!(url = settings.url, name = settings.name, "connected to the engine");
        Ok(Arc::new(control))
    }

    /// Notifies `notify` whenever a trigger type of the engine fires.
    fn notify_on(
        &self,
        what: &str,
        trigger_type: &str,
        config: Value,
        notify: &Arc<Notify>,
    ) -> Result<(), EngineError> {
        let function_id = listener_id(what, &self.settings.name);
        let notify = notify.clone();
        let on_trigger: Handler = Arc::new(move |_, _| {
            notify.notify_one();
            Box::pin(std::future::ready(Ok(Value::Null)))
        });
        self.connection.register_internal(&function_id, "Internal: wakes one replica of session-manager.", on_trigger);
        self.connection.bind(trigger_type, &function_id, config)
    }

    /// From now on `configuration_changed` resolves when this configuration changes.
    pub fn watch_configuration(&self, id: &str) -> Result<(), EngineError> {
        let config = json!({ "configuration_id": id });
        self.notify_on("configuration", "configuration", config, &self.configuration_changed)
    }

    pub async fn configuration_changed(&self) {
        self.configuration_changed.notified().await;
    }

    /// Reports a change that the engine did not report.
    pub fn notify_configuration_changed(&self) {
        self.configuration_changed.notify_one();
    }

    /// Returns true when the engine is connected again after it was lost, and false when this connection was closed.
    pub async fn reconnected(&self) -> bool {
        let reconnected = async {
            self.connection.lost().await;
            self.connection.connected().await;
        };
        self.closed.run_until_cancelled(reconnected).await.is_some()
    }

    /// Resolves when a worker connected to the engine or disconnected from it.
    pub async fn workers_changed(&self) {
        self.workers_changed.notified().await;
    }

    pub async fn call(&self, function_id: &str, payload: Value) -> Result<Value, EngineError> {
        self.connection.call(function_id, payload, ANSWER_MAX).await
    }

    /// Whether the serving connection of a worker is unresponsive. False if it is gone.
    pub async fn is_unresponsive(&self, worker: &str, within: Duration) -> bool {
        self.liveness_of(&probe_id(worker), within).await == Liveness::Unresponsive
    }

    /// Whether a replica is connected to the engine, serving or not.
    pub async fn liveness(&self, worker: &str, within: Duration) -> Liveness {
        let (control_id, probe_id) = (listener_id(WORKERS, worker), probe_id(worker));
        let (control, serving) =
            tokio::join!(self.liveness_of(&control_id, within), self.liveness_of(&probe_id, within));
        // A replica may have lost one of its two connections.
        if control == Liveness::Disconnected { serving } else { control }
    }

    async fn liveness_of(&self, function_id: &str, within: Duration) -> Liveness {
        match self.connection.call(function_id, json!({}), within).await {
            Ok(_) => Liveness::Alive,
            Err(error) if error.is_missing_function() || error.code() == Some("invocation_stopped") => {
                Liveness::Disconnected
            }
            Err(_) => Liveness::Unresponsive,
        }
    }

    pub async fn function_owner(&self) -> Result<FunctionOwner, EngineError> {
        let [first, last] = FIRST_AND_LAST_FUNCTION.map(|function_id| self.owner_of(function_id));
        Ok(match (first.await?, last.await?) {
            (None, None) => FunctionOwner::None,
            (Some(first), Some(last)) if first == last => FunctionOwner::Worker(first),
            (Some(worker), _) | (None, Some(worker)) => FunctionOwner::PartOf(worker),
        })
    }

    /// The name of the worker that serves this function on the engine, if there is one.
    async fn owner_of(&self, function_id: &str) -> Result<Option<String>, EngineError> {
        let mut question = json!({ "function_id": function_id });
        if let Some(namespace) = &self.settings.namespace {
            question["namespace"] = json!(namespace);
        }
        match self.call("engine::functions::info", question).await {
            Ok(answer) => Ok(answer["worker_name"].as_str().map(str::to_owned)),
            Err(error) if error.is_missing_function() => Ok(None),
            Err(error) if error.code().is_some_and(|code| code.eq_ignore_ascii_case("not_found")) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    pub async fn close(&self) {
        self.closed.cancel();
        self.connection.close().await;
    }
}

/// The id of a replica's function that a trigger type of the engine calls.
fn listener_id(what: &str, worker: &str) -> String {
    format!("session-manager::{what}::{worker}")
}

/// The SDK would retry an invalid address for ever.
fn check_url(url: &str) -> Result<(), EngineError> {
    let uri: Option<axum::http::Uri> = url.parse().ok();
    let is_valid = |uri: axum::http::Uri| matches!(uri.scheme_str(), Some("ws" | "wss")) && uri.host().is_some();
    if uri.is_some_and(is_valid) { Ok(()) } else { Err(EngineError::InvalidUrl(url.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_an_engine_is_refused_by_name() {
        for url in ["", "127.0.0.1:49134", "http://127.0.0.1:49134", "ws://", "ws:/x"] {
            let error = check_url(url).unwrap_err();
            assert!(error.to_string().starts_with("url: "), "{error}");
        }
        assert_eq!(check_url("ws://127.0.0.1:49134/any?x=1"), Ok(()));
    }
}
