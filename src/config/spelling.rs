//! Owns: parsing the YAML, and the old keys of version 0.1.2, which are rewritten to today's keys.

use serde_yaml_ng::{Mapping, Value};

use super::{Config, ConfigError};

pub fn read(text: &str) -> Result<Value, ConfigError> {
    serde_yaml_ng::from_str(text).map_err(ConfigError::not_yaml)
}

/// The typed settings. An error names the key.
pub fn config(value: Value) -> Result<Config, ConfigError> {
    let value = with_new_keys(value)?;
    serde_path_to_error::deserialize(value).map_err(|error| match error.path().to_string().as_str() {
        "." => ConfigError::parse("configuration", error.inner()),
        key => ConfigError::parse(key, error.inner()),
    })
}

/// Replaces old keys by new ones. An empty document is an empty configuration.
fn with_new_keys(value: Value) -> Result<Value, ConfigError> {
    let mut fields = match value {
        Value::Null => Mapping::new(),
        Value::Mapping(fields) => fields,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Sequence(_) | Value::Tagged(_) => {
            return Err(ConfigError::NotAMapping);
        }
    };
    let backend = fields.remove("backend");
    let backend_config = fields.remove("backend_config");
    if let Some(adapter) = fields.remove("adapter") {
        if backend.is_some() || backend_config.is_some() {
            let problem = "its old names backend and backend_config are given too";
            return Err(ConfigError::key("adapter", problem, "remove them"));
        }
        fields.insert("adapter".into(), adapter_block(adapter)?);
    } else if let Some(name) = backend {
        fields.insert("adapter".into(), adapter_fields(name, backend_config));
    } else if backend_config.is_some() {
        return Err(ConfigError::key("backend_config", "backend is missing", "write backend: raft, fs or bridge"));
    }
    Ok(Value::Mapping(fields))
}

fn adapter_block(adapter: Value) -> Result<Value, ConfigError> {
    let Value::Mapping(mut fields) = adapter else {
        return Err(ConfigError::key(
            "adapter",
            "must be a mapping with name and config",
            "write adapter: {name: raft}",
        ));
    };
    let name =
        fields.remove("name").ok_or_else(|| ConfigError::key("adapter.name", "missing", "write raft, fs or bridge"))?;
    let config = fields.remove("config");
    if let Some((unknown, _)) = fields.iter().next() {
        let unknown = unknown.as_str().unwrap_or("(not text)");
        let fix = "an adapter has the keys name and config";
        return Err(ConfigError::key(format!("adapter.{unknown}"), "unknown key", fix));
    }
    Ok(adapter_fields(name, config))
}

/// `name` comes first: serde reads the name of an adapter before its settings.
fn adapter_fields(name: Value, config: Option<Value>) -> Value {
    let config = config.filter(|config| !config.is_null()).unwrap_or_else(|| Value::Mapping(Mapping::new()));
    let mut fields = Mapping::new();
    fields.insert("name".into(), name);
    fields.insert("config".into(), config);
    Value::Mapping(fields)
}
