//! The doors in.
//!
//! Owns: one client port (`endpoint`) with HTTP (`http`), probes (`probes`), metrics (`scrapes`), the figures of the last
//! hour (`history`), the cluster for operators (`cluster`), the description of all functions (`openapi`), the console
//! (`console`, `account`, `feed_status`), server-sent events (`sse`, `event_stream`), the gRPC watch (`watch`) and the
//! embedded iii bus (`bus`); the gateway for front-ends (`gateway`); the session model (`model`); the worker on an iii
//! engine (`engine`); WebSocket plumbing (`socket`); the one way into the functions (`gate`); where a request carries its
//! credentials (`login`) and which web pages may send one (`origin`); the functions over an adapter (`calls`); the queues
//! of expensive calls (`expensive_calls`) and the pace of large messages (`turnstile`); when refused callers come back
//! (`retry_after`), and how late the tasks of the doors run (`lateness`); the table of errors (`errors`).
//! Reads: requests, proposal, events (bindings). Never: state.

pub mod endpoint;
pub mod login;
pub mod origin;
pub mod preface;
pub mod impatient;
pub mod http;
pub mod probes;
pub mod scrapes;
pub mod history;
pub mod cluster;
pub mod feed_status;
pub mod account;
pub mod openapi;
pub mod console;
pub mod socket;
pub mod bus;
pub mod gateway;
pub mod engine;
pub mod subscribe;
pub mod event_stream;
pub mod sse;
pub mod watch;
pub mod model;
pub mod subscription;
pub mod fair_share;
mod retry_after;
mod lateness;
mod slow_calls;
pub mod gate;
pub mod call_figures;
pub mod calls;
pub mod expensive_calls;
mod turnstile;
pub mod sidecar;
pub mod errors;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use errors::CallError;
pub use gate::{Call, Caller, DescribedFunction, Door, Gate, Service};

/// No panic leaves the data behind these locks half changed, so a poisoned lock is still usable.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
