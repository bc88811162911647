//! `session::identity::unlink`: makes an identity of a channel unknown again.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{answered, check_identity, propose};
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct UnlinkRequest {
    pub channel: String,
    pub channel_user_id: String,
}

impl Mutation for UnlinkRequest {
    const ID: &'static str = "session::identity::unlink";
    const DESCRIPTION: &'static str = "Make an identity of a channel lead to nobody.";
    type Response = Json;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let UnlinkRequest { channel, channel_user_id } = self;
        check_identity(&channel, &channel_user_id)?;
        Ok(propose(ModelCommand::Unlink { channel, channel_user_id }))
    }

    fn response(answer: Answer) -> Option<Json> {
        answered(answer)
    }
}
