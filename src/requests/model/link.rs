//! `session::identity::link`: makes an identity of a channel lead to a user.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{answered, check_identity, propose};
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct LinkRequest {
    pub channel: String,
    pub channel_user_id: String,
    /// A new user when absent and the identity is not known.
    pub user_id: Option<String>,
}

impl Mutation for LinkRequest {
    const ID: &'static str = "session::identity::link";
    const DESCRIPTION: &'static str =
        "Make an identity of a channel lead to a user: the given one, or a new one if it leads to none.";
    type Response = Json;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let LinkRequest { channel, channel_user_id, user_id } = self;
        check_identity(&channel, &channel_user_id)?;
        user_id.as_deref().map_or(Ok(()), |user_id| checks::new_id("user_id", user_id))?;
        Ok(propose(ModelCommand::Link { channel, channel_user_id, user_id }))
    }

    fn response(answer: Answer) -> Option<Json> {
        answered(answer)
    }
}
