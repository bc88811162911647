//! The state machine: what sessions are and what each command does to them. Pure functions.
//!
//! Owns: the data types (session, entry, message, path, ids), commands, events, refusals, apply, query and the
//! invariants. Reads: the state, through `View`. Never: a clock, randomness, IO, async, a HashMap, another room.
//! The same log gives the same state, answers and events on every replica.

// clippy.toml lists them. Only this room denies them.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod apply;
pub mod beside;
pub mod change;
pub mod command;
pub mod entry;
pub mod event;
pub mod feed_record;
pub mod ids;
pub mod json;
pub mod law;
pub mod level;
pub mod long;
pub mod message;
pub mod model;
pub mod patch;
pub mod path;
pub mod query;
pub mod refusal;
pub mod scope;
pub mod scoped_view;
pub mod section;
pub mod session;
pub mod stamp;
pub mod tagged;
pub mod gateway;
pub mod toolpath;
pub mod turn;
pub mod view;

pub use apply::apply;
pub use command::{Answer, Command, Outcome, Stamped};
pub use query::{Found, Query, query};
