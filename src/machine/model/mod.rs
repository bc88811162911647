//! The session model: sessions as CLIs, web chats, channel adapters and schedules use them.
//!
//! Owns: the profile of a session, people and their roles, group routing, checkpoints, the stream of a session's events, and
//! what each command of the model does to them. Pure, as the rest of the machine.

pub mod access;
pub mod checkpoint;
pub(super) mod checkpoints;
pub mod command;
pub mod filter;
pub(super) mod follow;
pub mod history;
pub mod identity;
pub mod manage;
pub mod names;
pub mod open;
pub(super) mod overdue;
pub mod people;
pub mod post;
pub mod profile;
pub mod query;
pub mod records;
pub mod routing;
pub(super) mod scene;
pub mod source;
pub mod spelling;
pub mod texts;
pub(super) mod timers;
pub(super) mod turns;

pub use command::{ModelCommand, apply};
pub use follow::keep_mark;
pub use manage::forget;
pub use query::{ModelQuery, query};
