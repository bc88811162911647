//! `session::checkpoint::result`: a worker writes back what it learned.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{answered, propose};
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct CheckpointResultRequest {
    pub checkpoint_id: String,
    pub success: bool,
    pub summary: Option<String>,
    /// Replaces the working memory as a whole.
    pub working_memory: Option<String>,
    pub description: Option<String>,
}

impl Mutation for CheckpointResultRequest {
    const ID: &'static str = "session::checkpoint::result";
    const DESCRIPTION: &'static str = "End a checkpoint; a success moves the cursor and may write working memory and description, a failure changes neither.";
    type Response = Json;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let CheckpointResultRequest { checkpoint_id, success, summary, working_memory, description } = self;
        checks::new_id("checkpoint_id", &checkpoint_id)?;
        checks::text("summary", summary.as_deref())?;
        checks::text("working_memory", working_memory.as_deref())?;
        checks::text("description", description.as_deref())?;
        Ok(propose(ModelCommand::EndCheckpoint { checkpoint_id, success, summary, working_memory, description }))
    }

    fn response(answer: Answer) -> Option<Json> {
        answered(answer)
    }
}
