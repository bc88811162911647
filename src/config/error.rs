//! Owns: why a configuration is refused. Every text names the key and says what to write instead.

use std::fmt::Display;
use std::path::PathBuf;

/// An error quotes the value it refuses, which may be megabytes long. Logs and `session::config-status` need its start.
const PART_CHARS_MAX: usize = 300;
/// The parser's text also lists the keys or values that are allowed.
const PARSE_CHARS_MAX: usize = 600;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("configuration {}: cannot be read: {why}; check the path in --config", .path.display())]
    File { path: PathBuf, why: String },
    #[error("configuration {id}: the engine's configuration worker failed: {why}")]
    Engine { id: &'static str, why: String },
    /// An error inside a named document: a file, or an entry of the engine's configuration worker.
    #[error("configuration {document}: {error}")]
    InDocument { document: String, error: Box<ConfigError> },
    #[error("not YAML: {0}")]
    NotYaml(String),
    #[error("the configuration must be a mapping of keys to values, such as `listen: 127.0.0.1:49134`")]
    NotAMapping,
    /// An unknown key or a value of the wrong type. The parser's text says what is expected.
    #[error("{key}: {why}")]
    Parse { key: String, why: String },
    #[error("{key}: {value} is out of bounds, give {min} to {max} ({why})")]
    OutOfBounds { key: &'static str, value: u64, min: u64, max: u64, why: &'static str },
    #[error("{smaller}: {value} is more than {larger} ({bound}): lower {smaller} or raise {larger}")]
    MoreThan { smaller: &'static str, value: usize, larger: &'static str, bound: usize },
    /// A key whose value cannot be used.
    #[error("{key}: {problem}: {fix}")]
    Key { key: String, problem: String, fix: String },
}

impl ConfigError {
    /// `key` has a problem, and `fix` says what to write.
    pub fn key(key: impl Display, problem: impl Display, fix: impl Display) -> ConfigError {
        let part = |text: &dyn Display| shortened(text, PART_CHARS_MAX);
        ConfigError::Key { key: part(&key), problem: part(&problem), fix: part(&fix) }
    }

    pub(super) fn parse(key: impl Display, why: impl Display) -> ConfigError {
        ConfigError::Parse { key: shortened(key, PART_CHARS_MAX), why: shortened(why, PARSE_CHARS_MAX) }
    }

    pub(super) fn not_yaml(why: impl Display) -> ConfigError {
        ConfigError::NotYaml(shortened(why, PARSE_CHARS_MAX))
    }

    /// Names the document that the error is in.
    pub fn in_document(self, document: impl Display) -> ConfigError {
        ConfigError::InDocument { document: document.to_string(), error: Box::new(self) }
    }
}

fn shortened(text: impl Display, chars_max: usize) -> String {
    let mut text = text.to_string();
    if let Some((end, _)) = text.char_indices().nth(chars_max) {
        text.truncate(end);
        text.push('…');
    }
    text
}
