//! Owns: the `engine::*` functions that SDKs expect of any bus: which clients are connected and what can be called.
//! Never: change anything except the description a client gives of itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::Bus;
use super::client::{About, Client, realm_of};
use super::inbound::nests_within;
use super::registry::{Function, Trigger};
use crate::access::{Action, Identity};
use crate::events::filter::STORE_EVENTS;
use crate::machine::event::EventKind;
use crate::surface::errors::CallError;
use crate::surface::gate::{Call, DescribedFunction};

/// The name of this node in listings.
pub const NODE_NAME: &str = "session-manager";

/// Requests of these functions are names and short descriptions. What a client says of itself is kept.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// The longest listing. Clients may register more than a frame holds.
const LISTING_BYTES_MAX: usize = 16 << 20;

/// Text of a client that nests deeper is shown as null, because parsers of other clients would refuse the listing.
const LISTED_DEPTH_MAX: usize = 120;

impl Bus {
    pub(super) fn call_engine(&self, call: &Call, client: Option<&Arc<Client>>) -> Result<String, CallError> {
        let Call { function: function_id, body, caller, .. } = call;
        let function_id = function_id.as_str();
        if body.len() > REQUEST_BYTES_MAX {
            let why = format!("`{function_id}` takes at most {REQUEST_BYTES_MAX} bytes");
            return Err(CallError::InvalidPayload(why));
        }
        let identity = &*caller.identity;
        let request: Value = serde_json::from_str(body)
            .map_err(|error| CallError::InvalidPayload(format!("`{function_id}`: {error}")))?;
        let answer = match function_id {
            "engine::workers::register" => {
                if let Some(client) = client {
                    // A description of a wrong type counts as none.
                    client.describe(serde_json::from_value::<About>(request).unwrap_or_default());
                }
                json!({ "success": true })
            }
            "engine::workers::list" => {
                let workers = self.list_clients(identity)?;
                return print(&Workers { workers, timestamp: super::now_ms() });
            }
            "engine::functions::list" => {
                return print(&Functions { functions: self.list_functions(&request, identity)? });
            }
            "engine::functions::info" => return self.function_info(&request, identity),
            "engine::triggers::list" => return print(&Triggers { triggers: self.list_types(identity)? }),
            "engine::registered-triggers::list" => {
                return print(&RegisteredTriggers { registered_triggers: self.list_triggers(identity, |_| true)? });
            }
            _ => return Err(CallError::FunctionUnknown(function_id.to_owned())),
        };
        Ok(answer.to_string())
    }

    /// A caller sees its own clients; an admin sees all of them.
    fn list_clients(&self, identity: &Identity) -> Result<Box<RawValue>, CallError> {
        let mut listing = Listing::default();
        self.read_all_registries(|registry| {
            // One pass over all functions, however many clients there are.
            let mut functions: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
            for (id, function) in registry.functions() {
                functions.entry(function.owner.number).or_default().push(id);
            }
            for client in registry.clients().filter(|client| sees(identity, &client.identity)) {
                let about = client.about();
                let functions = functions.remove(&client.number).unwrap_or_default();
                listing.add(&json!({
                    "id": client.id,
                    "name": about.name,
                    "description": about.description,
                    "runtime": about.runtime,
                    "version": about.version,
                    "os": about.os,
                    "ip_address": client.peer.map(|peer| peer.ip().to_string()),
                    "status": "connected",
                    "connected_at_ms": client.connected_at_ms,
                    "function_count": functions.len(),
                    "functions": functions,
                    "active_invocations": client.calls_in_flight(),
                    "isolation": about.isolation,
                    "namespace": about.namespace.unwrap_or_else(|| "default".to_owned()),
                }));
            }
        });
        listing.finish()
    }

    /// Internal functions are listed only on request, as in the engine.
    fn list_functions(&self, request: &Value, identity: &Identity) -> Result<Box<RawValue>, CallError> {
        let include_internal = request["include_internal"].as_bool().unwrap_or(false);
        let mut listing = Listing::default();
        let own = self.gate.service().functions();
        let own = own.iter().filter(|function| include_internal || !function.internal);
        for function in own.filter(|function| self.gate.check_access(identity, &function.id).is_ok()) {
            listing.add(&describe_own(function));
        }
        self.read_registry(&realm_of(identity), |registry| {
            for (id, function) in registry.functions().filter(|(_, function)| callable(identity, function)) {
                listing.add(&describe(id, function));
            }
        });
        listing.finish()
    }

    fn function_info(&self, request: &Value, identity: &Identity) -> Result<String, CallError> {
        let Some(id) = request["function_id"].as_str() else {
            let why = "`engine::functions::info` needs the string `function_id`";
            return Err(CallError::InvalidPayload(why.to_owned()));
        };
        let registered_triggers = self.list_triggers(identity, |trigger| *trigger.function_id == *id)?;
        let own = self.gate.service().functions();
        let own = own.iter().find(|function| function.id == id);
        if let Some(function) = own.filter(|_| self.gate.check_access(identity, id).is_ok()) {
            return print(&Info { function: describe_own(function), registered_triggers });
        }
        self.read_registry(&realm_of(identity), |registry| {
            match registry.function(id).filter(|function| callable(identity, function)) {
                Some(function) => print(&Info { function: describe(id, function), registered_triggers }),
                None => Err(CallError::InfoUnknown(id.to_owned())),
            }
        })
    }

    fn list_types(&self, identity: &Identity) -> Result<Box<RawValue>, CallError> {
        let mut listing = Listing::default();
        let own = EventKind::ALL.map(EventKind::trigger_type).into_iter().chain([STORE_EVENTS]);
        for id in own.filter(|id| self.serves_sessions && (*id != STORE_EVENTS || identity.may(Action::RawStore))) {
            let description = format!("Fires after a commit: {id}");
            listing.add(&json!({ "id": id, "worker_name": NODE_NAME, "description": description }));
        }
        self.read_registry(&realm_of(identity), |registry| {
            for (id, found) in registry.types().filter(|_| identity.may(Action::Workers)) {
                listing.add(&ListedType {
                    id,
                    worker_name: found.owner.about().name,
                    description: shown(found.description.as_deref()),
                    trigger_request_format: shown(found.trigger_request_format.as_deref()),
                    call_request_format: shown(found.call_request_format.as_deref()),
                });
            }
        });
        listing.finish()
    }

    fn list_triggers(&self, identity: &Identity, keep: impl Fn(&Trigger) -> bool) -> Result<Box<RawValue>, CallError> {
        let mut listing = Listing::default();
        self.read_all_registries(|registry| {
            let triggers = registry.triggers();
            for (id, trigger) in
                triggers.filter(|(_, trigger)| sees(identity, &trigger.subscriber.identity) && keep(trigger))
            {
                listing.add(&ListedTrigger {
                    id,
                    trigger_type: &trigger.trigger_type,
                    function_id: &trigger.function_id,
                    config: shown(Some(&trigger.config)),
                    metadata: shown(trigger.metadata.as_deref()),
                    worker_id: &trigger.subscriber.id,
                });
            }
        });
        listing.finish()
    }
}

/// A JSON array that is printed element by element: what clients registered stays text, because a tree of it may take a
/// hundred times as much memory.
#[derive(Default)]
struct Listing {
    text: String,
    is_too_long: bool,
}

impl Listing {
    fn add(&mut self, element: &impl Serialize) {
        if self.is_too_long {
            return;
        }
        // All elements are plain data, which serde_json can always print.
        let Ok(printed) = serde_json::to_string(element) else { return };
        if self.text.len() + printed.len() > LISTING_BYTES_MAX {
            (self.is_too_long, self.text) = (true, String::new());
            return;
        }
        self.text.push(if self.text.is_empty() { '[' } else { ',' });
        self.text.push_str(&printed);
    }

    fn finish(mut self) -> Result<Box<RawValue>, CallError> {
        let too_long = || {
            let why = format!(
                "the clients of this node registered more than the {LISTING_BYTES_MAX} bytes of a listing; ask for one \
                 function with `engine::functions::info`"
            );
            CallError::Unavailable(why)
        };
        if self.is_too_long {
            return Err(too_long());
        }
        self.text.push_str(if self.text.is_empty() { "[]" } else { "]" });
        RawValue::from_string(self.text).map_err(|_| too_long())
    }
}

fn print(answer: &impl Serialize) -> Result<String, CallError> {
    serde_json::to_string(answer).map_err(|error| CallError::Unavailable(error.to_string()))
}

#[derive(Serialize)]
struct Workers {
    workers: Box<RawValue>,
    timestamp: u64,
}

#[derive(Serialize)]
struct Functions {
    functions: Box<RawValue>,
}

#[derive(Serialize)]
struct Triggers {
    triggers: Box<RawValue>,
}

#[derive(Serialize)]
struct RegisteredTriggers {
    registered_triggers: Box<RawValue>,
}

#[derive(Serialize)]
struct Info<F> {
    #[serde(flatten)]
    function: F,
    registered_triggers: Box<RawValue>,
}

#[derive(Serialize)]
struct ListedFunction<'a> {
    function_id: &'a str,
    description: Option<&'a RawValue>,
    request_format: Option<&'a RawValue>,
    response_format: Option<&'a RawValue>,
    metadata: Option<&'a RawValue>,
    namespace: &'static str,
    worker_name: Option<String>,
}

#[derive(Serialize)]
struct ListedType<'a> {
    id: &'a str,
    worker_name: Option<String>,
    description: Option<&'a RawValue>,
    trigger_request_format: Option<&'a RawValue>,
    call_request_format: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct ListedTrigger<'a> {
    id: &'a str,
    trigger_type: &'a str,
    function_id: &'a str,
    config: Option<&'a RawValue>,
    metadata: Option<&'a RawValue>,
    worker_id: &'a str,
}

/// Whether a caller may know the clients and bindings of another.
fn sees(caller: &Identity, other: &Identity) -> bool {
    caller.may(Action::Administer) || caller.is_same_caller(other)
}

/// Whether a caller may call a function of a client.
fn callable(caller: &Identity, function: &Function) -> bool {
    caller.may(Action::Workers) && function.owner.identity.may(Action::Workers)
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

fn describe<'a>(id: &'a str, function: &'a Function) -> ListedFunction<'a> {
    ListedFunction {
        function_id: id,
        description: shown(function.description.as_deref()),
        request_format: shown(function.request_format.as_deref()),
        response_format: shown(function.response_format.as_deref()),
        metadata: shown(function.metadata.as_deref()),
        namespace: "default",
        worker_name: function.owner.about().name,
    }
}

/// Text of a client as it is shown: `None` if it nests too deep.
fn shown(text: Option<&str>) -> Option<&RawValue> {
    let text = text.filter(|text| nests_within(text, LISTED_DEPTH_MAX))?;
    serde_json::from_str(text).ok()
}
