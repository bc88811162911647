//! Owns: the settings of the session model, their defaults and bounds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ConfigError;
use crate::machine::model::access::AgentAccess;
use crate::machine::model::profile::Terms;

/// A year.
const SECS_MAX: u64 = 365 * 24 * 3600;
const COUNT_MAX: u64 = 1_000_000;

/// The numbers of the session model. A call carries those of the node it comes through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionModelConfig {
    /// Turns after which a checkpoint is made; 0 for never.
    #[schemars(range(max = 1_000_000))]
    pub checkpoint_turns: u64,
    /// Messages without a turn after which a checkpoint is made; 0 for never.
    #[schemars(range(max = 1_000_000))]
    pub checkpoint_passive: u64,
    /// Seconds after a turn until a checkpoint is made, if nothing comes; 0 for never.
    #[schemars(range(max = 31_536_000))]
    pub idle_secs: u64,
    /// Seconds without activity after which a session becomes inactive; 0 for never.
    #[schemars(range(max = 31_536_000))]
    pub inactive_secs: u64,
    /// Whether every message of an owner in a group asks for a turn.
    pub group_owner_always: bool,
    /// Who may talk to agents without a role: public, protected or private.
    pub access: AgentAccess,
}

impl Default for SessionModelConfig {
    fn default() -> SessionModelConfig {
        let terms = Terms::default();
        SessionModelConfig {
            checkpoint_turns: terms.checkpoint_turns,
            checkpoint_passive: terms.checkpoint_passive,
            idle_secs: (terms.idle_ms / 1000) as u64,
            inactive_secs: (terms.inactive_ms / 1000) as u64,
            group_owner_always: terms.group_owner_always,
            access: terms.access,
        }
    }
}

impl SessionModelConfig {
    pub fn terms(&self) -> Terms {
        Terms {
            checkpoint_turns: self.checkpoint_turns,
            checkpoint_passive: self.checkpoint_passive,
            idle_ms: self.idle_secs as i64 * 1000,
            inactive_ms: self.inactive_secs as i64 * 1000,
            group_owner_always: self.group_owner_always,
            access: self.access,
        }
    }

    pub fn check(&self) -> Result<(), ConfigError> {
        for (key, value, max, why) in [
            ("session_model.checkpoint_turns", self.checkpoint_turns, COUNT_MAX, "0 is never"),
            ("session_model.checkpoint_passive", self.checkpoint_passive, COUNT_MAX, "0 is never"),
            ("session_model.idle_secs", self.idle_secs, SECS_MAX, "0 is never, and nobody waits longer than a year"),
            ("session_model.inactive_secs", self.inactive_secs, SECS_MAX, "0 is never, and a year is long enough"),
        ] {
            if value > max {
                return Err(ConfigError::OutOfBounds { key, value, min: 0, max, why });
            }
        }
        Ok(())
    }
}
