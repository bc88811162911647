//! `session::on-config-change`: reloads the configuration. Executed by the node itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Decision, Done, Operation};

/// The payload of a `configuration` trigger. The node ignores it and reads the configuration itself.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct OnConfigChangeEvent {
    /// Which configuration changed.
    #[serde(default)]
    #[allow(dead_code, reason = "part of the published schema; the node reads the configuration itself")]
    pub id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct OnConfigChangeResponse {
    pub ok: bool,
}

impl Operation for OnConfigChangeEvent {
    const ID: &'static str = "session::on-config-change";
    const DESCRIPTION: &'static str = "Internal: reload the configuration; session::config-status shows the result.";
    const INTERNAL: bool = true;
    const WRITES: bool = true;
    type Response = OnConfigChangeResponse;

    fn decision(self) -> Decision {
        Decision::ReloadConfig
    }

    fn response(done: Done) -> Option<OnConfigChangeResponse> {
        let Done::Reloaded { ok } = done else { return None };
        Some(OnConfigChangeResponse { ok })
    }
}
