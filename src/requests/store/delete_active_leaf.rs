//! `session::store::delete-active-leaf`: removes a session's active leaf.

use schemars::JsonSchema;
use serde::Deserialize;

use super::OkResponse;
use crate::machine::apply::store::StoreWrite;
use crate::machine::change::SessionChange;
use crate::machine::ids::SessionId;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct DeleteActiveLeafRequest {
    pub session_id: SessionId,
}

impl Mutation for DeleteActiveLeafRequest {
    const ID: &'static str = "session::store::delete-active-leaf";
    const DESCRIPTION: &'static str = "Internal, for bridges: forget where a session's transcript ends; fires nothing.";
    const INTERNAL: bool = true;
    type Response = OkResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        Ok(Command::Store(StoreWrite::Session(self.session_id, SessionChange::DeleteLeaf)))
    }

    fn response(answer: Answer) -> Option<OkResponse> {
        OkResponse::stored(answer)
    }
}
