//! Owns: what can go wrong between this node and an engine.

use std::fmt;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineError {
    /// The address given with `--url` is not a WebSocket address.
    InvalidUrl(String),
    /// The node could not register at the engine when it started.
    Connect {
        url: String,
        why: Box<EngineError>,
    },
    /// The engine did not accept the worker's registration in time.
    ConnectTimedOut(Duration),
    /// Another worker of the namespace has this name.
    NameTaken {
        name: String,
        namespace: String,
    },
    /// The engine, or a function on it, answered with an error.
    Answered {
        code: String,
        message: String,
    },
    /// No answer arrived. The call may have been read, or not.
    NoAnswer(String),
    /// The SDK refused to send a message or to register something.
    Sdk(String),
    /// The engine's configuration worker failed.
    Configuration {
        id: &'static str,
        why: Box<EngineError>,
    },
    /// The engine's configuration worker has no value for our settings.
    NothingStored {
        id: &'static str,
    },
    /// A binding asks for something that cannot be delivered. The text is for the subscriber.
    InvalidBinding(String),
    TooManyBindings {
        max: usize,
    },
}

impl EngineError {
    /// The error code that the engine, or a function on it, answered with.
    pub fn code(&self) -> Option<&str> {
        match self {
            EngineError::Answered { code, .. } => Some(code),
            EngineError::InvalidUrl(_)
            | EngineError::Connect { .. }
            | EngineError::ConnectTimedOut(_)
            | EngineError::NameTaken { .. }
            | EngineError::NoAnswer(_)
            | EngineError::Sdk(_)
            | EngineError::Configuration { .. }
            | EngineError::NothingStored { .. }
            | EngineError::InvalidBinding(_)
            | EngineError::TooManyBindings { .. } => None,
        }
    }

    /// No worker on the engine serves the called function.
    pub fn is_missing_function(&self) -> bool {
        self.code() == Some("function_not_found")
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::InvalidUrl(url) => write!(f, "url: {url:?} must be ws://host:port or wss://host:port"),
            EngineError::Connect { url, why } => write!(f, "engine {url}: {why}"),
            EngineError::ConnectTimedOut(limit) => write!(f, "no engine answered within {} s", limit.as_secs()),
            EngineError::NameTaken { name, namespace } => write!(
                f,
                "a worker named {name:?} is already connected in namespace {namespace:?}: give each replica its own \
                 name with --worker-name or III_WORKER_NAME"
            ),
            EngineError::Answered { code, message } => write!(f, "{code}: {message}"),
            EngineError::NoAnswer(why) => write!(f, "the engine did not answer: {why}"),
            EngineError::Sdk(why) | EngineError::InvalidBinding(why) => f.write_str(why),
            EngineError::Configuration { id, why } => write!(f, "configuration {id}: {why}"),
            EngineError::NothingStored { id } => {
                write!(f, "configuration {id}: no value is stored; set one with configuration::set")
            }
            EngineError::TooManyBindings { max } => {
                write!(f, "this node already has {max} bindings of this engine, the most it accepts")
            }
        }
    }
}

impl std::error::Error for EngineError {}
