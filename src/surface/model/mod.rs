//! The door of the session model: `/api/agents/<agent>/…` over HTTP, server-sent events and WebSocket.
//!
//! Owns: its routes (`route`), who calls (`login`), its form of errors (`error`), calls into the functions of the node
//! (`desk`), the requests (`answer`), streams of a session's events (`follow`, `stream`) and its WebSocket (`socket`).
//! Reads: the functions of the session model, through the gate. Never: state, or what a command does.

pub mod answer;
mod backlog;
mod desk;
mod error;
mod follow;
mod login;
mod route;
mod socket;
mod stream;

pub use answer::{answer, upgrade};
pub use route::owns;
