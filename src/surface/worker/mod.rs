//! A worker on an iii engine.
//!
//! Owns: how this node attaches to an engine: the SDK (`sdk`), the connection every replica keeps (`control`), who of several
//! replicas serves (`serving`, `claim`), functions (`functions`), trigger types and bindings (`types`, `subscribers`), events on
//! their way (`pump`) and how far they came (`ledger`), our entry in the configuration worker (`configuration`).
//! May touch: the node's functions (`Service`), the feed, the replicated cursors. Never: state, files, settings other than its own.

pub mod sdk;
pub mod control;
pub mod configuration;
pub mod types;
pub mod functions;
pub mod ledger;
pub mod claim;
pub mod pump;
pub mod subscribers;
pub mod serving;

use std::fmt;

/// How a node attaches to an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSettings {
    pub url: String,
    /// Where our functions are registered; the engine's default if absent.
    pub namespace: Option<String>,
    /// No two workers of a namespace may have the same name.
    pub name: String,
    /// Which replica this is: an engine of its own is known by it.
    pub node_id: u64,
    pub sharing: Sharing,
}

/// Who else of the cluster is on the same engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Replicas share the engine: the leader serves, the others stand by.
    Shared,
    /// The engine is this replica's own: it serves whether it leads or not.
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
