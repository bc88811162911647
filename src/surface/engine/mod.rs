//! This node as a worker of an iii engine.
//!
//! Replicas of a cluster may share one engine. Only one of them, the leader, serves it at a time:
//! 1. Every replica keeps a control connection, which watches the engine's workers and the settings (`control`).
//! 2. A replica that becomes leader writes a lock entry into the replicated state and waits until no other replica has
//!    one (`engine_lock`, `takeover`). Entries of replicas that left the engine, or do not answer for 5 s, are removed.
//! 3. It also waits until the previous replica's functions are gone from the engine.
//! 4. It reads the final delivery cursor of the previous replica, and the start position of each binding
//!    (`delivery_cursors`).
//! 5. It opens a second connection and registers our trigger types, then our functions (`registration`, `functions`).
//! 6. The engine sends every existing binding; each resumes after the cursor or after its own start position, whichever
//!    is later (`subscribers`).
//! 7. Events leave through a bounded queue in batches, and an ack probe after each batch confirms that the engine has
//!    read it (`delivery_queue`).
//! 8. Confirmed positions move the cursor, which is written once a second or every 1,024 deliveries.
//! 9. A replica that stops serving removes its bindings, waits for the last confirmation and writes the final cursor.
//! 10. Only then it unregisters its functions and removes its lock entry, which lets the next replica continue.
//!
//! Owns: everything this node says to an engine. `serving` runs the steps; only `sdk` names the SDK; `configuration` is
//! our entry in the engine's configuration worker. Reads: the node's functions (`Service`), the feed, the replicated
//! cursors. Never: the state, files, settings other than its own.

pub mod error;
pub mod sdk;
pub mod control;
pub mod configuration;
pub mod trigger_types;
pub mod functions;
pub mod delivery_cursors;
pub mod engine_lock;
pub mod delivery_queue;
pub mod subscribers;
pub mod registration;
pub mod takeover;
pub mod serving;

use std::fmt;

/// How a node connects to an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSettings {
    pub url: String,
    /// The namespace of our functions; `None` for the engine's default.
    pub namespace: Option<String>,
    /// Must be unique among the workers of a namespace.
    pub name: String,
    /// The id of this replica. It is part of the cursor key of an engine that the replica does not share.
    pub node_id: u64,
    pub sharing: Sharing,
}

/// Whether other replicas of the cluster use the same engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Replicas share the engine: only the leader serves.
    Shared,
    /// Each replica has its own engine and serves it, leader or not.
    Own,
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sharing::Shared => "shared",
            Sharing::Own => "own",
        })
    }
}
