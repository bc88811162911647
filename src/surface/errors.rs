//! Owns: the table of errors. Every error of every room that can reach a client has one row, which says how each wire
//! spells it.
//! Reads: the error types of all rooms. Never: decide what went wrong, or choose a status by the text of an error.

use std::fmt;

use super::http::HttpError;
use super::socket::handshake::HandshakeError;
use super::subscribe::StreamError;
use super::subscription::BindError;
use crate::access::{Action, Identity, LoginError};
use crate::events::errors::ResumeError;
use crate::machine::refusal::Refusal;
use crate::proposal::AdapterError;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// The request or the state does not allow it. Nothing changed, and a retry gives the same answer.
    Refused(Refusal),
    /// The main of this bridge refused it, with a code of the same closed set.
    RefusedByMain {
        code: &'static str,
        message: String,
    },
    /// It cannot be served now. Nothing changed, and a retry may succeed.
    Unavailable(String),
    /// The mutation may or may not have happened.
    OutcomeUnknown(String),
    /// No function of this name is registered. Holds the name.
    FunctionUnknown(String),
    /// `engine::functions::info` was called for a function that is not registered. Holds the name.
    InfoUnknown(String),
    /// The port through which the call came is closing.
    ShuttingDown,
    /// Frames of type `enqueue`: this bus has no queues.
    EnqueueNotSupported,
    UnknownAction,
    TooManyCalls {
        max: usize,
    },
    InvalidPayload(String),
    /// A frame lacks a field. Holds what is missing.
    InvalidFrame(String),
    /// Another client serves the function and did not answer in time. Holds the name of the function.
    ClientTimeout(String),
    /// The client that served the call disconnected before it answered.
    ClientGone,
    /// The caller's role does not allow it. Holds the sentence for the caller.
    Forbidden(String),
    /// A binding was refused.
    Binding(BindError),
    /// The client that serves the function answered with this error (JSON text), which is forwarded unchanged.
    Client(String),
}

impl CallError {
    /// A call that arrives while its port closes. Functions of this node fail with a code of their closed set.
    pub fn shutting_down(function: &str) -> CallError {
        match function.starts_with("session::") {
            true => CallError::Unavailable(SHUTTING_DOWN.to_owned()),
            false => CallError::ShuttingDown,
        }
    }

    /// The role matrix does not allow a caller to do this.
    pub fn forbidden(identity: &Identity, action: Action) -> CallError {
        let Identity { name, role, scope, .. } = identity;
        let scoped = if scope.is_some() { ", within a scope," } else { "" };
        CallError::Forbidden(format!("{name:?} with the role {role}{scoped} may not use {}", action.covers()))
    }

    /// The sentence without the code.
    pub fn message(&self) -> String {
        match self {
            CallError::Refused(refusal) => refusal.to_string(),
            CallError::RefusedByMain { message, .. } => message.clone(),
            CallError::Unavailable(why)
            | CallError::InvalidPayload(why)
            | CallError::InvalidFrame(why)
            | CallError::Forbidden(why) => why.clone(),
            CallError::OutcomeUnknown(why) => format!("outcome unknown: {why}"),
            CallError::FunctionUnknown(id) | CallError::InfoUnknown(id) => {
                format!("function `{id}` is not registered on this bus")
            }
            CallError::ShuttingDown => SHUTTING_DOWN.to_owned(),
            CallError::EnqueueNotSupported => {
                "this bus has no queues: call without an action, or with the action `void`".to_owned()
            }
            CallError::UnknownAction => "the field `action` must be of type void".to_owned(),
            CallError::TooManyCalls { max } => {
                format!("{max} calls of this client are in flight; wait for some to finish")
            }
            CallError::ClientTimeout(id) => format!("`{id}` did not answer in time"),
            CallError::ClientGone => "the worker that served the call disconnected".to_owned(),
            CallError::Binding(error) => error.to_string(),
            CallError::Client(error) => error.clone(),
        }
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        self.kind().row().code
    }

    /// The error object of a bus frame. SDKs look for the code of a session function inside the message.
    pub fn bus(&self) -> BusError {
        let (row, message) = (self.kind().row(), self.message());
        match row.bus {
            OnBus::Handler => {
                BusError { code: "invocation_failed", message: format!("handler error: {}: {message}", row.code) }
            }
            OnBus::Code => BusError { code: row.code, message },
        }
    }

    /// The error object of a bus frame as JSON text.
    pub fn print_for_bus(&self) -> String {
        match self {
            CallError::Client(error) => error.clone(),
            other => {
                let BusError { code, message } = other.bus();
                serde_json::json!({ "code": code, "message": message }).to_string()
            }
        }
    }
}

const SHUTTING_DOWN: &str = "this node is shutting down; reconnect and try again";

impl fmt::Display for CallError {
    /// `code: message`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code(), self.message())
    }
}

impl std::error::Error for CallError {}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> CallError {
        CallError::Refused(refusal)
    }
}

impl From<AdapterError> for CallError {
    fn from(undone: AdapterError) -> CallError {
        match undone {
            AdapterError::Refused(refusal) => CallError::Refused(refusal),
            AdapterError::RefusedByMain { code, message } => CallError::RefusedByMain { code, message },
            AdapterError::Unavailable(why) => CallError::Unavailable(why),
            AdapterError::OutcomeUnknown(why) => CallError::OutcomeUnknown(why),
        }
    }
}

/// An error object of the bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusError {
    pub code: &'static str,
    pub message: String,
}

/// The rows of the table: what went wrong, as far as a client can tell errors apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    SessionNotFound,
    EntryNotFound,
    ParentNotFound,
    InvalidEntryKind,
    DetailsNotSupported,
    EmptyBatch,
    InvalidCursor,
    InvalidSessionRequest,
    Storage,
    FunctionNotFound,
    InfoNotFound,
    ShuttingDown,
    EnqueueNotSupported,
    UnknownAction,
    TooManyCalls,
    InvalidPayload,
    InvalidFrame,
    ClientTimeout,
    ClientGone,
    BindingRefused,
    ClientFailed,
    InvalidStreamRequest,
    Compacted,
    StreamUnavailable,
    RouteNotFound,
    NotOfThisAdapter,
    InvalidQuery,
    BodyTooLarge,
    BodyTimeout,
    ForeignOrigin,
    ForeignHost,
    NoRoom,
    BadHandshake,
    HandshakeVersion,
    TooManyConnections,
    Unauthenticated,
    TooManyLogins,
    Forbidden,
    OperationRefused,
}

/// How one kind of error looks on every wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The code in an HTTP body.
    pub code: &'static str,
    pub bus: OnBus,
    pub http_status: u16,
    pub grpc: tonic::Code,
    /// The event name on an open stream of server-sent events. Without one, the request is refused with the HTTP status
    /// before the stream starts.
    pub sse_event: Option<&'static str>,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}

/// How a bus frame spells an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBus {
    /// As the error of a function handler: code `invocation_failed`, message `handler error: <code>: <message>`.
    Handler,
    /// With its own code.
    Code,
}

impl Kind {
    pub fn row(self) -> Row {
        use tonic::Code;
        let row = |code, bus, http_status, grpc, retryable| Row {
            code,
            bus,
            http_status,
            grpc,
            sse_event: (self == Kind::Compacted).then_some("compacted"),
            retryable,
        };
        use OnBus::Code as Own;
        use OnBus::Handler;
        match self {
            Kind::SessionNotFound => row("session/not_found", Handler, 404, Code::NotFound, false),
            Kind::EntryNotFound => row("session/entry_not_found", Handler, 404, Code::NotFound, false),
            Kind::ParentNotFound => row("session/parent_not_found", Handler, 404, Code::NotFound, false),
            Kind::InvalidEntryKind => row("session/invalid_entry_kind", Handler, 422, Code::FailedPrecondition, false),
            Kind::DetailsNotSupported => {
                row("session/details_not_supported", Handler, 422, Code::FailedPrecondition, false)
            }
            Kind::EmptyBatch => row("session/empty_batch", Handler, 400, Code::InvalidArgument, false),
            Kind::InvalidCursor => row("session/invalid_cursor", Handler, 400, Code::InvalidArgument, false),
            Kind::InvalidSessionRequest => row("session/invalid_request", Handler, 400, Code::InvalidArgument, false),
            Kind::Storage => row("session/storage", Handler, 503, Code::Unavailable, true),
            Kind::FunctionNotFound => row("function_not_found", Own, 404, Code::Unimplemented, false),
            Kind::InfoNotFound => row("NOT_FOUND", Own, 404, Code::NotFound, false),
            Kind::ShuttingDown => row("shutting_down", Own, 503, Code::Unavailable, true),
            Kind::EnqueueNotSupported => row("enqueue_not_supported", Own, 400, Code::Unimplemented, false),
            Kind::UnknownAction => row("unknown_action", Own, 400, Code::InvalidArgument, false),
            Kind::TooManyCalls => row("too_many_calls", Own, 429, Code::ResourceExhausted, true),
            Kind::InvalidPayload => row("invalid_payload", Own, 400, Code::InvalidArgument, false),
            Kind::InvalidFrame => row("invalid_frame", Own, 400, Code::InvalidArgument, false),
            Kind::ClientTimeout => row("timeout", Own, 504, Code::DeadlineExceeded, true),
            Kind::ClientGone => row("invocation_stopped", Own, 502, Code::Unavailable, true),
            Kind::BindingRefused => row("trigger_registration_failed", Own, 400, Code::InvalidArgument, false),
            // The code of the client's own error replaces this one.
            Kind::ClientFailed => row("invocation_failed", Own, 502, Code::Unknown, false),
            Kind::InvalidStreamRequest => row("invalid_request", Own, 400, Code::InvalidArgument, false),
            Kind::Compacted => row("compacted", Own, 410, Code::OutOfRange, false),
            Kind::StreamUnavailable => row("unavailable", Own, 503, Code::Unavailable, true),
            Kind::RouteNotFound => row("not_found", Own, 404, Code::Unimplemented, false),
            Kind::NotOfThisAdapter => row("not_implemented", Own, 501, Code::Unimplemented, false),
            Kind::InvalidQuery => row("invalid_query", Own, 400, Code::InvalidArgument, false),
            Kind::BodyTooLarge => row("payload_too_large", Own, 413, Code::ResourceExhausted, false),
            Kind::BodyTimeout => row("timeout", Own, 408, Code::DeadlineExceeded, true),
            Kind::ForeignOrigin => row("foreign_origin", Own, 403, Code::PermissionDenied, false),
            Kind::ForeignHost => row("foreign_host", Own, 421, Code::PermissionDenied, false),
            Kind::NoRoom => row("busy", Own, 503, Code::ResourceExhausted, true),
            Kind::BadHandshake => row("bad_upgrade", Own, 400, Code::InvalidArgument, false),
            Kind::HandshakeVersion => row("bad_upgrade", Own, 426, Code::InvalidArgument, false),
            Kind::TooManyConnections => row("too_many_connections", Own, 503, Code::ResourceExhausted, true),
            Kind::Unauthenticated => row("unauthenticated", Own, 401, Code::Unauthenticated, false),
            Kind::TooManyLogins => row("too_many_logins", Own, 429, Code::ResourceExhausted, true),
            Kind::OperationRefused => row("operation_refused", Own, 409, Code::FailedPrecondition, false),
            Kind::Forbidden => row("forbidden", Own, 403, Code::PermissionDenied, false),
        }
    }

    fn of_refusal(refusal: &Refusal) -> Kind {
        match refusal {
            Refusal::SessionUnknown(_) => Kind::SessionNotFound,
            Refusal::EntryUnknown { .. } => Kind::EntryNotFound,
            Refusal::ParentUnknown { .. } => Kind::ParentNotFound,
            Refusal::NotAMessage(_) => Kind::InvalidEntryKind,
            Refusal::DetailsNotSupported(_) => Kind::DetailsNotSupported,
            Refusal::EmptyBatch => Kind::EmptyBatch,
            Refusal::CursorInvalid(_) => Kind::InvalidCursor,
            Refusal::RequestInvalid(_) => Kind::InvalidSessionRequest,
        }
    }

    /// The kinds of the closed set that functions of this node answer with.
    pub const OF_FUNCTIONS: [Kind; 9] = [
        Kind::SessionNotFound,
        Kind::EntryNotFound,
        Kind::ParentNotFound,
        Kind::InvalidEntryKind,
        Kind::DetailsNotSupported,
        Kind::EmptyBatch,
        Kind::InvalidCursor,
        Kind::InvalidSessionRequest,
        Kind::Storage,
    ];
}

impl CallError {
    pub fn kind(&self) -> Kind {
        match self {
            CallError::Refused(refusal) => Kind::of_refusal(refusal),
            CallError::RefusedByMain { code, .. } => {
                let found = Kind::OF_FUNCTIONS.into_iter().find(|kind| kind.row().code == *code);
                found.unwrap_or(Kind::Storage)
            }
            CallError::Unavailable(_) | CallError::OutcomeUnknown(_) => Kind::Storage,
            CallError::FunctionUnknown(_) => Kind::FunctionNotFound,
            CallError::InfoUnknown(_) => Kind::InfoNotFound,
            CallError::ShuttingDown => Kind::ShuttingDown,
            CallError::EnqueueNotSupported => Kind::EnqueueNotSupported,
            CallError::UnknownAction => Kind::UnknownAction,
            CallError::TooManyCalls { .. } => Kind::TooManyCalls,
            CallError::InvalidPayload(_) => Kind::InvalidPayload,
            CallError::InvalidFrame(_) => Kind::InvalidFrame,
            CallError::ClientTimeout(_) => Kind::ClientTimeout,
            CallError::ClientGone => Kind::ClientGone,
            CallError::Forbidden(_) => Kind::Forbidden,
            CallError::Binding(error) => error.kind(),
            CallError::Client(_) => Kind::ClientFailed,
        }
    }
}

/// How the doors spell a refused login.
pub fn kind_of_login(error: LoginError) -> Kind {
    match error {
        LoginError::Missing | LoginError::Wrong | LoginError::Expired | LoginError::TooLong => Kind::Unauthenticated,
        LoginError::TooMany => Kind::TooManyLogins,
    }
}

impl BindError {
    /// A subscriber on the bus gets one code for every reason.
    pub fn kind(&self) -> Kind {
        match self {
            BindError::Config(_)
            | BindError::TooLong { .. }
            | BindError::Metadata(_)
            | BindError::Filter(_)
            | BindError::ReservedFunction(_)
            | BindError::MetadataNotAnObject
            | BindError::UnknownField(_)
            | BindError::ResumeNotAnObject
            | BindError::AfterNotAString
            | BindError::After(_)
            | BindError::Resume(_)
            | BindError::DataReplaced
            | BindError::Forbidden(_) => Kind::BindingRefused,
        }
    }
}

impl StreamError {
    pub fn kind(&self) -> Kind {
        match self {
            StreamError::Query(_)
            | StreamError::Repeated(_)
            | StreamError::UnknownField(_)
            | StreamError::LastEventIdUnreadable
            | StreamError::SessionEmpty
            | StreamError::UnknownType(_)
            | StreamError::UnknownRole(_)
            | StreamError::TypeWithoutRole(_)
            | StreamError::Metadata(_)
            | StreamError::MetadataTooLarge => Kind::InvalidStreamRequest,
            StreamError::Forbidden(_) => Kind::Forbidden,
            StreamError::Resume { error, .. } => match error {
                ResumeError::Compacted { .. } | ResumeError::NothingStored { .. } => Kind::Compacted,
                ResumeError::Unavailable(_) => Kind::StreamUnavailable,
                ResumeError::Malformed { .. }
                | ResumeError::OtherCluster { .. }
                | ResumeError::OtherGroup { .. }
                | ResumeError::Future { .. } => Kind::InvalidStreamRequest,
            },
        }
    }
}

impl HttpError {
    pub fn kind(&self) -> Kind {
        match self {
            HttpError::NoRoute { .. } | HttpError::NoSocket { .. } => Kind::RouteNotFound,
            HttpError::NoGateway => Kind::NotOfThisAdapter,
            HttpError::Query(_) => Kind::InvalidQuery,
            HttpError::BodyTooLarge { .. } => Kind::BodyTooLarge,
            HttpError::BodyTimeout => Kind::BodyTimeout,
            HttpError::BodyNotText => Kind::InvalidPayload,
            HttpError::ForeignOrigin { .. } => Kind::ForeignOrigin,
            HttpError::ForeignHost { .. } => Kind::ForeignHost,
            HttpError::NoRoom | HttpError::UnreadResponses => Kind::NoRoom,
            HttpError::Login(error) => kind_of_login(*error),
            HttpError::Handshake(HandshakeError::KeyMissing) => Kind::BadHandshake,
            HttpError::Handshake(HandshakeError::Version) => Kind::HandshakeVersion,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::events::errors::FilterError;
    use crate::machine::ids::{EntryId, SessionId};

    fn refusals() -> Vec<Refusal> {
        let (session_id, entry_id) = (SessionId::from("s"), EntryId::from("e"));
        vec![
            Refusal::SessionUnknown(session_id.clone()),
            Refusal::EntryUnknown { session_id: session_id.clone(), entry_id: entry_id.clone() },
            Refusal::ParentUnknown { session_id, parent_id: entry_id.clone() },
            Refusal::NotAMessage(entry_id.clone()),
            Refusal::DetailsNotSupported(entry_id),
            Refusal::EmptyBatch,
            Refusal::CursorInvalid(String::new()),
            Refusal::RequestInvalid(String::new()),
        ]
    }

    /// The exhaustive matches of `kind()` demand a row for every variant. This demands that every refusal and every
    /// outcome of an adapter has the code of the API contract, and that the contract has no further code.
    #[test]
    fn every_outcome_has_a_row_and_every_row_an_outcome() {
        for refusal in refusals() {
            assert_eq!(CallError::from(refusal.clone()).code(), refusal.code());
            let there = AdapterError::RefusedByMain { code: refusal.code(), message: "m".to_owned() };
            assert_eq!(CallError::from(there).code(), refusal.code());
        }
        let refused: BTreeSet<&str> = refusals().iter().map(Refusal::code).collect();
        assert_eq!(refused, Refusal::CODES.into());
        let mut codes = refused;
        for undone in
            [AdapterError::Unavailable("no leader".to_owned()), AdapterError::OutcomeUnknown("deadline".to_owned())]
        {
            codes.insert(CallError::from(undone).code());
        }
        assert_eq!(codes, Kind::OF_FUNCTIONS.iter().map(|kind| kind.row().code).collect());
    }

    #[test]
    fn only_storage_is_worth_a_retry() {
        for kind in Kind::OF_FUNCTIONS {
            let row = kind.row();
            assert_eq!(row.retryable, kind == Kind::Storage);
            assert_eq!(row.http_status >= 500, row.retryable);
            assert_eq!(row.bus, OnBus::Handler);
        }
    }

    #[test]
    fn an_error_reads_the_same_on_every_wire() {
        let error = CallError::from(Refusal::SessionUnknown(SessionId::from("s_1")));
        assert_eq!(error.to_string(), "session/not_found: no session \"s_1\"");
        let bus = error.bus();
        assert_eq!(bus.code, "invocation_failed");
        assert_eq!(bus.message, "handler error: session/not_found: no session \"s_1\"");
        assert_eq!(error.kind().row().http_status, 404);
    }

    #[test]
    fn an_unknown_outcome_says_so() {
        let error = CallError::from(AdapterError::OutcomeUnknown("the leader changed".to_owned()));
        assert_eq!(error.to_string(), "session/storage: outcome unknown: the leader changed");
    }

    #[test]
    fn a_stream_that_cannot_resume_is_refused_by_the_kind_of_the_reason() {
        let (after, oldest) = ("c.0.1.0".to_owned(), "c.0.2.0".to_owned());
        for (error, code, http_status, grpc) in [
            (ResumeError::Compacted { after: after.clone(), oldest }, "compacted", 410, tonic::Code::OutOfRange),
            (ResumeError::NothingStored { after: after.clone() }, "compacted", 410, tonic::Code::OutOfRange),
            (ResumeError::Unavailable("no leader".to_owned()), "unavailable", 503, tonic::Code::Unavailable),
            // Only the variant counts: a text that begins like another error changes nothing.
            (
                ResumeError::Malformed { text: "compacted".to_owned() },
                "invalid_request",
                400,
                tonic::Code::InvalidArgument,
            ),
        ] {
            let row = StreamError::Resume { name: "after", error }.kind().row();
            assert_eq!((row.code, row.http_status, row.grpc), (code, http_status, grpc));
            assert_eq!(row.sse_event, (code == "compacted").then_some("compacted"));
        }
    }

    #[test]
    fn a_refused_binding_has_one_code_on_the_bus() {
        let unknown = FilterError::UnknownTriggerType { trigger_type: "session::x".to_owned() };
        let error = CallError::Binding(BindError::Filter(unknown)).bus();
        assert_eq!(error.code, "trigger_registration_failed");
        assert_eq!(error.message, "trigger type `session::x` is not served here");
    }

    #[test]
    fn the_error_of_another_client_is_forwarded_unchanged() {
        let raw = r#"{"code":"sold_out","message":"none left"}"#;
        assert_eq!(CallError::Client(raw.to_owned()).print_for_bus(), raw);
    }
}
