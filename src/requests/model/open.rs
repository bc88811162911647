//! `session::open`: creates a session of the model, or opens it again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CallerRequest, address, answered, propose};
use crate::machine::json::JsonObject;
use crate::machine::model::ModelCommand;
use crate::machine::model::profile::Status;
use crate::machine::model::source::Source;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct OpenRequest {
    /// The agent that the session belongs to.
    pub agent_id: String,
    /// The id of the session at this agent, such as `cli:work`.
    pub session_id: String,
    /// Where the session comes from. It stays what it was when the session was created.
    pub source: Source,
    /// Texts, numbers and booleans. Merged into what is there; new values win.
    pub metadata: Option<JsonObject>,
    /// For the agent. It stays what it was when the session was created.
    pub custom_instruction: Option<String>,
    pub caller: Option<CallerRequest>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct OpenResponse {
    pub session_id: String,
    /// The id of the session for all other functions.
    pub store_session_id: String,
    pub created: bool,
    pub status: Status,
}

impl Mutation for OpenRequest {
    const ID: &'static str = "session::open";
    const DESCRIPTION: &'static str =
        "Create a session of the model or open it again; the source stays, metadata is merged, inactive wakes up.";
    type Response = OpenResponse;

    fn command(self, limits: &Limits) -> Result<Command, Refusal> {
        let OpenRequest { agent_id, session_id, source, metadata, custom_instruction, caller } = self;
        let at = address(agent_id, session_id, caller, limits)?;
        checks::new_id("source.kind", &source.kind)?;
        checks::text("source.platform", source.platform.as_deref())?;
        checks::text("source.triggerId", source.trigger_id.as_deref())?;
        checks::text("custom_instruction", custom_instruction.as_deref())?;
        let metadata = checks::metadata("metadata", metadata)?.unwrap_or_default();
        if let Some((key, _)) = metadata.iter().find(|(_, value)| !is_scalar(value)) {
            return Err(checks::invalid(format!("metadata.{key}: give a text, a number or a boolean")));
        }
        Ok(propose(ModelCommand::Open { at, source, metadata, custom_instruction }))
    }

    fn response(answer: Answer) -> Option<OpenResponse> {
        answered(answer)?.parse().ok()
    }
}

fn is_scalar(value: &Value) -> bool {
    value.is_string() || value.is_number() || value.is_boolean()
}
