//! Owns: the iii SDK. Everything this node says to an engine goes through here, and no other file of this room names the
//! SDK: its trigger API is about to change, and then only this file does.
//! Never: what a call or a binding means.
#![allow(deprecated, reason = "trigger types are what engines of today speak")]

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use iii_helpers::observability::OtelConfig;
use iii_sdk::protocol::{Dispatch, RegisterTriggerInput, TriggerRequest};
use iii_sdk::runtime::{FunctionRef, IIIConnectionState, WorkerMetadata};
use iii_sdk::trigger::{TriggerConfig, TriggerHandler};
use iii_sdk::{
    Error, IIIClient, InitOptions, RegisterFunction, RegisterTriggerType, TriggerAction, WorkerIdentityMode,
    register_worker,
};
use serde_json::{Value, json};

use super::types::{FilterFields, OfferedType};
use crate::surface::{CallError, DescribedFunction};

/// How often a lost connection is looked at; the SDK tries again every two seconds.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The code of an error that is this side's own.
const UNREACHABLE: &str = "unreachable";

/// How long a connection that is about to close may take to deliver what it has.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Answers a call that came over the engine, from its body and the metadata beside it.
pub type Handler = Arc<dyn Fn(Value, Option<Value>) -> BoxFuture<'static, Result<Value, CallError>> + Send + Sync>;

/// A binding of one of our trigger types, as the engine hands it to us.
#[derive(Debug, Clone)]
pub struct EngineBinding {
    pub id: String,
    pub function_id: String,
    pub config: Value,
    pub metadata: Option<Value>,
    pub namespace: Option<String>,
}

/// Keeps the bindings of one trigger type.
pub trait Bindings: Send + Sync + 'static {
    /// An error is for the subscriber to read.
    fn bind(&self, trigger_type: &'static str, binding: EngineBinding) -> Result<(), String>;
    fn unbind(&self, id: &str);
}

/// Why the engine did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineError {
    pub code: String,
    pub message: String,
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl EngineError {
    /// No answer came. Any other error is one: the engine has read the call, and all that was sent before it.
    pub fn is_silence(&self) -> bool {
        self.code == UNREACHABLE
    }

    /// Nobody on the engine serves that function.
    pub fn is_missing_function(&self) -> bool {
        self.code == "function_not_found"
    }
}

/// One connection to an engine, kept up for as long as it lives.
pub struct Connection {
    client: IIIClient,
    name: String,
}

/// A function that is registered until it is withdrawn.
pub struct Registered(FunctionRef);

impl Connection {
    /// Begins to connect and goes on trying. The token comes from the environment (III_TOKEN) and is never read here.
    pub fn open(url: &str, name: &str, namespace: Option<&str>) -> Connection {
        // Telemetry has doors of its own: no second socket.
        let otel = OtelConfig { enabled: Some(false), ..OtelConfig::default() };
        let metadata = WorkerMetadata {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            description: Some(env!("CARGO_PKG_DESCRIPTION").to_owned()),
            ..WorkerMetadata::default()
        };
        let options = InitOptions {
            metadata: Some(metadata),
            otel: Some(otel),
            namespace: namespace.map(str::to_owned),
            identity: WorkerIdentityMode::Explicit,
            ..InitOptions::default()
        };
        Connection { client: register_worker(url, options), name: name.to_owned() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until the engine has taken this worker in.
    pub async fn registered(&self, at_most: Duration) -> Result<(), String> {
        match self.client.wait_until_registered(at_most).await {
            Ok(()) => Ok(()),
            Err(Error::Timeout) => Err(format!("no engine answered within {} s", at_most.as_secs())),
            Err(error) => Err(words(&error)),
        }
    }

    /// Why the engine will never take this worker in, if so: its name is taken.
    pub fn refused(&self) -> Option<String> {
        self.client.fatal_error().map(|error| words(&error))
    }

    pub fn is_connected(&self) -> bool {
        self.client.get_connection_state() == IIIConnectionState::Connected
    }

    pub async fn connected(&self) {
        while !self.is_connected() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Resolves when the connection is lost. The SDK waits two seconds before it tries again, so that no loss goes unseen.
    pub async fn lost(&self) {
        while self.is_connected() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Registers a function. The same id must be withdrawn before it is registered again.
    pub fn serve(&self, function: &DescribedFunction, metadata: Value, handler: Handler) -> Registered {
        let answer = move |data: Value, metadata: Option<Value>| {
            let answering = handler(data, metadata);
            async move { answering.await.map_err(failed) }
        };
        let registration = RegisterFunction::new_async(answer)
            .description(function.description.clone())
            .request_format(function.request_schema.clone())
            .response_format(function.response_schema.clone())
            .metadata(metadata)
            .local_dispatch(false);
        Registered(self.client.register_function(function.id.clone(), registration))
    }

    /// Registers a function of this worker's own, which only the engine and this worker call.
    pub fn listen(&self, id: &str, description: &str, handler: Handler) -> Registered {
        let function = DescribedFunction {
            id: id.to_owned(),
            description: description.to_owned(),
            internal: true,
            request_schema: json!({}),
            response_schema: json!({}),
        };
        self.serve(&function, json!({ "internal": true }), handler)
    }

    /// Offers a trigger type. The engine hands over every binding there is, and all that come.
    pub fn offer(&self, offered: OfferedType, bindings: Arc<dyn Bindings>) {
        let OfferedType { id, description, fields } = offered;
        let handler = TypeHandler { trigger_type: id, bindings };
        let registration = RegisterTriggerType::new(id, description, handler);
        match fields {
            FilterFields::Metadata => {
                let typed = registration.trigger_request_format::<super::types::MetadataFilter>();
                self.client.register_trigger_type_without_warning(typed);
            }
            FilterFields::Session => {
                let typed = registration.trigger_request_format::<super::types::SessionFilter>();
                self.client.register_trigger_type_without_warning(typed);
            }
            FilterFields::Message => {
                let typed = registration.trigger_request_format::<super::types::MessageFilter>();
                self.client.register_trigger_type_without_warning(typed);
            }
            FilterFields::Nothing => {
                self.client.register_trigger_type_without_warning(registration);
            }
        }
    }

    /// Binds a function of this worker to somebody else's trigger type.
    pub fn bind(&self, trigger_type: &str, function_id: &str, config: Value) -> Result<(), String> {
        let input = RegisterTriggerInput::new(trigger_type, function_id, config);
        self.client.register_trigger(input).map(|_| ()).map_err(|error| words(&error))
    }

    /// Calls a function and waits for its answer.
    pub async fn call(&self, function_id: &str, payload: Value, at_most: Duration) -> Result<Value, EngineError> {
        let request = TriggerRequest {
            timeout_ms: Some(at_most.as_millis() as u64),
            ..TriggerRequest::new(function_id, payload)
        };
        self.client.trigger(request.dispatch(Dispatch::Remote)).await.map_err(|error| match error {
            Error::Remote { code, message, .. } => EngineError { code, message },
            other => EngineError { code: UNREACHABLE.to_owned(), message: other.to_string() },
        })
    }

    /// Calls a function without waiting: an event on its way to its subscriber.
    pub fn fire(&self, function_id: &str, data: Value, sidecar: Value, namespace: Option<&str>) -> Result<(), String> {
        let request = TriggerRequest { action: Some(TriggerAction::Void), ..TriggerRequest::new(function_id, data) };
        let mut request = request.metadata(sidecar).dispatch(Dispatch::Remote);
        if let Some(namespace) = namespace {
            request = request.namespace(namespace);
        }
        // A void call is handed to the connection's thread and waits for nothing.
        match self.client.trigger(request).now_or_never() {
            Some(sent) => sent.map(|_| ()).map_err(|error| words(&error)),
            None => Err("the SDK did not take a void call at once".to_owned()),
        }
    }

    /// Waits until the engine has read everything sent so far, for a moment.
    pub async fn flush(&self) {
        let question = json!({ "function_id": "engine::functions::info" });
        // Any answer will do, an error as well.
        let _ = self.call("engine::functions::info", question, FLUSH_MAX).await;
    }

    /// Leaves the engine: everything registered here is gone with the socket.
    pub async fn close(&self) {
        self.client.shutdown_async().await;
    }
}

impl Registered {
    pub fn withdraw(&self) {
        self.0.unregister();
    }
}

/// An error of the closed set as the bus carries it. An empty stack trace keeps the SDK from capturing one, which would
/// take longer than the call.
fn failed(error: CallError) -> Error {
    let error = error.bus();
    Error::Remote { code: error.code.to_owned(), message: error.message, stacktrace: Some(String::new()) }
}

fn words(error: &Error) -> String {
    match error {
        Error::RegistrationRejected { namespace, worker_name: Some(name), .. } => format!(
            "a worker named {name:?} is already connected in namespace {namespace:?}: give each replica a name of its \
             own with --worker-name or III_WORKER_NAME"
        ),
        other => other.to_string(),
    }
}

struct TypeHandler {
    trigger_type: &'static str,
    bindings: Arc<dyn Bindings>,
}

type Answered<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

// Written out as the SDK's macro would. Both answer without waiting, so the order of frames is kept.
impl TriggerHandler for TypeHandler {
    fn register_trigger<'life, 'answer>(&'life self, config: TriggerConfig) -> Answered<'answer>
    where
        'life: 'answer,
        Self: 'answer,
    {
        let TriggerConfig { id, function_id, config, metadata, namespace } = config;
        let binding = EngineBinding { id, function_id, config, metadata, namespace };
        let bound = self.bindings.bind(self.trigger_type, binding).map_err(Error::Handler);
        Box::pin(std::future::ready(bound))
    }

    fn unregister_trigger<'life, 'answer>(&'life self, config: TriggerConfig) -> Answered<'answer>
    where
        'life: 'answer,
        Self: 'answer,
    {
        self.bindings.unbind(&config.id);
        Box::pin(std::future::ready(Ok(())))
    }
}
