//! Owns: the file with the tokens of a node: one JSON object per line, with the hash of the token instead of the token.
//! Never: when it is read.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::identity::{Identity, Proof};
use super::role::Role;
use super::token::TokenHash;
use crate::machine::json::Object;
use crate::machine::scope::{Scope, ScopeError};
use crate::machine::toolpath::time;

/// More than any deployment lists in a file. JWTs serve more callers than that.
const LINES_MAX: usize = 10_000;
const BYTES_MAX: u64 = 16 << 20;

/// One line of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    pub name: String,
    pub role: Role,
    pub hash: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Object>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
}

/// Why a token file cannot be used. Never quotes a line: it may hold a token by mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenFileError {
    Unreadable(String),
    TooLarge,
    TooManyLines,
    Line { number: usize, why: LineError },
}

/// What is wrong with one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    #[error("not a JSON object (column {column})")]
    NotJson { column: usize },
    #[error("a field is missing, unknown or of the wrong type (column {column})")]
    Fields { column: usize },
    #[error("hash: give `sha256:` and 64 hex digits")]
    Hash,
    #[error("expires: give a time such as 2027-01-31T00:00:00Z")]
    Expires,
    #[error(transparent)]
    Scope(#[from] ScopeError),
    #[error("the same hash stands on an earlier line")]
    SameHash,
}

impl fmt::Display for TokenFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenFileError::Unreadable(why) => write!(f, "cannot be read: {why}"),
            TokenFileError::TooLarge => write!(f, "is larger than {BYTES_MAX} bytes"),
            TokenFileError::TooManyLines => write!(f, "has more than {LINES_MAX} lines: use JWTs for so many callers"),
            TokenFileError::Line { number, why } => {
                write!(f, "line {number}: {why}; `session-manager token create` prints a line that is right")
            }
        }
    }
}

impl std::error::Error for TokenFileError {}

/// The tokens of a file.
#[derive(Debug, Default)]
pub struct Tokens(Vec<Known>);

#[derive(Debug)]
struct Known {
    hash: TokenHash,
    expires_ms: Option<i64>,
    identity: Arc<Identity>,
}

/// What the tokens say about one that a caller presented.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup {
    Unknown,
    Expired,
    Valid(Arc<Identity>),
}

impl Tokens {
    pub fn load(path: &Path) -> Result<Tokens, TokenFileError> {
        let unreadable = |error: std::io::Error| TokenFileError::Unreadable(error.to_string());
        if std::fs::metadata(path).map_err(unreadable)?.len() > BYTES_MAX {
            return Err(TokenFileError::TooLarge);
        }
        Tokens::parse(&std::fs::read_to_string(path).map_err(unreadable)?)
    }

    /// Reads all lines. Empty lines and lines that begin with `#` are skipped.
    pub fn parse(text: &str) -> Result<Tokens, TokenFileError> {
        let mut tokens: Vec<Known> = Vec::new();
        for (index, line) in text.lines().enumerate().map(|(index, line)| (index, line.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if tokens.len() == LINES_MAX {
                return Err(TokenFileError::TooManyLines);
            }
            let known = known(line).map_err(|why| TokenFileError::Line { number: index + 1, why })?;
            if tokens.iter().any(|other| other.hash == known.hash) {
                return Err(TokenFileError::Line { number: index + 1, why: LineError::SameHash });
            }
            tokens.push(known);
        }
        Ok(Tokens(tokens))
    }

    pub fn find(&self, hash: &TokenHash, now_ms: i64) -> Lookup {
        // Every line is compared, so that the time says nothing about which of them matches.
        let mut found = None;
        for known in &self.0 {
            if known.hash.is(hash) {
                found = Some(known);
            }
        }
        match found {
            None => Lookup::Unknown,
            Some(known) if known.expires_ms.is_some_and(|expires| expires <= now_ms) => Lookup::Expired,
            Some(known) => Lookup::Valid(known.identity.clone()),
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn known(line: &str) -> Result<Known, LineError> {
    // The position is kept and the text is not: serde quotes values.
    let line: Line = serde_json::from_str(line).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => LineError::Fields { column: error.column() },
        _syntax => LineError::NotJson { column: error.column() },
    })?;
    let hash = TokenHash::parse(&line.hash).ok_or(LineError::Hash)?;
    let expires_ms = line.expires.map(|text| time::parse(&text).ok_or(LineError::Expires)).transpose()?;
    let scope = line.scope.map(|scope| Scope::new(Value::Object(scope))).transpose()?;
    let identity = Identity { scope: scope.map(Arc::new), ..Identity::new(&line.name, line.role, Proof::Token(hash)) };
    Ok(Known { hash, expires_ms, identity: Arc::new(identity) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(token: &str, more: &str) -> String {
        format!(r#"{{"name": "web", "role": "app", "hash": "{}"{more}}}"#, TokenHash::of(token))
    }

    #[test]
    fn a_token_is_found_by_its_hash_until_it_expires() {
        let text = format!(
            "# tokens\n\n{}\n{}\n",
            line("one", r#", "scope": {"owner": "u_1"}"#),
            line("two", r#", "expires": "1970-01-01T00:00:01Z""#)
        );
        let tokens = Tokens::parse(&text).unwrap();
        let Lookup::Valid(identity) = tokens.find(&TokenHash::of("one"), 0) else { panic!("it is known") };
        assert_eq!((&*identity.name, identity.role), ("web", Role::App));
        assert_eq!(identity.scope.as_ref().unwrap().text(), r#"{"owner":"u_1"}"#);
        assert!(matches!(tokens.find(&TokenHash::of("two"), 999), Lookup::Valid(_)));
        assert_eq!(tokens.find(&TokenHash::of("two"), 1000), Lookup::Expired);
        assert_eq!(tokens.find(&TokenHash::of("three"), 0), Lookup::Unknown);
    }

    #[test]
    fn a_wrong_line_is_named_and_never_quoted() {
        for (wrong, named) in [
            ("smt_secret".to_owned(), "line 1: not a JSON object"),
            (r#"{"name": "secret", "role": "root", "hash": "x"}"#.to_owned(), "line 1: a field is missing"),
            (r#"{"name": "a", "role": "app", "hash": "secret"}"#.to_owned(), "line 1: hash: "),
            (line("a", r#", "scope": {}"#), "line 1: scope: "),
            (line("a", r#", "expires": "secret""#), "line 1: expires: "),
            (format!("{}\n{}", line("a", ""), line("a", "")), "line 2: the same hash"),
        ] {
            let error = Tokens::parse(&wrong).unwrap_err().to_string();
            assert!(error.starts_with(named) && !error.contains("secret"), "{error}");
        }
    }
}
