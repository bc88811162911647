//! A mixed load through the client port of every node while a test breaks the nodes, and an oracle that checks the
//! result.
//!
//! Owns: the load, the answers that its clients got, and the laws that must hold of them.
//! Never: how nodes are broken, started or found. The load knows addresses, and those may change while it runs.

pub mod caller;
pub mod clients;
pub mod history;
pub mod oracle;

pub use crate::http_call::Outcome;
pub use caller::{Caller, Nodes};
pub use clients::{Load, LoadSettings};
pub use history::History;
pub use oracle::violations;
