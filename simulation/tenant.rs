//! Owns: who the callers of a run are: their tokens, and the scopes that the tokens have.
//! Never: what a caller may do; the nodes read that from `simulation/tokens`, as they would in production.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use session_manager::machine::scope::Scope;

/// A caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenant {
    /// Sees everything, the raw store too.
    Everyone,
    A,
    B,
}

impl Tenant {
    /// Those with a scope.
    pub const SCOPED: [Tenant; 2] = [Tenant::A, Tenant::B];

    /// The token that it presents. The file of the nodes has the hash of it.
    pub fn token(self) -> &'static str {
        match self {
            Tenant::Everyone => "simulated-everyone",
            Tenant::A => "simulated-a",
            Tenant::B => "simulated-b",
        }
    }

    /// The metadata `owner` of its sessions.
    pub fn owner(self) -> Option<&'static str> {
        match self {
            Tenant::Everyone => None,
            Tenant::A => Some("a"),
            Tenant::B => Some("b"),
        }
    }

    pub fn scope(self) -> Option<Arc<Scope>> {
        self.owner().map(|owner| Arc::new(Scope::new(json!({ "owner": owner })).expect("a scope")))
    }
}

/// The token file of every node and of the bridge.
pub fn token_file() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/simulation/tokens"))
}
