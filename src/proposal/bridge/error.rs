//! Owns: why a bridge cannot use a main. Errors of single calls are `CallFailure` (one attempt) and the adapter's
//! error.

use std::fmt;
use std::time::Duration;

/// Why a bridge cannot connect to a main, or gave up a connection to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BridgeError {
    /// The configured url is not an address of a bus.
    InvalidUrl(String),
    /// The connection failed, or broke before the answer arrived.
    Unreachable(String),
    TimedOut(Duration),
    /// The token for the main cannot be read.
    Token(String),
    /// The process trusts another authority than the configured one.
    OtherAuthority(String),
    /// Something accepts connections there, but does not speak the bus protocol.
    NotABus(String),
    /// A bus without any store functions.
    NotASessionManager,
    IsABridge,
    /// The url leads back to this process.
    IsThisInstance,
    /// The main answered that it has no leader, no quorum or no disk.
    Unavailable(String),
    UnexpectedAnswer(String),
    /// A main of another cluster or of another kind than the one this bridge was started with.
    DifferentMain,
    /// The main's position does not parse, or belongs to another cluster.
    InvalidPosition(String),
    SubscriptionRefused(String),
    UnreadableEvent(String),
    ConnectionLost,
    /// The main reported a newer position, but the event did not arrive over the subscription.
    FeedStalled,
    /// The bridge was closed.
    Closed,
    /// None of the tried mains can be used. Each address with its reason.
    NoUsableMain(Vec<(String, BridgeError)>),
}

impl fmt::Display for BridgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BridgeError::InvalidUrl(why) => write!(f, "the url must be ws://host:port or wss://host:port: {why}"),
            BridgeError::Unreachable(why) => write!(f, "it cannot be reached: {why}"),
            BridgeError::TimedOut(limit) => {
                write!(f, "it cannot be reached: no answer within {} ms", limit.as_millis())
            }
            BridgeError::Token(why) => write!(f, "adapter.config.token_file: {why}"),
            BridgeError::OtherAuthority(ca) => write!(
                f,
                "adapter.config.ca: this process began without {ca}: restart the node, or set SSL_CERT_FILE to it"
            ),
            BridgeError::NotABus(why) => write!(f, "it does not answer as an iii bus: {why}"),
            BridgeError::NotASessionManager => f.write_str("no session-manager serves session::store::* there"),
            BridgeError::IsABridge => f.write_str("a bridge answers there: name the main it is connected to"),
            BridgeError::IsThisInstance => f.write_str("this very instance answers there: name the bus of its main"),
            BridgeError::Unavailable(why) => write!(f, "it cannot serve at the moment: {why}"),
            BridgeError::UnexpectedAnswer(why) => write!(f, "it does not answer as a session-manager: {why}"),
            BridgeError::DifferentMain => {
                f.write_str("it is not the main this bridge was started with; restart the bridge to use another main")
            }
            BridgeError::InvalidPosition(why) => write!(f, "its feed position cannot be used: {why}"),
            BridgeError::SubscriptionRefused(why) => write!(f, "it refused the subscription to its feed: {why}"),
            BridgeError::UnreadableEvent(why) => write!(f, "it sent an event that cannot be read: {why}"),
            BridgeError::ConnectionLost => f.write_str("the connection is lost"),
            BridgeError::FeedStalled => f.write_str("events of its feed no longer arrive"),
            BridgeError::Closed => f.write_str("the bridge is closed"),
            BridgeError::NoUsableMain(tried) => {
                for (index, (address, why)) in tried.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "; " };
                    write!(f, "{separator}{address}: {why}")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for BridgeError {}
