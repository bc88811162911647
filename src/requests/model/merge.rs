//! `session::identity::merge`: one user takes over another.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{answered, propose};
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct MergeRequest {
    pub user_id: String,
    pub into: String,
}

impl Mutation for MergeRequest {
    const ID: &'static str = "session::identity::merge";
    const DESCRIPTION: &'static str =
        "Merge a user into another: identities, sessions, and roles that the other does not have.";
    type Response = Json;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let MergeRequest { user_id, into } = self;
        checks::new_id("user_id", &user_id)?;
        checks::new_id("into", &into)?;
        Ok(propose(ModelCommand::Merge { user_id, into }))
    }

    fn response(answer: Answer) -> Option<Json> {
        answered(answer)
    }
}
