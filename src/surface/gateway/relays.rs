//! Owns: requests of front-ends at other nodes for drivers on the bus of this one.
//! Never: drivers on the WebSocket of the gateway, which hear such requests themselves.

use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Gateway, audience};
use crate::access::identity::Proof;
use crate::access::{Identity, Role};
use crate::events::stream::{Item, Stream};
use crate::machine::scope::Scope;
use crate::surface::gate::{Call, Caller, Door};

/// Requests that are answered at the same time. Further ones are not heard, and time out where they were asked.
const ANSWERS_MAX: usize = 64;
/// As long as the front-end waits.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// How often a node without drivers on its bus looks whether there is one.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Waits for a driver on the bus that offers something, and then answers what is asked of such drivers.
pub async fn run(gateway: Weak<Gateway>) {
    loop {
        sleep(LOOK_EVERY).await;
        let Some(here) = gateway.upgrade() else { return };
        let drivers = here.bus.feed().read(|feed| feed.drivers());
        if drivers.iter().any(|(driver, _)| !driver.families.is_empty())
            && let Ok(relays) = here.subscribe(audience::filter())
        {
            drop(here);
            return answer_all(gateway, relays).await;
        }
    }
}

/// Answers the requests for drivers of this node.
async fn answer_all(gateway: Weak<Gateway>, relays: Stream) {
    let mut answers = JoinSet::new();
    loop {
        let Item::Event(committed, _) = relays.next().await else { continue };
        let Some(request) = committed.payload().field("relay").and_then(|relay| serde_json::from_str(relay).ok())
        else {
            continue;
        };
        let Some(gateway) = gateway.upgrade() else { return };
        while answers.try_join_next().is_some() {}
        if answers.len() < ANSWERS_MAX {
            answers.spawn(answer(gateway, request));
        }
    }
}

async fn answer(gateway: Arc<Gateway>, mut request: Value) {
    let Some((function, scope)) = gateway.function_for(&request) else { return };
    let identity = Identity { scope, ..Identity::new("gateway", Role::App, Proof::Until(i64::MAX)) };
    if !gateway.bus.serves_for(&identity, &function) {
        return;
    }
    let (command_id, tenant) =
        (request["command_id"].take(), request["tenant"].as_str().unwrap_or_default().to_owned());
    if let Some(fields) = request.as_object_mut() {
        let name = fields.remove("command").unwrap_or_default();
        fields.insert("request".to_owned(), name);
        fields.retain(|field, _| !["command_id", "driver_id", "family"].contains(&field.as_str()));
    }
    let caller = Caller { door: Door::Gateway, identity: Arc::new(identity) };
    let call = Call::new(&function, request.to_string(), gateway.bus.gate().deadline(), caller);
    let told = match timeout(ANSWER_MAX, gateway.bus.call(call)).await {
        Ok(Ok(answer)) => match serde_json::from_str::<Value>(&answer.into_text()) {
            Ok(result) => json!({ "relayed": command_id, "result": result }),
            Err(_) => json!({ "relayed": command_id, "error": "the driver's answer is not JSON" }),
        },
        Ok(Err(error)) => json!({ "relayed": command_id, "error": error.message() }),
        // Nobody waits any more.
        Err(_) => return,
    };
    if let Err(error) = gateway.tell_nodes(&tenant, &told).await {
        tracing::debug!(%error, "an answer for a front-end of another node is lost");
    }
}

impl Gateway {
    /// The function of a driver on this node's bus that answers a request, and the scope that the driver has.
    fn function_for(&self, request: &Value) -> Option<(String, Option<Arc<Scope>>)> {
        let (driver_id, family) = (request["driver_id"].as_str()?, request["family"].as_str()?);
        let drivers = self.bus.feed().read(|feed| feed.drivers());
        let (driver, scope) = drivers.into_iter().find(|(driver, _)| driver.driver_id == driver_id)?;
        Some((driver.families.get(family)?.clone(), scope))
    }
}
