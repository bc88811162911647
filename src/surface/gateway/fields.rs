//! Owns: reading the fields of a client message, with an error that names the field.
//! Never: what a message means.

use serde_json::Value;

use crate::machine::json::{Object, kind_of};

/// Why a message has no meaning here. The text names the field and the fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError(pub String);

/// Ids are at most this long; the machine refuses longer ones too.
const ID_BYTES_MAX: usize = 256;

/// The fields of one message.
pub struct Fields<'a>(pub &'a Object);

impl Fields<'_> {
    fn found(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub fn text(&self, name: &str) -> Result<String, FieldError> {
        self.optional_text(name)?.ok_or_else(|| missing(name, "a string"))
    }

    pub fn optional_text(&self, name: &str) -> Result<Option<String>, FieldError> {
        match self.found(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(wrong(name, "a string", other)),
        }
    }

    /// A string that is not empty and not longer than an id may be.
    pub fn id(&self, name: &str) -> Result<String, FieldError> {
        self.optional_id(name)?.ok_or_else(|| missing(name, "a string"))
    }

    pub fn optional_id(&self, name: &str) -> Result<Option<String>, FieldError> {
        let Some(text) = self.optional_text(name)? else { return Ok(None) };
        if text.is_empty() || text.len() > ID_BYTES_MAX {
            return Err(FieldError(format!("{name}: give a string of 1 to {ID_BYTES_MAX} bytes")));
        }
        Ok(Some(text))
    }

    pub fn flag(&self, name: &str) -> Result<bool, FieldError> {
        self.optional_flag(name)?.ok_or_else(|| missing(name, "true or false"))
    }

    pub fn optional_flag(&self, name: &str) -> Result<Option<bool>, FieldError> {
        match self.found(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(wrong(name, "true or false", other)),
        }
    }

    pub fn whole(&self, name: &str) -> Result<u64, FieldError> {
        self.optional_whole(name)?.ok_or_else(|| missing(name, "a whole number"))
    }

    pub fn optional_whole(&self, name: &str) -> Result<Option<u64>, FieldError> {
        match self.found(name) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(whole) => Ok(Some(whole)),
                None => Err(wrong(name, "a whole number from 0 on", value)),
            },
        }
    }

    pub fn number(&self, name: &str) -> Result<Value, FieldError> {
        match self.found(name) {
            None => Err(missing(name, "a number")),
            Some(value) if value.is_number() => Ok(value.clone()),
            Some(other) => Err(wrong(name, "a number", other)),
        }
    }

    pub fn object(&self, name: &str) -> Result<Object, FieldError> {
        self.optional_object(name)?.ok_or_else(|| missing(name, "an object"))
    }

    pub fn optional_object(&self, name: &str) -> Result<Option<Object>, FieldError> {
        match self.found(name) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(fields.clone())),
            Some(other) => Err(wrong(name, "an object", other)),
        }
    }

    pub fn array(&self, name: &str) -> Result<Vec<Value>, FieldError> {
        match self.found(name) {
            None => Err(missing(name, "an array")),
            Some(Value::Array(items)) => Ok(items.clone()),
            Some(other) => Err(wrong(name, "an array", other)),
        }
    }

    /// A list of ids; empty when absent.
    pub fn ids(&self, name: &str) -> Result<Vec<String>, FieldError> {
        if self.found(name).is_none() {
            return Ok(Vec::new());
        }
        let id = |item: Value| match item {
            Value::String(text) if !text.is_empty() && text.len() <= ID_BYTES_MAX => Ok(text),
            other => Err(wrong(name, "an array of short strings", &other)),
        };
        self.array(name)?.into_iter().map(id).collect()
    }

    /// One of some words.
    pub fn word(&self, name: &str, words: &[&str]) -> Result<String, FieldError> {
        let text = self.text(name)?;
        match words.contains(&text.as_str()) {
            true => Ok(text),
            false => Err(FieldError(format!("{name}: give one of {}", words.join(", ")))),
        }
    }
}

fn missing(name: &str, expected: &str) -> FieldError {
    FieldError(format!("{name}: missing, give {expected}"))
}

fn wrong(name: &str, expected: &str, found: &Value) -> FieldError {
    FieldError(format!("{name}: give {expected}, not {}", kind_of(found)))
}
