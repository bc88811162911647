//! One log, many nodes: openraft and everything it needs to know of us.
//!
//! Owns: the translation between openraft's types and ours, the log and the state machine it works on, the way to
//! peers, and `apply.rs`, the one place that says apply → commit → reply → publish.
//! May touch: machine, storage, events. Never: mint time or ids, parse a request.
//!
//! Nothing of openraft is written to disk or wire: its layouts change from version to version, ours may not.

pub mod types;
pub mod mark;
pub mod chain;
pub mod apply;
pub mod log_store;
pub mod state_machine;
pub mod identity;
pub mod hop;
pub mod channels;
pub mod wire;
mod append_stream;
pub mod network;
pub mod snapshot_transfer;
pub mod leader;
pub mod reads;
pub mod forward;
pub mod peer_service;
pub mod membership;
pub mod admin_service;
pub mod listener;
pub mod recover;
pub mod housekeeping;
pub mod replica;
#[cfg(test)]
mod suite_test;

/// What a peer or an operator says, for tests that speak as one.
#[cfg(test)]
pub use crate::proto::{admin as admin_words, peer as peer_words};

/// The only Raft group so far. Sessions may be spread over many groups later; positions and files name theirs already.
pub const GROUP: u32 = 0;
