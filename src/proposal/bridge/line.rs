//! Owns: what a bridge needs of a bus: to dial it, to call a function there, to hear a feed, to notice its loss.
//! One small face, so that the next version of the SDK is one file's work and tests need no socket.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;

/// Brings about a connection to a bus.
pub trait Dial: Send + Sync + 'static {
    /// Connects within the given time, or says in words why not.
    fn dial<'a>(&'a self, url: &'a str, within: Duration) -> BoxFuture<'a, Result<Arc<dyn Line>, String>>;
}

/// A connection to a bus.
pub trait Line: Send + Sync + 'static {
    /// Calls a function and waits for its answer. May be dropped at any time.
    fn call<'a>(
        &'a self,
        function_id: &'a str,
        body: Value,
        within: Duration,
    ) -> BoxFuture<'a, Result<Value, CallFailure>>;

    /// Subscribes to the feed of a store, after a position where one is given. Called once.
    fn follow(&self, after: Option<&str>, hear: Hear) -> Result<(), String>;

    /// Resolves when the connection is lost. It does not come back: dial again.
    fn lost(&self) -> BoxFuture<'_, ()>;

    /// Ends the connection, if it has not ended yet. Returns at once.
    fn hang_up(&self);
}

/// Takes one event of a feed: the envelope and the sidecar. Must not wait.
pub type Hear = Arc<dyn Fn(Value, Option<Value>) + Send + Sync>;

/// Why a call brought no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallFailure {
    /// The bus answered: it knows no such function.
    NoSuchFunction,
    /// The function answered with an error, in these words.
    Answered(String),
    /// The call never left.
    NotSent(String),
    /// No answer came; whether the call arrived is not known.
    Unanswered(String),
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallFailure::NoSuchFunction => f.write_str("the bus knows no such function"),
            CallFailure::Answered(words) | CallFailure::NotSent(words) | CallFailure::Unanswered(words) => {
                f.write_str(words)
            }
        }
    }
}
