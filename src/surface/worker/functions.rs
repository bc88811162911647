//! Owns: this node's functions as an engine's workers call them: which are registered, and the way of a call.
//! Never: what a function does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::sdk::{Connection, Handler, Registered};
use crate::surface::{CallError, DescribedFunction, Service};

/// Calls of all of an engine's clients in flight at once; one more is told to come back.
const CALLS_MAX: usize = 4096;
/// A function of this node answers by its deadline; if it does not, this much later the caller hears so.
const DEADLINE_GRACE: Duration = Duration::from_secs(5);

/// The functions registered over one connection.
pub struct Functions {
    connection: Arc<Connection>,
    service: Arc<dyn Service>,
    calls: Arc<Semaphore>,
    runtime: Handle,
    registered: BTreeMap<String, Registered>,
}

impl Functions {
    /// To be called on the runtime that is to carry the calls: the SDK's own has a single thread.
    pub fn new(connection: Arc<Connection>, service: Arc<dyn Service>) -> Functions {
        let calls = Arc::new(Semaphore::new(CALLS_MAX));
        Functions { connection, service, calls, runtime: Handle::current(), registered: BTreeMap::new() }
    }

    /// Registers what is served now and withdraws what is not any more.
    pub fn refresh(&mut self) {
        let mut wanted = BTreeMap::new();
        for function in self.service.functions() {
            for alias in self.service.aliases(&function.id) {
                let metadata = metadata(&function, Some(&function.id));
                wanted.insert(alias.clone(), (DescribedFunction { id: alias, ..function.clone() }, metadata));
            }
            let metadata = metadata(&function, None);
            wanted.insert(function.id.clone(), (function, metadata));
        }
        self.registered.retain(|id, registered| {
            let keep = wanted.contains_key(id);
            if !keep {
                registered.withdraw();
            }
            keep
        });
        for (id, (function, metadata)) in wanted {
            if !self.registered.contains_key(&id) {
                let registered = self.connection.serve(&function, metadata, self.handler(&id));
                self.registered.insert(id, registered);
            }
        }
    }

    /// Registers everything anew: the engine gave the names to another worker, which is gone now.
    pub fn repeat(&mut self) {
        self.withdraw();
        self.refresh();
    }

    /// Nothing is served here any more; calls under way go on.
    pub fn withdraw(&mut self) {
        // The last one first: whoever waits for us to be gone looks at the first, and a bridge that comes meanwhile must not
        // find a part of the store protocol without `session::store::about`, and take us for a main that has no more.
        for registered in std::mem::take(&mut self.registered).into_values().rev() {
            registered.withdraw();
        }
    }

    /// Waits until every call under way is answered, at most so long.
    pub async fn drained(&self, at_most: Duration) {
        let _ = tokio::time::timeout(at_most, self.calls.acquire_many(CALLS_MAX as u32)).await;
    }

    fn handler(&self, id: &str) -> Handler {
        let (id, service): (Arc<str>, _) = (id.into(), self.service.clone());
        let (calls, runtime) = (self.calls.clone(), self.runtime.clone());
        Arc::new(move |data, metadata| {
            let (id, service, calls) = (id.clone(), service.clone(), calls.clone());
            let carried = runtime.spawn(async move {
                let Ok(_place) = calls.try_acquire() else {
                    return Err(CallError::storage(format!(
                        "{CALLS_MAX} calls of the engine are in flight already; retry later"
                    )));
                };
                carry(&*service, &id, data, metadata).await
            });
            Box::pin(async move {
                carried.await.unwrap_or_else(|_| Err(CallError::storage("outcome unknown: the call broke off")))
            })
        })
    }
}

/// Store functions are marked, so that a listener of the engine can keep them from its workers.
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

async fn carry(service: &dyn Service, id: &str, data: Value, metadata: Option<Value>) -> Result<Value, CallError> {
    let body = data.to_string();
    let sidecar = metadata.map(|metadata| metadata.to_string());
    drop(data);
    let patience = service.call_timeout();
    let Some(call) = service.call(id, &body, sidecar.as_deref(), Instant::now() + patience) else {
        return Err(CallError::storage(format!("{id} is not served any more; retry")));
    };
    let unknown = |why: &str| CallError::storage(format!("outcome unknown: {id} {why}"));
    let answer = tokio::time::timeout(patience + DEADLINE_GRACE, call).await;
    let text = answer.map_err(|_| unknown("did not answer by its deadline"))??;
    serde_json::from_str(&text).map_err(|_| unknown("answered something that is no JSON"))
}
