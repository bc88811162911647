//! The replicated log: openraft and everything it needs from this project.
//!
//! Owns: openraft's types, the log and the state machine it works on, the calls between nodes, one attempt at a
//! mutation on the leader (`leader_write.rs`) or through it (`forward_batch.rs`), the read index, and `apply.rs`, the
//! one place that says apply → commit → reply → publish.
//! May touch: machine, storage, events. Never: stamp anything outside of `leader_write.rs`, or parse a request.
//!
//! No layout of openraft is written to disk or wire: openraft's layouts change between versions, ours must not.

pub mod types;
pub mod checkpoint;
pub mod chain;
pub mod apply;
pub mod threads;
pub mod cluster_clock;
pub mod log_store;
pub mod state_machine;
pub mod identity;
pub mod local_node;
pub mod channels;
pub mod self_report;
pub mod wire;
mod pieces;
mod entry_traces;
mod held_answers;
mod held_notices;
mod failure;
mod append_stream;
pub mod network;
pub mod sender;
pub mod snapshot_transfer;
pub mod leader;
pub mod raise;
pub mod read_index;
pub mod attempt;
pub mod leader_write;
mod before_commit;
pub mod forward_batch;
pub mod peer_service;
pub mod client_urls;
pub mod membership;
pub mod taking_in;
pub mod autopilot;
pub mod formation;
pub mod backup;
pub mod new_cluster;
pub mod admin_service;
mod refusals;
pub mod listener;
pub mod recover;
pub mod housekeeping;
pub mod pace;
pub mod disk_space;
pub mod elections;
pub mod figures;
pub mod replica;
#[cfg(test)]
mod suite_test;

/// The messages of peers and operators, for tests that act as one.
#[cfg(test)]
pub use crate::proto::{admin as admin_messages, peer as peer_messages};

/// The id of the only Raft group. Positions and files name their group, so that sessions can be spread over more later.
pub const RAFT_GROUP: u32 = 0;
