//! Owns: the errors of the gateway: their codes and their words.
//! Never: details of this node in a text. What a client cannot fix is logged here and not told.

use std::fmt;

use serde_json::{Value, json};

use crate::machine::gateway::MemberRole;
use crate::surface::errors::{CallError, Kind};
use crate::surface::socket::Text;

/// The longest text of an error.
const WORDS_CHARS_MAX: usize = 400;

/// Why a message was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayError {
    VersionMismatch,
    AuthRequired,
    AuthFailed(String),
    AuthRateLimited {
        retry_after_ms: u64,
    },
    MessageTooLarge {
        bytes_max: usize,
    },
    RateLimited {
        retry_after_ms: u64,
    },
    InvalidJson(String),
    InvalidMessage(String),
    SessionNotFound,
    Forbidden {
        needs: MemberRole,
        has: MemberRole,
    },
    /// The token of the caller does not allow it, whatever the member's role is.
    TokenForbids(String),
    TurnInProgress,
    NoActiveTurn,
    AgentUnavailable(String),
    RequestNotFound,
    MemberNotFound,
    LastOwner,
    /// Nobody grants or takes a role above his own.
    AboveOwnRole(MemberRole),
    AgentError(String),
    StorageUnavailable(String),
    TooManySessions {
        max: usize,
    },
    Internal,
}

impl GatewayError {
    pub fn code(&self) -> &'static str {
        match self {
            GatewayError::VersionMismatch => "ProtocolVersionMismatch",
            GatewayError::AuthRequired => "AUTH_REQUIRED",
            GatewayError::AuthFailed(_) => "AUTH_FAILED",
            GatewayError::AuthRateLimited { .. } => "AUTH_RATE_LIMITED",
            GatewayError::MessageTooLarge { .. } => "MESSAGE_TOO_LARGE",
            GatewayError::RateLimited { .. } => "RATE_LIMITED",
            GatewayError::InvalidJson(_) => "INVALID_JSON",
            GatewayError::InvalidMessage(_) | GatewayError::TooManySessions { .. } => "INVALID_MESSAGE",
            GatewayError::SessionNotFound => "SessionNotFound",
            GatewayError::Forbidden { .. } | GatewayError::TokenForbids(_) | GatewayError::AboveOwnRole(_) => {
                "Forbidden"
            }
            GatewayError::TurnInProgress => "TurnInProgress",
            GatewayError::NoActiveTurn => "NoActiveTurn",
            GatewayError::AgentUnavailable(_) => "AgentUnavailable",
            GatewayError::RequestNotFound => "RequestNotFound",
            GatewayError::MemberNotFound => "MemberNotFound",
            GatewayError::LastOwner => "LastOwner",
            GatewayError::AgentError(_) => "AgentError",
            GatewayError::StorageUnavailable(_) => "StorageUnavailable",
            GatewayError::Internal => "InternalError",
        }
    }

    /// The event that tells the client.
    pub fn frame(&self) -> Text {
        let words: String = self.to_string().chars().take(WORDS_CHARS_MAX).collect();
        let mut error = json!({ "type": "error", "code": self.code(), "message": words });
        if let GatewayError::AuthRateLimited { retry_after_ms } | GatewayError::RateLimited { retry_after_ms } = self {
            error["retryAfterMs"] = Value::from(*retry_after_ms);
        }
        error.to_string().into()
    }
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GatewayError::VersionMismatch => {
                f.write_str("this gateway speaks the protocol versions 1 and 2: connect with ?protocolVersion=1 or 2")
            }
            GatewayError::AuthRequired => f.write_str("send authenticate with a token first"),
            GatewayError::AuthFailed(why) => f.write_str(why),
            GatewayError::AuthRateLimited { .. } => f.write_str("too many wrong credentials from this address"),
            GatewayError::MessageTooLarge { bytes_max } => {
                write!(f, "a message has at most {bytes_max} bytes")
            }
            GatewayError::RateLimited { .. } => f.write_str("at most 60 messages in 10 seconds: this one was dropped"),
            GatewayError::InvalidJson(why) => write!(f, "send one JSON object per text frame: {why}"),
            GatewayError::InvalidMessage(why) => f.write_str(why),
            GatewayError::SessionNotFound => f.write_str("no such session"),
            GatewayError::Forbidden { needs, has } => {
                write!(f, "this needs the role {needs} or a higher one; yours is {has}")
            }
            GatewayError::TokenForbids(why) => f.write_str(why),
            GatewayError::TurnInProgress => f.write_str("a turn of this session is in progress: stop it or steer it"),
            GatewayError::NoActiveTurn => f.write_str("no turn of this session is in progress"),
            GatewayError::AgentUnavailable(why) => f.write_str(why),
            GatewayError::RequestNotFound => {
                f.write_str("no such request is open: it was answered already, or its turn has ended")
            }
            GatewayError::MemberNotFound => f.write_str("the tenant has no such member"),
            GatewayError::LastOwner => {
                f.write_str("the last owner cannot be demoted or removed: make somebody else an owner first")
            }
            GatewayError::AboveOwnRole(own) => {
                write!(f, "your role is {own}: you can neither grant nor take a role above it")
            }
            GatewayError::AgentError(why) => f.write_str(why),
            GatewayError::StorageUnavailable(why) => f.write_str(why),
            GatewayError::TooManySessions { max } => {
                write!(f, "a connection follows at most {max} sessions: leave one first")
            }
            GatewayError::Internal => f.write_str("the node could not do this; its log says why"),
        }
    }
}

impl std::error::Error for GatewayError {}

impl From<CallError> for GatewayError {
    fn from(error: CallError) -> GatewayError {
        match error.kind() {
            Kind::SessionNotFound => GatewayError::SessionNotFound,
            Kind::Forbidden => GatewayError::TokenForbids(error.message()),
            Kind::Storage | Kind::ShuttingDown | Kind::NoRoom => GatewayError::StorageUnavailable(
                "the store cannot answer now: try again, here or at another node".to_owned(),
            ),
            Kind::EntryNotFound
            | Kind::ParentNotFound
            | Kind::InvalidEntryKind
            | Kind::DetailsNotSupported
            | Kind::EmptyBatch
            | Kind::InvalidCursor
            | Kind::InvalidSessionRequest => GatewayError::InvalidMessage(error.message()),
            // Errors of other doors: neither the gate nor a function returns one here.
            Kind::FunctionNotFound
            | Kind::InfoNotFound
            | Kind::EnqueueNotSupported
            | Kind::UnknownAction
            | Kind::TooManyCalls
            | Kind::InvalidPayload
            | Kind::InvalidFrame
            | Kind::ClientTimeout
            | Kind::ClientGone
            | Kind::BindingRefused
            | Kind::ClientFailed
            | Kind::InvalidStreamRequest
            | Kind::Compacted
            | Kind::StreamUnavailable
            | Kind::RouteNotFound
            | Kind::NotOfThisAdapter
            | Kind::InvalidQuery
            | Kind::BodyTooLarge
            | Kind::BodyTimeout
            | Kind::ForeignOrigin
            | Kind::ForeignHost
            | Kind::BadHandshake
            | Kind::HandshakeVersion
            | Kind::TooManyConnections
            | Kind::Unauthenticated
            | Kind::TooManyLogins
            | Kind::OperationRefused => {
                tracing::error!(%error, "the gateway got an error that it does not expect");
                GatewayError::Internal
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_its_code_and_no_session_and_is_not_endless() {
        let error = GatewayError::InvalidMessage("ä".repeat(10_000)).frame();
        let told: Value = serde_json::from_str(&error).unwrap();
        assert_eq!((told["type"].as_str(), told["code"].as_str()), (Some("error"), Some("INVALID_MESSAGE")));
        assert_eq!(told["message"].as_str().unwrap().chars().count(), WORDS_CHARS_MAX);
        assert_eq!(told.as_object().unwrap().len(), 3);
        let limited: Value = serde_json::from_str(&GatewayError::RateLimited { retry_after_ms: 7 }.frame()).unwrap();
        assert_eq!(limited["retryAfterMs"], 7);
    }

    #[test]
    fn what_only_the_operator_can_fix_is_not_told() {
        let secret = CallError::OutcomeUnknown("disk /data/x is full".to_owned());
        let told = GatewayError::from(secret);
        assert_eq!(told.code(), "StorageUnavailable");
        assert!(!told.to_string().contains("/data"));
    }
}
