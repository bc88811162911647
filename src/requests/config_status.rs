//! `session::config-status`: how the last reload of the configuration went. Answered by the node itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Decision, Done, Operation};

/// Takes nothing.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ConfigStatusRequest {}

/// What the last attempt to reload came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReloadOutcome {
    /// The node runs the configuration it read last.
    Applied,
    /// What was read last could not be put to work: the node runs the one before.
    Rejected,
}

/// How reloads went since the node started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ReloadStatus {
    pub last_outcome: ReloadOutcome,
    /// Why the last reload was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Reloads rejected since the node started; never goes down.
    pub rejected_reloads: u64,
}

impl ReloadStatus {
    /// The configuration a node starts with is an applied one: a bad one is fatal at boot.
    pub const AT_BOOT: ReloadStatus =
        ReloadStatus { last_outcome: ReloadOutcome::Applied, last_error: None, rejected_reloads: 0 };

    pub fn record(&mut self, result: &Result<(), String>) {
        match result {
            Ok(()) => {
                self.last_outcome = ReloadOutcome::Applied;
                self.last_error = None;
            }
            Err(why) => {
                self.last_outcome = ReloadOutcome::Rejected;
                self.last_error = Some(why.clone());
                self.rejected_reloads += 1;
            }
        }
    }
}

impl Operation for ConfigStatusRequest {
    const ID: &'static str = "session::config-status";
    const DESCRIPTION: &'static str =
        "Tell how the last reload of the configuration went, and how many were rejected since the node started.";
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
        status.record(&Ok(()));
        assert_eq!(
            status,
            ReloadStatus { last_outcome: ReloadOutcome::Applied, last_error: None, rejected_reloads: 1 }
        );
    }
}
