//! `session::set-status`: changes the status of a session.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Mutation, checks};
use crate::machine::apply::set_status::SetStatus;
use crate::machine::ids::SessionId;
use crate::machine::refusal::Refusal;
use crate::machine::session::SessionStatus;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct SetStatusRequest {
    pub session_id: SessionId,
    /// The new status.
    pub status: SessionStatus,
    /// A short reason, stored only with the status `error`.
    pub reason: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SetStatusResponse {
    pub status: SessionStatus,
    pub previous_status: SessionStatus,
}

impl Mutation for SetStatusRequest {
    const ID: &'static str = "session::set-status";
    const DESCRIPTION: &'static str =
        "Move a session to another status; fires session::status-changed, and nothing when it is there already.";
    type Response = SetStatusResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let SetStatusRequest { session_id, status, reason } = self;
        checks::id("session_id", session_id.as_str())?;
        checks::text("reason", reason.as_deref())?;
        Ok(Command::SetStatus(SetStatus { session_id, status, reason }))
    }

    fn response(answer: Answer) -> Option<SetStatusResponse> {
        let Answer::StatusSet { status, previous } = answer else { return None };
        Some(SetStatusResponse { status, previous_status: previous })
    }
}
