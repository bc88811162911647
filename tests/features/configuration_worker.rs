//! Owns: a configuration worker for engines without one: entries by id in memory, and a trigger when an entry changes.
//! It offers only what a node uses.
#![allow(deprecated)] // current engines offer no other way than trigger types

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use iii_sdk::protocol::TriggerRequest;
use iii_sdk::trigger::{TriggerConfig, TriggerHandler};
use iii_sdk::{Error, IIIClient, RegisterFunction, RegisterTriggerType, TriggerAction};
use serde_json::{Value, json};

use crate::engine::connect;

#[derive(Default)]
struct Entries {
    values: BTreeMap<String, Value>,
    schemas: BTreeMap<String, Value>,
    bindings: BTreeMap<String, TriggerConfig>,
}

/// A running configuration worker.
pub struct ConfigurationWorker {
    pub client: IIIClient,
    entries: Arc<Mutex<Entries>>,
}

impl ConfigurationWorker {
    pub async fn start(url: &str) -> ConfigurationWorker {
        let client = connect(url, "default").await;
        let entries: Arc<Mutex<Entries>> = Arc::default();
        serve(&client, &entries, "configuration::get", |entries, request| {
            let id = request["id"].as_str().unwrap_or_default();
            let value = entries.values.get(id).ok_or_else(|| refusal("NOT_FOUND", id))?;
            Ok((json!({ "id": id, "value": value }), None))
        });
        serve(&client, &entries, "configuration::register", |entries, request| {
            let id = request["id"].as_str().unwrap_or_default().to_owned();
            entries.schemas.insert(id.clone(), request["schema"].clone());
            if let Some(value) = request.get("initial_value") {
                entries.values.insert(id.clone(), value.clone());
            }
            Ok((json!({ "id": id }), None))
        });
        serve(&client, &entries, "configuration::set", |entries, request| {
            let id = request["id"].as_str().unwrap_or_default().to_owned();
            entries.values.insert(id.clone(), request["value"].clone());
            Ok((json!({ "new_value": request["value"] }), Some(id)))
        });
        let handler = Bindings { entries: entries.clone() };
        client.register_trigger_type(RegisterTriggerType::new("configuration", "A configuration changed.", handler));
        // The engine handles the frames of one socket in order: this answer means that everything is registered.
        let listed = client.trigger(TriggerRequest::new("engine::functions::list", json!({}))).await;
        listed.expect("the engine lists functions");
        ConfigurationWorker { client, entries }
    }

    /// Changes an entry without firing the trigger, as if no subscriber could be reached.
    pub fn set_without_notification(&self, id: &str, value: Value) {
        self.entries.lock().unwrap().values.insert(id.to_owned(), value);
    }

    pub fn schema(&self, id: &str) -> Option<Value> {
        self.entries.lock().unwrap().schemas.get(id).cloned()
    }
}

fn refusal(code: &str, id: &str) -> Error {
    Error::Remote {
        code: code.to_owned(),
        message: format!("no configuration {id:?}"),
        stacktrace: Some(String::new()),
    }
}

type Work = fn(&mut Entries, &Value) -> Result<(Value, Option<String>), Error>;

/// Registers a function over the entries. If it returns an id, that entry changed and the trigger fires.
fn serve(client: &IIIClient, entries: &Arc<Mutex<Entries>>, id: &str, work: Work) {
    let (entries, notifier) = (entries.clone(), client.clone());
    let handler = move |request: Value| {
        let done = work(&mut entries.lock().unwrap(), &request);
        let (entries, notifier) = (entries.clone(), notifier.clone());
        async move {
            let (answer, changed) = done?;
            if let Some(id) = changed {
                notify(&notifier, &entries, &id).await;
            }
            Ok::<Value, Error>(answer)
        }
    };
    client.register_function(id, RegisterFunction::new_async(handler));
}

async fn notify(client: &IIIClient, entries: &Mutex<Entries>, id: &str) {
    let bound: Vec<TriggerConfig> = entries.lock().unwrap().bindings.values().cloned().collect();
    for binding in bound {
        if binding.config["configuration_id"].as_str().is_none_or(|wanted| wanted == id) {
            let event = json!({ "type": "configuration", "event_type": "configuration:updated", "id": id });
            let request =
                TriggerRequest { action: Some(TriggerAction::Void), ..TriggerRequest::new(binding.function_id, event) };
            let _ = client.trigger(request).await;
        }
    }
}

struct Bindings {
    entries: Arc<Mutex<Entries>>,
}

type Answered<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

impl TriggerHandler for Bindings {
    fn register_trigger<'life, 'answer>(&'life self, config: TriggerConfig) -> Answered<'answer>
    where
        'life: 'answer,
        Self: 'answer,
    {
        self.entries.lock().unwrap().bindings.insert(config.id.clone(), config);
        Box::pin(std::future::ready(Ok(())))
    }

    fn unregister_trigger<'life, 'answer>(&'life self, config: TriggerConfig) -> Answered<'answer>
    where
        'life: 'answer,
        Self: 'answer,
    {
        self.entries.lock().unwrap().bindings.remove(&config.id);
        Box::pin(std::future::ready(Ok(())))
    }
}
