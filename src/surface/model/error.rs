//! Owns: the errors of this door, and how HTTP and the WebSocket spell them. A session that a caller may not see has the
//! answer of one that is not there.

use std::fmt;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::surface::errors::{CallError, Kind};
use crate::surface::http::HttpError;

/// Why a request is refused or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelError {
    NoRoute {
        method: String,
        path: String,
    },
    /// The path has an escape that cannot be read.
    Path,
    /// The query has an escape that cannot be read.
    Query,
    /// A field of the query or of the body is wrong.
    Invalid(String),
    /// No token, or one that nobody knows.
    Unauthorized(String),
    /// The token belongs to another agent.
    OtherAgent,
    SessionNotFound(String),
    /// The session's state does not allow it.
    Conflict(String),
    /// The body could not be read.
    Body(HttpError),
    /// It cannot be served now; a retry may succeed.
    Unavailable(String),
    Failed(String),
    NotSubscribed(String),
}

impl ModelError {
    /// The error of a call of the node's functions. `session_id` is what the client calls the session.
    pub fn of_call(error: CallError, session_id: &str) -> ModelError {
        match &error {
            CallError::Refused(_) | CallError::RefusedByMain { .. } => match error.kind() == Kind::SessionNotFound {
                true => ModelError::SessionNotFound(session_id.to_owned()),
                false => ModelError::Invalid(error.message()),
            },
            CallError::Unavailable(_) | CallError::ShuttingDown | CallError::TooManyCalls { .. } => {
                ModelError::Unavailable(error.message())
            }
            CallError::OutcomeUnknown(_)
            | CallError::FunctionUnknown(_)
            | CallError::InfoUnknown(_)
            | CallError::EnqueueNotSupported
            | CallError::UnknownAction
            | CallError::InvalidPayload(_)
            | CallError::InvalidFrame(_)
            | CallError::ClientTimeout(_)
            | CallError::ClientGone
            | CallError::Forbidden(_)
            | CallError::Binding(_)
            | CallError::Client(_) => ModelError::Failed(error.message()),
        }
    }

    pub fn status(&self) -> StatusCode {
        match self {
            ModelError::NoRoute { .. } | ModelError::SessionNotFound(_) => StatusCode::NOT_FOUND,
            ModelError::Path | ModelError::Query | ModelError::Invalid(_) | ModelError::NotSubscribed(_) => {
                StatusCode::BAD_REQUEST
            }
            ModelError::Unauthorized(_) | ModelError::OtherAgent => StatusCode::UNAUTHORIZED,
            ModelError::Conflict(_) => StatusCode::CONFLICT,
            ModelError::Body(error) => {
                StatusCode::from_u16(error.kind().row().http_status).unwrap_or(StatusCode::BAD_REQUEST)
            }
            ModelError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            ModelError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub fn code(&self) -> &'static str {
        match self.status().as_u16() {
            401 => "unauthorized",
            404 => "not_found",
            409 => "conflict",
            503 => "unavailable",
            500 => "internal_error",
            _wrong_request => "validation_error",
        }
    }

    /// The error of a WebSocket response.
    pub fn socket_code(&self) -> &'static str {
        match self {
            ModelError::SessionNotFound(_) => "SESSION_NOT_FOUND",
            ModelError::NotSubscribed(_) => "NOT_SUBSCRIBED",
            ModelError::NoRoute { .. } | ModelError::Path | ModelError::Query | ModelError::Invalid(_) => {
                "INVALID_PARAMS"
            }
            ModelError::Body(_)
            | ModelError::Unauthorized(_)
            | ModelError::OtherAgent
            | ModelError::Conflict(_)
            | ModelError::Unavailable(_)
            | ModelError::Failed(_) => "INTERNAL_ERROR",
        }
    }

    pub fn json(&self) -> Value {
        json!({ "error": { "code": self.code(), "message": self.to_string() } })
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelError::NoRoute { method, path } => write!(f, "nothing at {method} {path}"),
            ModelError::Path => f.write_str("the path has an escape that is not UTF-8: encode ids once"),
            ModelError::Query => f.write_str("the query has an escape that is not UTF-8"),
            ModelError::Invalid(why)
            | ModelError::Unauthorized(why)
            | ModelError::Conflict(why)
            | ModelError::Unavailable(why)
            | ModelError::Failed(why) => f.write_str(why),
            ModelError::OtherAgent => f.write_str("this token belongs to another agent"),
            ModelError::SessionNotFound(id) => write!(f, "Session not found: {id}"),
            ModelError::Body(error) => error.fmt(f),
            ModelError::NotSubscribed(id) => write!(f, "this connection is not subscribed to {id}"),
        }
    }
}

impl std::error::Error for ModelError {}

impl IntoResponse for ModelError {
    fn into_response(self) -> Response {
        json_response(self.status(), self.json().to_string())
    }
}

pub fn json_response(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::ids::SessionId;
    use crate::machine::refusal::Refusal;

    #[test]
    fn a_refusal_of_the_main_has_the_answer_of_one_made_here() {
        for refusal in [Refusal::SessionUnknown(SessionId::from("main/cli:a")), Refusal::EmptyBatch] {
            let there = CallError::RefusedByMain { code: refusal.code(), message: refusal.to_string() };
            let here = CallError::Refused(refusal);
            assert_eq!(ModelError::of_call(there, "cli:a"), ModelError::of_call(here, "cli:a"));
        }
        let unknown = CallError::RefusedByMain { code: "session/not_found", message: "no session".to_owned() };
        assert_eq!(ModelError::of_call(unknown, "cli:a").status(), StatusCode::NOT_FOUND);
    }
}
