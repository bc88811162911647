//! Owns: the use of the iii SDK. No other file of this room names the SDK, so that a change of its trigger API stays in
//! this file.
//! Never: what a call or a binding means.
#![allow(deprecated, reason = "current engines only know trigger types")]

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

use super::error::EngineError;
use super::subscribers::Subscribers;
use super::trigger_types::{DriverFilter, FilterFields, MessageFilter, MetadataFilter, SessionFilter, TriggerType};
use crate::surface::{CallError, DescribedFunction};

/// How often the connection state is polled. The SDK reconnects every two seconds.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// How long a flush may take.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Answers a call from the engine, given its body and metadata.
pub type Handler = Arc<dyn Fn(Value, Option<Value>) -> BoxFuture<'static, Result<Value, CallError>> + Send + Sync>;

/// A binding of one of our trigger types, as the engine sends it.
#[derive(Debug, Clone)]
pub struct EngineBinding {
    pub id: String,
    pub function_id: String,
    pub config: Value,
    pub metadata: Option<Value>,
    pub namespace: Option<String>,
}

/// One connection to an engine. The SDK reconnects until it is closed.
pub struct Connection {
    client: IIIClient,
    name: String,
}

/// A function that stays registered until it is unregistered.
pub struct Registered(FunctionRef);

impl Connection {
    /// Starts to connect and retries until it succeeds. The SDK takes the token from the environment (III_TOKEN).
    pub fn open(url: &str, name: &str, namespace: Option<&str>) -> Connection {
        // Telemetry would open a second socket.
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

    /// Waits until the engine has accepted this worker.
    pub async fn registered(&self, at_most: Duration) -> Result<(), EngineError> {
        match self.client.wait_until_registered(at_most).await {
            Ok(()) => Ok(()),
            Err(Error::Timeout) => Err(EngineError::ConnectTimedOut(at_most)),
            Err(error) => Err(engine_error(&error)),
        }
    }

    /// Why the engine will never accept this worker: its name is taken. `None` if it may.
    pub fn refused(&self) -> Option<EngineError> {
        self.client.fatal_error().map(|error| engine_error(&error))
    }

    pub fn is_connected(&self) -> bool {
        self.client.get_connection_state() == IIIConnectionState::Connected
    }

    pub async fn connected(&self) {
        while !self.is_connected() {
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// Resolves when the connection is lost. The SDK waits two seconds before it reconnects, so polling sees every
    /// loss.
    pub async fn lost(&self) {
        while self.is_connected() {
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// Registers a function. An id must be unregistered before it is registered again.
    pub fn register(&self, function: &DescribedFunction, metadata: Value, handler: Handler) -> Registered {
        let answer = move |data: Value, metadata: Option<Value>| {
            let answer = handler(data, metadata);
            async move { answer.await.map_err(bus_error) }
        };
        let registration = RegisterFunction::new_async(answer)
            .description(function.description.clone())
            .request_format(function.request_schema.clone())
            .response_format(function.response_schema.clone())
            .metadata(metadata)
            .local_dispatch(false);
        Registered(self.client.register_function(function.id.clone(), registration))
    }

    /// Registers a function that only the engine and this project's workers call.
    pub fn register_internal(&self, id: &str, description: &str, handler: Handler) -> Registered {
        let function = DescribedFunction {
            id: id.to_owned(),
            description: description.to_owned(),
            internal: true,
            request_schema: json!({}),
            response_schema: json!({}),
        };
        self.register(&function, json!({ "internal": true }), handler)
    }

    /// Registers a trigger type. The engine then sends every existing binding of it, and every new one.
    pub fn register_trigger_type(&self, trigger_type: TriggerType, subscribers: Arc<Subscribers>) {
        let TriggerType { id, description, fields } = trigger_type;
        let handler = BindingHandler { trigger_type: id, subscribers };
        let registration = RegisterTriggerType::new(id, description, handler);
        match fields {
            FilterFields::Metadata => {
                let typed = registration.trigger_request_format::<MetadataFilter>();
                self.client.register_trigger_type_without_warning(typed);
            }
            FilterFields::Session => {
                let typed = registration.trigger_request_format::<SessionFilter>();
                self.client.register_trigger_type_without_warning(typed);
            }
            FilterFields::Message => {
                let typed = registration.trigger_request_format::<MessageFilter>();
                self.client.register_trigger_type_without_warning(typed);
            }
            FilterFields::Driver => {
                let typed = registration.trigger_request_format::<DriverFilter>();
                self.client.register_trigger_type_without_warning(typed);
            }
            FilterFields::Nothing => {
                self.client.register_trigger_type_without_warning(registration);
            }
        }
    }

    /// Binds a function of this worker to a trigger type of another worker.
    pub fn bind(&self, trigger_type: &str, function_id: &str, config: Value) -> Result<(), EngineError> {
        let input = RegisterTriggerInput::new(trigger_type, function_id, config);
        self.client.register_trigger(input).map(|_| ()).map_err(|error| engine_error(&error))
    }

    /// Calls a function and waits for its answer. Fails with `Answered` or `NoAnswer`.
    pub async fn call(&self, function_id: &str, payload: Value, at_most: Duration) -> Result<Value, EngineError> {
        let request = TriggerRequest {
            timeout_ms: Some(at_most.as_millis() as u64),
            ..TriggerRequest::new(function_id, payload)
        };
        self.client.trigger(request.dispatch(Dispatch::Remote)).await.map_err(|error| match error {
            Error::Remote { code, message, .. } => EngineError::Answered { code, message },
            other => EngineError::NoAnswer(other.to_string()),
        })
    }

    /// Sends an event to a subscriber: a void call, which has no answer.
    pub fn send_event(
        &self,
        function_id: &str,
        data: Value,
        metadata: Value,
        namespace: Option<&str>,
    ) -> Result<(), EngineError> {
        let request = TriggerRequest { action: Some(TriggerAction::Void), ..TriggerRequest::new(function_id, data) };
        let mut request = request.metadata(metadata).dispatch(Dispatch::Remote);
        if let Some(namespace) = namespace {
            request = request.namespace(namespace);
        }
        // A void call is only passed to the connection's thread, so its future is ready at the first poll.
        match self.client.trigger(request).now_or_never() {
            Some(sent) => sent.map(|_| ()).map_err(|error| engine_error(&error)),
            None => Err(EngineError::Sdk("the SDK did not accept a void call at once".to_owned())),
        }
    }

    /// Waits, up to a limit, until the engine has read everything that was sent so far.
    pub async fn flush(&self) {
        let question = json!({ "function_id": "engine::functions::info" });
        // An error answer serves as well: the engine has read the call.
        let _ = self.call("engine::functions::info", question, FLUSH_MAX).await;
    }

    /// Disconnects. The engine drops everything that was registered over this connection.
    pub async fn close(&self) {
        self.client.shutdown_async().await;
    }
}

impl Registered {
    pub fn unregister(&self) {
        self.0.unregister();
    }
}

/// A function's error as the bus transports it. An empty stack trace keeps the SDK from capturing one, which would take
/// longer than the call.
fn bus_error(error: CallError) -> Error {
    let error = error.bus();
    Error::Remote { code: error.code.to_owned(), message: error.message, stacktrace: Some(String::new()) }
}

fn engine_error(error: &Error) -> EngineError {
    match error {
        Error::RegistrationRejected { namespace, worker_name: Some(name), .. } => {
            EngineError::NameTaken { name: name.clone(), namespace: namespace.to_string() }
        }
        other => EngineError::Sdk(other.to_string()),
    }
}

/// Receives the bindings of one trigger type.
struct BindingHandler {
    trigger_type: &'static str,
    subscribers: Arc<Subscribers>,
}

// Neither function awaits anything, so bindings are handled in the order of the engine's messages.
#[tonic::async_trait]
impl TriggerHandler for BindingHandler {
    async fn register_trigger(&self, config: TriggerConfig) -> Result<(), Error> {
        let TriggerConfig { id, function_id, config, metadata, namespace } = config;
        let binding = EngineBinding { id, function_id, config, metadata, namespace };
        let added = self.subscribers.bind(self.trigger_type, binding);
        added.map_err(|error| Error::Handler(error.to_string()))
    }

    async fn unregister_trigger(&self, config: TriggerConfig) -> Result<(), Error> {
        self.subscribers.unbind(&config.id);
        Ok(())
    }
}
