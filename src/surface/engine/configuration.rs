//! Owns: our entry in the engine's `configuration` worker: registers its schema and first value, and reads it.
//! Never: what a setting means.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::control::ControlConnection;
use super::error::EngineError;

/// The id our settings are stored under.
pub const ID: &str = "session-manager";

/// How often a read is retried after a reconnect. The configuration worker may come back later than the engine.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Our settings as the configuration worker stores them.
pub struct StoredSettings {
    control: Arc<ControlConnection>,
    /// The value that was read last.
    last_read: Mutex<Option<Value>>,
}

/// Registers our settings at the configuration worker. `None`: this engine has no configuration worker. `seed` becomes
/// the value only if none is stored yet.
pub async fn register(
    control: &Arc<ControlConnection>,
    schema: &Value,
    seed: &Value,
) -> Result<Option<Arc<StoredSettings>>, EngineError> {
    let stored = match get(control).await {
        Ok(value) => value,
        Err(error) if error.is_missing_function() => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut entry = json!({
        "id": ID,
        "name": "Session manager",
        "description": env!("CARGO_PKG_DESCRIPTION"),
        "schema": schema,
    });
    // An initial value would replace a stored one.
    if stored.is_none() {
        entry["initial_value"] = seed.clone();
    }
    control.call("configuration::register", entry).await.map_err(failed)?;
    control.watch_configuration(ID)?;
    let settings = Arc::new(StoredSettings { control: control.clone(), last_read: Mutex::default() });
    settings.read().await?;
    tokio::spawn(settings.clone().check_after_reconnects());
    Ok(Some(settings))
}

impl StoredSettings {
    /// The stored settings. The configuration worker has expanded their variables.
    pub async fn read(&self) -> Result<Value, EngineError> {
        let value = self.fetch().await?;
        *self.last_read() = Some(value.clone());
        Ok(value)
    }

    /// Resolves when the settings have changed.
    pub async fn changed(&self) {
        self.control.configuration_changed().await;
    }

    async fn fetch(&self) -> Result<Value, EngineError> {
        get(&self.control).await.map_err(failed)?.ok_or(EngineError::NothingStored { id: ID })
    }

    /// The engine does not report changes that were made while it was disconnected, so they are looked up afterwards.
    async fn check_after_reconnects(self: Arc<Self>) {
        while self.control.reconnected().await {
            let value = loop {
                match self.fetch().await {
                    Ok(value) => break Some(value),
                    Err(_) if self.control.is_closed() => return,
                    Err(_) => tokio::time::sleep(RETRY_AFTER).await,
                }
            };
            if value != *self.last_read() {
                tracing::info!("the settings changed while the engine was disconnected");
                self.control.notify_configuration_changed();
            }
        }
    }

    fn last_read(&self) -> MutexGuard<'_, Option<Value>> {
        self.last_read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `None`: no value is stored yet.
async fn get(control: &ControlConnection) -> Result<Option<Value>, EngineError> {
    match control.call("configuration::get", json!({ "id": ID })).await {
        Ok(answer) => Ok(answer.get("value").filter(|value| !value.is_null()).cloned()),
        // The bus may replace the code of a function's error by its own; the original code is then in the message.
        Err(EngineError::Answered { code, message }) if code == "NOT_FOUND" || message.contains("NOT_FOUND") => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn failed(why: EngineError) -> EngineError {
    EngineError::Configuration { id: ID, why: Box::new(why) }
}
