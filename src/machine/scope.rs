//! Owns: the scope of a caller: the metadata that a session must have for the caller to see it.
//! Never: who has a scope.

use std::fmt;

use serde_json::Value;

use super::json::{Object, canonical};
use super::session::metadata_matches;

/// More keys than any tenancy needs.
const KEYS_MAX: usize = 8;
const BYTES_MAX: usize = 1024;

/// A metadata equality, such as `{"owner": "u_1"}`.
#[derive(Debug, Clone, PartialEq)]
pub struct Scope {
    fields: Object,
    /// The canonical text: equal scopes have equal texts.
    text: String,
}

impl Eq for Scope {}

/// Why a value is no scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScopeError;

impl fmt::Display for ScopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "scope: give an object with 1 to {KEYS_MAX} keys, such as {{\"owner\": \"u_1\"}}, of at most \
                   {BYTES_MAX} bytes"
        )
    }
}

impl std::error::Error for ScopeError {}

impl Scope {
    pub fn new(value: Value) -> Result<Scope, ScopeError> {
        let Value::Object(fields) = value else { return Err(ScopeError) };
        let text = canonical(&Value::Object(fields.clone()));
        if fields.is_empty() || fields.len() > KEYS_MAX || text.len() > BYTES_MAX {
            return Err(ScopeError);
        }
        Ok(Scope { fields, text })
    }

    pub fn parse(text: &str) -> Result<Scope, ScopeError> {
        Scope::new(serde_json::from_str(text).map_err(|_| ScopeError)?)
    }

    /// The canonical JSON text.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn fields(&self) -> &Object {
        &self.fields
    }

    /// Whether a session with this metadata is within the scope.
    pub fn includes(&self, metadata: Option<&Object>) -> bool {
        metadata_matches(&self.fields, metadata)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_scope_is_an_equality_of_metadata() {
        let scope = Scope::parse(r#"{"owner": "u_1"}"#).unwrap();
        assert!(scope.includes(json!({"owner": "u_1", "more": 1}).as_object()));
        for outside in [json!({"owner": "u_2"}), json!({}), json!({"owner": ["u_1"]})] {
            assert!(!scope.includes(outside.as_object()), "{outside}");
        }
        assert!(!scope.includes(None));
    }

    #[test]
    fn an_empty_or_huge_scope_is_refused() {
        for wrong in ["{}", "[]", "1", "", r#"{"a":"#] {
            assert_eq!(Scope::parse(wrong), Err(ScopeError), "{wrong}");
        }
        assert_eq!(Scope::new(json!({"a": "x".repeat(2000)})), Err(ScopeError));
    }
}
