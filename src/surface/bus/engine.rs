//! Owns: the `engine::*` functions the SDKs expect of any bus: who is here and what can be called.
//! Never: change anything but what a worker says about itself.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Bus;
use super::calls::{Failure, Outcome};
use super::registry::{Function, Trigger};
use super::worker::{About, Worker};
use crate::events::filter::STORE_EVENTS;
use crate::machine::event::EventKind;
use crate::surface::DescribedFunction;

/// The name this node goes by in listings.
pub const NODE_NAME: &str = "session-manager";

impl Bus {
    pub(super) fn call_engine(&self, function_id: &str, data: &str, caller: Option<&Arc<Worker>>) -> Outcome {
        let request: Value = serde_json::from_str(data)
            .map_err(|error| Failure::bus("invalid_payload", format!("`{function_id}`: {error}")))?;
        let answer = match function_id {
            "engine::workers::register" => {
                if let Some(caller) = caller {
                    // Words a worker says about itself; ones of a wrong type are as good as none.
                    caller.describe(serde_json::from_value::<About>(request).unwrap_or_default());
                }
                json!({ "success": true })
            }
            "engine::workers::list" => json!({ "workers": self.list_workers(), "timestamp": super::now_ms() }),
            "engine::functions::list" => json!({ "functions": self.list_functions(&request) }),
            "engine::functions::info" => self.function_info(&request)?,
            "engine::triggers::list" => json!({ "triggers": self.list_types() }),
            "engine::registered-triggers::list" => json!({ "registered_triggers": self.list_triggers(|_| true) }),
            _ => {
                return Err(Failure::bus(
                    "function_not_found",
                    format!("function `{function_id}` is not served by this bus"),
                ));
            }
        };
        Ok(answer.to_string())
    }

    fn list_workers(&self) -> Vec<Value> {
        self.read_registry(|registry| {
            registry
                .workers()
                .map(|worker| {
                    let about = worker.about();
                    let functions: Vec<&str> = registry
                        .functions()
                        .filter(|(_, function)| function.owner.number == worker.number)
                        .map(|(id, _)| id.as_ref())
                        .collect();
                    json!({
                        "id": worker.id,
                        "name": about.name,
                        "description": about.description,
                        "runtime": about.runtime,
                        "version": about.version,
                        "os": about.os,
                        "ip_address": worker.peer.map(|peer| peer.ip().to_string()),
                        "status": "connected",
                        "connected_at_ms": worker.connected_at_ms,
                        "function_count": functions.len(),
                        "functions": functions,
                        "active_invocations": worker.calls_in_flight(),
                        "isolation": about.isolation,
                        "namespace": about.namespace.unwrap_or_else(|| "default".to_owned()),
                    })
                })
                .collect()
        })
    }

    /// Internal functions are listed when the request asks for them, as the engine does it.
    fn list_functions(&self, request: &Value) -> Vec<Value> {
        let include_internal = request["include_internal"].as_bool().unwrap_or(false);
        let own = self.service.functions();
        let own = own.iter().filter(|function| include_internal || !function.internal).map(describe_own);
        self.read_registry(|registry| {
            own.chain(registry.functions().map(|(id, function)| describe(id, function))).collect()
        })
    }

    fn function_info(&self, request: &Value) -> Result<Value, Failure> {
        let Some(id) = request["function_id"].as_str() else {
            return Err(Failure::bus("invalid_payload", "`engine::functions::info` needs the string `function_id`"));
        };
        let own = self.service.functions().iter().find(|function| function.id == id).map(describe_own);
        let found =
            own.or_else(|| self.read_registry(|registry| registry.function(id).map(|function| describe(id, function))));
        let Some(Value::Object(mut found)) = found else {
            return Err(Failure::bus("NOT_FOUND", format!("function `{id}` is not registered on this bus")));
        };
        let triggers = self.list_triggers(|trigger| *trigger.function_id == *id);
        found.insert("registered_triggers".to_owned(), Value::Array(triggers));
        Ok(Value::Object(found))
    }

    fn list_types(&self) -> Vec<Value> {
        let own = EventKind::ALL.map(EventKind::trigger_type).into_iter().chain([STORE_EVENTS]);
        let own = own.filter(|_| self.serves_sessions);
        let own = own.map(
            |id| json!({ "id": id, "worker_name": NODE_NAME, "description": format!("Fires after a commit: {id}") }),
        );
        self.read_registry(|registry| {
            let others = registry.types().map(|(id, found)| {
                json!({
                    "id": **id,
                    "worker_name": found.owner.about().name,
                    "description": parsed(&found.description),
                    "trigger_request_format": parsed(&found.trigger_request_format),
                    "call_request_format": parsed(&found.call_request_format),
                })
            });
            own.chain(others).collect()
        })
    }

    fn list_triggers(&self, keep: impl Fn(&Trigger) -> bool) -> Vec<Value> {
        self.read_registry(|registry| {
            registry
                .triggers()
                .filter(|(_, trigger)| keep(trigger))
                .map(|(id, trigger)| {
                    json!({
                        "id": **id,
                        "trigger_type": *trigger.trigger_type,
                        "function_id": *trigger.function_id,
                        "config": parsed_text(&trigger.config),
                        "metadata": trigger.metadata.as_deref().map(parsed_text),
                        "worker_id": trigger.subscriber.id,
                    })
                })
                .collect()
        })
    }
}

fn describe_own(function: &DescribedFunction) -> Value {
    let mut metadata = Map::new();
    if function.internal {
        metadata.insert("internal".to_owned(), Value::Bool(true));
    }
    json!({
        "function_id": function.id,
        "description": function.description,
        "request_format": function.request_schema,
        "response_format": function.response_schema,
        "metadata": metadata,
        "namespace": "default",
        "worker_name": NODE_NAME,
    })
}

fn describe(id: &str, function: &Function) -> Value {
    json!({
        "function_id": id,
        "description": parsed(&function.description),
        "request_format": parsed(&function.request_format),
        "response_format": parsed(&function.response_format),
        "metadata": parsed(&function.metadata),
        "namespace": "default",
        "worker_name": function.owner.about().name,
    })
}

fn parsed(text: &Option<String>) -> Value {
    text.as_deref().map_or(Value::Null, parsed_text)
}

/// Text that came in a frame is JSON, but may nest deeper than a value can: such text is left out.
fn parsed_text(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}
