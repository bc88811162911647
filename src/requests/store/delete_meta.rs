//! `session::store::delete-meta`: removes a session's record.

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
pub struct DeleteMetaRequest {
    pub session_id: SessionId,
}

impl Mutation for DeleteMetaRequest {
    const ID: &'static str = "session::store::delete-meta";
    const DESCRIPTION: &'static str =
        "Internal, for bridges: remove a session's record and nothing else; fires nothing.";
    const INTERNAL: bool = true;
    type Response = OkResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        Ok(Command::Store(StoreWrite::Session(self.session_id, SessionChange::DeleteMeta)))
    }

    fn response(answer: Answer) -> Option<OkResponse> {
        OkResponse::stored(answer)
    }
}
