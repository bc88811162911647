//! The doors in.
//!
//! Owns: the embedded iii bus endpoint and HTTP on one client port; the worker on an iii engine; `calls`, which
//! carries a request from its bytes to its response; the one table that maps every outcome to every wire.
//! May touch: requests, proposal, events (bindings). Never: state.

pub mod endpoint;
pub mod preface;
pub mod http;
pub mod subscribe;
pub mod sse;
pub mod watch;
pub mod bus;
pub mod calls;
pub mod errors;
pub mod sidecar;
pub mod subscription;
pub mod worker;

use std::fmt;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;

/// The SDKs' own default.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The functions of this node, callable by name with a JSON body. Every door calls through this.
pub trait Service: Send + Sync + 'static {
    /// `None`: no such function here. Aliases of older versions count as known. The sidecar is the metadata that
    /// came beside the body, as JSON text.
    fn call<'a>(
        &'a self,
        function_id: &'a str,
        body: &'a str,
        sidecar: Option<&'a str>,
        deadline: Instant,
    ) -> Option<BoxFuture<'a, Result<String, CallError>>>;

    /// What `engine::functions::list` and `engine::functions::info` tell about this node's functions.
    fn functions(&self) -> Vec<DescribedFunction>;

    /// Further names a function answers to.
    fn aliases(&self, _function_id: &str) -> Vec<String> {
        Vec::new()
    }

    /// How long a call may take when its door sets no deadline of its own.
    fn call_timeout(&self) -> Duration {
        CALL_TIMEOUT
    }
}

/// A function as clients may ask about it.
#[derive(Debug, Clone)]
pub struct DescribedFunction {
    pub id: String,
    pub description: String,
    pub internal: bool,
    pub request_schema: serde_json::Value,
    pub response_schema: serde_json::Value,
}

/// A failed call: a stable code of the closed set, and words. Prints as `code: message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallError {
    pub code: &'static str,
    pub message: String,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for CallError {}
