//! The machine: what sessions are and what may happen to them. PURE.
//!
//! Owns: nouns (session, entry, message, path, ids), commands, events, refusals, apply, query and the laws.
//! Reads: the state, through `View`. Never: a clock, randomness, IO, async, a HashMap, another room.
//! The same log gives the same state, answers and events on every machine.

// The lists are in clippy.toml; the rest of the crate allows what is denied here.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod apply;
pub mod command;
pub mod entry;
pub mod event;
pub mod feed;
pub mod ids;
pub mod json;
pub mod law;
pub mod message;
pub mod patch;
pub mod path;
pub mod query;
pub mod refusal;
pub mod session;
pub mod stamp;
pub mod view;

pub use apply::apply;
pub use command::{Answer, Command, Outcome, Stamped};
pub use query::{Found, Query, query};
