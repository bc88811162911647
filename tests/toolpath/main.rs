//! Sessions as Toolpath documents: nothing is lost on the way out and in, and nothing bad comes in.

mod agents;
mod bad;
mod foreign;
mod schema;
mod sessions;
mod store;
