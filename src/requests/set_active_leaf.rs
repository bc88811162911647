//! `session::set-active-leaf`: switches to another branch.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Mutation, checks};
use crate::machine::apply::set_active_leaf::SetActiveLeaf;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct SetActiveLeafRequest {
    pub session_id: SessionId,
    /// The new end of the transcript. The next append becomes its child.
    pub entry_id: EntryId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SetActiveLeafResponse {
    pub active_leaf: EntryId,
}

impl Mutation for SetActiveLeafRequest {
    const ID: &'static str = "session::set-active-leaf";
    const DESCRIPTION: &'static str =
        "Make the transcript end at another entry; the branch left behind stays readable. Fires nothing.";
    type Response = SetActiveLeafResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let SetActiveLeafRequest { session_id, entry_id } = self;
        checks::id("session_id", session_id.as_str())?;
        checks::id("entry_id", entry_id.as_str())?;
        Ok(Command::SetActiveLeaf(SetActiveLeaf { session_id, entry_id }))
    }

    fn response(answer: Answer) -> Option<SetActiveLeafResponse> {
        let Answer::LeafSet { entry_id } = answer else { return None };
        Some(SetActiveLeafResponse { active_leaf: entry_id })
    }
}
