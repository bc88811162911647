//! Owns: the connection every replica keeps to its engine, whether it serves or not: it watches who comes and goes, and
//! hears of changes to the configuration.
//! Never: a function or trigger type of ours; those belong to the replica that serves.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::EngineSettings;
use super::pump::fence_of;
use super::sdk::{Connection, EngineError, Handler};

/// How long a node waits for its engine when it starts. A supervisor starts it again.
const CONNECT_MAX: Duration = Duration::from_secs(60);
/// The engine answers questions about itself at once, or not at all.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// What a replica's function is called that hears of workers. It is there as long as the replica is on the engine.
const WORKERS: &str = "workers";
/// The functions of ours whose owners tell who serves: they are registered one after the other, and withdrawn the other
/// way round, so the first and the last speak for those between.
const TELLTALES: [&str; 2] = ["session::append", "session::update-message"];

/// Who serves our functions on an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Serving {
    Nobody,
    /// The worker of this name.
    Worker(String),
    /// Some of them are this worker's, others another's or nobody's.
    InPart(String),
}

/// What an engine knows of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    There,
    Gone,
    /// It has a connection, and does not answer.
    Silent,
}

/// One replica's word with its engine.
pub struct Control {
    pub settings: EngineSettings,
    connection: Connection,
    workers_changed: Arc<Notify>,
    configuration_changed: Arc<Notify>,
    closed: CancellationToken,
}

impl Control {
    /// Waits for the engine; a name that is taken, or an engine that is not there, is an error in words.
    pub async fn connect(settings: EngineSettings) -> Result<Arc<Control>, String> {
        check_url(&settings.url)?;
        let name = format!("{}-control", settings.name);
        let connection = Connection::open(&settings.url, &name, settings.namespace.as_deref());
        let in_words = |why: String| format!("engine {}: {why}", settings.url);
        if let Err(why) = connection.registered(CONNECT_MAX).await {
            connection.close().await;
            return Err(in_words(why));
        }
        let control = Control {
            connection,
            workers_changed: Arc::default(),
            configuration_changed: Arc::default(),
            closed: CancellationToken::new(),
            settings: settings.clone(),
        };
        control.hear(WORKERS, "engine::workers-available", json!({}), &control.workers_changed).map_err(in_words)?;
        tracing::info!(url = settings.url, name = settings.name, "connected to the engine");
        Ok(Arc::new(control))
    }

    /// Wakes `told` whenever a trigger type of the engine fires.
    fn hear(&self, what: &str, trigger_type: &str, config: Value, told: &Arc<Notify>) -> Result<(), String> {
        let function_id = listener_of(what, &self.settings.name);
        let told = told.clone();
        let wake: Handler = Arc::new(move |_, _| {
            told.notify_one();
            Box::pin(std::future::ready(Ok(Value::Null)))
        });
        self.connection.listen(&function_id, "Internal: wakes one replica of session-manager.", wake);
        self.connection.bind(trigger_type, &function_id, config)
    }

    /// From now on `configuration_changed` tells of changes to this configuration.
    pub fn watch_configuration(&self, id: &str) -> Result<(), String> {
        let config = json!({ "configuration_id": id });
        self.hear("configuration", "configuration", config, &self.configuration_changed)
    }

    pub async fn configuration_changed(&self) {
        self.configuration_changed.notified().await;
    }

    /// It changed, and nobody was told.
    pub fn tell_of_configuration(&self) {
        self.configuration_changed.notify_one();
    }

    /// Returns when the engine is back after it was lost. False: nobody waits for it any more.
    pub async fn came_back(&self) -> bool {
        let back = async {
            self.connection.lost().await;
            self.connection.connected().await;
        };
        self.closed.run_until_cancelled(back).await.is_some()
    }

    /// Somebody connected to the engine, or left it.
    pub async fn workers_changed(&self) {
        self.workers_changed.notified().await;
    }

    pub async fn call(&self, function_id: &str, payload: Value) -> Result<Value, EngineError> {
        self.connection.call(function_id, payload, ANSWER_MAX).await
    }

    /// Whether a worker that serves, or served, answers within this time. A process that is stopped keeps its connection.
    pub async fn answers(&self, worker: &str, within: Duration) -> bool {
        // That it left is an answer too.
        self.presence_of(&fence_of(worker), within).await != Presence::Silent
    }

    /// Whether the replica behind a worker's name is on the engine, whether it serves or not.
    pub async fn presence(&self, worker: &str, within: Duration) -> Presence {
        let (listener, fence) = (listener_of(WORKERS, worker), fence_of(worker));
        let (listens, serves) = tokio::join!(self.presence_of(&listener, within), self.presence_of(&fence, within));
        // Its other connection may be the one that lasted.
        if listens == Presence::Gone { serves } else { listens }
    }

    async fn presence_of(&self, function_id: &str, within: Duration) -> Presence {
        match self.connection.call(function_id, json!({}), within).await {
            Ok(_) => Presence::There,
            Err(error) if error.is_missing_function() || error.code == "invocation_stopped" => Presence::Gone,
            Err(_) => Presence::Silent,
        }
    }

    pub async fn serving(&self) -> Result<Serving, EngineError> {
        let [first, last] = TELLTALES.map(|function_id| self.owner_of(function_id));
        Ok(match (first.await?, last.await?) {
            (None, None) => Serving::Nobody,
            (Some(first), Some(last)) if first == last => Serving::Worker(first),
            (Some(one), _) | (None, Some(one)) => Serving::InPart(one),
        })
    }

    /// The name of the worker that serves a function of ours on this engine, if any does.
    async fn owner_of(&self, function_id: &str) -> Result<Option<String>, EngineError> {
        let mut question = json!({ "function_id": function_id });
        if let Some(namespace) = &self.settings.namespace {
            question["namespace"] = json!(namespace);
        }
        match self.call("engine::functions::info", question).await {
            Ok(answer) => Ok(answer["worker_name"].as_str().map(str::to_owned)),
            Err(error) if error.code.eq_ignore_ascii_case("not_found") || error.is_missing_function() => Ok(None),
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

/// The function of a replica's own that one of the engine's trigger types calls.
fn listener_of(what: &str, worker: &str) -> String {
    format!("session-manager::{what}::{worker}")
}

/// The SDK would retry a text that is no address for ever.
fn check_url(url: &str) -> Result<(), String> {
    let uri: axum::http::Uri = url.parse().map_err(|error| format!("url: {url:?} is no URL: {error}"))?;
    if !matches!(uri.scheme_str(), Some("ws" | "wss")) || uri.host().is_none() {
        return Err(format!("url: {url:?} must be ws://host:port or wss://host:port"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_no_engine_can_have_is_refused_in_words() {
        for url in ["", "127.0.0.1:49134", "http://127.0.0.1:49134", "ws://", "ws:/x"] {
            let why = check_url(url).unwrap_err();
            assert!(why.starts_with("url: "), "{why}");
        }
        assert_eq!(check_url("ws://127.0.0.1:49134/any?x=1"), Ok(()));
    }
}
