//! Owns: how a configuration may be spelled: today's keys, and those of version 0.1.2, read as the same thing.

use serde_yaml_ng::{Mapping, Value};

use super::{Config, ConfigError};

/// The text as values.
pub fn read(text: &str) -> Result<Value, ConfigError> {
    serde_yaml_ng::from_str(text).map_err(|error| ConfigError(format!("not YAML: {error}")))
}

/// The settings; an error names the key.
pub fn config(value: Value) -> Result<Config, ConfigError> {
    let value = with_new_keys(value)?;
    serde_path_to_error::deserialize(value).map_err(|error| match error.path().to_string().as_str() {
        "." => ConfigError(error.inner().to_string()),
        key => ConfigError(format!("{key}: {}", error.inner())),
    })
}

/// Old keys replaced by new ones. Nothing at all is an empty configuration.
fn with_new_keys(value: Value) -> Result<Value, ConfigError> {
    let mut fields = match value {
        Value::Null => Mapping::new(),
        Value::Mapping(fields) => fields,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Sequence(_) | Value::Tagged(_) => {
            return Err(ConfigError("the configuration must be a mapping of keys to values".to_owned()));
        }
    };
    let backend = fields.remove("backend");
    let backend_config = fields.remove("backend_config");
    if let Some(adapter) = fields.remove("adapter") {
        if backend.is_some() || backend_config.is_some() {
            return Err(ConfigError(
                "adapter: backend and backend_config are its old spelling, remove them".to_owned(),
            ));
        }
        fields.insert("adapter".into(), adapter_block(adapter)?);
    } else if let Some(name) = backend {
        fields.insert("adapter".into(), adapter_fields(name, backend_config));
    } else if backend_config.is_some() {
        return Err(ConfigError("backend_config: backend is missing, name fs, raft or bridge".to_owned()));
    }
    Ok(Value::Mapping(fields))
}

fn adapter_block(adapter: Value) -> Result<Value, ConfigError> {
    let Value::Mapping(mut fields) = adapter else {
        return Err(ConfigError("adapter: must be a mapping with name and config".to_owned()));
    };
    let name = fields
        .remove("name")
        .ok_or_else(|| ConfigError("adapter.name: missing, name raft, fs or bridge".to_owned()))?;
    let config = fields.remove("config");
    if let Some((unknown, _)) = fields.iter().next() {
        let unknown = unknown.as_str().unwrap_or("a key that is no text");
        return Err(ConfigError(format!("adapter.{unknown}: unknown key, an adapter has name and config")));
    }
    Ok(adapter_fields(name, config))
}

/// The block in the order in which it is read best: what kind it is, then its settings, all optional.
fn adapter_fields(name: Value, config: Option<Value>) -> Value {
    let config = config.filter(|config| !config.is_null()).unwrap_or_else(|| Value::Mapping(Mapping::new()));
    let mut fields = Mapping::new();
    fields.insert("name".into(), name);
    fields.insert("config".into(), config);
    Value::Mapping(fields)
}
