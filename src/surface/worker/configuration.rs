//! Owns: our entry in the engine's `configuration` worker: its schema, its first value, and reading it.
//! Never: what a setting means.

use serde_json::{Value, json};

use super::control::Control;
use super::sdk::EngineError;

/// The id our settings are stored under.
pub const ID: &str = "session-manager";

/// Introduces our settings to the configuration worker and gives the stored ones back. `None`: this engine has no
/// configuration worker. `seed` is stored only where nothing is stored yet.
pub async fn introduce(control: &Control, schema: &Value, seed: &Value) -> Result<Option<Value>, String> {
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
    read(control).await.map(Some)
}

/// The stored settings, with variables expanded.
pub async fn read(control: &Control) -> Result<Value, String> {
    match get(control).await {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(format!("configuration {ID}: nothing is stored; set it with configuration::set")),
        Err(error) => Err(in_words(&error)),
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
