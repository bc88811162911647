//! Owns: this node's functions on an engine: which ones are registered, and how a call reaches the service.
//! Never: what a function does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::sdk::{Connection, Handler, Registered};
use crate::surface::errors::CallError;
use crate::surface::fair_share::CallerKey;
use crate::surface::gate::{Call, Caller, DescribedFunction, Door, Gate};

/// The most calls in flight from all clients of an engine. Further calls are refused as retryable.
const CALLS_MAX: usize = 4096;

/// The functions registered over one connection.
pub struct Functions {
    connection: Arc<Connection>,
    gate: Arc<Gate>,
    calls: Arc<Semaphore>,
    runtime: Handle,
    registered: BTreeMap<String, Registered>,
}

impl Functions {
    /// Must be called on the runtime that executes the calls. The SDK's own runtime has a single thread.
    pub fn new(connection: Arc<Connection>, gate: Arc<Gate>) -> Functions {
        let calls = Arc::new(Semaphore::new(CALLS_MAX));
        Functions { connection, gate, calls, runtime: Handle::current(), registered: BTreeMap::new() }
    }

    /// Registers new functions and unregisters those that are no longer served.
    pub fn refresh(&mut self) {
        let mut wanted = BTreeMap::new();
        let identity = self.gate.engine_identity();
        let functions = self.gate.service().functions().into_iter();
        for function in functions.filter(|function| self.gate.check_access(&identity, &function.id).is_ok()) {
            for alias in self.gate.service().aliases(&function.id) {
                let metadata = metadata(&function, Some(&function.id));
                wanted.insert(alias.clone(), (DescribedFunction { id: alias, ..function.clone() }, metadata));
            }
            let metadata = metadata(&function, None);
            wanted.insert(function.id.clone(), (function, metadata));
        }
        self.registered.retain(|id, registered| {
            let keep = wanted.contains_key(id);
            if !keep {
                registered.unregister();
            }
            keep
        });
        for (id, (function, metadata)) in wanted {
            if !self.registered.contains_key(&id) {
                let registered = self.connection.register(&function, metadata, self.handler(&id));
                self.registered.insert(id, registered);
            }
        }
    }

    /// Registers everything again, after the engine had given the ids to another worker.
    pub fn register_again(&mut self) {
        self.unregister_all();
        self.refresh();
    }

    /// Unregisters all functions. Calls in flight continue.
    pub fn unregister_all(&mut self) {
        // In reverse order. The next replica waits until the first function is gone. And a bridge that connects in
        // between must still find `session::store::about` as long as other store functions are there: without it, it
        // would treat this node as a main that only stores records.
        for registered in std::mem::take(&mut self.registered).into_values().rev() {
            registered.unregister();
        }
    }

    /// Waits until all calls in flight are answered, up to a limit.
    pub async fn drained(&self, at_most: Duration) {
        let _ = tokio::time::timeout(at_most, self.calls.acquire_many(CALLS_MAX as u32)).await;
    }

    fn handler(&self, id: &str) -> Handler {
        let (id, gate): (Arc<str>, _) = (id.into(), self.gate.clone());
        let (calls, runtime) = (self.calls.clone(), self.runtime.clone());
        Arc::new(move |data, metadata| {
            let (id, gate, calls) = (id.clone(), gate.clone(), calls.clone());
            let running = runtime.spawn(async move {
                let Ok(_slot) = calls.try_acquire() else {
                    return Err(CallError::Unavailable(format!(
                        "{CALLS_MAX} calls of the engine are in flight already; retry later"
                    )));
                };
                call_gate(&gate, &id, data, metadata).await
            });
            Box::pin(async move {
                running.await.unwrap_or_else(|_| Err(CallError::OutcomeUnknown("the call was aborted".to_owned())))
            })
        })
    }
}

/// Store functions are marked as internal, so that an engine can hide them from its workers.
fn metadata(function: &DescribedFunction, alias_of: Option<&str>) -> Value {
    let mut metadata = json!({});
    if function.internal {
        metadata["internal"] = json!(true);
    }
    if let Some(id) = alias_of {
        metadata["alias_of"] = json!(id);
    }
    metadata
}

/// All calls of an engine count as those of one caller: the engine knows who made them, and this node does not.
async fn call_gate(gate: &Gate, id: &str, data: Value, metadata: Option<Value>) -> Result<Value, CallError> {
    let (body, deadline) = (data.to_string(), gate.deadline());
    drop(data);
    let caller = Caller { door: Door::Engine, identity: gate.engine_identity() };
    let key = CallerKey::of(&caller.identity, CallerKey::Door("engine"));
    let mut admitted = gate.admit_begun(key, id, body.len(), deadline).await?;
    let metadata = metadata.map(|metadata| metadata.to_string());
    let call = Call { metadata, ..Call::new(id, body, deadline, caller) };
    let answer = gate.call(&call).await.map_err(|error| match error {
        CallError::FunctionUnknown(id) => CallError::Unavailable(format!("{id} is no longer served here; retry")),
        other => other,
    })?;
    admitted.answers(answer.len());
    let unreadable = |_| CallError::OutcomeUnknown(format!("{id} gave an answer that is not JSON"));
    serde_json::from_str(&answer.into_text()).map_err(unreadable)
}
