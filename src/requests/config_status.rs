//! `session::config-status`: the result of the last reload of the configuration. Answered by the node itself.

use std::fmt::Display;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Decision, Done, Operation};

/// Has no fields.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ConfigStatusRequest {}

/// The result of the last reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReloadOutcome {
    /// The node uses the configuration that it read last.
    Applied,
    /// The configuration that was read last cannot be used. The node keeps the one before.
    Rejected,
}

/// The reloads since the node started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ReloadStatus {
    pub last_outcome: ReloadOutcome,
    /// Why the last reload was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Number of rejected reloads since the node started.
    pub rejected_reloads: u64,
}

impl ReloadStatus {
    /// A node does not start with a bad configuration, so the first one counts as applied.
    pub const AT_BOOT: ReloadStatus =
        ReloadStatus { last_outcome: ReloadOutcome::Applied, last_error: None, rejected_reloads: 0 };

    pub fn record<E: Display>(&mut self, result: &Result<(), E>) {
        match result {
            Ok(()) => {
                self.last_outcome = ReloadOutcome::Applied;
                self.last_error = None;
            }
            Err(why) => {
                self.last_outcome = ReloadOutcome::Rejected;
                self.last_error = Some(why.to_string());
                self.rejected_reloads += 1;
            }
        }
    }
}

impl Operation for ConfigStatusRequest {
    const ID: &'static str = "session::config-status";
    const DESCRIPTION: &'static str =
        "Show the result of the last reload of the configuration, and the number of rejected reloads.";
    type Response = ReloadStatus;

    fn decision(self) -> Decision {
        Decision::ConfigStatus
    }

    fn response(done: Done) -> Option<ReloadStatus> {
        let Done::Status(status) = done else { return None };
        Some(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_reload_clears_the_error_but_not_the_count() {
        let mut status = ReloadStatus::AT_BOOT;
        status.record(&Err("data_dir is gone".to_owned()));
        assert_eq!(status.last_outcome, ReloadOutcome::Rejected);
        assert_eq!(status.last_error.as_deref(), Some("data_dir is gone"));
        status.record(&Ok::<(), String>(()));
        assert_eq!(
            status,
            ReloadStatus { last_outcome: ReloadOutcome::Applied, last_error: None, rejected_reloads: 1 }
        );
    }
}
