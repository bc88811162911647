//! `session::identity::set-role`: sets what a user is at an agent.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{answered, propose};
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::model::access::Role;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct SetRoleRequest {
    pub agent_id: String,
    pub user_id: String,
    pub role: Option<Role>,
}

impl Mutation for SetRoleRequest {
    const ID: &'static str = "session::identity::set-role";
    const DESCRIPTION: &'static str = "Set the role of a user at an agent: owner, user or guest; null takes it away.";
    type Response = Json;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let SetRoleRequest { agent_id, user_id, role } = self;
        checks::new_id("agent_id", &agent_id)?;
        checks::new_id("user_id", &user_id)?;
        Ok(propose(ModelCommand::SetRole { agent_id, user_id, role }))
    }

    fn response(answer: Answer) -> Option<Json> {
        answered(answer)
    }
}
