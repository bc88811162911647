//! Owns: our entry in the engine's `configuration` worker: its schema, its first value, and reading it.
//! Never: what a setting means.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::control::Control;
use super::sdk::EngineError;

/// The id our settings are stored under.
pub const ID: &str = "session-manager";

/// The configuration worker may come back later than the engine: how often it is asked.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Our settings as the configuration worker keeps them.
pub struct Stored {
    control: Arc<Control>,
    /// As they were read last.
    known: Mutex<Option<Value>>,
}

/// Introduces our settings to the configuration worker. `None`: this engine has no configuration worker. `seed` is stored only
/// where nothing is stored yet.
pub async fn introduce(control: &Arc<Control>, schema: &Value, seed: &Value) -> Result<Option<Arc<Stored>>, String> {
    let stored = match get(control).await {
        Ok(value) => value,
        Err(error) if error.is_missing_function() => return Ok(None),
        Err(error) => return Err(in_words(&error)),
    };
    let mut entry = json!({
        "id": ID,
        "name": "Session manager",
        "description": env!("CARGO_PKG_DESCRIPTION"),
        "schema": schema,
    });
    // A value that is given here replaces the stored one, so it is given only when there is none.
    if stored.is_none() {
        entry["initial_value"] = seed.clone();
    }
    control.call("configuration::register", entry).await.map_err(|error| in_words(&error))?;
    control.watch_configuration(ID)?;
    let stored = Arc::new(Stored { control: control.clone(), known: Mutex::default() });
    stored.read().await?;
    tokio::spawn(stored.clone().look_after_breaks());
    Ok(Some(stored))
}

impl Stored {
    /// The stored settings, with variables expanded.
    pub async fn read(&self) -> Result<Value, String> {
        let value = self.look().await?;
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(value.clone());
        Ok(value)
    }

    /// Resolves when they changed.
    pub async fn changed(&self) {
        self.control.configuration_changed().await;
    }

    async fn look(&self) -> Result<Value, String> {
        match get(&self.control).await {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(format!("configuration {ID}: nothing is stored; set it with configuration::set")),
            Err(error) => Err(in_words(&error)),
        }
    }

    /// Nobody tells a node of what changes while its engine is out of reach: it looks when it is back.
    async fn look_after_breaks(self: Arc<Self>) {
        while self.control.came_back().await {
            let now = loop {
                match self.look().await {
                    Ok(value) => break Some(value),
                    Err(_) if self.control.is_closed() => return,
                    Err(_) => tokio::time::sleep(ASK_AGAIN).await,
                }
            };
            if now != *self.known.lock().unwrap_or_else(PoisonError::into_inner) {
                tracing::info!("the settings changed while the engine was out of reach");
                self.control.tell_of_configuration();
            }
        }
    }
}

/// `None`: nothing is stored yet.
async fn get(control: &Control) -> Result<Option<Value>, EngineError> {
    match control.call("configuration::get", json!({ "id": ID })).await {
        Ok(answer) => Ok(answer.get("value").filter(|value| !value.is_null()).cloned()),
        Err(error) if error.code == "NOT_FOUND" || error.message.contains("NOT_FOUND") => Ok(None),
        Err(error) => Err(error),
    }
}

fn in_words(error: &EngineError) -> String {
    format!("configuration {ID}: {error}")
}
