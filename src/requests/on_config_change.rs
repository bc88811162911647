//! `session::on-config-change`: the configuration changed, read it again. Carried out by the node itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Decision, Done, Operation};

/// What a `configuration` trigger tells. Only a hint: the node reads the configuration itself.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct OnConfigChangeEvent {
    /// Which configuration changed.
    #[serde(default)]
    #[allow(dead_code, reason = "part of the schema; the payload is advice that nobody needs")]
    pub id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct OnConfigChangeResponse {
    pub ok: bool,
}

impl Operation for OnConfigChangeEvent {
    const ID: &'static str = "session::on-config-change";
    const DESCRIPTION: &'static str =
        "Internal: read the configuration again and put it to work; session::config-status tells how that went.";
    const INTERNAL: bool = true;
    type Response = OnConfigChangeResponse;

    fn decision(self) -> Decision {
        Decision::ReloadConfig
    }

    fn response(done: Done) -> Option<OnConfigChangeResponse> {
        let Done::Reloaded { ok } = done else { return None };
        Some(OnConfigChangeResponse { ok })
    }
}
