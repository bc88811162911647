//! Owns: the world of scenarios tagged @engine: an engine, nodes that attach to it as processes, and a client that
//! reaches the nodes only through the engine.
//!
//! The engine is an empty bus of this library, which speaks the same protocol. With III_ENGINE_WS_URL the same
//! scenarios run on a real engine too, each in a separate namespace.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use iii_helpers::observability::OtelConfig;
use iii_sdk::protocol::{RegisterTriggerInput, TriggerRequest};
use iii_sdk::{Error, IIIClient, InitOptions, RegisterFunction, WorkerIdentityMode, register_worker};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::configuration_worker::ConfigurationWorker;
use crate::delayed_proxy::DelayedProxy;
use crate::empty_bus::EmptyBus;
use crate::process::{NodeProcess, command, tail_of};

/// Long enough for a busy machine. What takes longer counts as a failure.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const PAUSE: Duration = Duration::from_millis(10);

/// Which engine a round runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineKind {
    Embedded,
    Real(String),
}

impl EngineKind {
    pub fn name(&self) -> &'static str {
        match self {
            EngineKind::Embedded => "the embedded endpoint",
            EngineKind::Real(_) => "the engine",
        }
    }

    /// Whether a scenario with these tags runs on this engine.
    pub fn runs(&self, tags: &[String]) -> bool {
        *self == EngineKind::Embedded || !tags.iter().any(|tag| tag == "embedded")
    }
}

pub static ENGINE: Mutex<EngineKind> = Mutex::new(EngineKind::Embedded);

/// An event as a subscriber received it.
#[derive(Debug, Clone)]
pub struct ReceivedEvent {
    pub payload: Value,
    pub position: String,
}

/// What each subscriber received, by name.
pub type Received = Arc<Mutex<BTreeMap<String, Vec<ReceivedEvent>>>>;

#[derive(cucumber::World)]
#[world(init = Self::start)]
pub struct EngineWorld {
    pub url: String,
    pub namespace: String,
    pub client: IIIClient,
    pub nodes: BTreeMap<String, NodeProcess>,
    /// URL and arguments of each node, to restart it.
    pub started: BTreeMap<String, (String, Vec<String>)>,
    /// The node that was killed, stopped or paused last.
    pub absent: Option<String>,
    /// The peer addresses of the members.
    pub peers: Vec<String>,
    pub load: Option<Load>,
    /// Bridges, with a client each.
    pub edges: Vec<(NodeProcess, IIIClient)>,
    /// A node that is not attached to an engine.
    pub main: Option<NodeProcess>,
    pub received: Received,
    pub answer: Option<Result<Value, String>>,
    /// Sessions whose creation was acknowledged.
    pub created: Vec<String>,
    pub stored: Option<ConfigurationWorker>,
    pub embedded: BTreeMap<String, EmptyBus>,
    /// Proxies between replicas and their engine.
    pub proxies: Vec<DelayedProxy>,
    pub dir: TempDir,
    pub config_file: Option<PathBuf>,
    /// A task that calls continuously. It ends with the first call that fails.
    pub continuous_calls: Option<JoinHandle<Result<(), String>>>,
}

impl fmt::Debug for EngineWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineWorld").field("url", &self.url).field("answer", &self.answer).finish()
    }
}

impl EngineWorld {
    async fn start() -> EngineWorld {
        let kind = ENGINE.lock().unwrap().clone();
        let namespace = format!("sm-{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
        let mut embedded = BTreeMap::new();
        let url = match kind {
            EngineKind::Embedded => {
                let engine = EmptyBus::start("127.0.0.1:0").await;
                let url = engine.url();
                embedded.insert(String::new(), engine);
                url
            }
            EngineKind::Real(url) => url,
        };
        let client = connect(&url, &namespace).await;
        EngineWorld {
            url,
            namespace,
            client,
            nodes: BTreeMap::new(),
            started: BTreeMap::new(),
            absent: None,
            peers: Vec::new(),
            load: None,
            edges: Vec::new(),
            main: None,
            received: Arc::default(),
            answer: None,
            created: Vec::new(),
            stored: None,
            embedded,
            proxies: Vec::new(),
            dir: tempfile::tempdir().expect("a temporary directory"),
            config_file: None,
            continuous_calls: None,
        }
    }

    pub fn is_embedded(&self) -> bool {
        !self.embedded.is_empty()
    }

    /// Starts a node as a worker of an engine. The node listens when this returns.
    pub fn start_node(&mut self, name: &str, url: &str, arguments: &[&str]) {
        let worker = self.worker_name(name);
        let mut words = vec!["--url", url, "--namespace", &self.namespace, "--worker-name", &worker];
        words.extend(arguments);
        let node = NodeProcess::start(&self.dir.path().join(name), &words);
        self.nodes.insert(name.to_owned(), node);
        let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        self.started.insert(name.to_owned(), (url.to_owned(), arguments));
    }

    /// Restarts a node with the arguments of its first start.
    pub fn restart_node(&mut self, name: &str) {
        let (url, arguments) = self.started[name].clone();
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.start_node(name, &url, &words);
    }

    /// Starts a node whose data directory comes from its settings.
    pub fn start_stored_node(&mut self, name: &str) {
        let worker = self.worker_name(name);
        let words = ["--url", &self.url, "--namespace", &self.namespace, "--worker-name", &worker];
        let node = NodeProcess::start_by_settings(&self.dir.path().join(name), &words);
        self.nodes.insert(name.to_owned(), node);
    }

    /// Runs a node that must refuse to start, to its end. Returns its messages.
    pub fn refused_start(&mut self, name: &str, arguments: &[&str]) -> String {
        let worker = self.worker_name(name);
        let data_dir = self.dir.path().join(name);
        let mut words = vec!["--url", &*self.url, "--namespace", &self.namespace, "--worker-name", &worker];
        words.extend(arguments);
        let ended = command(&data_dir, &words).stderr(std::process::Stdio::piped()).output().expect("the binary runs");
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        String::from_utf8_lossy(&ended.stderr).into_owned()
    }

    pub fn worker_name(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    /// The node behind a worker's name.
    pub fn node_of(&self, worker: &str) -> String {
        worker.strip_prefix(&format!("{}-", self.namespace)).unwrap_or(worker).to_owned()
    }

    /// A call over the engine.
    pub async fn call(&self, function: &str, body: Value) -> Result<Value, String> {
        call(&self.client, function, body).await
    }

    pub async fn called(&self, function: &str, body: Value) -> Value {
        self.call(function, body).await.unwrap_or_else(|error| panic!("{function}: {error}"))
    }

    /// Waits until a node serves on the engine. Returns its name.
    pub async fn serving(&self) -> String {
        let begun = Instant::now();
        loop {
            // A node registers this function last.
            let question = json!({ "function_id": "session::update-message", "namespace": self.namespace });
            if let Ok(info) = self.call("engine::functions::info", question).await
                && let Some(worker) = info["worker_name"].as_str()
                && self.call("session::get", json!({ "session_id": "unknown" })).await.is_ok()
            {
                return self.node_of(worker);
            }
            assert!(begun.elapsed() < PATIENCE, "no node serves on the engine:\n{}", self.logs());
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Calls until a call succeeds. Returns how long that took.
    pub async fn until_served(&self) -> Duration {
        let begun = Instant::now();
        while call_within(&self.client, "session::list", json!({}), 500).await.is_err() {
            assert!(begun.elapsed() < PATIENCE, "no call succeeds any more:\n{}", self.logs());
            tokio::time::sleep(PAUSE).await;
        }
        begun.elapsed()
    }

    /// The logs of every node, edge and main of the scenario, including those that ended.
    pub fn logs(&self) -> String {
        let files = std::fs::read_dir(self.dir.path()).into_iter().flatten().flatten().map(|file| file.path());
        let mut logs: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|ext| ext == "log")).collect();
        logs.sort();
        let shown = |path: &PathBuf| format!("--- {}\n{}\n", path.display(), tail_of(path));
        logs.iter().map(shown).collect()
    }

    /// Binds a function of the client to an event type. The binding is in place when this returns.
    pub async fn subscribe(&self, client: &IIIClient, name: &str, trigger_type: &str, config: Value) {
        self.received.lock().unwrap().entry(name.to_owned()).or_default();
        let (received, subscriber) = (self.received.clone(), name.to_owned());
        let handler = move |payload: Value, sidecar: Option<Value>| {
            let position =
                sidecar.and_then(|sidecar| sidecar["session-manager"]["position"].as_str().map(str::to_owned));
            let event = ReceivedEvent { payload, position: position.expect("every delivery has a position") };
            received.lock().unwrap().entry(subscriber.clone()).or_default().push(event);
            async { Ok::<Value, Error>(Value::Null) }
        };
        let function_id = format!("test::{}", uuid::Uuid::new_v4().simple());
        client.register_function(&function_id, RegisterFunction::new_async(handler));
        #[allow(deprecated)] // current engines offer no other way
        client.register_trigger(RegisterTriggerInput::new(trigger_type, function_id, config)).expect("sent");
        // Both sides of the engine handle the frames of one socket in order.
        call(client, "session::get", json!({ "session_id": "unknown" })).await.expect("a node serves");
    }

    pub fn received_by(&self, name: &str) -> Vec<ReceivedEvent> {
        self.received.lock().unwrap().get(name).unwrap_or_else(|| panic!("no subscriber {name:?}")).clone()
    }

    /// Creates a session with a unique id. Retries until the call is acknowledged.
    pub async fn create(&mut self) {
        let session_id = format!("s-{}", uuid::Uuid::new_v4().simple());
        let begun = Instant::now();
        // `session::ensure` is safe to retry: it fires one event, however often it is called.
        while call_within(&self.client, "session::ensure", json!({ "session_id": session_id }), 1000).await.is_err() {
            assert!(begun.elapsed() < PATIENCE, "a session cannot be created:\n{}", self.logs());
            tokio::time::sleep(PAUSE).await;
        }
        self.created.push(session_id);
    }

    /// Creates sessions on the nodes' own ports, without the engine, until the load is stopped.
    pub async fn begin_load(&mut self, but: Option<&str>) {
        let (stop, created) = (CancellationToken::new(), Arc::new(Mutex::new(Vec::new())));
        let mut tasks = Vec::new();
        for (name, node) in &self.nodes {
            if but != Some(name) {
                tasks.push(tokio::spawn(keep_creating(node.url(), created.clone(), stop.clone())));
            }
        }
        self.load = Some(Load { stop, created, tasks });
        let begun = Instant::now();
        while self.load.as_ref().is_some_and(|load| load.created.lock().unwrap().len() < 10) {
            assert!(begun.elapsed() < PATIENCE, "no session is created:\n{}", self.logs());
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub async fn end_load(&mut self) {
        let load = self.load.take().expect("a load");
        load.stop.cancel();
        for task in load.tasks {
            task.await.expect("a task of the load");
        }
        let created = std::mem::take(&mut *load.created.lock().unwrap());
        println!("  {} sessions were created on the replicas' own ports", created.len());
        self.created.extend(created);
    }

    pub async fn finish(&mut self) {
        if let Some(load) = self.load.take() {
            load.stop.cancel();
        }
        for (edge, client) in self.edges.drain(..) {
            client.shutdown_async().await;
            drop(edge);
        }
        self.nodes.clear();
        if !self.is_embedded() {
            // The scenarios share its configuration, which outlives each of them.
            let nothing = json!({ "id": "session-manager", "value": {} });
            let _ = self.call("configuration::set", nothing).await;
        }
        if let Some(stored) = &self.stored {
            stored.client.shutdown_async().await;
        }
        self.client.shutdown_async().await;
    }
}

/// Tasks that create sessions.
pub struct Load {
    stop: CancellationToken,
    created: Arc<Mutex<Vec<String>>>,
    tasks: Vec<JoinHandle<()>>,
}

/// A session whose creation was not acknowledged may exist or not, and is not counted.
async fn keep_creating(url: String, created: Arc<Mutex<Vec<String>>>, stop: CancellationToken) {
    let client = connect(&url, "default").await;
    while !stop.is_cancelled() {
        let session_id = format!("s-{}", uuid::Uuid::new_v4().simple());
        let ensured = call_within(&client, "session::ensure", json!({ "session_id": session_id }), 2000).await;
        if ensured.is_ok() {
            created.lock().unwrap().push(session_id);
        }
        tokio::time::sleep(PAUSE).await;
    }
    client.shutdown_async().await;
}

pub async fn connect(url: &str, namespace: &str) -> IIIClient {
    let otel = OtelConfig { enabled: Some(false), ..OtelConfig::default() };
    let options = InitOptions {
        otel: Some(otel),
        namespace: Some(namespace.to_owned()),
        identity: WorkerIdentityMode::Explicit,
        ..InitOptions::default()
    };
    let client = register_worker(url, options);
    client.wait_until_registered(PATIENCE).await.expect("the engine registers the client");
    client
}

pub async fn call(client: &IIIClient, function: &str, body: Value) -> Result<Value, String> {
    call_within(client, function, body, 20_000).await
}

pub async fn call_within(client: &IIIClient, function: &str, body: Value, most_ms: u64) -> Result<Value, String> {
    let request = TriggerRequest { timeout_ms: Some(most_ms), ..TriggerRequest::new(function, body) };
    client.trigger(request).await.map_err(|error| match error {
        Error::Remote { code, message, .. } => format!("{code}: {message}"),
        other => other.to_string(),
    })
}
