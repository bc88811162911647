//! `session::store::delete-entries`: removes a session's entries.

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
pub struct DeleteEntriesRequest {
    pub session_id: SessionId,
}

impl Mutation for DeleteEntriesRequest {
    const ID: &'static str = "session::store::delete-entries";
    const DESCRIPTION: &'static str =
        "Internal, for bridges: remove every entry of a session and nothing else; fires nothing.";
    const INTERNAL: bool = true;
    type Response = OkResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        Ok(Command::Store(StoreWrite::Session(self.session_id, SessionChange::DeleteEntries)))
    }

    fn response(answer: Answer) -> Option<OkResponse> {
        OkResponse::stored(answer)
    }
}
