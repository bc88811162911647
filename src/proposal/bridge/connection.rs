//! Owns: the traits through which a bridge uses a bus: connect, call a function, subscribe to the store's feed, notice
//! that the connection is lost. `sdk` implements them with the iii SDK; tests and the simulation do without it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;

use super::error::BridgeError;

/// Opens connections to buses.
pub trait Connector: Send + Sync + 'static {
    /// Fails if there is no connection within the given time.
    fn connect<'a>(&'a self, url: &'a str, within: Duration) -> ConnectFuture<'a>;
}

pub type ConnectFuture<'a> = BoxFuture<'a, Result<Arc<dyn Connection>, BridgeError>>;

/// A connection to a bus.
pub trait Connection: Send + Sync + 'static {
    /// Calls a function and waits for its answer. The future may be dropped at any time.
    fn call<'a>(&'a self, function_id: &'a str, body: Value, within: Duration) -> CallFuture<'a>;

    /// Subscribes to the feed of the store, from the given position on if there is one. Called once per connection.
    fn subscribe(&self, after: Option<&str>, on_event: OnEvent) -> Result<(), BridgeError>;

    /// Resolves when the connection is lost. It is never restored: connect again.
    fn lost(&self) -> BoxFuture<'_, ()>;

    /// Closes the connection if it is still open. Returns at once.
    fn close(&self);
}

pub type CallFuture<'a> = BoxFuture<'a, Result<Value, CallFailure>>;

/// Receives one event of the feed: the envelope and the delivery's metadata. Must not block.
pub type OnEvent = Arc<dyn Fn(Value, Option<Value>) + Send + Sync>;

/// Why one attempt of a call has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallFailure {
    /// The bus does not know the function.
    NoSuchFunction,
    /// The function, or the bus, answered with an error code.
    Refused { code: String, message: String },
    /// The main could not serve the call. Nothing happened.
    Unavailable(String),
    /// The call was never sent. Nothing happened.
    NotSent(String),
    /// The call may have taken effect: no answer arrived, or the main itself does not know.
    OutcomeUnknown(String),
}

impl CallFailure {
    /// Reads an error as a bus sends it. Function errors arrive as `handler error: <code>: <message>` under a code of
    /// the bus; the protocol has no other field for them.
    pub fn from_bus(code: &str, message: &str) -> CallFailure {
        match code {
            "function_not_found" => return CallFailure::NoSuchFunction,
            // An engine sends this when the worker that served the call disconnected.
            "invocation_stopped" => return CallFailure::OutcomeUnknown(message.to_owned()),
            _other => {}
        }
        let text = message.strip_prefix("handler error: ").unwrap_or(message);
        let (code, message) = match text.starts_with("session/") {
            true => text.split_once(": ").unwrap_or((text, "")),
            false => (code, text),
        };
        if code != "session/storage" {
            return CallFailure::Refused { code: code.to_owned(), message: message.to_owned() };
        }
        match message.strip_prefix("outcome unknown: ") {
            Some(why) => CallFailure::OutcomeUnknown(why.to_owned()),
            None => CallFailure::Unavailable(message.to_owned()),
        }
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallFailure::NoSuchFunction => f.write_str("the bus does not know this function"),
            CallFailure::Refused { code, message } => write!(f, "{code}: {message}"),
            CallFailure::Unavailable(why) | CallFailure::NotSent(why) | CallFailure::OutcomeUnknown(why) => {
                f.write_str(why)
            }
        }
    }
}

impl std::error::Error for CallFailure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_bus_is_read_by_its_code_wherever_the_code_stands() {
        let refused = |code: &str, message: &str| CallFailure::Refused { code: code.into(), message: message.into() };
        let failed = |message| CallFailure::from_bus("invocation_failed", message);
        assert_eq!(failed("handler error: session/not_found: no s"), refused("session/not_found", "no s"));
        assert_eq!(failed("session/not_found: no s"), refused("session/not_found", "no s"));
        assert_eq!(failed("it panicked"), refused("invocation_failed", "it panicked"));
        assert_eq!(failed("session/storage: no leader"), CallFailure::Unavailable("no leader".into()));
        let unknown = CallFailure::OutcomeUnknown("deadline".into());
        assert_eq!(failed("handler error: session/storage: outcome unknown: deadline"), unknown);
        assert_eq!(CallFailure::from_bus("invocation_stopped", "deadline"), unknown);
        assert_eq!(CallFailure::from_bus("function_not_found", "x"), CallFailure::NoSuchFunction);
    }
}
