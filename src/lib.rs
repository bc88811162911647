//! session-manager: a replicated, durable, reactive store of branching conversations.
//!
//! The rooms stand in the order in which a mutation walks through them. `architecture/README.md` is the tour.
//!
//! ```text
//! bytes → surface → requests → proposal → replication → machine → storage → (reply) → events → subscribers
//! ```

pub mod cli;
pub mod surface;
pub mod requests;
pub mod proposal;
pub mod replication;
pub mod machine;
pub mod storage;
pub mod events;
pub mod config;
pub mod node;
pub mod sockets;

pub mod proto;
pub mod observe;
pub mod planted;
