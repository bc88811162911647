//! Owns: placeholders in a configuration: `${VAR}`, `${VAR:default}` and a leading `~`.
//! They are expanded in parsed values, not in the text, so that a variable cannot add keys.

use std::path::{Path, PathBuf};

use serde_yaml_ng::{Mapping, Value};

use super::ConfigError;

/// Looks up an environment variable.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Replaces every placeholder in every value.
pub fn variables(value: Value, variable: Variables<'_>) -> Result<Value, ConfigError> {
    walk(value, "", variable)
}

fn walk(value: Value, key: &str, variable: Variables<'_>) -> Result<Value, ConfigError> {
    match value {
        Value::String(text) if text.contains("${") => {
            let expanded = text_of(&text, key, variable)?;
            Ok(retyped(expanded))
        }
        Value::Sequence(items) => {
            let items = items.into_iter().map(|item| walk(item, key, variable));
            Ok(Value::Sequence(items.collect::<Result<_, _>>()?))
        }
        Value::Mapping(fields) => {
            let mut expanded = Mapping::new();
            for (name, value) in fields {
                let below = match name.as_str() {
                    Some(name) if key.is_empty() => name.to_owned(),
                    Some(name) => format!("{key}.{name}"),
                    None => key.to_owned(),
                };
                expanded.insert(name, walk(value, &below, variable)?);
            }
            Ok(Value::Mapping(expanded))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Tagged(_) => Ok(value),
    }
}

fn text_of(text: &str, key: &str, variable: Variables<'_>) -> Result<String, ConfigError> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (inside, tail) = after.split_once('}').ok_or_else(|| {
            ConfigError::key(key, format!("{text:?} has ${{ without }}"), "write ${VAR} or ${VAR:default}")
        })?;
        let (name, default) = match inside.split_once(':') {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        let value = variable(name).or_else(|| default.map(str::to_owned)).ok_or_else(|| {
            let problem = format!("the environment has no variable {name:?}");
            ConfigError::key(key, problem, format!("set it, or give a default: ${{{name}:…}}"))
        })?;
        expanded.push_str(before);
        expanded.push_str(&value);
        rest = tail;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// A variable is text, but the setting may be a number or a boolean.
fn retyped(text: String) -> Value {
    match serde_yaml_ng::from_str(&text) {
        Ok(value @ (Value::Number(_) | Value::Bool(_))) => value,
        _ => Value::String(text),
    }
}

/// A path with a leading `~` replaced by the home directory.
pub fn home(path: &Path, variable: Variables<'_>) -> Result<PathBuf, ConfigError> {
    let mut parts = path.components();
    if parts.next().is_none_or(|first| first.as_os_str() != "~") {
        return Ok(path.to_owned());
    }
    let home = variable("HOME").or_else(|| variable("USERPROFILE")).filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| {
        let path = path.display().to_string();
        let problem = format!("{path:?} is in the home directory, and neither HOME nor USERPROFILE is set");
        ConfigError::key("adapter.config.data_dir", problem, "write the full path")
    })?;
    Ok(Path::new(&home).join(parts.as_path()))
}
