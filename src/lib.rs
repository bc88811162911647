//! session-manager: a replicated, durable, reactive store of branching conversations.
//!
//! The modules below are in the order in which a write passes through them. `architecture/README.md` is the guide.
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
pub mod metrics;
pub mod access;
pub mod config;
pub mod node;
pub mod sockets;
pub mod mint;
pub mod blocking;

// Commands that work on running nodes, through the same ports as any client.
pub mod admin;
pub mod dev;
pub mod bench;

pub mod proto;
pub mod observe;
pub mod planted;
